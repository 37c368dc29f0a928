#pragma once

// Operations of a model whose logits are known: what may follow depends on the last token alone, by
// a table. All around them (worker, model, sampling) is the product's, and a step costs next to
// nothing.

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "base/check.h"
#include "ops/ops.h"

namespace baltoro::test {

// [vocab, vocab]: row t has the logits behind token t.
using LogitsTable = std::vector<std::vector<float>>;

class KnownLogits final : public HiddenState {
 public:
  explicit KnownLogits(std::shared_ptr<const LogitsTable> table) : table_(std::move(table)) {}

  void Embed(TensorView, TensorView ids, int64_t) override {
    const auto* const first = ids.as<int32_t>();
    tokens_.assign(first, first + ids.num_elements());
  }
  void AttentionHalf(const AttentionHalfArgs&, const NextHalf&) override {}
  void DenseHalf(const DenseHalfArgs&, const NextHalf&) override {}
  void Logits(const LogitsArgs& args) override {
    for (int64_t i = 0; i < args.logits.dim(0); ++i) {
      const auto row = static_cast<size_t>(args.rows.as<int32_t>()[i]);
      const std::vector<float>& known = (*table_)[static_cast<size_t>(tokens_[row])];
      std::ranges::copy(known, args.logits.row<float>(i));
    }
  }

  // Of models that this is not.
  void Override(TensorView, TensorView) override { BT_CHECK(false); }
  void TakeFeatures(const FeatureArgs&) override { BT_CHECK(false); }
  void HeadsAttentionHalf(const HeadsAttentionArgs&, const NextHalf&) override { BT_CHECK(false); }
  void ExpertsHalf(const ExpertsHalfArgs&, const NextHalf&) override { BT_CHECK(false); }
  TensorView Residual() override {
    BT_CHECK(false);
    return {};
  }
  void Tap(TensorView) override { BT_CHECK(false); }

 private:
  const std::shared_ptr<const LogitsTable> table_;
  std::vector<int32_t> tokens_;  // of the step
};

// For a model of one layer.
inline OpsTable OpsOfKnownLogits(std::shared_ptr<const LogitsTable> table) {
  OpsTable ops = CpuOps(DType::kBf16);
  ops.begin = [table = std::move(table)](const OpContext&, Arena&, const StepShape&) {
    return std::unique_ptr<HiddenState>(std::make_unique<KnownLogits>(table));
  };
  return ops;
}

}  // namespace baltoro::test
