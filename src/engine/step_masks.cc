#include "engine/step_masks.h"

#include <algorithm>
#include <bit>
#include <exception>
#include <utility>

#include "base/check.h"

namespace baltoro {

namespace {

Status Threw() {
  return Status(Code::kResourceExhausted, "the output's constraint ran out of memory");
}

bool Has(std::span<const uint32_t> mask, TokenId id) {
  return (mask[static_cast<size_t>(id) / 32] >> (id % 32) & 1) != 0;
}

}  // namespace

StepMasks::StepMasks(std::shared_ptr<const ConstraintTable> table,
                     int32_t max_num_seqs,
                     int64_t vocab,
                     int threads)
    : table_(std::move(table)),
      words_(static_cast<size_t>((vocab + 31) / 32)),
      last_word_(vocab % 32 == 0 ? ~uint32_t{0} : (uint32_t{1} << vocab % 32) - 1),
      slots_(max_num_seqs) {
  for (int i = 0; i < threads; ++i) {
    helpers_.emplace_back([this](const std::stop_token& stop) { Help(stop); });
  }
}

StepMasks::~StepMasks() {
  Wait();
}

void StepMasks::Apply(const StepPlan& plan) {
  for (const SlotId slot : plan.retired) slots_[Index(slot)] = {};
  for (const AdmittedSequence& admitted : plan.admitted) {
    if (!admitted.constrained) continue;
    Slot& slot = slots_[Index(admitted.slot)];
    slot.constraint = table_->Find(admitted.request);
    if (slot.constraint != nullptr) continue;
    // Aborted after it was planned: nobody waits for what it would sample.
    slot.error = Status(Code::kInternal, "the request has ended");
  }
  for (const PlannedSequence& planned : plan.sequences) slots_[Index(planned.slot)].accepted = 0;
}

void StepMasks::Begin(const StepPlan& plan, size_t begin, size_t end) {
  Wait();
  std::vector<Job> jobs;
  for (size_t i = begin; i < end; ++i) {
    const PlannedSequence& planned = plan.sequences[i];
    Slot& slot = slots_[Index(planned.slot)];
    if (planned.sampled_rows == 0 || slot.constraint == nullptr || !slot.error.ok()) continue;
    slot.masks.resize(static_cast<size_t>(planned.sampled_rows) * words_);
    slot.rows_made = 0;
    const auto drafts = static_cast<size_t>(planned.sampled_rows - 1);
    jobs.push_back({.slot = &slot, .drafts = plan.tokens_of(planned).last(drafts)});
  }
  if (jobs.empty()) return;
  const std::lock_guard lock(mutex_);
  jobs_ = std::move(jobs);
  next_job_ = jobs_done_ = 0;
  begun_.notify_all();
}

void StepMasks::Wait() {
  std::unique_lock lock(mutex_);
  TakeJobs(lock);
  done_.wait(lock, [this] { return jobs_done_ == jobs_.size(); });
  jobs_.clear();
  next_job_ = jobs_done_ = 0;
}

void StepMasks::Help(const std::stop_token& stop) {
  std::unique_lock lock(mutex_);
  while (begun_.wait(lock, stop, [this] { return next_job_ < jobs_.size(); })) TakeJobs(lock);
}

void StepMasks::TakeJobs(std::unique_lock<std::mutex>& lock) {
  while (next_job_ < jobs_.size()) {
    const Job job = jobs_[next_job_++];
    lock.unlock();
    Make(job);
    lock.lock();
    if (++jobs_done_ == jobs_.size()) done_.notify_all();
  }
}

void StepMasks::Make(const Job& job) const {
  Slot& slot = *job.slot;
  try {
    const auto drafts = static_cast<int32_t>(job.drafts.size());
    for (int32_t row = 0; row <= drafts; ++row) {
      const std::span<uint32_t> mask = MaskOf(slot, row);
      std::ranges::fill(mask, ~uint32_t{0});
      slot.constraint->FillMask(job.drafts.first(static_cast<size_t>(row)), mask);
      mask.back() &= last_word_;
      slot.error = slot.constraint->error();
      if (!slot.error.ok()) return;
      ++slot.rows_made;
      // A draft that is not allowed will not be sampled, so nothing is asked of what follows it.
      if (row < drafts && !Has(mask, job.drafts[static_cast<size_t>(row)])) return;
    }
  } catch (const std::exception&) {
    slot.error = Threw();
  }
}

StepMasks::Choice StepMasks::Choose(SlotId id,
                                    int32_t row,
                                    std::span<const uint32_t> allowed,
                                    std::span<const TokenId> banned) {
  Slot& slot = slots_[Index(id)];
  BT_CHECK(row < slot.rows_made);
  const std::span<uint32_t> mask = MaskOf(slot, row);
  for (size_t i = 0; i < allowed.size(); ++i) mask[i] &= allowed[i];
  // `banned` holds a handful of ids, each once: one more than those that the mask has is enough.
  const auto banned_here =
      std::ranges::count_if(banned, [&](TokenId token) { return Has(mask, token); });
  int64_t count = 0;
  for (const uint32_t word : mask) {
    if (word == 0) continue;
    count += std::popcount(word);
    if (count > banned_here) return {.mask = mask, .lifts_ban = false};
  }
  if (count == 0) return {};
  return {.mask = mask, .lifts_ban = true};
}

bool StepMasks::Accept(SlotId id, TokenId token) {
  Slot& slot = slots_[Index(id)];
  try {
    if (slot.constraint->Accept(token)) {
      ++slot.accepted;
      return true;
    }
    slot.error = slot.constraint->error();
    if (slot.error.ok()) {
      slot.error = Status(Code::kInternal,
                          "a token was sampled that the output's constraint does not allow");
    }
  } catch (const std::exception&) {
    slot.error = Threw();
  }
  return false;
}

bool StepMasks::Undo(SlotId id) {
  Slot& slot = slots_[Index(id)];
  if (slot.constraint == nullptr || slot.accepted == 0) return true;
  try {
    slot.constraint->Rollback(std::exchange(slot.accepted, 0));
    return true;
  } catch (const std::exception&) {
    slot.error = Threw();
    return false;
  }
}

}  // namespace baltoro
