// Adds the partial results of sequences that were cut: out = sum_j 2^(lse_j - lse) out_j, pieces in
// order.

#include <cuda_bf16.h>
#include <math_constants.h>

#include <algorithm>

#include "device/cuda/cuda_status.h"
#include "ops/cuda/hopper.cuh"
#include "ops/cuda/mla_decode_internal.h"

namespace baltoro::cuda {
namespace {

constexpr int kColumns = kMlaLatent / 4;  // threads of a row, each with 4 columns
constexpr int kGroups = 4;                // rows, or runs of pieces of one row, at a time
constexpr int kThreads = kColumns * kGroups;
constexpr int kManyPieces = 6;  // above, all groups share a row
constexpr float kLn2 = 0.69314718056f;

__device__ int SlotOf(const MlaMerge& merge, int piece) {
  return piece == 0 ? merge.first_slot : merge.second_slot + (piece - 1) * merge.stride;
}

struct Sum {
  float4 out;
  float lse;
};

// Pieces [begin, end) of one row.
__device__ Sum
AddPieces(const MlaPlan& plan, const MlaMerge& merge, int row, int column, int begin, int end) {
  const auto at = [&](int piece) { return int64_t{SlotOf(merge, piece)} * plan.tile_rows + row; };
  float highest = -CUDART_INF_F;
  for (int piece = begin; piece < end; ++piece) {
    highest = fmaxf(highest, plan.partial_lse[at(piece)]);
  }
  Sum sum = {make_float4(0, 0, 0, 0), -CUDART_INF_F};
  // A NaN is lost by fmaxf but not by the sum below.
  const float base = highest == -CUDART_INF_F ? 0 : highest;
  float weights = 0;
#pragma unroll 4
  for (int piece = begin; piece < end; ++piece) {
    const float weight = exp2f(plan.partial_lse[at(piece)] - base);
    const float4 part =
        *reinterpret_cast<const float4*>(plan.partial_out + at(piece) * kMlaLatent + 4 * column);
    weights += weight;
    sum.out.x += weight * part.x;
    sum.out.y += weight * part.y;
    sum.out.z += weight * part.z;
    sum.out.w += weight * part.w;
  }
  if (weights == 0) return sum;
  const float share = 1 / weights;
  sum.out = make_float4(sum.out.x * share, sum.out.y * share, sum.out.z * share, sum.out.w * share);
  sum.lse = base + log2f(weights);
  return sum;
}

__device__ void Write(const MlaKernelArgs& args, int64_t row, int column, const Sum& sum) {
  const float scale = args.out_scale;
  uint2 packed;
  packed.x = hopper::PackBf16(sum.out.x * scale, sum.out.y * scale);
  packed.y = hopper::PackBf16(sum.out.z * scale, sum.out.w * scale);
  auto* const out = static_cast<__nv_bfloat16*>(args.out) + row * kMlaLatent + 4 * column;
  *reinterpret_cast<uint2*>(out) = packed;
  if (column == 0 && args.lse != nullptr) args.lse[row] = sum.lse * kLn2;
}

__global__ void __launch_bounds__(kThreads)
    MergeKernel(const __grid_constant__ MlaKernelArgs args) {
  __shared__ float4 outs[kGroups][kColumns];
  __shared__ float lses[kGroups];
  hopper::WaitForPredecessors();
  const MlaPlan& plan = args.plan;
  const int group = threadIdx.x / kColumns;
  const int column = threadIdx.x % kColumns;
  const int merges = *plan.merge_count;
  // A unit is 4 rows of one merge.
  const int units_each = plan.tile_rows / kGroups;
  for (int unit = blockIdx.x; unit < merges * units_each; unit += gridDim.x) {
    const MlaMerge merge = plan.merges[unit / units_each];
    const int first = unit % units_each * kGroups;
    const int first_query = args.sequences.query_begin[merge.sequence];
    const int tile_row = merge.tile * kMlaTileRows;
    const int rows =
        (args.sequences.query_begin[merge.sequence + 1] - first_query) * args.heads - tile_row;
    const int64_t out_row = int64_t{first_query} * args.heads + tile_row;
    if (merge.count <= kManyPieces) {
      const int row = first + group;
      if (row < rows) {
        Write(args, out_row + row, column, AddPieces(plan, merge, row, column, 0, merge.count));
      }
      continue;
    }
    for (int row = first; row < min(first + kGroups, rows); ++row) {
      const int begin = merge.count * group / kGroups;
      const int end = merge.count * (group + 1) / kGroups;
      const Sum mine = AddPieces(plan, merge, row, column, begin, end);
      __syncthreads();
      outs[group][column] = mine.out;
      if (column == 0) lses[group] = mine.lse;
      __syncthreads();
      if (group != 0) continue;
      float highest = -CUDART_INF_F;
      for (int g = 0; g < kGroups; ++g) highest = fmaxf(highest, lses[g]);
      const float base = highest == -CUDART_INF_F ? 0 : highest;
      Sum all = {make_float4(0, 0, 0, 0), -CUDART_INF_F};
      float weights = 0;
      for (int g = 0; g < kGroups; ++g) {
        const float weight = exp2f(lses[g] - base);
        weights += weight;
        all.out.x += weight * outs[g][column].x;
        all.out.y += weight * outs[g][column].y;
        all.out.z += weight * outs[g][column].z;
        all.out.w += weight * outs[g][column].w;
      }
      if (!(weights == 0)) {
        const float share = 1 / weights;
        all.out =
            make_float4(all.out.x * share, all.out.y * share, all.out.z * share, all.out.w * share);
        all.lse = base + log2f(weights);
      }
      Write(args, out_row + row, column, all);
    }
  }
}

}  // namespace

Status LaunchMlaMerge(const MlaKernelArgs& args, cudaStream_t stream) {
  const int64_t units = args.plan.max_merges * (args.plan.tile_rows / kGroups);
  cudaLaunchConfig_t config = {};
  config.gridDim = static_cast<unsigned>(std::min<int64_t>(units, 4 * args.plan.num_parts));
  config.blockDim = kThreads;
  config.stream = stream;
  // Its blocks may be placed while the attention runs; they wait for its end.
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  config.attrs = &attribute;
  config.numAttrs = 1;
  BT_CUDA_RETURN_IF_ERROR(cudaLaunchKernelEx(&config, MergeKernel, args));
  return Status();
}

}  // namespace baltoro::cuda
