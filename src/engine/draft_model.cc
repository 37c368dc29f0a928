#include "engine/draft_model.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/check.h"
#include "cache/block_id.h"
#include "engine/empty_step.h"
#include "engine/graph_sizes.h"

namespace baltoro {
namespace {

constexpr int32_t kOwnLayer[] = {0};

// Whether steps of this shape come again and again: rows behind what is known, as many in each
// sequence.
bool Repeats(std::span<const DraftSequence> sequences) {
  const int32_t each = sequences.empty() ? 0 : sequences[0].attention.query_count;
  return std::ranges::all_of(sequences, [each](const DraftSequence& sequence) {
    const AttentionSequence& attention = sequence.attention;
    return attention.query_count == each && attention.first_position >= attention.absorbed_from;
  });
}

int64_t SlotAt(const AttentionSequence& sequence, int32_t position) {
  return int64_t{sequence.blocks[static_cast<size_t>(position / kBlockTokens)]} * kBlockTokens +
         position % kBlockTokens;
}

}  // namespace

DraftModel::DraftModel(std::unique_ptr<K2Model> model, Config config, ThreadPool* pool)
    : model_(std::move(model)),
      config_(std::move(config)),
      pool_(pool),
      arena_(*model_->ops().memory),
      staging_(model_->ops().staging == nullptr ? HostMemory() : *model_->ops().staging) {}

Result<std::unique_ptr<DraftModel>> DraftModel::Create(std::unique_ptr<K2Model> model,
                                                       Config config,
                                                       ThreadPool* pool) {
  BT_CHECK(model->config().draft.has_value());
  BT_CHECK(config.drafts_max >= 1);
  std::unique_ptr<DraftModel> draft(new DraftModel(std::move(model), std::move(config), pool));
  K2Model& own = *draft->model_;
  const Config& made = draft->config_;
  const Memory& memory = *own.ops().memory;
  const int64_t sequences = made.sequences_max;
  const auto take = [&](Buffer& buffer, int64_t count, const char* what) -> Status {
    BT_ASSIGN_OR_RETURN(buffer,
                        Buffer::Create(static_cast<size_t>(count) * sizeof(float), what, memory));
    return {};
  };
  BT_RETURN_IF_ERROR(take(draft->stream_, made.tokens_max * own.config().hidden,
                          "the stream of a draft model (lower --max-num-batched-tokens)"));
  BT_RETURN_IF_ERROR(take(draft->logits_, sequences * own.config().head_vocab(),
                          "logits of a draft model (lower --max-num-seqs)"));
  BT_RETURN_IF_ERROR(take(draft->picks_, sequences * made.drafts_max, "drafts"));
  // A pass may be filled up with rows that have no token yet.
  const std::vector<int32_t> none(static_cast<size_t>(sequences * made.drafts_max), 0);
  BT_RETURN_IF_ERROR(
      memory.CopyIn(draft->picks_.data(), none.data(), none.size() * sizeof(int32_t)));
  if (!made.tokens.empty()) {
    BT_RETURN_IF_ERROR(take(draft->names_, std::ssize(made.tokens), "tokens of a draft model"));
    BT_RETURN_IF_ERROR(memory.CopyIn(draft->names_.data(), made.tokens.data(),
                                     made.tokens.size() * sizeof(int32_t)));
  }
  BT_RETURN_IF_ERROR(own.ReserveScratch(made.cache.form, made.tokens_max, sequences, draft->arena_,
                                        sequences, made.drafts_max));
  if (own.ops().staging != nullptr) {
    constexpr size_t kSpare = 256;
    BT_RETURN_IF_ERROR(draft->staging_.Reserve(none.size() * sizeof(int32_t) + kSpare));
  }
  if (own.ranks() != nullptr) {
    BT_RETURN_IF_ERROR(
        own.WarmUp(made.cache.form, made.tokens_max, sequences, draft->arena_, sequences));
  }
  return draft;
}

int64_t DraftModel::scratch_bytes() const {
  return static_cast<int64_t>(arena_.bytes_reserved() + staging_.bytes_reserved()) +
         model_->scratch_bytes() + model_->staging_bytes();
}

TensorView DraftModel::Rows(Buffer& buffer, int64_t rows) const {
  const int64_t hidden = model_->config().hidden;
  BT_CHECK(static_cast<size_t>(rows * hidden) * sizeof(float) <= buffer.bytes());
  return TensorView(buffer.data(), DType::kF32, {rows, hidden});
}

TensorView DraftModel::Picks(int32_t draft, int64_t rows) const {
  BT_CHECK(draft < config_.drafts_max && rows <= config_.sequences_max);
  auto* const all = static_cast<int32_t*>(const_cast<void*>(picks_.data()));
  return TensorView(all + int64_t{draft} * config_.sequences_max, DType::kI32, {rows});
}

std::vector<std::vector<TokenId>> DraftModel::Propose(const ForwardBatch& step,
                                                      std::span<const DraftSequence> sequences) {
  std::vector<std::vector<TokenId>> drafts(sequences.size());
  const bool wanted =
      std::ranges::any_of(sequences, [](const DraftSequence& one) { return one.wanted > 0; });
  std::vector<Chain> chains = Follow(step, sequences, wanted);
  int32_t most = 0;
  for (const Chain& chain : chains) most = std::max(most, chain.drafts);
  if (most == 0) return drafts;
  for (int32_t draft = 1; draft < most; ++draft) GoOn(draft, sequences, chains);

  std::vector<int32_t> picked(static_cast<size_t>(most) * config_.sequences_max);
  staging_.Reset();
  const OpContext context{.pool = pool_, .staging = &staging_, .rank = model_->ops().rank};
  const Status fetched =
      model_->ops().fetch(context, picked.data(), picks_.data(), picked.size() * sizeof(int32_t));
  BT_CHECK(fetched.ok());
  for (size_t i = 0; i < chains.size(); ++i) {
    std::vector<TokenId>& own = drafts[chains[i].sequence];
    for (int32_t draft = 0; draft < chains[i].drafts; ++draft) {
      const TokenId token = picked[static_cast<size_t>(draft) * config_.sequences_max + i];
      if (token < 0) break;  // and what follows means nothing
      own.push_back(token);
    }
  }
  return drafts;
}

int32_t DraftModel::Room(const DraftSequence& sequence, int32_t position) const {
  const int64_t end = std::min<int64_t>(
      std::ssize(sequence.attention.blocks) * int64_t{kBlockTokens}, model_->positions_max());
  // The first has its row already.
  return static_cast<int32_t>(
      std::min<int64_t>(sequence.wanted, 1 + std::max<int64_t>(0, end - position)));
}

void DraftModel::TakeOverrides(const ForwardBatch& step,
                               std::span<const DraftSequence> sequences,
                               std::vector<int32_t>& rows,
                               std::vector<TensorView>& pieces) const {
  auto row = step.override_rows.begin();
  for (const TensorView& piece : step.embedding_overrides) {
    const auto begin = [](const DraftSequence& one) { return one.attention.query_begin; };
    const int64_t count = piece.dim(0);
    int64_t first = 0;  // that is kept: in front of the first row of a sequence there is none
    for (int64_t i = 0; i < count; ++i, ++row) {
      if (std::ranges::binary_search(sequences, *row, {}, begin)) {
        if (i > first) pieces.push_back(piece.rows(first, i - first));
        first = i + 1;
      } else {
        rows.push_back(*row - 1);
      }
    }
    if (count > first) pieces.push_back(piece.rows(first, count - first));
  }
}

// The rows of the target's step. Those of refused drafts are computed too, for nobody: they come
// behind all others of their sequence. Where steps repeat and drafts are wanted, every sequence has
// a chain, so that all passes have one size.
std::vector<DraftModel::Chain> DraftModel::Follow(const ForwardBatch& step,
                                                  std::span<const DraftSequence> sequences,
                                                  bool drafts) {
  const size_t count = step.positions.size();
  std::vector<int32_t> tokens(count, 0), rows(count), logits_rows;
  std::iota(rows.begin(), rows.end(), 0);
  std::vector<int64_t> slots(count, -1);
  std::vector<AttentionSequence> attention;
  std::vector<Chain> chains;
  const bool repeats = Repeats(sequences);
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
    const bool wants = sequence.valid_rows > 0 && sequence.wanted > 0;
    if (!wants && !(drafts && repeats)) continue;
    const int32_t position = queries.first_position + sequence.valid_rows;
    const int32_t last = queries.query_begin + std::max(sequence.valid_rows - 1, 0);
    logits_rows.push_back(last);
    chains.push_back({.sequence = i,
                      .row = last,
                      .position = position,
                      .drafts = wants ? Room(sequence, position) : 0});
  }
  // Of a picture the row before has what stands at its place; what a later step will bring is not
  // known, and the placeholder does: that can cost drafts alone.
  std::vector<int32_t> override_rows;
  std::vector<TensorView> overrides;
  TakeOverrides(step, sequences, override_rows, overrides);
  Forward({.tokens = tokens,
           .positions = step.positions,
           .slots = slots,
           .sequences = attention,
           .logits_rows = logits_rows,
           .override_rows = override_rows,
           .embedding_overrides = overrides,
           .features = step.taps,
           .feature_rows = rows,
           .picks = drafts ? Picks(0, std::ssize(logits_rows)) : TensorView()});
  return chains;
}

// One row a chain, whose features are what it said last. Chains that have ended stay, and write
// nothing.
void DraftModel::GoOn(int32_t draft,
                      std::span<const DraftSequence> sequences,
                      std::vector<Chain>& chains) {
  const auto count = static_cast<int32_t>(chains.size());
  const int32_t size = GraphSizeFor(sizes_, count);
  std::vector<int32_t> positions, feature_rows, logits_rows;
  std::vector<int64_t> slots;
  std::vector<AttentionSequence> attention;
  for (int32_t row = 0; row < size; ++row) {
    Chain filler = chains.front();
    filler.drafts = 0;
    Chain& chain = row < count ? chains[static_cast<size_t>(row)] : filler;
    AttentionSequence one = sequences[chain.sequence].attention;
    one.query_begin = row;
    one.query_count = 1;
    const bool goes_on = draft < chain.drafts;
    if (goes_on) {
      one.first_position = chain.position;
      one.key_count = chain.position + 1;
    }
    positions.push_back(one.first_position);
    slots.push_back(goes_on ? SlotAt(one, chain.position) : -1);
    attention.push_back(one);
    feature_rows.push_back(chain.row);
    logits_rows.push_back(row);
    chain.row = row;
    ++chain.position;
  }
  const TensorView said = Rows(
      stream_, static_cast<int64_t>(stream_.bytes() / sizeof(float)) / model_->config().hidden);
  Forward({.tokens = {},
           .positions = positions,
           .slots = slots,
           .sequences = attention,
           .logits_rows = logits_rows,
           .override_rows = {},
           .embedding_overrides = {},
           .features = std::span(&said, 1),
           .own_features = true,
           .feature_rows = feature_rows,
           .picked_tokens = Picks(draft - 1, size),
           .picks = Picks(draft, size),
           .follows = true});
}

void DraftModel::Forward(const ForwardBatch& batch) {
  ForwardBatch tapped = batch;
  const TensorView stream = Rows(stream_, std::ssize(batch.positions));
  tapped.tap_layers = kOwnLayer;
  tapped.taps = std::span(&stream, 1);
  if (names_.bytes() > 0) {
    tapped.names = TensorView(names_.data(), DType::kI32, {std::ssize(config_.tokens)});
  }
  arena_.Reset();
  const auto rows = std::ssize(batch.logits_rows);
  model_->Forward(tapped, std::span(&config_.cache, 1),
                  TensorView(logits_.data(), DType::kF32, {rows, model_->config().head_vocab()}),
                  arena_);
}

void DraftModel::Record(std::span<const int32_t> sizes,
                        int32_t each,
                        std::span<const TensorView> taps) {
  if (!model_->uses_graphs()) return;
  for (const int32_t size : sizes) {
    RecordOne(size, each, 1, taps);
    // As of the target: the number of keys decides how the rows of a sequence are computed.
    if (each == 1 || !model_->RowsAlone(int64_t{size} * each, 1, config_.cache)) continue;
    RecordOne(size, each, model_->positions_max(), taps);
  }
  model_->SetStepMode(K2Model::StepMode::kRun);
  if (each == 1) sizes_.assign(sizes.begin(), sizes.end());
}

void DraftModel::RecordOne(int32_t size,
                           int32_t each,
                           int64_t keys,
                           std::span<const TensorView> taps) {
  const EmptyStep empty(size, each, keys);
  std::vector<DraftSequence> sequences;
  for (const AttentionSequence& sequence : empty.sequences) {
    sequences.push_back({.attention = sequence});
  }
  std::vector<TensorView> own_taps;
  for (const TensorView& tap : taps) own_taps.push_back(tap.rows(0, std::ssize(empty.zeros)));
  const ForwardBatch step{.tokens = empty.zeros,
                          .positions = empty.zeros,
                          .slots = empty.slots,
                          .sequences = {},
                          .logits_rows = {},
                          .override_rows = {},
                          .embedding_overrides = {},
                          .taps = own_taps};
  // The first of a size runs, the second is recorded and not run.
  for (const auto mode : {K2Model::StepMode::kAlone, K2Model::StepMode::kRecord}) {
    model_->SetStepMode(mode);
    (void)Follow(step, sequences, /*drafts=*/false);
    std::vector<Chain> chains = Follow(step, sequences, /*drafts=*/true);
    // The passes alone have a row a sequence, whatever the step had.
    for (int32_t draft = 1; each == 1 && draft < config_.drafts_max; ++draft) {
      GoOn(draft, sequences, chains);
    }
  }
}

}  // namespace baltoro
