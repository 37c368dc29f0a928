#include <algorithm>

#include "base/check.h"
#include "base/log.h"
#include "model/k2_step.h"

// A step of the model: what a batch brings, where it lies, and whether the step is recorded.

namespace baltoro {
namespace {

// A step of one token a sequence, all of whose logits are wanted.
bool IsDecode(const ForwardBatch& batch) {
  if (batch.sequences.size() != batch.tokens.size() || !batch.override_rows.empty()) return false;
  if (batch.logits_rows.size() != batch.tokens.size()) return false;
  return std::ranges::all_of(batch.sequences, [](const AttentionSequence& s) {
    return s.query_count == 1 && s.first_position >= s.absorbed_from;
  });
}

}  // namespace

OpContext K2Model::Scratch(OrderedRows* ordered) {
  op_scratch_.Reset();
  return {.pool = pool_,
          .scratch = &op_scratch_,
          .staging = &staging_,
          .stream = ops_.stream,
          .rounded = rounded_.codes != nullptr ? &rounded_ : nullptr,
          .ordered = ordered};
}

// Whether norms are read by products that round them: on a GPU, where it costs launches.
bool K2Model::TakesRounded() const {
  if (ops_.memory->kind() == DeviceKind::kCpu || config_.hidden % 128 != 0) return false;
  return std::ranges::any_of(weights_.layers, [](const LayerWeights& layer) {
    return layer.qkv_a.form == WeightForm::kFp8Block && layer.qkv_a.quantise_input;
  });
}

// Whether a norm is read by an expert bank that wants a second copy. Where the norm writes codes it
// writes none. Banks of all layers are alike.
bool K2Model::TakesOrdered(const Activations& a) const {
  if (ops_.bank_reads_ordered == nullptr || TakesRounded()) return false;
  const auto layer = std::ranges::find_if(
      weights_.layers, [](const LayerWeights& l) { return l.experts_gate_up.n > 0; });
  return layer != weights_.layers.end() && ops_.bank_reads_ordered(BankArgs(*layer, a));
}

DType K2Model::PartType(int64_t tokens) const {
  const int64_t least = ops_.rounded_part_rows_min;
  const bool rounded = (share_.layout.tensor > 1 || parts_as_of_ranks_) && least > 0 &&
                       tokens >= least &&
                       (ranks_ == nullptr || ranks_->ops().takes_rounded_parts());
  return rounded ? DType::kBf16 : DType::kF32;
}

K2Model::Activations K2Model::Allocate(int64_t tokens, int64_t logits_rows, Arena& arena) const {
  const auto take_rows = [&](DType type, int64_t rows, int64_t width) {
    void* data = arena.Allocate(static_cast<size_t>(rows * width * SizeOf(type)));
    return TensorView(data, type, {rows, width});
  };
  const auto take = [&](DType type, int64_t width) { return take_rows(type, tokens, width); };
  int64_t inter = 0;
  for (const LayerWeights& layer : weights_.layers) inter = std::max(inter, layer.mlp.down.k);
  Activations a;
  a.tokens = tokens;
  a.residual = take(DType::kF32, config_.hidden);
  // Room for f32 in any case: no step needs more than one of more rows.
  a.delta = take(DType::kF32, config_.hidden);
  a.delta = TensorView(a.delta.data, PartType(tokens), {tokens, config_.hidden});
  a.normed = take(ops_.act, config_.hidden);
  if (JoinsMoe() && tokens <= JoinedNorm::kRowsMax) {
    a.unscaled = take(ops_.act, config_.hidden);
    a.squares = take(DType::kF32, JoinedNorm::kParts);
  }
  if (TakesRounded()) {
    a.codes = take(DType::kU8, config_.hidden);
    a.code_scales = take(DType::kF32, config_.hidden / 128);
  }
  a.qkv_a = take(ops_.act, config_.q_lora + config_.cache_width());
  a.q = take(ops_.act, heads_ * config_.head_dim());
  a.attention = take(ops_.act, heads_ * config_.value);
  if (share_.layout.decode_context > 1) {
    a.group_q = take(ops_.act, group_heads_ * config_.head_dim());
    a.group_attention = take(ops_.act, group_heads_ * config_.value);
    a.lse = take(DType::kF32, group_heads_);
  }
  if (share_.layout.tensor > 1) {
    a.part_logits = take_rows(DType::kF32, logits_rows, share_.vocab(config_).size());
  }
  a.gate_up = take(ops_.act, 2 * inter).data;
  a.gated = take(ops_.act, inter).data;
  a.router = take(DType::kF32, config_.experts);
  a.ids = take(DType::kI32, config_.router.top_k);
  a.weights = take(DType::kF32, config_.router.top_k);
  a.last_residual = take_rows(DType::kF32, logits_rows, config_.hidden);
  a.last_delta = take_rows(DType::kF32, logits_rows, config_.hidden);
  if (TakesOrdered(a)) a.ordered = take(ops_.act, config_.hidden);
  return a;
}

void K2Model::Forward(const ForwardBatch& batch,
                      std::span<const KvLayerView> cache,
                      TensorView logits,
                      Arena& arena) {
  BT_CHECK(cache.size() == all_layers_.size());
  Run(batch, all_layers_, cache, logits, arena);
}

void K2Model::Run(const ForwardBatch& batch,
                  std::span<const int32_t> layers,
                  std::span<const KvLayerView> cache,
                  TensorView logits,
                  Arena& arena) {
  const auto tokens = static_cast<int64_t>(batch.tokens.size());
  BT_CHECK(batch.positions.size() == batch.tokens.size());
  BT_CHECK(batch.slots.size() == batch.tokens.size());
  BT_CHECK(logits.dim(0) == static_cast<int64_t>(batch.logits_rows.size()));
  if (tokens == 0) return;
  const auto rows = static_cast<int64_t>(batch.logits_rows.size());
  const bool repeats =
      graphs_ && others().recordable() && layers.size() == all_layers_.size() && IsDecode(batch);
  // Room for the longest sequence that can come: where things lie must not change with lengths.
  constexpr int64_t kBlock = KvLayerView::kBlockTokens;
  const int64_t blocks_max = repeats ? (rope_table_.positions + kBlock - 1) / kBlock : 0;
  const Inputs in = Bring(batch, cache[0].form, blocks_max, arena);
  const Activations a = Allocate(tokens, rows, arena);
  const auto compute = [&] {
    rounded_ = {.codes = a.codes.data,
                .scales = static_cast<float*>(a.code_scales.data),
                .width = config_.hidden};
    Compute(in, layers, cache, a, logits);
    rounded_ = {};
  };
  if (!repeats) return compute();
  // Once sizes are recorded ahead, no others are: that would take memory while steps run.
  recorded_ahead_ = recorded_ahead_ || mode_ == StepMode::kRecord;
  if (mode_ == StepMode::kRun && recorded_ahead_ &&
      !graphs_->contains({batch.tokens.size(), logits.data})) {
    return compute();
  }
  const auto [recorded, is_first] = graphs_->try_emplace({batch.tokens.size(), logits.data});
  std::unique_ptr<OpGraph>& graph = recorded->second.graph;
  // The first step of a shape makes what operations keep for it, which cannot be recorded.
  if (!is_first && graph == nullptr) graph = ops_.capture(Scratch(), compute);
  if (mode_ == StepMode::kRecord) return;
  if (graph == nullptr) return compute();
  graph->Launch(Scratch());
}

K2Model::Inputs K2Model::Bring(const ForwardBatch& batch,
                               KvForm kv,
                               int64_t blocks_max,
                               Arena& arena) {
  // What the last step uploaded has arrived: its staging can be taken back.
  const Status waited = ops_.wait(Scratch());
  if (!waited.ok()) BT_LOG(Error, "{}", waited.message());
  BT_CHECK(waited.ok());
  staging_.Reset();
  const auto bring = [&]<typename Element>(std::span<const Element> data, DType type) {
    const void* at = ops_.upload(Scratch(), arena, data.data(), data.size_bytes());
    return TensorView(const_cast<void*>(at), type, {static_cast<int64_t>(data.size())});
  };
  const auto tokens = static_cast<int64_t>(batch.tokens.size());
  Inputs in;
  std::span<const int32_t> ids = batch.tokens;
  if (share_.layout.tensor > 1) {
    FindOwnTokens(batch);
    ids = own_tokens_;
  }
  in.tokens = bring(ids, DType::kI32);
  in.positions = bring(batch.positions, DType::kI32);
  in.sequences = batch.sequences;
  std::span<const int64_t> slots = batch.slots;
  if (share_.layout.decode_context > 1) {
    FindOwnKeys(batch);
    in.sequences = own_sequences_;
    slots = own_slots_;
  }
  in.slots = bring(slots, DType::kI64);
  for (const int32_t row : batch.logits_rows) BT_CHECK(row >= 0 && row < tokens);
  in.logits_rows = bring(batch.logits_rows, DType::kI32);
  in.attention_plan = ops_.plan_attention(Scratch(), arena,
                                          {.sequences = in.sequences,
                                           .tokens = tokens,
                                           .form = kv,
                                           .heads = group_heads_,
                                           .nope = static_cast<int32_t>(config_.nope),
                                           .rope = static_cast<int32_t>(config_.rope_dim),
                                           .value = static_cast<int32_t>(config_.value),
                                           .latent = static_cast<int32_t>(config_.kv_lora),
                                           .blocks_max = blocks_max,
                                           .part_blocks = key_part_blocks_});
  if (batch.override_rows.empty()) return in;
  const TensorView& from = batch.embedding_overrides;
  BT_CHECK(from.dtype == DType::kF32 && from.dim(1) == config_.hidden);
  BT_CHECK(from.dim(0) == static_cast<int64_t>(batch.override_rows.size()));
  for (const int32_t row : batch.override_rows) BT_CHECK(row >= 0 && row < tokens);
  in.override_rows = bring(batch.override_rows, DType::kI32);
  in.overrides = from;
  in.overrides.data = const_cast<void*>(ops_.upload(
      Scratch(), arena, from.data, static_cast<size_t>(from.num_elements()) * sizeof(float)));
  return in;
}

void K2Model::FindOwnKeys(const ForwardBatch& batch) {
  constexpr int64_t kBlock = KvLayerView::kBlockTokens;
  const auto own = [&](int64_t block, int64_t& local) {
    const BlockPlace place = PlaceOfBlock(share_.layout, block);
    local = place.block;
    return place.context == share_.place.context(share_.layout);
  };
  own_slots_.clear();
  for (const int64_t slot : batch.slots) {
    int64_t block;
    own_slots_.push_back(slot >= 0 && own(slot / kBlock, block) ? block * kBlock + slot % kBlock
                                                                : -1);
  }
  own_blocks_.clear();
  own_positions_.clear();
  own_sequences_.assign(batch.sequences.begin(), batch.sequences.end());
  std::vector<size_t> begins;
  for (AttentionSequence& sequence : own_sequences_) {
    begins.push_back(own_blocks_.size());
    int32_t keys = 0;
    for (int64_t b = 0; b * kBlock < sequence.key_count; ++b) {
      int64_t block;
      if (!own(sequence.blocks[b], block)) continue;
      own_blocks_.push_back(static_cast<int32_t>(block));
      own_positions_.push_back(sequence.block_positions.empty() ? static_cast<int32_t>(b * kBlock)
                                                                : sequence.block_positions[b]);
      keys += static_cast<int32_t>(std::min(kBlock, sequence.key_count - b * kBlock));
    }
    sequence.key_count = keys;
  }
  begins.push_back(own_blocks_.size());
  for (size_t i = 0; i < own_sequences_.size(); ++i) {
    const size_t count = begins[i + 1] - begins[i];
    own_sequences_[i].blocks = std::span<const int32_t>(own_blocks_).subspan(begins[i], count);
    own_sequences_[i].block_positions =
        std::span<const int32_t>(own_positions_).subspan(begins[i], count);
  }
}

void K2Model::FindOwnTokens(const ForwardBatch& batch) {
  const IndexRange vocab = share_.vocab(config_);
  own_tokens_.clear();
  for (const int32_t token : batch.tokens) {
    const bool own = token >= vocab.begin && token < vocab.end;
    own_tokens_.push_back(own ? static_cast<int32_t>(token - vocab.begin) : -1);
  }
}

}  // namespace baltoro
