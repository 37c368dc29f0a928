#include "engine/draft_model.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/check.h"
#include "cache/block_id.h"

namespace baltoro {
namespace {

constexpr int32_t kOwnLayer[] = {0};

}  // namespace

DraftModel::DraftModel(std::unique_ptr<K2Model> model,
                       std::vector<int32_t> tokens,
                       const KvLayerView& cache,
                       ThreadPool* pool)
    : model_(std::move(model)),
      target_tokens_(std::move(tokens)),
      cache_(cache),
      pool_(pool),
      arena_(*model_->ops().memory),
      sample_arena_(*model_->ops().memory) {}

Result<std::unique_ptr<DraftModel>> DraftModel::Create(std::unique_ptr<K2Model> model,
                                                       std::vector<int32_t> tokens,
                                                       const KvLayerView& cache,
                                                       ThreadPool* pool,
                                                       int32_t tokens_max,
                                                       int32_t sequences_max) {
  BT_CHECK(model->config().draft.has_value() && model->ranks() == nullptr);
  std::unique_ptr<DraftModel> draft(
      new DraftModel(std::move(model), std::move(tokens), cache, pool));
  K2Model& own = *draft->model_;
  const Memory& memory = *own.ops().memory;
  BT_CHECK(memory.kind() == DeviceKind::kCpu);  // chains are made row by row, from host memory
  const K2Config& config = own.config();
  const auto rows = static_cast<size_t>(tokens_max * config.hidden) * sizeof(float);
  const char* const what = "the stream of a draft model (lower --max-num-batched-tokens)";
  BT_ASSIGN_OR_RETURN(draft->stream_, Buffer::Create(rows, what, memory));
  const auto logits = static_cast<size_t>(sequences_max * config.head_vocab()) * sizeof(float);
  BT_ASSIGN_OR_RETURN(
      draft->logits_,
      Buffer::Create(logits, "logits of a draft model (lower --max-num-seqs)", memory));
  BT_RETURN_IF_ERROR(
      own.ReserveScratch(cache.form, tokens_max, sequences_max, draft->arena_, sequences_max));
  return draft;
}

TensorView DraftModel::Rows(Buffer& buffer, int64_t rows) const {
  const int64_t hidden = model_->config().hidden;
  BT_CHECK(static_cast<size_t>(rows * hidden) * sizeof(float) <= buffer.bytes());
  return TensorView(buffer.data(), DType::kF32, {rows, hidden});
}

std::vector<std::vector<TokenId>> DraftModel::Propose(const ForwardBatch& step,
                                                      std::span<const DraftSequence> sequences) {
  std::vector<std::vector<TokenId>> drafts(sequences.size());
  std::vector<Chain> chains = Follow(step, sequences);
  while (!chains.empty()) {
    Choose(chains, drafts);
    std::erase_if(chains, [&](const Chain& chain) {
      const DraftSequence& sequence = sequences[chain.sequence];
      const auto blocks = static_cast<int32_t>(sequence.attention.blocks.size());
      return std::ssize(drafts[chain.sequence]) >= sequence.wanted ||
             chain.position >= blocks * kBlockTokens || chain.position >= model_->positions_max();
    });
    if (!chains.empty()) GoOn(sequences, chains);
  }
  return drafts;
}

// The rows of the target's step. Those of refused drafts are computed too, for nobody: they come
// behind all others of their sequence.
std::vector<DraftModel::Chain> DraftModel::Follow(const ForwardBatch& step,
                                                  std::span<const DraftSequence> sequences) {
  const size_t count = step.tokens.size();
  std::vector<int32_t> tokens(count, 0), rows(count), logits_rows;
  std::iota(rows.begin(), rows.end(), 0);
  std::vector<int64_t> slots(count, -1);
  std::vector<AttentionSequence> attention;
  std::vector<Chain> chains;
  for (size_t i = 0; i < sequences.size(); ++i) {
    const DraftSequence& sequence = sequences[i];
    const AttentionSequence& queries = sequence.attention;
    BT_CHECK(sequence.valid_rows <= queries.query_count);
    attention.push_back(queries);
    for (int32_t j = 0; j < sequence.valid_rows; ++j) {
      const auto row = static_cast<size_t>(queries.query_begin + j);
      tokens[row] = j + 1 < sequence.valid_rows ? step.tokens[row + 1] : sequence.next;
      slots[row] = step.slots[row];
    }
    if (sequence.valid_rows == 0 || sequence.wanted == 0) continue;
    const int32_t last = queries.query_begin + sequence.valid_rows - 1;
    logits_rows.push_back(last);
    chains.push_back(
        {.sequence = i, .row = last, .position = queries.first_position + sequence.valid_rows});
  }
  Forward({.tokens = tokens,
           .positions = step.positions,
           .slots = slots,
           .sequences = attention,
           .logits_rows = logits_rows,
           .override_rows = {},
           .embedding_overrides = {},
           .features = step.taps,
           .feature_rows = rows});
  return chains;
}

// One row a chain, whose features are what it said last.
void DraftModel::GoOn(std::span<const DraftSequence> sequences, std::vector<Chain>& chains) {
  std::vector<int32_t> tokens, positions, feature_rows, logits_rows;
  std::vector<int64_t> slots;
  std::vector<AttentionSequence> attention;
  for (Chain& chain : chains) {
    const auto row = static_cast<int32_t>(tokens.size());
    AttentionSequence one = sequences[chain.sequence].attention;
    one.query_begin = row;
    one.query_count = 1;
    one.first_position = chain.position;
    one.key_count = chain.position + 1;
    attention.push_back(one);
    tokens.push_back(chain.token);
    positions.push_back(chain.position);
    slots.push_back(int64_t{one.blocks[chain.position / kBlockTokens]} * kBlockTokens +
                    chain.position % kBlockTokens);
    feature_rows.push_back(chain.row);
    logits_rows.push_back(row);
    chain.row = row;
    ++chain.position;
  }
  const TensorView said = Rows(
      stream_, static_cast<int64_t>(stream_.bytes() / sizeof(float)) / model_->config().hidden);
  Forward({.tokens = tokens,
           .positions = positions,
           .slots = slots,
           .sequences = attention,
           .logits_rows = logits_rows,
           .override_rows = {},
           .embedding_overrides = {},
           .features = std::span(&said, 1),
           .own_features = true,
           .feature_rows = feature_rows});
}

void DraftModel::Forward(const ForwardBatch& batch) {
  ForwardBatch tapped = batch;
  const TensorView stream = Rows(stream_, static_cast<int64_t>(batch.tokens.size()));
  tapped.tap_layers = kOwnLayer;
  tapped.taps = std::span(&stream, 1);
  arena_.Reset();
  const auto rows = static_cast<int64_t>(batch.logits_rows.size());
  model_->Forward(tapped, std::span(&cache_, 1),
                  TensorView(logits_.data(), DType::kF32, {rows, model_->config().head_vocab()}),
                  arena_);
}

void DraftModel::Choose(std::vector<Chain>& chains, std::vector<std::vector<TokenId>>& drafts) {
  std::vector<SampleRow> rows;
  for (size_t i = 0; i < chains.size(); ++i) {
    rows.push_back({.logits_row = static_cast<int32_t>(i), .temperature = 0});
  }
  std::vector<SampleResult> chosen(rows.size());
  sample_arena_.Reset();
  const OpContext context{.pool = pool_, .scratch = &sample_arena_, .rank = model_->ops().rank};
  const auto count = static_cast<int64_t>(rows.size());
  model_->ops().sample(
      context, TensorView(logits_.data(), DType::kF32, {count, model_->config().head_vocab()}),
      rows, chosen);
  std::vector<Chain> going;
  for (size_t i = 0; i < chains.size(); ++i) {
    int32_t token = chosen[i].token;
    if (token < 0) continue;
    if (!target_tokens_.empty()) token = target_tokens_[static_cast<size_t>(token)];
    chains[i].token = token;
    drafts[chains[i].sequence].push_back(token);
    going.push_back(chains[i]);
  }
  chains = std::move(going);
}

}  // namespace baltoro
