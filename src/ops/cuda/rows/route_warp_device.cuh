#pragma once

// The choice of experts for one token by one warp, for sigmoid scores without groups: no barriers
// and little f64. Same ids and weights, bit for bit, as by a block (route_device.cuh).
//
// A sigmoid in f64 is some 45 instructions, and the contract's scores are rounded from it. So
// scores are taken in f32 first. With d the most that such a choice value may be off, and T one
// that top_k experts reach, those top_k are at T - d or above in truth, all chosen are, and so all
// chosen are at T - 2 d or above in f32: of ten or so experts the scores are taken in f64, one a
// lane. Where blocks of a bank wait for ids first and for weights later, choice_device.cuh.

#include "ops/cuda/rows/route_device.cuh"

namespace baltoro::cuda {

struct RouteWarpShared {
  int32_t experts[32];  // those that may be chosen, in order
  float values[32];     // and what they are chosen by, in f32
  float scores[32];     // of the chosen, the best first
};

// Choice values in f32 that are further apart are in the order of the true ones: 2 d and as much
// again, the sum with the bias being rounded twice.
__device__ inline float ChoiceMargin(float value) {
  return 4e-6f + fabsf(value) * 1e-6f;
}

// A lane's part of the result: the expert that is the `rank`-th best, if that is below top_k.
struct WarpChoice {
  int rank, expert;
};

// Where more than 32 experts may be chosen, or less than top_k are finite: everything in f64.
inline __device__ __noinline__ WarpChoice ChooseOfAll(int experts,
                                                      int top_k,
                                                      const float* logits,
                                                      const float* bias) {
  const int lane = threadIdx.x % 32;
  uint32_t keys[kWarpExperts];
#pragma unroll 1
  for (int j = 0; j < kWarpExperts; ++j) {
    const int expert = lane + 32 * j;
    uint32_t key = 0;
    if (expert < experts) {
      key = ChoiceKey(SigmoidScore(logits[expert]) + (bias == nullptr ? 0.0f : bias[expert]));
    }
#pragma unroll
    for (int i = 0; i < kWarpExperts; ++i) keys[i] = i == j ? key : keys[i];
  }
  return {lane, BestOf<kWarpExperts>(keys, top_k)};
}

// A value that the best of `top_k` lanes at least reach, given the key of this lane's best.
__device__ inline float ReachedBy(int top_k, uint32_t best) {
  const int lane = threadIdx.x % 32;
  if (top_k > 16) {
    uint32_t left = best, reached = 0;
    for (int taken = 0; taken < top_k;) {
      reached = __reduce_max_sync(~0u, left);
      taken += __popc(__ballot_sync(~0u, left == reached));
      if (left == reached) left = 0;
    }
    return ValueOfKey(reached);
  }
  // Of 16 pairs of lanes, which the last 4 bits tell apart: none waits for another.
  best = max(best, __shfl_xor_sync(~0u, best, 16));
  const uint32_t own = (best | 15) - static_cast<uint32_t>(lane % 16);
  int rank = 0;
#pragma unroll
  for (int j = 0; j < 16; ++j) rank += __shfl_sync(~0u, own, j) > own ? 1 : 0;
  const uint32_t last = __ballot_sync(~0u, rank == top_k - 1);
  return ValueOfKey(__shfl_sync(~0u, own, __ffs(static_cast<int>(last)) - 1) & ~15u);
}

// The choice for one token, by a warp. `biases` are those of the lane's experts, lane + 32 j.
__device__ inline WarpChoice ChooseByWarp(const RouterParams& params,
                                          const float* logits,
                                          const float* bias,
                                          const float (&biases)[kWarpExperts],
                                          RouteWarpShared& shared) {
  const int lane = threadIdx.x % 32;
  float values[kWarpExperts], best = -INFINITY;
#pragma unroll
  for (int j = 0; j < kWarpExperts; ++j) {
    values[j] = lane + 32 * j < params.experts ? logits[lane + 32 * j] : NAN;
  }
#pragma unroll
  for (int j = 0; j < kWarpExperts; ++j) {
    values[j] = NearSigmoid(values[j]) + biases[j];
    best = fmaxf(best, values[j]);  // no NaN
  }
  const float reached = ReachedBy(params.top_k, ChoiceKey(best));
  const float least = reached - ChoiceMargin(reached);
  int count = 0;
#pragma unroll
  for (int j = 0; j < kWarpExperts; ++j) {
    const bool may = values[j] >= least;
    const unsigned those = __ballot_sync(~0u, may);
    const int at = count + __popc(those & ((1u << lane) - 1));
    if (may && at < 32) {
      shared.experts[at] = lane + 32 * j;
      shared.values[at] = values[j];
    }
    count += __popc(those);
  }
  __syncwarp();
  if (count < params.top_k || count > 32 || !(least > -INFINITY)) {
    return ChooseOfAll(params.experts, params.top_k, logits, bias);
  }
  WarpChoice choice = {32, 0};
  float value = -INFINITY;
  if (lane < count) {
    choice.expert = shared.experts[lane];
    value = shared.values[lane];
    choice.rank = 0;
  }
  const float margin = ChoiceMargin(value);
  bool close = false;
#pragma unroll 4
  for (int i = 0; i < count; ++i) {
    const float other = __shfl_sync(~0u, value, i);
    choice.rank += other > value ? 1 : 0;
    // Also where one is infinite.
    close = close || (i != lane && !(fabsf(other - value) > margin));
  }
  if (!__any_sync(~0u, lane < count && close)) return choice;
  uint32_t key = 0;
  if (lane < count) {
    const float score = SigmoidScore(logits[choice.expert]);
    key = ChoiceKey(score + (bias == nullptr ? 0.0f : bias[choice.expert]));
    choice.rank = 0;
  }
  // Lanes have experts in their order, which decides between equals.
#pragma unroll 4
  for (int i = 0; i < count; ++i) {
    const uint32_t other = __shfl_sync(~0u, key, i);
    choice.rank += other > key || (other == key && i < lane) ? 1 : 0;
  }
  return choice;
}

// The chosen experts' weights, by the same warp.
__device__ inline void WeighByWarp(const RouterParams& params,
                                   const float* logits,
                                   const WarpChoice& choice,
                                   float* weights,
                                   RouteWarpShared& shared) {
  const bool chosen = choice.rank < params.top_k;
  float score = 0;
  if (chosen) {
    score = SigmoidScore(logits[choice.expert]);
    shared.scores[choice.rank] = score;
  }
  __syncwarp();
  double sum = 0;
  for (int k = 0; k < params.top_k; ++k) sum += static_cast<double>(shared.scores[k]);
  if (!chosen) return;
  const double mine = score;
  const double weight = params.normalise ? mine / (sum + 1e-20) : mine;
  weights[choice.rank] = static_cast<float>(weight * static_cast<double>(params.scaling));
}

}  // namespace baltoro::cuda
