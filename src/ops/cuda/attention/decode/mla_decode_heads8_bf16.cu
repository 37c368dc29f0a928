// Up to 8 rows (heads times query tokens of a sequence) over a cache of bf16, for steps of up
// to 512 query tokens, where the time is that of one piece from end to end: keys and values are the
// rows of 16 x 8 products by mma, so that nothing waits for a warpgroup or a second half.
//
// One thread block a multiprocessor; a producer warp copies blocks of 64 keys into two stages,
// eight warps compute. The plan and the block table are read, and the first blocks fetched into the
// L2, before the kernel ahead has ended.
//
//   S^T = K Q^T       warp w: keys 16 (w % 4) .. + 16, columns of half w / 4
//   P                 warp w: row w, from the sum of both halves
//   O^T += V^T P^T    warp w: columns 64 w .. + 64 of the latent

#include <cuda.h>
#include <math_constants.h>

#include "device/cuda/cuda_status.h"
#include "ops/cuda/attention/decode/mla_decode_heads8_device.cuh"
#include "ops/cuda/attention/decode/mla_decode_producer.cuh"
#include "ops/cuda/attention/prefill/attention_mma.cuh"
#include "ops/cuda/launch/placed_launch.h"
#include "ops/cuda/launch/tensor_map.h"

namespace baltoro::cuda {
namespace {

using namespace mla;  // NOLINT: the parts that the attention kernels share

constexpr int kRows = kMlaHeads8Rows;
constexpr int kWarps = kComputers / 32;
constexpr int kThreads = kComputers + 32;
constexpr int kStages = 2;
constexpr int kSteps = kMlaWidth / 16 / 2;  // of 16 columns, of one half
constexpr int kHalfSteps = 16;              // of them in the half's own four tiles of 64 columns
constexpr int kAhead = 6;                   // steps whose keys are loaded together
constexpr int kSlack = 24;
constexpr int kQueryPitch = kMlaWidth * 2 + 16;  // bytes: 8 rows of 16 bytes touch all banks
constexpr float kLn2 = 0.69314718056f;

struct Shared {
  uint64_t full[kStages];
  uint64_t empty[kStages];
  Heads8Rows rows;
  alignas(16) unsigned char queries[2][kRows * kQueryPitch];  // of this piece and the next one
};

constexpr int kSharedBytes = 1024 + kStages * kStageBytes + static_cast<int>(sizeof(Shared));

// Four 8 x 8 matrices, transposed; lane l gives the address of row l % 8 of matrix l / 8.
__device__ __forceinline__ void LoadTransposed4(uint32_t (&m)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
               : "r"(address)
               : "memory");
}

// Keys are read once a step, so they are the first to leave the L2.
__device__ void Produce(
    const MlaKernelArgs& args, const CUtensorMap& map, uint32_t stages, Shared& shared, int part) {
  uint64_t policy;
  asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  const bool first_lane = threadIdx.x % 32 == 0;
  uint32_t block = 0;  // of this part
  bool waited = false;
  MlaWalker walker(args, part);
  for (MlaPiece piece; walker.Next(piece);) {
    BlockTable table(args, piece);
    const int count = piece.end_block - piece.begin_block;
    int row = count > 0 ? table.Row(0) : 0;
    if (!waited && !args.early_keys) {
      // The cache may still be written to, but that does not harm what is fetched into the L2.
      constexpr int kBlockBytes = kTokens * kMlaWidth * 2;
      if (first_lane && count > 0) {
        const auto* const from =
            static_cast<const char*>(args.cache) + int64_t{row} * (kMlaWidth * 2);
        asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "n"(kBlockBytes)
                     : "memory");
      }
      WaitForPredecessors();
    }
    waited = true;
    for (int i = 0; i < count; ++i, ++block) {
      if (i > 0) row = table.Row(i);
      if (!first_lane) continue;
      const uint32_t s = block % kStages;
      const uint32_t full = SharedAddress(&shared.full[s]);
      hopper::Wait(SharedAddress(&shared.empty[s]), (block / kStages & 1) ^ 1);
      ArriveExpecting(full, kStageBytes);
      CopyBox(stages + s * kStageBytes, &map, full, 0, row, 0, policy);
    }
  }
}

class Worker {
 public:
  __device__ Worker(
      const MlaKernelArgs& args, const __nv_bfloat16* q, uint32_t stages, Shared& shared, int part)
      : args_(args),
        q_(q),
        stages_(stages),
        shared_(shared),
        part_(part),
        warp_(__shfl_sync(0xFFFFFFFF, static_cast<int>(threadIdx.x) / 32, 0)),
        lane_(threadIdx.x % 32) {}

  __device__ __forceinline__ void Run() {
    MlaWalker walker(args_, part_);
    MlaPiece piece;
    if (!walker.Next(piece)) {
      // A part without keys gives its multiprocessor back. One waits, so that no step ends early.
      if (part_ == 0) WaitForPredecessors();
      return;
    }
    int first = __ldg(args_.sequences.first_position + piece.sequence);
    WaitForPredecessors();
    LetDependentsLaunch();
    AskForQueries(piece, 0);
    uint32_t block = 0;  // of this part
    bool more = true;
    for (uint32_t turn = 0; more; ++turn) {
      Begin(piece, first, turn);
      const int count = piece.end_block - piece.begin_block;
      MlaPiece next = piece;
      if (count > 0) Compute(piece, 0, block);
      // Behind a block, so that what is not at hand is waited for when there is no hurry.
      more = walker.Next(next);
      if (more) {
        first = __ldg(args_.sequences.first_position + next.sequence);
        AskForQueries(next, turn + 1);
      }
      for (int i = 1; i < count; ++i) Compute(piece, i, block + i);
      block += count;
      End(piece);
      piece = next;
    }
  }

 private:
  // A warp a row. A row that is not there has the queries of the last one; what becomes of them is
  // not written.
  __device__ __forceinline__ void AskForQueries(const MlaPiece& piece, uint32_t turn) {
    constexpr int kChunks = kMlaWidth / 8;  // of 16 bytes
    static_assert(kWarps == kRows);
    const uint32_t to = SharedAddress(shared_.queries[turn % 2]) + warp_ * kQueryPitch + lane_ * 16;
    const __nv_bfloat16* const from =
        q_ + (piece.first_row + min(warp_, piece.rows - 1)) * kMlaWidth + lane_ * 8;
#pragma unroll
    for (int i = 0; i < (kChunks + 31) / 32; ++i) {
      if (i * 32 + lane_ < kChunks) CopyAsync16(to + i * 512, from + i * 256, true);
    }
  }

  // Half a row of queries as the second operand: columns 2 (lane % 4) + {0, 1, 8, 9} of each 16.
  // The half's own four tiles come first, then its half of the rotated columns.
  __device__ __forceinline__ void Begin(const MlaPiece& piece, int first, uint32_t turn) {
    WaitAllCopies();
    SyncComputers();
    const uint32_t from = SharedAddress(shared_.queries[turn % 2]) + lane_ % 8 * kQueryPitch;
    const int half = warp_ / 4;
#pragma unroll
    for (int step = 0; step < kSteps; step += 2) {
      const int column =
          step < kHalfSteps ? (half * kHalfSteps + step) * 16 : kMlaLatent + half * 32;
      uint32_t m[4];
      LoadMatrices4(m, from + column * 2 + lane_ / 8 * 16);
      queries_[step][0] = m[0], queries_[step][1] = m[1];
      queries_[step + 1][0] = m[2], queries_[step + 1][1] = m[3];
    }
    position_ = first + (piece.tile_row + warp_) / args_.heads;
    reference_ = -CUDART_INF_F;
    sum_ = 0;
#pragma unroll
    for (int t = 0; t < 4; ++t) {
#pragma unroll
      for (int e = 0; e < 4; ++e) out_[t][e] = 0;
    }
  }

  __device__ __forceinline__ void Compute(const MlaPiece& piece, int i, uint32_t block) {
    const uint32_t s = block % kStages;
    const uint32_t stage = stages_ + s * kStageBytes;
    const int in_block = piece.key_count - (piece.begin_block + i) * kTokens;
    const int first = FirstPosition(piece, i);
    hopper::Wait(SharedAddress(&shared_.full[s]), block / kStages & 1);
    Scores(stage);
    SyncComputers();
    if (in_block < kTokens) ClearTail(stage, in_block);
    Softmax(in_block, first);
    SyncComputers();
    Values(stage);
    FinishLoads();
    __syncwarp();
    if (lane_ == 0) Arrive(SharedAddress(&shared_.empty[s]));
  }

  // Of 16 keys, the columns of this warp's half. Products stay behind their loads by kAhead steps.
  __device__ __forceinline__ void Scores(uint32_t stage) {
    const int half = warp_ / 4, key = warp_ % 4 * 16;
    const int token = key + lane_ % 16;
    const uint32_t own = stage + half * 4 * kTileBytes;
    const uint32_t rotated = stage + kMlaLatent / 64 * kTileBytes;
    uint32_t a[2][kAhead][4];
    const auto load = [&](int group) {
#pragma unroll
      for (int n = 0; n < kAhead; ++n) {
        const int step = group * kAhead + n;
        const uint32_t from =
            step < kHalfSteps
                ? own + step / 4 * kTileBytes + InTile(token, step % 4 * 2 + lane_ / 16)
                : rotated + InTile(token, (half * 2 + step - kHalfSteps) * 2 + lane_ / 16);
        LoadMatrices4(a[group % 2][n], from);
      }
    };
    float sums[3][4] = {};
    constexpr int kGroups = kSteps / kAhead;
    static_assert(kSteps % kAhead == 0);
    load(0);
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
      if (group + 1 < kGroups) load(group + 1);
#pragma unroll
      for (int n = 0; n < kAhead; ++n) {
        MultiplyAdd(sums[n % 3], a[group % 2][n], queries_[group * kAhead + n]);
      }
    }
    float(&to)[kRows][kScorePitch] = shared_.rows.scores[half];
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      to[lane_ % 4 * 2 + e % 2][key + lane_ / 4 + 8 * (e / 2)] =
          sums[0][e] + sums[1][e] + sums[2][e];
    }
  }

  __device__ __forceinline__ int FirstPosition(const MlaPiece& piece, int i) const {
    const int block = piece.begin_block + i;
    const int32_t* const positions = args_.sequences.block_positions;
    return positions == nullptr
               ? block * kTokens
               : __ldg(positions + piece.sequence * args_.sequences.table_stride + block);
  }

  // Zeroes the latents of tokens that do not exist, since 0 times whatever is there could be NaN.
  __device__ __forceinline__ void ClearTail(uint32_t stage, int valid) {
    for (int token = valid + warp_; token < kTokens; token += kWarps) {
#pragma unroll
      for (int at = lane_; at < kMlaLatent / 8; at += 32) {
        const uint32_t to = stage + at / 8 * kTileBytes + token * 128 + at % 8 * 16;
        asm volatile("st.shared.v4.b32 [%0], {%1, %1, %1, %1};" ::"r"(to), "r"(0) : "memory");
      }
    }
    FenceAsyncProxy();
  }

  // Of this warp's row: the exponentials, its reference and sums.
  __device__ __forceinline__ void Softmax(int in_block, int first) {
    const int seen = min(in_block, position_ - first + 1);
    FewSoftmax<kSlack>(shared_.rows, warp_, seen, args_.scale_log2, reference_, sum_);
  }

  // out_[t]: columns 64 warp + 16 t + lane / 4 + {0, 8} of the latent, rows 2 (lane % 4) + {0, 1}.
  __device__ __forceinline__ void Values(uint32_t stage) {
    const int row = lane_ % 4 * 2;
    const float2 ratio = *reinterpret_cast<const float2*>(&shared_.rows.ratio[row]);
    if (__any_sync(0xFFFFFFFF, ratio.x != 1.0f || ratio.y != 1.0f)) {
#pragma unroll
      for (int t = 0; t < 4; ++t) {
#pragma unroll
        for (int e = 0; e < 4; ++e) out_[t][e] *= e % 2 == 0 ? ratio.x : ratio.y;
      }
    }
    const uint32_t shares = SharedAddress(&shared_.rows.shares[lane_ / 4][row]);
    const uint32_t tile = stage + warp_ * kTileBytes;
    const int key = lane_ % 8 + lane_ / 16 * 8, chunk = lane_ / 8 % 2;
    constexpr int kKeySteps = kTokens / 16;
    uint32_t a[2][4][4], b[kKeySteps][2];
    const auto load = [&](int step) {
#pragma unroll
      for (int t = 0; t < 4; ++t) {
        LoadTransposed4(a[step % 2][t], tile + step * 16 * 128 + InTile(key, 2 * t + chunk));
      }
    };
    load(0);
#pragma unroll
    for (int step = 0; step < kKeySteps; ++step) {
      b[step][0] = LoadWord(shares + step * 32);
      b[step][1] = LoadWord(shares + step * 32 + 16);
    }
#pragma unroll
    for (int step = 0; step < kKeySteps; ++step) {
      if (step + 1 < kKeySteps) load(step + 1);
#pragma unroll
      for (int t = 0; t < 4; ++t) MultiplyAdd(out_[t], a[step % 2][t], b[step]);
    }
  }

  // Divides by the softmax sum and writes.
  __device__ __forceinline__ void End(const MlaPiece& piece) {
    float sum = sum_;
#pragma unroll
    for (int other = 16; other > 0; other /= 2) sum += __shfl_xor_sync(0xFFFFFFFF, sum, other);
    if (lane_ == 0) {
      shared_.rows.sum[warp_] = sum;
      shared_.rows.reference[warp_] = reference_;
    }
    SyncComputers();
#pragma unroll
    for (int r = 0; r < 2; ++r) Write(piece, lane_ % 4 * 2 + r, r);
    SyncComputers();  // what is shared may be overwritten
  }

  __device__ __forceinline__ void Write(const MlaPiece& piece, int row, int r) const {
    if (row >= piece.rows) return;
    const float sum = shared_.rows.sum[row];
    const float lse = sum == 0 ? -CUDART_INF_F : shared_.rows.reference[row] + log2f(sum);
    const float share = sum == 0 ? 0 : 1 / sum;
    const bool writes_lse = warp_ == 0 && lane_ / 4 == 0;
    const int column = warp_ * 64 + lane_ / 4;
    if (piece.slot >= 0) {
      const int64_t at = int64_t{piece.slot} * kRows + row;
      if (writes_lse) args_.plan.partial_lse[at] = lse;
      float* const to = args_.plan.partial_out + at * kMlaLatent + column;
#pragma unroll
      for (int t = 0; t < 4; ++t) {
        to[16 * t] = sum == 0 ? 0 : out_[t][r] * share;
        to[16 * t + 8] = sum == 0 ? 0 : out_[t][2 + r] * share;
      }
      return;
    }
    const int64_t at = piece.first_row + row;
    if (writes_lse && args_.lse != nullptr) args_.lse[at] = lse * kLn2;
    const float scaled = share * args_.out_scale;
    auto* const to = static_cast<__nv_bfloat16*>(args_.out) + at * kMlaLatent + column;
#pragma unroll
    for (int t = 0; t < 4; ++t) {
      to[16 * t] = __float2bfloat16_rn(sum == 0 ? 0 : out_[t][r] * scaled);
      to[16 * t + 8] = __float2bfloat16_rn(sum == 0 ? 0 : out_[t][2 + r] * scaled);
    }
  }

  const MlaKernelArgs& args_;
  const __nv_bfloat16* const q_;
  const uint32_t stages_;
  Shared& shared_;
  const int part_, warp_, lane_;

  uint32_t queries_[kSteps][2];
  float out_[4][4];
  int position_;     // of row `warp_`
  float reference_;  // likewise
  float sum_;        // of this lane's keys of row `warp_`
};

__global__ void __launch_bounds__(kThreads, 1)
    MlaHeads8Bf16Kernel(const __grid_constant__ MlaKernelArgs args,
                        const __nv_bfloat16* q,
                        const __grid_constant__ CUtensorMap map) {
  extern __shared__ unsigned char raw[];
  const uint32_t stages = (SharedAddress(raw) + 1023) & ~1023u;
  Shared& shared =
      *reinterpret_cast<Shared*>(raw + (stages + kStages * kStageBytes - SharedAddress(raw)));
  if (threadIdx.x == 0) {
    for (int s = 0; s < kStages; ++s) {
      InitBarrier(SharedAddress(&shared.full[s]), 1);
      InitBarrier(SharedAddress(&shared.empty[s]), kWarps);
    }
    FenceBarrierInit();
    PrefetchMap(&map);
  }
  __syncthreads();
  if (threadIdx.x < kComputers) {
    Worker worker(args, q, stages, shared, blockIdx.x);
    worker.Run();
  } else {
    Produce(args, map, stages, shared, blockIdx.x);
  }
}

}  // namespace

Status LaunchMlaHeads8Bf16(const MlaKernelArgs& args,
                           const MlaDecodeArgs& from,
                           const LaunchStream& stream) {
  static_assert(kSharedBytes <= 232448);
  LaunchNote note = "MLA decode, heads8 bf16";
  if (args.early_keys) note.early_reads = CacheOf(from, args.cache_type);
  CUtensorMap map = {};
  const int64_t cached = from.num_blocks * kTokens;
  const TensorMapShape shape = {CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
                                CU_TENSOR_MAP_SWIZZLE_128B,
                                {64, static_cast<cuuint64_t>(cached), kMlaWidth / 64},
                                {kMlaWidth * 2, 128},
                                {64, kTokens, kMlaWidth / 64}};
  BT_RETURN_IF_ERROR(MakeTensorMap(shape, from.cache, map));
  BT_CUDA_RETURN_IF_ERROR(cudaFuncSetAttribute(
      MlaHeads8Bf16Kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes));
  BT_CUDA_RETURN_IF_ERROR(LaunchPlaced(
      note, MlaHeads8Bf16Kernel, dim3(static_cast<unsigned>(args.plan.num_parts)), dim3(kThreads),
      kSharedBytes, stream, 0, args, static_cast<const __nv_bfloat16*>(from.q), map));
  return Status();
}

}  // namespace baltoro::cuda
