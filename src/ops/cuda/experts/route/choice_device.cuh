#pragma once

// The choice of a token's experts by one warp, for kernels that would wait for it as a launch of
// its own (route.cu); ids and weights are the same bits. Scores in f32 leave a lane each of those
// that may be chosen, and these are computed as the contract says, in f64. That launch chooses in a
// like way (route_warp_device.cuh).

#include <math_constants.h>

#include "ops/cuda/experts/bank_device.cuh"
#include "ops/cuda/experts/bank_internal.h"
#include "ops/cuda/rows/route_device.cuh"

namespace baltoro::cuda {

inline constexpr int kChoiceEach = kChoiceExpertsMax / 32;  // experts of a lane, four side by side

struct ChoiceShared {
  alignas(16) float values[kChoiceExpertsMax];  // what is chosen by, in f32; or keys of what it is
  int32_t candidates[32];
  int32_t ids[kChoiceTopMax];  // best first
};

// Expert `i` of this lane.
__device__ __forceinline__ int ChoiceExpert(int i) {
  return (i / 4 * 32 + static_cast<int>(threadIdx.x) % 32) * 4 + i % 4;
}

__device__ __forceinline__ float ChoiceBias(const MoeChoice& p, int expert) {
  return p.bias == nullptr ? 0.0f : __ldg(p.bias + expert);
}

// Reads what is older than the kernels ahead. -inf of experts that do not exist.
__device__ __forceinline__ void LoadChoiceBias(const MoeChoice& p, float4 (&bias)[3]) {
#pragma unroll
  for (int q = 0; q < 3; ++q) {
    const int expert = ChoiceExpert(4 * q);
    const float none = expert < p.experts ? 0 : -CUDART_INF_F;
    bias[q] = make_float4(none, none, none, none);
    if (p.bias == nullptr || expert >= p.experts) continue;
    bias[q] = __ldg(reinterpret_cast<const float4*>(p.bias + expert));
  }
}

// Every expert's, one after the other.
inline __device__ __noinline__ void ChooseSlowly(const MoeChoice& p, ChoiceShared& shared) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  __syncwarp();
#pragma unroll 1
  for (int e = lane; e < p.experts; e += 32) {
    const float score = SigmoidScore(__ldcg(p.logits + e));
    shared.values[e] = __uint_as_float(ChoiceKey(score + ChoiceBias(p, e)));
  }
#pragma unroll 1
  for (int k = 0; k < p.top_k; ++k) {
    __syncwarp();
    uint32_t best = 0;  // no expert, or taken
    int at = 0;
#pragma unroll 1
    for (int e = lane; e < p.experts; e += 32) {
      const uint32_t key = __float_as_uint(shared.values[e]);
      if (key > best) best = key, at = e;
    }
    const uint32_t all = __reduce_max_sync(~0u, best);
    at = static_cast<int>(__reduce_min_sync(~0u, best == all ? static_cast<uint32_t>(at) : ~0u));
    if (lane == 0) {
      shared.values[at] = 0;
      shared.ids[k] = at;
    }
  }
  __syncwarp();
}

// More than twice what a value may be off by: 4e-7 of the score, and one unit in the last place.
__device__ __forceinline__ float ChoiceSlack(float value) {
  return fmaf(fabsf(value), 0x1p-21f, 4e-6f);
}

// By one warp: shared.ids.
__device__ __forceinline__ void Choose(const MoeChoice& p,
                                       const float4 (&bias)[3],
                                       ChoiceShared& shared) {
  static_assert(kChoiceEach == 12);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  float4 logits[3];
#pragma unroll
  for (int q = 0; q < 3; ++q) {
    const int expert = ChoiceExpert(4 * q);
    logits[q] = make_float4(0, 0, 0, 0);
    if (expert >= p.experts) continue;
    logits[q] = __ldcg(reinterpret_cast<const float4*>(p.logits + expert));
  }
  float values[kChoiceEach];
#pragma unroll
  for (int q = 0; q < 3; ++q) {
    const float l[4] = {logits[q].x, logits[q].y, logits[q].z, logits[q].w};
    const float b[4] = {bias[q].x, bias[q].y, bias[q].z, bias[q].w};
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      values[4 * q + e] = fmaxf(NearSigmoid(l[e]) + b[e], -CUDART_INF_F);  // which NaN is then
    }
    *reinterpret_cast<float4*>(shared.values + ChoiceExpert(4 * q)) =
        make_float4(values[4 * q], values[4 * q + 1], values[4 * q + 2], values[4 * q + 3]);
  }
  // At least `top_k` are as good as the `top_k`-th of the best of 16 groups.
  float best = values[0];
#pragma unroll
  for (int i = 1; i < kChoiceEach; ++i) best = fmaxf(best, values[i]);
  best = fmaxf(best, __shfl_xor_sync(~0u, best, 16));
  // In the order of the floats but for the last 4 bits, which tell the groups apart.
  const uint32_t bits = __float_as_uint(best);
  const uint32_t order =
      bits ^ (static_cast<uint32_t>(static_cast<int32_t>(bits) >> 31) | 1u << 31);
  const uint32_t group = (order | 15) - static_cast<uint32_t>(lane % 16);
  int rank = 0;
#pragma unroll
  for (int j = 0; j < 16; ++j) rank += __shfl_sync(~0u, group, j) > group ? 1 : 0;
  const uint32_t last = __ballot_sync(~0u, rank == p.top_k - 1);
  const float least = ValueOfKey(__shfl_sync(~0u, group, __ffs(static_cast<int>(last)) - 1) & ~15u);
  const float bound = least - ChoiceSlack(least);
  uint32_t mine = 0;
#pragma unroll
  for (int i = 0; i < kChoiceEach; ++i) mine |= values[i] >= bound ? 1u << i : 0;
  int count = 0;
#pragma unroll 1
  for (;;) {
    const uint32_t with = __ballot_sync(~0u, mine != 0);
    if (with == 0) break;
    const int at = count + __popc(with & ((1u << lane) - 1));
    if (mine != 0 && at < 32)
      shared.candidates[at] = ChoiceExpert(__ffs(static_cast<int>(mine)) - 1);
    mine &= mine - 1;
    count += __popc(with);
  }
  // More, or nobody, where values are many of a kind, infinite or none.
  if (count > 32 || count < p.top_k) return ChooseSlowly(p, shared);
  __syncwarp();
  const int id = lane < count ? shared.candidates[lane] : kChoiceExpertsMax;
  if (count <= 16) {
    // As a rule no two are so close that f32 does not tell their order.
    const float value = lane < count ? shared.values[id] : -CUDART_INF_F;
    const float slack = ChoiceSlack(value);
    bool close = false;
    rank = 0;
#pragma unroll
    for (int j = 0; j < 16; ++j) {
      const float other = __shfl_sync(~0u, value, j);
      rank += other > value ? 1 : 0;
      close = close || (j != lane && !(fabsf(other - value) > slack));
    }
    if (!__any_sync(~0u, lane < count && close)) {
      if (lane < count && rank < p.top_k) shared.ids[rank] = id;
      __syncwarp();
      return;
    }
    rank = 0;
  }
  uint32_t key = 0;  // of no expert
  if (lane < count) {
    key = ChoiceKey(SigmoidScore(__ldcg(p.logits + id)) + ChoiceBias(p, id));
  }
  rank = 0;
#pragma unroll 1
  for (int j = 0; j < count; ++j) {
    const uint32_t other = __shfl_sync(~0u, key, j);
    const int other_id = __shfl_sync(~0u, id, j);
    rank += other > key || (other == key && other_id < id) ? 1 : 0;
  }
  if (lane < count && rank < p.top_k) shared.ids[rank] = id;
  __syncwarp();
}

// Of the lane's rank, below top_k; by one warp, after Choose.
__device__ __forceinline__ float ChoiceWeight(const MoeChoice& p, const ChoiceShared& shared) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const double mine = lane < p.top_k ? SigmoidScore(__ldcg(p.logits + shared.ids[lane])) : 0.0f;
  double sum = 0;
  for (int k = 0; k < p.top_k; ++k) sum += __shfl_sync(~0u, mine, k);
  const double weight = p.normalise ? mine / (sum + 1e-20) : mine;
  return static_cast<float>(weight * static_cast<double>(p.scaling));
}

}  // namespace baltoro::cuda
