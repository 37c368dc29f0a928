// Adds up the results of tiles whose keys were dealt over several thread blocks:
// out = sum_p 2^(lse_p - lse) out_p, parts in order.

#include <cuda_bf16.h>
#include <math_constants.h>

#include "ops/cuda/attention/attention_kernels.h"
#include "ops/cuda/rows/rows_device.cuh"

namespace baltoro::cuda {
namespace {

constexpr int kWarps = 8;
constexpr int kBlocksOfTile = kPrefillMergeBlocks;
constexpr float kLn2 = 0.69314718056f;

// A warp takes a row of one head, a lane 4 of its columns.
__global__ void __launch_bounds__(kWarps * 32)
    PrefillMergeKernel(const __grid_constant__ PrefillArgs args) {
  const PrefillMerge merge = args.merges[blockIdx.x];
  hopper::WaitForPredecessors();
  hopper::LetDependentsLaunch();
  const int head = blockIdx.y;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  for (int row = blockIdx.z * kWarps + warp; row < merge.query_count;
       row += kWarps * kBlocksOfTile) {
    const auto at = [&](int part) {
      const int64_t partial = int64_t{merge.first_partial} + part * merge.query_count + row;
      return partial * args.heads + head;
    };
    float highest = -CUDART_INF_F;
    for (int part = lane; part < merge.parts; part += 32) {
      highest = fmaxf(highest, args.partial_lse[at(part)]);
    }
    for (int other = 16; other > 0; other /= 2) {
      highest = fmaxf(highest, __shfl_xor_sync(0xFFFFFFFF, highest, other));
    }
    const float base = highest == -CUDART_INF_F ? 0 : highest;
    float4 sum = make_float4(0, 0, 0, 0);
    float total = 0;
#pragma unroll 4
    for (int part = 0; part < merge.parts; ++part) {
      const float weight = exp2f(args.partial_lse[at(part)] - base);
      const float4 value = *reinterpret_cast<const float4*>(args.partial_out +
                                                            at(part) * kAttentionValue + 4 * lane);
      total += weight;
      sum.x += weight * value.x;
      sum.y += weight * value.y;
      sum.z += weight * value.z;
      sum.w += weight * value.w;
    }
    const float share = total == 0 ? 0 : 1 / total;
    const uint2 packed = make_uint2(hopper::PackBf16(sum.x * share, sum.y * share),
                                    hopper::PackBf16(sum.z * share, sum.w * share));
    const int64_t to = merge.query_row + row;
    auto* const out = static_cast<__nv_bfloat16*>(args.out) + to * args.out_row_stride +
                      head * kAttentionValue + 4 * lane;
    *reinterpret_cast<uint2*>(out) = packed;
    if (lane == 0 && args.lse != nullptr) {
      args.lse[to * args.lse_row_stride + head] =
          total == 0 ? -CUDART_INF_F : (base + log2f(total)) * kLn2;
    }
  }
}

}  // namespace

void LaunchPrefillMerge(const PrefillPlan& plan,
                        const PrefillArgs& args,
                        const LaunchStream& stream) {
  const dim3 grid(static_cast<unsigned>(plan.merges), static_cast<unsigned>(args.heads),
                  kBlocksOfTile);
  LaunchAhead("attention merge", stream, PrefillMergeKernel, grid, kWarps * 32, args);
}

}  // namespace baltoro::cuda
