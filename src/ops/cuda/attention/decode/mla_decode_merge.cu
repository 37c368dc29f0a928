// Adds the partial results of sequences that were cut: out = sum_j 2^(lse_j - lse) out_j, pieces in
// order.

#include <cuda_bf16.h>
#include <math_constants.h>

#include "device/cuda/cuda_status.h"
#include "ops/cuda/attention/attention_sizes.h"
#include "ops/cuda/attention/decode/mla_decode_internal.h"
#include "ops/cuda/launch/placed_launch.h"
#include "ops/cuda/ptx/hopper.cuh"

namespace baltoro::cuda {
namespace {

constexpr int kColumns = kMlaLatent / 4;  // threads of a row, each with 4 columns
constexpr int kGroups = kMergeGroups;     // rows, or runs of pieces of one row, at a time
constexpr int kThreads = kColumns * kGroups;
constexpr int kManyPieces = 6;  // above, all groups share a row
constexpr float kLn2 = 0.69314718056f;

// Index of the row in the partial results of a piece.
__device__ int64_t At(const MlaPlan& plan, const MlaMerge& merge, int piece, int row) {
  const int slot = piece == 0 ? merge.first_slot : merge.second_slot + (piece - 1) * merge.stride;
  return int64_t{slot} * plan.tile_rows + row;
}

// Sums of the pieces' results times 2^(lse - base), and of those weights.
struct Sum {
  float4 out = make_float4(0, 0, 0, 0);
  float weights = 0;

  __device__ void Add(float weight, const float4& part) {
    weights += weight;
    out.x += weight * part.x;
    out.y += weight * part.y;
    out.z += weight * part.z;
    out.w += weight * part.w;
  }
};

__device__ float4 LoadPart(const MlaPlan& plan, int64_t at, int column) {
  return *reinterpret_cast<const float4*>(plan.partial_out + at * kMlaLatent + 4 * column);
}

// fmaxf drops a NaN, but the weight made of it does not.
__device__ float Base(float highest) {
  return highest == -CUDART_INF_F ? 0 : highest;
}

__device__ void Write(
    const MlaKernelArgs& args, int64_t row, int column, const Sum& sum, float base) {
  const float share = sum.weights == 0 ? 0 : args.out_scale / sum.weights;
  uint2 packed;
  packed.x = hopper::PackBf16(sum.out.x * share, sum.out.y * share);
  packed.y = hopper::PackBf16(sum.out.z * share, sum.out.w * share);
  auto* const out = static_cast<__nv_bfloat16*>(args.out) + row * kMlaLatent + 4 * column;
  *reinterpret_cast<uint2*>(out) = packed;
  if (column == 0 && args.lse != nullptr) {
    args.lse[row] = sum.weights == 0 ? -CUDART_INF_F : (base + log2f(sum.weights)) * kLn2;
  }
}

// One row by 128 threads, all loads at once.
__device__ void MergeFew(const MlaKernelArgs& args, const MlaMerge& merge, int row, int column) {
  float lse[kManyPieces];
  float4 part[kManyPieces];
  float highest = -CUDART_INF_F;
#pragma unroll
  for (int piece = 0; piece < kManyPieces; ++piece) {
    if (piece >= merge.count) break;
    const int64_t at = At(args.plan, merge, piece, row);
    lse[piece] = args.plan.partial_lse[at];
    part[piece] = LoadPart(args.plan, at, column);
  }
#pragma unroll
  for (int piece = 0; piece < kManyPieces; ++piece) {
    if (piece < merge.count) highest = fmaxf(highest, lse[piece]);
  }
  const float base = Base(highest);
  Sum sum;
#pragma unroll
  for (int piece = 0; piece < kManyPieces; ++piece) {
    if (piece < merge.count) sum.Add(exp2f(lse[piece] - base), part[piece]);
  }
  Write(args, merge.first_row + row, column, sum, base);
}

// One row by the thread block, each group of threads a run of the pieces.
__device__ void MergeMany(const MlaKernelArgs& args, const MlaMerge& merge, int row) {
  __shared__ Sum sums[kGroups][kColumns];
  __shared__ float highests[kThreads / 32];
  const int group = threadIdx.x / kColumns;
  const int column = threadIdx.x % kColumns;
  float highest = -CUDART_INF_F;
  for (int piece = threadIdx.x; piece < merge.count; piece += kThreads) {
    highest = fmaxf(highest, args.plan.partial_lse[At(args.plan, merge, piece, row)]);
  }
  for (int other = 16; other > 0; other /= 2) {
    highest = fmaxf(highest, __shfl_xor_sync(0xFFFFFFFF, highest, other));
  }
  __syncthreads();  // the row before is done with shared memory
  if (threadIdx.x % 32 == 0) highests[threadIdx.x / 32] = highest;
  __syncthreads();
  for (int warp = 0; warp < kThreads / 32; ++warp) highest = fmaxf(highest, highests[warp]);
  const float base = Base(highest);
  Sum sum;
  const int end = merge.count * (group + 1) / kGroups;
#pragma unroll 8
  for (int piece = merge.count * group / kGroups; piece < end; ++piece) {
    const int64_t at = At(args.plan, merge, piece, row);
    sum.Add(exp2f(args.plan.partial_lse[at] - base), LoadPart(args.plan, at, column));
  }
  sums[group][column] = sum;
  __syncthreads();
  if (group != 0) return;
  for (int other = 1; other < kGroups; ++other) {
    const Sum& more = sums[other][column];
    const float weights = sum.weights + more.weights;
    sum.Add(1, more.out);
    sum.weights = weights;
  }
  Write(args, merge.first_row + row, column, sum, base);
}

// A quarter of a row by the thread block, each warp a run of the pieces with a reference of its
// own, so that nothing is known before the loads.
constexpr int kQuarters = kColumns / 32;
constexpr int kRuns = kThreads / 32;
constexpr int kRunLoads = 4;  // pieces that a warp asks for together

__device__ void MergeQuarter(const MlaKernelArgs& args,
                             const MlaMerge& merge,
                             int row,
                             int quarter) {
  __shared__ Sum sums[kRuns][32];
  __shared__ float highests[kRuns];
  const int run = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int column = quarter * 32 + lane;
  const int end = merge.count * (run + 1) / kRuns;
  float highest = -CUDART_INF_F;
  Sum sum;
  for (int begin = merge.count * run / kRuns; begin < end; begin += kRunLoads) {
    float lse[kRunLoads];
    float4 part[kRunLoads];
#pragma unroll
    for (int i = 0; i < kRunLoads; ++i) {
      if (begin + i >= end) break;
      const int64_t at = At(args.plan, merge, begin + i, row);
      lse[i] = args.plan.partial_lse[at];
      part[i] = LoadPart(args.plan, at, column);
    }
    const float before = highest;
#pragma unroll
    for (int i = 0; i < kRunLoads; ++i) {
      if (begin + i < end) highest = fmaxf(highest, lse[i]);
    }
    const float base = Base(highest);
    const float ratio = exp2f(before - base);
    Sum all;
    all.Add(ratio, sum.out);
    all.weights = ratio * sum.weights;
#pragma unroll
    for (int i = 0; i < kRunLoads; ++i) {
      if (begin + i < end) all.Add(exp2f(lse[i] - base), part[i]);
    }
    sum = all;
  }
  __syncthreads();  // what was before is done with shared memory
  sums[run][lane] = sum;
  if (lane == 0) highests[run] = highest;
  __syncthreads();
  if (run != 0) return;
  highest = highests[0];
  for (int other = 1; other < kRuns; ++other) highest = fmaxf(highest, highests[other]);
  const float base = Base(highest);
  Sum all;
  for (int other = 0; other < kRuns; ++other) {
    const Sum& more = sums[other][lane];
    const float ratio = exp2f(highests[other] - base);
    const float weights = all.weights + ratio * more.weights;
    all.Add(ratio, more.out);
    all.weights = weights;
  }
  Write(args, merge.first_row + row, column, all, base);
}

template <bool kInQuarters>
__global__ void __launch_bounds__(kThreads, 2)
    MergeKernel(const __grid_constant__ MlaKernelArgs args) {
  const MlaPlan& plan = args.plan;
  hopper::LetDependentsLaunch();
  // The plan is older than the kernel before this one, so it can be read before that one's end.
  const int merges = plan.merges[0].count;
  const int fours = plan.tile_rows / kGroups;
  const int group = threadIdx.x / kColumns;
  const int column = threadIdx.x % kColumns;
  bool waited = false;
  for (int unit = blockIdx.x; unit < merges * fours; unit += gridDim.x) {
    const MlaMerge merge = plan.merges[1 + unit / fours];
    const int row = unit % fours * kGroups + group;
    if (merge.count > kManyPieces || row >= merge.rows) continue;
    if (!waited) hopper::WaitForPredecessors();
    waited = true;
    MergeFew(args, merge, row, column);
  }
  const int units = plan.tile_rows * (kInQuarters ? kQuarters : 1);  // of a merge
  for (int unit = blockIdx.x; unit < merges * units; unit += gridDim.x) {
    const MlaMerge merge = plan.merges[1 + unit / units];
    const int row = unit % units % plan.tile_rows;
    if (merge.count <= kManyPieces || row >= merge.rows) continue;
    if (!waited) hopper::WaitForPredecessors();
    waited = true;
    if constexpr (kInQuarters) {
      MergeQuarter(args, merge, row, unit % units / plan.tile_rows);
    } else {
      MergeMany(args, merge, row);
    }
  }
  // What comes after this kernel must come after the one before it too.
  if (!waited) hopper::WaitForPredecessors();
}

}  // namespace

Status LaunchMlaMerge(const MergePlan& plan,
                      const MlaKernelArgs& args,
                      const LaunchStream& stream) {
  auto* const kernel = plan.kernel == MergeWay::kQuarters ? MergeKernel<true> : MergeKernel<false>;
  BT_CUDA_RETURN_IF_ERROR(LaunchPlaced("merge of pieces", kernel,
                                       dim3(static_cast<unsigned>(plan.blocks)), dim3(kThreads), 0,
                                       stream, 0, args));
  return Status();
}

}  // namespace baltoro::cuda
