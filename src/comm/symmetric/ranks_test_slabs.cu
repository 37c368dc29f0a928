// What ranks that move experts send each other: slabs of any bits between any two, loads of
// replicas, on GPUs of their own or on shares of one.

#include <algorithm>
#include <numeric>

#include "comm/nccl/nccl.h"
#include "comm/symmetric/ranks_test_support.cuh"

namespace baltoro::cuda {
namespace {

using namespace ranks_test;  // NOLINT

// Some ranks of a stage: `tensor` of each of `data` replicas.
GpuRankArgs Stage(int tensor, int data) {
  GpuRankArgs args;
  args.ranks = tensor * data;
  args.tensor = tensor;
  args.data = data;
  args.balances = true;
  args.rows_max = 64;
  args.hidden = 512;
  args.vocab = 2304;
  args.head_bytes = 64 * 576 * 2;
  args.expert_row_bytes = 512 * 2 + 8 * 8;
  args.patience_ms = 3000;
  return args;
}

// Words of any bits, among them those that stand for no data.
std::vector<uint32_t> Slab(int from, int to, int round, int64_t bytes) {
  std::mt19937_64 random(static_cast<uint64_t>(from * 1000 + to * 100 + round));
  std::vector<uint32_t> words(static_cast<size_t>(bytes / 4));
  for (uint32_t& word : words) {
    const uint64_t drawn = random();
    word = drawn % 5 == 0 ? 0xFFFFFFFFu : static_cast<uint32_t>(drawn >> 32);
  }
  return words;
}

// One packet; less than a lane has; all lanes several times, and a rest.
const std::vector<int64_t> kSizes = {16, 40 * 1024, (int64_t{5} << 20) + 48};

// Each rank sends to those of `ahead` places further, so that some trades are of all, some of one
// each way, and gets as many.
void CheckTrades(const GpuRankArgs& world,
                 const std::vector<int64_t>& sizes = kSizes,
                 const std::function<void(int, GpuRankArgs&)>& edit = {}) {
  const int ranks = world.ranks;
  Findings findings;
  MustJoin(RunRanks(
      world,
      [&](Rank& self) {
        std::mt19937 random(static_cast<unsigned>(self.rank));
        for (const int64_t bytes : sizes) {
          std::vector<Buffer> sent, received;
          std::vector<std::vector<uint32_t>> want;
          std::vector<SlabExchange::Out> out;
          std::vector<SlabExchange::In> in;
          for (int ahead = 1; ahead < ranks; ++ahead) {
            const int to = (self.rank + ahead) % ranks, from = (self.rank + ranks - ahead) % ranks;
            sent.push_back(ToDevice(Slab(self.rank, to, 0, bytes)));
            received.push_back(OnDevice(static_cast<size_t>(bytes)));
            want.push_back(Slab(from, self.rank, 0, bytes));
            const auto size = static_cast<size_t>(bytes);
            out.push_back(
                {.rank = to, .slab = {static_cast<std::byte*>(sent.back().data()), size}});
            in.push_back(
                {.rank = from, .slab = {static_cast<std::byte*>(received.back().data()), size}});
          }
          self.Meet();
          for (int repeat = 0; repeat < 10; ++repeat) {
            if (random() % 3 == 0) Delay(self.ctx(), 200'000);
            self.ops->slabs()->Trade(out, in);
            const size_t last = static_cast<size_t>(repeat) % out.size();
            self.ops->slabs()->Trade(std::span(out).subspan(last, 1),
                                     std::span(in).subspan(last, 1));
          }
          self.Wait();
          for (size_t i = 0; i < want.size(); ++i) {
            const auto got = FromDevice<uint32_t>(received[i].data(), want[i].size());
            findings.AddDifference(self, std::to_string(bytes) + " bytes",
                                   Difference(got.data(), want[i].data(), got.size()));
          }
          self.Meet();  // nobody frees while another waits
        }
        findings.AddStatus(self);
      },
      edit));
}

GPU_TEST(RanksTest, SlabsArriveAsTheyAre) {
  for (const int ranks : {2, 3, 4, 8}) {
    if (ranks > RanksPossible()) continue;
    CheckTrades(Stage(ranks, 1));
    CheckTrades(Stage(1, ranks));
  }
  if (RanksPossible() >= 4) CheckTrades(Stage(2, 2));
}

// Ranks agree on what the one with the fewest blocks can have, and send in several launches what
// does not fit into one.
GPU_TEST(RanksTest, SlabsArriveByFewLanes) {
  struct Few {
    int of_rank_1 = 0, of_others = 0;  // blocks
  };
  // One lane, a message at a time; one lane, several at once; three lanes, four at once; and what a
  // rank with few gets from others with all.
  for (const Few few : {Few{1, 1}, Few{6, 100}, Few{100, 13}, Few{3, 0}}) {
    for (const int ranks : {2, 4, 8}) {
      if (ranks > RanksPossible()) continue;
      GpuRankArgs world = Stage(ranks, 1);
      world.patience_ms = 20'000;  // of a message that is the last in turn
      CheckTrades(world, {16, 300 * 1024 + 48}, [&](int rank, GpuRankArgs& args) {
        args.slab_blocks_max = rank == 1 ? few.of_rank_1 : few.of_others;
      });
    }
  }
}

// A rank with nothing to send or get stays away, and comes later.
GPU_TEST(RanksTest, SlabsOfTwoNeedNoThird) {
  if (RanksPossible() < 3) testing::SkipCase("fewer than 3 ranks");
  constexpr int64_t kBytes = int64_t{3} << 20;
  Findings findings;
  MustJoin(RunRanks(Stage(3, 1), [&](Rank& self) {
    const Buffer own = ToDevice(Slab(self.rank, 0, 1, kBytes)), got = OnDevice(kBytes);
    const std::span<std::byte> sent(static_cast<std::byte*>(own.data()), kBytes);
    const std::span<std::byte> received(static_cast<std::byte*>(got.data()), kBytes);
    self.Meet();
    for (int round = 0; round < 6; ++round) {
      const int away = round % 3, from = (away + 1) % 3, to = (away + 2) % 3;
      const SlabExchange::Out out[] = {{.rank = to, .slab = sent}};
      const SlabExchange::In in[] = {{.rank = from, .slab = received}};
      if (self.rank == from) self.ops->slabs()->Trade(out, {});
      if (self.rank == to) self.ops->slabs()->Trade({}, in);
    }
    self.Wait();
    // The last that it got was of the round in which its neighbour ahead was away.
    const auto want = Slab((self.rank + 2) % 3, 0, 1, kBytes);
    const auto words = FromDevice<uint32_t>(got.data(), want.size());
    findings.AddDifference(self, "slab", Difference(words.data(), want.data(), want.size()));
    findings.AddStatus(self);
    self.Meet();
  }));
}

// A rank alone whose neighbours send back what they get.
GPU_TEST(RanksTest, SlabsComeBackFromEchoes) {
  GpuRankArgs world = Stage(1, 1);
  world.slab_echoes = 2;
  Findings findings;
  MustJoin(RunRanks(world, [&](Rank& self) {
    for (const int64_t bytes : kSizes) {
      const std::vector<uint32_t> want[] = {Slab(0, 1, 0, bytes), Slab(0, 2, 0, bytes)};
      const Buffer sent[] = {ToDevice(want[0]), ToDevice(want[1])};
      const Buffer received[] = {OnDevice(size_t(bytes)), OnDevice(size_t(bytes))};
      std::vector<SlabExchange::Out> out;
      std::vector<SlabExchange::In> in;
      for (const int i : {0, 1}) {
        const auto size = static_cast<size_t>(bytes);
        out.push_back({.rank = 1 + i, .slab = {static_cast<std::byte*>(sent[i].data()), size}});
        in.push_back({.rank = 1 + i, .slab = {static_cast<std::byte*>(received[i].data()), size}});
      }
      for (int repeat = 0; repeat < 3; ++repeat) self.ops->slabs()->Trade(out, in);
      self.Wait();
      for (const int i : {0, 1}) {
        const auto got = FromDevice<uint32_t>(received[i].data(), want[i].size());
        findings.AddDifference(self, std::to_string(bytes) + " bytes",
                               Difference(got.data(), want[i].data(), got.size()));
      }
    }
    findings.AddStatus(self);
  }));
}

void CheckSums(const GpuRankArgs& world) {
  Findings findings;
  MustJoin(RunRanks(world, [&](Rank& self) {
    const int replica = self.rank / world.tensor;
    for (const int64_t count : {1, 100, 40'000}) {
      const auto drawn = [&](int of) {
        std::mt19937 random(static_cast<unsigned>(of + 7));
        std::vector<float> counts(static_cast<size_t>(count));
        for (float& one : counts) one = static_cast<float>(random() % 10'000);
        return counts;
      };
      std::vector<float> want(static_cast<size_t>(count), 0.0F), got = drawn(replica);
      for (int of = 0; of < world.data; ++of) {
        const std::vector<float> part = drawn(of);
        for (size_t i = 0; i < want.size(); ++i) want[i] += part[i];
      }
      self.ops->slabs()->AddUp(got);
      findings.AddDifference(self, std::to_string(count) + " loads",
                             Difference(got.data(), want.data(), want.size()));
    }
    findings.AddStatus(self);
    self.Meet();
  }));
}

GPU_TEST(RanksTest, LoadsAreThoseOfAllReplicas) {
  CheckSums(Stage(2, 1));
  CheckSums(Stage(1, 2));
  if (RanksPossible() >= 4) CheckSums(Stage(2, 2));
}

GPU_TEST(RanksTest, ARankThatSendsNoSlabIsNamed) {
  GpuRankArgs world = Stage(2, 1);
  world.patience_ms = 300;
  Findings findings;
  MustJoin(RunRanks(world, [&](Rank& self) {
    const Buffer slab = OnDevice(size_t{1} << 20);
    const SlabExchange::In in[] = {
        {.rank = 1, .slab = {static_cast<std::byte*>(slab.data()), slab.bytes()}}};
    self.Meet();
    const auto begin = std::chrono::steady_clock::now();
    if (self.rank == 0) self.ops->slabs()->Trade({}, in);
    ExpectVainWait(self, findings, begin);
  }));
}

GPU_TEST(RanksTest, SlabsAndLoadsByNccl) {
  if (!Nccl::Open().ok()) testing::SkipCase("no NCCL");
  if (UsableDeviceCount() < 2) testing::SkipCase("fewer than 2 GPUs");
  for (GpuRankArgs world : {Stage(2, 1), Stage(1, 2), Stage(2, 2)}) {
    if (world.ranks > UsableDeviceCount()) continue;
    world.nccl_only = true;
    CheckTrades(world);
    CheckSums(world);
  }
}

}  // namespace
}  // namespace baltoro::cuda
