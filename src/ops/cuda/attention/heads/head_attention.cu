// Attention of heads that have keys of their own, or share them by a few: products of 16 x 8 of
// query rows and keys as they are cached, 64 keys at a time. A thread block takes some keys of a
// tile of rows for one key head; what several blocks found for a tile is merged by log-sum-exp.
//
// Floor: for rows of few tokens, keys and values read once a key head: 4 g d bytes a key of a
// sequence. For many, 4 d FLOPs for each pair of a query token and a key that it sees, and head.

#include <algorithm>
#include <cmath>

#include "ops/cuda/attention/heads/head_attention_device.cuh"
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/rows/rows_device.cuh"

namespace baltoro::cuda {
namespace {

using namespace heads;  // NOLINT: its own device code

constexpr int kMergeRowsMax = 8;  // blocks that share the rows of a tile

// Adds up what the warps found for each row, and stores it: as the result, or as a part of it.
template <int kWidth, int kRowWarps>
__device__ __forceinline__ void Store(const HeadParams& p,
                                      const HeadTile& tile,
                                      int key_head,
                                      int partial,
                                      const WarpSums<kWidth>& sums,
                                      float* found) {
  constexpr int kPitch = kWidth + 4, kRows = 16 * kRowWarps;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  float* const references = found + kWarps * 16 * kPitch;
  float* const totals = references + kWarps * 16;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = warp * 16 + lane / 4 + 8 * half;
    const float total = QuadSum(sums.total[half]);
    if (lane % 4 == 0) references[row] = sums.reference[half], totals[row] = total;
#pragma unroll
    for (int n = 0; n < kWidth / 8; ++n) {
      *reinterpret_cast<float2*>(found + row * kPitch + n * 8 + lane % 4 * 2) =
          make_float2(sums.out[n][2 * half], sums.out[n][2 * half + 1]);
    }
  }
  __syncthreads();
  constexpr int kFours = kWidth / 4;
  for (int item = threadIdx.x; item < tile.rows * kFours; item += kThreads) {
    const int row = item / kFours, column = item % kFours * 4;
    float highest = -CUDART_INF_F;
#pragma unroll
    for (int at = 0; at < kWarps * 16; at += kRows) {
      highest = fmaxf(highest, references[at + row]);
    }
    const float base = highest == -CUDART_INF_F ? 0 : highest;
    float total = 0;
    float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll
    for (int at = 0; at < kWarps * 16; at += kRows) {
      const float weight = hopper::Exp2(references[at + row] - base);
      const auto value = *reinterpret_cast<const float4*>(found + (at + row) * kPitch + column);
      total += weight * totals[at + row];
      sum.x += weight * value.x, sum.y += weight * value.y;
      sum.z += weight * value.z, sum.w += weight * value.w;
    }
    const float share = total == 0 ? 0 : 1 / total;
    sum.x *= share, sum.y *= share, sum.z *= share, sum.w *= share;
    if (partial >= 0) {
      const int64_t to = (int64_t{partial} * p.key_heads + key_head) * kRows + row;
      *reinterpret_cast<float4*>(p.partial_out + to * kWidth + column) = sum;
      if (column == 0) p.partial_lse[to] = total == 0 ? -CUDART_INF_F : base + log2f(total);
      continue;
    }
    const int token = tile.query_row + (tile.first + row) / p.group;
    const int head = key_head * p.group + (tile.first + row) % p.group;
    *reinterpret_cast<uint2*>(p.out + token * p.out_stride + head * kWidth + column) =
        make_uint2(hopper::PackBf16(sum.x, sum.y), hopper::PackBf16(sum.z, sum.w));
  }
}

// A block takes one part of one key head; those of neighbouring heads, whose keys are neighbours,
// run together. kRowWarps of the four warps have 16 rows each; with one, each takes a quarter of
// the keys.
template <int kWidth, int kRowWarps>
__global__ void __launch_bounds__(kThreads, kRowWarps == 1 ? 3 : 2)
    HeadKernel(const __grid_constant__ HeadParams p) {
  extern __shared__ __align__(16) unsigned char shared[];
  constexpr int kCount = kKeys * kRowWarps / kWarps;
  hopper::LetDependentsLaunch();
  // The plan is older than the kernels ahead.
  const int key_head = static_cast<int>(blockIdx.x) % p.key_heads;
  const HeadPart part = p.work.parts[blockIdx.x / p.key_heads];
  const HeadTile tile = p.work.tiles[max(part.tile, 0)];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int warp_row = warp % kRowWarps * 16, warp_key = warp / kRowWarps * kCount;
  const int32_t* const table = p.block_table + tile.table_row * p.table_stride;
  const int seen_by_tile = SeenBy(tile, tile.rows - 1, p.group);
  const bool has_rows = warp_row < tile.rows;
  const int seen_by_warp = has_rows ? SeenBy(tile, min(warp_row + 15, tile.rows - 1), p.group) : 0;
  hopper::WaitForPredecessors();
  if (part.tile < 0) return;

  const uint32_t stages = hopper::SharedAddress(shared);
  const auto load = [&](int block) {
    if (block < part.end) {
      LoadKeys<kWidth>(p, key_head, __ldg(table + block), seen_by_tile - block * kKeys,
                       stages + (block - part.begin) % kStages * StageBytes(kWidth));
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
  };
  load(part.begin);

  // Rows that there are not are those of the last one; nothing is stored of them.
  uint32_t q[kWidth / 16][4];
  int seen[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = min(warp_row + lane / 4 + 8 * half, tile.rows - 1);
    seen[half] = SeenBy(tile, row, p.group);
    const int at = tile.first + row;
    const __nv_bfloat16* const from = p.q + (tile.query_row + at / p.group) * p.q_row_stride +
                                      (key_head * p.group + at % p.group) * p.q_head_stride;
#pragma unroll
    for (int k = 0; k < kWidth / 16; ++k) {
      const auto* const pair = reinterpret_cast<const uint32_t*>(from + k * 16 + lane % 4 * 2);
      q[k][half] = pair[0];
      q[k][half + 2] = pair[4];
    }
  }
  WarpSums<kWidth> sums = {};
  sums.reference[0] = sums.reference[1] = -CUDART_INF_F;

  for (int block = part.begin; block < part.end; ++block) {
    load(block + 1);
    asm volatile("cp.async.wait_group 1;" ::: "memory");
    __syncthreads();
    const int first_key = block * kKeys;
    if (first_key + warp_key < seen_by_warp) {
      const int in_block[2] = {seen[0] - first_key, seen[1] - first_key};
      Attend<kWidth, kCount>(sums, q, stages + (block - part.begin) % kStages * StageBytes(kWidth),
                             warp_key, in_block, p.scale_log2);
    }
    __syncthreads();
  }
  Store<kWidth, kRowWarps>(p, tile, key_head, part.partial, sums, reinterpret_cast<float*>(shared));
}

// Block (merge, key head, some rows): the parts of a row are dealt over teams of threads that have
// four columns each.
template <int kWidth>
__global__ void __launch_bounds__(kThreads)
    HeadMergeKernel(const __grid_constant__ HeadParams p, int tile_rows) {
  constexpr int kFours = kWidth / 4, kTeams = kThreads / kFours;
  __shared__ float4 found[kTeams][kFours];
  __shared__ float totals[kTeams];
  hopper::LetDependentsLaunch();
  const HeadMerge merge = p.work.merges[blockIdx.x];
  const HeadTile tile = p.work.tiles[max(merge.tile, 0)];
  const int key_head = blockIdx.y, lane = threadIdx.x % 32;
  const int team = threadIdx.x / kFours, four = threadIdx.x % kFours;
  hopper::WaitForPredecessors();
  if (merge.tile < 0) return;
  for (int row = blockIdx.z; row < tile.rows; row += gridDim.z) {
    const auto at = [&](int part) {
      return (int64_t{merge.partial + part} * p.key_heads + key_head) * tile_rows + row;
    };
    float highest = -CUDART_INF_F;
    for (int part = lane; part < merge.parts; part += 32) {
      highest = fmaxf(highest, p.partial_lse[at(part)]);
    }
    for (int other = 16; other > 0; other /= 2) {
      highest = fmaxf(highest, __shfl_xor_sync(~0u, highest, other));
    }
    const float base = highest == -CUDART_INF_F ? 0 : highest;
    float4 sum = make_float4(0, 0, 0, 0);
    float total = 0;
#pragma unroll 4
    for (int part = team; part < merge.parts; part += kTeams) {
      const float weight = hopper::Exp2(p.partial_lse[at(part)] - base);
      const auto value =
          *reinterpret_cast<const float4*>(p.partial_out + at(part) * kWidth + four * 4);
      total += weight;
      sum.x += weight * value.x, sum.y += weight * value.y;
      sum.z += weight * value.z, sum.w += weight * value.w;
    }
    __syncthreads();  // those of the row before have been read
    found[team][four] = sum;
    if (four == 0) totals[team] = total;
    __syncthreads();
    if (team > 0) continue;
    for (int i = 1; i < kTeams; ++i) {
      const float4 value = found[i][four];
      total += totals[i];
      sum.x += value.x, sum.y += value.y, sum.z += value.z, sum.w += value.w;
    }
    const float share = total == 0 ? 0 : 1 / total;
    const int token = tile.query_row + (tile.first + row) / p.group;
    const int head = key_head * p.group + (tile.first + row) % p.group;
    *reinterpret_cast<uint2*>(p.out + token * p.out_stride + head * kWidth + four * 4) =
        make_uint2(hopper::PackBf16(sum.x * share, sum.y * share),
                   hopper::PackBf16(sum.z * share, sum.w * share));
  }
}

template <int kWidth, int kRowWarps>
void LaunchTiles(const OpContext& ctx, HeadParams p, const HeadWork& work) {
  if (work.part_count == 0) return;
  constexpr int kRows = 16 * kRowWarps;
  static_assert(SharedBytes(kWidth) >= kWarps * 16 * (kWidth + 4 + 2) * 4);
  p.work = work;
  const auto rows = static_cast<size_t>(work.partials * p.key_heads * kRows);
  p.partial_out = ctx.scratch->AllocateArray<float>(rows * kWidth);
  p.partial_lse = ctx.scratch->AllocateArray<float>(rows);
  const auto heads = static_cast<unsigned>(p.key_heads);
  auto* const kernel = HeadKernel<kWidth, kRowWarps>;
  CheckCuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 SharedBytes(kWidth)),
            "head attention");
  CheckCuda(
      LaunchPlaced("head attention", kernel, dim3(heads * static_cast<unsigned>(work.part_count)),
                   dim3(kThreads), SharedBytes(kWidth), StreamOf(ctx), 0, p),
      "head attention");
  if (work.merge_count == 0) return;
  const dim3 grid(static_cast<unsigned>(work.merge_count), heads, kMergeRowsMax);
  LaunchAhead("head attention merge", StreamOf(ctx), HeadMergeKernel<kWidth>, grid, kThreads, p,
              kRows);
}

template <int kWidth>
void LaunchWidth(const OpContext& ctx, const HeadParams& p, const HeadPlan& plan) {
  LaunchTiles<kWidth, 1>(ctx, p, plan.few);
  LaunchTiles<kWidth, kWarps>(ctx, p, plan.many);
}

bool Aligned(const void* data, int64_t bytes) {
  return reinterpret_cast<uintptr_t>(data) % static_cast<uintptr_t>(bytes) == 0;
}

void Check(const HeadAttentionArgs& args, const HeadPlan& plan) {
  const int64_t width = args.q.dim(2), heads = args.q.dim(1);
  BT_CHECK(plan.tokens == args.q.dim(0) && plan.heads == heads);
  BT_CHECK(plan.width == width && plan.key_heads == args.key_heads);
  BT_CHECK(args.q.dtype == DType::kBf16 && args.out.dtype == DType::kBf16);
  BT_CHECK(Aligned(args.q.data, 4) && args.q.stride[0] % 2 == 0 && args.q.stride[1] % 2 == 0);
  BT_CHECK(args.out.rank == 2 && args.out.dim(0) == plan.tokens);
  BT_CHECK(args.out.dim(1) == heads * width && args.out.stride[0] % 4 == 0);
  BT_CHECK(Aligned(args.out.data, 8) && Aligned(args.cache.data, 16));
  BT_CHECK(args.cache.form == KvForm::kBf16 && args.cache.num_blocks > 0);
  BT_CHECK(args.cache.latent == args.key_heads * width && args.cache.rope == args.cache.latent);
}

}  // namespace

void HeadAttention(const OpContext& ctx, const HeadAttentionArgs& args) {
  BT_CHECK(args.q.rank == 3);
  if (args.q.dim(0) == 0) return;
  BT_CHECK(args.plan != nullptr && ctx.scratch != nullptr);
  const auto& plan = *static_cast<const HeadPlan*>(args.plan);
  Check(args, plan);
  const HeadParams p = {.q = static_cast<const __nv_bfloat16*>(args.q.data),
                        .q_row_stride = args.q.stride[0],
                        .q_head_stride = args.q.stride[1],
                        .out = static_cast<__nv_bfloat16*>(args.out.data),
                        .out_stride = args.out.stride[0],
                        .cache = static_cast<const __nv_bfloat16*>(args.cache.data),
                        .block_table = plan.block_table,
                        .table_stride = plan.table_stride,
                        .work = {},
                        .partial_out = nullptr,
                        .partial_lse = nullptr,
                        .key_heads = plan.key_heads,
                        .group = plan.heads / plan.key_heads,
                        .scale_log2 = static_cast<float>(double{args.scale} * M_LOG2E)};
  if (plan.width == 64) return LaunchWidth<64>(ctx, p, plan);
  LaunchWidth<128>(ctx, p, plan);
}

}  // namespace baltoro::cuda
