#pragma once

// What the multiplying warps of the gate/up kernel of many rows (int4_grouped_gate_up.cu, which
// alone includes this) do with a piece: widen its weights, multiply, and store SiLU * mul in matrix
// order.

#include "ops/cuda/experts/bank_device.cuh"
#include "ops/cuda/experts/grouped/int4_grouped_gate_up_device.cuh"
#include "ops/cuda/ptx/group_multiply.cuh"
#include "ops/cuda/ptx/hopper.cuh"

namespace baltoro::cuda {
namespace {

// 16 rows by 128 columns of packed weights, as a lane has them.
struct Packed {
  uint4 words[2];
  uint2 scales[2];
};

__device__ __forceinline__ Packed LoadPacked(uint32_t tile) {
  const int lane = threadIdx.x % 32;
  Packed packed;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    packed.words[half] = LoadShared4(tile + half * 512 + lane * 16);
    packed.scales[half] = LoadShared2(tile + 1024 + lane / 4 * 16 + half * 8);
  }
  return packed;
}

// 16 rows by 64 columns of it.
struct HalfPacked {
  uint4 words;
  uint2 scales;
};

__device__ __forceinline__ HalfPacked LoadHalf(uint32_t tile, int half) {
  const int lane = threadIdx.x % 32;
  return {LoadShared4(tile + half * 512 + lane * 16),
          LoadShared2(tile + 1024 + lane / 4 * 16 + half * 8)};
}

// As the first operand of four products.
__device__ __forceinline__ void Widen(uint32_t (&a)[4][4], const HalfPacked& packed) {
  const uint32_t low[2] = {packed.words.x, packed.words.z};
  const uint32_t high[2] = {packed.words.y, packed.words.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int jj = i / 2, step = i % 2;
    const uint32_t scale = jj == 0 ? packed.scales.x : packed.scales.y;
    const WidenScale scale_low = LoadScale(scale, false), scale_high = LoadScale(scale, true);
    a[i][0] = WidenPair(low[jj], 2 * step, scale_low);
    a[i][1] = WidenPair(high[jj], 2 * step, scale_high);
    a[i][2] = WidenPair(low[jj], 2 * step + 1, scale_low);
    a[i][3] = WidenPair(high[jj], 2 * step + 1, scale_high);
  }
}

__device__ __forceinline__ void Widen(uint32_t (&a)[4][4], const Packed& packed, int half) {
  Widen(a, {packed.words[half], packed.scales[half]});
}

template <int kN>
__device__ __forceinline__ void Multiply(float (&acc)[kN / 2],
                                         const uint32_t (&a)[4][4],
                                         uint32_t input) {
  const uint32_t at = OperandAddress(input);
  GroupFence();
#pragma unroll
  for (uint32_t i = 0; i < 4; ++i) GroupMultiply<kN>::Add(acc, a[i], OperandAt(at + 2 * i));
  GroupCommit();
}

// The results of a piece by a warp, whose two strips are neighbours. A lane has columns 8 strip + g
// of two tokens; with those of g ^ 1 and both strips it stores four neighbours, in matrix order, of
// one token.
template <int kN>
__device__ __forceinline__ void StorePiece(const GateUpParams& p,
                                           const MoeTile& tile,
                                           int first_strip,
                                           const float (&acc)[2][kN / 2]) {
  const int lane = threadIdx.x % 32, g = lane / 4;
  const int strip = first_strip + static_cast<int>(threadIdx.x) / 32 * 2;
  const bool odd = g % 2 != 0;
  const int first = lane % 4 * 2 + odd;
  // Strips come in pairs. A branch here would have the compiler take what the warp's lanes have in
  // common from ordinary registers, in the loops of all products.
  const int rows = strip < p.strips ? tile.count : 0;
  __nv_bfloat16* out = p.out + static_cast<int64_t>(tile.begin + first) * p.out_stride +
                       strip / 4 * 32 + g / 2 * 8 + strip % 4 * 2;
#pragma unroll
  for (int n = 0; n < kN / 8; ++n, out += 8 * p.out_stride) {
    uint32_t pairs[2];
#pragma unroll
    for (int s = 0; s < 2; ++s) {
      const float* v = acc[s] + n * 4;
      const float one = FastSiluTimes(v[0] * kWidenUndo, v[2] * kWidenUndo);
      const float two = FastSiluTimes(v[1] * kWidenUndo, v[3] * kWidenUndo);
      const float other = __shfl_xor_sync(~0u, odd ? one : two, 4);
      pairs[s] = odd ? hopper::PackBf16(other, two) : hopper::PackBf16(one, other);
    }
    if (n * 8 + first < rows) *reinterpret_cast<uint2*>(out) = make_uint2(pairs[0], pairs[1]);
  }
}

// One piece: kN columns. A warp waits for the next stage and reads its weights while two groups of
// products are under way, a half as soon as what was there has been widened. No product runs on
// from turn to turn of the loop, as the compiler would put each behind the one before.
template <int kN, typename Form>
__device__ __forceinline__ void MultiplyPiece(const GateUpParams& p,
                                              const MoeTile& tile,
                                              int first_strip,
                                              Ring<Form>& ring) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  float acc[2][kN / 2];
#pragma unroll
  for (int i = 0; i < kN / 2; ++i) acc[0][i] = acc[1][i] = 0;
  uint32_t a[2][4][4];
  Packed packed[2];
  const uint32_t own = ring.weights + 2 * warp * kTileBytes;
  const auto wait = [&] {
    BarrierWait(ring.Full(), ring.parity);
    // The matrix units read what ordinary copies have written.
    hopper::FenceAsyncProxy();
  };
  const auto read = [&](int block) {
    packed[block] = LoadPacked(own + ring.stage * kWeightBytes + block * kTileBytes);
  };
  wait();
  read(0);
  read(1);
  Widen(a[0], packed[0], 0);
  for (int c = 0; c < p.column_tiles; ++c) {
    const uint32_t input = ring.input + ring.stage * kInputBytes<Form>, empty = ring.Empty();
    const bool more = c + 1 < p.column_tiles;
    Multiply<kN>(acc[0], a[0], input);
    Widen(a[1], packed[1], 0);
    Multiply<kN>(acc[1], a[1], input);
    ring.Next();
    if (more) wait();
    GroupWait<1>();
    Widen(a[0], packed[0], 1);
    Multiply<kN>(acc[0], a[0], input + kN * 128);
    if (more) read(0);
    GroupWait<1>();
    Widen(a[1], packed[1], 1);
    Multiply<kN>(acc[1], a[1], input + kN * 128);
    if (more) read(1);
    GroupWait<1>();
    Widen(a[0], packed[0], 0);
    GroupWait<0>();
    __syncwarp();
    if (lane == 0) BarrierArrive(empty);
  }
  StorePiece<kN>(p, tile, first_strip, acc);
}

// The same with few registers, for two blocks of a multiprocessor: packed weights of 64 rows and
// columns are read when those before them have been widened.
template <int kN, typename Form>
__device__ __forceinline__ void MultiplySmall(const GateUpParams& p,
                                              const MoeTile& tile,
                                              int first_strip,
                                              Ring<Form>& ring) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  float acc[2][kN / 2];
#pragma unroll
  for (int i = 0; i < kN / 2; ++i) acc[0][i] = acc[1][i] = 0;
  uint32_t a[2][4][4];
  HalfPacked packed;
  const uint32_t own = ring.weights + 2 * warp * kTileBytes;
  const auto wait = [&] {
    BarrierWait(ring.Full(), ring.parity);
    // The matrix units read what ordinary copies have written.
    hopper::FenceAsyncProxy();
  };
  const auto read = [&](int block, int half) {
    packed = LoadHalf(own + ring.stage * kWeightBytes + block * kTileBytes, half);
  };
  wait();
  read(0, 0);
  Widen(a[0], packed);
  read(1, 0);
  for (int c = 0; c < p.column_tiles; ++c) {
    const uint32_t input = ring.input + ring.stage * kInputBytes<Form>, empty = ring.Empty();
    const bool more = c + 1 < p.column_tiles;
    Multiply<kN>(acc[0], a[0], input);
    Widen(a[1], packed);
    read(0, 1);
    Multiply<kN>(acc[1], a[1], input);
    GroupWait<1>();
    Widen(a[0], packed);
    read(1, 1);
    Multiply<kN>(acc[0], a[0], input + kN * 128);
    ring.Next();
    GroupWait<1>();
    Widen(a[1], packed);
    if (more) {
      wait();
      read(0, 0);
    }
    Multiply<kN>(acc[1], a[1], input + kN * 128);
    GroupWait<1>();
    Widen(a[0], packed);
    if (more) read(1, 0);
    GroupWait<0>();
    __syncwarp();
    if (lane == 0) BarrierArrive(empty);
  }
  StorePiece<kN>(p, tile, first_strip, acc);
}

// By the first size that has room.
template <typename Form, int kN>
__device__ __forceinline__ void MultiplyTile(const GateUpParams& p,
                                             const MoeTile& tile,
                                             int first_strip,
                                             Ring<Form>& ring) {
  if constexpr (kN < Form::kTileRows) {
    if (tile.count > kN) {
      MultiplyTile<Form, kN + Form::kStep>(p, tile, first_strip, ring);
      return;
    }
  }
  if constexpr (Form::kBlocks > 1) {
    MultiplySmall<kN>(p, tile, first_strip, ring);
  } else {
    MultiplyPiece<kN>(p, tile, first_strip, ring);
  }
}

}  // namespace
}  // namespace baltoro::cuda
