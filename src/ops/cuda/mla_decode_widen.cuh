#pragma once

// Between the producer and the computing warpgroups where the cache is fp8: makes bf16 of a block,
// in the swizzle of the matrix products. The raw elements lie in the first half of the place where
// the wide ones belong, so all are read before any is written. Three warps.

#include <cuda_bf16.h>

#include "ops/cuda/mla_decode_shared.cuh"
#include "ops/cuda/mla_decode_work.cuh"

namespace baltoro::cuda::mla {

// Four e4m3 as four bf16, exact; the codes of NaN become 480.
__device__ __forceinline__ void WidenFour(uint32_t codes, uint32_t& low, uint32_t& high) {
  // A byte moved to the top of its half, its magnitude 4 lower, is a bf16 2^-120 times the value.
  const auto widen = [](uint32_t spread) {
    const uint32_t bits = (spread & 0x80008000u) | (spread & 0x7F007F00u) >> 4;
    const __nv_bfloat162 factor = __nv_bfloat162(__nv_bfloat162_raw{0x7B80, 0x7B80});
    __nv_bfloat162 value;
    memcpy(&value, &bits, 4);
    value = __hmul2(value, factor);
    uint32_t result;
    memcpy(&result, &value, 4);
    return result;
  };
  low = widen(__byte_perm(codes, 0, 0x1404));
  high = widen(__byte_perm(codes, 0, 0x3424));
}

__device__ __forceinline__ void StoreShared(uint32_t to, const uint4& value) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(value.x), "r"(value.y),
               "r"(value.z), "r"(value.w)
               : "memory");
}

__device__ __forceinline__ uint4 LoadShared(uint32_t from) {
  uint4 value;
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "r"(from)
               : "memory");
  return value;
}

// 16 elements to two adjacent 16-byte places of a row of 128 bytes, 2 * quarter and the next, in
// the swizzle of row `token`; the second first if `odd`.
__device__ __forceinline__ void StoreWide(
    uint32_t row, int quarter, int token, bool odd, const uint4& codes) {
  uint4 wide[2];
  WidenFour(codes.x, wide[0].x, wide[0].y);
  WidenFour(codes.y, wide[0].z, wide[0].w);
  WidenFour(codes.z, wide[1].x, wide[1].y);
  WidenFour(codes.w, wide[1].z, wide[1].w);
  const int first = (2 * quarter + odd) ^ token % 8;
  StoreShared(row + first * 16, odd ? wide[1] : wide[0]);
  StoreShared(row + (first ^ 1) * 16, odd ? wide[0] : wide[1]);
}

// Columns of a part of a block (16 raw bytes each) a token, and all tokens' of them a thread.
inline constexpr int kWidenThreads = 96;
inline constexpr int kRopeQuarters = 4;
inline constexpr int kHalfQuarters = 16;
template <int kQuarters>
inline constexpr int kShare = (kQuarters * kTokens + kWidenThreads - 1) / kWidenThreads;

// Piece j of this thread, of 16 raw bytes.
template <int kQuarters>
__device__ __forceinline__ uint4 LoadRaw(uint32_t from, int j) {
  const int at = j * kWidenThreads + threadIdx.x % 128;
  return at < kQuarters * kTokens ? LoadShared(from + at * 16) : uint4{};
}

template <int kQuarters>
__device__ __forceinline__ void Store(uint32_t to, int j, const uint4& codes) {
  const int at = j * kWidenThreads + threadIdx.x % 128;
  if (at >= kQuarters * kTokens) return;
  const int token = at / kQuarters;
  const int tile = at % kQuarters / 4;
  // 8 lanes write to two tiles: to other banks if one begins with the second place.
  StoreWide(to + tile * kTileBytes + token * 128, at % 4, token, tile % 2 != 0, codes);
}

// kQuarters * 16 columns of a block in place.
template <int kQuarters>
__device__ __forceinline__ void WidenColumns(uint32_t tiles) {
  uint4 codes[kShare<kQuarters>];
#pragma unroll
  for (int j = 0; j < kShare<kQuarters>; ++j) codes[j] = LoadRaw<kQuarters>(tiles, j);
  NamedSync(kWideners, kWidenThreads);
#pragma unroll
  for (int j = 0; j < kShare<kQuarters>; ++j) Store<kQuarters>(tiles, j, codes[j]);
}

// Threads 0 .. 95 of the warpgroup.
__device__ inline void Widen(const MlaKernelArgs& args, const Layout& smem, int part) {
  Small& small = *smem.small;
  uint32_t uses0 = 0, uses1 = 0;
  MlaWalker walker(args, part);
  for (MlaPiece piece; walker.Next(piece);) {
    const int count = piece.end_block - piece.begin_block;
#pragma unroll 1
    for (int part_of_block = 0; part_of_block < 2 * count; ++part_of_block) {
      const int s = part_of_block / 2 & 1;
      const bool late = part_of_block % 2 != 0;
      const uint32_t parity = (s == 0 ? uses0 : uses1) & 1;
      Wait(SharedAddress(late ? &small.raw_late[s] : &small.raw_early[s]), parity);
      if (!late) WidenColumns<kRopeQuarters>(smem.stage(s) + kRopeTile * kTileBytes);
      WidenColumns<kHalfQuarters>(smem.stage(s) + (late ? 1 - s : s) * kHalfBytes);
      FenceAsyncProxy();
      Arrive(SharedAddress(late ? &small.full_late[s] : &small.full_early[s]));
      if (late) ++(s == 0 ? uses0 : uses1);
    }
  }
}

}  // namespace baltoro::cuda::mla
