#include "schedule/testing/fairness_check.h"

#include <algorithm>
#include <utility>

namespace baltoro::test {

void FairnessCheck::Accepted(const Request& request) {
  Book& book = books_[request.id];
  book.priority = config_.priority_policy ? request.priority : 0;
  book.arrival = books_.size();
  book.prompt_tokens = static_cast<int64_t>(request.prompt.size());
  book.expected_tokens = book.prompt_tokens + std::min(request.stop.max_tokens, 256);
  book.owner = request.owner;
  Owner& owner = owners_[request.owner];
  if (owner.open++ == 0) owner.turn_end += std::exchange(owner.excess, 0);
  const int64_t charge = book.expected_tokens + owner.excess;
  owner.excess = std::min<int64_t>(charge - 1, 0);
  book.turn_begin = std::max(served_until_, owner.turn_end);
  book.turn_end = owner.turn_end = book.turn_begin + std::max<int64_t>(charge, 1);
}

void FairnessCheck::Ended(RequestId id, int64_t output) {
  const Book& book = books_.at(id);
  Owner& owner = owners_.at(book.owner);
  --owner.open;
  owner.excess += (book.admitted ? book.prompt_tokens + output : 0) - book.expected_tokens;
}

FairnessCheck::Place FairnessCheck::PlaceOf(const Sequence& sequence) const {
  const Book& book = books_.at(sequence.request.id);
  return {sequence.preemptions < Sequence::kPreemptionsMax, book.priority, book.turn_end,
          book.arrival};
}

void FairnessCheck::Before(const Scheduler& scheduler) {
  standings_.clear();
  scheduler.ForEachSequence([&](const Sequence& sequence) {
    if (sequence.state == SequenceState::kEnding) return;
    Standing& standing = standings_.emplace_back();
    standing.sequence = &sequence;
    standing.place = PlaceOf(sequence);
    standing.was_running = sequence.state == SequenceState::kRunning;
    standing.was_queued = !standing.was_running;
    standing.is_protected = sequence.preemptions >= Sequence::kPreemptionsMax;
    standing.planned = sequence.planned;
    standing.available = sequence.available();
    const bool fixed = config_.prompt_chunk > 0;
    standing.decodes = fixed ? sequence.planned >= sequence.prompt_count : standing.available == 1;
    standing.waits_for_token = fixed ? standing.decodes : standing.available <= 1;
    const bool ahead = config_.stages == 1;
    standing.plannable = standing.was_running && !sequence.drafts_in_flight &&
                         (ahead || sequence.tokens_in_flight == 0) && standing.available > 0 &&
                         sequence.known() + sequence.tokens_in_flight < sequence.tokens_max;
    standing.needs_block = sequence.planned / kBlockTokens >= std::ssize(sequence.blocks);
    standing.scored = sequence.wants_prompt_logprobs();
  });
  std::ranges::sort(standings_, {}, &Standing::place);
}

std::string FairnessCheck::After(const Scheduler& scheduler,
                                 const StepPlan& plan,
                                 const StepCosts& costs) {
  for (Standing& standing : standings_) {
    const Sequence& sequence = *standing.sequence;
    standing.place_after = PlaceOf(sequence);
    standing.waits_for_picture = sequence.ready_until < sequence.prompt_count;
    standing.runs = sequence.state == SequenceState::kRunning;
    standing.preempted = standing.was_running && !standing.runs;
    if (!standing.runs) continue;
    Book& book = books_.at(sequence.request.id);
    book.admitted = true;
    served_until_ = std::max(served_until_, book.turn_begin);
    const auto entry = std::ranges::find(plan.sequences, sequence.slot, &PlannedSequence::slot);
    if (entry != plan.sequences.end()) standing.entry = &*entry;
  }
  for (const std::string& wrong :
       {CheckTurns(plan), CheckLeftOut(), CheckAdmissions(scheduler, plan, costs), CheckVictims(),
        CheckCosts(plan, costs)}) {
    if (!wrong.empty()) return wrong;
  }
  return "";
}

FairnessCheck::Turn FairnessCheck::TurnOf(const Standing& standing) {
  return standing.was_running && standing.decodes ? Turn::kDecodes : Turn::kPrompt;
}

// Those who decode, then prompts, whether they ran before or come in; each in the order of service.
std::string FairnessCheck::CheckTurns(const StepPlan& plan) const {
  const PlannedSequence* last = nullptr;
  for (const Turn turn : {Turn::kDecodes, Turn::kPrompt}) {
    for (const Standing& standing : standings_) {
      if (standing.entry == nullptr || TurnOf(standing) != turn) continue;
      if (last != nullptr && standing.entry < last) {
        return "sequences are computed in another order than that of service";
      }
      last = standing.entry;
    }
  }
  for (const Standing& standing : standings_) {
    const Sequence& sequence = *standing.sequence;
    const bool admitted =
        standing.runs && std::ranges::count(plan.admitted, sequence.slot, &AdmittedSequence::slot);
    // Whoever waits for a picture does not make others wait.
    const bool waits =
        !sequence.request.pictures.empty() && sequence.ready_until <= sequence.planned;
    if (admitted && standing.entry == nullptr && !waits) {
      return "a sequence is admitted and not computed";
    }
  }
  return "";
}

// Nobody is passed over who could have been computed.
std::string FairnessCheck::CheckLeftOut() const {
  bool decode_left_out = false, prompt_left_out = false;
  for (const Standing& standing : standings_) {
    if (!standing.runs || !standing.was_running || !standing.plannable) continue;
    if (standing.decodes) {
      if (standing.entry == nullptr && !standing.needs_block) decode_left_out = true;
      if (standing.entry != nullptr && decode_left_out) return "a decode was passed over";
    }
  }
  for (const Standing& standing : standings_) {
    if (!standing.runs || TurnOf(standing) == Turn::kDecodes) continue;
    // In a pipeline a plan has its share of those who decode.
    if (standing.entry != nullptr && decode_left_out && config_.stages == 1) {
      return "a prompt is computed while one who decodes waits";
    }
    if (standing.entry != nullptr && prompt_left_out) return "a prompt was passed over";
    // What has its own limit, rows of log-probabilities, is no reason to wait for others.
    if (!standing.was_running || !standing.plannable || standing.scored) continue;
    if (standing.waits_for_picture) continue;  // nor is a picture that is not encoded
    if (standing.entry == nullptr ||
        (config_.prompt_chunk == 0 && standing.entry->token_count < standing.available)) {
      prompt_left_out = true;
    }
  }
  return "";
}

std::string FairnessCheck::CheckAdmissions(const Scheduler& scheduler,
                                           const StepPlan& plan,
                                           const StepCosts& costs) const {
  const Standing* first_queued = nullptr;
  bool evicting = false, short_of_blocks = false;
  int32_t slots_free = config_.max_num_seqs;
  scheduler.ForEachSequence([&](const Sequence& sequence) {
    if (sequence.slot != SlotId{-1}) --slots_free;
  });
  for (const Standing& standing : standings_) {
    evicting |= standing.sequence->state == SequenceState::kEvicting;
    short_of_blocks |= standing.preempted || (standing.decodes && standing.plannable &&
                                              standing.entry == nullptr && standing.needs_block);
    if (standing.runs) continue;
    if (first_queued == nullptr || standing.place_after < first_queued->place_after) {
      first_queued = &standing;
    }
  }
  if (first_queued == nullptr) return "";
  for (const Standing& standing : standings_) {
    if (standing.was_queued && standing.runs && first_queued->place_after < standing.place) {
      return first_queued->sequence->preemptions > 0 ? "a preempted sequence was overtaken"
                                                     : "a request was overtaken";
    }
  }

  const Sequence& head = *first_queued->sequence;
  // Whoever begins with a picture that is not encoded costs the step nothing.
  const bool free = !head.request.pictures.empty() && head.ready_until == 0;
  if (evicting || short_of_blocks || slots_free == 0 || (!costs.unlimited() && !free)) return "";
  if (plan.num_tokens() >= config_.max_num_batched_tokens) return "";
  if (head.wants_prompt_logprobs()) return "";
  const int32_t blocks = BlocksFor(
      first_queued->place_after < Place{true, INT32_MIN, 0, 0} ? head.tokens_max : head.known());
  const auto reserve = static_cast<int32_t>(config_.watermark * config_.num_blocks);
  if (blocks + reserve <= scheduler.pool().num_free()) return "a request waits that has room";
  return "";
}

// Who gives up its blocks is served after all who keep theirs, but for the protected.
std::string FairnessCheck::CheckVictims() const {
  for (const Standing& victim : standings_) {
    if (!victim.preempted) continue;
    for (const Standing& other : standings_) {
      if (other.was_running && other.runs && !other.is_protected && victim.place < other.place) {
        return "the wrong sequence was preempted";
      }
    }
  }
  return "";
}

std::string FairnessCheck::CheckCosts(const StepPlan& plan, const StepCosts& costs) const {
  if (config_.prompt_chunk > 0 || costs.unlimited()) return "";
  const bool decoding = std::ranges::any_of(standings_, [](const Standing& standing) {
    return standing.was_running && standing.runs && standing.waits_for_token;
  });
  double decodes = 0, prompts = 0, excess = 0;
  for (const PlannedSequence& planned : plan.sequences) {
    const auto standing = std::ranges::find_if(
        standings_, [&](const Standing& one) { return one.entry == &planned; });
    if (standing == standings_.end()) return "a sequence is computed that nobody knows";
    if (TurnOf(*standing) == Turn::kDecodes) {
      decodes += costs.Of(DecodeWork(planned.first_position, planned.token_count));
      continue;
    }
    double keys = 0;
    for (int32_t i = 1; i <= planned.token_count; ++i) keys += planned.first_position + i;
    const double cost = costs.prompt_token * planned.token_count + costs.prompt_key * keys;
    prompts += cost;
    // Only the last one may be beyond the limit, and only if it is the smallest that there is.
    excess = planned.token_count <= StepCosts::kChunkMin ? cost : 0;
  }
  const double limit = decoding ? costs.limit : costs.limit_alone;
  const double left = costs.PromptLimit(limit, costs.fixed + decodes);
  const double slack = 1e-9 * std::max(limit, costs.fixed + decodes);
  if (prompts - excess > left + slack) return "a step costs more than it may";
  return "";
}

std::string FairnessCheck::CheckQueue(const Scheduler& scheduler) const {
  int64_t requests = 0, tokens = 0;
  scheduler.ForEachSequence([&](const Sequence& sequence) {
    const Book& book = books_.at(sequence.request.id);
    if (book.admitted || sequence.state != SequenceState::kWaiting) return;
    ++requests;
    tokens += book.prompt_tokens;
  });
  if (requests != scheduler.queued_requests() || tokens != scheduler.queued_tokens()) {
    return "the queue counts what does not wait, or not what waits";
  }
  return "";
}

}  // namespace baltoro::test
