// For one row or two: adds up the pieces of a row and head (as mla_decode_merge.cu) and multiplies
// the sum with the head's value rows at once. A thread block makes 32 columns of one row and head;
// its part of the matrix is in registers before the kernel ahead has ended.

#include <math_constants.h>

#include "device/cuda/cuda_status.h"
#include "ops/cuda/attention/attention_kernels.h"
#include "ops/cuda/attention/decode/mla_decode_work.cuh"
#include "ops/cuda/launch/placed_launch.h"
#include "ops/cuda/ptx/hopper.cuh"

namespace baltoro::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kColumns = kMergedColumns;          // of a block
constexpr int kParts = kThreads / kColumns;       // threads of a column
constexpr int kEights = kMlaLatent / 8 / kParts;  // of a thread
constexpr int kQuads = kMlaLatent / 4;            // threads that add up, four latents each
constexpr int kGroups = kThreads / kQuads;        // runs of pieces side by side
constexpr int kBatch = 8;                         // pieces that are asked for together
constexpr int kPiecesMax = kMergedPiecesMax;

struct Params {
  MlaKernelArgs mla;
  HeadProductArgs values;
};

__device__ __forceinline__ uint4 LoadOnce(const void* from) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(from));
  return v;
}

__device__ __forceinline__ float Low(uint32_t pair) {
  return __uint_as_float(pair << 16);
}
__device__ __forceinline__ float High(uint32_t pair) {
  return __uint_as_float(pair & 0xFFFF0000u);
}

__device__ __forceinline__ float RoundToBf16(float x) {
  return __bfloat162float(__float2bfloat16_rn(x));
}

__global__ void __launch_bounds__(kThreads) MergeValuesKernel(const __grid_constant__ Params p) {
  __shared__ float latents[kGroups][kMlaLatent];
  const int head = blockIdx.y, row = blockIdx.z, lane = threadIdx.x % 32;
  const MlaPlan& plan = p.mla.plan;
  // Eight neighbours of a warp's lanes read 128 bytes of one row of the matrix.
  const int column = static_cast<int>(blockIdx.x) * kColumns + threadIdx.x / kParts;
  const int part = threadIdx.x % kParts;
  const auto* const w = static_cast<const __nv_bfloat16*>(p.values.w) +
                        head * p.values.w_head_stride + int64_t{column} * kMlaLatent + part * 8;
  uint4 weights[kEights];
#pragma unroll
  for (int i = 0; i < kEights; ++i) weights[i] = LoadOnce(w + i * kParts * 8);
  // The plan is older than the kernels ahead.
  const int to = p.values.rows[row];
  const int tile_row = row * static_cast<int>(p.values.heads) + head;
  MlaMerge merge;
  const bool cut = FindMerge(plan, tile_row, [&](const MlaMerge& found) { merge = found; });
  hopper::WaitForPredecessors();
  hopper::LetDependentsLaunch();
  if (to < 0) return;

  const int quad = threadIdx.x % kQuads, group = threadIdx.x / kQuads;
  float4 sum = make_float4(0, 0, 0, 0);
  if (!cut) {
    // Written as it is, in bf16.
    if (group == 0) {
      const uint2 packed =
          __ldcg(reinterpret_cast<const uint2*>(static_cast<const __nv_bfloat16*>(p.mla.out) +
                                                int64_t{tile_row} * kMlaLatent + 4 * quad));
      sum = make_float4(Low(packed.x), High(packed.x), Low(packed.y), High(packed.y));
    }
  } else {
    const int in_tile = tile_row - merge.first_row;
    const auto at = [&](int piece) {
      const int slot =
          piece == 0 ? merge.first_slot : merge.second_slot + (piece - 1) * merge.stride;
      return int64_t{slot} * plan.tile_rows + in_tile;
    };
    // Lane l has the log-sums of pieces l, l + 32, ..
    float lse[kPiecesMax / 32];
    float highest = -CUDART_INF_F;
#pragma unroll
    for (int i = 0; i < kPiecesMax / 32; ++i) {
      const int piece = i * 32 + lane;
      lse[i] = piece < merge.count ? __ldcg(plan.partial_lse + at(piece)) : -CUDART_INF_F;
    }
    const int begin = merge.count * group / kGroups, end = merge.count * (group + 1) / kGroups;
    float4 parts[kBatch];
    const auto load = [&](int first) {
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        parts[i] = make_float4(0, 0, 0, 0);
        if (first + i >= end) continue;
        parts[i] = __ldcg(reinterpret_cast<const float4*>(plan.partial_out +
                                                          at(first + i) * kMlaLatent + 4 * quad));
      }
    };
    load(begin);
#pragma unroll
    for (int i = 0; i < kPiecesMax / 32; ++i) highest = fmaxf(highest, lse[i]);
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
      highest = fmaxf(highest, __shfl_xor_sync(~0u, highest, step));
    }
    const float base = highest == -CUDART_INF_F ? 0 : highest;
    float all = 0;
#pragma unroll
    for (int i = 0; i < kPiecesMax / 32; ++i) {
      lse[i] = i * 32 < merge.count ? exp2f(lse[i] - base) : 0.0f;
      all += lse[i];
    }
#pragma unroll
    for (int step = 16; step > 0; step /= 2) all += __shfl_xor_sync(~0u, all, step);
    const float share = all == 0 ? 0 : p.mla.out_scale / all;
    for (int first = begin; first < end; first += kBatch) {
      if (first > begin) load(first);
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        const int piece = first + i;
        float weight = 0;
#pragma unroll
        for (int k = 0; k < kPiecesMax / 32; ++k) {
          const float one = __shfl_sync(~0u, lse[k], piece % 32);
          if (piece / 32 == k) weight = one;
        }
        if (piece >= end) continue;
        sum.x += weight * parts[i].x;
        sum.y += weight * parts[i].y;
        sum.z += weight * parts[i].z;
        sum.w += weight * parts[i].w;
      }
    }
    sum = make_float4(sum.x * share, sum.y * share, sum.z * share, sum.w * share);
  }
  *reinterpret_cast<float4*>(&latents[group][4 * quad]) = sum;
  __syncthreads();

  float result = 0;
#pragma unroll
  for (int i = 0; i < kEights; ++i) {
    const int first = (i * kParts + part) * 8;
    float x[8] = {};
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      const float4 low = *reinterpret_cast<const float4*>(&latents[g][first]);
      const float4 high = *reinterpret_cast<const float4*>(&latents[g][first + 4]);
      x[0] += low.x, x[1] += low.y, x[2] += low.z, x[3] += low.w;
      x[4] += high.x, x[5] += high.y, x[6] += high.z, x[7] += high.w;
    }
    const uint32_t words[4] = {weights[i].x, weights[i].y, weights[i].z, weights[i].w};
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      result = fmaf(RoundToBf16(x[2 * j]), Low(words[j]), result);
      result = fmaf(RoundToBf16(x[2 * j + 1]), High(words[j]), result);
    }
  }
#pragma unroll
  for (int step = kParts / 2; step > 0; step /= 2) result += __shfl_xor_sync(~0u, result, step);
  if (part == 0) {
    auto* const out = static_cast<__nv_bfloat16*>(p.values.out) + to * p.values.out_row_stride +
                      head * p.values.out_head_stride;
    out[column] = __float2bfloat16_rn(result);
  }
}

}  // namespace

Status LaunchMergeValues(const MergePlan& plan,
                         const MlaKernelArgs& mla,
                         const HeadProductArgs& values,
                         const LaunchStream& stream) {
  const dim3 grid(kAttentionValue / kColumns, static_cast<unsigned>(values.heads),
                  static_cast<unsigned>(plan.blocks));
  BT_CUDA_RETURN_IF_ERROR(LaunchPlaced("merge and values", MergeValuesKernel, grid, dim3(kThreads),
                                       0, stream, 0, Params{mla, values}));
  return Status();
}

}  // namespace baltoro::cuda
