// Banks of INT4 groups.

#include <algorithm>

#include "ops/cuda/choose/experts_down_sum.h"
#include "ops/cuda/choose/experts_ways.h"

namespace baltoro::cuda {

ExpertsKernel Int4StreamingWay(int64_t entries, int64_t intermediate) {
  if (entries <= kEntriesAlone) return ExpertsKernel::kInt4Entries;
  return intermediate == kDigitIntermediate ? ExpertsKernel::kInt4Digits
                                            : ExpertsKernel::kInt4Streaming;
}

namespace experts_ways {
namespace {

// The bank of one token, the shared experts in its last kernel.
bool SingleTakes(const ExpertsQuestion& q) {
  return q.tokens() == 1 && q.top_k <= kSingleExperts && q.intermediate() == kSingleIntermediate &&
         q.hidden() % kSingleEndColumns == 0 && q.hidden() / 128 <= kSingleColumnTiles;
}

// All of a bank in one launch, with the choice and the shared experts.
bool OneLaunchTakes(const ExpertsQuestion& q) {
  return KernelCanChoose(q) && !q.norm && q.out.type == DType::kF32 &&
         q.top_k == kOneLaunchExperts && q.hidden() == kOneLaunchHidden &&
         q.intermediate() == kOneLaunchIntermediate && q.shared_down.k == kOneLaunchIntermediate &&
         OneLaunchFits(q.card);
}

Way Streaming(const ExpertsQuestion& q, const char* why) {
  const ExpertsKernel kernel = Int4StreamingWay(q.entries(), q.intermediate());
  return {kernel,
          kernel == ExpertsKernel::kInt4Entries ? "few entries, rarely of one expert" : why};
}

}  // namespace

bool Int4Takes(const ExpertsQuestion& q) {
  return q.gate_up.form == WeightForm::kInt4Group && q.down.form == WeightForm::kInt4Group &&
         q.hidden() % 128 == 0 && q.intermediate() % 128 == 0 && q.tokens() <= 65535 && q.gapless &&
         q.x.aligned(16);
}

bool Int4EndsWithShared(const ExpertsQuestion& q) {
  return Int4Takes(q) && q.shared && q.out.type == DType::kF32 && IsBf16(*q.shared) &&
         q.shared->aligned(16) && q.shared_down.form == WeightForm::kBf16 &&
         q.shared_down.aligned(16) && q.tokens() <= kFinishTokens && q.top_k <= kFinishTopK &&
         q.hidden() % kFinishColumns == 0 && q.shared_down.k % kFinishWidthStep == 0 &&
         q.shared_down.k >= kFinishWidthStep && q.shared_down.k <= kFinishWidthMax;
}

int32_t BesideRows(int64_t tokens) {
  return tokens <= kBesideTokens ? 16 : tokens <= 2 * kBesideTokens ? 32 : 64;
}

bool Int4BesideTakes(const ExpertsQuestion& q) {
  if (!q.shared || !Int4Takes(q) || Int4EndsWithShared(q)) return false;
  return IsBf16(*q.shared) && q.shared->aligned(16) && q.shared_down.form == WeightForm::kBf16 &&
         q.shared_down.count == 1 && q.shared_down.aligned(16) && q.shared_down.k == kBesideWidth &&
         q.hidden() <= kBesideHiddenMax &&
         q.hidden() % (kBesideGroups * BesideRows(q.tokens())) == 0;
}

Way Int4Way(const ExpertsQuestion& q) {
  if (Int4EndsWithShared(q)) {
    if (SingleTakes(q)) {
      if (OneLaunchTakes(q)) return {ExpertsKernel::kInt4OneLaunch1, "one token of K2's rank of 8"};
      return {ExpertsKernel::kInt4OneToken, "one token"};
    }
    if (q.tokens() >= 2 && q.tokens() <= kInt4OneLaunchTokens && OneLaunchTakes(q)) {
      return {ExpertsKernel::kInt4OneLaunch4, "a few tokens of K2's rank of 8"};
    }
    // The grouped ways do not add the shared experts. Few tokens have them, and many rows an expert
    // only where few experts are held.
    return Streaming(q, "the shared experts are in the sum of few tokens");
  }
  // Measured, docs/measured/cuda-moe.md: with the sum from about 7 rows an expert, the other from
  // about 12.
  const bool sums = Int4SumTokens(q) > 0;
  if (q.entries() <= (sums ? 7 : 12) * q.slots()) return Streaming(q, "few rows an expert");
  if (sums) return {ExpertsKernel::kInt4GroupedSum, "more than 7 rows an expert"};
  return {ExpertsKernel::kInt4Grouped, "more than 12 rows an expert, and no sum of this shape"};
}

const char* Int4Against(const ExpertsQuestion& q, ExpertsKernel kernel) {
  constexpr const char* kOneLaunch =
      "it takes K2's rank of 8 with choice and shared experts, no norm behind and the card owned";
  if (!Int4Takes(q)) {
    return "it takes int4_group in whole tiles of 128, without gaps, and x aligned to 16 bytes";
  }
  switch (kernel) {
    case ExpertsKernel::kInt4OneLaunch1:
      if (q.tokens() != 1) return "it takes one token";
      return Int4EndsWithShared(q) && SingleTakes(q) && OneLaunchTakes(q) ? nullptr : kOneLaunch;
    case ExpertsKernel::kInt4OneLaunch4:
      if (q.tokens() < 2 || q.tokens() > kInt4OneLaunchTokens) return "it takes 2 to 4 tokens";
      return Int4EndsWithShared(q) && OneLaunchTakes(q) ? nullptr : kOneLaunch;
    case ExpertsKernel::kInt4OneToken:
      if (q.tokens() != 1) return "it takes one token";
      return Int4EndsWithShared(q) && SingleTakes(q)
                 ? nullptr
                 : "it takes shared experts, and an intermediate size of 256";
    case ExpertsKernel::kInt4Digits:
      return q.intermediate() == kDigitIntermediate ? nullptr
                                                    : "it takes an intermediate size of 256";
    case ExpertsKernel::kInt4GroupedSum:
      return Int4SumTokens(q) > 0 ? nullptr
                                  : "it takes an intermediate size of 256, and the card owned";
    default:
      return nullptr;
  }
}

int32_t Int4SumTokens(const ExpertsQuestion& q) {
  // All of its blocks wait for each other.
  if (!q.card.owned || q.intermediate() != kSumIntermediate ||
      q.hidden() / kSumColumns > kMaxSumChunks) {
    return 0;
  }
  const int32_t blocks = q.card.multiprocessors;
  int32_t tokens = std::min(grouped_sum::kMaxTokens * blocks, 65535);
  const auto fits = [&](int64_t t) {
    const int32_t units = grouped_sum::LeastUnits(q.slots(), t * q.top_k, blocks);
    return units <= int4_sum::kMaxUnits &&
           int4_sum::SharedBytes(units, int4_sum::kMinDepth) <= int4_sum::kSharedLimit;
  };
  while (tokens > 0 && !fits(tokens)) tokens -= std::min(tokens, 64);
  return tokens;
}

}  // namespace experts_ways
}  // namespace baltoro::cuda
