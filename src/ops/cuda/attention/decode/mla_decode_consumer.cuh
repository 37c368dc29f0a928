#pragma once

// The computing warpgroups.

#include <cuda_bf16.h>
#include <math_constants.h>

#include <climits>

#include "ops/cuda/attention/decode/mla_decode_shared.cuh"
#include "ops/cuda/attention/decode/mla_decode_widen.cuh"
#include "ops/cuda/attention/decode/mla_decode_work.cuh"

namespace baltoro::cuda::mla {

// Of products of half floats: queries become halves times this, so that none is too large; what it
// costs are values below 1e-6.
inline constexpr float kQueryFactor = 1.0f / 16;
inline constexpr float kHalfMax = 65504;
inline constexpr float kLn2 = 0.69314718056f;

template <MlaCacheType kType>
class Consumer {
  // An fp8 cache of one scale as half floats, which one instruction makes of two of its elements.
  static constexpr bool kHalves = kType == MlaCacheType::kFp8E4m3;

 public:
  __device__ Consumer(const MlaKernelArgs& args, const Layout& smem, int part)
      : args_(args),
        smem_(smem),
        small_(*smem.small),
        part_(part),
        group_(__shfl_sync(0xFFFFFFFF, static_cast<int>(threadIdx.x) / 128, 0)),
        warp_(threadIdx.x / 32 % 4),
        lane_(threadIdx.x % 32),
        scale_log2_(args.scale_log2 * (kHalves ? 1 / kQueryFactor : 1)) {}

  __device__ __forceinline__ void Run() {
    MlaWalker walker(args_, part_);
    uint32_t pieces = 0;
    for (MlaPiece piece; walker.Next(piece); ++pieces) {
      Wait(SharedAddress(&small_.full_q), pieces & 1);
      if constexpr (kHalves) HalveQueries();
      Compute(piece, pieces);
    }
  }

 private:
  // Exponentials in half floats stay below 2^8, far from a half's end.
  static constexpr float kSlack = kHalves ? 8 : 24;

  // The queries in shared memory as half floats, in place, by both warpgroups.
  __device__ __forceinline__ void HalveQueries() const {
    const auto fit = [](float x) {
      x *= kQueryFactor;
      return x > kHalfMax ? kHalfMax : x < -kHalfMax ? -kHalfMax : x;  // NaN stays
    };
    const uint32_t bytes = kMlaWidth / 64 * smem_.q_tile_bytes;
    for (uint32_t at = threadIdx.x * 16; at < bytes; at += kComputeThreads * 16) {
      uint4 four = LoadShared(smem_.q + at);
      uint32_t* const words[] = {&four.x, &four.y, &four.z, &four.w};
#pragma unroll
      for (uint32_t* const word : words) {
        *word = PackHalves(fit(__uint_as_float(*word << 16)),
                           fit(__uint_as_float(*word & 0xFFFF0000u)));
      }
      StoreShared(smem_.q + at, four);
    }
    FenceAsyncProxy();
    __syncwarp();
    asm volatile("bar.sync 3, 256;" ::: "memory");
    static_assert(kComputeThreads == 256);
  }

  // Two floats rounded to half floats, `low` in the lower half.
  __device__ static __forceinline__ uint32_t PackHalves(float low, float high) {
    uint32_t packed;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
    return packed;
  }

  // The `turn`-th piece of this part.
  __device__ __forceinline__ void Compute(const MlaPiece& piece, uint32_t turn) {
    const int count = __shfl_sync(0xFFFFFFFF, piece.end_block - piece.begin_block, 0);
    Begin(piece);
    int i = group_;
    if (group_ == 0 && count > 0) {
      IssueScores();
      WaitProducts<0>();
      Pin(s_);
      Softmax(piece, 0);
      OwnValues(piece, 0);
      i = 2;
    }
    for (; i < count; i += 2) {
      IssueEarlyScores();
      IssueOtherValues(piece, i - 1);
      IssueLateScores();
      WaitProducts<1>();
      Pin(o_);
      ReleaseLate();
      WaitProducts<0>();
      Pin(s_);
      Softmax(piece, i);
      SyncGroup(group_);  // nobody of this group reads P any more
      OwnValues(piece, i);
    }
    if (lane_ == 0) Arrive(SharedAddress(&small_.empty_q));
    if (count > 0 && (count - 1) % 2 != group_) {
      IssueOtherValues(piece, count - 1);
      WaitProducts<0>();
      Pin(o_);
      ReleaseLate();
    }
    End(piece, turn);
  }

  __device__ __forceinline__ void Begin(const MlaPiece& piece) {
    const int first = __ldg(args_.sequences.first_position + piece.sequence);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      reference_[r] = -CUDART_INF_F;
      sum_reference_[r] = -CUDART_INF_F;
      sum_[r] = 0;
      const int row = Row(r);
      // Rows that do not exist see everything; they are not written.
      position_[r] = row < piece.rows ? first + (piece.tile_row + row) / args_.heads : INT_MAX / 2;
    }
    begun_ = 0;
  }

  __device__ __forceinline__ int Row(int r) const {
    return warp_ * 16 + lane_ / 4 + 8 * r;
  }

  // S = Q K^T of the next own block: over the columns that come early, then the others. Each
  // committed.
  __device__ __forceinline__ void IssueScores() {
    IssueEarlyScores();
    IssueLateScores();
  }

  __device__ __forceinline__ void IssueEarlyScores() {
    const uint64_t q = OperandDescriptor(smem_.q, 0);
    const uint64_t k = OperandDescriptor(smem_.stage(group_), 0);
    Wait(SharedAddress(&small_.full_early[group_]), own_uses_ & 1);
    [[maybe_unused]] const uint32_t stage = smem_.stage(group_);
    if constexpr (kType == MlaCacheType::kFp8E4m3) {
      WidenWithRope(stage + group_ * kHalfBytes, stage + kRopeTile * kTileBytes, group_);
    } else if constexpr (kType == MlaCacheType::kFp8Groups) {
      WidenGroups(stage + group_ * kHalfBytes, 2 * group_, group_);
    }
    Pin(s_);
    FenceProducts();
    ScoresOfTile(q, k, kRopeTile, 0);
#pragma unroll
    for (int t = 0; t < 4; ++t) ScoresOfTile(q, k, 4 * group_ + t, 1);
    CommitProducts();
  }

  __device__ __forceinline__ void IssueLateScores() {
    const uint64_t q = OperandDescriptor(smem_.q, 0);
    const uint64_t k = OperandDescriptor(smem_.stage(group_), 0);
    Wait(SharedAddress(&small_.full_late[group_]), own_uses_ & 1);
    ++own_uses_;
    [[maybe_unused]] const uint32_t late = smem_.stage(group_) + (1 - group_) * kHalfBytes;
    if constexpr (kType == MlaCacheType::kFp8E4m3) {
      WidenHalf(late, group_);
    } else if constexpr (kType == MlaCacheType::kFp8Groups) {
      WidenGroups(late, 2 * (1 - group_), group_);
    }
    FenceProducts();
#pragma unroll
    for (int t = 0; t < 4; ++t) ScoresOfTile(q, k, 4 * (1 - group_) + t, 1);
    CommitProducts();
  }

  __device__ __forceinline__ void ScoresOfTile(uint64_t q, uint64_t k, int tile, int accumulate) {
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      const uint64_t a = Advance(q, tile * smem_.q_tile_bytes + step * 32);
      const uint64_t b = Advance(k, tile * kTileBytes + step * 32);
      if constexpr (kHalves) {
        ProductN64Halves(s_, a, b, step > 0 ? 1 : accumulate);
      } else {
        ProductN64(s_, a, b, step > 0 ? 1 : accumulate);
      }
    }
  }

  // Sets scores of own block i of keys that a row does not see to -inf.
  __device__ __forceinline__ void Mask(const MlaPiece& piece, int i) {
    const int block = piece.begin_block + i;
    const int in_block = piece.key_count - block * kTokens;  // keys that exist
    const int32_t* const positions = args_.sequences.block_positions;
    const int first =
        positions == nullptr
            ? block * kTokens
            : __ldg(positions + piece.sequence * args_.sequences.table_stride + block);
    const int seen0 = min(in_block, position_[0] - first + 1);
    const int seen1 = min(in_block, position_[1] - first + 1);
    if (!__all_sync(0xFFFFFFFF, min(seen0, seen1) >= kTokens)) {
#pragma unroll
      for (int j = 0; j < 8; ++j) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const int column = 8 * j + 2 * (lane_ % 4) + e % 2;
          if (column >= (e < 2 ? seen0 : seen1)) s_[4 * j + e] = -CUDART_INF_F;
        }
      }
    }
  }

  // The highest score of row r, in log2.
  __device__ __forceinline__ float Highest(int r) const {
    float highest = -CUDART_INF_F;
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      highest = fmaxf(highest, fmaxf(s_[4 * j + 2 * r], s_[4 * j + 2 * r + 1]));
    }
    highest = fmaxf(highest, __shfl_xor_sync(0xFFFFFFFF, highest, 1));
    highest = fmaxf(highest, __shfl_xor_sync(0xFFFFFFFF, highest, 2));
    return highest * scale_log2_;
  }

  // Row r's exponentials into p_; returns this thread's part of their sum.
  __device__ __forceinline__ float Exponentials(int r, float reference) {
    const float subtract = reference == -CUDART_INF_F ? 0 : reference;
    float sum = 0;
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const float a = Exp2(fmaf(s_[4 * j + 2 * r], scale_log2_, -subtract));
      const float b = Exp2(fmaf(s_[4 * j + 2 * r + 1], scale_log2_, -subtract));
      sum += a + b;
      // Register of the A operand: columns 8 j belong to step j / 2, its half j % 2.
      p_[j / 2][2 * (j % 2) + r] = kHalves ? PackHalves(a, b) : PackBf16(a, b);
    }
    return sum;
  }

  // From the scores of own block i: the exponentials in p_, the row's reference and sums.
  __device__ __forceinline__ void Softmax(const MlaPiece& piece, int i) {
    Mask(piece, i);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float highest = Highest(r);
      const float before = reference_[r];
      const float now = highest > before + kSlack ? highest : before;
      next_reference_[r] = now;
      const float sum = Exponentials(r, now);
      sum_[r] = sum_[r] * Ratio(sum_reference_[r], now) + sum;
      sum_reference_[r] = now;
    }
  }

  // 2^(from - to), of equal infinities 1.
  __device__ static __forceinline__ float Ratio(float from, float to) {
    return from == to ? 1.0f : Exp2(from - to);
  }

  // Brings the sums from their reference to another.
  __device__ __forceinline__ void Rescale(float reference0, float reference1) {
    if (__any_sync(0xFFFFFFFF, reference0 != reference_[0] || reference1 != reference_[1])) {
      const float ratio0 = Ratio(reference_[0], reference0);
      const float ratio1 = Ratio(reference_[1], reference1);
#pragma unroll
      for (int j = 0; j < 32; ++j) {
        o_[4 * j] *= ratio0;
        o_[4 * j + 1] *= ratio0;
        o_[4 * j + 2] *= ratio1;
        o_[4 * j + 3] *= ratio1;
      }
      reference_[0] = reference0;
      reference_[1] = reference1;
    }
  }

  // Hands P to the other warpgroup, adds P V of own block i, and gives the early half back.
  __device__ __forceinline__ void OwnValues(const MlaPiece& piece, int i) {
    const int row = warp_ * 16 + lane_ % 8 + 8 * (lane_ / 8 % 2);
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      const int chunk = (2 * step + lane_ / 16) ^ (row % 8);
      StoreMatrices(smem_.p + row * 128 + chunk * 16, p_[step]);
    }
    if (lane_ % 4 == 0) {
      small_.reference[Row(0)] = next_reference_[0];
      small_.reference[Row(1)] = next_reference_[1];
    }
    ClearTail(piece, i, group_);
    FenceAsyncProxy();
    Arrive(SharedAddress(&small_.full_p[group_]));
    Rescale(next_reference_[0], next_reference_[1]);
    const uint64_t v = OperandDescriptor(smem_.stage(group_) + group_ * kHalfBytes, kTileBytes);
    Pin(o_);
    FenceProducts();
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      if constexpr (kHalves) {
        ProductN256Halves(o_, p_[step], Advance(v, step * 2048), step > 0 ? 1 : begun_);
      } else {
        ProductN256(o_, p_[step], Advance(v, step * 2048), step > 0 ? 1 : begun_);
      }
    }
    CommitProducts();
    begun_ = 1;
    WaitProducts<0>();
    Pin(o_);
    if (lane_ == 0) Arrive(SharedAddress(&small_.empty_early[group_]));
  }

  // Adds P V of block i, whose P the other warpgroup made; committed, not waited for.
  __device__ __forceinline__ void IssueOtherValues(const MlaPiece& piece, int i) {
    const int other = 1 - group_;
    Wait(SharedAddress(&small_.full_p[other]), other_uses_ & 1);
    Wait(SharedAddress(&small_.full_late[other]), other_uses_ & 1);
    ++other_uses_;
    if (ClearTail(piece, i, other)) FenceAsyncProxy();
    Rescale(small_.reference[Row(0)], small_.reference[Row(1)]);
    const uint64_t p = OperandDescriptor(smem_.p, 0);
    const uint64_t v = OperandDescriptor(smem_.stage(other) + group_ * kHalfBytes, kTileBytes);
    Pin(o_);
    FenceProducts();
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      const uint64_t a = Advance(p, step * 32);
      if constexpr (kHalves) {
        ProductN256Halves(o_, a, Advance(v, step * 2048), step > 0 ? 1 : begun_);
      } else {
        ProductN256(o_, a, Advance(v, step * 2048), step > 0 ? 1 : begun_);
      }
    }
    CommitProducts();
    begun_ = 1;
  }

  __device__ __forceinline__ void ReleaseLate() {
    if (lane_ == 0) Arrive(SharedAddress(&small_.empty_late[1 - group_]));
  }

  // Zeroes this warpgroup's columns of the tokens of block i that do not exist, since 0 times
  // whatever is there could be NaN. Only in a sequence's last block.
  __device__ __forceinline__ bool ClearTail(const MlaPiece& piece, int i, int stage) {
    const int valid = piece.key_count - (piece.begin_block + i) * kTokens;
    if (valid >= kTokens) return false;
    SyncGroup(group_);  // each warp has waited for its scores, which read these columns too
    const uint32_t half = smem_.stage(stage) + group_ * kHalfBytes;
    for (int at = valid * 8 + threadIdx.x % 128; at < kTokens * 8; at += 128) {
#pragma unroll
      for (int tile = 0; tile < 4; ++tile) {
        asm volatile(
            "st.shared.v4.b32 [%0], {%1, %1, %1, %1};" ::"r"(half + tile * kTileBytes + at * 16),
            "r"(0)
            : "memory");
      }
    }
    FenceAsyncProxy();
    SyncGroup(group_);
    return true;
  }

  // Divides by the softmax sum and writes. The warpgroups tell each other the sums of their blocks;
  // one turn later both have read them, so that the other half can be written at once, and two
  // turns later this one.
  __device__ __forceinline__ void End(const MlaPiece& piece, uint32_t turn) {
    float own[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float sum = sum_[r] * Ratio(sum_reference_[r], reference_[r]);
      sum += __shfl_xor_sync(0xFFFFFFFF, sum, 1);
      sum += __shfl_xor_sync(0xFFFFFFFF, sum, 2);
      if (lane_ % 4 == 0) small_.sums[turn % 2][group_][Row(r)] = sum;
      own[r] = sum;
    }
    Arrive(SharedAddress(&small_.full_sums[turn % 2][group_]));
    Wait(SharedAddress(&small_.full_sums[turn % 2][1 - group_]), turn / 2 & 1);
    SyncGroup(group_);  // nobody of this group reads P any more
    const int tile_rows = args_.plan.tile_rows;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = Row(r);
      const float sum = own[r] + small_.sums[turn % 2][1 - group_][row];
      const float lse = sum == 0 ? -CUDART_INF_F : reference_[r] + log2f(sum);
      const float share = sum == 0 ? 0 : 1 / sum;
      if (row >= piece.rows) continue;
      const int column = 256 * group_ + 2 * (lane_ % 4);
      const bool writes_lse = group_ == 0 && lane_ % 4 == 0;
      if (piece.slot >= 0) {
        const int64_t at = int64_t{piece.slot} * tile_rows + row;
        float* const to = args_.plan.partial_out + at * kMlaLatent + column;
        if (writes_lse) args_.plan.partial_lse[at] = lse;
#pragma unroll
        for (int j = 0; j < 32; ++j) {
          const float a = sum == 0 ? 0 : o_[4 * j + 2 * r] * share;
          const float b = sum == 0 ? 0 : o_[4 * j + 2 * r + 1] * share;
          *reinterpret_cast<float2*>(to + 8 * j) = make_float2(a, b);
        }
      } else {
        const int64_t at = piece.first_row + row;
        auto* const to = static_cast<__nv_bfloat16*>(args_.out) + at * kMlaLatent + column;
        if (writes_lse && args_.lse != nullptr) args_.lse[at] = lse * kLn2;
        const float scaled = share * args_.out_scale;
#pragma unroll
        for (int j = 0; j < 32; ++j) {
          const float a = sum == 0 ? 0 : o_[4 * j + 2 * r] * scaled;
          const float b = sum == 0 ? 0 : o_[4 * j + 2 * r + 1] * scaled;
          *reinterpret_cast<uint32_t*>(to + 8 * j) = PackBf16(a, b);
        }
      }
    }
  }

  const MlaKernelArgs& args_;
  const Layout& smem_;
  Small& small_;
  const int part_, group_, warp_, lane_;
  const float scale_log2_;
  uint32_t own_uses_ = 0, other_uses_ = 0;

  float o_[128];  // rows Row(0), Row(1); columns 256 group + 8 j + 2 (lane % 4) + {0, 1}
  float s_[32];
  uint32_t p_[4][4];  // of the own block, as the A operand of 4 steps of 16 tokens
  float reference_[2], next_reference_[2];  // of o_; of p_
  float sum_[2], sum_reference_[2];         // of the own blocks' exponentials
  int position_[2];
  int begun_;  // o_ holds something
};

}  // namespace baltoro::cuda::mla
