#include "model/host_exchange.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <numeric>
#include <vector>

#include "base/check.h"
#include "ops/compose/small_ops.h"
#include "ops/context.h"
#include "ops/group_rows.h"

namespace baltoro {
namespace {

std::span<std::byte> BytesOf(const TensorView& x) {
  BT_CHECK(x.contiguous());
  return {static_cast<std::byte*>(x.data), static_cast<size_t>(x.num_elements() * SizeOf(x.dtype))};
}

// What comes behind a failure means nothing, but numbers of experts must be some.
void Forget(std::span<const ExpertExchange::Gathered> tensors) {
  for (const ExpertExchange::Gathered& one : tensors)
    std::ranges::fill(BytesOf(one.all), std::byte{});
}

}  // namespace

// All tensors travel together: a message costs more than its bytes where steps are small.
void HostExchange::Gather(const OpContext&,
                          std::span<const Gathered> tensors,
                          std::span<const int64_t> rows) {
  BT_CHECK(std::ssize(rows) == peers_->size());
  const int64_t total = std::accumulate(rows.begin(), rows.end(), int64_t{0});
  const int64_t own_rows = rows[static_cast<size_t>(peers_->rank())];
  const int64_t row_bytes = CheckGathered(tensors, rows, static_cast<size_t>(peers_->rank()));
  if (!status_.ok()) return Forget(tensors);
  scratch_.Reset();
  const auto room = [&](int64_t bytes) {
    const auto size = static_cast<size_t>(bytes);
    return std::span<std::byte>(scratch_.AllocateArray<std::byte>(size), size);
  };
  const std::span<std::byte> own = room(own_rows * row_bytes), all = room(total * row_bytes);
  size_t at = 0;
  for (const Gathered& one : tensors) {
    const std::span<const std::byte> from = BytesOf(one.own);
    if (!from.empty()) std::memcpy(own.data() + at, from.data(), from.size());
    at += from.size();
  }
  std::vector<size_t> bytes;
  for (const int64_t count : rows) bytes.push_back(static_cast<size_t>(count * row_bytes));
  status_ = peers_->AllGather(own, bytes, all);
  if (!status_.ok()) return Forget(tensors);
  const std::byte* from = all.data();
  int64_t first = 0;
  for (const int64_t count : rows) {
    for (const Gathered& one : tensors) {
      const auto part = static_cast<size_t>(count * RowBytes(one.all));
      if (part > 0) std::memcpy(BytesOf(one.all).data() + first * RowBytes(one.all), from, part);
      from += part;
    }
    first += count;
  }
}

void HostExchange::AddBack(const OpContext&,
                           TensorView own,
                           TensorView all,
                           std::span<const int64_t> rows) {
  if (!status_.ok()) return;
  BT_CHECK(std::ssize(rows) == peers_->size());
  BT_CHECK(own.dtype == DType::kF32 && all.dtype == DType::kF32);
  CheckAddedBack(own, all, rows, static_cast<size_t>(peers_->rank()));
  scratch_.Reset();
  const auto size = static_cast<size_t>(own.num_elements());
  const std::span<float> sum(scratch_.AllocateArray<float>(size), size);
  std::vector<size_t> counts;
  for (const int64_t count : rows) counts.push_back(static_cast<size_t>(count * own.dim(1)));
  const auto* const parts = all.as<float>();
  status_ = peers_->ReduceScatterSum({parts, static_cast<size_t>(all.num_elements())}, counts, sum);
  if (!status_.ok()) return;
  auto* const to = own.as<float>();
  for (size_t i = 0; i < size; ++i) to[i] += sum[i];
}

void HostSlabs::AddUp(std::span<float> counts) {
  if (replicas_ == 1) return;
  if (!counts_) std::ranges::fill(counts, 0.0F);
  if (status_.ok()) status_ = experts_->AllReduceSum(counts);
  // What comes behind a failure means nothing, but numbers of rows must be some.
  if (!status_.ok()) std::ranges::fill(counts, 0.0F);
}

void HostSlabs::Trade(std::span<const Out> out, std::span<const In> in) {
  if (!status_.ok() || (out.empty() && in.empty())) return;
  std::vector<Outgoing> outgoing;
  for (const Out& one : out) outgoing.push_back({.peer = one.rank, .bytes = one.slab});
  std::vector<Incoming> incoming;
  for (const In& one : in) incoming.push_back({.peer = one.rank, .bytes = one.slab});
  status_ = experts_->Trade(outgoing, incoming);
}

void LonelyExchange::Gather(const OpContext& context,
                            std::span<const Gathered> tensors,
                            std::span<const int64_t> rows) {
  const bool host = ops_.memory->kind() == DeviceKind::kCpu;
  for (const Gathered& one : tensors) {
    const std::span<std::byte> own = BytesOf(one.own);
    const std::span<std::byte> all = BytesOf(one.all);
    BT_CHECK(all.size() == own.size() * rows.size());
    // Whatever the type: a copy moves words.
    constexpr size_t kWord = sizeof(float);
    const auto words = [&](std::byte* data) {
      return TensorView(data, DType::kF32, {1, static_cast<int64_t>(own.size() / kWord)});
    };
    for (size_t i = 0; i < rows.size() && !own.empty(); ++i) {
      std::byte* const to = all.data() + i * own.size();
      if (host) {
        std::memcpy(to, own.data(), own.size());
      } else {
        BT_CHECK(own.size() % kWord == 0);
        ops_.small->copy(context, words(to), words(own.data()));
      }
    }
  }
}

}  // namespace baltoro
