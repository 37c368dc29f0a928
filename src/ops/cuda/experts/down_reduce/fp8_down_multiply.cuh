#pragma once

// The products of the FP8 down product with the sum (fp8_grouped_sum.cu): a warpgroup multiplies 64
// rows of weights by up to 112 rows of one expert and stores their shares.

#include "ops/cuda/experts/down_reduce/fp8_down_block.cuh"
#include "ops/cuda/linear/tiles/tiles128_multiply.cuh"
#include "ops/cuda/ptx/group_multiply.cuh"

namespace baltoro::cuda::fp8_sum {

// Few numbers, which stay in registers beside the sums. All else follows from them.
struct Item {
  uint32_t state;  // in shared memory: Block, then rows and more
  uint32_t piece;  // rows, first unit of the block's in the high half
  int32_t slot;    // of the ring
  int32_t chunk;
  uint32_t shares;  // of row t * k + j = 0, behind DownParams::shares
  uint32_t turns;   // kFullTurn, kPassageTurn

  __device__ __forceinline__ int Count() const { return static_cast<int>(piece & 0xffff); }
  __device__ __forceinline__ uint32_t Unit() const { return piece >> 16; }
};
inline constexpr uint32_t kFullTurn = 1;     // the parity of `full`
inline constexpr uint32_t kPassageTurn = 2;  // which of two buffers shares pass through next

// The shares of an item: 16 rows at a time through shared memory, so that 128 bytes of a share are
// written together. While the warps wait for each other and for what they read, the next rows'
// factors and sums are under way.
template <int kN>
struct ItemShares {
  static constexpr int kUnits = kN / 16;
  float4 factor[2];  // of two rows each, of the unit to be packed next

  __device__ __forceinline__ void LoadFactors(const Item& item, int unit) {
    if (unit >= kUnits) return;
    const uint32_t from = item.state + kFactors + (item.Unit() + unit) * 128 + threadIdx.x % 4 * 16;
#pragma unroll
    for (int of = 0; of < 2; ++of) {
      const uint4 raw = LoadShared4(from + of * 64);
      factor[of] = make_float4(__uint_as_float(raw.x), __uint_as_float(raw.y),
                               __uint_as_float(raw.z), __uint_as_float(raw.w));
    }
  }
  // Sums of both halves of the columns are scaled apart.
  __device__ __forceinline__ void Pack(uint32_t (&pairs)[4],
                                       const float (&sums)[2][kN / 2],
                                       const uint4& bands,
                                       int unit) {
    if (unit >= kUnits) return;
    const float2 low = make_float2(__uint_as_float(bands.x), __uint_as_float(bands.y));
    const float2 high = make_float2(__uint_as_float(bands.z), __uint_as_float(bands.w));
#pragma unroll
    for (int of = 0; of < 2; ++of) {
      const float4& x = factor[of];
      const int i = unit * 8 + of * 4;
      const auto sum = [&](int e, float first, float second, const float2& band) {
        return fmaf(sums[1][i + e], second * band.y, sums[0][i + e] * (first * band.x));
      };
      pairs[2 * of] = hopper::PackBf16(sum(0, x.x, x.y, low), sum(1, x.z, x.w, low));
      pairs[2 * of + 1] = hopper::PackBf16(sum(2, x.x, x.y, high), sum(3, x.z, x.w, high));
    }
  }
  __device__ __forceinline__ void Store(const DownParams& p,
                                        Item& item,
                                        const float (&sums)[2][kN / 2],
                                        const uint4& bands) {
    const int thread = threadIdx.x % 128, warp = thread / 32, lane = threadIdx.x % 32;
    const int group = threadIdx.x / 128;
    const uint32_t passage = item.state + p.passage + group * 2 * kOutBytes;
    const uint32_t to =
        passage + (lane / 16 * 8 + lane % 8) * kOutPitch + lane / 8 % 2 * 16 + warp * 32;
    const uint32_t from = passage + thread / 8 * kOutPitch + thread % 8 * 16;
    const uint32_t entries = item.state + kEntries + item.Unit() * 64 + thread / 8 * 4;
    uint64_t shares = reinterpret_cast<uint64_t>(p.shares + item.shares + thread % 8 * 16);
    asm volatile("" : "+l"(shares));  // one address, not the sum of three for every row
    const uint32_t turn = item.turns / kPassageTurn;
    const auto at = [&](int u) { return ((turn + u) & 1) * kOutBytes; };
    uint32_t pairs[4];
    Pack(pairs, sums, bands, 0);
    LoadFactors(item, 1);
    hopper::StoreMatricesTransposed(to + at(0), pairs);
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
      Pack(pairs, sums, bands, u + 1);
      const uint32_t entry = LoadShared1(entries + u * 64);
      hopper::NamedSync(1 + group, 128);
      const uint4 v = LoadShared4(from + at(u));
      LoadFactors(item, u + 2);
      if (u + 1 < kUnits) hopper::StoreMatricesTransposed(to + at(u + 1), pairs);
      if (u * 16 + thread / 8 < item.Count()) {
        asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(
                         shares + static_cast<uint64_t>(entry) * kShareBytes),
                     "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
                     : "memory");
      }
    }
    if (kUnits % 2 != 0) item.turns ^= kPassageTurn;
  }
};

// A warpgroup: 64 rows of weights by kN rows of an expert.
template <int kN>
__device__ __forceinline__ void Multiply(const DownParams& p, Item& item) {
  const int warp = threadIdx.x % 128 / 32, lane = threadIdx.x % 32;
  float sums[2][kN / 2];
  hopper::Pin(sums[0]);
  hopper::Pin(sums[1]);
  const uint32_t weights = OperandAddress(item.state + p.ring + item.slot * kItemBytes);
  const uint32_t rows = OperandAddress(item.state + kBlockBytes + item.Unit() * kUnitBytes);
  GroupFence();
#pragma unroll
  for (int half = 0; half < 2; ++half) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      GroupMultiplyShared<kN>::E4m3(sums[half],
                                    OperandAt(weights + half * (kHalfBytes / 16) + 2 * i),
                                    OperandAt(rows + half * kN * 8 + 2 * i), i);
    }
  }
  GroupCommit();
  // Bands of rows lane / 4 and lane / 4 + 8, of both halves.
  const uint4 bands = LoadShared4(item.state + kBands + item.slot * kBandBytes + warp * 16);
  ItemShares<kN> to;
  to.LoadFactors(item, 0);
  BarrierWait(OfChunk(item.state + kPermit, item.chunk), ParityOf(item.chunk));
  GroupWait<0>();
  hopper::Pin(sums[0]);
  hopper::Pin(sums[1]);
  hopper::FinishLoads();
  __syncwarp();  // every lane has read its bands
  if (lane == 0) BarrierArrive(item.state + kEmpty + item.slot * 8);
  to.Store(p, item, sums, bands);
}

}  // namespace baltoro::cuda::fp8_sum
