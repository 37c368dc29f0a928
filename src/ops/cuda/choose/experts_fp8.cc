// Banks of FP8 blocks whose inputs are rounded to e4m3 by groups of 128.

#include <algorithm>

#include "ops/cuda/choose/experts_down_sum.h"
#include "ops/cuda/choose/experts_ways.h"

namespace baltoro::cuda::experts_ways {
namespace {

bool Quantised(const MatrixFacts& w) {
  return w.form == WeightForm::kFp8Block && w.quantise_input && w.k % 128 == 0 && w.aligned(128);
}

// Rows an expert, on average, up to which the streaming way is the fastest, and then the one with
// the sum: shares that stay in the L2 save more than its adders take from products.
constexpr int64_t kStreamingRowsMax = 3, kSumRowsMax = 90;

bool SharedInKernel(const ExpertsQuestion& q) {
  return q.shared && Quantised(q.shared_down) && IsBf16(*q.shared) && q.shared->aligned(16);
}

// All of a bank in one launch, with the choice and the shared experts.
bool OneLaunchTakes(const ExpertsQuestion& q) {
  return KernelCanChoose(q) && q.top_k == kOneLaunchExperts && SharedInKernel(q) &&
         q.out.type == DType::kF32 && q.gate_up.n == 2 * kOneLaunchIntermediate &&
         q.gate_up.k == kOneLaunchHidden && q.down.n == kOneLaunchHidden &&
         q.down.k == kOneLaunchIntermediate && q.shared_down.n == kOneLaunchHidden &&
         q.shared_down.k == kOneLaunchIntermediate && OneLaunchFits(q.card);
}

bool EntriesTake(const ExpertsQuestion& q) {
  const bool shared = !q.shared || (SharedInKernel(q) && q.shared_down.k <= q.down.k);
  return q.out.type == DType::kF32 && q.tokens() <= kFp8EntriesTokens &&
         q.top_k <= kFp8EntriesExperts && shared && q.gate_up.k / 128 <= kFp8EntriesSteps &&
         q.down.k / 128 <= kFp8EndSteps && q.x.aligned(16) && (q.x_coded || !q.codes_alone) &&
         Fp8EndStrips(q.tokens(), q.down.n, q.down.k) > 0;
}

}  // namespace

bool Fp8Takes(const ExpertsQuestion& q) {
  return Quantised(q.gate_up) && Quantised(q.down) && q.slots() <= kBankSlotsMax;
}

int32_t Fp8EndStrips(int64_t tokens, int64_t hidden, int64_t intermediate) {
  // As many as can be of what divides the rows, of several tokens so few that two blocks have room
  // on a multiprocessor and one loads while the other multiplies.
  for (const int32_t strips : {7, 8, 4, 2, 1}) {
    if (tokens > 1 && strips > kFp8EndStripsOfTwo) continue;
    if (hidden % (strips * 8) == 0 &&
        kFp8EndWarps * strips * 8 * intermediate <= kFp8EndSharedMax) {
      return strips;
    }
  }
  return 0;
}

bool Fp8RoundedByDown(const ExpertsQuestion& q) {
  return q.tokens() <= kFp8RoundedRows && q.down.k <= kFp8RoundedSteps * 128;
}

Way Fp8Way(const ExpertsQuestion& q) {
  if (OneLaunchTakes(q)) {
    // Of one token, x is read as codes.
    if (q.tokens() == 1 && q.x_coded && EntriesTake(q)) {
      return {ExpertsKernel::kFp8OneLaunch1, "one token of K2's rank of 8, its codes known"};
    }
    if (q.tokens() >= 2 && q.tokens() <= 4) {
      return {ExpertsKernel::kFp8OneLaunch4, "a few tokens of K2's rank of 8"};
    }
    if (q.tokens() >= 2 && q.tokens() <= 8) {
      return {ExpertsKernel::kFp8OneLaunch8, "some tokens of K2's rank of 8"};
    }
  }
  if (EntriesTake(q)) return {ExpertsKernel::kFp8Entries4, "few entries, rarely of one expert"};
  if (q.entries() <= kStreamingRowsMax * q.slots()) {
    return {ExpertsKernel::kFp8Streaming, "up to 3 rows an expert"};
  }
  if (q.entries() <= kSumRowsMax * q.slots() && q.tokens() <= Fp8SumTokens(q)) {
    return {ExpertsKernel::kFp8GroupedSum, "up to 90 rows an expert"};
  }
  return {ExpertsKernel::kFp8Grouped128, "many rows an expert, or no sum of this shape"};
}

const char* Fp8Against(const ExpertsQuestion& q, ExpertsKernel kernel) {
  constexpr const char* kOneLaunch =
      "it takes K2's rank of 8 with choice and shared experts, results in f32 and the card owned";
  if (!Fp8Takes(q)) return "it takes fp8_w8a8 in whole blocks of 128, aligned, up to 1024 slots";
  switch (kernel) {
    case ExpertsKernel::kFp8OneLaunch1:
      if (q.tokens() != 1) return "it takes one token";
      if (!q.x_coded) return "it takes x whose codes a norm wrote";
      return OneLaunchTakes(q) && EntriesTake(q) ? nullptr : kOneLaunch;
    case ExpertsKernel::kFp8OneLaunch4:
      if (q.tokens() < 2 || q.tokens() > 4) return "it takes 2 to 4 tokens";
      return OneLaunchTakes(q) ? nullptr : kOneLaunch;
    case ExpertsKernel::kFp8OneLaunch8:
      if (q.tokens() < 5 || q.tokens() > 8) return "it takes 5 to 8 tokens";
      return OneLaunchTakes(q) ? nullptr : kOneLaunch;
    case ExpertsKernel::kFp8Entries4:
      return EntriesTake(q) ? nullptr : "it takes up to 4 tokens, results in f32, and a small bank";
    case ExpertsKernel::kFp8GroupedSum:
      return q.tokens() <= Fp8SumTokens(q)
                 ? nullptr
                 : "it takes an intermediate size of 256, the card owned, and fewer tokens";
    default:
      return nullptr;
  }
}

int32_t Fp8SumTokens(const ExpertsQuestion& q) {
  // All of its blocks wait for each other.
  if (!q.card.owned || q.down.k != kSumIntermediate || q.down.n % kSumColumns != 0 || q.top_k < 1 ||
      q.top_k > grouped_sum::kTopKMax || q.down.n / kSumColumns > kMaxSumChunks ||
      q.slots() > kBankSlotsMax) {
    return 0;
  }
  const int32_t blocks = std::min(q.card.multiprocessors, kMaxBlocks);
  int32_t tokens = grouped_sum::kMaxTokens * blocks;
  const auto fits = [&](int64_t t) {
    return grouped_sum::LeastUnits(q.slots(), t * q.top_k, blocks) <= fp8_sum::kMaxUnits;
  };
  while (tokens > 0 && !fits(tokens)) tokens -= std::min(tokens, 64);
  return tokens;
}

}  // namespace baltoro::cuda::experts_ways
