// What the GPUs of this node read from their memory, and how fast they add up what each has: the
// two rates that steps of a model rest on.

#include <algorithm>
#include <array>
#include <barrier>
#include <mutex>
#include <thread>

#include "base/clock.h"
#include "comm/thread_world.h"
#include "device/buffer.h"
#include "doctor/gather.h"
#include "engine/backend_choice.h"
#include "engine/gpu_ranks.h"
#include "ops/cuda_module.h"

namespace baltoro {
namespace {

constexpr int64_t kHidden = 7168;  // of the K2 family
constexpr int kSums = 64, kRuns = 8;

// What the threads of the GPUs have in common.
struct Meeting {
  explicit Meeting(int count) : all(count), ended(count), world(count) {
    for (auto& of_rows : runs_us) of_rows.fill(-1);
  }
  std::barrier<> all;    // of those that have not failed
  std::barrier<> ended;  // of all
  ThreadWorld world;
  std::mutex mutex;
  CardRates rates;
  std::array<std::array<double, kRuns>, CardRates::kRows.size()> runs_us;
  bool failed = false;

  void Fail(int gpu, const Status& status) {
    const std::lock_guard lock(mutex);
    failed = true;
    if (rates.problem.empty()) {
      rates.problem = "GPU " + std::to_string(gpu) + ": " + status.message();
    }
  }
  // Whether all came so far. Each GPU's thread asks at the same places.
  bool Go() {
    all.arrive_and_wait();
    const bool go = !failed;
    all.arrive_and_wait();
    return go;
  }
};

// Microseconds of one sum of so many rows over the ranks, recorded in a graph: of each run what the
// slowest rank took, of those the least.
Status TimeSums(const OpsTable& ops, RankOps& ranks, TensorView x, size_t which, Meeting& meeting) {
  const OpContext context{.rank = ops.rank};
  const std::unique_ptr<OpGraph> graph = ops.capture(context, [&] {
    for (int i = 0; i < kSums; ++i) ranks.Sum(context, x);
  });
  const MonotonicClock clock;
  for (int run = 0; run < kRuns; ++run) {
    meeting.all.arrive_and_wait();
    const Seconds start = clock.Now();
    graph->Launch(context);
    BT_RETURN_IF_ERROR(ops.wait(context));
    BT_RETURN_IF_ERROR(ranks.status());
    const double us = (clock.Now() - start) / kSums * 1e6;
    const std::lock_guard lock(meeting.mutex);
    double& slowest = meeting.runs_us[which][static_cast<size_t>(run)];
    slowest = std::max(slowest, us);
  }
  return {};
}

Status TimeAll(const OpsTable& ops, RankOps& ranks, Meeting& meeting) {
  if (!ranks.recordable() || ops.capture == nullptr) {
    return Status(Code::kUnavailable, "its sums cannot be recorded");
  }
  BT_ASSIGN_OR_RETURN(
      const Buffer x,
      Buffer::Create(CardRates::kRows.back() * kHidden * sizeof(float), "a sum", *ops.memory));
  for (size_t i = 0; i < CardRates::kRows.size(); ++i) {
    const TensorView rows(x.data(), DType::kF32, {CardRates::kRows[i], kHidden});
    BT_RETURN_IF_ERROR(TimeSums(ops, ranks, rows, i, meeting));
  }
  return {};
}

// Each GPU's thread, all at the same time.
void AddUp(const OpsTable& ops, int gpu, int gpus, Meeting& meeting) {
  K2Config config;
  config.heads = gpus;
  config.hidden = kHidden;
  config.vocab = gpus;
  const std::unique_ptr<Link> link = meeting.world.Join(gpu);
  const Result<std::unique_ptr<ModelRanks>> ranks =
      JoinGpuRanks(link.get(), {.tensor = gpus}, config,
                   {.ops = &ops, .device = gpu, .tokens_max = CardRates::kRows.back()});
  const Status status = ranks.ok() ? TimeAll(ops, ranks.value()->ops(), meeting) : ranks.status();
  if (!status.ok()) {
    meeting.Fail(gpu, status);
    if (ranks.ok()) ranks.value()->ops().Abort();  // who waits for this one's parts need not
  }
  // Memory that the others read is theirs until all have ended.
  if (!status.ok()) meeting.all.arrive_and_drop();
  meeting.ended.arrive_and_wait();
}

void Measure(const BackendChoice& backend, int gpu, int gpus, Meeting& meeting) {
  const Result<const OpsTable*> ops = OpenBackend(backend, gpu);
  if (!ops.ok()) meeting.Fail(gpu, ops.status());
  if (!meeting.Go()) return;
  const Result<const CudaModule*> module = FindCudaModule();
  const Result<double> rate = module.ok() ? module.value()->read_rate() : module.status();
  if (rate.ok()) {
    const std::lock_guard lock(meeting.mutex);
    meeting.rates.read_gb_per_s[static_cast<size_t>(gpu)] = rate.value() / 1e9;
  } else {
    meeting.Fail(gpu, rate.status());
  }
  if (!meeting.Go() || gpus == 1) return;
  AddUp(*ops.value(), gpu, gpus, meeting);
}

}  // namespace

CardRates MeasureCards(const CardFactsOfNode& facts) {
  CardRates rates;
  if (facts.cards.empty() || facts.unwanted || !facts.module_problem.empty()) return rates;
  for (const CardReport& card : facts.cards) {
    // A server's steps would wait for this, and this for them.
    if (!card.processes.empty() || card.used_bytes > kCardBytesOfNobody) {
      rates.problem = "not measured: a GPU is held";
      return rates;
    }
  }
  EngineConfig config;
  config.device = "cuda";
  const Result<BackendChoice> backend = ChooseBackend(config);
  if (!backend.ok()) {
    rates.problem = backend.status().message();
    return rates;
  }
  int gpus = 1;  // that are seen, of those that can be tensor ranks together
  while (2 * gpus <= std::ssize(facts.cards) && CheckGpus(2 * gpus).ok()) gpus *= 2;
  Meeting meeting(gpus);
  meeting.rates.read_gb_per_s.assign(static_cast<size_t>(gpus), -1);
  {
    std::vector<std::jthread> threads;
    for (int gpu = 0; gpu < gpus; ++gpu) {
      threads.emplace_back(Measure, std::cref(backend.value()), gpu, gpus, std::ref(meeting));
    }
  }
  for (size_t i = 0; i < meeting.runs_us.size() && !meeting.failed; ++i) {
    meeting.rates.sum_us[i] = std::ranges::min(meeting.runs_us[i]);
  }
  return meeting.rates;
}

}  // namespace baltoro
