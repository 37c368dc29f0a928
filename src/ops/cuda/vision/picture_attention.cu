// A thread block takes 128 queries of one head: a producer warp copies 128 keys and values at a
// time into two stages of shared memory, two warpgroups compute 64 queries each. For the keys j:
//
//   S_{j+1} = Q K_{j+1}^T and O += P_j V_j run while the exponentials of S_j+1 are made,
//
// as in attention/prefill, whose softmax this is: the reference of a row is raised only when a
// maximum exceeds it by more than 2^kSlack. Heads are padded from 72 to 80 elements for S, in two
// pieces of 64 and 16 that the copy engine fills with zeros beyond the head; O has 72 columns.
// Tiles end where their picture does, so that no block has queries of two pictures; keys of the
// pictures before and behind are masked.

#include <cuda.h>
#include <math_constants.h>

#include "base/check.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/launch/overlapped_launch.h"
#include "ops/cuda/launch/regions.h"
#include "ops/cuda/launch/tensor_map.h"
#include "ops/cuda/linear/tiles/tiles128_multiply.cuh"
#include "ops/cuda/ptx/group_multiply.cuh"
#include "ops/cuda/ptx/hopper.cuh"
#include "ops/cuda/vision/picture_attention.h"

namespace baltoro::cuda {
namespace {

using namespace hopper;  // NOLINT: the instructions that this file is written in

constexpr int kKeys = 128;
constexpr int kGroupRows = 64;  // queries of a warpgroup
constexpr int kGroups = kPictureQueries / kGroupRows;
constexpr int kComputeThreads = kGroups * 128;
constexpr int kThreads = kComputeThreads + 128;
constexpr int kComputeRegisters = 240;
constexpr int kProducerRegisters = 24;
constexpr int kHead = kPictureHeadMax;

// Elements of a row that lie in the 128-byte swizzle, and in the 32-byte one behind it.
constexpr int kWide = 64, kNarrow = 16;
constexpr int kWideBytes = 128 * kWide * 2;
constexpr int kRowsBytes = kWideBytes + 128 * kNarrow * 2;  // 128 queries or keys
constexpr int kHalfValueBytes = kHead * 64 * 2;             // of 64 keys
constexpr int kValueBytes = kKeys / 64 * kHalfValueBytes;
constexpr int kStageBytes = kRowsBytes + kValueBytes;
constexpr int kStages = 2;
static_assert(kHalfValueBytes % 1024 == 0 && kRowsBytes % 1024 == 0);

constexpr float kSlack = 16;

struct Params {
  const AttentionTile* tiles;
  __nv_bfloat16* out;
  int64_t out_stride;
  int heads, head;  // head: its width
  float scale;      // of scores, to log2
};

struct Maps {
  CUtensorMap wide, narrow;  // of qk: [N][2 heads][head], boxes of 128 rows of one head
  CUtensorMap values;        // [heads][head][N], boxes of 64 keys
};

struct Barriers {
  uint64_t full_queries;
  uint64_t full_keys[kStages];
  uint64_t full_values[kStages];
  uint64_t empty_keys[kStages];
  uint64_t empty_values[kStages];
};

constexpr int kSharedBytes =
    1024 + kRowsBytes + kStages * kStageBytes + static_cast<int>(sizeof(Barriers));

struct Layout {
  uint32_t q, stages;
  Barriers* barriers;

  __device__ explicit Layout(unsigned char* raw) {
    q = (SharedAddress(raw) + 1023) & ~1023u;
    stages = q + kRowsBytes;
    barriers =
        reinterpret_cast<Barriers*>(raw + (stages + kStages * kStageBytes) - SharedAddress(raw));
  }
  __device__ uint32_t keys(int stage) const { return stages + stage * kStageBytes; }
  __device__ uint32_t values(int stage) const { return keys(stage) + kRowsBytes; }
};

// Rows of 32 bytes in the 32-byte swizzle, 8-row groups of 256 bytes.
__device__ __forceinline__ uint64_t NarrowDescriptor(uint32_t address) {
  return uint64_t{3} << 62 | uint64_t{256 >> 4} << 32 | uint64_t{1} << 16 |
         ((address & 0x3FFFF) >> 4);
}

// One thread. `head` of the 2 * heads of queries and keys.
__device__ __forceinline__ void CopyRows(
    const Maps& maps, uint32_t to, uint64_t& full, int head, int row) {
  const uint32_t barrier = SharedAddress(&full);
  ArriveExpecting(barrier, kRowsBytes);
  CopyBox(to, &maps.wide, barrier, 0, head, row);
  CopyBox(to + kWideBytes, &maps.narrow, barrier, kWide, head, row);
}

__device__ void Produce(
    const AttentionTile& tile, const Maps& maps, const Layout& smem, int head, int heads) {
  Barriers& barriers = *smem.barriers;
  CopyRows(maps, smem.q, barriers.full_queries, head, tile.first_patch);
  const int count = (tile.keys + kKeys - 1) / kKeys;
  for (int j = 0; j < count; ++j) {
    const int stage = j % kStages;
    const uint32_t parity = (j / kStages & 1) ^ 1;
    const int row = tile.first_key + j * kKeys;
    hopper::Wait(SharedAddress(&barriers.empty_keys[stage]), parity);
    CopyRows(maps, smem.keys(stage), barriers.full_keys[stage], heads + head, row);
    const uint32_t full = SharedAddress(&barriers.full_values[stage]);
    hopper::Wait(SharedAddress(&barriers.empty_values[stage]), parity);
    ArriveExpecting(full, kValueBytes);
    for (int half = 0; half < kKeys / 64; ++half) {
      CopyBox(smem.values(stage) + half * kHalfValueBytes, &maps.values, full, row + half * 64, 0,
              head);
    }
  }
}

class Consumer {
 public:
  __device__ Consumer(const Params& params, const AttentionTile& tile, const Layout& smem, int head)
      : params_(params),
        tile_(tile),
        smem_(smem),
        barriers_(*smem.barriers),
        head_(head),
        group_(__shfl_sync(0xFFFFFFFF, static_cast<int>(threadIdx.x) / 128, 0)),
        warp_(threadIdx.x / 32 % 4),
        lane_(threadIdx.x % 32) {}

  __device__ __forceinline__ void Run() {
    const int count = (tile_.keys + kKeys - 1) / kKeys;
#pragma unroll
    for (int i = 0; i < kHead / 2; ++i) o_[i] = 0;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      reference_[r] = -CUDART_INF_F;
      ratio_[r] = 1;
      sum_[r] = 0;
    }
    hopper::Wait(SharedAddress(&barriers_.full_queries), 0);
    IssueScores(0);
    WaitProducts<0>();
    Pin(s_);
    Release(barriers_.empty_keys[0]);
    Softmax(0);
    MakeProbabilities();
#pragma unroll 1
    for (int j = 0; j < count - 1; ++j) {
      IssueScores(j + 1);
      IssueValues(j);
      WaitProducts<1>();
      Pin(s_);
      Release(barriers_.empty_keys[(j + 1) % kStages]);
      Softmax(j + 1);
      WaitProducts<0>();
      PinAll();
      Release(barriers_.empty_values[j % kStages]);
      Rescale();
      MakeProbabilities();
    }
    IssueValues(count - 1);
    WaitProducts<0>();
    PinAll();
    End();
  }

 private:
  // S = Q K^T of keys j; committed.
  __device__ __forceinline__ void IssueScores(int j) {
    const int stage = j % kStages;
    const uint64_t q = OperandDescriptor(smem_.q + group_ * kGroupRows * kWide * 2, 0);
    const uint64_t k = OperandDescriptor(smem_.keys(stage), 0);
    hopper::Wait(SharedAddress(&barriers_.full_keys[stage]), j / kStages & 1);
    Pin(s_);
    FenceProducts();
#pragma unroll
    for (int step = 0; step < kWide / 16; ++step) {
      GroupMultiplyShared<kKeys>::Bf16(s_, Advance(q, step * 32), Advance(k, step * 32), step > 0);
    }
    GroupMultiplyShared<kKeys>::Bf16(
        s_, NarrowDescriptor(smem_.q + kWideBytes + group_ * kGroupRows * kNarrow * 2),
        NarrowDescriptor(smem_.keys(stage) + kWideBytes), 1);
    CommitProducts();
  }

  // O += P V of keys j; committed.
  __device__ __forceinline__ void IssueValues(int j) {
    const int stage = j % kStages;
    hopper::Wait(SharedAddress(&barriers_.full_values[stage]), j / kStages & 1);
    PinAll();
    FenceProducts();
#pragma unroll
    for (int step = 0; step < kKeys / 16; ++step) {
      const uint64_t v = OperandDescriptor(smem_.values(stage) + step / 4 * kHalfValueBytes, 0);
      GroupMultiply<kHead>::Add(o_, p_[step], Advance(v, step % 4 * 32));
    }
    CommitProducts();
  }

  __device__ __forceinline__ void Release(uint64_t& barrier) const {
    if (lane_ == 0) Arrive(SharedAddress(&barrier));
  }

  // Keeps the compiler from moving uses of the operands in registers over a fence or a wait.
  __device__ __forceinline__ void PinAll() {
    Pin(o_);
#pragma unroll
    for (int step = 0; step < kKeys / 16; ++step) {
#pragma unroll
      for (int i = 0; i < 4; ++i) asm volatile("" : "+r"(p_[step][i])::"memory");
    }
  }

  // From the scores of keys j: the exponentials in their place, the row's reference and sums, and
  // by what O is to be multiplied.
  __device__ __forceinline__ void Softmax(int j) {
    const int end = tile_.keys - j * kKeys, begin = j == 0 ? tile_.skipped : 0;
    if (end < kKeys || begin > 0) {
#pragma unroll
      for (int i = 0; i < kKeys / 2; ++i) {
        const int key = 8 * (i / 4) + 2 * (lane_ % 4) + i % 2;
        if (key < begin || key >= end) s_[i] = -CUDART_INF_F;
      }
    }
    const float scale = params_.scale;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float highest = -CUDART_INF_F;
#pragma unroll
      for (int i = 0; i < kKeys / 8; ++i) {
        highest = fmaxf(highest, fmaxf(s_[4 * i + 2 * r], s_[4 * i + 2 * r + 1]));
      }
      highest = fmaxf(highest, __shfl_xor_sync(0xFFFFFFFF, highest, 1));
      highest = fmaxf(highest, __shfl_xor_sync(0xFFFFFFFF, highest, 2));
      highest *= scale;
      const float before = reference_[r];
      const float now = highest > before + kSlack ? highest : before;
      reference_[r] = now;
      ratio_[r] = before == now ? 1.0f : Exp2(before - now);
      float sum = 0;
#pragma unroll
      for (int i = 0; i < kKeys / 8; ++i) {
        const float a = Exp2(fmaf(s_[4 * i + 2 * r], scale, -now));
        const float b = Exp2(fmaf(s_[4 * i + 2 * r + 1], scale, -now));
        s_[4 * i + 2 * r] = a;
        s_[4 * i + 2 * r + 1] = b;
        sum += a + b;
      }
      sum_[r] = sum_[r] * ratio_[r] + sum;
    }
  }

  __device__ __forceinline__ void Rescale() {
    if (!__any_sync(0xFFFFFFFF, ratio_[0] != 1.0f || ratio_[1] != 1.0f)) return;
#pragma unroll
    for (int i = 0; i < kHead / 2; ++i) o_[i] *= ratio_[i / 2 % 2];
  }

  // The exponentials as the A operand of 8 steps of 16 keys.
  __device__ __forceinline__ void MakeProbabilities() {
#pragma unroll
    for (int i = 0; i < kKeys / 8; ++i) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        p_[i / 2][2 * (i % 2) + r] = PackBf16(s_[4 * i + 2 * r], s_[4 * i + 2 * r + 1]);
      }
    }
  }

  // Divides by the softmax sum, and writes.
  __device__ __forceinline__ void End() {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float sum = sum_[r];
      sum += __shfl_xor_sync(0xFFFFFFFF, sum, 1);
      sum += __shfl_xor_sync(0xFFFFFFFF, sum, 2);
      const int row = group_ * kGroupRows + warp_ * 16 + lane_ / 4 + 8 * r;
      if (row >= tile_.count) continue;
      const float share = 1 / sum;
      const int column = 2 * (lane_ % 4);
      __nv_bfloat16* const out = params_.out + (tile_.first_patch + row) * params_.out_stride +
                                 head_ * params_.head + column;
#pragma unroll
      for (int i = 0; i < kHead / 8; ++i) {
        if (8 * i >= params_.head) break;
        *reinterpret_cast<uint32_t*>(out + 8 * i) =
            PackBf16(o_[4 * i + 2 * r] * share, o_[4 * i + 2 * r + 1] * share);
      }
    }
  }

  const Params& params_;
  const AttentionTile& tile_;
  const Layout& smem_;
  Barriers& barriers_;
  const int head_, group_, warp_, lane_;

  // Two rows, 8 apart; columns 8 i + 2 (lane % 4) + {0, 1}.
  float o_[kHead / 2];
  float s_[kKeys / 2];
  uint32_t p_[kKeys / 16][4];
  float reference_[2], ratio_[2], sum_[2];
};

// Grid: tiles, heads: blocks that run together read the keys of one head.
__global__ void __launch_bounds__(kThreads, 1)
    PictureAttentionKernel(const __grid_constant__ Params params,
                           const __grid_constant__ Maps maps) {
  extern __shared__ unsigned char raw[];
  const Layout smem(raw);
  if (threadIdx.x == 0) {
    InitBarrier(SharedAddress(&smem.barriers->full_queries), 1);
    for (int s = 0; s < kStages; ++s) {
      InitBarrier(SharedAddress(&smem.barriers->full_keys[s]), 1);
      InitBarrier(SharedAddress(&smem.barriers->full_values[s]), 1);
      InitBarrier(SharedAddress(&smem.barriers->empty_keys[s]), kComputeThreads / 32);
      InitBarrier(SharedAddress(&smem.barriers->empty_values[s]), kComputeThreads / 32);
    }
    FenceBarrierInit();
    PrefetchMap(&maps.wide);
    PrefetchMap(&maps.narrow);
    PrefetchMap(&maps.values);
  }
  __syncthreads();
  WaitForPredecessors();
  LetDependentsLaunch();
  const int head = static_cast<int>(blockIdx.y);
  const AttentionTile tile = params.tiles[blockIdx.x];
  const int role = __shfl_sync(0xFFFFFFFF, static_cast<int>(threadIdx.x) / 128, 0);
  if (role < kGroups) {
    RaiseRegisters<kComputeRegisters>();
    Consumer consumer(params, tile, smem, head);
    consumer.Run();
  } else {
    LowerRegisters<kProducerRegisters>();
    if (threadIdx.x == kComputeThreads) Produce(tile, maps, smem, head, params.heads);
  }
}

}  // namespace

void PictureAttention(const OpContext& ctx, const PictureAttentionArgs& args) {
  constexpr double kLog2OfE = 1.4426950408889634;
  const int64_t total = args.out.dim(0), hidden = args.out.dim(1);
  const int64_t head = hidden / args.heads;
  BT_CHECK(hidden % args.heads == 0 && head % 8 == 0 && head <= kPictureHeadMax);
  BT_CHECK(args.qk.dim(0) == total && args.qk.dim(1) == 2 * hidden && args.qk.contiguous());
  BT_CHECK(args.values.dim(0) == hidden && args.values.dim(1) == total);
  const Params params = {
      .tiles = args.tiles.tiles,
      .out = static_cast<__nv_bfloat16*>(args.out.data),
      .out_stride = args.out.stride[0],
      .heads = args.heads,
      .head = static_cast<int>(head),
      .scale = static_cast<float>(kLog2OfE / std::sqrt(static_cast<double>(head)))};
  const auto width = static_cast<cuuint64_t>(head), rows = static_cast<cuuint64_t>(total);
  const auto heads = static_cast<cuuint64_t>(args.heads);
  const auto value_bytes = static_cast<cuuint64_t>(args.values.stride[0]) * 2;
  TensorMapShape qk = {CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
                       CU_TENSOR_MAP_SWIZZLE_128B,
                       {width, 2 * heads, rows},
                       {width * 2, width * heads * 4},
                       {kWide, 1, kKeys}};
  const TensorMapShape values = {CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
                                 CU_TENSOR_MAP_SWIZZLE_128B,
                                 {rows, width, heads},
                                 {value_bytes, value_bytes * width},
                                 {64, kHead, 1}};
  Maps maps = {};
  CheckOk(MakeTensorMap(qk, args.qk.data, maps.wide));
  qk.swizzle = CU_TENSOR_MAP_SWIZZLE_32B;
  qk.box[0] = kNarrow;
  CheckOk(MakeTensorMap(qk, args.qk.data, maps.narrow));
  CheckOk(MakeTensorMap(values, args.values.data, maps.values));
  CheckCuda(cudaFuncSetAttribute(PictureAttentionKernel,
                                 cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes),
            "picture attention");
  const LaunchNote note = WaitsFirst("picture attention", RegionOf(args.out),
                                     Regions(RegionOf(args.qk), RegionOf(args.values)));
  CheckOk(LaunchOverlapped(
      note, PictureAttentionKernel,
      dim3(static_cast<unsigned>(args.tiles.count), static_cast<unsigned>(args.heads)),
      dim3(kThreads), kSharedBytes, StreamOf(ctx), 0, params, maps));
}

}  // namespace baltoro::cuda
