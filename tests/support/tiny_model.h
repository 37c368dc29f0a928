#pragma once

// Tiny random models for tests: weights by the rule that tools/record_tiny_golden.py follows,
// checkpoints written from them, and a model run on one sequence in chosen pieces.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/json.h"
#include "device/buffer.h"
#include "model/k2_model.h"
#include "weights/weight_source.h"

namespace baltoro::test {

// The smallest model of the family that has everything: a dense layer, then layers of 8 experts of
// which 3 are chosen, a vocabulary of 90.
K2Config SmallConfig(int32_t layers, int32_t heads);
// The same in widths that GPU kernels are made for, and a vocabulary of 2,304.
K2Config KernelConfig(int32_t layers, int32_t heads);

// Weights from a hash of their name, rounded to bf16, served as bf16 (f32 for the selection bias).
// Makes each tensor once and keeps it, in the order in which they were asked for.
class TinySource final : public WeightSource {
 public:
  explicit TinySource(bool has_bias, uint64_t seed = 7) : has_bias_(has_bias), seed_(seed) {}

  std::optional<SourceTensor> Find(std::string_view name,
                                   const std::vector<int64_t>& wanted) override;
  Status Read(const SourceTensor& tensor, int64_t row, TensorView out) const override;
  std::string description() const override { return "tiny weights"; }

  struct Made {
    SourceTensor tensor;
    std::string bytes;
  };
  const std::vector<Made>& made() const { return made_; }

 private:
  bool has_bias_;
  uint64_t seed_;
  std::vector<Made> made_;  // SourceTensor::handle is the place in it
  std::unordered_map<std::string, size_t> by_name_;
};

// One tensor of a checkpoint to write.
struct FileTensor {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  std::string bytes;
};

// A safetensors file of these tensors, in this order.
std::string SafetensorsFile(std::span<const FileTensor> tensors);
void WriteFile(const std::string& path, std::string_view bytes);
// Everything a configuration needs, as TinySource makes it, in the order of loading.
std::vector<FileTensor> TinyTensors(const K2Config& config, bool has_bias);

struct CheckpointOptions {
  std::string prefix;       // before every name
  bool drop_model = false;  // leaves "model." out of names, after the prefix
  int shards = 0;           // 0: one file without index; n: tensor i goes to shard i mod n
};
void WriteCheckpoint(const std::string& dir,
                     std::vector<FileTensor> tensors,
                     const CheckpointOptions& options);

// A model with its own cache and one sequence, whose blocks lie scattered.
class TinyRunner {
 public:
  TinyRunner(K2Model& model, int64_t tokens_max);  // a cache of the activation type
  TinyRunner(K2Model& model, int64_t tokens_max, KvForm kv);
  // With an arena that K2Model::ReserveScratch has made large enough: a step allocates nothing.
  TinyRunner(K2Model& model, int64_t tokens_max, KvForm kv, Arena arena);

  // Runs the next tokens and returns the logits of all of them, [tokens, vocab]. Tokens at
  // positions from `absorbed_from` on use the absorbed form.
  std::vector<float> Run(std::span<const int32_t> tokens, int32_t absorbed_from);
  // On a CPU: from now on steps leave the residual streams behind these layers in taps(), [rows, H]
  // each.
  void TapBehind(std::vector<int32_t> layers) { tap_layers_ = std::move(layers); }
  const std::vector<std::vector<float>>& taps() const { return taps_; }
  // Of replicas that share experts: the tokens of each in the next steps, which may be none.
  void TellRows(std::vector<int64_t> of_replicas) { group_rows_ = std::move(of_replicas); }
  // As above with `padding` more sequences in the same step, whose logits are dropped.
  std::vector<float> RunAmong(std::span<const int32_t> tokens, int32_t absorbed_from, int padding);

 private:
  K2Model& model_;
  Buffer memory_;
  std::vector<KvLayerView> cache_;
  std::vector<int32_t> blocks_;
  int64_t spare_block_ = 0;
  int32_t position_ = 0;
  Arena arena_;
  Buffer logits_;  // of the step with the most rows so far
  std::vector<int64_t> group_rows_;
  std::vector<int32_t> tap_layers_;
  std::vector<std::vector<float>> taps_;
};

}  // namespace baltoro::test
