#include "model/k2_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <numeric>
#include <optional>

#include "base/check.h"
#include "base/log.h"
#include "model/kv_scales.h"
#include "ops/thread_pool.h"

namespace baltoro {
namespace {

// Disks answer faster when several reads are waiting.
constexpr int kLoadThreadsMin = 4;

// [T, width] seen as [T, heads, width / heads].
TensorView Heads(const TensorView& x, int64_t heads) {
  TensorView view = x;
  view.rank = 3;
  view.shape = {x.dim(0), heads, x.dim(1) / heads};
  view.stride = {x.stride[0], x.dim(1) / heads, 1};
  return view;
}

// The forms of a layer's matrices; those that it lacks are left out, so that kinds of layers
// differ.
std::vector<WeightForm> FormsOf(const LayerWeights& layer) {
  std::vector<WeightForm> forms;
  for (const PackedMatrix* matrix :
       {&layer.qkv_a, &layer.kv_a, &layer.q, &layer.o, &layer.mlp.gate_up, &layer.mlp.down,
        &layer.router, &layer.experts_gate_up, &layer.experts_down}) {
    if (matrix->n > 0) forms.push_back(matrix->form);
  }
  return forms;
}

// A step of one token a sequence, all of whose logits are wanted.
bool IsDecode(const ForwardBatch& batch) {
  if (batch.sequences.size() != batch.tokens.size() || !batch.override_rows.empty()) return false;
  if (batch.logits_rows.size() != batch.tokens.size()) return false;
  return std::ranges::all_of(batch.sequences, [](const AttentionSequence& s) {
    return s.query_count == 1 && s.first_position >= s.absorbed_from;
  });
}

void LogUnused(const WeightSource& source, const K2Config& config) {
  for (const auto& [kind, count] : source.UnusedKinds(config.layers)) {
    BT_LOG(Warning, "{}: {} tensors {} are not used", source.description(), count, kind);
  }
}

}  // namespace

// Memory of one step, shared by all layers. T tokens.
struct K2Model::Activations {
  int64_t tokens = 0;
  TensorView residual;                   // [T, H] f32
  TensorView delta;                      // [T, H] f32: what a sublayer adds to the residual
  TensorView normed;                     // [T, H] act
  TensorView qkv_a;                      // [T, q_lora + R + P] act
  TensorView q;                          // [T, h (N + P)] act
  TensorView attention;                  // [T, h V] act
  void* gate_up;                         // [T, 2 I] act, of the widest MLP
  void* gated;                           // [T, I] act
  TensorView router;                     // [T, E] f32
  TensorView ids;                        // [T, k] i32
  TensorView weights;                    // [T, k] f32
  TensorView last_residual, last_delta;  // [logits rows, H] f32
  // Of ranks. g: heads of the decode-context group.
  TensorView group_q;          // [T, g (N + P)] act
  TensorView group_attention;  // [T, g V] act
  TensorView lse;              // [T, g] f32
  TensorView part_logits;      // [logits rows, this rank's vocabulary] f32
};

struct K2Model::Inputs {
  TensorView tokens, positions, slots;  // [T]
  TensorView logits_rows;               // [rows]
  TensorView override_rows, overrides;  // [M], [M, H]
  TensorView own_tokens, own_rows;      // where the vocabulary is shared
  std::span<const AttentionSequence> sequences;
  const void* attention_plan = nullptr;
};

K2Model::K2Model(const K2Config& config, const OpsTable& ops, ThreadPool* pool, ModelRanks* ranks)
    : config_(config),
      ops_(ops),
      pool_(pool),
      ranks_(ranks),
      share_(ranks == nullptr ? RankShare() : ranks->share()),
      heads_(static_cast<int32_t>(share_.heads(config).size())),
      group_heads_(static_cast<int32_t>(share_.group_heads(config).size())),
      all_layers_(static_cast<size_t>(share_.layers(config).size())),
      expert_slots_(share_.expert_slots(config)),
      softmax_scale_(static_cast<float>(SoftmaxScale(config))),
      op_scratch_(*ops.memory),
      staging_(ops.staging == nullptr ? HostMemory() : *ops.staging) {
  std::iota(all_layers_.begin(), all_layers_.end(), 0);
}

Result<std::unique_ptr<K2Model>> K2Model::Load(const K2Config& config,
                                               const std::string& dir,
                                               const OpsTable& ops,
                                               ThreadPool* pool,
                                               const K2LoadOptions& options) {
  BT_ASSIGN_OR_RETURN(const std::unique_ptr<WeightSource> source, OpenWeights(dir, options.choice));
  return Load(config, *source, ops, pool, options);
}

Result<std::unique_ptr<K2Model>> K2Model::Load(const K2Config& config,
                                               WeightSource& source,
                                               const OpsTable& ops,
                                               ThreadPool* pool,
                                               const K2LoadOptions& options) {
  BT_RETURN_IF_ERROR(config.Validate());
  if (options.ranks != nullptr) {
    BT_CHECK(ops.memory->kind() == DeviceKind::kCpu);
    BT_RETURN_IF_ERROR(CheckLayout(options.ranks->share().layout, ShapeOf(config)));
  }
  std::unique_ptr<K2Model> model(new K2Model(config, ops, pool, options.ranks));
  const int threads = std::max(kLoadThreadsMin, pool == nullptr ? 1 : pool->threads());
  BT_ASSIGN_OR_RETURN(WeightPlan plan, PlanWeights(config, source, ops, options.weights));
  if (options.ranks != nullptr) {
    BT_ASSIGN_OR_RETURN(plan, SliceWeights(config, std::move(plan), model->share_));
  }
  if (options.read_kv_scales) {  // a few numbers: what is wrong with them is told at once
    BT_ASSIGN_OR_RETURN(std::vector<float> scales, ReadKvScales(source, config.layers));
    const IndexRange held = model->share_.layers(config);
    if (!scales.empty()) scales = {scales.begin() + held.begin, scales.begin() + held.end};
    model->kv_scales_ = std::move(scales);
  }
  BT_ASSIGN_OR_RETURN(model->weights_, LoadWeights(plan, source, ops, threads, options.progress));
  LogUnused(source, config);
  const int64_t positions =
      options.positions_max > 0 ? options.positions_max : config.positions_max;
  BT_RETURN_IF_ERROR(model->BuildRopeTable(positions));
  return model;
}

Status K2Model::BuildRopeTable(int64_t positions) {
  const std::vector<double> inverse = InverseFrequencies(config_.rope, config_.rope_dim);
  const auto pairs = static_cast<int64_t>(inverse.size());
  const double factor = RopeCosFactor(config_.rope);
  const int64_t entries = positions * pairs;
  const auto bytes = static_cast<size_t>(2 * entries) * sizeof(float);
  BT_ASSIGN_OR_RETURN(Buffer made, Buffer::Create(bytes, "the rotary table"));
  auto* cos = static_cast<float*>(made.data());
  float* sin = cos + entries;

  // Position kNear a + b turns by the angle of kNear a, then by that of b: two short tables instead
  // of a sine for each entry.
  constexpr int64_t kNear = 256;
  std::vector<double> near_cos, near_sin;
  for (int64_t b = 0; b < kNear; ++b) {
    for (const double turn : inverse) {
      near_cos.push_back(std::cos(static_cast<double>(b) * turn));
      near_sin.push_back(std::sin(static_cast<double>(b) * turn));
    }
  }
  for (int64_t begin = 0; begin < positions; begin += kNear) {
    const int64_t end = std::min(positions, begin + kNear);
    for (int64_t j = 0; j < pairs; ++j) {
      const double far_cos = factor * std::cos(static_cast<double>(begin) * inverse[j]);
      const double far_sin = factor * std::sin(static_cast<double>(begin) * inverse[j]);
      for (int64_t position = begin; position < end; ++position) {
        const int64_t near = (position - begin) * pairs + j;
        const int64_t at = position * pairs + j;
        cos[at] = static_cast<float>(far_cos * near_cos[near] - far_sin * near_sin[near]);
        sin[at] = static_cast<float>(far_sin * near_cos[near] + far_cos * near_sin[near]);
      }
    }
  }
  BT_ASSIGN_OR_RETURN(rope_memory_, MoveTo(*ops_.memory, std::move(made), "the rotary table"));
  const auto* table = static_cast<const float*>(rope_memory_.data());
  rope_table_ = {
      .cos = table, .sin = table + entries, .positions = positions, .dim = config_.rope_dim};
  return {};
}

OpContext K2Model::Scratch() {
  op_scratch_.Reset();
  return {.pool = pool_, .scratch = &op_scratch_, .staging = &staging_, .stream = ops_.stream};
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
  a.delta = take(DType::kF32, config_.hidden);
  a.normed = take(ops_.act, config_.hidden);
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
      graphs_ && ranks_ == nullptr && layers.size() == all_layers_.size() && IsDecode(batch);
  // Room for the longest sequence that can come: where things lie must not change with lengths.
  constexpr int64_t kBlock = KvLayerView::kBlockTokens;
  const int64_t blocks_max = repeats ? (rope_table_.positions + kBlock - 1) / kBlock : 0;
  const Inputs in = Bring(batch, cache[0].form, blocks_max, arena);
  const Activations a = Allocate(tokens, rows, arena);
  const auto compute = [&] { Compute(in, layers, cache, a, logits); };
  if (!repeats) return compute();
  const auto [recorded, is_first] = graphs_->try_emplace({batch.tokens.size(), logits.data});
  std::unique_ptr<OpGraph>& graph = recorded->second.graph;
  // The first step of a shape makes what operations keep for it, which cannot be recorded.
  if (!is_first && graph == nullptr) graph = ops_.capture(Scratch(), compute);
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
  in.tokens = bring(batch.tokens, DType::kI32);
  in.positions = bring(batch.positions, DType::kI32);
  if (share_.layout.tensor > 1) {
    const IndexRange vocab = share_.vocab(config_);
    own_tokens_.clear();
    own_rows_.clear();
    for (int64_t i = 0; i < tokens; ++i) {
      if (batch.tokens[i] < vocab.begin || batch.tokens[i] >= vocab.end) continue;
      own_tokens_.push_back(static_cast<int32_t>(batch.tokens[i] - vocab.begin));
      own_rows_.push_back(static_cast<int32_t>(i));
    }
    in.own_tokens = bring(std::span<const int32_t>(own_tokens_), DType::kI32);
    in.own_rows = bring(std::span<const int32_t>(own_rows_), DType::kI32);
  }
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
                                           .blocks_max = blocks_max});
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

void K2Model::Embed(const Inputs& in, const Activations& a) {
  if (share_.layout.tensor == 1) {
    ops_.embed(Scratch(), a.residual, weights_.embedding, in.tokens);
  } else {
    const TensorView found = a.delta.rows(0, in.own_rows.dim(0));
    ops_.clear(Scratch(), a.residual);
    ops_.embed(Scratch(), found, weights_.embedding, in.own_tokens);
    ops_.scatter_rows(Scratch(), a.residual, found, in.own_rows);
    ranks_->Sum(a.residual);
  }
  if (in.override_rows.data != nullptr) {
    ops_.scatter_rows(Scratch(), a.residual, in.overrides, in.override_rows);
  }
}

void K2Model::Compute(const Inputs& in,
                      std::span<const int32_t> layers,
                      std::span<const KvLayerView> cache,
                      const Activations& a,
                      TensorView logits) {
  const auto eps = static_cast<float>(config_.norm_eps);
  if (share_.first_stage()) {
    Embed(in, a);
  } else {
    ranks_->ReceiveFromStageBefore(a.residual);
  }
  const TensorView first_norm = weights_.layers[layers[0]].attention_norm;
  ops_.rms_norm(Scratch(), a.normed, a.residual, first_norm, eps);
  const auto first_layer = static_cast<int32_t>(share_.layers(config_).begin);
  for (size_t i = 0; i < layers.size(); ++i) {
    const LayerWeights& layer = weights_.layers[layers[i]];
    Attention(layer, in, cache[i], a);
    if (ranks_ != nullptr) ranks_->Sum(a.delta);
    ops_.add_rms_norm(Scratch(), a.normed, a.residual, a.delta, layer.mlp_norm, eps);
    if (config_.is_moe(first_layer + layers[i])) {
      Moe(layer, a);
    } else {
      Mlp(layer.mlp, a);
    }
    if (ranks_ != nullptr) ranks_->Sum(a.delta);
    if (i + 1 == layers.size()) break;  // the last sum is made for the rows that are asked for
    const TensorView next_norm = weights_.layers[layers[i + 1]].attention_norm;
    ops_.add_rms_norm(Scratch(), a.normed, a.residual, a.delta, next_norm, eps);
  }
  if (share_.last_stage()) return Logits(in, a, logits);
  auto* sum = a.residual.as<float>();
  const auto* delta = a.delta.as<const float>();
  for (int64_t i = 0; i < a.residual.num_elements(); ++i) sum[i] += delta[i];
  ranks_->SendToNextStage(a.residual);
}

void K2Model::Attention(const LayerWeights& layer,
                        const Inputs& in,
                        const KvLayerView& cache,
                        const Activations& a) {
  const auto eps = static_cast<float>(config_.latent_norm_eps);
  const TensorView latent = a.qkv_a.columns(config_.q_lora, config_.kv_lora);
  const TensorView key = a.qkv_a.columns(config_.q_lora + config_.kv_lora, config_.rope_dim);

  ops_.linear(Scratch(), a.qkv_a.columns(0, layer.qkv_a.n), a.normed, layer.qkv_a);
  if (layer.kv_a.n > 0) {
    const TensorView kv_a = a.qkv_a.columns(config_.q_lora, config_.cache_width());
    ops_.linear(Scratch(), kv_a, a.normed, layer.kv_a);
  }
  const TensorView low = a.qkv_a.columns(0, config_.q_lora);
  if (ops_.attention_inputs != nullptr) {
    ops_.attention_inputs(Scratch(), {.qkv_a = a.qkv_a,
                                      .q_norm = layer.q_norm,
                                      .kv_norm = layer.kv_norm,
                                      .positions = in.positions,
                                      .slots = in.slots,
                                      .rope = rope_table_,
                                      .cache = cache,
                                      .eps = eps});
  } else {
    if (config_.q_lora > 0) ops_.rms_norm(Scratch(), low, low, layer.q_norm, eps);
    // Only the latent is normalised; the shared key is rotated as it is.
    ops_.rms_norm(Scratch(), latent, latent, layer.kv_norm, eps);
    ops_.rope(Scratch(), Heads(key, 1), in.positions, rope_table_);
    ops_.kv_write(Scratch(), cache, latent, key, in.slots);
  }
  ops_.linear(Scratch(), a.q, config_.q_lora > 0 ? low : a.normed, layer.q);

  const TensorView q = Heads(a.q, heads_);
  ops_.rope(Scratch(), q.columns(config_.nope, config_.rope_dim), in.positions, rope_table_);
  const MlaAttentionArgs args{.out = a.attention,
                              .q = q,
                              .cache = cache,
                              .sequences = in.sequences,
                              .plan = in.attention_plan,
                              .kv_b = layer.kv_b,
                              .uk_t = layer.uk_t,
                              .scale = softmax_scale_,
                              .heads = group_heads_,
                              .nope = static_cast<int32_t>(config_.nope),
                              .rope = static_cast<int32_t>(config_.rope_dim),
                              .value = static_cast<int32_t>(config_.value),
                              .latent = static_cast<int32_t>(config_.kv_lora),
                              .lse = {}};
  if (share_.layout.decode_context > 1) {
    AttendTogether(args, a);
  } else {
    ops_.mla_attention(Scratch(), args);
  }
  ops_.linear(Scratch(), a.delta, a.attention, layer.o);
}

// Both forms alike. Queries and results travel, not keys: a query of a head is a third as long as
// its folded form, a result a quarter of a latent one. Long prefills send more than the latents of
// their context would be, but no rank ever holds the keys of others.
void K2Model::AttendTogether(MlaAttentionArgs args, const Activations& a) {
  ranks_->GatherHeads(a.group_q, a.q);
  args.q = Heads(a.group_q, group_heads_);
  args.out = a.group_attention;
  args.lse = a.lse;
  ops_.mla_attention(Scratch(), args);
  ranks_->MergeHeads(a.attention, a.group_attention, a.lse);
}

void K2Model::Mlp(const MlpWeights& mlp, const Activations& a) {
  const TensorView gate_up(a.gate_up, ops_.act, {a.tokens, mlp.gate_up.n});
  const TensorView gated(a.gated, ops_.act, {a.tokens, mlp.down.k});
  ops_.linear(Scratch(), gate_up, a.normed, mlp.gate_up);
  ops_.swiglu(Scratch(), gated, gate_up);
  ops_.linear(Scratch(), a.delta, gated, mlp.down);
}

void K2Model::Moe(const LayerWeights& layer, const Activations& a) {
  // The shared experts see every token; the routed ones add to their output.
  if (config_.shared_experts > 0) {
    Mlp(layer.mlp, a);
  } else {
    ops_.clear(Scratch(), a.delta);
  }
  RouterParams router = config_.router;
  router.group_by_top2 = static_cast<bool>(layer.router_bias);
  if (ops_.router != nullptr) {
    ops_.router(Scratch(), a.ids, a.weights, a.router, a.normed, layer.router, layer.router_bias,
                router);
  } else {
    ops_.linear(Scratch(), a.router, a.normed, layer.router);
    ops_.route(Scratch(), a.ids, a.weights, a.router, layer.router_bias, router);
  }
  ops_.expert_bank(Scratch(), {.out = a.delta,
                               .x = a.normed,
                               .ids = a.ids,
                               .weights = a.weights,
                               .gate_up = layer.experts_gate_up,
                               .down = layer.experts_down,
                               .slot_of = expert_slots_});
}

void K2Model::Logits(const Inputs& in, const Activations& a, TensorView logits) {
  const int64_t rows = in.logits_rows.dim(0);
  if (rows == 0) return;
  BT_CHECK(logits.rank == 2 && logits.dim(1) == config_.vocab && logits.dtype == DType::kF32);
  ops_.gather_rows(Scratch(), a.last_residual, a.residual, in.logits_rows);
  ops_.gather_rows(Scratch(), a.last_delta, a.delta, in.logits_rows);
  const TensorView normed = a.normed.rows(0, rows);
  const auto eps = static_cast<float>(config_.norm_eps);
  ops_.add_rms_norm(Scratch(), normed, a.last_residual, a.last_delta, weights_.final_norm, eps);
  if (share_.layout.tensor == 1) {
    ops_.linear(Scratch(), logits, normed, weights_.lm_head);
    return;
  }
  ops_.linear(Scratch(), a.part_logits, normed, weights_.lm_head);
  std::vector<int64_t> widths;
  for (int32_t rank = 0; rank < share_.layout.tensor; ++rank) {
    widths.push_back(EvenShare(config_.vocab, share_.layout.tensor, rank).size());
  }
  ranks_->GatherColumns(logits, a.part_logits, widths);
}

Status K2Model::ReserveScratch(KvForm kv, int64_t tokens_max, int64_t sequences_max, Arena& arena) {
  constexpr int64_t kBlock = KvLayerView::kBlockTokens;
  tokens_max = std::min(tokens_max, rope_table_.positions);
  // One layer of each kind is enough: layers of a kind need the same.
  std::map<std::vector<WeightForm>, int32_t> kinds;
  for (const int32_t i : all_layers_) kinds.emplace(FormsOf(weights_.layers[i]), i);
  std::vector<int32_t> layers;
  for (const auto& [forms, layer] : kinds) layers.push_back(layer);

  const int64_t blocks = std::max((tokens_max + kBlock - 1) / kBlock, sequences_max);
  const int64_t bytes = blocks * kBlock * KvBytesPerToken(config_, kv, 1);
  BT_ASSIGN_OR_RETURN(const Buffer memory,
                      Buffer::Create(static_cast<size_t>(bytes), "a trial KV cache", *ops_.memory));
  const KvLayerView view{.data = memory.data(),
                         .form = kv,
                         .num_blocks = blocks,
                         .latent = config_.kv_lora,
                         .rope = config_.rope_dim};
  const std::vector<KvLayerView> cache(layers.size(), view);
  std::vector<int32_t> table(static_cast<size_t>(blocks));
  std::iota(table.begin(), table.end(), 0);

  const auto run = [&](int64_t tokens, int64_t sequences, int64_t logits_rows) {
    arena.Reset();
    const int64_t each = tokens / sequences;  // tokens of a sequence
    std::vector<int32_t> ids(static_cast<size_t>(tokens), 0), positions, rows;
    std::vector<int64_t> slots;
    std::vector<AttentionSequence> parts;
    for (int64_t s = 0; s < sequences; ++s) {
      for (int64_t i = 0; i < each; ++i) {
        positions.push_back(static_cast<int32_t>(i));
        slots.push_back(s * kBlock + i);
      }
      parts.push_back({.query_begin = static_cast<int32_t>(s * each),
                       .query_count = static_cast<int32_t>(each),
                       .first_position = 0,
                       .absorbed_from = sequences == 1 ? static_cast<int32_t>(each) : 0,
                       .blocks = std::span<const int32_t>(table).subspan(s),
                       .block_positions = {},
                       .key_count = static_cast<int32_t>(each)});
    }
    for (int64_t i = 0; i < logits_rows; ++i) rows.push_back(static_cast<int32_t>(i));
    void* logits = arena.Allocate(static_cast<size_t>(logits_rows * config_.vocab) * sizeof(float));
    Run({.tokens = ids,
         .positions = positions,
         .slots = slots,
         .sequences = parts,
         .logits_rows = rows,
         .override_rows = {},
         .embedding_overrides = {}},
        layers, cache, TensorView(logits, DType::kF32, {logits_rows, config_.vocab}), arena);
  };
  if (tokens_max > 0) run(tokens_max, 1, std::min(tokens_max, sequences_max));
  if (sequences_max > 0) run(sequences_max, sequences_max, sequences_max);
  arena.Reset();
  return {};
}

int64_t KvBytesPerToken(const K2Config& config, KvForm form, int64_t layers) {
  return layers * KvTokenBytes(form, config.kv_lora, config.rope_dim);
}

}  // namespace baltoro
