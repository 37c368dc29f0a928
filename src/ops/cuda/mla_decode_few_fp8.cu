// Up to 8 rows (heads times query tokens of a sequence) over a cache of fp8. Tiles of 64 rows would
// be seven eighths empty, and widening the cache in shared memory takes longer than reading it:
// here keys and values are the rows of 16 x 8 products, made half floats in registers.
//
// One thread block a multiprocessor; a producer warp copies blocks of 64 keys as they lie into four
// stages, eight warps compute, two blocks between two pairs of barriers, so that these and the
// softmax, in which products rest, are paid for half as often. The plan, the block table and old
// keys are read before the kernel ahead has ended.
//
//   S^T = K Q^T       warp w: keys 16 (w % 4) .. + 16 of each block, columns of half w / 4
//   P                 warp w: row w, from the sum of both halves
//   O^T += V^T P^T    warp w: columns 64 w .. + 64 of the latent

#include <cuda.h>
#include <cuda_fp16.h>
#include <math_constants.h>

#include "device/cuda/cuda_status.h"
#include "ops/cuda/attention_mma.cuh"
#include "ops/cuda/mla_decode_few_device.cuh"
#include "ops/cuda/mla_decode_producer.cuh"
#include "ops/cuda/placed_launch.h"
#include "ops/cuda/tensor_map.h"

namespace baltoro::cuda {
namespace {

using namespace mla;  // NOLINT: the parts that the attention kernels share

constexpr int kRows = kMlaFewRows;
constexpr int kWarps = kComputers / 32;
constexpr int kThreads = kComputers + 32;
constexpr int kStages = 4;
constexpr int kRound = 2;  // blocks between the barriers

constexpr int kSteps = kMlaWidth / 16 / 2;  // of 16 columns, of one half
constexpr int kHalfSteps = 16;              // of them in the half's own columns of the latent
constexpr int kSlack = 8;                   // exponentials stay below 2^8, far from a half's end
// Queries become halves times this, so that none is too large; what it costs are values below 1e-6.
constexpr float kQueryFactor = 1.0f / 16;
constexpr float kHalfMax = 65504;
constexpr float kLn2 = 0.69314718056f;

constexpr int kQueryPitch = kMlaWidth * 2 + 16;     // bytes: 8 rows of 16 bytes touch all banks
constexpr int kRoundPitch = kRound * kTokens + 4;   // floats: fragments of scores likewise
constexpr int kHalvesPitch = kRound * kTokens + 8;  // halves: likewise
constexpr int kQueryWords = kMlaWidth / 2 / 32;     // of a row, each lane's

// A stage: the latent in four tiles of 128 columns in the 128-byte swizzle, the rotated columns
// behind them in the 64-byte swizzle. Stages are aligned, so that 16 columns further on in a tile
// are a bit that changes in the address.
constexpr int kPairBytes = kTokens * 128;
constexpr int kRawRopeAt = kMlaLatent / 128 * kPairBytes;
constexpr int kRawBytes = kRawRopeAt + kTokens * 64;
static_assert(kRawRopeAt % 1024 == 0 && kRawBytes % 1024 == 0);

struct Shared {
  uint64_t full[kStages];
  uint64_t empty[kStages];
  float scores[2][kRows][kRoundPitch];  // of both halves of the columns
  alignas(16) __half shares[kRows][kHalvesPitch];
  float ratio[kRows];      // by which the sums so far are to be multiplied
  float reference[kRows];  // at the end of a piece
  float sum[kRows];
  alignas(16) unsigned char queries[2][kRows * kQueryPitch];  // of this piece and the next one
};

constexpr int kSharedBytes = 1024 + kStages * kRawBytes + static_cast<int>(sizeof(Shared));

struct RawMaps {
  CUtensorMap latent;
  CUtensorMap rope;
};

// Four 8 x 8 matrices, transposed; lane l gives the address of row l % 8 of matrix l / 8.
__device__ __forceinline__ void LoadTransposed4(uint32_t (&m)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
               : "r"(address)
               : "memory");
}

// d[16 x 8] += a[16 x 16] b[16 x 8], halves.
__device__ __forceinline__ void MultiplyHalves(float (&d)[4],
                                               const uint32_t (&a)[4],
                                               uint32_t b0,
                                               uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, "
      "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ void Produce(
    const MlaKernelArgs& args, const RawMaps& maps, uint32_t stages, Shared& shared, int part) {
  const bool first_lane = threadIdx.x % 32 == 0;
  uint32_t block = 0;  // of this part
  bool waited = args.keys_are_old;
  MlaWalker walker(args, part);
  for (MlaPiece piece; walker.Next(piece);) {
    BlockTable table(args, piece);
    const int count = piece.end_block - piece.begin_block;
    if (!waited) WaitForPredecessors();
    waited = true;
    for (int i = 0; i < count; ++i, ++block) {
      const int row = table.Row(i);
      if (!first_lane) continue;
      const uint32_t s = block % kStages;
      const uint32_t full = SharedAddress(&shared.full[s]);
      const uint32_t to = stages + s * kRawBytes;
      hopper::Wait(SharedAddress(&shared.empty[s]), (block / kStages & 1) ^ 1);
      ArriveExpecting(full, kRawBytes);
      CopyBox(to, &maps.latent, full, 0, row, 0);
      CopyBox(to + kRawRopeAt, &maps.rope, full, 0, row, 0);
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
    int position = Position(piece);
    int firsts[kRound];  // positions of the first keys of the next blocks
    LoadFirsts(piece, 0, firsts);
    WaitForPredecessors();
    LetDependentsLaunch();
    uint32_t words[kQueryWords];
    AskForQueries(piece, words);
    StoreQueries(words, 0);
    SyncComputers();
    uint32_t block = 0;  // of this part
    bool more = true;
#pragma unroll 1
    for (uint32_t turn = 0; more; ++turn) {
      Begin(position, turn);
      const int count = piece.end_block - piece.begin_block;
      MlaPiece next = piece;
      more = false;
#pragma unroll 1
      for (int i = 0; i < Most(count, 1); i += kRound) {
        if (count > 0) Compute(piece, i, min(count - i, kRound), block + i, firsts);
        LoadFirsts(piece, i + kRound, firsts);
        if (i > 0) continue;
        // Behind blocks, so that what is not at hand is waited for when there is no hurry.
        more = walker.Next(next);
        if (more) {
          position = Position(next);
          AskForQueries(next, words);
        }
      }
      block += count;
      if (more) {
        StoreQueries(words, turn + 1);
        LoadFirsts(next, 0, firsts);
      }
      End(piece);
      piece = next;
    }
  }

 private:
  __device__ static __forceinline__ int Most(int a, int b) {
    return a > b ? a : b;
  }

  // Of this warp's row.
  __device__ __forceinline__ int Position(const MlaPiece& piece) const {
    return __ldg(args_.sequences.first_position + piece.sequence) +
           (piece.tile_row + warp_) / args_.heads;
  }

  // A warp a row. A row that is not there has the queries of the last one; what becomes of them is
  // not written.
  __device__ __forceinline__ void AskForQueries(const MlaPiece& piece,
                                                uint32_t (&words)[kQueryWords]) const {
    static_assert(kWarps == kRows && kQueryWords * 64 == kMlaWidth);
    const auto* const from = reinterpret_cast<const uint32_t*>(
                                 q_ + (piece.first_row + min(warp_, piece.rows - 1)) * kMlaWidth) +
                             lane_;
#pragma unroll
    for (int i = 0; i < kQueryWords; ++i) words[i] = __ldcg(from + i * 32);
  }

  // As halves, in the order in which four lanes have 16 columns of keys, 4 each: columns 4 c + {0,
  // 1} of lane c as the product's 2 c + {0, 1}, its 4 c + {2, 3} as 2 c + {8, 9}.
  __device__ __forceinline__ void StoreQueries(const uint32_t (&words)[kQueryWords],
                                               uint32_t turn) const {
    const int word = lane_ % 8;
    const uint32_t to = SharedAddress(shared_.queries[turn % 2]) + warp_ * kQueryPitch +
                        (lane_ / 8 * 8 + word % 2 * 4 + word / 2) * 4;
#pragma unroll
    for (int i = 0; i < kQueryWords; ++i) {
      asm volatile("st.shared.b32 [%0], %1;" ::"r"(to + i * 128), "r"(Halves(words[i])) : "memory");
    }
  }

  // Two bf16 as halves, times the factor; NaN stays.
  __device__ static __forceinline__ uint32_t Halves(uint32_t pair) {
    const auto fit = [](float x) {
      x *= kQueryFactor;
      return x > kHalfMax ? kHalfMax : x < -kHalfMax ? -kHalfMax : x;
    };
    const __half2 halves = __floats2half2_rn(fit(__uint_as_float(pair << 16)),
                                             fit(__uint_as_float(pair & 0xFFFF0000u)));
    uint32_t bits;
    memcpy(&bits, &halves, 4);
    return bits;
  }

  // Half a row of queries as the second operand. The half's own 16 steps of the latent come first,
  // then its two of the rotated columns.
  __device__ __forceinline__ void Begin(int position, uint32_t turn) {
    const int half = warp_ / 4;
    const uint32_t from =
        SharedAddress(shared_.queries[turn % 2]) + lane_ % 8 * kQueryPitch + lane_ / 8 * 16;
#pragma unroll
    for (int step = 0; step < kSteps; step += 2) {
      const int column =
          step < kHalfSteps ? (half * kHalfSteps + step) * 16 : kMlaLatent + half * 32;
      uint32_t m[4];
      LoadMatrices4(m, from + column * 2);
      queries_[step][0] = m[0], queries_[step][1] = m[1];
      queries_[step + 1][0] = m[2], queries_[step + 1][1] = m[3];
    }
    position_ = position;
    reference_ = -CUDART_INF_F;
    sum_ = 0;
#pragma unroll
    for (int t = 0; t < 4; ++t) {
#pragma unroll
      for (int e = 0; e < 4; ++e) out_[t][e] = 0;
    }
  }

  // Blocks i .. i + count of the piece, of which the first is `block` of this part.
  __device__ __forceinline__ void Compute(
      const MlaPiece& piece, int i, int count, uint32_t block, const int (&firsts)[kRound]) {
#pragma unroll 1
    for (int b = 0; b < count; ++b) {
      const uint32_t s = (block + b) % kStages;
      hopper::Wait(SharedAddress(&shared_.full[s]), (block + b) / kStages & 1);
      Scores(Stage(block + b), b);
    }
    SyncComputers();
    int seen[kRound];
#pragma unroll
    for (int b = 0; b < kRound; ++b) {
      seen[b] = 0;
      if (b >= count) continue;
      const int in_block = min(piece.key_count - (piece.begin_block + i + b) * kTokens, kTokens);
      seen[b] = min(in_block, position_ - firsts[b] + 1);
      if (in_block < kTokens) ClearTail(Stage(block + b), in_block);
    }
    Softmax(seen, count);
    SyncComputers();
    Rescale();
#pragma unroll 1
    for (int b = 0; b < count; ++b) {
      const uint32_t s = (block + b) % kStages;
      Values(Stage(block + b), b);
      FinishLoads();
      __syncwarp();
      if (lane_ == 0) Arrive(SharedAddress(&shared_.empty[s]));
    }
  }

  // Of blocks i .. i + kRound of the piece, those that it has.
  __device__ __forceinline__ void LoadFirsts(const MlaPiece& piece,
                                             int i,
                                             int (&firsts)[kRound]) const {
    const int32_t* const positions = args_.sequences.block_positions;
#pragma unroll
    for (int b = 0; b < kRound; ++b) {
      const int block = piece.begin_block + i + b;
      firsts[b] = block * kTokens;
      if (positions == nullptr || block >= piece.end_block) continue;
      firsts[b] = __ldg(positions + piece.sequence * args_.sequences.table_stride + block);
    }
  }

  __device__ __forceinline__ uint32_t Stage(uint32_t block) const {
    return stages_ + block % kStages * kRawBytes;
  }

  // Zeroes the latents of tokens that do not exist, since 0 times whatever is there could be NaN.
  __device__ __forceinline__ void ClearTail(uint32_t stage, int valid) {
    for (int token = valid + warp_; token < kTokens; token += kWarps) {
      const uint32_t to = stage + lane_ / 8 * kPairBytes + token * 128 + lane_ % 8 * 16;
      asm volatile("st.shared.v4.b32 [%0], {%1, %1, %1, %1};" ::"r"(to), "r"(0) : "memory");
    }
    FenceAsyncProxy();
  }

  // The scores of 16 keys over the columns of this warp's half, all loads first.
  __device__ __forceinline__ void Scores(uint32_t stage, int b) {
    const uint32_t half = warp_ / 4, key = warp_ % 4 * 16;
    const uint32_t token = key + lane_ % 16, second = lane_ / 16;
    const uint32_t in_pair = (second ^ token % 8) << 4;
    const uint32_t in_rope = ((half * 2 + second) ^ (token / 2 % 4)) << 4;
    const uint32_t own = stage + half * (2 * kPairBytes) + token * 128 + in_pair;
    const uint32_t rotated = stage + kRawRopeAt + token * 64 + in_rope;
    uint32_t codes[kSteps / 2][4];
#pragma unroll
    for (int i = 0; i < kSteps / 2; ++i) {
      const uint32_t step = 2 * i;
      const uint32_t at = (own ^ (step % 8 << 4)) + step / 8 * kPairBytes;
      LoadMatrices4(codes[i], step < kHalfSteps ? at : rotated);
    }
    float sums[3][4] = {};
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      uint32_t a[4];
      HalvesOfFour(codes[step / 2][step % 2 * 2], a[0], a[2]);
      HalvesOfFour(codes[step / 2][step % 2 * 2 + 1], a[1], a[3]);
      MultiplyHalves(sums[step % 3], a, queries_[step][0], queries_[step][1]);
    }
    float(&to)[kRows][kRoundPitch] = shared_.scores[half];
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      to[lane_ % 4 * 2 + e % 2][b * kTokens + key + lane_ / 4 + 8 * (e / 2)] =
          sums[0][e] + sums[1][e] + sums[2][e];
    }
  }

  // Of this warp's row: the exponentials of the first seen[b] scores of each block, its reference
  // and sums. The reference is raised where a score exceeds it by more than kSlack.
  __device__ __forceinline__ void Softmax(const int (&seen)[kRound], int count) {
    const float scale = args_.scale_log2 / kQueryFactor;
    float score[kRound][2];
    float highest = -CUDART_INF_F;
#pragma unroll
    for (int b = 0; b < kRound; ++b) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        score[b][half] = -CUDART_INF_F;
        const int at = b * kTokens + lane_ + 32 * half;
        if (b < count && lane_ + 32 * half < seen[b]) {
          score[b][half] = (shared_.scores[0][warp_][at] + shared_.scores[1][warp_][at]) * scale;
        }
        highest = fmaxf(highest, score[b][half]);
      }
    }
#pragma unroll
    for (int other = 16; other > 0; other /= 2) {
      highest = fmaxf(highest, __shfl_xor_sync(~0u, highest, other));
    }
    const float before = reference_;
    const float now = highest > before + kSlack ? highest : before;
    const float ratio = before == now ? 1.0f : hopper::Exp2(before - now);
    const float subtract = now == -CUDART_INF_F ? 0 : now;
    reference_ = now;
    sum_ *= ratio;
#pragma unroll
    for (int b = 0; b < kRound; ++b) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float share = hopper::Exp2(score[b][half] - subtract);
        sum_ += share;
        shared_.shares[warp_][b * kTokens + lane_ + 32 * half] = __half(share);
      }
    }
    if (lane_ == 0) shared_.ratio[warp_] = ratio;
  }

  __device__ __forceinline__ void Rescale() {
    const float2 ratio = *reinterpret_cast<const float2*>(&shared_.ratio[lane_ % 4 * 2]);
    if (!__any_sync(0xFFFFFFFF, ratio.x != 1.0f || ratio.y != 1.0f)) return;
#pragma unroll
    for (int t = 0; t < 4; ++t) {
#pragma unroll
      for (int e = 0; e < 4; ++e) out_[t][e] *= e % 2 == 0 ? ratio.x : ratio.y;
    }
  }

  // out_[t]: columns 64 warp + 16 t + 2 (lane / 4) + {0, 1} of the latent, rows 2 (lane % 4) + {0,
  // 1}. Transposed as pairs of columns, a word has two columns of two keys.
  __device__ __forceinline__ void Values(uint32_t stage, int b) {
    constexpr int kKeySteps = kTokens / 16;
    const uint32_t shares = SharedAddress(&shared_.shares[lane_ % 8][b * kTokens]) + lane_ / 8 * 16;
    const uint32_t token = lane_ % 16, second = lane_ / 16, warp = warp_;
    const uint32_t in_pair = ((warp % 2 * 4 + second) ^ (token % 8)) << 4;
    const uint32_t own = stage + warp / 2 * kPairBytes + token * 128 + in_pair;
    uint32_t codes[kKeySteps][2][4], p[kKeySteps / 2][4];
#pragma unroll
    for (int step = 0; step < kKeySteps; ++step) {
#pragma unroll
      for (int t = 0; t < 2; ++t) {
        LoadTransposed4(codes[step][t], (own ^ (t * 32)) + step * 16 * 128);
      }
      if (step % 2 == 0) LoadMatrices4(p[step / 2], shares + step * 32);
    }
#pragma unroll
    for (int step = 0; step < kKeySteps; ++step) {
#pragma unroll
      for (int t = 0; t < 4; ++t) {
        const uint32_t(&words)[4] = codes[step][t / 2];
        uint32_t a[4];
        HalvesOfFour(__byte_perm(words[t % 2 * 2], 0, 0x3120), a[0], a[1]);
        HalvesOfFour(__byte_perm(words[t % 2 * 2 + 1], 0, 0x3120), a[2], a[3]);
        MultiplyHalves(out_[t], a, p[step / 2][step % 2 * 2], p[step / 2][step % 2 * 2 + 1]);
      }
    }
  }

  // Divides by the softmax sum and writes.
  __device__ __forceinline__ void End(const MlaPiece& piece) {
    float sum = sum_;
#pragma unroll
    for (int other = 16; other > 0; other /= 2) sum += __shfl_xor_sync(0xFFFFFFFF, sum, other);
    if (lane_ == 0) {
      shared_.sum[warp_] = sum;
      shared_.reference[warp_] = reference_;
    }
    SyncComputers();
#pragma unroll
    for (int r = 0; r < 2; ++r) Write(piece, lane_ % 4 * 2 + r, r);
    SyncComputers();  // what is shared may be overwritten
  }

  __device__ __forceinline__ void Write(const MlaPiece& piece, int row, int r) const {
    if (row >= piece.rows) return;
    const float sum = shared_.sum[row];
    const float lse = sum == 0 ? -CUDART_INF_F : shared_.reference[row] + log2f(sum);
    const float share = sum == 0 ? 0 : 1 / sum;
    const bool writes_lse = warp_ == 0 && lane_ / 4 == 0;
    const int column = warp_ * 64 + lane_ / 4 * 2;
    if (piece.slot >= 0) {
      const int64_t at = int64_t{piece.slot} * kRows + row;
      if (writes_lse) args_.plan.partial_lse[at] = lse;
      float* const to = args_.plan.partial_out + at * kMlaLatent + column;
#pragma unroll
      for (int t = 0; t < 4; ++t) {
        *reinterpret_cast<float2*>(to + 16 * t) =
            sum == 0 ? make_float2(0, 0) : make_float2(out_[t][r] * share, out_[t][2 + r] * share);
      }
      return;
    }
    const int64_t at = piece.first_row + row;
    if (writes_lse && args_.lse != nullptr) args_.lse[at] = lse * kLn2;
    const float scaled = share * args_.out_scale;
    auto* const to = static_cast<__nv_bfloat16*>(args_.out) + at * kMlaLatent + column;
#pragma unroll
    for (int t = 0; t < 4; ++t) {
      *reinterpret_cast<uint32_t*>(to + 16 * t) =
          sum == 0 ? 0 : PackBf16(out_[t][r] * scaled, out_[t][2 + r] * scaled);
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
    MlaFewFp8Kernel(const __grid_constant__ MlaKernelArgs args,
                    const __nv_bfloat16* q,
                    const __grid_constant__ RawMaps maps) {
  extern __shared__ unsigned char raw[];
  const uint32_t stages = (SharedAddress(raw) + 1023) & ~1023u;
  Shared& shared =
      *reinterpret_cast<Shared*>(raw + (stages + kStages * kRawBytes - SharedAddress(raw)));
  if (threadIdx.x == 0) {
    for (int s = 0; s < kStages; ++s) {
      InitBarrier(SharedAddress(&shared.full[s]), 1);
      InitBarrier(SharedAddress(&shared.empty[s]), kWarps);
    }
    FenceBarrierInit();
    PrefetchMap(&maps.latent);
    PrefetchMap(&maps.rope);
  }
  __syncthreads();
  if (threadIdx.x < kComputers) {
    Worker worker(args, q, stages, shared, blockIdx.x);
    worker.Run();
  } else {
    Produce(args, maps, stages, shared, blockIdx.x);
  }
}

Status MakeRawMaps(const MlaDecodeArgs& from, RawMaps& maps) {
  const auto rows = static_cast<cuuint64_t>(from.num_blocks * kTokens);
  const auto* const cache = static_cast<const char*>(from.cache);
  const TensorMapShape latent = {CU_TENSOR_MAP_DATA_TYPE_UINT8,
                                 CU_TENSOR_MAP_SWIZZLE_128B,
                                 {128, rows, kMlaLatent / 128},
                                 {kMlaWidth, 128},
                                 {128, kTokens, kMlaLatent / 128}};
  const TensorMapShape rope = {CU_TENSOR_MAP_DATA_TYPE_UINT8,
                               CU_TENSOR_MAP_SWIZZLE_64B,
                               {64, rows, 1},
                               {kMlaWidth, rows * kMlaWidth},
                               {64, kTokens, 1}};
  BT_RETURN_IF_ERROR(MakeTensorMap(latent, cache, maps.latent));
  return MakeTensorMap(rope, cache + kMlaLatent, maps.rope);
}

}  // namespace

Status LaunchMlaFewFp8(const MlaKernelArgs& args, const MlaDecodeArgs& from, cudaStream_t stream) {
  static_assert(kSharedBytes <= 232448);
  RawMaps maps = {};
  BT_RETURN_IF_ERROR(MakeRawMaps(from, maps));
  BT_CUDA_RETURN_IF_ERROR(cudaFuncSetAttribute(
      MlaFewFp8Kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes));
  BT_CUDA_RETURN_IF_ERROR(LaunchPlaced(
      MlaFewFp8Kernel, dim3(static_cast<unsigned>(args.plan.num_parts)), dim3(kThreads),
      kSharedBytes, stream, 0, args, static_cast<const __nv_bfloat16*>(from.q), maps));
  return Status();
}

}  // namespace baltoro::cuda
