#pragma once

// The phases of the resident attention half whose weights are e4m3, for one row: token 0 of the
// products. What comes from other blocks is bf16; each reader rounds what it multiplies to e4m3, in
// groups of 128 columns, as fp8_round_device.cuh, so that codes are those of the launches that this
// kernel joins.

#include "ops/cuda/attention/layer/resident_back.cuh"
#include "ops/cuda/attention/layer/resident_fp8_layout.cuh"
#include "ops/cuda/attention/layer/resident_front.cuh"
#include "ops/cuda/rows/fp8_round_device.cuh"

namespace baltoro::cuda::resident {

// A lane's codes of a step: 16 bytes of either half.
struct StepCodes {
  uint4 half[2];

  __device__ __forceinline__ void Clear() { half[0] = half[1] = make_uint4(0, 0, 0, 0); }
  __device__ __forceinline__ void Load(uint32_t at) {
    half[0] = LoadShared4(at);
    half[1] = LoadShared4(at + kStep / 2);
  }
};
// The same as halves, by which weights are multiplied.
struct StepHalves {
  uint2 of[2][4];

  StepHalves() = default;
  __device__ __forceinline__ explicit StepHalves(const StepCodes& codes) { Widen(codes); }
  __device__ __forceinline__ void Load(uint32_t at) {
    StepCodes codes;
    codes.Load(at);
    Widen(codes);
  }
  __device__ __forceinline__ void Widen(const StepCodes& codes) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const uint4& c = codes.half[j];
      const uint32_t words[4] = {c.x, c.y, c.z, c.w};
#pragma unroll
      for (int i = 0; i < 4; ++i) of[j][i] = product::E4m3ToF16(words[i]);
    }
  }
};
// Adds a step's product of tokens (rows) by weights (columns), times `scale`.
__device__ __forceinline__ void MultiplyStep(float (&acc)[4],
                                             const StepHalves& x,
                                             const StepHalves& weights,
                                             float scale) {
  float sums[2][4] = {};  // side by side: products wait for their sums
#pragma unroll
  for (int j = 0; j < 2; ++j) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      product::MultiplyAddF16(sums[j], x.of[j][i].x, 0, x.of[j][i].y, 0, weights.of[j][i].x,
                              weights.of[j][i].y);
    }
  }
  acc[0] += (sums[0][0] + sums[1][0]) * scale;
  acc[1] += (sums[0][1] + sums[1][1]) * scale;
}

template <class Keys>
class CodedFront : public FrontParts {
  using Place = CodedLayout<Keys>;
  static constexpr int kUnitSteps = kUnit / kStep;

 public:
  // Reads what is older than the kernels ahead.
  __device__ CodedFront(const Params& p, Board& of_launch, char* raw)
      : FrontParts(p, of_launch, raw) {
#pragma unroll
    for (float& weight : norm_) weight = 0;
    if (warp_ < kQueryWarps) LoadWhole(p_.input.q_norm + warp_ * kUnit + lane_ * kEight, norm_);
  }

  __device__ __forceinline__ void Run(uint32_t tag) {
    tag_ = tag;
    Inputs();
    if (block_ < kOwners) {
      Queries();
      if (warp_ < kFoldedStrips) Folded();
      return;
    }
    if (block_ == kOwners && warp_ == 0) CachedToken<Keys::kFp8>(0);
  }

 private:
  // This lane's codes of a piece, and their scales.
  struct Piece {
    StepCodes codes[Place::kStageSteps];
    float scales[Place::kStageSteps];
  };
  __device__ __forceinline__ void AskForPiece(Piece& piece, int stage) const {
#pragma unroll
    for (int i = 0; i < Place::kStageSteps; ++i) {
      piece.codes[i].Clear();
      piece.scales[i] = 0;
      const int step = (stage * Place::kStageSteps + i) * kWarps + warp_;
      if (token_ != 0 || step >= kInputSteps) continue;
      const auto* const from =
          reinterpret_cast<const uint4*>(p_.codes + step * kStep + lane_ % 4 * 16);
      piece.codes[i].half[0] = __ldcg(from);
      piece.codes[i].half[1] = __ldcg(from + kStep / 2 / 16);
      piece.scales[i] = __ldcg(p_.x_scales + step);
    }
  }
  __device__ __forceinline__ void Inputs() {
    const auto* const scales = reinterpret_cast<const float*>(raw_ + Place::kInputScales);
    float acc[kInputStrips][4] = {};
    Piece x;
    AskForPiece(x, 0);
    // A loop, so that behind the last weights there is no code that was not run before.
#pragma unroll 1
    for (int stage = 0; stage < Place::kStages; ++stage) {
      StepHalves halves[Place::kStageSteps];
      float x_scales[Place::kStageSteps];
#pragma unroll
      for (int i = 0; i < Place::kStageSteps; ++i) {
        halves[i].Widen(x.codes[i]);
        x_scales[i] = x.scales[i];
      }
      AskForPiece(x, stage + 1);
      hopper::Wait(memory_ + Place::kFull + 8 * stage, 0);
#pragma unroll
      for (int i = 0; i < Place::kStageSteps; ++i) {
        const int step = (stage * Place::kStageSteps + i) * kWarps + warp_;
        if (step >= kInputSteps) break;
#pragma unroll
        for (int s = 0; s < kInputStrips; ++s) {
          StepHalves w;
          w.Load(memory_ + Place::kInputRows + s * StripBytes(kHidden) + RowAt(token_, kHidden) +
                 step * kStep + lane_ % 4 * 16);
          MultiplyStep(acc[s], halves[i], w, scales[s * kInputSteps + step] * x_scales[i]);
        }
      }
    }
    LeaveToKeys();
#pragma unroll
    for (int s = 0; s < kInputStrips; ++s) PutSums(Place::kInputSums, kInputStrips, s, acc[s]);
    SyncComputers();
    if (warp_ >= kInputStrips || token_ != 0) return;
    const float2 sum = GetSums(Place::kInputSums, kInputStrips, warp_);
    Post(&board_.inputs[0][InputColumn() / 2], hopper::PackBf16(sum.x, sum.y), tag_);
  }
  // Keys may come to lie over the first matrix.
  __device__ __forceinline__ void LeaveToKeys() {
    hopper::FinishLoads();
    __syncwarp();
    if (lane_ >= p_.conduct.givers) return;
#pragma unroll
    for (int s = 0; s < Keys::kStages; ++s) hopper::Arrive(memory_ + Place::kKeysEmpty + 8 * s);
  }

  // A warp rounds and multiplies 256 columns.
  __device__ __forceinline__ void Queries() {
    const bool takes_part = warp_ < kQueryWarps;
    // Widened while the row is waited for.
    StepHalves w[2][kUnitSteps];
    hopper::Wait(memory_ + Place::kQueryFull, 0);
    if (takes_part) {
#pragma unroll
      for (int s = 0; s < 2; ++s) {
#pragma unroll
        for (int i = 0; i < kUnitSteps; ++i) {
          if (s >= queries_.count) continue;
          w[s][i].Load(memory_ + Place::kQuery + s * StripBytes(kQLora) + RowAt(token_, kQLora) +
                       warp_ * kUnit + i * kStep + lane_ % 4 * 16);
        }
      }
    }
    if (warp_ < kFoldedStrips) {
      hopper::Wait(memory_ + Place::kKeyFull, 0);
      LoadStrip(key_, RowOf(Place::kKey + warp_ * kStrip * kNope * 2, kNope * 2, 0, 0));
    }
    auto* const squares_of = reinterpret_cast<float*>(raw_ + Place::kQuerySquares);
    float v[kEight];
    if (takes_part) {
      const auto at = [&](int i) {
        return &board_.inputs[0][warp_ * (kUnit / 2) + lane_ * (kEight / 2) + i * 2];
      };
      Mail<2> mail;
      mail.Await(Patience(p_.conduct), tag_, true, at);
      WidenEight(mail.eight(0), v);
      float squares = AddSquares(v, 0);
#pragma unroll
      for (int d = 16; d > 0; d /= 2) squares += __shfl_xor_sync(~0u, squares, d);
      if (lane_ == 0) squares_of[warp_] = squares;
    }
    SyncComputers();
    if (takes_part) {
      RoundQuery(v, squares_of);
      MultiplyQuery(w);
    }
    SyncComputers();
    if (warp_ >= queries_.count || token_ != 0) return;
    PostQuery(GetSums<kQueryWarps>(Place::kQuerySums, 2, warp_));
  }
  // The norm, then codes of this warp's columns.
  __device__ __forceinline__ void RoundQuery(float (&v)[kEight], const float* squares_of) {
    float sum = 0;
#pragma unroll
    for (int u = 0; u < kQueryWarps; ++u) sum += squares_of[u];
    Normalise(v, ScaleOfSum(sum, kQLora, p_.input.eps), norm_);
    RoundToBf16(v);
    float scale;
    const uint2 codes = RoundEight(v, scale);
    StoreShared2(memory_ + Place::kQueryCodes + warp_ * kUnit + lane_ * kEight, codes);
    auto* const scales = reinterpret_cast<float*>(raw_ + Place::kQueryXScales);
    if (lane_ % 16 == 0) scales[warp_ * kUnitSteps + lane_ / 16] = scale;
    __syncwarp();
  }
  __device__ __forceinline__ void MultiplyQuery(const StepHalves (&w)[2][kUnitSteps]) {
    const auto* const x_scales = reinterpret_cast<const float*>(raw_ + Place::kQueryXScales);
    const auto* const scales = reinterpret_cast<const float*>(raw_ + Place::kQueryScales);
    float acc[2][4] = {};
#pragma unroll
    for (int i = 0; i < kUnitSteps; ++i) {
      const int step = warp_ * kUnitSteps + i;
      StepCodes x;
      x.Clear();
      float x_scale = 0;
      if (token_ == 0) {
        x.Load(memory_ + Place::kQueryCodes + step * kStep + lane_ % 4 * 16);
        x_scale = x_scales[step];
      }
      const StepHalves halves(x);
#pragma unroll
      for (int s = 0; s < 2; ++s) {
        if (s >= queries_.count) continue;
        MultiplyStep(acc[s], halves, w[s][i], scales[s * kQuerySteps + step] * x_scale);
      }
    }
#pragma unroll
    for (int s = 0; s < 2; ++s) PutSums(Place::kQuerySums, 2, s, acc[s]);
  }

  float norm_[kEight];  // the weights of the low-rank query's norm at this lane's columns
};

template <class Keys>
class CodedBack : public BackParts {
  using Place = CodedLayout<Keys>;

 public:
  __device__ CodedBack(const Params& p, Board& of_launch, char* raw)
      : BackParts(p, of_launch, raw) {}

  __device__ __forceinline__ void Run(uint32_t tag) {
    if (block_ >= kOwners) return;
    tag_ = tag;
    LoadOut();
    Merge<Place>();
    Values<Place>();
    Out();
  }

 private:
  // The last weights into registers, widened, while pieces are waited for: later it would be waited
  // for. A warp multiplies the columns of a head, which are a step.
  __device__ __forceinline__ void LoadOut() {
    static_assert(kStep == kValue);
    constexpr int kRowBytes = kHeads * kValue;
    hopper::Wait(memory_ + Place::kOutFull, 0);
#pragma unroll
    for (int s = 0; s < kOutStrips; ++s) {
      out_[s].Load(memory_ + Place::kOut + (s * kStrip + token_) * kRowBytes + warp_ * kStep +
                   lane_ % 4 * 16);
      out_scale_[s] =
          reinterpret_cast<const float*>(raw_ + Place::kOutScales)[s * kOutSteps + warp_];
    }
  }

  __device__ __forceinline__ void Out() {
    const uint32_t codes = memory_ + Place::kOutCodes + warp_ * kStep;
    const auto at = [&](int) { return &board_.value[0][warp_ * (kStep / 2) + lane_ * 2]; };
    Mail<1> mail;
    mail.Await(Patience(p_.conduct), tag_, true, at);
    const float scale = RoundFour(mail.word(0, 0), mail.word(0, 1), codes + lane_ * 4);
    const float x_scale = token_ == 0 ? scale : 0;
    __syncwarp();
    StepCodes x;
    x.Clear();
    if (token_ == 0) x.Load(codes + lane_ % 4 * 16);
    const StepHalves halves(x);
#pragma unroll
    for (int s = 0; s < kOutStrips; ++s) {
      float acc[4] = {};
      MultiplyStep(acc, halves, out_[s], out_scale_[s] * x_scale);
      PutSums(Place::kOutSums, kOutStrips, s, acc);
    }
    SyncComputers();
    if (warp_ >= kOutStrips || token_ != 0) return;
    const int column = (block_ * kOutStrips + warp_) * kStrip + lane_ % 4 * 2;
    *reinterpret_cast<float2*>(p_.out + column) = GetSums(Place::kOutSums, kOutStrips, warp_);
  }
  // Two pairs of bf16 of a group in a whole warp, its codes to shared memory; their scale.
  static __device__ __forceinline__ float RoundFour(uint32_t low, uint32_t high, uint32_t to) {
    const float v[4] = {__uint_as_float(low << 16), __uint_as_float(low & 0xFFFF0000u),
                        __uint_as_float(high << 16), __uint_as_float(high & 0xFFFF0000u)};
    float largest = 1e-4f;
#pragma unroll
    for (const float value : v) largest = fmaxf(largest, fabsf(value));
#pragma unroll
    for (int d = 16; d > 0; d /= 2) largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, d));
    const float scale = __fdiv_rn(largest, 448.0f);
    const uint32_t word = RoundWord(v[0], v[1], v[2], v[3], scale, __fdiv_rn(1.0f, scale));
    asm volatile("st.shared.b32 [%0], %1;" ::"r"(to), "r"(word) : "memory");
    return scale;
  }

  StepHalves out_[kOutStrips];  // this warp's columns of the last weights
  float out_scale_[kOutStrips];
};

}  // namespace baltoro::cuda::resident
