// The planning half of the scheduler.

#include <algorithm>
#include <optional>
#include <utility>

#include "base/check.h"
#include "request/stop_ends.h"
#include "schedule/planted_bug.h"
#include "schedule/scheduler.h"
#include "schedule/stop_rule.h"

namespace baltoro {

// Whether another plan may be made for it now.
bool Scheduler::Plannable(const Sequence& sequence) const {
  if (sequence.drafts_in_flight) return false;
  const bool ahead = config_.stages == 1 || Planted(PlantedBug::kPlanAheadInPipeline);
  if (!ahead && sequence.tokens_in_flight > 0) return false;
  const int32_t coming = Planted(PlantedBug::kPlanBeyondLength) ? 0 : sequence.tokens_in_flight;
  return sequence.known() + coming < sequence.tokens_max && sequence.available() > 0;
}

// Whether what it computes next is the token after its last one, not a part of the prompt.
bool Scheduler::Decodes(const Sequence& sequence) const {
  if (config_.prompt_chunk == 0) return sequence.available() == 1;
  return sequence.planned >= sequence.prompt_count;
}

// Sequences that wait for their next token, in this plan or in one in flight.
int32_t Scheduler::Decoding() const {
  return static_cast<int32_t>(std::ranges::count_if(running_, [this](const Sequence* sequence) {
    return config_.prompt_chunk > 0 ? Decodes(*sequence) : sequence->available() <= 1;
  }));
}

StepPlan Scheduler::Plan(const StepCosts& costs, int32_t drafts_wanted, bool admits) {
  StepPlan plan;
  plan.step = next_step_;
  plan.drafts_wanted = std::clamp(drafts_wanted, 0, config_.drafts_max);
  if (!Planted(PlantedBug::kCostsNeverChange) || costs_.unlimited()) costs_ = costs;
  InFlightPlan record{.step = next_step_, .entries = {}};
  if (!spare_records_.empty()) {
    record.entries = std::move(spare_records_.back());
    spare_records_.pop_back();
  }
  plan.sequences.reserve(running_.size());
  plan.tokens.reserve(running_.size());
  Budget budget{.tokens = config_.max_num_batched_tokens,
                .prompt_logprob_rows = config_.prompt_logprob_rows_max,
                .rest_cost = costs_.fixed,
                .prompt_cost = 0};

  const double limit = Decoding() > 0 ? costs_.limit : costs_.limit_alone;

  short_of_blocks_ = false;
  PlanDecodes(plan, record, budget);
  budget.prompt_cost = costs_.PromptLimit(limit, budget.rest_cost);
  PlanPrompts(plan, record, budget, admits);
  PlanBlocks(plan, record);
  // Not before: all encoding of a plan comes before it computes sequences.
  for (const PlannedEntry& entry : record.entries) {
    ReleasePictures(*entry.sequence, /*all=*/false);
  }

  if (plan.empty()) {
    spare_records_.push_back(std::move(record.entries));
    return plan;
  }
  plan.retired = std::exchange(retired_, {});
  plan.cleared = std::exchange(cleared_, {});
  in_flight_.push_back(std::move(record));
  ++next_step_;
  return plan;
}

void Scheduler::PlanDecodes(StepPlan& plan, InFlightPlan& record, Budget& budget) {
  // In a pipeline all stages shall have as much to do: while one plan's tokens are on their way
  // through it, the plans behind it need sequences too.
  int32_t left = (Decoding() + config_.stages - 1) / config_.stages;
  if (Planted(PlantedBug::kPromptsHoldDecodes) && Decoding() < std::ssize(running_)) {
    left = (left + 1) / 2;
  }
  for (size_t i = 0; i < running_.size() && budget.tokens > 0 && left > 0;) {
    Sequence& sequence = *running_[i];
    if (!Decodes(sequence) || !Plannable(sequence)) {
      ++i;
      continue;
    }
    const int32_t known = config_.prompt_chunk > 0 ? FixedChunk(sequence, budget) : 1;
    // The token after the last draft must still be allowed by the length, and drafts of one leave
    // room for those that come after it.
    const int32_t others = Planted(PlantedBug::kDraftsHoldDecodes) ? 1 : left;
    int32_t room = std::min(
        {budget.tokens - others, config_.drafts_max, sequence.tokens_max - sequence.known() - 1});
    if (config_.prompt_chunk > 0) room = std::min(room, config_.decode_rows - known);
    if (static_cast<int32_t>(sequence.drafts.size()) > room) {
      sequence.drafts.resize(std::max(room, 0));
    }
    const auto drafts = static_cast<int32_t>(sequence.drafts.size());
    if (drafts > 0 && !GrowTo(sequence, sequence.planned + 1 + drafts)) sequence.drafts.clear();

    bool grown = GrowTo(sequence, sequence.planned + 1);
    bool gone = false;
    while (!grown && !gone) {
      short_of_blocks_ = true;
      if (settling_ > 0) break;  // blocks come back with the next commit: wait for them
      Sequence* victim = Victim();
      gone = victim == &sequence;
      Preempt(*victim);
      if (!gone) grown = GrowTo(sequence, sequence.planned + 1);
    }
    if (gone) continue;  // the next one moved to its place
    ++i;
    if (!grown) continue;
    const int32_t count = known + static_cast<int32_t>(sequence.drafts.size());
    budget.rest_cost += costs_.Of(DecodeWork(sequence.planned, count));
    AddEntry(sequence, count, plan, record);
    budget.tokens -= count;
    --left;
  }
}

// Of running sequences and of new ones alike, in the order of service. `admits`: new ones too; who
// was preempted comes back in any case.
void Scheduler::PlanPrompts(StepPlan& plan, InFlightPlan& record, Budget& budget, bool admits) {
  const ServedBefore before{config_.priority_policy};
  bool room = true;
  for (size_t i = 0; budget.tokens > 0;) {
    Sequence* known = i < running_.size() ? running_[i] : nullptr;
    if (known != nullptr && (Decodes(*known) || !Plannable(*known))) {
      ++i;
      continue;
    }
    const bool head_next =
        !waiting_.empty() && (known == nullptr || (before(*waiting_.begin(), known) &&
                                                   !Planted(PlantedBug::kPromptsBeforeNewcomers)));
    if (room && head_next && (admits || (*waiting_.begin())->admitted_before)) {
      room = AdmitHead(plan, record, budget);
      if (room) ++i;  // it is now before `known`, with its place in the plan
      continue;
    }
    if (known == nullptr) return;
    known->ready_until = ReadyUntil(*known, known->planned, /*runs=*/true, plan, budget);
    const int32_t count = PrefillChunk(*known, budget);
    if (count > 0) AddPrompt(*known, count, plan, record, budget);
    ++i;
  }
}

void Scheduler::AddPrompt(
    Sequence& sequence, int32_t count, StepPlan& plan, InFlightPlan& record, Budget& budget) {
  const int32_t end = sequence.planned + count;
  budget.prompt_cost -= costs_.Of(PromptWork(sequence.planned, count));
  // Less than another smallest chunk is nothing: nobody gets what the one before it was denied.
  if (costs_.Of(PromptWork(end, StepCosts::kChunkMin)) > budget.prompt_cost) {
    budget.prompt_cost = 0;
  }
  budget.prompts = true;
  AddEntry(sequence, count, plan, record);
  budget.tokens -= count;
  if (Planted(PlantedBug::kUncountedLogprobRows) && !plan.admitted.empty()) return;
  if (plan.sequences.back().prompt_logprobs) budget.prompt_logprob_rows -= count;
}

// Whether the head of the queue was admitted; if not, nobody is in this plan.
bool Scheduler::AdmitHead(StepPlan& plan, InFlightPlan& record, Budget& budget) {
  // While blocks are short nobody new comes in; nor before a preempted sequence is in the queue
  // again, which would be overtaken.
  if (short_of_blocks_ || free_slots_.empty()) return false;
  if (evicting_ > 0 && !Planted(PlantedBug::kAdmitWhileEvicting)) return false;
  if (Planted(PlantedBug::kOneAdmissionAPlan) && !plan.admitted.empty()) return false;
  auto head = waiting_.begin();
  // Whoever comes in is computed at once, but for one whose next token is a picture that is not
  // encoded: it waits for that among those who run, where nobody waits for it.
  std::optional<std::vector<BlockId>> hits;
  bool waits = false;
  if (!(*head)->request.pictures.empty()) {
    hits = PrefixOf(**head);
    const auto from = static_cast<int32_t>(hits->size()) * kBlockTokens;
    (*head)->ready_until = ReadyUntil(**head, from, /*runs=*/false, plan, budget);
    waits = (*head)->ready_until <= from;
  }
  if (waits && Planted(PlantedBug::kPictureHoldsQueue)) return false;
  if (!waits && PrefillChunk(**head, budget) <= 0 &&
      !(Planted(PlantedBug::kAdmitWithoutLogprobRows) && (*head)->wants_prompt_logprobs())) {
    return false;
  }
  while (!Admit(**head, hits ? *std::move(hits) : PrefixOf(**head))) {
    if (!Planted(PlantedBug::kOvertakeHead) || ++head == waiting_.end()) return false;
    hits.reset();
  }
  Sequence& sequence = **head;
  waiting_.erase(head);
  LeaveQueue(sequence);
  turns_.Begin(sequence.turn);
  if (!sequence.admitted_before) started_.push_back(sequence.request.id);
  sequence.admitted_before = true;
  sequence.state = SequenceState::kRunning;
  sequence.slot = free_slots_.back();
  free_slots_.pop_back();
  const auto place =
      Planted(PlantedBug::kRunningAsAdmitted)
          ? running_.end()
          : std::ranges::upper_bound(running_, &sequence, ServedBefore{config_.priority_policy});
  running_.insert(place, &sequence);

  AdmittedSequence& admitted = plan.admitted.emplace_back();
  admitted.slot = sequence.slot;
  admitted.request = sequence.request.id;
  admitted.sampling = sequence.request.sampling;
  admitted.prompt = sequence.request.prompt;
  admitted.output.assign(sequence.tokens.begin() + sequence.prompt_count, sequence.tokens.end());
  admitted.banned_until_min = BannedUntilMin(sequence.request.stop);
  admitted.min_tokens = sequence.request.stop.min_tokens;
  admitted.constrained = sequence.constrained;
  if (!sequence.request.constraint.empty()) {
    admitted.constraint = sequence.request.constraint;
    admitted.constraint_ends = StopEnds(sequence.request.stop);
  }

  (void)TakePictures(sequence, sequence.planned, /*runs=*/true);
  const int32_t count = PrefillChunk(sequence, budget);
  if (count > 0) AddPrompt(sequence, count, plan, record, budget);
  return true;
}

// Takes blocks for all known tokens, `hits` of PrefixOf() shared; or changes nothing.
bool Scheduler::Admit(Sequence& sequence, std::vector<BlockId> hits) {
  const auto hit_count = static_cast<int32_t>(hits.size());
  const int32_t total = BlocksFor(sequence.is_protected() ? sequence.tokens_max : sequence.known());
  const auto idle_hits = static_cast<int32_t>(
      std::ranges::count_if(hits, [&](BlockId block) { return pool_.owners(block) == 0; }));
  const bool alone = running_.empty() && settling_ == 0;
  const auto reserve = alone ? 0 : static_cast<int32_t>(config_.watermark * config_.num_blocks);
  if (total - hit_count + idle_hits + reserve > pool_.num_free()) return false;

  BT_CHECK(sequence.blocks.empty());
  for (const BlockId block : hits) pool_.Share(block);
  sequence.blocks = std::move(hits);
  BT_CHECK(GrowTo(sequence, total * kBlockTokens));
  sequence.blocks_named = hit_count;
  sequence.planned = sequence.computed = hit_count * kBlockTokens;
  if (!sequence.admitted_before) {
    sequence.cached_tokens = sequence.computed;
    // As in vLLM nothing is asked of a cache that is off.
    if (config_.enable_prefix_caching) {
      stats_.prefix_queries += static_cast<uint64_t>(sequence.prompt_count);
    }
    stats_.prefix_hits += static_cast<uint64_t>(sequence.computed);
  }
  return true;
}

// Blocks that others have computed of what is known. The last token is always computed, since what
// follows it is sampled from it; and whoever asks for log-probabilities of its prompt computes it
// itself.
std::vector<BlockId> Scheduler::PrefixOf(Sequence& sequence) {
  std::vector<BlockId> hits;
  const bool own_chunks = config_.prompt_chunk > 0 ? sequence.request.sampling.prompt_logprobs >= 0
                                                   : sequence.wants_prompt_logprobs();
  if (!config_.enable_prefix_caching || own_chunks) return hits;
  const int32_t covered =
      Planted(PlantedBug::kHitCoversWholePrompt) ? sequence.known() : sequence.known() - 1;
  const int32_t count = std::min(covered, SharedTokens(sequence)) / kBlockTokens;
  ExtendNames(sequence, count);
  for (int32_t block = 0; block < count; ++block) {
    const BlockId hit = prefix_.Find(sequence.names[block], BlockTokens(sequence, block));
    if (hit == BlockId{-1}) break;
    hits.push_back(hit);
  }
  if (config_.prompt_chunk == 0 || Planted(PlantedBug::kHitInsideChunk)) return hits;
  while (std::ssize(hits) * kBlockTokens % config_.prompt_chunk != 0) hits.pop_back();
  return hits;
}

bool Scheduler::GrowTo(Sequence& sequence, int32_t tokens) {
  const auto held = static_cast<int32_t>(sequence.blocks.size());
  const int32_t missing = BlocksFor(tokens) - held;
  if (missing <= 0) return true;
  if (!pool_.Allocate(missing, sequence.blocks)) return false;
  for (size_t i = held; i < sequence.blocks.size(); ++i) prefix_.Forget(sequence.blocks[i]);
  return true;
}

// The last in the order of service that may still be preempted. Never one that this plan computes
// already: decodes are planned in that order, and protected sequences own what they need.
Sequence* Scheduler::Victim() const {
  if (Planted(PlantedBug::kVictimByArrivalAlone)) {
    Sequence* newest = nullptr;
    for (Sequence* sequence : running_) {
      if (sequence->is_protected()) continue;
      if (newest == nullptr || sequence->arrival > newest->arrival) newest = sequence;
    }
    if (newest != nullptr) return newest;
  }
  for (auto sequence = running_.rbegin(); sequence != running_.rend(); ++sequence) {
    if (!(*sequence)->is_protected()) return *sequence;
  }
  BT_CHECK(false);
  return nullptr;
}

int32_t Scheduler::ChunkOf(const Sequence& sequence) const {
  const bool scored = sequence.request.sampling.prompt_logprobs >= 0;
  return scored ? std::min(config_.prompt_chunk, config_.prompt_logprob_rows_max)
                : config_.prompt_chunk;
}

// With prompt_chunk: the rest of the chunk; 0 if the step has no room for it.
int32_t Scheduler::FixedChunk(const Sequence& sequence, const Budget& budget) const {
  if (Decodes(sequence)) {
    return std::min({sequence.available(), config_.decode_rows, budget.tokens});
  }
  const int32_t chunk = ChunkOf(sequence);
  int32_t end = std::min((sequence.planned / chunk + 1) * chunk, sequence.prompt_count);
  if (Planted(PlantedBug::kSampledTokensAsPrompt) && end == sequence.prompt_count) {
    end = sequence.known();
  }
  const int32_t count = end - sequence.planned;
  if (Planted(PlantedBug::kChunkAsRoomIsLeft)) return std::min(count, budget.tokens);
  const bool scores =
      sequence.wants_prompt_logprobs() && sequence.planned + 1 < sequence.prompt_count;
  return scores && count > budget.prompt_logprob_rows ? 0 : count;
}

int32_t Scheduler::PrefillChunk(const Sequence& sequence, const Budget& budget) const {
  if (config_.prompt_chunk > 0) return FixedChunk(sequence, budget);
  int32_t count = std::min(
      {sequence.available(), budget.tokens, std::max(sequence.ready_until - sequence.planned, 0)});
  // The last prompt row has no prompt token after it, so a chunk of that row alone needs no budget.
  if (sequence.wants_prompt_logprobs() && sequence.planned + 1 < sequence.prompt_count) {
    count = std::min(count, budget.prompt_logprob_rows);
  }
  if (budget.prompt_cost <= 0 && budget.prompts) return 0;
  const int32_t room = costs_.PromptTokens(budget.prompt_cost, sequence.planned, count);
  if (room == count) return count;
  const int32_t whole_blocks =
      (sequence.planned + room) / kBlockTokens * kBlockTokens - sequence.planned;
  return std::max(whole_blocks, std::min(count, StepCosts::kChunkMin));
}

// Computes the next `count` tokens; those after the available ones are drafts.
void Scheduler::AddEntry(Sequence& sequence, int32_t count, StepPlan& plan, InFlightPlan& record) {
  const int32_t drafts = std::max(count - sequence.available(), 0);
  const int32_t end = sequence.planned + count - drafts;
  const bool samples = end == sequence.known() + sequence.tokens_in_flight;

  PlannedSequence& planned = plan.sequences.emplace_back();
  planned.slot = sequence.slot;
  planned.first_position = sequence.planned;
  planned.token_begin = plan.num_tokens();
  planned.token_count = count;
  const int32_t known_end = std::min(end, sequence.known());
  for (int32_t p = sequence.planned; p < known_end; ++p) plan.tokens.push_back(sequence.tokens[p]);
  if (end > known_end) plan.tokens.push_back(kSampledToken);
  plan.tokens.insert(plan.tokens.end(), sequence.drafts.begin(), sequence.drafts.begin() + drafts);
  planned.sampled_rows = samples ? 1 + drafts : 0;
  AddPictureRows(sequence, planned);
  planned.prompt_logprobs =
      sequence.wants_prompt_logprobs() && sequence.planned + 1 < sequence.prompt_count;

  record.entries.push_back({.sequence = &sequence,
                            .first_position = sequence.planned,
                            .token_count = count,
                            .sampled_rows = planned.sampled_rows,
                            .drafts = drafts,
                            .open = drafts > 0 || (samples && plan.drafts_wanted > 0)});
  sequence.planned += count;
  ++sequence.in_flight;
  if (samples) ++sequence.tokens_in_flight;
  if (record.entries.back().open) sequence.drafts_in_flight = true;
  if (Planted(PlantedBug::kNameBeforeComputed)) {
    sequence.computed = std::min(sequence.planned, sequence.known());
    NameComputedBlocks(sequence);
  }
}

// Last, when every sequence has what it needs: drafts get what is left.
void Scheduler::PlanBlocks(StepPlan& plan, const InFlightPlan& record) {
  for (size_t i = 0; i < record.entries.size(); ++i) {
    const PlannedEntry& entry = record.entries[i];
    Sequence& sequence = *entry.sequence;
    if (entry.sampled_rows > 0 && plan.drafts_wanted > 0 &&
        !Planted(PlantedBug::kDraftsNotReserved)) {
      const int32_t end = entry.first_position + entry.token_count + plan.drafts_wanted;
      const bool beyond = Planted(PlantedBug::kReservedBeyondLength);
      (void)GrowTo(sequence, beyond ? end : std::min(end, sequence.tokens_max));
    }
    PlannedSequence& planned = plan.sequences[i];
    planned.block_begin = static_cast<int32_t>(plan.new_blocks.size());
    planned.block_count = static_cast<int32_t>(sequence.blocks.size()) - sequence.blocks_sent;
    plan.new_blocks.insert(plan.new_blocks.end(), sequence.blocks.begin() + sequence.blocks_sent,
                           sequence.blocks.end());
    sequence.blocks_sent = static_cast<int32_t>(sequence.blocks.size());
  }
}

}  // namespace baltoro
