#pragma once

// The ranks of a replica that this process holds, or of several that share experts, a thread each.
// A rank joins its world, makes its worker, and runs the plans that it is sent, in their order,
// from a queue of its own: no rank waits for another but in what the model exchanges.
//
//   Send -> queue of each rank -> worker -> (of the rank that samples) results -> TakeResult
//
// What a plan came to is told to ranks with a later plan (PlanMessage::finished), or, where all
// ranks are in this process, before they run the next one (`tells`): then that one may have been
// made before the result was known, and name its tokens.
//
// The first failure of a rank ends all of them, and stays.

#include <condition_variable>
#include <deque>
#include <functional>
#include <latch>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "comm/link.h"
#include "engine/plan_message.h"
#include "engine/rank_worker.h"
#include "model/model_ranks.h"
#include "parallel/layout.h"

namespace baltoro {

// Of one rank; the worker borrows `ranks`.
struct RankParts {
  std::unique_ptr<ModelRanks> ranks;
  std::unique_ptr<RankWorker> worker;
};

// Both are called on the rank's own thread; all ranks join and are made at the same time, and may
// talk to each other meanwhile. `link` lives as long as the parts.
using JoinRank = std::function<Result<std::unique_ptr<Link>>(int32_t rank)>;
using MakeRank = std::function<Result<RankParts>(Link* link, bool samples)>;

// Of each replica the rank that has the logits samples: the first of the last stage.
inline bool Samples(const ParallelLayout& layout, int32_t rank) {
  const RankPlace place = PlaceOf(layout, rank);
  return place.stage + 1 == layout.pipeline && place.tensor == 0;
}

class LocalRanks {
 public:
  // Plans that may wait for a rank.
  static constexpr size_t kQueueMax = 64;

  // `ranks` are global ones. Returns when these are ready; the error is that of the rank which
  // failed first.
  static Result<std::unique_ptr<LocalRanks>> Start(const ParallelLayout& layout,
                                                   std::span<const int32_t> ranks,
                                                   const JoinRank& join,
                                                   const MakeRank& make,
                                                   bool tells = false);
  // All ranks of the layout.
  static Result<std::unique_ptr<LocalRanks>> StartAll(const ParallelLayout& layout,
                                                      const MakeRank& make,
                                                      bool tells = false);
  // Once everything that was sent has been run, or the ranks have failed.
  ~LocalRanks();

  // One thread at a time. One message for each replica. kInternal if the ranks are too far behind.
  Status Send(const PlanMessages& messages);
  // Of the rank of that replica that samples, in order; nothing if there is none within `patience`.
  // A failure comes after the results before it. An empty plan for the rows of others has none.
  std::optional<Result<StepResult>> TakeResult(Seconds patience, int32_t replica = 0);

  // Any thread.
  Status status() const;
  void Abort(const std::string& reason);

 private:
  struct Rank {
    int32_t rank = 0;
    size_t replica = 0;
    bool samples = false;
    std::deque<std::shared_ptr<const PlanMessage>> queue;  // null: the end
    std::unique_ptr<Link> link;                            // set before the rank is ready
    RankOps* ops = nullptr;                                // from when it is ready on
    uint64_t plans = 0, told = 0;                          // plans run, results taken
    std::thread thread;
  };

  LocalRanks(const ParallelLayout& layout, std::span<const int32_t> ranks, bool tells);
  void Live(Rank& rank, const JoinRank& join, const MakeRank& make);
  void Follow(Rank& rank, RankWorker& worker);
  Status RunMessage(Rank& rank, const PlanMessage& message, RankWorker& worker);
  // Waits for the results of all plans that the rank has run.
  Status TellResults(Rank& rank, RankWorker& worker);
  std::shared_ptr<const PlanMessage> Next(Rank& rank);
  void Fail(Rank& rank, const Status& why);
  // Under mutex_: ends what these ranks wait for on their GPUs, where no link is asked.
  void AbortGpus();

  const bool tells_;
  std::latch leaving_;  // nobody leaves its world while another may still need it
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  // Below: under mutex_.
  std::vector<Rank> ranks_;
  size_t ready_ = 0;
  Status failure_;
  std::vector<std::deque<StepResult>> results_;            // of each replica
  std::deque<std::shared_ptr<const StepResult>> to_tell_;  // essences, from result tell_begin_ on
  uint64_t tell_begin_ = 0;
};

}  // namespace baltoro
