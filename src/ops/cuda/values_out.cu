// The end of attention for few rows in one kernel: merge of the pieces and value heads (as
// mla_merge_values.cu), a meeting of all blocks, and the product with o (as few_rows.cu). All of a
// block's share of o is asked for before the wait for the kernel ahead, which computes the pieces
// meanwhile. Floor: the bytes of o, all of them read while attention runs.
//
// Rows of weights lie in shared memory one behind the other, every second one turned by 64 bytes,
// so that eight lanes touch each bank once.

#include <math_constants.h>

#include <algorithm>

#include "base/check.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/few_rows.h"
#include "ops/cuda/grid_barrier.cuh"
#include "ops/cuda/mla_decode_internal.h"
#include "ops/cuda/moe_device.cuh"
#include "ops/cuda/norm_join_device.cuh"
#include "ops/cuda/values_out.h"

namespace baltoro::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kStripRows = 8;
constexpr int kGroup = 32;     // columns: 16 bytes a lane
constexpr int kGroupsMax = 4;  // of a warp
constexpr int kRowsMax = 16;
constexpr int kTurn = 64;     // bytes
constexpr int kColumns = 32;  // value columns of a block, in one head
constexpr int kParts = kThreads / kColumns;
constexpr int kEights = kMlaLatent / 8 / kParts;
constexpr int kShares = kAttentionValue / kColumns;  // blocks of a head
constexpr int kBatch = 16;                           // pieces that are asked for together
constexpr int kPiecesMax = 32 * 8;
constexpr int kLatentBytes = kMlaLatent * 2;

struct Params {
  MlaKernelArgs mla;
  HeadProductArgs values;
  const char* w;           // o, [n, k]
  int k, rows, row_lanes;  // row_lanes: blocks that share the rows of 32 value columns
  const char* x;           // what the values are written to
  int64_t x_row_bytes;
  float* out;  // unless to.residual
  int64_t out_stride;
  NormJoin to;
  uint32_t* counter;
};

__host__ __device__ constexpr int SumBytes(int strips, int halves) {
  return kWarps * strips * halves * 32 * 8 + strips * kRowsMax * 4;
}
// Weights, later the warps' sums; the latents of a row and head; the barrier.
__host__ __device__ int WeightBytes(int strips, int halves, int k) {
  const int weights = strips * kStripRows * k * 2, sums = SumBytes(strips, halves);
  return weights > sums ? weights : sums;
}

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

// The entry of the merge list that has this row, by a whole warp; false: the row was not cut.
__device__ __forceinline__ bool FindMerge(const MlaPlan& plan, int row, MlaMerge& found) {
  const int lane = threadIdx.x % 32;
  const int count = plan.merges[0].count;
  for (int begin = 0; begin < count; begin += 32) {
    bool mine = false;
    if (begin + lane < count) {
      const MlaMerge& merge = plan.merges[1 + begin + lane];
      mine = row >= merge.first_row && row < merge.first_row + merge.rows;
    }
    const uint32_t ballot = __ballot_sync(~0u, mine);
    if (ballot == 0) continue;
    found = plan.merges[1 + begin + __ffs(static_cast<int>(ballot)) - 1];
    return true;
  }
  return false;
}

// Latents 2 thread, 2 thread + 1 of a row and head, from its pieces.
__device__ __forceinline__ float2 MergePieces(const MlaKernelArgs& mla,
                                              const MlaMerge& merge,
                                              int in_tile) {
  const MlaPlan& plan = mla.plan;
  const int lane = threadIdx.x % 32;
  const auto at = [&](int piece) {
    const int slot = piece == 0 ? merge.first_slot : merge.second_slot + (piece - 1) * merge.stride;
    return int64_t{slot} * plan.tile_rows + in_tile;
  };
  // Lane l has the log-sums of pieces l, l + 32, ..
  float lse[kPiecesMax / 32];
#pragma unroll
  for (int i = 0; i < kPiecesMax / 32; ++i) {
    const int piece = i * 32 + lane;
    lse[i] = piece < merge.count ? __ldcg(plan.partial_lse + at(piece)) : -CUDART_INF_F;
  }
  float2 parts[kBatch];
  const auto load = [&](int first) {
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      parts[i] = make_float2(0, 0);
      if (first + i >= merge.count) continue;
      parts[i] = __ldcg(reinterpret_cast<const float2*>(
          plan.partial_out + at(first + i) * kMlaLatent + 2 * static_cast<int>(threadIdx.x)));
    }
  };
  load(0);
  float highest = -CUDART_INF_F;
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
  float2 sum = make_float2(0, 0);
#pragma unroll
  for (int i = 0; i < kPiecesMax / 32; ++i) {
#pragma unroll
    for (int half = 0; half < 32 / kBatch; ++half) {
      const int first = i * 32 + half * kBatch;
      if (first >= merge.count) break;
      if (first > 0) load(first);
#pragma unroll
      for (int j = 0; j < kBatch; ++j) {
        const float weight = __shfl_sync(~0u, lse[i], half * kBatch + j);
        if (first + j >= merge.count) continue;
        sum.x += weight * parts[j].x;
        sum.y += weight * parts[j].y;
      }
    }
  }
  const float share = all == 0 ? 0 : mla.out_scale / all;
  return make_float2(sum.x * share, sum.y * share);
}

// What the plan of attention says of a row, by a whole warp; older than the kernels ahead.
struct RowPlan {
  int row, to = -1;
  bool cut = false;
  MlaMerge merge;

  __device__ __forceinline__ RowPlan(const Params& p, int head, int row_) : row(row_) {
    if (row >= p.values.count) return;
    to = p.values.rows[row];
    cut = FindMerge(p.mla.plan, row * p.values.heads + head, merge);
  }
};

// The value columns of this block for its rows, from that of `plan` on, to memory. `weights`: its
// part of their matrix.
__device__ __forceinline__ void MakeValues(const Params& p,
                                           int head,
                                           int column,
                                           RowPlan plan,
                                           const uint4 (&weights)[kEights],
                                           __nv_bfloat16* latents) {
  const int part = threadIdx.x % kParts;
  for (int row = plan.row; row < p.values.count; row += p.row_lanes) {
    if (row != plan.row) plan = RowPlan(p, head, row);
    const int to = plan.to;
    if (to < 0) continue;
    const int tile_row = row * p.values.heads + head;
    uint32_t pair;
    if (plan.cut) {
      const float2 sum = MergePieces(p.mla, plan.merge, tile_row - plan.merge.first_row);
      pair = hopper::PackBf16(sum.x, sum.y);
    } else {
      pair = __ldcg(reinterpret_cast<const uint32_t*>(static_cast<const __nv_bfloat16*>(p.mla.out) +
                                                      int64_t{tile_row} * kMlaLatent +
                                                      2 * static_cast<int>(threadIdx.x)));
    }
    reinterpret_cast<uint32_t*>(latents)[threadIdx.x] = pair;
    __syncthreads();
    float result = 0;
#pragma unroll
    for (int i = 0; i < kEights; ++i) {
      const uint4 x = *reinterpret_cast<const uint4*>(latents + (i * kParts + part) * 8);
      const uint32_t a[4] = {x.x, x.y, x.z, x.w};
      const uint32_t b[4] = {weights[i].x, weights[i].y, weights[i].z, weights[i].w};
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        result = fmaf(Low(a[j]), Low(b[j]), result);
        result = fmaf(High(a[j]), High(b[j]), result);
      }
    }
#pragma unroll
    for (int step = kParts / 2; step > 0; step /= 2) result += __shfl_xor_sync(~0u, result, step);
    if (part == 0) {
      auto* const out = static_cast<__nv_bfloat16*>(p.values.out) + to * p.values.out_row_stride +
                        head * p.values.out_head_stride;
      out[column] = __float2bfloat16_rn(result);
    }
    __syncthreads();  // the latents may be overwritten
  }
}

// kStrips strips of 8 rows of o a block, the columns shared by its warps. kTall: of 9 to 16 rows.
template <int kStrips, bool kTall>
__global__ void __launch_bounds__(kThreads, 2) ValuesOutKernel(const __grid_constant__ Params p) {
  extern __shared__ __align__(128) char memory[];
  constexpr int kHalves = kTall ? 2 : 1;
  constexpr int kRows = kStrips * kStripRows;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int block = static_cast<int>(blockIdx.x), row_bytes = p.k * 2;
  const int strip = block * kStrips;
  const int latents_at = WeightBytes(kStrips, kHalves, p.k);
  const uint32_t shared = SharedAddress(memory), barrier = shared + latents_at + kLatentBytes;
  if (threadIdx.x == 0) {
    BarrierInit(barrier, 1);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    BarrierExpectBytes(barrier, kRows * row_bytes);
  }
  __syncthreads();
  if (threadIdx.x < kRows) {
    const int turn = threadIdx.x % 2 == 0 ? 0 : kTurn;
    const char* const from =
        p.w + (static_cast<int64_t>(strip) * kStripRows + threadIdx.x) * row_bytes;
    const uint32_t to = shared + threadIdx.x * row_bytes;
    CopyBulk(to + turn, from, row_bytes - turn, barrier, ReadOncePolicy());
    if (turn > 0) CopyBulk(to, from + row_bytes - turn, turn, barrier, ReadOncePolicy());
  }
  const int all_shares = p.values.heads * kShares;
  const int head = block % all_shares / kShares;
  const int value_column = block % kShares * kColumns + static_cast<int>(threadIdx.x) / kParts;
  const int row_lane = block / all_shares;
  const RowPlan plan(p, head, row_lane);
  uint4 weights[kEights];
  if (row_lane < p.row_lanes) {
    const auto* const from = static_cast<const __nv_bfloat16*>(p.values.w) +
                             head * p.values.w_head_stride + int64_t{value_column} * kMlaLatent +
                             threadIdx.x % kParts * 8;
#pragma unroll
    for (int i = 0; i < kEights; ++i) weights[i] = LoadOnce(from + i * kParts * 8);
  }
  const int column = (strip + warp) * kStripRows + lane % 4 * 2;  // of warps below kStrips
  const bool ends = warp < kStrips, adds = p.to.residual != nullptr;
  float2 to_weight = make_float2(0, 0);
  if (adds && ends) to_weight = __ldg(reinterpret_cast<const float2*>(p.to.weight + column));
  WaitForEarlierKernels();
  AllowNextKernel();

  if (row_lane < p.row_lanes) {
    MakeValues(p, head, value_column, plan, weights,
               reinterpret_cast<__nv_bfloat16*>(memory + latents_at));
  }
  __syncthreads();
  uint32_t ticket = 0;
  if (threadIdx.x == 0) ticket = ArriveAtGrid(p.counter);
  const int token = lane / 4;
  float2 held[kHalves];
#pragma unroll
  for (int h = 0; h < kHalves; ++h) {
    const int row = token + 8 * h;
    held[h] = make_float2(0, 0);
    if (!adds || !ends || row >= p.rows) continue;
    held[h] = __ldcg(
        reinterpret_cast<const float2*>(p.to.residual + row * p.to.residual_stride + column));
  }
  if (threadIdx.x == 0) MeetGrid(p.counter, ticket, gridDim.x);
  __syncthreads();

  const int groups = p.k / kGroup;
  const int begin = groups * warp / kWarps, end = groups * (warp + 1) / kWarps;
  uint4 x[kHalves][kGroupsMax];
#pragma unroll
  for (int i = 0; i < kGroupsMax; ++i) {
#pragma unroll
    for (int h = 0; h < kHalves; ++h) {
      x[h][i] = make_uint4(0, 0, 0, 0);
      if (begin + i >= end || token + 8 * h >= p.rows) continue;
      x[h][i] = __ldcg(reinterpret_cast<const uint4*>(p.x + (token + 8 * h) * p.x_row_bytes +
                                                      (begin + i) * kGroup * 2 + lane % 4 * 16));
    }
  }
  BarrierWait(barrier, 0);
  float acc[kStrips][4] = {};
#pragma unroll
  for (int i = 0; i < kGroupsMax; ++i) {
    if (begin + i >= end) break;
    int in_row = (begin + i) * kGroup * 2 + token % 2 * kTurn;
    if (in_row >= row_bytes) in_row -= row_bytes;
    const uint32_t own = shared + token * row_bytes + in_row + lane % 4 * 16;
#pragma unroll
    for (int s = 0; s < kStrips; ++s) {
      const uint4 v = LoadShared4(own + s * kStripRows * row_bytes);
      const uint4 low = x[0][i];
      const uint4 high = kTall ? x[kHalves - 1][i] : make_uint4(0, 0, 0, 0);
      MultiplyAdd(acc[s], low.x, high.x, low.y, high.y, v.x, v.y);
      MultiplyAdd(acc[s], low.z, high.z, low.w, high.w, v.z, v.w);
    }
  }
  // The warps' sums, over the weights, which all have read.
  __syncthreads();
  const auto sums_of = [&](int of_warp, int s, int h) {
    return reinterpret_cast<float2*>(memory) + ((of_warp * kStrips + s) * kHalves + h) * 32 + lane;
  };
#pragma unroll
  for (int s = 0; s < kStrips; ++s) {
#pragma unroll
    for (int h = 0; h < kHalves; ++h) {
      *sums_of(warp, s, h) = make_float2(acc[s][2 * h], acc[s][2 * h + 1]);
    }
  }
  __syncthreads();
  auto* const squares =
      reinterpret_cast<float*>(memory + kWarps * kStrips * kHalves * 32 * 8);  // [strip][token]
#pragma unroll
  for (int h = 0; h < kHalves; ++h) {
    const int row = token + 8 * h;
    if (!ends) break;
    float2 sum = make_float2(0, 0);
#pragma unroll
    for (int other = 0; other < kWarps; ++other) {
      const float2 one = *sums_of(other, warp, h);
      sum.x += one.x;
      sum.y += one.y;
    }
    float own = 0;
    if (row < p.rows && adds) {
      own = AddToNorm(p.to, row, column, held[h], sum, to_weight);
    } else if (row < p.rows) {
      *reinterpret_cast<float2*>(p.out + row * p.out_stride + column) = sum;
    }
    own = SumOfFour(own);
    if (lane % 4 == 0) squares[warp * kRowsMax + row] = own;
  }
  if (!adds) return;
  __syncthreads();
  if (static_cast<int>(threadIdx.x) >= p.rows) return;
  float sum = 0;
#pragma unroll
  for (int s = 0; s < kStrips; ++s) sum += squares[s * kRowsMax + threadIdx.x];
  WriteSquares(p.to, static_cast<int>(threadIdx.x), block, static_cast<int>(gridDim.x), sum);
}

constexpr int kWide = 7;  // strips of a block where there are many

int StripsOf(int64_t n) {
  return n % (kWide * kStripRows) == 0 && n / (kWide * kStripRows) > 64 ? kWide : 1;
}

template <int kStrips, bool kTall>
void Launch(const Params& p, int blocks, cudaStream_t stream) {
  const int bytes = WeightBytes(kStrips, kTall ? 2 : 1, p.k) + kLatentBytes + 16;
  const auto kernel = ValuesOutKernel<kStrips, kTall>;
  CheckCuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
            "values and o");
  CheckOk(LaunchOverlapped("values and o", kernel, dim3(static_cast<unsigned>(blocks)),
                           dim3(kThreads), static_cast<size_t>(bytes), stream, 1, p));
}

}  // namespace

bool LaunchValuesOut(const MlaKernelArgs& mla,
                     const HeadProductArgs& values,
                     const TensorView& x,
                     const PackedMatrix& o,
                     const TensorView& out,
                     const JoinedNorm* norm,
                     cudaStream_t stream) {
  const TensorView& target = norm == nullptr ? out : norm->residual;
  const int64_t rows = x.dim(0);
  if (!MergeValuesTakes(mla, values) || values.count > kRowsMax || rows > kRowsMax ||
      !FewRowsTakes(target, x, o) || target.dtype != DType::kF32) {
    return false;
  }
  const int strips = StripsOf(o.n), blocks = static_cast<int>(o.n / (strips * kStripRows));
  const int shares = values.heads * kShares;
  if (o.n % (strips * kStripRows) != 0 || o.k > kGroupsMax * kWarps * kGroup || o.k % 64 != 0 ||
      o.k != values.heads * kAttentionValue || blocks < shares) {
    return false;
  }
  if (norm != nullptr && (!NormJoins(*norm) || blocks > NormJoin::kParts)) return false;
  uint32_t* const counter = GridCounter(stream, blocks);
  if (counter == nullptr) return false;
  Params p = {.mla = mla,
              .values = values,
              .w = static_cast<const char*>(o.data),
              .k = static_cast<int>(o.k),
              .rows = static_cast<int>(rows),
              .row_lanes = static_cast<int>(std::min<int64_t>(blocks / shares, values.count)),
              .x = static_cast<const char*>(x.data),
              .x_row_bytes = rows <= 1 ? 0 : x.stride[0] * 2,
              .out = norm == nullptr ? out.as<float>() : nullptr,
              .out_stride = norm == nullptr ? out.stride[0] : 0,
              .to = {},
              .counter = counter};
  if (norm != nullptr) p.to = NormJoinOf(*norm);
  const bool tall = rows > 8;
  if (strips == kWide) {
    tall ? Launch<kWide, true>(p, blocks, stream) : Launch<kWide, false>(p, blocks, stream);
  } else {
    tall ? Launch<1, true>(p, blocks, stream) : Launch<1, false>(p, blocks, stream);
  }
  return true;
}

}  // namespace baltoro::cuda
