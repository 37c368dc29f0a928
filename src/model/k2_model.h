#pragma once

// The transformer as the papers write it, over an OpsTable. Owns its weights. A model is used by
// one thread at a time; the operations spread over the pool.
//
// Weights are kept as the table's activation type: bf16, or f32 in float32 mode.

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "device/buffer.h"
#include "model/forward_batch.h"
#include "model/k2_config.h"
#include "model/layer_weights.h"
#include "ops/ops.h"
#include "weights/weight_source.h"

namespace baltoro {

enum class LoadFormat { kSafetensors, kDummy };

struct K2LoadOptions {
  LoadFormat format = LoadFormat::kSafetensors;
  uint64_t seed = 0;          // of dummy weights
  int64_t positions_max = 0;  // positions the rotary table covers; 0: the configuration's
  LoadProgress progress;      // may be empty; called on the loading thread
};

class K2Model {
 public:
  // `dir` is ignored for dummy weights. `ops` and `pool` must outlive the model.
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
  // caller resets between steps. Rows depend on their own sequence alone, bit for bit.
  void Forward(const ForwardBatch& batch,
               std::span<const KvLayerView> cache,
               TensorView logits,
               Arena& arena);

  // Makes `arena`, and the model's own scratch, as large as the largest step needs, by running
  // steps of that size through a few layers on a throwaway cache.
  void ReserveScratch(int64_t tokens_max, int64_t sequences_max, Arena& arena);

  const K2Config& config() const { return config_; }
  const OpsTable& ops() const { return ops_; }
  int64_t positions_max() const { return rope_table_.positions; }
  int64_t weight_bytes() const { return weights_.bytes; }
  // Bytes of KV cache for one token over all layers.
  int64_t kv_bytes_per_token() const;

 private:
  struct Activations;

  K2Model(const K2Config& config, const OpsTable& ops, ThreadPool* pool);
  void BuildRopeTable(int64_t positions);
  void RunLayers(const ForwardBatch& batch,
                 std::span<const KvLayerView> cache,
                 std::span<const int32_t> layers,
                 TensorView logits,
                 Arena& arena);
  void Embed(const ForwardBatch& batch, const Activations& a);
  void Attention(const LayerWeights& layer,
                 const ForwardBatch& batch,
                 const KvLayerView& cache,
                 const Activations& a);
  void DenseMlp(const LayerWeights& layer, const Activations& a);
  void Moe(const LayerWeights& layer, const Activations& a);
  void Logits(const ForwardBatch& batch, const Activations& a, TensorView logits, Arena& arena);
  OpContext Scratch();  // a context whose scratch is empty

  K2Config config_;
  const OpsTable& ops_;
  ThreadPool* pool_;
  ModelWeights weights_;
  Buffer rope_memory_;
  RopeTable rope_table_;
  Arena op_scratch_;
  std::vector<int32_t> all_layers_;
};

// What Load() would take, without reading anything.
int64_t WeightBytes(const K2Config& config, const OpsTable& ops);
int64_t KvBytesPerToken(const K2Config& config, const OpsTable& ops);

}  // namespace baltoro
