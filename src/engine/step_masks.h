#pragma once

// Which tokens the constraints of a step's requests allow. The masks are made on threads of their
// own while the model computes:
//
//   Apply(plan); Begin(plan, ..) -> [model] -> Wait(); Choose() per row -> [sample] -> Accept()
//
// All calls on the executor's thread. What goes wrong with one constraint is told of its slot
// alone.

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "engine/constraint_table.h"
#include "schedule/step_plan.h"

namespace baltoro {

class StepMasks {
 public:
  // `threads` make masks, beside the caller of Wait().
  StepMasks(std::shared_ptr<const ConstraintTable> table,
            int32_t max_num_seqs,
            int64_t vocab,
            int threads);
  ~StepMasks();

  // Before the plan is run: slots that are retired or new.
  void Apply(const StepPlan& plan);
  // Starts on the masks of the sampled rows of sequences [begin, end) of the plan, which must
  // outlive the Wait().
  void Begin(const StepPlan& plan, size_t begin, size_t end);
  // Helps until all masks are made. Does nothing the second time.
  void Wait();

  bool constrained(SlotId slot) const { return slots_[Index(slot)].constraint != nullptr; }
  // Why the slot's request cannot go on; OK while it can.
  const Status& error(SlotId slot) const { return slots_[Index(slot)].error; }

  // Of the slot's sampled rows: those up to the first draft that is not allowed.
  int32_t rows_made(SlotId slot) const { return slots_[Index(slot)].rows_made; }
  // What row `row` of a constrained slot's sampled rows may take. `allowed` is a mask too, empty:
  // all; `banned` are ids that must not come unless nothing else may (min_tokens).
  struct Choice {
    std::span<const uint32_t> mask;  // empty: nothing may come
    bool lifts_ban = false;          // only banned ids may come
  };
  Choice Choose(SlotId slot,
                int32_t row,
                std::span<const uint32_t> allowed,
                std::span<const TokenId> banned);
  // The token was sampled. False if it may not be, with error() saying why.
  bool Accept(SlotId slot, TokenId token);
  // Nothing more will be sampled for it.
  void Drop(SlotId slot) { slots_[Index(slot)].constraint = nullptr; }
  // Takes back what was accepted since Apply(); false as for Accept.
  bool Undo(SlotId slot);

 private:
  struct Slot {
    std::shared_ptr<TokenConstraint> constraint;
    std::vector<uint32_t> masks;  // [rows, words_]
    int32_t rows_made = 0;
    int32_t accepted = 0;  // in this step
    Status error;
  };
  struct Job {
    Slot* slot;
    std::span<const TokenId> drafts;  // one row each, after the first
  };
  static size_t Index(SlotId slot) { return static_cast<size_t>(slot); }
  std::span<uint32_t> MaskOf(Slot& slot, int32_t row) const {
    return std::span(slot.masks).subspan(static_cast<size_t>(row) * words_, words_);
  }
  void Help(const std::stop_token& stop);
  void TakeJobs(std::unique_lock<std::mutex>& lock);
  void Make(const Job& job) const;

  const std::shared_ptr<const ConstraintTable> table_;
  const size_t words_;
  const uint32_t last_word_;  // bits of ids that exist
  std::vector<Slot> slots_;

  std::mutex mutex_;
  std::condition_variable_any begun_;
  std::condition_variable done_;
  // Below: under mutex_; a job's slot belongs to the thread that took it.
  std::vector<Job> jobs_;
  size_t next_job_ = 0, jobs_done_ = 0;

  std::vector<std::jthread> helpers_;  // last: they use all of the above
};

}  // namespace baltoro
