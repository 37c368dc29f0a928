#include "schedule/scheduler.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/check.h"
#include "schedule/planted_bug.h"

namespace baltoro {

bool Scheduler::ServedBefore::operator()(const Sequence* a, const Sequence* b) const {
  if (a->is_protected() != b->is_protected() && !Planted(PlantedBug::kProtectedNotFirst)) {
    return a->is_protected();
  }
  if (by_priority && a->request.priority != b->request.priority) {
    return a->request.priority < b->request.priority;
  }
  if (a->turn.end != b->turn.end && !Planted(PlantedBug::kOwnersIgnored)) {
    return a->turn.end < b->turn.end;
  }
  return a->arrival < b->arrival;
}

Scheduler::Scheduler(const SchedulerConfig& config)
    : config_(config),
      pool_(config.num_blocks),
      prefix_(config.hash_secret, config.num_blocks),
      pictures_(config.picture_rows),
      waiting_(ServedBefore{config.priority_policy && !Planted(PlantedBug::kQueueByArrivalAlone)}) {
  BT_CHECK(config.num_blocks > 0 && config.max_num_seqs > 0 && config.max_num_batched_tokens > 0);
  BT_CHECK(config.max_model_len > 0 && config.prompt_logprob_rows_max > 0);
  BT_CHECK(config.prompt_chunk >= 0 && config.decode_rows > 0);
  BT_CHECK(config.prompt_chunk == 0 || config.picture_rows == 0);
  BT_CHECK(config.picture_ranks > 0);
  BT_CHECK(config.drafts_max >= 0 && config.drafts_max <= kDraftsMax);
  if (config_.max_queued_tokens == 0) {
    config_.max_queued_tokens = int64_t{8} * config.num_blocks * kBlockTokens;
  }
  for (int32_t slot = config.max_num_seqs; slot-- > 0;) free_slots_.push_back(SlotId{slot});
  running_.reserve(config.max_num_seqs);
}

Status Scheduler::Submit(Request request) {
  const auto prompt_count = static_cast<int64_t>(request.prompt.size());
  if (prompt_count == 0) return InvalidArgument("the prompt has no tokens");
  if (request.stop.max_tokens < 1) return InvalidArgument("max_tokens is below 1");
  if (prompt_count >= config_.max_model_len) {
    return InvalidArgument("the prompt has " + std::to_string(prompt_count) +
                           " tokens; with at least one token of output the limit is " +
                           std::to_string(config_.max_model_len));
  }
  const int64_t tokens_max =
      std::min(prompt_count + request.stop.max_tokens, config_.max_model_len);
  if (BlocksFor(tokens_max) > config_.num_blocks) {
    return InvalidArgument("the request may need " + std::to_string(tokens_max) +
                           " tokens of KV cache, which holds " +
                           std::to_string(int64_t{config_.num_blocks} * kBlockTokens));
  }
  if (sequences_.contains(request.id)) return Status(Code::kInternal, "the request id is in use");
  if (!Planted(PlantedBug::kQueueUnbounded) &&
      (queued_requests_ >= config_.max_queued_requests ||
       queued_tokens_ + prompt_count > config_.max_queued_tokens)) {
    return Status(Code::kResourceExhausted,
                  "the queue is full: " + std::to_string(queued_requests_) + " requests with " +
                      std::to_string(queued_tokens_) + " tokens are waiting");
  }

  auto sequence = std::make_unique<Sequence>();
  sequence->arrival = next_arrival_++;
  sequence->prompt_count = static_cast<int32_t>(prompt_count);
  sequence->tokens_max = static_cast<int32_t>(tokens_max);
  sequence->tokens.reserve(prompt_count + std::min(request.stop.max_tokens, 1024));
  sequence->tokens = request.prompt;
  sequence->constrained = !request.constraint.empty();
  // It may be large, and was made into an object already.
  if (!config_.sends_constraints) request.constraint = {};
  for (const RequestPicture& picture : request.pictures) {
    sequence->picture_names.push_back(NameOf(picture, request.cache_salt));
  }
  sequence->request = std::move(request);
  sequence->turn = turns_.Take(sequence->request.owner, sequence->expected_tokens());
  waiting_.insert(sequence.get());
  ++queued_requests_;
  queued_tokens_ += prompt_count;
  const RequestId id = sequence->request.id;
  sequences_.emplace(id, std::move(sequence));
  return {};
}

void Scheduler::Abort(RequestId id) {
  const auto found = sequences_.find(id);
  if (found == sequences_.end() || found->second->state == SequenceState::kEnding) return;
  Sequence& sequence = *found->second;
  if (!(Planted(PlantedBug::kLostAbortWhileWaitingAgain) &&
        sequence.state == SequenceState::kWaiting && sequence.preemptions > 0)) {
    TokenEvent event;
    event.request = id;
    event.finish = FinishReason::kAbort;
    event.cached_tokens = sequence.cached_tokens;
    events_.push_back(std::move(event));
  }
  if (Planted(PlantedBug::kLeakOnAbortWhileEvicting) &&
      sequence.state == SequenceState::kEvicting) {
    sequence.blocks.clear();
  }
  End(sequence);
}

std::vector<TokenEvent> Scheduler::TakeEvents() {
  return std::exchange(events_, {});
}

std::vector<RequestId> Scheduler::TakeStarted() {
  return std::exchange(started_, {});
}

SchedulerStats Scheduler::stats() const {
  SchedulerStats stats = stats_;
  stats.running = static_cast<int32_t>(running_.size());
  stats.waiting = static_cast<int32_t>(waiting_.size()) + evicting_;
  stats.free_blocks = pool_.num_free();
  return stats;
}

void Scheduler::Preempt(Sequence& sequence) {
  LeaveRunning(sequence);
  sequence.state = SequenceState::kEvicting;
  ++sequence.preemptions;
  sequence.drafts.clear();
  ++stats_.preemptions;
  ++settling_;
  ++evicting_;
  Settle(sequence);
}

void Scheduler::LeaveRunning(Sequence& sequence) {
  const auto at = std::ranges::find(running_, &sequence);
  BT_CHECK(at != running_.end());
  running_.erase(at);
  if (!Planted(PlantedBug::kPicturesKept)) ReleasePictures(sequence, /*all=*/true);
}

// The final event is out, or about to be. May delete `sequence`.
void Scheduler::End(Sequence& sequence) {
  turns_.Leave(sequence.request.owner, sequence.expected_tokens(),
               sequence.admitted_before ? sequence.known() : 0);
  switch (sequence.state) {
    case SequenceState::kWaiting:
      waiting_.erase(&sequence);
      if (running_.empty() && waiting_.empty()) DropEncoding();
      if (!Planted(PlantedBug::kAbortInQueueKeepsCount)) LeaveQueue(sequence);
      sequences_.erase(sequence.request.id);
      return;
    case SequenceState::kRunning:
      LeaveRunning(sequence);
      if (running_.empty() && waiting_.empty()) DropEncoding();
      ++settling_;
      break;
    case SequenceState::kEvicting:
      --evicting_;
      break;
    case SequenceState::kEnding:
      BT_CHECK(false);
  }
  sequence.state = SequenceState::kEnding;
  if (Planted(PlantedBug::kReleaseWhileInFlight)) GiveBack(sequence);
  Settle(sequence);
}

// A sequence that leaves gives its blocks back once no step in flight writes them. May delete it.
void Scheduler::Settle(Sequence& sequence) {
  if (sequence.in_flight > 0) return;
  --settling_;
  GiveBack(sequence);
  if (sequence.state == SequenceState::kEnding) {
    sequences_.erase(sequence.request.id);
    return;
  }
  BT_CHECK(sequence.state == SequenceState::kEvicting);
  --evicting_;
  sequence.state = SequenceState::kWaiting;
  sequence.planned = sequence.computed = 0;
  sequence.blocks_sent = sequence.blocks_named = 0;
  sequence.prompt_logprobs.clear();
  if (Planted(PlantedBug::kRequeuedAsNew)) sequence.arrival = next_arrival_++;
  if (Planted(PlantedBug::kUrgentOnceRequeued)) sequence.request.priority = 0;
  if (Planted(PlantedBug::kSaltLostAfterPreemption)) sequence.names.clear();
  if (!Planted(PlantedBug::kStuckAfterPreemption)) waiting_.insert(&sequence);
}

void Scheduler::GiveBack(Sequence& sequence) {
  // Leaf first, so that of a chain the leaf is reused first.
  for (auto block = sequence.blocks.rbegin(); block != sequence.blocks.rend(); ++block) {
    pool_.Release(*block, prefix_.Holds(*block));
  }
  sequence.blocks.clear();
  if (sequence.slot == SlotId{-1}) return;
  retired_.push_back(sequence.slot);
  free_slots_.push_back(sequence.slot);
  sequence.slot = SlotId{-1};
}

// Requests that were admitted before do not count towards the limits of the queue.
void Scheduler::LeaveQueue(Sequence& sequence) {
  if (sequence.admitted_before) return;
  --queued_requests_;
  queued_tokens_ -= sequence.prompt_count;
}

void Scheduler::ExtendNames(Sequence& sequence, int32_t count) {
  while (static_cast<int32_t>(sequence.names.size()) < count) {
    const auto block = static_cast<int32_t>(sequence.names.size());
    const bool unsalted =
        Planted(PlantedBug::kIgnoreSalt) ||
        (Planted(PlantedBug::kSaltLostAfterPreemption) && sequence.preemptions > 0);
    const Hash128 parent = block > 0
                               ? sequence.names.back()
                               : prefix_.names().Root(unsalted ? "" : sequence.request.cache_salt);
    sequence.names.push_back(NameWithPictures(
        sequence, block, prefix_.names().Chain(parent, BlockTokens(sequence, block))));
  }
}

std::span<const TokenId> Scheduler::BlockTokens(const Sequence& sequence, int32_t block) const {
  return std::span(sequence.tokens)
      .subspan(static_cast<size_t>(block) * kBlockTokens, kBlockTokens);
}

}  // namespace baltoro
