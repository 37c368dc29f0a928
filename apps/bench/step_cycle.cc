#include <algorithm>
#include <numeric>
#include <random>

#include "base/clock.h"
#include "bench/step_rig.h"

// The cycle of `bench step --speculative`: a step that verifies drafts, sampling, and the drafts of
// the next one.

namespace baltoro {
namespace {

constexpr int64_t kBlock = KvLayerView::kBlockTokens;
constexpr int kWarmUps = 3;

}  // namespace

Result<CycleTiming> StepRig::Cycle(int64_t batch, int64_t context) {
  const int32_t drafts = command_.drafts, rows = 1 + drafts;
  const int64_t each = (context + drafts + kBlock - 1) / kBlock;
  if (batch * each > std::ssize(blocks_)) {
    return Status(Code::kResourceExhausted, "the keys do not fit");
  }
  if (context < rows) return Status(Code::kResourceExhausted, "fewer keys than rows");
  const int64_t count = batch * rows;
  std::vector<int32_t> tokens, positions, logits_rows(static_cast<size_t>(count));
  std::iota(logits_rows.begin(), logits_rows.end(), 0);
  std::vector<int64_t> slots;
  std::vector<AttentionSequence> sequences;
  for (int64_t i = 0; i < batch; ++i) {
    const auto blocks = std::span<const int32_t>(blocks_).subspan(i * each, each);
    sequences.push_back({.query_begin = static_cast<int32_t>(i * rows),
                         .query_count = rows,
                         .first_position = static_cast<int32_t>(context - rows),
                         .absorbed_from = 0,
                         .blocks = blocks,
                         .block_positions = {},
                         .key_count = static_cast<int32_t>(context)});
    for (int64_t position = context - rows; position < context; ++position) {
      tokens.push_back(static_cast<int32_t>(std::ssize(tokens) * 7919 % config_.vocab));
      positions.push_back(static_cast<int32_t>(position));
      slots.push_back(blocks[position / kBlock] * kBlock + position % kBlock);
    }
  }
  const std::vector<TensorView> taps = drafter_->Taps(count);
  const ForwardBatch step{.tokens = tokens,
                          .positions = positions,
                          .slots = slots,
                          .sequences = sequences,
                          .logits_rows = logits_rows,
                          .override_rows = {},
                          .embedding_overrides = {},
                          .tap_layers = drafter_->tap_layers(),
                          .taps = taps};
  const TensorView logits(logits_.data(), DType::kF32, {count, config_.vocab});
  std::vector<SampleRow> asked;
  for (int64_t row = 0; row < count; ++row) {
    asked.push_back({.logits_row = static_cast<int32_t>(row),
                     .top_p = 0.95f,
                     .seed = command_.seed,
                     .index = static_cast<uint64_t>(row)});
  }
  std::vector<SampleResult> sampled(asked.size());
  Arena scratch(*ops_.memory);
  Arena staging(ops_.staging == nullptr ? HostMemory() : *ops_.staging);
  const OpContext context_of_sampling{
      .pool = pool_.get(), .scratch = &scratch, .staging = &staging, .rank = ops_.rank};
  std::mt19937_64 random(command_.seed);
  const MonotonicClock clock;
  std::vector<double> whole, verified, drafted;
  RoutedWork routed;
  for (int run = -kWarmUps; run < command_.repeats; ++run) {
    BT_ASSIGN_OR_RETURN(const RoutedWork drawn, BringRouting(count));
    arena_->Reset();
    scratch.Reset();
    staging.Reset();
    const Seconds start = clock.Now();
    model_->Forward(step, cache_, logits, *arena_);
    ops_.sample(context_of_sampling, logits, asked, sampled);
    const Seconds known = clock.Now();
    std::vector<DraftSequence> behind;
    for (const AttentionSequence& sequence : sequences) {
      behind.push_back({.attention = sequence,
                        .valid_rows = DrawAccepted(random),
                        .next = std::max(0, sampled[behind.size()].token),
                        .wanted = drafts});
    }
    const auto proposed = drafter_->model().Propose(step, behind);
    const Seconds end = clock.Now();
    for (const auto& one : proposed) {
      if (std::ssize(one) != drafts) return Status(Code::kInternal, "a draft is missing");
    }
    if (run < 0) continue;
    whole.push_back(end - start);
    verified.push_back(known - start);
    drafted.push_back(end - known);
    routed.Add(drawn, 1.0 / command_.repeats);
  }
  return CycleTiming{.whole = TimingOf(whole, routed),
                     .verified = TimingOf(verified, {}).median,
                     .drafted = TimingOf(drafted, {}).median};
}

// Tokens of a cycle of one sequence: the two numbers beside the mean.
int32_t StepRig::DrawAccepted(std::mt19937_64& random) const {
  const auto least = static_cast<int32_t>(command_.acceptance_length);
  const double more = command_.acceptance_length - least;
  return least + (std::uniform_real_distribution<double>()(random) < more ? 1 : 0);
}

}  // namespace baltoro
