#include "engine/rank_team.h"

#include <limits>
#include <mutex>
#include <span>
#include <string>
#include <utility>

#include "base/log.h"
#include "comm/link_communicator.h"

namespace baltoro {
namespace {

// Between two steps hours may pass.
constexpr Seconds kForever = std::numeric_limits<Seconds>::infinity();

// From the root to all; the others' `bytes` become the root's.
Status Share(Communicator& all, int32_t root, std::string& bytes) {
  uint64_t size = bytes.size();
  BT_RETURN_IF_ERROR(all.Broadcast(std::as_writable_bytes(std::span(&size, 1)), root));
  bytes.resize(size);
  if (size == 0) return {};
  return all.Broadcast(std::as_writable_bytes(std::span(bytes)), root);
}

// What the ranks that do not sample need of a result.
StepResult Essence(const StepResult& result) {
  StepResult out;
  out.step = result.step;
  for (const SequenceResult& one : result.sequences) {
    SequenceResult& kept = out.sequences.emplace_back();
    kept.slot = one.slot;
    kept.tokens = one.tokens;
    kept.ended = one.ended;
    kept.failed = one.failed;
  }
  return out;
}

}  // namespace

RankTeam::RankTeam(const ParallelLayout& layout, const StepPlanLimits& limits)
    : layout_(layout),
      limits_(limits),
      leader_((layout.pipeline - 1) * layout.tensor),
      world_(layout.ranks()),
      ranks_(static_cast<size_t>(layout.ranks())) {}

Result<std::unique_ptr<RankTeam>> RankTeam::Start(const ParallelLayout& layout,
                                                  const StepPlanLimits& limits,
                                                  const MakeWorker& make) {
  std::unique_ptr<RankTeam> team(new RankTeam(layout, limits));
  // All are of the world before one can leave it.
  for (int32_t i = 0; i < layout.ranks(); ++i) {
    team->ranks_[static_cast<size_t>(i)].link = team->world_.Join(i);
  }
  std::mutex mutex;
  Status first;
  std::vector<std::jthread> makers;
  for (int32_t i = 0; i < layout.ranks(); ++i) {
    makers.emplace_back([&, i] {
      const Status made = team->Join(i, make);
      if (made.ok()) return;
      const std::lock_guard lock(mutex);
      if (first.ok()) first = made;
      team->ranks_[static_cast<size_t>(i)].link->Abort(made.message());
    });
  }
  makers.clear();  // waits
  if (!first.ok()) return first;
  for (int32_t i = 0; i < layout.ranks(); ++i) {
    Rank& rank = team->ranks_[static_cast<size_t>(i)];
    if (i != team->leader_)
      rank.thread = std::thread([&rank, &team = *team] { team.Follow(rank); });
  }
  return team;
}

Status RankTeam::Join(int32_t index, const MakeWorker& make) {
  Rank& rank = ranks_[static_cast<size_t>(index)];
  GroupOptions everyone{.name = "steps", .ranks = {}, .call_timeout = kForever};
  for (int32_t i = 0; i < layout_.ranks(); ++i) everyone.ranks.push_back(i);
  BT_ASSIGN_OR_RETURN(rank.all, JoinGroup(rank.link.get(), everyone));
  BT_ASSIGN_OR_RETURN(rank.model, ModelRanks::Join(rank.link.get(), layout_));
  const bool samples = index == leader_;
  const ShareResult share = [&rank, samples, leader = leader_](StepResult& result) -> Status {
    std::string bytes;
    if (samples) bytes = SerialiseResult(Essence(result));
    BT_RETURN_IF_ERROR(baltoro::Share(*rank.all, leader, bytes));
    if (samples) return {};
    BT_ASSIGN_OR_RETURN(result, ParseResult(bytes));
    return {};
  };
  BT_ASSIGN_OR_RETURN(rank.worker, make(*rank.model, samples, share));
  return rank.model->status();
}

RankTeam::~RankTeam() {
  std::string stop;
  // After a failure the others have gone already.
  if (leader().all != nullptr) static_cast<void>(Share(*leader().all, leader_, stop));
  for (Rank& rank : ranks_) {
    if (rank.thread.joinable()) rank.thread.join();
  }
}

double RankTeam::trial_seconds() const {
  return ranks_[static_cast<size_t>(leader_)].worker->trial_seconds();
}

Result<StepResult> RankTeam::Run(const StepPlan& plan) {
  std::string bytes = SerialisePlan(plan);
  BT_RETURN_IF_ERROR(Share(*leader().all, leader_, bytes));
  Result<StepResult> result = leader().worker->Run(plan);
  if (!result.ok()) leader().link->Abort(result.status().message());
  return result;
}

void RankTeam::Follow(Rank& rank) {
  for (;;) {
    std::string bytes;
    Status status = Share(*rank.all, leader_, bytes);
    if (status.ok() && bytes.empty()) return;
    if (status.ok()) {
      const Result<StepPlan> plan = ParsePlan(bytes, limits_);
      status = plan.ok() ? rank.worker->Run(plan.value()).status() : plan.status();
    }
    if (status.ok()) continue;
    BT_LOG(Error, "Rank {} ends: {}", rank.link->rank(), status.message());
    rank.link->Abort(status.message());
    return;
  }
}

}  // namespace baltoro
