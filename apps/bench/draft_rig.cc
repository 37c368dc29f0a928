#include "bench/draft_rig.h"

#include <algorithm>
#include <utility>

#include "model/draft_config.h"
#include "model/k2_model.h"
#include "weights/dummy_source.h"

namespace baltoro {
namespace {

constexpr int64_t kBlock = KvLayerView::kBlockTokens;

}  // namespace

K2Config DraftFor(const K2Config& target) {
  K2Config draft = target;
  draft.layers = draft.dense_layers = 1;
  draft.experts = draft.shared_experts = 0;
  // Of a model that was cut to few layers, the last.
  constexpr int32_t kUsualMin = 8;
  const std::vector<int32_t> few = {target.layers - 1};
  draft.draft = DraftShape{.tap_layers = target.layers < kUsualMin ? few : UsualTaps(target.layers),
                           .vocab = target.vocab};
  return draft;
}

Result<std::unique_ptr<DraftRig>> DraftRig::Create(const K2Config& target,
                                                   const Sizes& sizes,
                                                   const OpsTable& ops,
                                                   ThreadPool* pool) {
  std::unique_ptr<DraftRig> rig(new DraftRig);
  rig->config_ = DraftFor(target);
  rig->drafts_ = sizes.drafts;
  const K2Config& config = rig->config_;
  DummySource source(sizes.seed);
  BT_ASSIGN_OR_RETURN(const WeightPlan plan, PlanWeights(config, source, ops, {}));
  rig->needs_ = NeedsOf(plan, ops);
  K2LoadOptions load;
  load.positions_max = sizes.positions_max;
  load.quiet = true;
  BT_ASSIGN_OR_RETURN(std::unique_ptr<K2Model> model,
                      K2Model::Load(config, source, ops, pool, load));
  if (sizes.graphs) model->UseGraphs();
  const KvForm form = PlainKvForm(ops.act);
  const auto bytes = static_cast<size_t>(sizes.blocks * kBlock * KvBytesPerToken(config, form, 1));
  BT_ASSIGN_OR_RETURN(rig->keys_, Buffer::Create(bytes, "keys of a draft", *ops.memory));
  const std::vector<char> zeros(std::min(bytes, size_t{64} << 20));
  for (size_t at = 0; at < bytes; at += zeros.size()) {
    BT_RETURN_IF_ERROR(ops.memory->CopyIn(static_cast<char*>(rig->keys_.data()) + at, zeros.data(),
                                          std::min(zeros.size(), bytes - at)));
  }
  for (size_t i = 0; i < config.draft->tap_layers.size(); ++i) {
    const auto tap = static_cast<size_t>(sizes.rows_max * config.hidden) * sizeof(float);
    BT_ASSIGN_OR_RETURN(Buffer taken, Buffer::Create(tap, "taps", *ops.memory));
    rig->taps_.push_back(std::move(taken));
  }
  BT_ASSIGN_OR_RETURN(
      rig->model_, DraftModel::Create(std::move(model),
                                      {.tokens = {},
                                       .cache = {.data = rig->keys_.data(),
                                                 .form = form,
                                                 .num_blocks = sizes.blocks,
                                                 .latent = config.kv_lora,
                                                 .rope = config.rope_dim},
                                       .tokens_max = static_cast<int32_t>(sizes.rows_max),
                                       .sequences_max = static_cast<int32_t>(sizes.sequences_max),
                                       .drafts_max = sizes.drafts},
                                      pool));
  return rig;
}

std::vector<TensorView> DraftRig::Taps(int64_t rows) const {
  std::vector<TensorView> taps;
  for (const Buffer& tap : taps_) {
    taps.emplace_back(const_cast<void*>(tap.data()), DType::kF32,
                      std::initializer_list<int64_t>{rows, config_.hidden});
  }
  return taps;
}

// The projection of the taps is read by the first pass alone.
StepNeeds DraftRig::Needs(int64_t batch, int64_t context) const {
  StepNeeds all;
  for (int32_t pass = 0; pass < drafts_; ++pass) {
    const int64_t rows = pass == 0 ? 1 + drafts_ : 1;
    WeightNeeds weights = needs_;
    if (pass > 0) {
      weights.fixed_bytes -= needs_.projection_bytes;
      weights.fixed_parameters -= needs_.projection_parameters;
    }
    const StepNeeds one = DecodeNeeds(config_, RankShare(), weights, PlainKvForm(DType::kBf16),
                                      batch, rows, context, {});
    all.bytes += one.bytes;
    all.flops += one.flops;
  }
  return all;
}

}  // namespace baltoro
