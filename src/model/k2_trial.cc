#include <algorithm>
#include <iterator>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "model/k2_model.h"
#include "ops/row_class.h"

// Steps before the first, whose numbers nobody reads: they find out what memory steps need, and use
// once whatever operations load when it is first used.

namespace baltoro {
namespace {

// Beside what was seen to be needed: sequences are cut into pieces in many ways.
size_t WithRoom(size_t bytes) {
  return bytes == 0 ? 0 : bytes + bytes / 8 + (size_t{1} << 20);
}

// Attention of a CPU takes what so many queries need, however long their sequence is; its time
// grows with the square of the length.
constexpr int64_t kHostSequenceMax = 2048;

// New tokens after a long context, which are enough to make keys of it.
constexpr int64_t kTokensAfterContext = 256;
// New tokens that are too few for that.
constexpr int64_t kFewTokens = 8;
// What attention makes keys of at once is less on any GPU.
constexpr int64_t kKeysAtOnceMax = int64_t{1} << 18;
// Of a mixed step; attention takes no more than some thousand.
constexpr int64_t kSequencesMax = 3000;

// Tokens of each sequence of a step that has of everything: one for which keys are made, as many
// that decode as there can be, and as many others of a few tokens.
std::vector<int64_t> MixedStep(int64_t tokens_max, int64_t sequences_max) {
  std::vector<int64_t> counts;
  int64_t left = tokens_max;
  const auto take = [&](int64_t count) {
    counts.push_back(std::min(count, left));
    left -= counts.back();
  };
  if (left > kTokensAfterContext) take(kTokensAfterContext);
  while (left > 0 && std::ssize(counts) <= std::min(sequences_max, tokens_max / 2)) take(1);
  while (left > 0 && std::ssize(counts) < kSequencesMax) take(kFewTokens);
  if (left > 0) take(left);
  return counts;
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

}  // namespace

struct K2Model::Trial {
  int64_t tokens_max, rows_max;
  int64_t keys_max;              // of a sequence; 0: no more than the step's own
  std::vector<int32_t> layers;   // one of each kind: layers of a kind need the same
  Buffer keys, logits, feature;  // one row of a draft's input
  std::vector<KvLayerView> cache;
  std::vector<int32_t> table;
};

Result<K2Model::Trial> K2Model::MakeTrial(KvForm kv,
                                          int64_t tokens_max,
                                          int64_t sequences_max,
                                          int64_t rows_max) {
  constexpr int64_t kBlock = KvLayerView::kBlockTokens;
  Trial trial;
  trial.tokens_max =
      std::min(tokens_max, rope_table_.positions * std::max<int64_t>(sequences_max, 1));
  trial.rows_max = rows_max > 0 ? rows_max : sequences_max;
  // Keys before those of the step: what attention takes for them is found here as well. On a CPU
  // it takes nothing, and time.
  trial.keys_max = ops_.memory->kind() == DeviceKind::kCpu ? 0 : rope_table_.positions;
  std::map<std::vector<WeightForm>, int32_t> kinds;
  for (const int32_t i : all_layers_) kinds.emplace(FormsOf(weights_.layers[i]), i);
  for (const auto& [forms, layer] : kinds) trial.layers.push_back(layer);

  const int64_t blocks = std::max((trial.tokens_max + kBlock - 1) / kBlock, sequences_max);
  const auto bytes = static_cast<size_t>(blocks * kBlock * KvBytesPerToken(config_, kv, 1));
  BT_ASSIGN_OR_RETURN(
      trial.keys,
      Buffer::Create(bytes, "the KV cache of a trial step (lower --max-num-batched-tokens)",
                     *ops_.memory));
  const CacheWidths widths = cache_widths();
  const KvLayerView view{.data = trial.keys.data(),
                         .form = kv,
                         .num_blocks = blocks,
                         .latent = widths.latent,
                         .rope = widths.rope};
  trial.cache.assign(trial.layers.size(), view);
  const int64_t columns = std::max(blocks, trial.keys_max / kBlock) + blocks;
  for (int64_t i = 0; i < columns; ++i) trial.table.push_back(static_cast<int32_t>(i % blocks));
  const auto logits = static_cast<size_t>(trial.rows_max * config_.head_vocab()) * sizeof(float);
  BT_ASSIGN_OR_RETURN(
      trial.logits,
      Buffer::Create(logits, "logits of a trial step (lower --max-num-seqs)", *ops_.memory));
  if (config_.draft) {
    const auto row = static_cast<size_t>(config_.hidden) * sizeof(float);
    BT_ASSIGN_OR_RETURN(trial.feature,
                        Buffer::Create(row, "features of a trial step", *ops_.memory));
  }
  return trial;
}

int64_t K2Model::LongestTried() const {
  return ops_.memory->kind() == DeviceKind::kCpu ? std::min(rope_table_.positions, kHostSequenceMax)
                                                 : rope_table_.positions;
}

int64_t K2Model::TrialParts(int64_t tokens_max) const {
  const int64_t whole = std::clamp<int64_t>(tokens_max, 1, rope_table_.positions);
  return (whole + LongestTried() - 1) / LongestTried();
}

void K2Model::RunTrial(const Trial& trial,
                       std::span<const int64_t> counts,
                       int64_t keys,
                       Arena& arena) {
  constexpr int64_t kBlock = KvLayerView::kBlockTokens;
  arena.Reset();
  const int64_t blocks = trial.cache.front().num_blocks;
  std::vector<int32_t> positions, rows;
  std::vector<int64_t> slots;
  std::vector<AttentionSequence> parts;
  const auto add = [&](int64_t count) {
    const auto s = static_cast<int64_t>(parts.size()) % blocks;
    const int64_t before = std::max<int64_t>(0, keys - count);
    const auto begin = static_cast<int32_t>(slots.size());
    for (int64_t i = 0; i < count; ++i) {
      positions.push_back(static_cast<int32_t>(before + i));
      slots.push_back(std::ssize(slots) % (blocks * kBlock));
    }
    parts.push_back({.query_begin = begin,
                     .query_count = static_cast<int32_t>(count),
                     .first_position = static_cast<int32_t>(before),
                     .absorbed_from = count > 1 ? static_cast<int32_t>(before + count) : 0,
                     .blocks = std::span<const int32_t>(trial.table).subspan(s),
                     .block_positions = {},
                     .key_count = static_cast<int32_t>(before + count)});
  };
  const int64_t longest = LongestTried();
  for (const int64_t count : counts) {
    // More tokens than a sequence can have are of several.
    for (int64_t left = count; left > 0; left -= longest) add(std::min(left, longest));
  }
  const std::vector<int32_t> ids(slots.size(), 0);
  const int64_t logits_rows = std::min(std::ssize(slots), trial.rows_max);
  for (int64_t i = 0; i < logits_rows; ++i) rows.push_back(static_cast<int32_t>(i));
  std::vector<TensorView> features;
  if (config_.draft) {
    features.assign(config_.draft->tap_layers.size(),
                    TensorView(trial.feature.data(), DType::kF32, {1, config_.hidden}));
  }
  const int32_t replicas = share_.layout.data;
  const std::vector<int64_t> group_rows(static_cast<size_t>(replicas > 1 ? replicas : 0),
                                        std::ssize(slots));
  const StepMode mode = std::exchange(mode_, StepMode::kAlone);
  Run({.tokens = ids,
       .positions = positions,
       .slots = slots,
       .sequences = parts,
       .logits_rows = rows,
       .override_rows = {},
       .embedding_overrides = {},
       .features = features,
       .feature_rows = config_.draft ? std::span<const int32_t>(ids) : std::span<const int32_t>(),
       .group_rows = group_rows},
      trial.layers, trial.cache,
      TensorView(trial.logits.data(), DType::kF32, {logits_rows, config_.head_vocab()}), arena);
  mode_ = mode;
}

Status K2Model::ReserveScratch(KvForm kv,
                               int64_t tokens_max,
                               int64_t sequences_max,
                               Arena& arena,
                               int64_t rows_max,
                               int32_t steps_in_a_row) {
  BT_ASSIGN_OR_RETURN(const Trial trial, MakeTrial(kv, tokens_max, sequences_max, rows_max));
  Arena* const arenas[] = {&arena, &op_scratch_, &staging_};
  size_t needed[] = {0, 0, 0};
  const auto run = [&](const std::vector<int64_t>& counts) {
    if (counts.empty()) return;
    for (Arena* one : arenas) {
      one->Reset();
      one->TakePeak();
    }
    RunTrial(trial, counts, trial.keys_max, arena);
    for (size_t i = 0; i < std::size(arenas); ++i) {
      needed[i] = std::max(needed[i], arenas[i]->TakePeak());
    }
  };
  run(std::vector<int64_t>(static_cast<size_t>(sequences_max), 1));
  const size_t staged = needed[2];  // which a wait alone takes back
  if (trial.tokens_max > 0) run({trial.tokens_max});
  if (trial.keys_max > 0) run(MixedStep(trial.tokens_max, sequences_max));
  needed[2] += staged * static_cast<size_t>(steps_in_a_row - 1);
  BT_RETURN_IF_ERROR(ops_.wait(Scratch()));
  for (size_t i = 0; i < std::size(arenas); ++i) {
    BT_RETURN_IF_ERROR(arenas[i]->Reserve(WithRoom(needed[i])));
  }
  return {};
}

Status K2Model::WarmUp(
    KvForm kv, int64_t tokens_max, int64_t sequences_max, Arena& arena, int64_t rows_max) {
  if (ops_.memory->kind() == DeviceKind::kCpu) return {};
  BT_ASSIGN_OR_RETURN(const Trial trial, MakeTrial(kv, tokens_max, sequences_max, rows_max));
  // Keys are made for several sequences at once, up to some number.
  const int64_t together = std::max<int64_t>(trial.tokens_max / kTokensAfterContext, 1);
  const int64_t most =
      std::max(trial.tokens_max, std::min(trial.keys_max * together, kKeysAtOnceMax));
  for (int64_t rows = 0; rows < most;) {
    rows = std::min(RowClass(rows + 1), most);
    std::vector<int64_t> counts = {rows};
    int64_t keys = 0;
    if (rows > trial.tokens_max) {
      const int64_t sequences = (rows + trial.keys_max - 1) / trial.keys_max;
      counts.assign(static_cast<size_t>(sequences),
                    std::min(trial.tokens_max / sequences, kTokensAfterContext));
      keys = rows / sequences;
    }
    RunTrial(trial, counts, keys, arena);
  }
  return ops_.wait(Scratch());
}

}  // namespace baltoro
