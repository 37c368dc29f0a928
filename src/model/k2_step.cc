#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "base/log.h"
#include "model/k2_step.h"

// A step of the model: what a batch brings, where it lies, and whether the step is recorded.

namespace baltoro {
namespace {

// A step of as many tokens in each sequence, few: one, or drafts behind one.
bool IsDecode(const ForwardBatch& batch) {
  const size_t tokens = batch.positions.size();
  if (batch.sequences.empty() || !batch.override_rows.empty()) return false;
  const int32_t each = batch.sequences[0].query_count;
  if (each < 1 || each > K2Model::kRecordedRowsMax) return false;
  if (batch.sequences.size() * static_cast<size_t>(each) != tokens) return false;
  return std::ranges::all_of(batch.sequences, [each](const AttentionSequence& s) {
    return s.query_count == each && s.first_position >= s.absorbed_from;
  });
}

std::vector<AttentionSequence> RowsOf(std::span<const AttentionSequence> sequences) {
  std::vector<AttentionSequence> rows;
  for (const AttentionSequence& sequence : sequences) {
    for (int32_t i = 0; i < sequence.query_count; ++i) {
      AttentionSequence row = sequence;
      row.query_begin += i;
      row.query_count = 1;
      row.first_position += i;
      row.key_count = std::min(row.key_count, row.first_position + 1);
      rows.push_back(row);
    }
  }
  return rows;
}

}  // namespace

OpContext K2Model::Scratch() {
  op_scratch_.Reset();
  return {.pool = pool_, .scratch = &op_scratch_, .staging = &staging_, .rank = ops_.rank};
}

StepShape K2Model::ShapeOfStep(int64_t tokens, int64_t logits_rows) {
  const CacheWidths widths = cache_widths();
  StepShape shape{.tokens = tokens,
                  .logits_rows = logits_rows,
                  .hidden = config_.hidden,
                  .q_lora = config_.q_lora,
                  .heads = heads_,
                  .group_heads = group_heads_,
                  .nope = static_cast<int32_t>(config_.nope),
                  .rope = static_cast<int32_t>(widths.rope),
                  .value = static_cast<int32_t>(config_.value),
                  .latent = static_cast<int32_t>(widths.latent),
                  .vocab = share_.head_vocab(config_).size(),
                  .num_experts = config_.experts,
                  .top_k = config_.router.top_k,
                  .ranks = &others(),
                  .tensor_ranks = share_.layout.tensor,
                  .context_ranks = share_.layout.decode_context,
                  .rounds_parts = (share_.layout.tensor > 1 || parts_as_of_ranks_) &&
                                  (ranks_ == nullptr || ranks_->ops().takes_rounded_parts()),
                  .fp8_dispatch = share_.layout.fp8_dispatch};
  if (config_.draft) {
    shape.feature_parts = static_cast<int32_t>(config_.draft->tap_layers.size());
    shape.head_width = static_cast<int32_t>(config_.draft->head_width);
    shape.key_heads = share_.key_heads(config_);
  }
  for (const LayerWeights& layer : weights_.layers) {
    shape.intermediate = std::max(shape.intermediate, layer.mlp.down.k);
    shape.rounds_norms = shape.rounds_norms ||
                         (layer.qkv_a.form == WeightForm::kFp8Block && layer.qkv_a.quantise_input);
  }
  return shape;
}

void K2Model::Forward(const ForwardBatch& batch,
                      std::span<const KvLayerView> cache,
                      TensorView logits,
                      Arena& arena) {
  BT_CHECK(cache.size() == all_layers_.size());
  const auto has_rows = [](int64_t rows) { return rows > 0; };
  const bool any = !batch.positions.empty() || std::ranges::any_of(batch.group_rows, has_rows);
  if (balancer_ != nullptr && mode_ == StepMode::kRun && any) balancer_->BeginStep();
  Run(batch, all_layers_, cache, logits, arena);
}

void K2Model::Run(const ForwardBatch& batch,
                  std::span<const int32_t> layers,
                  std::span<const KvLayerView> cache,
                  TensorView logits,
                  Arena& arena) {
  const auto tokens = static_cast<int64_t>(batch.positions.size());
  BT_CHECK(batch.picked_tokens ? batch.tokens.empty() : std::ssize(batch.tokens) == tokens);
  BT_CHECK(std::ssize(batch.slots) == tokens);
  BT_CHECK(batch.taps.size() == batch.tap_layers.size());
  BT_CHECK(logits.dim(0) == static_cast<int64_t>(batch.logits_rows.size()));
  const auto replicas = static_cast<size_t>(share_.layout.data);
  BT_CHECK(batch.group_rows.size() == (replicas > 1 ? replicas : 0));
  BT_CHECK(replicas == 1 || batch.group_rows[static_cast<size_t>(share_.place.data)] == tokens);
  if (tokens == 0) return ComputeForOthers(batch, layers, arena);
  const auto rows = static_cast<int64_t>(batch.logits_rows.size());
  StepShape shape = ShapeOfStep(tokens, rows);
  shape.exchange = exchange();
  shape.group_rows = batch.group_rows;
  const bool decodes = IsDecode(batch);
  const auto longest = [&] {
    return std::ranges::max_element(batch.sequences, {}, &AttentionSequence::key_count)->key_count;
  };
  if (decodes && std::ssize(batch.sequences) < tokens && RowsAlone(tokens, longest(), cache[0])) {
    const std::vector<AttentionSequence> alone = RowsOf(batch.sequences);
    ForwardBatch split = batch;
    split.sequences = alone;
    return Run(split, layers, cache, logits, arena);
  }
  // What is recorded exchanges as many rows with each replica; those of a prompt would be others.
  const bool alike =
      std::ranges::all_of(batch.group_rows, [tokens](int64_t count) { return count == tokens; });
  const bool repeats =
      graphs_ && others().recordable() && layers.size() == all_layers_.size() && decodes && alike;
  // Room for the longest sequence that can come: where things lie must not change with lengths.
  constexpr int64_t kBlock = KvLayerView::kBlockTokens;
  const int64_t blocks_max = repeats ? (rope_table_.positions + kBlock - 1) / kBlock : 0;
  const Inputs in = Bring(batch, cache[0].form, blocks_max, arena);
  if (shape.exchange != nullptr) shape.slots = in.row_slots;
  const auto with_experts = std::ranges::find_if(
      weights_.layers, [](const LayerWeights& layer) { return layer.experts_gate_up.n > 0; });
  ExpertsHalfArgs experts;
  if (with_experts != weights_.layers.end()) {
    experts = ExpertsOf(static_cast<int32_t>(with_experts - weights_.layers.begin()));
    shape.experts = &experts;
  }
  const std::unique_ptr<HiddenState> hidden = ops_.begin(Scratch(), arena, shape);
  if (tell_) hidden->Explain(tell_);
  const auto compute = [&] { Compute(in, layers, cache, *hidden, logits); };
  if (!repeats || tell_) return compute();  // a recorded step would tell nothing
  // Once sizes are recorded ahead, no others are: that would take memory while steps run.
  recorded_ahead_ = recorded_ahead_ || mode_ == StepMode::kRecord;
  GraphKey key{.tokens = batch.positions.size(),
               .sequences = batch.sequences.size(),
               .rows = batch.logits_rows.size(),
               .logits = logits.data,
               .picked_tokens = batch.picked_tokens.data,
               .taps = {}};
  for (size_t i = 0; i < batch.taps.size(); ++i) {
    key.taps.emplace_back(batch.tap_layers[i], batch.taps[i].data);
  }
  if (mode_ == StepMode::kRun && recorded_ahead_ && !graphs_->contains(key)) return compute();
  const auto [recorded, is_first] = graphs_->try_emplace(key);
  std::unique_ptr<OpGraph>& graph = recorded->second.graph;
  // The first step of a shape makes what operations keep for it, which cannot be recorded.
  if (!is_first && graph == nullptr) graph = ops_.capture(Scratch(), compute);
  if (mode_ == StepMode::kRecord) return;
  // What was recorded exchanges with others.
  if (graph == nullptr || mode_ == StepMode::kAlone) return compute();
  graph->Launch(Scratch());
}

void K2Model::ComputeForOthers(const ForwardBatch& batch,
                               std::span<const int32_t> layers,
                               Arena& arena) {
  if (std::ranges::all_of(batch.group_rows, [](int64_t rows) { return rows == 0; })) return;
  WaitForLastStep();  // nobody reads what this step comes to, and so nobody else would
  StepShape shape = ShapeOfStep(0, 0);
  shape.exchange = exchange();
  shape.group_rows = batch.group_rows;
  const std::unique_ptr<HiddenState> hidden = ops_.begin(Scratch(), arena, shape);
  const auto first = static_cast<int32_t>(share_.layers(config_).begin);
  for (const int32_t layer : layers) {
    if (config_.is_moe(first + layer)) hidden->ExpertsHalf(ExpertsOf(layer), {});
  }
}

bool K2Model::RowsAlone(int64_t rows, int64_t keys, const KvLayerView& cache) {
  if (ops_.rows_alone == nullptr || config_.has_heads()) return false;
  return ops_.rows_alone(ShapeOfStep(rows, rows), cache.form, keys);
}

// What it uploaded has arrived: its staging can be taken back.
void K2Model::WaitForLastStep() {
  const Status waited = ops_.wait(Scratch());
  if (!waited.ok()) BT_LOG(Error, "{}", waited.message());
  BT_CHECK(waited.ok());
  staging_.Reset();
}

K2Model::Inputs K2Model::Bring(const ForwardBatch& batch,
                               KvForm kv,
                               int64_t blocks_max,
                               Arena& arena) {
  if (!batch.follows) WaitForLastStep();
  const auto tokens = static_cast<int64_t>(batch.positions.size());
  Inputs in;
  brought_.clear();
  const auto add = [&]<typename Element>(std::span<const Element> data, DType type,
                                         TensorView& to) {
    to = TensorView(nullptr, type, {static_cast<int64_t>(data.size())});
    brought_.push_back({.to = &to, .from = data.data(), .bytes = data.size_bytes()});
  };
  if (batch.picked_tokens) {
    BT_CHECK(batch.picked_tokens.dim(0) == tokens);
    in.tokens = batch.picked_tokens;
  } else {
    add(batch.tokens, DType::kI32, in.tokens);
  }
  in.picks = batch.picks;
  in.names = batch.names;
  add(batch.positions, DType::kI32, in.positions);
  in.sequences = batch.sequences;
  in.tap_layers = batch.tap_layers;
  in.taps = batch.taps;
  BT_CHECK(config_.draft.has_value() == !batch.features.empty());
  if (config_.draft) {
    BT_CHECK(std::ssize(batch.feature_rows) == tokens);
    in.features = batch.features;
    in.own_features = batch.own_features;
    add(batch.feature_rows, DType::kI32, in.feature_rows);
  }
  std::span<const int64_t> slots = batch.slots;
  if (share_.layout.decode_context > 1) {
    FindOwnKeys(batch);
    in.sequences = own_sequences_;
    slots = own_slots_;
  }
  add(slots, DType::kI64, in.slots);
  // Where keys are shared, a row whose slot is another rank's is no row that nobody reads.
  const bool apart = share_.layout.data > 1 && share_.layout.decode_context > 1;
  if (apart) add(batch.slots, DType::kI64, in.row_slots);
  for (const int32_t row : batch.logits_rows) BT_CHECK(row >= 0 && row < tokens);
  add(batch.logits_rows, DType::kI32, in.logits_rows);
  for (const int32_t row : batch.override_rows) BT_CHECK(row >= 0 && row < tokens);
  if (!batch.override_rows.empty()) add(batch.override_rows, DType::kI32, in.override_rows);
  BringTogether(arena);
  if (!apart) in.row_slots = in.slots;
  const bool has_heads = config_.has_heads();
  const CacheWidths widths = cache_widths();
  in.attention_plan = ops_.plan_attention(
      Scratch(), arena,
      {.sequences = in.sequences,
       .tokens = tokens,
       .form = kv,
       .heads = group_heads_,
       .nope = static_cast<int32_t>(config_.nope),
       .rope = static_cast<int32_t>(widths.rope),
       .value = static_cast<int32_t>(config_.value),
       .latent = static_cast<int32_t>(widths.latent),
       .head_width = has_heads ? static_cast<int32_t>(config_.draft->head_width) : 0,
       .key_heads = share_.key_heads(config_),
       .gives_positions = share_.layout.decode_context > 1,
       .blocks_max = blocks_max,
       .part_blocks = key_part_blocks_});
  int64_t overridden = 0;
  for (const TensorView& piece : batch.embedding_overrides) {
    BT_CHECK(piece.dtype == DType::kF32 && piece.dim(1) == config_.hidden);
    overridden += piece.dim(0);
  }
  BT_CHECK(overridden == std::ssize(batch.override_rows));
  in.overrides = batch.embedding_overrides;
  return in;
}

// In one copy: each costs a step more than its bytes.
void K2Model::BringTogether(Arena& arena) {
  constexpr size_t kAlignment = 16;
  const auto room = [](size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; };
  size_t bytes = 0;
  for (const Brought& one : brought_) bytes += room(one.bytes);
  together_.resize(bytes);
  size_t at = 0;
  for (const Brought& one : brought_) {
    if (one.bytes > 0) std::memcpy(&together_[at], one.from, one.bytes);
    at += room(one.bytes);
  }
  const void* const brought = ops_.upload(Scratch(), arena, together_.data(), bytes);
  at = 0;
  for (const Brought& one : brought_) {
    one.to->data = static_cast<std::byte*>(const_cast<void*>(brought)) + at;
    at += room(one.bytes);
  }
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

}  // namespace baltoro
