#include "engine/local_ranks.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <numeric>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "base/profile.h"
#include "comm/thread_world.h"
#include "engine/engine.h"

namespace baltoro {

LocalRanks::LocalRanks(const ParallelLayout& layout, std::span<const int32_t> ranks, bool tells)
    : tells_(tells),
      leaving_(static_cast<std::ptrdiff_t>(ranks.size())),
      ranks_(ranks.size()),
      results_(static_cast<size_t>(layout.data)) {
  for (size_t i = 0; i < ranks.size(); ++i) {
    ranks_[i].rank = ranks[i];
    ranks_[i].replica = static_cast<size_t>(PlaceOf(layout, ranks[i]).data);
    ranks_[i].samples = Samples(layout, ranks[i]);
  }
}

Result<std::unique_ptr<LocalRanks>> LocalRanks::Start(const ParallelLayout& layout,
                                                      std::span<const int32_t> ranks,
                                                      const JoinRank& join,
                                                      const MakeRank& make,
                                                      bool tells) {
  std::unique_ptr<LocalRanks> local(new LocalRanks(layout, ranks, tells));
  for (Rank& rank : local->ranks_) {
    rank.thread =
        std::thread([&rank, join, make, &local = *local] { local.Live(rank, join, make); });
  }
  Status failure;
  {
    std::unique_lock lock(local->mutex_);
    local->changed_.wait(
        lock, [&] { return local->ready_ == local->ranks_.size() || !local->failure_.ok(); });
    failure = local->failure_;
  }
  if (!failure.ok()) return failure;
  return local;
}

Result<std::unique_ptr<LocalRanks>> LocalRanks::StartAll(const ParallelLayout& layout,
                                                         const MakeRank& make,
                                                         bool tells) {
  const auto world = std::make_shared<ThreadWorld>(layout.ranks());
  std::vector<int32_t> ranks(static_cast<size_t>(layout.ranks()));
  std::iota(ranks.begin(), ranks.end(), 0);
  // All are of the world before one can leave it.
  const auto links = std::make_shared<std::vector<std::unique_ptr<Link>>>();
  for (const int32_t rank : ranks) links->push_back(world->Join(rank));
  const JoinRank join = [links](int32_t rank) -> Result<std::unique_ptr<Link>> {
    return std::move((*links)[static_cast<size_t>(rank)]);
  };
  return Start(layout, ranks, join, make, tells);
}

LocalRanks::~LocalRanks() {
  {
    const std::lock_guard lock(mutex_);
    for (Rank& rank : ranks_) rank.queue.push_back(nullptr);
    changed_.notify_all();
  }
  for (Rank& rank : ranks_) rank.thread.join();
}

void LocalRanks::Live(Rank& rank, const JoinRank& join, const MakeRank& make) {
  NameProfileThread("rank");
  Result<std::unique_ptr<Link>> link = join(rank.rank);
  if (!link.ok()) {
    Fail(rank, link.status());
    leaving_.arrive_and_wait();
    return;
  }
  {
    const std::lock_guard lock(mutex_);
    rank.link = std::move(link).value();
  }
  {
    Result<RankParts> parts = make(rank.link.get(), rank.samples);
    Status status = parts.status();
    if (status.ok() && parts.value().ranks != nullptr) status = parts.value().ranks->status();
    if (status.ok()) {
      {
        const std::lock_guard lock(mutex_);
        if (parts.value().ranks != nullptr) rank.ops = &parts.value().ranks->ops();
        ++ready_;
        changed_.notify_all();
      }
      Follow(rank, *parts.value().worker);
    } else {
      Fail(rank, status);
    }
    leaving_.arrive_and_wait();
    const std::lock_guard lock(mutex_);
    rank.ops = nullptr;
  }
  const std::lock_guard lock(mutex_);
  rank.link = nullptr;
}

void LocalRanks::Follow(Rank& rank, RankWorker& worker) {
  while (const std::shared_ptr<const PlanMessage> message = Next(rank)) {
    Status status = RunMessage(rank, *message, worker);
    if (status.ok()) continue;
    // What other ranks caused has their names already, and they tell of it.
    const bool own = rank.link->status().ok();
    if (own && !IsServerStopped(status)) {
      BT_LOG(Error, "Rank {} ends: {}", rank.rank, status.message());
    } else {
      BT_LOG(Debug, "Rank {} ends: {}", rank.rank, status.message());
    }
    if (own) {
      rank.link->Abort(status.message());
      status = rank.link->status();
    }
    return Fail(rank, status);
  }
}

Status LocalRanks::RunMessage(Rank& rank, const PlanMessage& message, RankWorker& worker) {
  for (const StepResult& result : message.finished) {
    BT_RETURN_IF_ERROR(worker.TakeResult(result));
  }
  if (tells_) BT_RETURN_IF_ERROR(TellResults(rank, worker));
  BT_ASSIGN_OR_RETURN(StepResult result, worker.Run(message.plan));
  const std::lock_guard lock(mutex_);
  ++rank.plans;
  const bool for_others = message.plan.empty() && !message.plan.group_rows.empty();
  if (!rank.samples || for_others) return {};
  if (tells_) to_tell_.push_back(std::make_shared<const StepResult>(Essence(result)));
  results_[rank.replica].push_back(std::move(result));
  changed_.notify_all();
  return {};
}

Status LocalRanks::TellResults(Rank& rank, RankWorker& worker) {
  for (;;) {
    std::shared_ptr<const StepResult> result;
    {
      std::unique_lock lock(mutex_);
      if (rank.told == rank.plans) return {};
      changed_.wait(lock,
                    [&] { return rank.told < tell_begin_ + to_tell_.size() || !failure_.ok(); });
      if (rank.told >= tell_begin_ + to_tell_.size()) return failure_;
      result = to_tell_[rank.told - tell_begin_];
      ++rank.told;
      const uint64_t least = std::ranges::min_element(ranks_, {}, &Rank::told)->told;
      for (; tell_begin_ < least; ++tell_begin_) to_tell_.pop_front();
    }
    BT_RETURN_IF_ERROR(worker.TakeResult(*result));
  }
}

std::shared_ptr<const PlanMessage> LocalRanks::Next(Rank& rank) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return !rank.queue.empty(); });
  std::shared_ptr<const PlanMessage> message = std::move(rank.queue.front());
  rank.queue.pop_front();
  return message;
}

void LocalRanks::Fail(Rank& rank, const Status& why) {
  const std::lock_guard lock(mutex_);
  if (failure_.ok()) failure_ = why;
  if (rank.link != nullptr) rank.link->Abort(why.message());
  AbortGpus();
  changed_.notify_all();
}

void LocalRanks::AbortGpus() {
  for (const Rank& rank : ranks_) {
    if (rank.ops != nullptr) rank.ops->Abort();
  }
}

Status LocalRanks::Send(const PlanMessages& messages) {
  BT_CHECK(messages.size() == results_.size());
  const std::lock_guard lock(mutex_);
  if (!failure_.ok()) return failure_;
  for (Rank& rank : ranks_) {
    if (rank.queue.size() >= kQueueMax) {
      return Status(Code::kInternal,
                    fmt::format("rank {} is {} plans behind", rank.rank, rank.queue.size()));
    }
    rank.queue.push_back(messages[rank.replica]);
  }
  changed_.notify_all();
  return {};
}

std::optional<Result<StepResult>> LocalRanks::TakeResult(Seconds patience, int32_t replica) {
  std::unique_lock lock(mutex_);
  std::deque<StepResult>& results = results_[static_cast<size_t>(replica)];
  changed_.wait_for(lock, std::chrono::duration<double>(patience),
                    [&] { return !results.empty() || !failure_.ok(); });
  if (!results.empty()) {
    StepResult result = std::move(results.front());
    results.pop_front();
    return result;
  }
  if (!failure_.ok()) return failure_;
  return std::nullopt;
}

Status LocalRanks::status() const {
  const std::lock_guard lock(mutex_);
  if (!failure_.ok()) return failure_;
  for (const Rank& rank : ranks_) {
    if (rank.link != nullptr) BT_RETURN_IF_ERROR(rank.link->status());
  }
  return {};
}

void LocalRanks::Abort(const std::string& reason) {
  const std::lock_guard lock(mutex_);
  for (const Rank& rank : ranks_) {
    if (rank.link != nullptr) rank.link->Abort(reason);
  }
  AbortGpus();
}

}  // namespace baltoro
