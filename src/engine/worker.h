#pragma once

// One rank at work: owns the model, the KV cache and what is kept for each slot; turns a plan into
// a batch, runs it, samples.

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "cache/kv_storage.h"
#include "device/buffer.h"
#include "engine/constraint_table.h"
#include "engine/draft_model.h"
#include "engine/draft_team.h"
#include "engine/fixed_steps.h"
#include "engine/ngram_index.h"
#include "engine/picture_memory.h"
#include "engine/rank_worker.h"
#include "engine/speculation.h"
#include "engine/step_masks.h"
#include "model/k2_model.h"
#include "ops/thread_pool.h"
#include "schedule/step_plan.h"

namespace baltoro {

struct WorkerConfig {
  int32_t max_num_seqs = 256;
  int32_t max_num_batched_tokens = 2048;
  int32_t logits_rows_max = 320;                       // of one step
  std::shared_ptr<const ConstraintTable> constraints;  // null: no request has one
  int32_t mask_threads = 1;                            // that make masks while the model computes
  // Of what sampling is told and tells in one go. More rows are sampled one go after another; what
  // a single row needs beyond that is taken when it comes.
  size_t sample_bytes = size_t{16} << 20;
  std::vector<float> kv_scales = {};      // one a layer, of a cache in KvForm::kFp8; empty: all 1
  std::vector<int32_t> graph_sizes = {};  // of recorded decode steps; empty: those of graph_sizes.h
  // With prompt_chunk above 0 a chunk of a prompt is computed alone, and sampled tokens in steps of
  // decode_rows rows.
  FixedSteps fixed = {};
  // Of the whole model, behind which a draft model reads; of all ranks the same. Empty: there is
  // none.
  std::vector<int32_t> tap_layers = {};
  bool samples = true;  // else another rank does, which has the logits
  bool quiet = false;   // another rank of this process tells of its start
  SpeculationConfig speculation = {};
  // Of a model whose layout balances experts: how they move.
  std::optional<ExpertBalanceOptions> balance = {};
};

// A draft model, of the rank that samples, or the part of one that the tensor ranks of the last
// stage share; its keys are a layer of the cache behind the model's.
struct WorkerDraft {
  std::unique_ptr<DraftTeam> team = nullptr;  // null: the model is whole
  std::unique_ptr<K2Model> model;             // null: none
  std::vector<int32_t> tokens;                // ReadDraftTokens
};

class Worker final : public RankWorker {
 public:
  // Takes all memory that steps need, by a trial step of the largest size. `pictures`: of the first
  // stage of a model that reads pictures; with the same operations and pool.
  static Result<std::unique_ptr<Worker>> Create(const WorkerConfig& config,
                                                std::unique_ptr<ThreadPool> pool,
                                                std::unique_ptr<K2Model> model,
                                                KvStorage kv,
                                                WorkerDraft draft = {},
                                                std::unique_ptr<PictureMemory> pictures = nullptr);

  // Running out of memory in a step fails the requests that cannot be computed alone either; one of
  // several ranks gives up. The cache holds this rank's layers and its share of the blocks.
  Result<StepResult> Run(const StepPlan& plan) override;
  Status TakeResult(const StepResult& result) override;

  // What the largest step takes at most through a layer of each kind, by its trial; on a CPU that
  // of a prompt's beginning, before which there are no keys.
  double largest_step_seconds() const { return largest_step_seconds_; }

 private:
  struct Slot {
    bool live = false;
    bool over = false;  // no token to go on from; plans made before that was known sample nothing
    bool left_out = false;  // all ranks know that it is over: it is not computed either
    AdmittedSequence admitted;
    std::vector<TokenId> output;
    size_t output_before = 0;  // size of `output` when the step began
    std::vector<int32_t> blocks;
    std::vector<uint32_t> mask;        // of allowed_token_ids; empty: all
    std::optional<NgramIndex> ngrams;  // of prompt and output, once drafts were looked for
  };
  struct BatchEntry;
  struct Batch;
  struct Asked;

  Worker(const WorkerConfig& config,
         std::unique_ptr<ThreadPool> pool,
         std::unique_ptr<K2Model> model,
         KvStorage kv);
  Status Apply(const StepPlan& plan);
  // Takes the memory that they need.
  Status TryLargestSteps();
  // What steps and sampling would otherwise take when they first need it: a GPU that others wait
  // for must not.
  Status TakeMemoryAhead();
  int64_t ScratchBytes() const;
  // Has the decode steps of all sizes recorded, where the model records any.
  void RecordSteps();
  void RecordStep(int32_t sequences, int32_t rows, int64_t keys);
  // A step of so many sequences of as many rows, all of which nobody reads.
  void ForwardEmpty(int32_t sequences, int32_t rows, int64_t keys);
  // Sequences of `rows` rows each that a recorded step may have.
  int32_t RecordedMax(int32_t rows) const;
  // Sequences of equally many rows. Empty: a pass is as it is.
  struct Evened {
    int32_t sequences = 0, rows = 0;
  };
  // Like which recorded step a pass may be made.
  Evened LikeRecorded(int32_t sequences, int32_t rows) const;
  // Of a pass that may be made like a recorded one: how many rows each of its sequences is to have.
  // 0: of any other.
  int32_t RowsEach(const StepPlan& plan, size_t begin, size_t end) const;
  // Like which recorded step all replicas of a group make this one.
  Evened EvenedGroup(const StepPlan& plan) const;
  // The rows that each replica of a group brings then. Empty: there is one.
  std::vector<int64_t> GroupRowsOf(const StepPlan& plan) const;
  // Sequences like one that is there, for nobody to read, up to the next size that is recorded.
  void Pad(Batch& batch) const;
  // What stands in place of the embeddings of placeholders.
  void TakePictures(const StepPlan& plan, Batch& batch) const;
  // Of one pass.
  int32_t pass_tokens_max() const {
    const int32_t chunk = config_.fixed.prompt_chunk;
    return chunk > 0 ? chunk : config_.max_num_batched_tokens;
  }
  int32_t pass_sequences_max() const {
    if (config_.fixed.prompt_chunk > 0) return config_.fixed.decode_rows;
    const int32_t rows = SampledRowsMax(config_.max_num_seqs, config_.speculation.drafts,
                                        config_.max_num_batched_tokens);
    // A GPU may take rows as sequences where there are no more than a recorded sequence has.
    const bool gpu = model_->ops().memory->kind() != DeviceKind::kCpu;
    return std::max(config_.max_num_seqs, gpu ? std::min(rows, K2Model::kRecordedRowsMax) : rows);
  }
  // Behind the sequences from `begin` on that are computed in one pass.
  size_t PassEnd(const StepPlan& plan, size_t begin) const;
  // Of fixed steps: whether the sequence computes sampled tokens.
  bool Decodes(const PlannedSequence& planned) const;
  TensorView LogitsOf(int64_t rows) const;
  std::vector<TensorView> TapsOf(int64_t tokens) const;
  // Computes sequences [begin, end) of the plan.
  // An error where other ranks cannot be reached; model_->ranks() may have another.
  Status RunSequences(const StepPlan& plan, size_t begin, size_t end, StepResult& result);
  Status RunForOthers(const StepPlan& plan);
  Status CheckGroupRows(const StepPlan& plan, std::span<const int64_t> told, int64_t rows) const;
  void Pack(const StepPlan& plan, const PlannedSequence& planned, Batch& batch);
  void PackRow(const Slot& slot, TokenId token, int32_t position, Batch& batch) const;
  // Another like it, which writes nothing.
  static void RepeatRow(int32_t row, Batch& batch);
  void PackDecodes(const StepPlan& plan, const PlannedSequence& planned, Batch& batch) const;
  void SamplePrompt(const StepPlan& plan, const Batch& batch, StepResult& result);
  void SampleTokens(const StepPlan& plan, const Batch& batch, StepResult& result);
  // worker_draft.cc: what may come after the tokens that were sampled, for the next step to verify.
  Status ProposeDrafts(const StepPlan& plan,
                       const Batch& batch,
                       const ForwardBatch& step,
                       StepResult& result);
  Status ProposeByModel(const StepPlan& plan,
                        const Batch& batch,
                        const ForwardBatch& step,
                        StepResult& result);
  // What follows from the tokens that were sampled of a sequence of the batch.
  void TakeSampled(int32_t wanted,
                   const PlannedSequence& planned,
                   const SequenceResult& one,
                   DraftSequence& sequence) const;
  void ProposeNgrams(int32_t wanted, Slot& slot, SequenceResult& one) const;
  // The draft that follows the sampled row `row`; -1: there is none.
  static TokenId DraftAfter(const StepPlan& plan, const PlannedSequence& planned, int32_t row);
  // Whether the slot's drafts are accepted by chance; not where a constraint has a say.
  bool SyntheticFor(const Slot& slot) const {
    return !config_.speculation.synthetic_rates.empty() && !slot.admitted.constrained;
  }
  // Of those: whether the draft that follows sampled row `row`, behind `known` tokens of output, is
  // taken.
  bool DrawsDraft(const Slot& slot, size_t known, int32_t row) const;
  void AskRows(const StepPlan& plan,
               const BatchEntry& entry,
               SequenceResult& one,
               std::vector<Asked>& asked,
               std::vector<SampleRow>& rows);
  void TakeRows(const StepPlan& plan,
                const Asked& asked,
                std::span<const SampleRow> rows,
                std::span<const SampleResult> sampled,
                SequenceResult& one);
  // False if nothing may be sampled there, which of row 0 the result then says. `ends`: what comes
  // there is the last token.
  bool Limit(const PlannedSequence& planned,
             int32_t row,
             SampleRow& sample,
             bool& ends,
             SequenceResult& one);
  void TakeToken(const PlannedSequence& planned, const SampleResult& sampled, SequenceResult& one);
  void Undo(const PlannedSequence& planned, SequenceResult& one);
  void Fail(const PlannedSequence& planned, const Status& error, SequenceResult& one);
  // The token behind the first `known` ones of the slot's output.
  SampleRow RowFor(const Slot& slot, size_t known, int32_t logits_row) const;
  // Samples the rows, and waits for the results.
  std::vector<SampleResult> Sample(const Batch& batch, const std::vector<SampleRow>& rows);
  Slot& slot_of(const PlannedSequence& planned) {
    return slots_[static_cast<size_t>(planned.slot)];
  }
  const Slot& slot_of(const PlannedSequence& planned) const {
    return slots_[static_cast<size_t>(planned.slot)];
  }

  const WorkerConfig config_;
  std::unique_ptr<ThreadPool> pool_;
  std::unique_ptr<K2Model> model_;
  KvStorage kv_;
  std::vector<KvLayerView> layers_;          // of the model
  std::vector<Buffer> taps_;                 // [max_num_batched_tokens, H] f32, one a tapped layer
  std::unique_ptr<DraftTeam> draft_team_;    // null: the draft model is whole
  std::unique_ptr<DraftModel> drafter_;      // null: none
  std::unique_ptr<PictureMemory> pictures_;  // likewise
  // Of the operations' memory.
  Buffer logits_;  // [logits_rows_max, vocab] f32
  Arena arena_;
  Arena sample_arena_;
  Arena sample_staging_;
  std::vector<Slot> slots_;
  // Of decode steps: how many sequences, and how many rows in each. Empty: none are recorded.
  std::vector<int32_t> graph_sizes_, recorded_rows_;
  std::unique_ptr<StepMasks> masks_;  // null: no request is constrained
  double largest_step_seconds_ = 0;
  int64_t scratch_bytes_ = 0;  // after the last step
};

}  // namespace baltoro
