// Ranks on CPUs whose experts are chosen by a Zipf law, with --enable-eplb off and on: how much the
// busiest rank has to do, and what a step takes while experts move. Ranks are threads: with fewer
// processors time does not show the balance, since none waits for one that has more to do.
//
//   expert_balance_bench [RANKS [STEP_BYTES]]     4 16777216

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <numeric>
#include <random>
#include <thread>
#include <vector>

#include "base/log.h"
#include "comm/thread_world.h"
#include "model/k2_model.h"
#include "ops/compose/compose.h"
#include "ops/cpu/cpu_ops.h"
#include "support/tiny_model.h"
#include "weights/dummy_source.h"

namespace baltoro::bench {
namespace {

constexpr int32_t kExperts = 64, kTopK = 8, kMoeLayers = 4, kRows = 64, kSteps = 500;
constexpr int32_t kRedundant = 16;

// What a rank draws, the same on all, and counts.
struct Drawn {
  std::mt19937 draws{7};
  uint32_t layer = 0;
  int32_t slots_of_rank = 1, ranks = 1;
  int64_t busiest = 0, layers = 0;  // rows of the busiest rank of each layer, added up
};
thread_local Drawn drawn;

// In the router's place, with an order of experts of each layer's own.
void DrawExperts(const OpContext&,
                 TensorView ids,
                 TensorView weights,
                 TensorView,
                 TensorView,
                 const RouterParams&) {
  std::vector<int32_t> order(kExperts);
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), std::mt19937(drawn.layer++ % kMoeLayers));
  std::vector<double> shares(kExperts);
  for (int32_t i = 0; i < kExperts; ++i) shares[static_cast<size_t>(i)] = 1.0 / (i + 1);
  std::discrete_distribution<size_t> zipf(shares.begin(), shares.end());
  for (int64_t row = 0; row < ids.dim(0); ++row) {
    auto* const chosen = static_cast<int32_t*>(ids.data) + row * kTopK;
    for (int32_t i = 0; i < kTopK;) {
      chosen[i] = order[zipf(drawn.draws)];
      if (std::find(chosen, chosen + i, chosen[i]) == chosen + i) ++i;  // all different
    }
    std::fill_n(static_cast<float*>(weights.data) + row * kTopK, kTopK, 1.0F / kTopK);
  }
}

void CountRows(const OpContext& context, TensorView ids, const ExpertCopies& copies) {
  CpuSmallOps(DType::kBf16).choose_copies(context, ids, copies);
  std::vector<int64_t> rows(static_cast<size_t>(drawn.ranks), 0);
  const auto* const slots = static_cast<const int32_t*>(ids.data);
  for (int64_t i = 0; i < ids.num_elements(); ++i) {
    ++rows[static_cast<size_t>(slots[i] / drawn.slots_of_rank)];
  }
  drawn.busiest += *std::ranges::max_element(rows);
  ++drawn.layers;
}

void Tell(const char* what, std::vector<double> ms) {
  if (ms.empty()) return;
  const double sum = std::accumulate(ms.begin(), ms.end(), 0.0);
  const auto steps = static_cast<double>(ms.size());
  std::ranges::sort(ms);
  fmt::print("  {:<20}{:>4} steps, {:>5.0f} tokens/s, ms: p50 {:.2f}, p99 {:.2f}, most {:.2f}\n",
             what, ms.size(), steps * kRows * 1e3 / sum, ms[ms.size() / 2],
             ms[static_cast<size_t>(steps * 0.99)], ms.back());
}

// `step_bytes` 0: experts stay.
void RunRank(K2Model& model, const ParallelLayout& layout, int64_t step_bytes, bool tells) {
  const bool moves = step_bytes > 0;
  drawn = {.slots_of_rank = (kExperts + layout.redundant_experts) / layout.tensor,
           .ranks = layout.tensor};
  if (moves) model.BalanceExperts({.window = 100, .interval = 400, .step_bytes = step_bytes});
  test::TinyRunner runner(model, kSteps, KvForm::kBf16);
  std::vector<double> quiet, moving;
  uint64_t moved = 0;
  Drawn before;  // the first step that counts
  for (int32_t step = 0; step < kSteps; ++step) {
    const auto begun = std::chrono::steady_clock::now();
    runner.RunAmong(std::vector<int32_t>{step % 89}, /*absorbed_from=*/0, kRows - 1);
    const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - begun;
    const BalanceNews news = moves ? model.balancer()->news() : BalanceNews{.rearrangements = 1};
    if (std::exchange(moved, news.moved_experts) != news.moved_experts) {
      moving.push_back(took.count());
    } else if (news.rearrangements > 0 && step >= 20) {
      if (quiet.empty()) before = drawn;
      quiet.push_back(took.count());
    }
  }
  if (!tells) return;
  const auto busiest = static_cast<double>(drawn.busiest - before.busiest);
  fmt::print("{} EPLB: the busiest rank has {:.0f} rows a layer, the mean one {}; {} moved\n",
             moves ? "with" : "without",
             busiest / static_cast<double>(drawn.layers - before.layers),
             kRows * kTopK / layout.tensor, moved);
  Tell(moves ? "settled" : "all", quiet);
  Tell("while experts move", moving);
}

void RunRanks(const ParallelLayout& layout, const OpsTable& ops, int64_t step_bytes) {
  K2Config config = test::SmallConfig(1 + kMoeLayers, /*heads=*/8);
  config.hidden = 512;
  config.moe_intermediate = 256;
  config.experts = config.router.experts = kExperts;
  config.router.top_k = kTopK;
  ThreadWorld world(layout.ranks());
  std::vector<std::jthread> threads;
  for (int32_t rank = 0; rank < layout.ranks(); ++rank) {
    threads.emplace_back([&, rank] {
      const std::unique_ptr<Link> link = world.Join(rank);
      const auto ranks = ModelRanks::Join(link.get(), layout).value();
      DummySource source(3);
      K2LoadOptions options;
      options.ranks = ranks.get();
      options.quiet = true;
      const auto model = K2Model::Load(config, source, ops, nullptr, options).value();
      RunRank(*model, layout, step_bytes, rank == 0);
    });
  }
}

}  // namespace
}  // namespace baltoro::bench

int main(int argc, char** argv) {
  using namespace baltoro;  // NOLINT(google-build-using-namespace)
  InitLog("bench", LogLevel::kError);
  SmallOps small = CpuSmallOps(DType::kBf16);
  small.route = bench::DrawExperts;
  small.choose_copies = bench::CountRows;
  OpsTable ops = CpuOps(DType::kBf16);
  ComposeOps(ops, small);
  ParallelLayout layout{.whole_experts = true, .balanced_experts = true};
  layout.tensor = argc > 1 ? std::atoi(argv[1]) : 4;
  fmt::print("{} ranks, {} processors; {} layers of {} experts, {} of them a row, {} rows a step\n",
             layout.tensor, std::thread::hardware_concurrency(), bench::kMoeLayers, bench::kExperts,
             bench::kTopK, bench::kRows);
  bench::RunRanks(layout, ops, 0);
  layout.redundant_experts = bench::kRedundant;
  bench::RunRanks(layout, ops, argc > 2 ? std::atoll(argv[2]) : int64_t{16} << 20);
}
