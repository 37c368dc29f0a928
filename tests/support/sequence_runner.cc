#include "support/sequence_runner.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace baltoro::test {
namespace {

constexpr int32_t kBlock = KvLayerView::kBlockTokens;

}  // namespace

SequenceRunner::SequenceRunner(K2Model& model, const Options& options)
    : model_(model),
      rows_max_(options.rows_max),
      arena_(*model.ops().memory),
      sequences_(static_cast<size_t>(options.sequences)) {
  const Memory& where = *model.ops().memory;
  const K2Config& config = model.config();
  const auto each = static_cast<int32_t>((options.tokens_each + kBlock - 1) / kBlock);
  const int32_t blocks = each * options.sequences + 1;  // the first is nobody's
  const int64_t layer_bytes = blocks * kBlock * KvBytesPerToken(config, options.kv, 1);
  memory_ = Buffer::Create(static_cast<size_t>(model.layers() * layer_bytes), "test cache", where)
                .value();
  for (int32_t layer = 0; layer < model.layers(); ++layer) {
    cache_.push_back({.data = static_cast<char*>(memory_.data()) + layer * layer_bytes,
                      .form = options.kv,
                      .num_blocks = blocks,
                      .latent = config.kv_lora,
                      .rope = config.rope_dim});
  }
  const auto logits = static_cast<size_t>(options.rows_max * config.vocab) * sizeof(float);
  logits_ = Buffer::Create(logits, "test logits", where).value();
  // Blocks of a sequence lie apart and backwards.
  for (int32_t s = 0; s < options.sequences; ++s) {
    for (int32_t b = 0; b < each; ++b) {
      sequences_[s].own.push_back(blocks - 1 - b * options.sequences - s);
    }
  }
  Forget();
  const Status reserved =
      model.ReserveScratch(options.kv, options.rows_max, options.sequences, arena_);
  BT_CHECK(reserved.ok());
}

void SequenceRunner::Forget() {
  for (Sequence& sequence : sequences_) {
    sequence.blocks = sequence.own;
    sequence.length = 0;
  }
}

void SequenceRunner::ShareBegin(int32_t sequence, int32_t from, int32_t tokens) {
  Sequence& to = sequences_[sequence];
  BT_CHECK(to.length == 0 && tokens % kBlock == 0 && tokens <= sequences_[from].length);
  std::copy_n(sequences_[from].blocks.begin(), tokens / kBlock, to.blocks.begin());
  to.length = tokens;
}

void SequenceRunner::TapBehind(std::vector<int32_t> layers) {
  tap_layers_ = std::move(layers);
  const auto floats = static_cast<size_t>(rows_max_ * model_.config().hidden);
  tapped_ = Buffer::Create(std::max<size_t>(1, tap_layers_.size()) * floats * sizeof(float),
                           "test taps", *model_.ops().memory)
                .value();
}

std::vector<std::vector<float>> SequenceRunner::Taps() const {
  std::vector<std::vector<float>> out;
  for (const TensorView& tap : taps_) {
    std::vector<float>& one = out.emplace_back(static_cast<size_t>(tap.num_elements()));
    BT_CHECK(model_.ops().memory->CopyOut(one.data(), tap.data, one.size() * sizeof(float)).ok());
  }
  return out;
}

std::vector<float> SequenceRunner::Step(std::span<const Part> parts) {
  std::vector<int32_t> ids, positions, rows;
  std::vector<int64_t> slots;
  std::vector<AttentionSequence> attended;
  for (const Part& part : parts) {
    Sequence& sequence = sequences_[part.sequence];
    const auto count = static_cast<int32_t>(part.tokens.size());
    attended.push_back({.query_begin = static_cast<int32_t>(ids.size()),
                        .query_count = count,
                        .first_position = sequence.length,
                        .absorbed_from = part.absorbed_from,
                        .blocks = sequence.blocks,
                        .block_positions = {},
                        .key_count = sequence.length + count});
    for (const int32_t token : part.tokens) {
      const int32_t position = sequence.length++;
      rows.push_back(static_cast<int32_t>(ids.size()));
      ids.push_back(token);
      positions.push_back(position);
      slots.push_back(int64_t{sequence.blocks[position / kBlock]} * kBlock + position % kBlock);
    }
  }
  const int64_t vocab = model_.config().vocab;
  std::vector<float> logits(ids.size() * static_cast<size_t>(vocab));
  const size_t bytes = logits.size() * sizeof(float);
  BT_CHECK(bytes <= logits_.bytes());
  // What a step leaves out must not be what the last one wrote.
  BT_CHECK(model_.ops().memory->Clear(logits_.data(), bytes).ok());
  taps_.clear();
  for (size_t i = 0; i < tap_layers_.size(); ++i) {
    const int64_t hidden = model_.config().hidden;
    void* const at =
        static_cast<float*>(tapped_.data()) + static_cast<int64_t>(i) * rows_max_ * hidden;
    taps_.emplace_back(at, DType::kF32, std::initializer_list<int64_t>{std::ssize(ids), hidden});
  }
  arena_.Reset();
  model_.Forward({.tokens = ids,
                  .positions = positions,
                  .slots = slots,
                  .sequences = attended,
                  .logits_rows = rows,
                  .override_rows = {},
                  .embedding_overrides = {},
                  .tap_layers = tap_layers_,
                  .taps = taps_},
                 cache_, TensorView(logits_.data(), DType::kF32, {std::ssize(ids), vocab}), arena_);
  BT_CHECK(model_.ops().memory->CopyOut(logits.data(), logits_.data(), bytes).ok());
  return logits;
}

}  // namespace baltoro::test
