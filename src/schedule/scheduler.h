#pragma once

// Which sequences run in the next step. Pure bookkeeping: no thread, no clock, no device, and the
// same calls give the same plans.
//
//   Submit -> waiting -> (Plan admits it) -> running -> final event
//                 ^-- preempted: its blocks are taken, it is computed again --'
//
// Plan() may be called again before the earlier plans were committed; Commit() takes results in the
// order of the plans. Rules, in short:
//   - decode first, then prompts, of running sequences and of new ones, in the order of service,
//     within max_num_batched_tokens and, for prompts, within what the step may cost;
//   - a sequence is admitted only if blocks for all its known tokens are free, and takes them then;
//   - the order of service is priority, then the owners' turns (fair_turns.h), within an owner
//     arrival; the queue is served strictly in it: nothing overtakes its head;
//   - when no block is left the last in that order gives up its own; after eight times it goes
//     first, and is admitted with all the blocks that it may ever need;
//   - a prompt is computed up to a picture that is not encoded, and no further; others behind it go
//     on, also where it has just been admitted; what encoding costs is taken from what prompts may
//     cost;
//   - whatever a step in flight still writes keeps its owner until that step is committed;
//   - a block becomes findable for others once every position in it was computed and committed.
//
// One thread.

#include <cstdint>
#include <deque>
#include <memory>
#include <set>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/status.h"
#include "cache/block_pool.h"
#include "cache/prefix_cache.h"
#include "schedule/draft_stats.h"
#include "schedule/fair_turns.h"
#include "schedule/picture_store.h"
#include "schedule/sequence.h"
#include "schedule/step_costs.h"
#include "schedule/step_plan.h"

namespace baltoro {

struct SchedulerConfig {
  int32_t num_blocks = 0;
  int64_t max_model_len = 0;
  int32_t max_num_seqs = 256;
  int32_t max_num_batched_tokens = 2048;
  int64_t max_queued_requests = 1024;  // never admitted yet
  int64_t max_queued_tokens = 0;       // 0: eight times what the cache holds
  bool enable_prefix_caching = true;
  bool priority_policy = false;  // false: priorities have no effect
  // Most drafts verified in one step, up to kDraftsMax. A sequence that verifies some, or is asked
  // for some, is not planned ahead of the tokens that it is sampling; one that samples has blocks
  // for as many positions behind those of the plan as drafts are asked for, as far as its length
  // goes and blocks are free: a draft model writes there.
  int32_t drafts_max = 0;
  // Of a pipeline that computes as many plans at once. With more than one, no sequence is planned
  // ahead of the token that it is sampling, and a plan has its share of those that decode alone.
  int32_t stages = 1;
  int32_t prompt_logprob_rows_max = 64;  // of one step
  // Others find blocks of prompts alone, which they would compute as they were computed; never
  // those with tokens that a request sampled.
  bool share_prompts_only = false;
  // Above 0: how a token is computed follows from its own request alone. Prompts are cut at
  // multiples of this and nowhere else (with log-probabilities of the prompt: of
  // prompt_logprob_rows_max, if that is less), whatever is left of a step, and found in whole
  // chunks; sampled tokens are computed apart from them, after a preemption too. A step then has up
  // to a chunk of tokens more than max_num_batched_tokens.
  int32_t prompt_chunk = 0;
  int32_t decode_rows = 32;  // with prompt_chunk: sampled tokens in one entry of a plan
  // Of pictures: rows in the ranks' memory (0: there are none), layers of the encoder with its
  // projector, and patches that go through it together on a rank. Not with prompt_chunk.
  int32_t picture_rows = 0, picture_layers = 0;
  int64_t picture_patches_max = 0;
  int32_t picture_ranks = 1;  // among which those of a batch are shared out
  // A batch of fewer patches a rank takes pictures of other requests along, up to as many: the
  // weights of a layer are then read once for all. With more its own would wait, for little.
  int64_t picture_patches_shared = 2048;
  double watermark = 0.01;  // share of blocks that an admission leaves free
  // Plans bring constraints along: AdmittedSequence::constraint.
  bool sends_constraints = false;
  HashKey hash_secret{};
};

struct SchedulerStats {
  int32_t running = 0, waiting = 0;
  int32_t free_blocks = 0;
  uint64_t prefix_queries = 0, prefix_hits = 0;  // tokens
  uint64_t preemptions = 0;
  uint64_t prompt_tokens_computed = 0, generation_tokens = 0;
  DraftStats drafts = {};
};

class Scheduler {
 public:
  explicit Scheduler(const SchedulerConfig& config);

  // kInvalidArgument if it can never run, kResourceExhausted if the queue is full. Of a constraint
  // only its existence is noted. Its pictures stand one after the other in the prompt, with a token
  // behind the last, and each fits by itself.
  Status Submit(Request request);
  // The final event is out at once; what steps in flight still bring for it is dropped.
  void Abort(RequestId id);
  // What to compute next; empty when there is nothing to do before a commit or a new request. With
  // prompt_chunk the costs have no effect. Asks for as many drafts behind what is sampled as are
  // wanted, and drafts_max at most. Unless it `admits`, all that waits goes on waiting.
  StepPlan Plan(const StepCosts& costs = {},
                int32_t drafts_wanted = kDraftsMax,
                bool admits = true);
  void Commit(const StepResult& result);
  // The events since the last call, in order; at most one per request and commit.
  std::vector<TokenEvent> TakeEvents();
  // The requests admitted for the first time since the last call.
  std::vector<RequestId> TakeStarted();

  // True if it holds nothing: no request, no plan in flight.
  bool idle() const { return sequences_.empty() && in_flight_.empty(); }
  int plans_in_flight() const { return static_cast<int>(in_flight_.size()); }
  // Requests and tokens that count towards the limits of the queue.
  int64_t queued_requests() const { return queued_requests_; }
  int64_t queued_tokens() const { return queued_tokens_; }
  SchedulerStats stats() const;

  // For tests.
  const PictureStore& pictures() const { return pictures_; }
  const BlockPool& pool() const { return pool_; }
  const PrefixCache& prefix_cache() const { return prefix_; }
  template <typename Visit>
  void ForEachSequence(const Visit& visit) const {
    for (const auto& [id, sequence] : sequences_) visit(*sequence);
  }

 private:
  // The order of service: protected sequences, then priority, then turns.
  struct ServedBefore {
    bool by_priority = false;
    bool operator()(const Sequence* a, const Sequence* b) const;
  };
  struct PlannedEntry {
    Sequence* sequence;
    int32_t first_position, token_count, sampled_rows;
    int32_t drafts;  // of the sampled rows
    bool open;       // nothing is planned behind it before it is committed
  };
  struct InFlightPlan {
    uint64_t step;
    std::vector<PlannedEntry> entries;
  };
  // What is left of a step's limits while it is planned.
  struct Budget {
    int32_t tokens, prompt_logprob_rows;
    double rest_cost;      // what the step costs without prompts
    double prompt_cost;    // what prompts may still cost
    bool prompts = false;  // some prompt is in the plan
  };

  // scheduler_plan.cc
  void PlanDecodes(StepPlan& plan, InFlightPlan& record, Budget& budget);
  void PlanPrompts(StepPlan& plan, InFlightPlan& record, Budget& budget, bool admits);
  bool AdmitHead(StepPlan& plan, InFlightPlan& record, Budget& budget);
  bool Admit(Sequence& sequence, std::vector<BlockId> hits);
  std::vector<BlockId> PrefixOf(Sequence& sequence);
  bool GrowTo(Sequence& sequence, int32_t tokens);
  Sequence* Victim() const;
  void AddEntry(Sequence& sequence, int32_t count, StepPlan& plan, InFlightPlan& record);
  void PlanBlocks(StepPlan& plan, const InFlightPlan& record);
  int32_t PrefillChunk(const Sequence& sequence, const Budget& budget) const;
  int32_t FixedChunk(const Sequence& sequence, const Budget& budget) const;
  int32_t ChunkOf(const Sequence& sequence) const;
  int32_t SharedTokens(const Sequence& sequence) const;
  bool Decodes(const Sequence& sequence) const;
  bool Plannable(const Sequence& sequence) const;
  int32_t Decoding() const;
  void AddPrompt(
      Sequence& sequence, int32_t count, StepPlan& plan, InFlightPlan& record, Budget& budget);

  // scheduler_pictures.cc
  PictureName NameOf(const RequestPicture& picture, const std::string& salt) const;
  Sequence::Range TakePictures(Sequence& sequence, int32_t from, bool runs);
  PictureStore::Place* TakePlace(const Sequence& sequence, size_t index);
  int32_t ReadyUntil(Sequence& sequence, int32_t from, bool runs, StepPlan& plan, Budget& budget);
  bool Encoded(const Sequence& sequence, size_t index, StepPlan& plan, Budget& budget);
  bool EncodingIsNeeded();
  void DropEncoding();
  void BeginEncoding(const Sequence& sequence, size_t index);
  bool JoinEncoding(const Sequence& sequence, size_t index, int64_t patches_max);
  bool ShareOut(int64_t patches_max);
  bool EncodeLayers(StepPlan& plan, Budget& budget);
  void AddPictureRows(const Sequence& sequence, PlannedSequence& planned);
  void ReleasePictures(Sequence& sequence, bool all);
  Hash128 NameWithPictures(const Sequence& sequence, int32_t block, Hash128 name) const;

  // scheduler_commit.cc
  void CommitSequence(const PlannedEntry& entry, const SequenceResult& result);
  void TakeTokens(Sequence& sequence, const SequenceResult& result, TokenEvent& event);
  void NameComputedBlocks(Sequence& sequence);
  void DropBlocks(Sequence& sequence);

  // scheduler.cc
  void Preempt(Sequence& sequence);
  void LeaveRunning(Sequence& sequence);
  void End(Sequence& sequence);
  void Settle(Sequence& sequence);
  void GiveBack(Sequence& sequence);
  void LeaveQueue(Sequence& sequence);
  void ExtendNames(Sequence& sequence, int32_t count);
  std::span<const TokenId> BlockTokens(const Sequence& sequence, int32_t block) const;

  SchedulerConfig config_;
  BlockPool pool_;
  PrefixCache prefix_;
  PictureStore pictures_;
  // The batch on its way through the encoder, which holds its pictures; no names: there is none.
  struct Encoding {
    std::vector<PictureName> names = {};
    std::vector<EncodedPicture> pictures = {};  // until they are planned
    int32_t layers_left = 0;
    int64_t patches = 0;  // of the rank that has most
    double pairs = 0;     // likewise
    bool begins = false;
  };
  Encoding encoding_;
  FairTurns turns_;
  std::unordered_map<RequestId, std::unique_ptr<Sequence>> sequences_;
  std::set<Sequence*, ServedBefore> waiting_;
  std::vector<Sequence*> running_;  // in the order of service
  std::deque<InFlightPlan> in_flight_;
  std::vector<SlotId> free_slots_;
  std::vector<SlotId> retired_;   // to be told with the next plan
  std::vector<BlockId> cleared_;  // likewise
  std::vector<TokenEvent> events_;
  std::vector<RequestId> started_;
  std::vector<std::vector<PlannedEntry>> spare_records_;
  bool short_of_blocks_ = false;  // in the plan being made
  StepCosts costs_;               // of the plan being made
  int32_t settling_ = 0;          // sequences that give blocks back once their steps are committed
  int32_t evicting_ = 0;          // those of them that will be queued again
  int64_t queued_requests_ = 0, queued_tokens_ = 0;
  uint64_t next_arrival_ = 0, next_step_ = 1;
  SchedulerStats stats_;
};

}  // namespace baltoro
