#include "comm/link_communicator.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "base/check.h"

namespace baltoro {
namespace {

// An all-reduce of which a rank sends at most this much in all is done in one exchange.
constexpr size_t kShortSendBytes = 128 << 10;
// What a rank holds of others' parts at once; longer reductions go in rounds.
constexpr size_t kScratchFloats = 1 << 20;
// Parts of a long all-reduce begin at whole cache lines of the buffer.
constexpr size_t kPartFloats = 16;
// Sums are made on the stack in blocks, since the result may replace a source.
constexpr size_t kSumBlockFloats = 512;

struct Part {
  size_t begin = 0, count = 0;
};

// FNV-1a. Ranks that disagree about a group should hear so; this is no protection.
uint32_t GroupId(const GroupOptions& options) {
  uint32_t hash = 2166136261u;
  auto mix = [&](uint32_t value) { hash = (hash ^ value) * 16777619u; };
  for (const char letter : options.name) mix(static_cast<unsigned char>(letter));
  for (const int32_t rank : options.ranks) mix(static_cast<uint32_t>(rank) + 256);
  return hash;
}

// out[i] = sources[0][i] + sources[1][i] + ..., in this order. `out` may be one of the sources.
void SumInOrder(std::span<const float* const> sources, float* out, size_t count) {
  float sum[kSumBlockFloats];
  for (size_t begin = 0; begin < count; begin += kSumBlockFloats) {
    const size_t block = std::min(kSumBlockFloats, count - begin);
    std::copy_n(sources[0] + begin, block, sum);
    for (size_t s = 1; s < sources.size(); ++s) {
      const float* source = sources[s] + begin;
      for (size_t i = 0; i < block; ++i) sum[i] += source[i];
    }
    std::copy_n(sum, block, out + begin);
  }
}

class LinkCommunicator final : public Communicator {
 public:
  LinkCommunicator(Link* link, GroupOptions options, int32_t place)
      : link_(link), options_(std::move(options)), group_(GroupId(options_)), place_(place) {
    const size_t peers = options_.ranks.size() - 1;
    outgoing_.reserve(peers);
    incoming_.reserve(peers);
    sources_.resize(options_.ranks.size());
    parts_.resize(options_.ranks.size());
    scratch_.resize(kShortSendBytes / sizeof(float));
  }

  int32_t rank() const override { return place_; }
  int32_t size() const override { return static_cast<int32_t>(options_.ranks.size()); }

  Status AllReduceSum(std::span<float> data) override {
    Begin(Operation::kAllReduce);
    const size_t others = sources_.size() - 1;
    if (others == 0 || data.empty()) return link_->status();
    if (data.size_bytes() <= kEagerBytes && data.size_bytes() * others <= kShortSendBytes) {
      return ShortAllReduce(data);
    }
    for (size_t begin = 0; begin < data.size(); begin += kScratchFloats) {
      const size_t count = std::min(kScratchFloats, data.size() - begin);
      BT_RETURN_IF_ERROR(LongAllReduce(data.subspan(begin, count)));
    }
    return Status();
  }

  Status ReduceScatterSum(std::span<const float> in,
                          std::span<const size_t> counts,
                          std::span<float> out) override {
    BT_CHECK(counts.size() == sources_.size());
    BT_CHECK(std::accumulate(counts.begin(), counts.end(), size_t{0}) == in.size());
    BT_CHECK(out.size() == counts[me()]);
    Begin(Operation::kReduceScatter);
    const size_t most = *std::max_element(counts.begin(), counts.end());
    const size_t round = kScratchFloats / sources_.size();
    for (size_t done = 0; done < most; done += round) {
      for (size_t r = 0, begin = 0; r < counts.size(); begin += counts[r++]) {
        const size_t skipped = std::min(done, counts[r]);
        parts_[r] = {.begin = begin + skipped, .count = std::min(round, counts[r] - skipped)};
      }
      BT_RETURN_IF_ERROR(ReduceParts(in.data(), out.data() + std::min(done, out.size())));
    }
    return link_->status();
  }

  Status AllGather(std::span<const std::byte> in,
                   std::span<const size_t> bytes,
                   std::span<std::byte> out) override {
    BT_CHECK(bytes.size() == sources_.size());
    BT_CHECK(std::accumulate(bytes.begin(), bytes.end(), size_t{0}) == out.size());
    BT_CHECK(in.size() == bytes[me()]);
    Begin(Operation::kAllGather);
    for (size_t r = 0, begin = 0; r < bytes.size(); begin += bytes[r++]) {
      parts_[r] = {.begin = begin, .count = bytes[r]};
    }
    std::byte* own = out.data() + parts_[me()].begin;
    if (!in.empty() && own != in.data()) std::memcpy(own, in.data(), in.size());
    return GatherParts(out, 1);
  }

  Status Broadcast(std::span<std::byte> data, int32_t root) override {
    BT_CHECK(root >= 0 && root < size());
    Begin(Operation::kBroadcast);
    if (root == place_) {
      for (size_t r = 0; r < sources_.size(); ++r) QueueSend(r, data);
    } else {
      QueueReceive(static_cast<size_t>(root), data);
    }
    return RunQueued();
  }

  Status Send(std::span<const std::byte> data, int32_t to) override {
    BT_CHECK(to >= 0 && to < size() && to != place_);
    Begin(Operation::kSendReceive);
    QueueSend(static_cast<size_t>(to), data);
    return RunQueued();
  }

  Status Receive(std::span<std::byte> data, int32_t from) override {
    BT_CHECK(from >= 0 && from < size() && from != place_);
    Begin(Operation::kSendReceive);
    QueueReceive(static_cast<size_t>(from), data);
    return RunQueued();
  }

  Status Trade(std::span<const Outgoing> outgoing, std::span<const Incoming> incoming) override {
    Begin(Operation::kSendReceive);
    for (const Outgoing& one : outgoing) {
      BT_CHECK(one.peer >= 0 && one.peer < size() && one.peer != place_);
      QueueSend(static_cast<size_t>(one.peer), one.bytes);
    }
    for (const Incoming& one : incoming) {
      BT_CHECK(one.peer >= 0 && one.peer < size() && one.peer != place_);
      QueueReceive(static_cast<size_t>(one.peer), one.bytes);
    }
    return RunQueued();
  }

  Status Barrier() override {
    Begin(Operation::kBarrier);
    for (size_t r = 0; r < sources_.size(); ++r) {
      QueueSend(r, {});
      QueueReceive(r, {});
    }
    return RunQueued();
  }

  void Abort(const std::string& reason) override { link_->Abort(reason); }

 private:
  size_t me() const { return static_cast<size_t>(place_); }

  void Begin(Operation operation) {
    tag_ = {.group = group_, .operation = operation};
    deadline_ = MonotonicClock().Now() + options_.call_timeout;
  }

  // A message to oneself is none.
  void QueueSend(size_t to, std::span<const std::byte> bytes) {
    if (to != me()) outgoing_.push_back({.peer = options_.ranks[to], .bytes = bytes});
  }
  void QueueReceive(size_t from, std::span<std::byte> bytes) {
    if (from != me()) incoming_.push_back({.peer = options_.ranks[from], .bytes = bytes});
  }
  Status RunQueued() {
    Status result = link_->Exchange(tag_, outgoing_, incoming_, deadline_);
    outgoing_.clear();
    incoming_.clear();
    return result;
  }

  Status ShortAllReduce(std::span<float> data) {
    float* room = scratch_.data();
    for (size_t r = 0; r < sources_.size(); ++r) {
      sources_[r] = data.data();
      if (r == me()) continue;
      sources_[r] = room;
      QueueSend(r, std::as_bytes(data));
      QueueReceive(r, std::as_writable_bytes(std::span(room, data.size())));
      room += data.size();
    }
    BT_RETURN_IF_ERROR(RunQueued());
    SumInOrder(sources_, data.data(), data.size());
    return Status();
  }

  Status LongAllReduce(std::span<float> data) {
    const size_t ranks = sources_.size();
    const size_t even = (data.size() + ranks - 1) / ranks;
    const size_t part = (even + kPartFloats - 1) / kPartFloats * kPartFloats;
    for (size_t r = 0; r < ranks; ++r) {
      const size_t begin = std::min(r * part, data.size());
      parts_[r] = {.begin = begin, .count = std::min(part, data.size() - begin)};
    }
    BT_RETURN_IF_ERROR(ReduceParts(data.data(), data.data() + parts_[me()].begin));
    return GatherParts(std::as_writable_bytes(data), sizeof(float));
  }

  // Sends in[parts_[r]] to each rank r, and sums what this rank's part is on every rank.
  Status ReduceParts(const float* in, float* out) {
    const Part mine = parts_[me()];
    const size_t needed = mine.count * (sources_.size() - 1);
    if (scratch_.size() < needed) scratch_.resize(needed);
    float* room = scratch_.data();
    for (size_t r = 0; r < sources_.size(); ++r) {
      sources_[r] = in + mine.begin;
      if (r == me()) continue;
      if (parts_[r].count > 0) {
        QueueSend(r, std::as_bytes(std::span(in + parts_[r].begin, parts_[r].count)));
      }
      if (mine.count == 0) continue;
      sources_[r] = room;
      QueueReceive(r, std::as_writable_bytes(std::span(room, mine.count)));
      room += mine.count;
    }
    BT_RETURN_IF_ERROR(RunQueued());
    SumInOrder(sources_, out, mine.count);
    return Status();
  }

  // Every rank's part of `data`, in units of `unit` bytes, goes to all others. Nobody waits for a
  // part that is empty.
  Status GatherParts(std::span<std::byte> data, size_t unit) {
    const Part mine = parts_[me()];
    for (size_t r = 0; r < sources_.size(); ++r) {
      if (mine.count > 0) QueueSend(r, data.subspan(mine.begin * unit, mine.count * unit));
      if (parts_[r].count == 0) continue;
      QueueReceive(r, data.subspan(parts_[r].begin * unit, parts_[r].count * unit));
    }
    return RunQueued();
  }

  Link* const link_;
  const GroupOptions options_;
  const uint32_t group_;
  const int32_t place_;
  // Of the call under way.
  MessageTag tag_;
  Seconds deadline_ = 0;
  std::vector<Outgoing> outgoing_;
  std::vector<Incoming> incoming_;
  std::vector<const float*> sources_;  // by place in the group
  std::vector<Part> parts_;            // likewise
  std::vector<float> scratch_;         // parts of others, of a bounded size
};

}  // namespace

Result<std::unique_ptr<Communicator>> JoinGroup(Link* link, const GroupOptions& options) {
  const auto refuse = [&](const std::string& why) {
    return InvalidArgument(fmt::format("group \"{}\": {}", options.name, why));
  };
  std::vector<int32_t> sorted = options.ranks;
  std::sort(sorted.begin(), sorted.end());
  for (size_t i = 0; i < sorted.size(); ++i) {
    if (sorted[i] < 0 || sorted[i] >= link->ranks()) {
      return refuse(
          fmt::format("rank {} is not one of the world's {} ranks", sorted[i], link->ranks()));
    }
    if (i > 0 && sorted[i] == sorted[i - 1]) {
      return refuse(fmt::format("rank {} is named twice", sorted[i]));
    }
  }
  const auto own = std::find(options.ranks.begin(), options.ranks.end(), link->rank());
  if (own == options.ranks.end()) {
    return refuse(fmt::format("does not hold this rank, {}", link->rank()));
  }
  if (!(options.call_timeout > 0)) return refuse("call_timeout must be positive");
  const auto place = static_cast<int32_t>(own - options.ranks.begin());
  return std::unique_ptr<Communicator>(std::make_unique<LinkCommunicator>(link, options, place));
}

}  // namespace baltoro
