// Up to 8 rows (heads times query tokens of a sequence) over a cache of fp8. Tiles of 64 rows would
// be seven eighths empty, and widening the cache to bf16 in shared memory takes longer than reading
// it: here keys and values are the rows of 16 x 8 products, made half floats in registers.
//
// One thread block a multiprocessor; a producer warp copies blocks of 64 keys as they lie into four
// stages, two teams of 8 warps take the blocks in turn, each with two stages of its own (a team
// that waited for a stage whose last use is the other's could take the phase before for its own):
//
//   S^T = K Q^T       warp w: keys 16 (w % 4) .. + 16, columns of half w / 4
//   P                 warp w: row w, from the sum of both halves
//   O^T += V^T P^T    warp w: columns 64 w .. + 64 of the latent
//
// At the end of a piece the teams' results are merged.

#include <cuda_fp16.h>
#include <math_constants.h>

#include "device/cuda/cuda_status.h"
#include "ops/cuda/mla_decode_few_device.cuh"
#include "ops/cuda/mla_decode_producer.cuh"

namespace baltoro::cuda {
namespace {

using namespace mla;  // NOLINT: the parts that the attention kernels share

constexpr int kRows = kMlaFewRows;
constexpr int kTeams = 2;
constexpr int kTeamWarps = 8;
constexpr int kTeamThreads = kTeamWarps * 32;
constexpr int kThreads = kTeams * kTeamThreads + 32;
constexpr int kStages = 4;  // a multiple of the teams

constexpr int kPairBytes = kTokens * 128;  // 128 columns of a block
constexpr int kRawRopeAt = 4 * kPairBytes;
constexpr int kRawBytes = kRawRopeAt + kTokens * 64;

constexpr int kSteps = kMlaWidth / 16 / 2;  // of 16 columns, of one half
constexpr int kSlack = 8;                   // exponentials stay below 2^8, far from a half's end
// Queries become halves times this, so that none is too large; what it costs are values below 1e-6.
constexpr float kQueryFactor = 1.0f / 16;
constexpr float kHalfMax = 65504;
constexpr float kLn2 = 0.69314718056f;

using Team = FewRows<__half>;

struct Shared {
  uint64_t full[kStages];
  uint64_t empty[kStages];
  Team teams[kTeams];
  float merged[kMlaLatent][kRows];  // of the second team
};

static_assert(kStages % kTeams == 0);
constexpr int kSharedBytes = 1024 + kStages * kRawBytes + static_cast<int>(sizeof(Shared));

// The lanes may have gone apart, and the barriers take whole warps.

__device__ __forceinline__ void SyncTeam(int team) {
  static_assert(kTeamThreads == 256);
  __syncwarp();
  if (team == 0) {
    asm volatile("bar.sync 1, 256;" ::: "memory");
  } else {
    asm volatile("bar.sync 2, 256;" ::: "memory");
  }
}

__device__ __forceinline__ void SyncTeams() {
  __syncwarp();
  asm volatile("bar.sync 3, 512;" ::: "memory");
}

__device__ __forceinline__ uint2 LoadWords(uint32_t from) {
  uint2 value;
  asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];"
               : "=r"(value.x), "=r"(value.y)
               : "r"(from)
               : "memory");
  return value;
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

__device__ void ProduceRaw(
    const MlaKernelArgs& args, const Maps& maps, uint32_t stages, Shared& shared, int part) {
  uint32_t block = 0;  // of this part
  MlaWalker walker(args, part);
  for (MlaPiece piece; walker.Next(piece);) {
    BlockTable table(args, piece);
    const int count = piece.end_block - piece.begin_block;
    for (int i = 0; i < count; ++i, ++block) {
      const int row = table.Row(i);
      if (threadIdx.x % 32 != 0) continue;
      const uint32_t s = block % kStages;
      const uint32_t full = SharedAddress(&shared.full[s]);
      const uint32_t to = stages + s * kRawBytes;
      hopper::Wait(SharedAddress(&shared.empty[s]), (block / kStages & 1) ^ 1);
      ArriveExpecting(full, kRawBytes);
      CopyBox(to, &maps.half, full, 0, row, 0);
      CopyBox(to + 2 * kPairBytes, &maps.half, full, 0, row, 2);
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
        group_(__shfl_sync(0xFFFFFFFF, static_cast<int>(threadIdx.x) / kTeamThreads, 0)),
        warp_(__shfl_sync(0xFFFFFFFF, static_cast<int>(threadIdx.x) / 32 % kTeamWarps, 0)),
        lane_(threadIdx.x % 32),
        team_(shared.teams[group_]) {}

  __device__ __forceinline__ void Run() {
    MlaWalker walker(args_, part_);
    uint32_t block = 0;  // of this part
    for (MlaPiece piece; walker.Next(piece);) {
      Begin(piece);
      const int count = piece.end_block - piece.begin_block;
      for (int i = (block + group_) % kTeams; i < count; i += kTeams) {
        Compute(piece, i, block + i);
      }
      // What the parts before hold must not be seen in the sums of this piece.
      const int first_team = static_cast<int>(block % kTeams);
      block += count;
      End(piece, first_team);
    }
  }

 private:
  __device__ __forceinline__ void Begin(const MlaPiece& piece) {
    // Half a row of queries as the B operand: columns 16 step + 4 (lane % 4) .. + 4 of row lane
    // / 4.
    const int row = lane_ / 4;
    const auto* const from =
        q_ + (piece.first_row + row) * kMlaWidth + warp_ / 4 * kSteps * 16 + lane_ % 4 * 4;
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      uint2 bits = make_uint2(0, 0);
      if (row < piece.rows) bits = __ldg(reinterpret_cast<const uint2*>(from + step * 16));
      queries_[step][0] = Halves(bits.x);
      queries_[step][1] = Halves(bits.y);
    }
    const int first = __ldg(args_.sequences.first_position + piece.sequence);
    position_ = first + (piece.tile_row + warp_) / args_.heads;
    reference_ = -CUDART_INF_F;
    sum_ = 0;
#pragma unroll
    for (int t = 0; t < 4; ++t) {
#pragma unroll
      for (int e = 0; e < 4; ++e) out_[t][e] = 0;
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

  __device__ __forceinline__ void Compute(const MlaPiece& piece, int i, uint32_t block) {
    const uint32_t s = block % kStages;
    const uint32_t stage = stages_ + s * kRawBytes;
    const int in_block = piece.key_count - (piece.begin_block + i) * kTokens;
    const int first = FirstPosition(piece, i);
    hopper::Wait(SharedAddress(&shared_.full[s]), block / kStages & 1);
    float sums[2][4] = {};
    if (warp_ / 4 == 0) {
      Scores<0>(stage, sums);
    } else {
      Scores<kSteps>(stage, sums);
    }
    const int key = warp_ % 4 * 16 + lane_ / 4, row = lane_ % 4 * 2;
    float(&to)[kRows][kScorePitch] = team_.scores[warp_ / 4];
#pragma unroll
    for (int e = 0; e < 4; ++e) to[row + e % 2][key + 8 * (e / 2)] = sums[0][e] + sums[1][e];
    SyncTeam(group_);
    if (in_block < kTokens) ClearTail(stage, in_block);
    Softmax(in_block, first);
    SyncTeam(group_);
    Values(stage);
    FinishLoads();
    __syncwarp();
    if (lane_ == 0) Arrive(SharedAddress(&shared_.empty[s]));
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
    const int each = (kTokens - valid) * 8;  // places of 16 bytes in 128 columns
    for (int at = threadIdx.x % kTeamThreads; at < 4 * each; at += kTeamThreads) {
      const uint32_t to = stage + at / each * kPairBytes + valid * 128 + at % each * 16;
      asm volatile("st.shared.v4.b32 [%0], {%1, %1, %1, %1};" ::"r"(to), "r"(0) : "memory");
    }
    FenceAsyncProxy();
  }

  // The scores of 16 keys over the columns from step kFirst on. A row of 16 columns is taken as
  // the product's 0, 1, 8, 9, 2, 3, 10, 11, .., in keys as in queries.
  template <int kFirst>
  __device__ __forceinline__ void Scores(uint32_t stage, float (&sums)[2][4]) {
    const int key = warp_ % 4 * 16 + lane_ / 4;
    const uint32_t column = lane_ % 4 * 4;
    const uint32_t row = stage + key * 128 + (lane_ / 4 << 4) + column;
    const uint32_t rope = stage + kRawRopeAt + key * 64 + column;
    constexpr int kLatentSteps = kMlaLatent / 16;
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      const int step = kFirst + i;
      uint32_t low, high;  // of keys `key` and key + 8
      if (step < kLatentSteps) {
        const uint32_t at = (row ^ (step % 8 << 4)) + step / 8 * kPairBytes;
        low = LoadWord(at);
        high = LoadWord(at + 8 * 128);
      } else {
        const uint32_t at = rope + (step - kLatentSteps) * 16;
        low = LoadWord(at);
        high = LoadWord(at + 8 * 64);
      }
      uint32_t a[4];
      HalvesOfFour(low, a[0], a[2]);
      HalvesOfFour(high, a[1], a[3]);
      MultiplyHalves(sums[i % 2], a, queries_[i][0], queries_[i][1]);
    }
  }

  // Of this warp's row: the exponentials, its reference and sums.
  __device__ __forceinline__ void Softmax(int in_block, int first) {
    const int seen = min(in_block, position_ - first + 1);
    const float scale = args_.scale_log2 / kQueryFactor;
    FewSoftmax<kSlack>(team_, warp_, seen, scale, reference_, sum_);
  }

  // out_[t]: columns 64 warp + 8 (lane / 4) + 2 t + {0, 1} of the latent, rows 2 (lane % 4) + {0,
  // 1}.
  __device__ __forceinline__ void Values(uint32_t stage) {
    const int row = lane_ % 4 * 2;
    const float2 ratio = *reinterpret_cast<const float2*>(&team_.ratio[row]);
    if (__any_sync(0xFFFFFFFF, ratio.x != 1.0f || ratio.y != 1.0f)) {
#pragma unroll
      for (int t = 0; t < 4; ++t) {
#pragma unroll
        for (int e = 0; e < 4; ++e) out_[t][e] *= e % 2 == 0 ? ratio.x : ratio.y;
      }
    }
    // 8 columns of keys 2 (lane % 4) + {0, 1, 8, 9} of each step of 16.
    const int key = lane_ % 4 * 2;
    const uint32_t chunk = warp_ % 2 * 4 + lane_ / 8;
    const uint32_t base = stage + warp_ / 2 * kPairBytes + lane_ / 4 % 2 * 8;
    const uint32_t even = base + key * 128 + ((chunk ^ key) << 4);
    const uint32_t odd = base + (key + 1) * 128 + ((chunk ^ (key + 1)) << 4);
    const uint32_t shares = SharedAddress(&team_.shares[lane_ / 4][key]);
#pragma unroll
    for (int step = 0; step < kTokens / 16; ++step) {
      const uint2 words[4] = {LoadWords(even + step * 2048), LoadWords(odd + step * 2048),
                              LoadWords(even + step * 2048 + 1024),
                              LoadWords(odd + step * 2048 + 1024)};
      const uint32_t b0 = LoadWord(shares + step * 32);
      const uint32_t b1 = LoadWord(shares + step * 32 + 16);
#pragma unroll
      for (int t = 0; t < 4; ++t) {
        // The two columns of tile t, each of two keys.
        const int order = t % 2 == 0 ? 0x5140 : 0x7362;
        const auto pick = [&](int i) { return t < 2 ? words[i].x : words[i].y; };
        uint32_t a[4];
        HalvesOfFour(__byte_perm(pick(0), pick(1), order), a[0], a[1]);
        HalvesOfFour(__byte_perm(pick(2), pick(3), order), a[2], a[3]);
        MultiplyHalves(out_[t], a, b0, b1);
      }
    }
  }

  // Merges the teams' results, that of the first block's team first, divides by the softmax sum and
  // writes.
  __device__ __forceinline__ void End(const MlaPiece& piece, int first_team) {
    float sum = sum_;
#pragma unroll
    for (int other = 16; other > 0; other /= 2) sum += __shfl_xor_sync(0xFFFFFFFF, sum, other);
    if (lane_ == 0) {
      team_.sum[warp_] = sum;
      team_.reference[warp_] = reference_;
    }
    const int column = warp_ * 64 + lane_ / 4 * 8;
    if (group_ == 1) {
#pragma unroll
      for (int t = 0; t < 4; ++t) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          shared_.merged[column + 2 * t + e / 2][lane_ % 4 * 2 + e % 2] = out_[t][e];
        }
      }
    }
    SyncTeams();
    if (group_ == 0) {
#pragma unroll
      for (int r = 0; r < 2; ++r) Write(piece, first_team, lane_ % 4 * 2 + r, r, column);
    }
    SyncTeams();  // what is shared may be overwritten
  }

  __device__ __forceinline__ void Write(
      const MlaPiece& piece, int first_team, int row, int r, int column) const {
    if (row >= piece.rows) return;
    const Team& first = shared_.teams[first_team];
    const Team& second = shared_.teams[1 - first_team];
    const float highest = fmaxf(first.reference[row], second.reference[row]);
    const float base = highest == -CUDART_INF_F ? 0 : highest;
    const float weights[2] = {Exp2(first.reference[row] - base),
                              Exp2(second.reference[row] - base)};
    const float sum = first.sum[row] * weights[0] + second.sum[row] * weights[1];
    const float lse = sum == 0 ? -CUDART_INF_F : base + log2f(sum);
    const float share = sum == 0 ? 0 : 1 / sum;
    const bool writes_lse = warp_ == 0 && lane_ / 4 == 0;
    float values[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const float own = out_[i / 2][i % 2 * 2 + r];
      const float other = shared_.merged[column + i][row];
      values[i] = ((first_team == 0 ? own : other) * weights[0] +
                   (first_team == 0 ? other : own) * weights[1]) *
                  share;
    }
    if (piece.slot >= 0) {
      const int64_t at = int64_t{piece.slot} * kRows + row;
      if (writes_lse) args_.plan.partial_lse[at] = lse;
      auto* const to = reinterpret_cast<float4*>(args_.plan.partial_out + at * kMlaLatent + column);
      to[0] = make_float4(values[0], values[1], values[2], values[3]);
      to[1] = make_float4(values[4], values[5], values[6], values[7]);
      return;
    }
    const int64_t at = piece.first_row + row;
    if (writes_lse && args_.lse != nullptr) args_.lse[at] = lse * kLn2;
    uint4 packed;
    const float scale = args_.out_scale;
    packed.x = PackBf16(values[0] * scale, values[1] * scale);
    packed.y = PackBf16(values[2] * scale, values[3] * scale);
    packed.z = PackBf16(values[4] * scale, values[5] * scale);
    packed.w = PackBf16(values[6] * scale, values[7] * scale);
    *reinterpret_cast<uint4*>(static_cast<__nv_bfloat16*>(args_.out) + at * kMlaLatent + column) =
        packed;
  }

  const MlaKernelArgs& args_;
  const __nv_bfloat16* const q_;
  const uint32_t stages_;
  Shared& shared_;
  const int part_, group_, warp_, lane_;
  Team& team_;

  uint32_t queries_[kSteps][2];
  float out_[4][4];
  int position_;     // of row `warp_`
  float reference_;  // likewise
  float sum_;        // of this lane's keys of row `warp_`
};

__global__ void __launch_bounds__(kThreads, 1)
    MlaFewRowsKernel(const __grid_constant__ MlaKernelArgs args,
                     const __nv_bfloat16* q,
                     const __grid_constant__ Maps maps) {
  extern __shared__ unsigned char raw[];
  const uint32_t stages = (SharedAddress(raw) + 1023) & ~1023u;
  Shared& shared =
      *reinterpret_cast<Shared*>(raw + (stages + kStages * kRawBytes - SharedAddress(raw)));
  if (threadIdx.x == 0) {
    for (int s = 0; s < kStages; ++s) {
      InitBarrier(SharedAddress(&shared.full[s]), 1);
      InitBarrier(SharedAddress(&shared.empty[s]), kTeamWarps);
    }
    FenceBarrierInit();
    PrefetchMap(&maps.half);
    PrefetchMap(&maps.rope);
  }
  __syncthreads();
  WaitForPredecessors();
  LetDependentsLaunch();  // the merge waits for this kernel's end itself
  if (threadIdx.x < kTeams * kTeamThreads) {
    Worker worker(args, q, stages, shared, blockIdx.x);
    worker.Run();
  } else {
    ProduceRaw(args, maps, stages, shared, blockIdx.x);
  }
}

}  // namespace

Status LaunchMlaFewRows(const MlaKernelArgs& args, const MlaDecodeArgs& from, cudaStream_t stream) {
  static_assert(kSharedBytes <= 232448);
  Maps maps = {};
  BT_RETURN_IF_ERROR(MakeCacheMaps(MlaCacheType::kFp8E4m3, from, maps));
  cudaLaunchConfig_t config = {};
  config.gridDim = static_cast<unsigned>(args.plan.num_parts);
  config.blockDim = kThreads;
  config.dynamicSmemBytes = kSharedBytes;
  config.stream = stream;
  // May be placed before its predecessor's end; it waits for that itself.
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  config.attrs = &attribute;
  config.numAttrs = 1;
  BT_CUDA_RETURN_IF_ERROR(cudaFuncSetAttribute(
      MlaFewRowsKernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes));
  BT_CUDA_RETURN_IF_ERROR(cudaLaunchKernelEx(&config, MlaFewRowsKernel, args,
                                             static_cast<const __nv_bfloat16*>(from.q), maps));
  return Status();
}

}  // namespace baltoro::cuda
