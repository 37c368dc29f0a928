#pragma once

// Parts of the large form (fp8_pairs.cu): the products of a piece, scaled step by step.

#include <type_traits>

#include "ops/cuda/linear/fp8_pairs_device.cuh"
#include "ops/cuda/linear/tiles/tiles128_multiply.cuh"
#include "ops/cuda/ptx/group_multiply.cuh"

namespace baltoro::cuda::fp8_pairs {

// Where a piece's scales lie in their slots, in bytes: from one row (or band) to the next, and how
// far behind the beginning the first ones are.
struct ScalePlace {
  uint32_t pitch, x, low, high;
  __device__ __forceinline__ ScalePlace(int steps, int begin, int2 halves) {
    pitch = min(steps, kScaleSteps) * 4;
    const bool rows = steps >= kScaleSteps;  // fetched by rows
    x = rows ? 0 : begin * pitch % 16;
    // Here and now: behind the loads for the next piece `begin` would be waited for with them.
    asm volatile("" : "+r"(x));
    low = rows ? 0 : halves.x / 8 * pitch % 16;
    high = rows ? 0 : halves.y / 8 * pitch % 16;
  }
  // From its number among the bands of the piece.
  template <typename S>
  __device__ __forceinline__ uint32_t Band(int band) const {
    if (band < S::kBands) return S::kInputScales + low + band * pitch;
    return S::kInputScales + S::kHalfScales + high + (band - S::kBands) * pitch;
  }
};

// Of the steps of a slot, which are not uniform within units of weights: a bit each. A band behind
// the matrix is of no account (`there`), nor are bits of steps that a row does not have.
template <typename S>
__device__ __forceinline__ uint32_t Mixed(uint32_t slot, const ScalePlace& place, bool there) {
  const int lane = threadIdx.x % 32;
  uint32_t mixed = 0;
  if (lane < S::kN / 8 && there) {
    const uint32_t own = slot + place.Band<S>(lane);
    const uint32_t first = slot + place.Band<S>(lane / (S::kUnit / 8) * (S::kUnit / 8));
#pragma unroll
    for (int i = 0; i < kScaleSteps; ++i) {
      const bool differs = __float_as_uint(LoadSharedFloat(own + 4 * i)) !=
                           __float_as_uint(LoadSharedFloat(first + 4 * i));
      mixed |= (differs ? 1u : 0u) << i;
    }
  }
  return __reduce_or_sync(~0u, mixed);
}

// A warpgroup at work: what it holds between groups.
template <typename S>
struct Group {
  const TileParams& p;
  PieceRing<S> ring;
  int number;  // 0 or 1
  int other;   // the other block of the pair
  float (&scaled)[S::kN / 2];

  __device__ __forceinline__ void WaitFull() const { WaitBounded(ring.Full(), ring.parity); }

  // Asks for the products of group `part` of the ring's stage.
  __device__ __forceinline__ void Begin(float (&sums)[S::kSums], int part) const {
    const uint32_t a = OperandAddress(ring.Input() + number * (kBoxBytes / 2));
    const uint32_t b = OperandAddress(ring.Weights() + part * (S::kG * 128));
    hopper::Pin(sums);
    GroupFence();
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      GroupMultiplyShared<S::kG>::E4m3(sums, OperandAt(a + 2 * i), OperandAt(b + 2 * i), i);
    }
    GroupCommit();
  }

  // The matrix units are done with a stage.
  __device__ __forceinline__ void Release(const PieceRing<S>& stage) const {
    if (threadIdx.x % 32 != 0) return;
    BarrierArrive(stage.Empty());
    ArriveAtOther(stage.Empty(), other);
  }

  // scaled += sums * the scales of their rows and bands, which for the latter lie at `bands`.
  __device__ __forceinline__ void AddScaled(float (&sums)[S::kSums],
                                            const StepScales<S>& scales,
                                            const ScalePlace& place,
                                            int part) {
    hopper::Pin(sums);
    constexpr int kUnitSums = S::kUnit / 2;
    float factors[S::kUnits];
#pragma unroll
    for (int u = 0; u < S::kUnits; ++u) factors[u] = scales.units[u];
    if (scales.mixed) {  // hardly ever
      const uint32_t bands = scales.at + place.Band<S>(part * (S::kG / 8));
#pragma unroll
      for (int i = 0; i < S::kSums; i += 4) {
        const float scale = LoadSharedFloat(bands + i / 4 * place.pitch);
#pragma unroll
        for (int j = i; j < i + 4; ++j) sums[j] *= scale;
      }
#pragma unroll
      for (int u = 0; u < S::kUnits; ++u) factors[u] = 1;
    }
#pragma unroll
    for (int i = 0; i < S::kSums; i += 4) {
      const int at = part * S::kSums + i;
      const float first = scales.x[0] * factors[at / kUnitSums];
      const float second = scales.x[1] * factors[at / kUnitSums];
      scaled[at] = fmaf(sums[i], first, scaled[at]);
      scaled[at + 1] = fmaf(sums[i + 1], first, scaled[at + 1]);
      scaled[at + 2] = fmaf(sums[i + 2], second, scaled[at + 2]);
      scaled[at + 3] = fmaf(sums[i + 3], second, scaled[at + 3]);
    }
  }
};

// One piece of so many steps; its first stage has been waited for. `meanwhile`: what is done behind
// the first request.
template <typename S, typename Meanwhile>
__device__ __forceinline__ void MultiplyPiece(Group<S>& group,
                                              int steps,
                                              const ScalePlace& place,
                                              bool band_there,
                                              const Meanwhile& meanwhile) {
  const int last = steps - 1;
  const int row = group.number * 64 + static_cast<int>(threadIdx.x) % 128 / 32 * 16 +
                  static_cast<int>(threadIdx.x) % 32 / 4;
  const uint32_t first = place.x + row * place.pitch, second = first + 8 * place.pitch;
#pragma unroll
  for (int i = 0; i < S::kN / 2; ++i) group.scaled[i] = 0;
  uint32_t mixed = 0;
  const auto scales_of = [&](int step) {
    const uint32_t slot = group.ring.Scales();
    if (step % kScaleSteps == 0) mixed = Mixed<S>(slot, place, band_there);
    StepScales<S> scales;
    scales.at = slot + step % kScaleSteps * 4;
    scales.mixed = (mixed >> step % kScaleSteps & 1) != 0;
    scales.x[0] = LoadSharedFloat(scales.at + first);
    scales.x[1] = LoadSharedFloat(scales.at + second);
#pragma unroll
    for (int u = 0; u < S::kUnits; ++u) {
      scales.units[u] = LoadSharedFloat(scales.at + place.Band<S>(u * (S::kUnit / 8)));
    }
    return scales;
  };
  // Behind the last use of a slot's scales.
  const auto finish_step = [&](int step) {
    if (step % kScaleSteps != kScaleSteps - 1 && step != last) return;
    hopper::FinishLoads();
    __syncwarp();
    if (threadIdx.x % 32 == 0) BarrierArrive(group.ring.ScalesEmpty());
    group.ring.NextScales();
  };
  if constexpr (S::kDeep == 1) {
    // The first step by itself: in a loop with the others what `meanwhile` loads would be moved to
    // other registers, and so waited for, there and then.
    const auto one_step = [&](int step, const auto& behind_first) {
      StepScales<S> scales;
#pragma unroll
      for (int part = 0; part < S::kParts; ++part) {
        float sums[S::kSums];
        group.Begin(sums, part);
        if (part == 0) {
          behind_first();
          scales = scales_of(step);
        }
        GroupWait<0>();
        if (part == S::kParts - 1) {
          group.Release(group.ring);
          group.ring.Next();
        }
        group.AddScaled(sums, scales, place, part);
      }
      finish_step(step);
    };
    one_step(0, meanwhile);
    for (int step = 1; step <= last; ++step) {
      group.WaitFull();
      one_step(step, [] {});
    }
  } else {
    // sums[i] of the group at hand, the other of the one under way behind it.
    float sums[2][S::kSums];
    group.Begin(sums[0], 0);
    meanwhile();
    // `more`: there is a step behind it, which is begun here. A constant, as the compiler makes
    // everything wait where it is not sure what is under way.
    const auto one_step = [&](int step, int at, auto more) {
      const StepScales<S> scales = scales_of(step);
#pragma unroll
      for (int part = 0; part < S::kParts; ++part) {
        float(&here)[S::kSums] = sums[(at + part) % 2];
        float(&next)[S::kSums] = sums[(at + part + 1) % 2];
        if (part < S::kParts - 1) {
          group.Begin(next, part + 1);
          GroupWait<1>();
        } else if constexpr (more.value) {
          const PieceRing<S> behind = group.ring;
          group.ring.Next();
          group.WaitFull();
          group.Begin(next, 0);
          GroupWait<1>();
          group.Release(behind);
        } else {
          GroupWait<0>();
          group.Release(group.ring);
          group.ring.Next();
        }
        group.AddScaled(here, scales, place, part);
      }
      finish_step(step);
    };
    constexpr std::true_type kMore;
    constexpr std::false_type kLast;
    if constexpr (S::kParts == 1) {
      int step = 0;
      for (; step + 2 <= last; step += 2) {
        one_step(step, 0, kMore);
        one_step(step + 1, 1, kMore);
      }
      if (step < last) {
        one_step(step, 0, kMore);
        one_step(last, 1, kLast);
      } else {
        one_step(last, 0, kLast);
      }
    } else {
      for (int step = 0; step < last; ++step) one_step(step, 0, kMore);
      one_step(last, 0, kLast);
    }
  }
}

}  // namespace baltoro::cuda::fp8_pairs
