#pragma once

// A model with a cache and several sequences in it, run in steps of any mixture of them.

#include <cstdint>
#include <span>
#include <vector>

#include "device/buffer.h"
#include "model/k2_model.h"

namespace baltoro::test {

class SequenceRunner {
 public:
  struct Part {
    int32_t sequence = 0;
    std::vector<int32_t> tokens;  // that come next
    int32_t absorbed_from = 0;    // position
  };
  struct Options {
    KvForm kv = KvForm::kBf16;
    int32_t sequences = 1;
    int64_t tokens_each = 64;  // at most, of a sequence
    int64_t rows_max = 64;     // tokens of a step at most
  };

  // The model reserves its scratch: a step allocates nothing afterwards.
  SequenceRunner(K2Model& model, const Options& options);

  // A sequence without tokens begins with the first `tokens` of another, whole blocks: they are
  // shared, as a prefix that is known.
  void ShareBegin(int32_t sequence, int32_t from, int32_t tokens);
  // All sequences are without tokens again. Steps that the model has recorded stay good: they are
  // of this runner's memory.
  void Forget();
  // Logits of all tokens of the step, part after part, [tokens, vocab].
  std::vector<float> Step(std::span<const Part> parts);
  // From now on each step is tapped behind these layers.
  void TapBehind(std::vector<int32_t> layers);
  // Of the last step, [tokens, H] for each layer.
  std::vector<std::vector<float>> Taps() const;

 private:
  struct Sequence {
    std::vector<int32_t> own, blocks;
    int32_t length = 0;
  };

  K2Model& model_;
  Buffer memory_, logits_, tapped_;
  int64_t rows_max_;
  std::vector<int32_t> tap_layers_;
  std::vector<TensorView> taps_;  // of the last step
  Arena arena_;
  std::vector<KvLayerView> cache_;
  std::vector<Sequence> sequences_;
};

}  // namespace baltoro::test
