#pragma once

// The transformer as the papers write it, over an OpsTable. Owns its weights. A model is used by
// one thread at a time; the operations spread over the pool.
//
// Weights are kept in the form of the checkpoint where that is quantised (weight_plan.h), and else
// as the table's activation type: bf16, or f32 in float32 mode.

#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/status.h"
#include "device/buffer.h"
#include "model/expert_balancer.h"
#include "model/forward_batch.h"
#include "model/host_exchange.h"
#include "model/k2_config.h"
#include "model/layer_weights.h"
#include "model/model_ranks.h"
#include "ops/ops.h"
#include "weights/open_weights.h"

namespace baltoro {

struct K2LoadOptions {
  WeightChoice choice;  // of the source that Load opens
  WeightOptions weights;
  int64_t positions_max = 0;    // that the rotary table covers; 0: the configuration's
  bool read_kv_scales = false;  // those of the source, for a cache in KvForm::kFp8
  LoadProgress progress;        // may be empty; called on the loading thread
  bool quiet = false;           // of a rank among others: only warnings go to the log
  // Of which this model is one, over the same memory. Null: the model is whole. Must outlive it.
  ModelRanks* ranks = nullptr;
  // A rank's share that is measured alone: parts are rounded as where ranks add them,
  // though nothing is added.
  bool parts_as_of_ranks = false;
};

class K2Model {
 public:
  // `ops` and `pool` (null: one thread) must outlive the model.
  static Result<std::unique_ptr<K2Model>> Load(const K2Config& config,
                                               const std::string& dir,
                                               const OpsTable& ops,
                                               ThreadPool* pool,
                                               const K2LoadOptions& options);
  // As above, with weights from anywhere.
  static Result<std::unique_ptr<K2Model>> Load(const K2Config& config,
                                               WeightSource& source,
                                               const OpsTable& ops,
                                               ThreadPool* pool,
                                               const K2LoadOptions& options);

  // Runs one step: writes the keys of its tokens into `cache` (one view a layer) and the logits of
  // batch.logits_rows into `logits` [rows, vocab] f32. Activations come from `arena`, which the
  // caller resets between steps. Cache, logits and arena are of the operations' memory; on a GPU
  // the step is queued when this returns. A row depends on its own sequence alone, bit for bit.
  //
  // Ranks are given the same batch, each with the views of its own layers; blocks are numbered over
  // the ranks of a decode-context group (PlaceOfBlock). The logits are those of the last stage;
  // they mean nothing on other stages, and after a failure (ranks()->status()).
  void Forward(const ForwardBatch& batch,
               std::span<const KvLayerView> cache,
               TensorView logits,
               Arena& arena);

  // Steps of one token a sequence, or of equally many up to kRecordedRowsMax, are recorded the
  // second time that one of their size, and with as many rows of logits, comes, and replayed from
  // then on: with the same arena, cache, logits, taps, features and picks. Without effect where the
  // operations record nothing.
  static constexpr int32_t kRecordedRowsMax = 8;
  void UseGraphs() {
    if (ops_.memory->kind() != DeviceKind::kCpu && others().recordable()) graphs_.emplace();
  }
  // Above 0: attention cuts what a decoded row sees after multiples of so many blocks of keys, and
  // nowhere else, where it would cut it as suits the step. Before ReserveScratch.
  void CutKeysAt(int32_t blocks) { key_part_blocks_ = blocks; }
  // What is computed from now on tells `tell`, in lines, which kernel computes what and why
  // (HiddenState::Explain), with a line "layer N" ahead of each; empty: no longer. Such
  // a step is not recorded.
  void Explain(std::function<void(const std::string&)> tell) { tell_ = std::move(tell); }
  // Of a layout that balances its experts, once its steps have been tried: they move from now on.
  void BalanceExperts(const ExpertBalanceOptions& options);
  // Null: experts stay where they are.
  const ExpertBalancer* balancer() const { return balancer_.get(); }
  bool uses_graphs() const { return graphs_.has_value(); }

  // Whether a step of `rows` rows, several a sequence, is computed as if each were a sequence of
  // its own, where they see no more than `keys` keys: as the operations like it better.
  bool RowsAlone(int64_t rows, int64_t keys, const KvLayerView& cache);

  // A GPU must not allocate while another one waits for it in a step, so that whatever may allocate
  // comes first: alone, without an exchange, so that the step means nothing; or recorded and not
  // run.
  enum class StepMode : uint8_t { kRun, kAlone, kRecord };
  void SetStepMode(StepMode mode) { mode_ = mode; }

  // Makes `arena`, and the model's own scratch, as large as the largest step needs: runs a step of
  // `tokens_max` tokens, and one of `sequences_max` sequences of one token each, through a layer of
  // each kind on a throwaway cache of the form given, exchanging nothing; on a GPU with as many
  // keys as a sequence can have. Logits of `rows_max` rows may be asked for (0: `sequences_max`).
  // `arena` is one piece afterwards, and empty. So many steps at most, of `sequences_max` rows, may
  // follow each other without a wait (ForwardBatch::follows).
  Status ReserveScratch(KvForm kv,
                        int64_t tokens_max,
                        int64_t sequences_max,
                        Arena& arena,
                        int64_t rows_max = 0,
                        int32_t steps_in_a_row = 1);
  // In how many parts ReserveScratch tries a sequence of `tokens_max` tokens, on a CPU: the
  // attention of a step may take as many times as long as that of its trial.
  int64_t TrialParts(int64_t tokens_max) const;
  // After ReserveScratch: likewise steps of every class of sizes (ops/row_class.h), so that no
  // kernel is loaded later, when another GPU may wait for this one. On a CPU there is nothing to
  // do.
  Status WarmUp(
      KvForm kv, int64_t tokens_max, int64_t sequences_max, Arena& arena, int64_t rows_max = 0);

  const K2Config& config() const { return config_; }
  // That this model holds: of all, or of its stage.
  int32_t layers() const { return static_cast<int32_t>(all_layers_.size()); }
  const RankShare& share() const { return share_; }
  CacheWidths cache_widths() const { return share_.cache_widths(config_); }  // of its cache views
  ModelRanks* ranks() const { return ranks_; }
  const OpsTable& ops() const { return ops_; }
  // One a layer; empty: not asked for, or the source has none.
  const std::vector<float>& kv_scales() const { return kv_scales_; }
  int64_t positions_max() const { return rope_table_.positions; }
  int64_t weight_bytes() const { return weights_.bytes; }
  int64_t scratch_bytes() const { return static_cast<int64_t>(op_scratch_.bytes_reserved()); }
  int64_t staging_bytes() const { return static_cast<int64_t>(staging_.bytes_reserved()); }

 private:
  struct Inputs;
  struct Trial;
  // What a recorded step depends on.
  struct GraphKey {
    size_t tokens, sequences, rows;
    const void* logits;
    const void* picked_tokens;
    std::vector<std::pair<int32_t, const void*>> taps;  // layers, and where they go
    auto operator<=>(const GraphKey&) const = default;
  };
  struct Recorded {
    std::unique_ptr<OpGraph> graph;  // null: seen once
  };

  K2Model(const K2Config& config, const OpsTable& ops, ThreadPool* pool, ModelRanks* ranks);
  Status BuildRopeTable(int64_t positions);
  Result<Trial> MakeTrial(KvForm kv, int64_t tokens_max, int64_t sequences_max, int64_t rows_max);
  int64_t LongestTried() const;  // tokens of a sequence of a trial
  // A step of sequences with `counts` tokens, each with `keys` keys or those of its tokens alone.
  void RunTrial(const Trial& trial, std::span<const int64_t> counts, int64_t keys, Arena& arena);
  // Forward() through the layers named alone; cache[i] belongs to layers[i].
  void Run(const ForwardBatch& batch,
           std::span<const int32_t> layers,
           std::span<const KvLayerView> cache,
           TensorView logits,
           Arena& arena);
  StepShape ShapeOfStep(int64_t tokens, int64_t logits_rows);
  void WaitForLastStep();
  // What the operations read beside weights and cache, brought to where they are.
  Inputs Bring(const ForwardBatch& batch, KvForm kv, int64_t blocks_max, Arena& arena);
  // Brings all of brought_ to where operations read it.
  void BringTogether(Arena& arena);
  // Of a decode-context rank: where its part of the batch's keys is.
  void FindOwnKeys(const ForwardBatch& batch);
  AttentionHalfArgs AttentionOf(int32_t layer, const Inputs& in, const KvLayerView& cache) const;
  HeadsAttentionArgs HeadsOf(int32_t layer, const Inputs& in, const KvLayerView& cache) const;
  ExpertsHalfArgs ExpertsOf(int32_t layer) const;
  // The step itself: operations alone, and between them what stages tell each other.
  // Of a replica without rows: its experts, for those of the others.
  void ComputeForOthers(const ForwardBatch& batch, std::span<const int32_t> layers, Arena& arena);
  void Compute(const Inputs& in,
               std::span<const int32_t> layers,
               std::span<const KvLayerView> cache,
               HiddenState& hidden,
               TensorView logits);
  OpContext Scratch();  // a context whose scratch is empty
  RankOps& others() {
    const bool alone = mode_ == StepMode::kAlone || ranks_ == nullptr;
    return alone ? static_cast<RankOps&>(nobody_) : ranks_->ops();
  }
  // Null: no replica shares experts with this one.
  ExpertExchange* exchange() {
    if (share_.layout.data == 1) return nullptr;
    const bool alone = mode_ == StepMode::kAlone || ranks_ == nullptr;
    ExpertExchange* const exchange = alone ? &lonely_exchange_ : ranks_->ops().experts();
    BT_CHECK(exchange != nullptr);  // or this rank would take its experts for all
    return exchange;
  }

  K2Config config_;
  const OpsTable& ops_;
  ThreadPool* pool_;
  ModelRanks* ranks_;
  NoRanks nobody_;
  LonelyExchange lonely_exchange_;
  bool parts_as_of_ranks_ = false;
  StepMode mode_ = StepMode::kRun;
  int32_t key_part_blocks_ = 0;
  std::function<void(const std::string&)> tell_;
  bool recorded_ahead_ = false;  // a step was recorded without being run
  const RankShare share_;
  const int32_t heads_;        // of this rank
  const int32_t group_heads_;  // that it attends for
  ModelWeights weights_;
  std::vector<float> kv_scales_;
  std::vector<int32_t> all_layers_;    // of weights_.layers
  std::vector<int32_t> expert_slots_;  // RankShare::expert_slots
  std::unique_ptr<ExpertBalancer> balancer_;
  Buffer rope_memory_;
  RopeTable rope_table_;
  float softmax_scale_;
  Arena op_scratch_;  // taken back after every operation
  Arena staging_;     // taken back after every step
  std::optional<std::map<GraphKey, Recorded>> graphs_;
  // Of the step: numbers that are on their way to the operations' memory, one after the other.
  struct Brought {
    TensorView* to;
    const void* from;
    size_t bytes;
  };
  std::vector<Brought> brought_;
  std::vector<std::byte> together_;
  // Of the step, where ranks share the keys: as in ForwardBatch, of this rank's blocks.
  std::vector<int64_t> own_slots_;
  std::vector<AttentionSequence> own_sequences_;
  std::vector<int32_t> own_blocks_, own_positions_;  // of all own_sequences_
};

// Bytes of KV cache for one token over `layers` layers.
int64_t KvBytesPerToken(const K2Config& config, KvForm form, int64_t layers);

}  // namespace baltoro
