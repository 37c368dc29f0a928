#pragma once

// A piece of the large form (fp8_pairs.cu) of whole eights of steps: four stages are gone round
// twice for the scales that come together, so that within an eight all places are known when it is
// compiled. Between two groups a warpgroup has the sums in f32 alone to do; what it waits for next
// it asks about ahead of them.

#include "ops/cuda/linear/fp8_pairs_device.cuh"
#include "ops/cuda/linear/tiles/tiles128_multiply.cuh"
#include "ops/cuda/ptx/group_multiply.cuh"

namespace baltoro::cuda::fp8_pairs {

template <typename S>
__device__ __forceinline__ uint32_t BandAt(int band) {
  if (band < S::kBands) return S::kInputScales + band * kScaleRow;
  return S::kInputScales + S::kHalfScales + (band - S::kBands) * kScaleRow;
}

// Of the steps of a slot, which are not uniform within units of weights: a bit each. A band behind
// the matrix is of no account (`there`).
template <typename S>
__device__ __forceinline__ uint32_t MixedOfEight(uint32_t slot, bool there) {
  const int lane = threadIdx.x % 32;
  uint32_t mixed = 0;
  if (lane < S::kN / 8 && there) {
    const uint32_t own = slot + BandAt<S>(lane);
    const uint32_t first = slot + BandAt<S>(lane / (S::kUnit / 8) * (S::kUnit / 8));
#pragma unroll
    for (int i = 0; i < kScaleSteps; i += 4) {
      const uint4 a = LoadShared4(own + 4 * i), b = LoadShared4(first + 4 * i);
      mixed |= (a.x != b.x ? 1u : 0u) << i | (a.y != b.y ? 2u : 0u) << i |
               (a.z != b.z ? 4u : 0u) << i | (a.w != b.w ? 8u : 0u) << i;
    }
  }
  return __reduce_or_sync(~0u, mixed);
}

// Whether the phase of the given parity is complete, without waiting for it.
__device__ __forceinline__ bool IsComplete(uint32_t barrier, uint32_t parity) {
  uint32_t complete;
  asm volatile(
      "{\n.reg .pred done;\n"
      "mbarrier.test_wait.parity.shared::cta.b64 done, [%1], %2;\n"
      "selp.u32 %0, 1, 0, done;\n}\n"
      : "=r"(complete)
      : "r"(barrier), "r"(parity)
      : "memory");
  return complete != 0;
}

template <typename S>
struct EightWork {
  PieceRing<S>& ring;  // at its first stage
  float (&scaled)[S::kN / 2];
  uint32_t a, b;   // operand addresses of the first stage
  uint32_t x_row;  // of the thread's first row of x, in a slot
  int other;       // the other block of the pair

  __device__ __forceinline__
  EightWork(PieceRing<S>& its_ring, float (&its_scaled)[S::kN / 2], int number, int other_block)
      : ring(its_ring), scaled(its_scaled), other(other_block) {
    a = OperandAddress(ring.base + S::kWeightBytes + number * (kBoxBytes / 2));
    b = OperandAddress(ring.base);
    const int row = number * 64 + static_cast<int>(threadIdx.x) % 128 / 32 * 16 +
                    static_cast<int>(threadIdx.x) % 32 / 4;
    x_row = row * kScaleRow;
  }

  __device__ __forceinline__ uint32_t Full(int stage) const {
    return ring.base + S::kBarriers + 8 * stage;
  }

  __device__ __forceinline__ void Begin(float (&sums)[S::kSums], int stage, int part) const {
    const uint32_t x = a + stage * (S::kStageBytes / 16);
    const uint32_t w = b + stage * (S::kStageBytes / 16) + part * (S::kG * 128 / 16);
    hopper::Pin(sums);
    GroupFence();
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      GroupMultiplyShared<S::kG>::E4m3(sums, OperandAt(x + 2 * i), OperandAt(w + 2 * i), i);
    }
    GroupCommit();
  }

  __device__ __forceinline__ void Release(int stage) const {
    if (threadIdx.x % 32 != 0) return;
    const uint32_t empty = Full(stage) + 8 * S::kStages;
    BarrierArrive(empty);
    ArriveAtOther(empty, other);
  }

  __device__ __forceinline__ void LoadScales(StepScales<S>& scales, uint32_t slot, int step) const {
    scales.at = slot + step * 4;
    scales.x[0] = LoadSharedFloat(scales.at + x_row);
    scales.x[1] = LoadSharedFloat(scales.at + x_row + 8 * kScaleRow);
#pragma unroll
    for (int u = 0; u < S::kUnits; ++u) {
      scales.units[u] = LoadSharedFloat(scales.at + BandAt<S>(u * (S::kUnit / 8)));
    }
  }

  // Bands have scales of their own.
  __device__ __forceinline__ void ScaleBands(float (&sums)[S::kSums],
                                             StepScales<S>& scales,
                                             int part) const {
    const uint32_t bands = scales.at + BandAt<S>(part * (S::kG / 8));
#pragma unroll
    for (int i = 0; i < S::kSums; i += 4) {
      const float scale = LoadSharedFloat(bands + i / 4 * kScaleRow);
#pragma unroll
      for (int j = i; j < i + 4; ++j) sums[j] *= scale;
    }
  }

  __device__ __forceinline__ void Add(const float (&sums)[S::kSums],
                                      const StepScales<S>& scales,
                                      int part,
                                      bool by_bands) const {
#pragma unroll
    for (int i = 0; i < S::kSums; i += 4) {
      const int at = part * S::kSums + i;
      const float unit = by_bands ? 1.0f : scales.units[at / (S::kUnit / 2)];
      const float first = scales.x[0] * unit, second = scales.x[1] * unit;
      scaled[at] = fmaf(sums[i], first, scaled[at]);
      scaled[at + 1] = fmaf(sums[i + 1], first, scaled[at + 1]);
      scaled[at + 2] = fmaf(sums[i + 2], second, scaled[at + 2]);
      scaled[at + 3] = fmaf(sums[i + 3], second, scaled[at + 3]);
    }
  }

  // One step, whose stage has come; returns whether the next one has. `mixed_of`: of the slot's
  // steps, found behind the first request.
  template <bool kMayMix, typename MixedOf>
  __device__ __forceinline__ bool Step(uint32_t slot, int step, const MixedOf& mixed_of) const {
    StepScales<S> scales;
    bool mixed = false, next = false;
#pragma unroll
    for (int part = 0; part < S::kParts; ++part) {
      float sums[S::kSums];
      Begin(sums, step % S::kStages, part);
      if (part == 0) {
        LoadScales(scales, slot, step);
        mixed = kMayMix && (mixed_of() >> step & 1) != 0;
      }
      GroupWait<0>();
      if (part == S::kParts - 1) {
        Release(step % S::kStages);
        next = IsComplete(Full((step + 1) % S::kStages), (step + 1) / S::kStages % 2);
      }
      hopper::Pin(sums);
      if (kMayMix && mixed) {
        ScaleBands(sums, scales, part);
        Add(sums, scales, part, true);
      } else {
        Add(sums, scales, part, false);
      }
    }
    if (step % kScaleSteps == kScaleSteps - 1) {
      if (kMayMix && mixed) hopper::FinishLoads();
      // The slot's words have come: a vote waits for them, in all lanes.
      const uint32_t words = __float_as_uint(scales.x[0]) | __float_as_uint(scales.x[1]);
      uint32_t of_units = 0;
#pragma unroll
      for (int u = 0; u < S::kUnits; ++u) of_units |= __float_as_uint(scales.units[u]);
      const unsigned vote = __ballot_sync(~0u, (words | of_units) != 0);
      asm volatile("" ::"r"(vote) : "memory");
      if (threadIdx.x % 32 == 0) BarrierArrive(ring.ScalesEmpty());
      ring.NextScales();
    }
    return next;
  }
};

// One piece of so many eights; its first stage has been waited for.
template <typename S>
__device__ __forceinline__ void MultiplyEights(const EightWork<S>& work,
                                               int eights,
                                               bool band_there) {
  static_assert(S::kStages == 4 && S::kDeep == 1 && !S::kSplit);
#pragma unroll
  for (int i = 0; i < S::kN / 2; ++i) work.scaled[i] = 0;
#pragma unroll 1
  for (; eights > 0; --eights) {
    const uint32_t slot = work.ring.Scales();
    uint32_t mixed = 0;
    const auto wait = [&](int step, bool come) {
      if (!come) WaitBounded(work.Full(step % S::kStages), step / S::kStages % 2);
    };
    wait(1, work.template Step<true>(slot, 0,
                                     [&] { return mixed = MixedOfEight<S>(slot, band_there); }));
    bool come = false;
    if (mixed > 1) {  // hardly ever
#pragma unroll 1
      for (int step = 1; step < kScaleSteps; ++step) {
        if (step > 1) WaitBounded(work.Full(step % S::kStages), step / S::kStages % 2);
        work.template Step<true>(slot, step, [&] { return mixed; });
      }
    } else {
#pragma unroll
      for (int step = 1; step < kScaleSteps; ++step) {
        come = work.template Step<false>(slot, step, [] { return 0u; });
        if (step < kScaleSteps - 1) wait(step + 1, come);
      }
    }
    if (eights > 1) wait(0, come);
  }
}

}  // namespace baltoro::cuda::fp8_pairs
