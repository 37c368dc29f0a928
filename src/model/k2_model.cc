#include "model/k2_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <numeric>
#include <optional>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "model/kv_scales.h"
#include "ops/thread_pool.h"

namespace baltoro {
namespace {

// Disks answer faster when several reads are waiting.
constexpr int kLoadThreadsMin = 4;

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

void LogUnused(const WeightSource& source, const K2Config& config) {
  for (const auto& [kind, count] : source.UnusedKinds(config.layers)) {
    BT_LOG(Warning, "{}: {} tensors {} are not used", source.description(), count, kind);
  }
}

}  // namespace

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
  // Keys before those of the step: what attention takes for them is found here as well. On a CPU
  // it takes nothing, and time.
  const bool gpu = ops_.memory->kind() != DeviceKind::kCpu;
  const int64_t keys_max = gpu ? rope_table_.positions : 0;
  std::vector<int32_t> table(static_cast<size_t>(std::max(blocks, keys_max / kBlock) + blocks));
  for (size_t i = 0; i < table.size(); ++i) table[i] = static_cast<int32_t>(i % blocks);

  const auto run = [&](int64_t tokens, int64_t sequences, int64_t logits_rows) {
    arena.Reset();
    const int64_t each = tokens / sequences;  // tokens of a sequence
    const int64_t before = std::max<int64_t>(0, keys_max - each);
    std::vector<int32_t> ids(static_cast<size_t>(tokens), 0), positions, rows;
    std::vector<int64_t> slots;
    std::vector<AttentionSequence> parts;
    for (int64_t s = 0; s < sequences; ++s) {
      for (int64_t i = 0; i < each; ++i) {
        positions.push_back(static_cast<int32_t>(before + i));
        slots.push_back(s * kBlock + i);
      }
      parts.push_back({.query_begin = static_cast<int32_t>(s * each),
                       .query_count = static_cast<int32_t>(each),
                       .first_position = static_cast<int32_t>(before),
                       .absorbed_from = sequences == 1 ? static_cast<int32_t>(before + each) : 0,
                       .blocks = std::span<const int32_t>(table).subspan(s),
                       .block_positions = {},
                       .key_count = static_cast<int32_t>(before + each)});
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
  const StepMode mode = std::exchange(mode_, StepMode::kAlone);
  if (tokens_max > 0) run(tokens_max, 1, std::min(tokens_max, sequences_max));
  if (sequences_max > 0) run(sequences_max, sequences_max, sequences_max);
  arena.Reset();
  mode_ = mode;
  return {};
}

int64_t KvBytesPerToken(const K2Config& config, KvForm form, int64_t layers) {
  return layers * KvTokenBytes(form, config.kv_lora, config.rope_dim);
}

}  // namespace baltoro
