// Attention of many query tokens over expanded keys and values.
//
// A thread block takes one tile of 128 query tokens of one head: a producer warp copies 128 keys
// and values at a time into two stages of shared memory, two warpgroups compute 64 query tokens
// each. For the keys j:
//
//   S_{j+1} = Q K_{j+1}^T and O += P_j V_j run while the exponentials of S_{j+1} are made.
//
// The softmax reference of a row is raised only when a maximum exceeds it by more than 2^kSlack;
// below that the larger exponentials lose nothing in floating point. Rows are summed over the keys
// in order, the same whoever shares the step. Passes over further keys are merged by their lse.

#include <cuda.h>
#include <math_constants.h>

#include <climits>

#include "ops/cuda/attention/attention_kernels.h"
#include "ops/cuda/attention/prefill/attention_mma.cuh"
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/launch/placed_launch.h"
#include "ops/cuda/launch/tensor_map.h"
#include "ops/cuda/ptx/hopper.cuh"

namespace baltoro::cuda {
namespace {

using namespace hopper;  // NOLINT: the instructions that this file is written in

constexpr int kKeys = kPrefillKeys;
constexpr int kGroupRows = 64;  // query tokens of a warpgroup
constexpr int kGroups = kPrefillRows / kGroupRows;
constexpr int kComputeThreads = kGroups * 128;
constexpr int kThreads = kComputeThreads + 128;
constexpr int kComputeRegisters = 240;
constexpr int kProducerRegisters = 24;

constexpr int kColumnBytes = 128 * 128;  // 64 columns of 128 rows
constexpr int kQueryBytes = 3 * kColumnBytes;
constexpr int kKeyBytes = 3 * kColumnBytes;  // 128 own columns, 64 rotated ones
constexpr int kValueBytes = 2 * kColumnBytes;
constexpr int kStageBytes = kKeyBytes + kValueBytes;
constexpr int kStages = 2;
constexpr int kWidth = kAttentionNope + kAttentionRope;

constexpr float kSlack = 16;
constexpr float kLn2 = 0.69314718056f;

struct Barriers {
  uint64_t full_keys[kStages];
  uint64_t full_values[kStages];
  uint64_t empty_keys[kStages];
  uint64_t empty_values[kStages];
};

constexpr int kSharedBytes =
    1024 + kQueryBytes + kStages * kStageBytes + static_cast<int>(sizeof(Barriers));

struct Layout {
  uint32_t q, stages;
  Barriers* barriers;

  __device__ explicit Layout(unsigned char* raw) {
    q = (SharedAddress(raw) + 1023) & ~1023u;
    stages = q + kQueryBytes;
    barriers =
        reinterpret_cast<Barriers*>(raw + (stages + kStages * kStageBytes) - SharedAddress(raw));
  }
  __device__ uint32_t keys(int stage) const { return stages + stage * kStageBytes; }
  __device__ uint32_t values(int stage) const { return keys(stage) + kKeyBytes; }
};

struct Maps {
  CUtensorMap expanded;  // [4 h columns of 64][rows][64], boxes of 128 rows and 2 columns of 64
  CUtensorMap rope;      // [rows][64], boxes of 128 rows
};

__device__ void Produce(const PrefillTile& tile, const Maps& maps, const Layout& smem, int head) {
  Barriers& barriers = *smem.barriers;
  for (int j = 0; j < tile.key_tiles; ++j) {
    const int stage = j % kStages;
    const uint32_t parity = (j / kStages & 1) ^ 1;
    const int row = tile.key_row + j * kKeys;
    const uint32_t full_keys = SharedAddress(&barriers.full_keys[stage]);
    hopper::Wait(SharedAddress(&barriers.empty_keys[stage]), parity);
    ArriveExpecting(full_keys, kKeyBytes);
    CopyBox(smem.keys(stage), &maps.expanded, full_keys, 0, row, head * 4);
    CopyBox(smem.keys(stage) + 2 * kColumnBytes, &maps.rope, full_keys, 0, row, 0);
    const uint32_t full_values = SharedAddress(&barriers.full_values[stage]);
    hopper::Wait(SharedAddress(&barriers.empty_values[stage]), parity);
    ArriveExpecting(full_values, kValueBytes);
    CopyBox(smem.values(stage), &maps.expanded, full_values, 0, row, head * 4 + 2);
  }
}

class Consumer {
 public:
  __device__ Consumer(const PrefillArgs& args,
                      const PrefillTile& tile,
                      const Layout& smem,
                      int head)
      : args_(args),
        tile_(tile),
        smem_(smem),
        barriers_(*smem.barriers),
        head_(head),
        group_(__shfl_sync(0xFFFFFFFF, static_cast<int>(threadIdx.x) / 128, 0)),
        warp_(threadIdx.x / 32 % 4),
        lane_(threadIdx.x % 32) {}

  __device__ __forceinline__ void Run() {
    LoadQueries();
    const int count = tile_.key_tiles;
#pragma unroll
    for (int i = 0; i < 64; ++i) o_[i] = 0;
    if (count > 0) {
      IssueScores(0);
      WaitProducts<0>();
      Pin(s_);
      Release(barriers_.empty_keys[0]);
      Softmax(0);
      MakeProbabilities();
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
    }
    End();
  }

 private:
  // Row r of two of this thread, among the tile's.
  __device__ __forceinline__ int Row(int r) const {
    return group_ * kGroupRows + warp_ * 16 + lane_ / 4 + 8 * r;
  }

  // This warpgroup's rows into shared memory, in the swizzle of the products.
  __device__ __forceinline__ void LoadQueries() {
    constexpr int kChunks = kWidth / 8;
    constexpr int kEach = kGroupRows * kChunks / 128;
    const auto* const q = static_cast<const __nv_bfloat16*>(args_.q) + head_ * args_.q_head_stride;
    uint4 parts[kEach];
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int at = i * 128 + threadIdx.x % 128;
      const int row = group_ * kGroupRows + at / kChunks;
      parts[i] = make_uint4(0, 0, 0, 0);
      if (row < tile_.query_count) {
        parts[i] = *reinterpret_cast<const uint4*>(
            q + (tile_.query_row + row) * args_.q_row_stride + at % kChunks * 8);
      }
    }
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int at = i * 128 + threadIdx.x % 128;
      const int row = group_ * kGroupRows + at / kChunks;
      const int chunk = at % kChunks;
      const uint32_t to =
          smem_.q + chunk / 8 * kColumnBytes + row * 128 + ((chunk % 8) ^ (row % 8)) * 16;
      asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(parts[i].x),
                   "r"(parts[i].y), "r"(parts[i].z), "r"(parts[i].w)
                   : "memory");
    }
    FenceAsyncProxy();
    if (group_ == 0) {
      asm volatile("bar.sync 1, 128;" ::: "memory");
    } else {
      asm volatile("bar.sync 2, 128;" ::: "memory");
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      reference_[r] = -CUDART_INF_F;
      ratio_[r] = 1;
      sum_[r] = 0;
      // Rows that do not exist see everything; they are not written.
      position_[r] = Row(r) < tile_.query_count ? tile_.first_position + Row(r) : INT_MAX / 2;
    }
  }

  // S = Q K^T of keys j; committed.
  __device__ __forceinline__ void IssueScores(int j) {
    const int stage = j % kStages;
    const uint64_t q = OperandDescriptor(smem_.q + group_ * kGroupRows * 128, 0);
    const uint64_t k = OperandDescriptor(smem_.keys(stage), 0);
    const int32_t* const positions = args_.block_positions + (tile_.key_row + j * kKeys) / 64;
    key_position_[0] = __ldg(positions);
    key_position_[1] = __ldg(positions + 1);
    hopper::Wait(SharedAddress(&barriers_.full_keys[stage]), j / kStages & 1);
    Pin(s_);
    FenceProducts();
#pragma unroll
    for (int column = 0; column < 3; ++column) {
#pragma unroll
      for (int step = 0; step < 4; ++step) {
        const uint32_t at = column * kColumnBytes + step * 32;
        ProductN128(s_, Advance(q, at), Advance(k, at), column + step > 0 ? 1 : 0);
      }
    }
    CommitProducts();
  }

  // O += P V of keys j; committed.
  __device__ __forceinline__ void IssueValues(int j) {
    const int stage = j % kStages;
    const uint64_t v = OperandDescriptor(smem_.values(stage), kColumnBytes);
    hopper::Wait(SharedAddress(&barriers_.full_values[stage]), j / kStages & 1);
    PinAll();
    FenceProducts();
#pragma unroll
    for (int step = 0; step < kKeys / 16; ++step) {
      ProductN128(o_, p_[step], Advance(v, step * 2048), 1);
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

  // Sets scores of keys that a row does not see to -inf.
  __device__ __forceinline__ void Mask(int j) {
    int seen[2][2];  // of each half's 64 keys, by each row
    int least = 64;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int valid = tile_.key_count - j * kKeys - half * 64;
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        seen[half][r] = min(valid, position_[r] - key_position_[half] + 1);
        least = min(least, seen[half][r]);
      }
    }
    if (__all_sync(0xFFFFFFFF, least >= 64)) return;
#pragma unroll
    for (int i = 0; i < 16; ++i) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int column = 8 * (i % 8) + 2 * (lane_ % 4) + e % 2;
        if (column >= seen[i / 8][e / 2]) s_[4 * i + e] = -CUDART_INF_F;
      }
    }
  }

  // From the scores of keys j: the exponentials in their place, the row's reference and sums, and
  // by what O is to be multiplied.
  __device__ __forceinline__ void Softmax(int j) {
    Mask(j);
    const float scale = args_.scale;  // to log2
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float highest = -CUDART_INF_F;
#pragma unroll
      for (int i = 0; i < 16; ++i) {
        highest = fmaxf(highest, fmaxf(s_[4 * i + 2 * r], s_[4 * i + 2 * r + 1]));
      }
      highest = fmaxf(highest, __shfl_xor_sync(0xFFFFFFFF, highest, 1));
      highest = fmaxf(highest, __shfl_xor_sync(0xFFFFFFFF, highest, 2));
      highest *= scale;
      const float before = reference_[r];
      const float now = highest > before + kSlack ? highest : before;
      reference_[r] = now;
      ratio_[r] = before == now ? 1.0f : Exp2(before - now);
      const float subtract = now == -CUDART_INF_F ? 0 : now;
      float sum = 0;
#pragma unroll
      for (int i = 0; i < 16; ++i) {
        const float a = Exp2(fmaf(s_[4 * i + 2 * r], scale, -subtract));
        const float b = Exp2(fmaf(s_[4 * i + 2 * r + 1], scale, -subtract));
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
    for (int i = 0; i < 16; ++i) {
#pragma unroll
      for (int e = 0; e < 4; ++e) o_[4 * i + e] *= ratio_[e / 2];
    }
  }

  // The exponentials as the A operand of 8 steps of 16 keys.
  __device__ __forceinline__ void MakeProbabilities() {
#pragma unroll
    for (int i = 0; i < 16; ++i) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        p_[i / 2][2 * (i % 2) + r] = PackBf16(s_[4 * i + 2 * r], s_[4 * i + 2 * r + 1]);
      }
    }
  }

  // Where the row's results of the passes before are.
  __device__ __forceinline__ int64_t Partial(int r) const {
    return int64_t{tile_.partial_row + Row(r)} * args_.heads + head_;
  }

  // Divides by the softmax sum, merges with the passes before, and writes.
  __device__ __forceinline__ void End() {
    const bool merges = (tile_.flags & PrefillTile::kHasPrevious) != 0;
    const bool is_last = (tile_.flags & PrefillTile::kIsLast) != 0;
    float before[2] = {};
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      if (merges && Row(r) < tile_.query_count) before[r] = args_.partial_lse[Partial(r)];
    }
    __syncwarp();  // all lanes of a row have read it before one writes
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float sum = sum_[r];
      sum += __shfl_xor_sync(0xFFFFFFFF, sum, 1);
      sum += __shfl_xor_sync(0xFFFFFFFF, sum, 2);
      const int row = Row(r);
      if (row >= tile_.query_count) continue;
      const bool nothing = sum == 0;
      float lse = nothing ? -CUDART_INF_F : reference_[r] + log2f(sum);
      float share = nothing ? 0 : 1 / sum;
      const int64_t partial = Partial(r);
      const int column = 2 * (lane_ % 4);
      float2* const between =
          reinterpret_cast<float2*>(args_.partial_out + partial * kAttentionValue + column);
      float earlier = 0;  // share of the passes before
      if (merges) {
        const float highest = fmaxf(before[r], lse);
        const float base = highest == -CUDART_INF_F ? 0 : highest;
        const float weight_before = exp2f(before[r] - base), weight = exp2f(lse - base);
        const float total = weight_before + weight;
        earlier = total == 0 ? 0 : weight_before / total;
        share *= total == 0 ? 0 : weight / total;
        lse = total == 0 ? -CUDART_INF_F : base + log2f(total);
      }
      if (lane_ % 4 == 0) {
        if (!is_last) args_.partial_lse[partial] = lse;
        if (is_last && args_.lse != nullptr) {
          args_.lse[(tile_.query_row + row) * args_.lse_row_stride + head_] = lse * kLn2;
        }
      }
      auto* const out = static_cast<__nv_bfloat16*>(args_.out) +
                        (tile_.query_row + row) * args_.out_row_stride + head_ * kAttentionValue +
                        column;
#pragma unroll
      for (int i = 0; i < 16; ++i) {
        float a = nothing ? 0 : o_[4 * i + 2 * r] * share;
        float b = nothing ? 0 : o_[4 * i + 2 * r + 1] * share;
        if (merges) {
          const float2 old = between[4 * i];
          a += earlier * old.x;
          b += earlier * old.y;
        }
        if (is_last) {
          *reinterpret_cast<uint32_t*>(out + 8 * i) = PackBf16(a, b);
        } else {
          between[4 * i] = make_float2(a, b);
        }
      }
    }
  }

  const PrefillArgs& args_;
  const PrefillTile& tile_;
  const Layout& smem_;
  Barriers& barriers_;
  const int head_, group_, warp_, lane_;

  float o_[64];  // rows Row(0), Row(1); columns 8 i + 2 (lane % 4) + {0, 1}
  float s_[64];
  uint32_t p_[kKeys / 16][4];
  float reference_[2], ratio_[2], sum_[2];
  int position_[2];
  int key_position_[2];  // of the first key of each half of the scores' keys
};

__global__ void __launch_bounds__(kThreads, 1)
    PrefillKernel(const __grid_constant__ PrefillArgs args, const __grid_constant__ Maps maps) {
  extern __shared__ unsigned char raw[];
  const Layout smem(raw);
  if (threadIdx.x == 0) {
    for (int s = 0; s < kStages; ++s) {
      InitBarrier(SharedAddress(&smem.barriers->full_keys[s]), 1);
      InitBarrier(SharedAddress(&smem.barriers->full_values[s]), 1);
      InitBarrier(SharedAddress(&smem.barriers->empty_keys[s]), kComputeThreads / 32);
      InitBarrier(SharedAddress(&smem.barriers->empty_values[s]), kComputeThreads / 32);
    }
    FenceBarrierInit();
    PrefetchMap(&maps.expanded);
    PrefetchMap(&maps.rope);
  }
  __syncthreads();
  WaitForPredecessors();
  LetDependentsLaunch();
  // The heads of a group side by side, so that their keys stay in the L2; the longest tiles of all
  // of them first, so that the short ones fill the gaps at the end.
  const int group_blocks = args.head_group * static_cast<int>(args.tile_count);
  const int first_head = static_cast<int>(blockIdx.x) / group_blocks * args.head_group;
  const int in_group = static_cast<int>(blockIdx.x) % group_blocks;
  const int group_heads = min(args.head_group, args.heads - first_head);
  const int head = first_head + in_group % group_heads;
  const PrefillTile tile = args.tiles[in_group / group_heads];
  const int role = __shfl_sync(0xFFFFFFFF, static_cast<int>(threadIdx.x) / 128, 0);
  if (role < kGroups) {
    RaiseRegisters<kComputeRegisters>();
    Consumer consumer(args, tile, smem, head);
    consumer.Run();
  } else {
    LowerRegisters<kProducerRegisters>();
    if (threadIdx.x == kComputeThreads) Produce(tile, maps, smem, head);
  }
}

}  // namespace

void LaunchPrefill(const PrefillPlan& plan, const PrefillArgs& from, const LaunchStream& stream) {
  constexpr double kLog2OfE = 1.4426950408889634;
  PrefillArgs args = from;
  args.scale = static_cast<float>(double{from.scale} * kLog2OfE);
  args.head_group = plan.head_group;
  Maps maps = {};
  const auto rows = static_cast<uint64_t>(args.rows);
  const auto heads = static_cast<uint64_t>(args.heads);
  const TensorMapShape expanded = {CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
                                   CU_TENSOR_MAP_SWIZZLE_128B,
                                   {64, rows, heads * 4},
                                   {heads * 512, 128},
                                   {64, kKeys, 2}};
  const TensorMapShape rope = {CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
                               CU_TENSOR_MAP_SWIZZLE_128B,
                               {64, rows, 1},
                               {kMlaWidth * 2, 128},
                               {64, kKeys, 1}};
  const auto* const rotated = static_cast<const char*>(args.latents) + kMlaLatent * 2;
  CheckOk(MakeTensorMap(expanded, args.expanded, maps.expanded));
  CheckOk(MakeTensorMap(rope, rotated, maps.rope));
  CheckCuda(cudaFuncSetAttribute(PrefillKernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 kSharedBytes),
            "attention prefill");
  CheckCuda(
      LaunchPlaced("attention prefill", PrefillKernel, dim3(static_cast<unsigned>(plan.blocks)),
                   dim3(kThreads), kSharedBytes, stream, 0, args, maps),
      "attention prefill");
}

}  // namespace baltoro::cuda
