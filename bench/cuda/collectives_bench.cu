// Sums of the ranks' parts, 7168 columns, in a graph of 64 calls: every form of ours, alone and
// with the norm that follows, and NCCL's, in one run. Ranks are threads, each on a GPU of its own.
// Floors: bytes that a GPU sends over its links at 450 GB/s, in one shot and in two. `delta +
// residual + norm` of NCCL is its sum and the kernel add_rms_norm. Then the same ranks as replicas
// that share experts: rows of all gathered with the experts that they chose, and parts of sums
// added back, in both forms and by NCCL. On one GPU ranks lie on shares of it, whose times say
// little.
//
// Then what experts that move cost (--enable-eplb): slabs of K2's size in INT4, one and two each
// way between neighbours, and copies of two experts from where they wait into their slots. A rank
// alone has two neighbours that send back what they get, over its own memory.
//
//   cuda_collectives_bench [--replicas | --slabs] [ranks [rows...]]     these alone

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "comm/symmetric/ranks_test_support.cuh"
#include "device/cuda/graph.h"
#include "device/cuda/stream.h"

namespace baltoro::cuda {
namespace {

using namespace ranks_test;  // NOLINT

constexpr int64_t kHidden = 7168;
constexpr int64_t kRowsMax = 1024;
constexpr int kCalls = 64, kRuns = 15;
constexpr double kLinkBytesPerSecond = 450e9;

// What the host threads of a run have in common.
struct Shared {
  std::mutex mutex;
  std::vector<double> times;
  std::atomic<bool> failed = false;  // recording, on any rank
};

// Median microseconds of a call, of the slowest rank; negative where it cannot be recorded.
double Microseconds(Rank& self, Shared& shared, const std::function<Status()>& call) {
  const Result<Graph> graph = Graph::Capture(self.device.stream(), [&]() -> Status {
    for (int i = 0; i < kCalls; ++i) BT_RETURN_IF_ERROR(call());
    return {};
  });
  if (!graph.ok()) {
    std::printf(" [%s]", graph.status().message().c_str());
    shared.failed = true;
  }
  std::vector<Event> events;
  for (int i = 0; i <= kRuns; ++i) events.push_back(Must(Event::Create(true)));
  self.all->arrive_and_wait();
  if (shared.failed) {
    self.all->arrive_and_wait();
    if (self.rank == 0) shared.failed = false;
    self.all->arrive_and_wait();
    return -1;
  }
  for (int i = 0; i < 3; ++i) Must(graph.value().Launch(self.device.stream()));
  for (int i = 0; i <= kRuns; ++i) {
    Must(events[static_cast<size_t>(i)].Record(self.device.stream()));
    if (i < kRuns) Must(graph.value().Launch(self.device.stream()));
  }
  self.Wait();
  std::vector<float> ms;
  for (size_t i = 0; i < kRuns; ++i) {
    ms.push_back(Must(Event::MillisecondsBetween(events[i], events[i + 1])));
  }
  std::nth_element(ms.begin(), ms.begin() + kRuns / 2, ms.end());
  {
    const std::lock_guard lock(shared.mutex);
    shared.times.push_back(1e3 * static_cast<double>(ms[kRuns / 2]) / kCalls);
  }
  self.all->arrive_and_wait();
  const double slowest = *std::max_element(shared.times.begin(), shared.times.end());
  self.all->arrive_and_wait();
  if (self.rank == 0) shared.times.clear();
  self.all->arrive_and_wait();
  return slowest;
}

// Every replica has as many rows.
void BenchReplicas(int ranks, const std::vector<int64_t>& row_counts) {
  constexpr int64_t kChosen = 8;
  GpuRankArgs world;
  world.ranks = world.data = ranks;
  world.rows_max = kRowsMax;
  world.hidden = kHidden;
  world.vocab = 163840;
  world.head_bytes = 64 * 576 * 2;
  world.expert_row_bytes = kHidden * 2 + kChosen * 8;
  const bool with_nccl = Nccl::Open().ok() && !SharesGpu();
  Shared shared;
  for (const bool nccl : {false, true}) {
    if (nccl && !with_nccl) continue;
    world.nccl_only = nccl;
    MustJoin(RunRanks(world, [&](Rank& self) {
      const int64_t most = kRowsMax * ranks;
      const Buffer rows_all = OnDevice(size_t(most * kHidden) * 2),
                   parts = OnDevice(size_t(most * kHidden) * 4);
      const Buffer ids_all = OnDevice(size_t(most) * kChosen * 4),
                   weights_all = OnDevice(size_t(most) * kChosen * 4);
      const Buffer own = OnDevice(kRowsMax * kHidden * 2), sum = OnDevice(kRowsMax * kHidden * 4);
      const Buffer ids = OnDevice(kRowsMax * kChosen * 4);
      const auto say = [&](const char* format, auto... values) {
        if (self.rank != 0) return;
        std::printf(format, values...);
        std::fflush(stdout);
      };
      if (nccl) {
        say("by NCCL\n%6s %8s %8s\n", "rows", "gather", "add");
      } else {
        say("%d replicas, us of a call\n%6s %8s %8s %8s %8s %8s %8s %8s\n", ranks, "rows",
            "gather/p", "gather/c", "gather", "add/p", "add/c", "add", "floor");
      }
      for (const int64_t count : row_counts) {
        const std::vector<int64_t> rows(static_cast<size_t>(ranks), count);
        const int64_t total = count * ranks;
        const ExpertExchange::Gathered tensors[] = {
            {.all = TensorView(rows_all.data(), DType::kBf16, {total, kHidden}),
             .own = TensorView(own.data(), DType::kBf16, {count, kHidden})},
            {.all = TensorView(ids_all.data(), DType::kI32, {total, kChosen}),
             .own = TensorView(ids.data(), DType::kI32, {count, kChosen})},
            {.all = TensorView(weights_all.data(), DType::kF32, {total, kChosen}),
             .own = TensorView(ids.data(), DType::kF32, {count, kChosen})}};
        const auto gather = [&]() -> Status {
          self.ops->experts()->Gather(self.ctx(), tensors, rows);
          return {};
        };
        const auto add = [&]() -> Status {
          self.ops->experts()->AddBack(
              self.ctx(), TensorView(sum.data(), DType::kF32, {count, kHidden}),
              TensorView(parts.data(), DType::kF32, {total, kHidden}), rows);
          return {};
        };
        say("%6d", static_cast<int>(count));
        std::vector<std::optional<ExchangeForm>> forms = {{}};
        if (!nccl) forms = {ExchangeForm::kPackets, ExchangeForm::kChunks, {}};
        for (const bool adds : {false, true}) {
          for (const std::optional<ExchangeForm> form : forms) {
            if (!nccl) self.ops->peer_exchange()->Choose(form);
            const double us =
                adds ? Microseconds(self, shared, add) : Microseconds(self, shared, gather);
            say(" %8.2f", us);
          }
        }
        if (!nccl) {
          const double bytes = static_cast<double>(count * kHidden) * 2 * (ranks - 1);
          say(" %8.2f", 1e6 * bytes / kLinkBytesPerSecond);
        }
        say("%s", "\n");
      }
      Must(self.ops->status());
    }));
  }
}

// Gate/up and down of an expert, 7168 to 2048, as they are packed.
constexpr int64_t kSlabBytes[] = {int64_t{4096} * (3584 + 448), int64_t{7168} * (1024 + 128)};

void BenchSlabs(int ranks) {
  constexpr int kMost = 2;  // experts that a rank sends and gets in a round
  GpuRankArgs world;
  world.ranks = world.tensor = ranks;
  world.slab_echoes = ranks == 1 ? kMost : 0;
  world.balances = true;
  world.rows_max = 64;
  world.hidden = kHidden;
  world.vocab = 163840;
  world.head_bytes = 64 * 576 * 2;
  const bool with_nccl = Nccl::Open().ok() && !SharesGpu();
  Shared shared;
  for (const bool nccl : {false, true}) {
    if (nccl && (!with_nccl || ranks == 1)) continue;
    world.nccl_only = nccl;
    MustJoin(RunRanks(world, [&](Rank& self) {
      const auto say = [&](const char* format, auto... values) {
        if (self.rank != 0) return;
        std::printf(format, values...);
        std::fflush(stdout);
      };
      const int64_t expert = kSlabBytes[0] + kSlabBytes[1];
      // More than the L2 holds, of which each call takes others.
      constexpr int kSlots = 16;
      const Buffer layer = OnDevice(size_t(kSlots * expert)),
                   staged = OnDevice(size_t(kSlots * expert));
      const auto slab = [&](const Buffer& of, int slot, int64_t at, int64_t bytes) {
        return std::span(static_cast<std::byte*>(of.data()) + slot * expert + at, size_t(bytes));
      };
      say("%s%s, us, of %.1f MB an expert:",
          ranks == 1 ? "a rank and two echoes" : (std::to_string(ranks) + " ranks").c_str(),
          nccl ? ", NCCL" : "", double(expert) / 1e6);
      int calls = 0;
      for (int count = 1; count <= kMost; ++count) {
        if (ranks > 1 && count >= ranks) continue;
        const double us = Microseconds(self, shared, [&]() -> Status {
          int64_t at = 0;
          const int first = calls++ * kMost % (kSlots - kMost);
          for (const int64_t bytes : kSlabBytes) {
            std::vector<SlabExchange::Out> out;
            std::vector<SlabExchange::In> in;
            for (int i = 1; i <= count; ++i) {
              const int to = ranks == 1 ? i : (self.rank + i) % ranks;
              const int from = ranks == 1 ? i : (self.rank + ranks - i) % ranks;
              out.push_back({.rank = to, .slab = slab(layer, first + i, at, bytes)});
              in.push_back({.rank = from, .slab = slab(staged, first + i, at, bytes)});
            }
            self.ops->slabs()->Trade(out, in);
            at += bytes;
          }
          return {};
        });
        say(" %d each way %.1f (%.0f GB/s)", count, us, double(count * expert) / us / 1e3);
      }
      if (!nccl) {
        const double us = Microseconds(self, shared, [&]() -> Status {
          const int64_t at = calls++ * kMost % (kSlots - kMost) * expert;
          CopyAsync(self.ctx(), static_cast<char*>(layer.data()) + at,
                    static_cast<const char*>(staged.data()) + at, size_t(kMost * expert));
          return {};
        });
        say(", %d experts from where they wait into their slots %.1f", kMost, us);
      }
      say("%s", "\n");
      Must(self.ops->status());
    }));
  }
}

void Bench(int ranks, const std::vector<int64_t>& row_counts) {
  GpuRankArgs world;
  world.ranks = ranks;
  world.tensor = ranks;
  world.rows_max = kRowsMax;
  world.hidden = kHidden;
  world.vocab = 163840;
  world.head_bytes = 64 * 576 * 2;
  const Result<std::shared_ptr<const Nccl>> nccl = Nccl::Open();
  if (!nccl.ok()) std::printf("no NCCL: %s\n", nccl.status().message().c_str());
  const NcclId id = nccl.ok() ? Must(nccl.value()->MakeId()) : NcclId{};
  Shared shared;
  MustJoin(RunRanks(world, [&](Rank& self) {
    std::unique_ptr<NcclGroup> group;
    if (nccl.ok()) {
      Result<std::unique_ptr<NcclGroup>> joined =
          NcclGroup::Join(nccl.value(), id, self.rank, ranks);
      if (joined.ok()) group = std::move(joined).value();
      if (!joined.ok()) std::printf("%s\n", joined.status().message().c_str());
    }
    const Buffer x = OnDevice(kRowsMax * kHidden * 4), residual = OnDevice(kRowsMax * kHidden * 4);
    const Buffer out = OnDevice(kRowsMax * kHidden * 2);
    const Buffer weight = ToDevice(std::vector<float>(kHidden, 1.0f));
    const TensorView scale(weight.data(), DType::kF32, {kHidden});
    const auto say = [&](const char* format, auto... values) {
      if (self.rank != 0) return;
      std::printf(format, values...);
      std::fflush(stdout);
    };
    say("%d ranks, us of a call\n%6s", ranks, "rows");
    for (const char* form : {"one", "two", "one+n", "two+n"}) {
      for (const int blocks : {2, 4, 8}) say(" %6s/%d", form, blocks);
    }
    say(" %8s %8s %8s %8s %8s %8s %8s %8s\n", "table", "table+n", "norm", "nccl16", "nccl32",
        "nccl16+n", "floor1", "floor2");
    for (const int64_t rows : row_counts) {
      const TensorView parts(x.data(), DType::kF32, {rows, kHidden});
      const TensorView stream(residual.data(), DType::kF32, {rows, kHidden});
      const TensorView normed(out.data(), DType::kBf16, {rows, kHidden});
      say("%6d", static_cast<int>(rows));
      const auto time = [&](const std::function<Status()>& call) {
        const double us = Microseconds(self, shared, call);
        say(" %8.2f", us);
        return us >= 0;
      };
      const auto sum = [&]() -> Status {
        self.ops->Sum(self.ctx(), parts);
        return {};
      };
      const auto norm = [&]() -> Status {
        static_cast<void>(self.ops->SumAddRmsNorm(self.ctx(), normed, stream, parts, scale, 1e-5f));
        return {};
      };
      for (const bool with_norm : {false, true}) {
        for (const SumForm form : {SumForm::kOneShot, SumForm::kTwoShot}) {
          for (const int blocks : {2, 4, 8}) {
            self.ops->peers()->Choose(SumChoice{form, blocks});
            with_norm ? time(norm) : time(sum);
          }
        }
      }
      self.ops->peers()->Choose({});
      time(sum);
      time(norm);
      const auto add_norm = [&]() -> Status {
        AddRmsNorm(self.ctx(), normed, stream, parts, scale, 1e-5f);
        return {};
      };
      const auto count = static_cast<size_t>(rows * kHidden);
      const auto nccl_sum = [&](NcclType type) -> Status {
        group->Sum(x.data(), count, type, StreamOf(self.ctx()));
        return group->status();
      };
      time(add_norm);
      // What fails once is not tried again.
      if (group != nullptr && (!time([&] { return nccl_sum(NcclType::kBf16); }) || !time([&] {
            return nccl_sum(NcclType::kF32);
          }) || !time([&]() -> Status {
            BT_RETURN_IF_ERROR(nccl_sum(NcclType::kBf16));
            return add_norm();
          }))) {
        group.reset();
      }
      const double bytes = static_cast<double>(count) * 2 * (ranks - 1);
      say(" %8.2f %8.2f\n", 1e6 * bytes / kLinkBytesPerSecond,
          1e6 * bytes * 2 / ranks / kLinkBytesPerSecond);
    }
    Must(self.ops->status());
  }));
}

}  // namespace
}  // namespace baltoro::cuda

int main(int argc, char** argv) {
  using namespace baltoro::cuda;  // NOLINT
  baltoro::test::UseSharesOfOneCard();
  const int possible = ranks_test::RanksPossible();
  if (possible < 1) {
    std::printf("no GPU\n");
    return 77;
  }
  const bool replicas_alone = argc > 1 && std::strcmp(argv[1], "--replicas") == 0;
  const bool slabs_alone = argc > 1 && std::strcmp(argv[1], "--slabs") == 0;
  if (replicas_alone || slabs_alone) --argc, ++argv;
  std::vector<int64_t> rows;
  for (int i = 2; i < argc; ++i) rows.push_back(std::atoll(argv[i]));
  if (rows.empty()) rows = {1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024};
  const int only = argc > 1 ? std::atoi(argv[1]) : 0;
  if (slabs_alone && only <= 1) BenchSlabs(1);
  for (const int ranks : {2, 4, 8}) {
    if (ranks > possible || (only != 0 && only != ranks)) continue;
    if (!replicas_alone && !slabs_alone) Bench(ranks, rows);
    if (!slabs_alone) BenchReplicas(ranks, rows);
    if (!replicas_alone) BenchSlabs(ranks);
  }
  return 0;
}
