#pragma once

// The choice of experts for one token by one block, a thread an expert.

#include "ops/cuda/rows/rows_device.cuh"
#include "ops/gpu_limits.h"

namespace baltoro::cuda {

inline constexpr int kRouteExpertsMax = kGpuExpertsMax;
inline constexpr int kRouteTopMax = kGpuChosenMax;
inline constexpr int kRouteBestMax = 256;

struct RouteShared {
  double partial[32];
  float scores[kRouteExpertsMax];
  uint32_t keys[kRouteExpertsMax];  // of what is chosen by: greater is better
  float group_scores[kRouteExpertsMax];
  uint32_t best[kRouteBestMax];  // keys of each warp's best, the best first
  int32_t best_ids[kRouteBestMax];
  int32_t chosen[kRouteTopMax];
};

// Integers in the order of the floats; NaN as -inf, and equal zeros equal.
__device__ inline uint32_t ChoiceKey(float value) {
  const float known = isnan(value) ? -INFINITY : value + 0.0f;
  const uint32_t bits = __float_as_uint(known);
  return bits ^ (static_cast<uint32_t>(static_cast<int32_t>(bits) >> 31) | 0x80000000u);
}
__device__ inline float ValueOfKey(uint32_t key) {
  return __uint_as_float(key >> 31 != 0 ? key ^ 0x80000000u : ~key);
}

// f(a, b) over all threads of the block, in an order that the block's size alone decides.
template <typename F>
__device__ inline double BlockReduce(double value, double* partial, F f) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) value = f(value, __shfl_xor_sync(~0u, value, step));
  __syncthreads();
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = value;
  __syncthreads();
  value = partial[0];
  for (int warp = 1; warp < static_cast<int>(blockDim.x) / 32; ++warp) {
    value = f(value, partial[warp]);
  }
  return value;
}

// In f64, rounded to f32 as the contract's scores are: choices hang on their last bits.
__device__ inline float SigmoidScore(float logit) {
  return static_cast<float>(1.0 / (1.0 + exp(-static_cast<double>(logit))));
}

// The sigmoid within 4e-7: of ex2.approx 2^-22 and of its argument |logit| 2^-23 of e^-logit, which
// counts for a quarter and, times |logit|, for less than that; 2^-22 for the sum and the quotient.
__device__ __forceinline__ float NearSigmoid(float logit) {
  float result;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(1.0f + hopper::Exp2(logit * -1.44269504f)));
  return result;
}

__device__ inline float RouteScore(float logit,
                                   bool expert,
                                   RouterScore kind,
                                   RouteShared& shared) {
  if (kind == RouterScore::kSigmoid) return SigmoidScore(logit);
  const double value = logit;
  const double highest = BlockReduce(expert ? value : -INFINITY, shared.partial,
                                     [](double a, double b) { return fmax(a, b); });
  const double weight = expert ? exp(value - highest) : 0.0;
  const double sum = BlockReduce(weight, shared.partial, [](double a, double b) { return a + b; });
  return static_cast<float>(weight / sum);
}

// Experts outside the best groups get -inf. Ends without a barrier.
__device__ inline void LimitGroups(const RouterParams& params, RouteShared& shared) {
  const int size = params.experts / params.groups;
  const int lane = threadIdx.x % 32;
  for (int g = threadIdx.x / 32; g < params.groups; g += static_cast<int>(blockDim.x) / 32) {
    uint32_t first = 0, second = 0;  // below the key of -inf
    for (int e = lane; e < size; e += 32) {
      const uint32_t key = shared.keys[g * size + e];
      second = max(second, min(first, key));
      first = max(first, key);
    }
    for (int step = 16; step > 0; step /= 2) {
      const uint32_t other_first = __shfl_xor_sync(~0u, first, step);
      const uint32_t other_second = __shfl_xor_sync(~0u, second, step);
      second = max(max(second, other_second), min(first, other_first));
      first = max(first, other_first);
    }
    const bool two = params.group_by_top2 && size > 1;
    if (lane == 0) {
      shared.group_scores[g] = two ? ValueOfKey(first) + ValueOfKey(second) : ValueOfKey(first);
    }
  }
  __syncthreads();
  const int expert = static_cast<int>(threadIdx.x);
  if (expert >= params.experts) return;
  const int mine = expert / size;
  const uint32_t own = ChoiceKey(shared.group_scores[mine]);
  int better = 0;
  for (int g = 0; g < params.groups; ++g) {
    const uint32_t key = ChoiceKey(shared.group_scores[g]);
    better += key > own || (key == own && g < mine) ? 1 : 0;
  }
  if (better >= params.groups_used) shared.keys[expert] = ChoiceKey(-INFINITY);
}

// `top_k` of a warp's keys, best first, ties to the lower index; lane j returns the j-th. keys[j]
// of a lane is that of expert lane + 32 j; 0: no expert, or taken.
template <int kEach>
__device__ inline int BestOf(uint32_t (&keys)[kEach], int top_k) {
  const int lane = threadIdx.x % 32;
  int chosen = 0;
  for (int k = 0; k < top_k; ++k) {
    uint32_t best = 0;
#pragma unroll
    for (int j = 0; j < kEach; ++j) best = max(best, keys[j]);
    best = __reduce_max_sync(~0u, best);
    uint32_t at = ~0u;
#pragma unroll
    for (int j = kEach - 1; j >= 0; --j) at = keys[j] == best ? lane + 32 * j : at;
    at = __reduce_min_sync(~0u, at);
#pragma unroll
    for (int j = 0; j < kEach; ++j) keys[j] = at == lane + 32 * j ? 0 : keys[j];
    chosen = lane == k ? static_cast<int>(at) : chosen;
  }
  return chosen;
}

// The same of shared.keys.
template <int kEach>
__device__ inline int BestOf(const RouteShared& shared, int experts, int top_k) {
  uint32_t keys[kEach];
#pragma unroll
  for (int j = 0; j < kEach; ++j) {
    const int expert = static_cast<int>(threadIdx.x) % 32 + 32 * j;
    keys[j] = expert < experts ? shared.keys[expert] : 0;
  }
  return BestOf<kEach>(keys, top_k);
}

// Writes shared.chosen, by all threads: each warp ranks its own keys, then the `top_k` best of all
// warps are ranked. Nothing is done in turns, as BestOf does it.
__device__ inline void RankBest(RouteShared& shared, int experts, int top_k) {
  const int expert = static_cast<int>(threadIdx.x), lane = expert % 32, warp = expert / 32;
  const int warps = static_cast<int>(blockDim.x) / 32;
  // Experts that do not exist have keys below all that do.
  const uint32_t own = expert < experts ? shared.keys[expert] : 0;
  int rank = 0;
#pragma unroll
  for (int j = 0; j < 32; ++j) {
    const uint32_t other = __shfl_sync(~0u, own, j);
    rank += other > own || (other == own && j < lane) ? 1 : 0;
  }
  if (rank < top_k) {
    shared.best[warp * top_k + rank] = own;
    shared.best_ids[warp * top_k + rank] = expert;
  }
  __syncthreads();
  const int count = warps * top_k;
  if (expert >= count) return;
  const uint32_t mine = shared.best[expert];
  rank = 0;
#pragma unroll 8
  for (int i = 0; i < count; ++i) {
    const uint32_t other = shared.best[i];
    rank += other > mine || (other == mine && i < expert) ? 1 : 0;
  }
  if (rank < top_k) shared.chosen[rank] = shared.best_ids[expert];
}

// The whole choice for one token. The block has params.experts threads, rounded up to whole warps;
// `logit` and `bias` are those of the thread's expert.
__device__ inline void RouteToken(const RouterParams& params,
                                  float logit,
                                  float bias,
                                  int32_t* ids,
                                  float* weights,
                                  RouteShared& shared) {
  const int expert = static_cast<int>(threadIdx.x);
  const bool real = expert < params.experts;
  const float score = RouteScore(logit, real, params.score, shared);
  if (real) {
    shared.scores[expert] = score;
    shared.keys[expert] = ChoiceKey(score + bias);
  }
  __syncthreads();
  if (params.groups > 1) {
    LimitGroups(params, shared);
    __syncthreads();
  }
  const int warps = static_cast<int>(blockDim.x) / 32;
  const bool ranks = warps * params.top_k <= min(kRouteBestMax, static_cast<int>(blockDim.x));
  if (ranks) {
    RankBest(shared, params.experts, params.top_k);
    __syncthreads();
  }
  if (threadIdx.x >= 32) return;
  int chosen = 0;
  if (ranks) {
    if (static_cast<int>(threadIdx.x) < params.top_k) chosen = shared.chosen[threadIdx.x];
  } else {
    chosen = BestOf<32>(shared, params.experts, params.top_k);
  }
  const double mine = static_cast<int>(threadIdx.x) < params.top_k ? shared.scores[chosen] : 0.0f;
  double sum = 0;
  for (int k = 0; k < params.top_k; ++k) sum += __shfl_sync(~0u, mine, k);
  if (static_cast<int>(threadIdx.x) >= params.top_k) return;
  const double weight = params.normalise ? mine / (sum + 1e-20) : mine;
  ids[threadIdx.x] = chosen;
  weights[threadIdx.x] = static_cast<float>(weight * static_cast<double>(params.scaling));
}

}  // namespace baltoro::cuda
