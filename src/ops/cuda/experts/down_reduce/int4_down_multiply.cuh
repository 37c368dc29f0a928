#pragma once

// The products of the INT4 down product with the sum (int4_grouped_sum.cu): a warpgroup multiplies
// 64 rows of weights by up to 112 rows of one expert and stores their shares.

#include "ops/cuda/experts/down_reduce/int4_down_block.cuh"
#include "ops/cuda/ptx/group_multiply.cuh"

namespace baltoro::cuda::int4_sum {

// Few numbers: they stay in registers beside sums and operands. All else follows from them.
struct Item {
  uint32_t state;  // in shared memory: Block, then rows and more
  uint32_t piece;  // rows, first unit of the block's in the high half
  int32_t slot;    // of the ring
  int32_t chunk;
  uint32_t shares;  // of row t * k + j = 0, behind DownParams::shares
  uint32_t turns;   // kFullTurn, kOutTurn

  __device__ __forceinline__ int Count() const { return static_cast<int>(piece & 0xffff); }
  __device__ __forceinline__ uint32_t Unit() const { return piece >> 16; }
};
inline constexpr uint32_t kFullTurn = 1;  // the parity of `full`
inline constexpr uint32_t kOutTurn =
    2;  // which of two buffers a warpgroup's shares pass through next

// 16 rows by 64 columns of packed weights, as a lane has them.
struct Packed {
  uint4 words;
  uint2 scales;
};

__device__ __forceinline__ Packed LoadPacked(uint32_t strip, int part) {
  const int lane = threadIdx.x % 32;
  const uint32_t tile = strip + part / 2 * kTileBytes;
  return {LoadShared4(tile + part % 2 * 512 + lane * 16),
          LoadShared2(tile + 1024 + lane / 4 * 16 + part % 2 * 8)};
}

// As the first operand of four products.
__device__ __forceinline__ void Widen(uint32_t (&a)[4][4], const Packed& packed) {
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

// The shares of an item, by a warpgroup: 16 rows at a time through shared memory, so that 128 bytes
// of a share are written together, the four warps' low columns, then their high ones. While the
// warps wait for each other and for what they read, the next rows' weights and sums are under way.
template <int kN>
struct ItemShares {
  static constexpr int kUnits = kN / 16;
  uint32_t entry[kUnits];  // of the row that this thread writes, of 16
  float2 weight[2][2];     // of four rows that it has sums of, for two units in turn

  __device__ __forceinline__ void LoadEntries(const Item& item) {
    const uint32_t from = item.state + kEntries + item.Unit() * 64 + threadIdx.x % 128 / 8 * 4;
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
      entry[u] = LoadShared1(from + u * 64);
    }
  }
  __device__ __forceinline__ void LoadWeights(const Item& item, int unit) {
    if (unit >= kUnits) return;
    const uint32_t from =
        item.state + kRouteWeights + (item.Unit() + unit) * 64 + threadIdx.x % 4 * 8;
    weight[unit % 2][0] = LoadSharedFloats(from);
    weight[unit % 2][1] = LoadSharedFloats(from + 32);
  }
  __device__ __forceinline__ void Pack(uint32_t (&pairs)[4], const float (&acc)[kN / 2], int unit) {
    if (unit >= kUnits) return;
#pragma unroll
    for (int m = 0; m < 4; ++m) {
      const int i = unit * 8 + m * 2;
      const float2 by = weight[unit % 2][m / 2];
      pairs[m] = hopper::PackBf16(acc[i] * by.x, acc[i + 1] * by.y);
    }
  }
  // Before the products have ended.
  __device__ __forceinline__ void Begin(const Item& item) {
    LoadEntries(item);
    LoadWeights(item, 0);
    LoadWeights(item, 1);
  }
  __device__ __forceinline__ void Store(const DownParams& p,
                                        Item& item,
                                        const float (&acc)[kN / 2]) {
    const int thread = threadIdx.x % 128, warp = thread / 32, lane = threadIdx.x % 32;
    const int group = threadIdx.x / 128;
    const uint32_t out = item.state + p.out + group * 2 * kOutBytes;
    const uint32_t to =
        out + (lane / 16 * 8 + lane % 8) * kOutPitch + lane / 8 % 2 * 64 + warp * 16;
    const uint32_t from = out + thread / 8 * kOutPitch + thread % 8 * 16;
    uint64_t shares = reinterpret_cast<uint64_t>(p.shares + item.shares + thread % 8 * 16);
    asm volatile("" : "+l"(shares));  // one address, not the sum of three for every row
    const uint32_t turn = item.turns / kOutTurn;
    const auto at = [&](int u) { return ((turn + u) & 1) * kOutBytes; };
    uint32_t pairs[4];
    Pack(pairs, acc, 0);
    hopper::StoreMatricesTransposed(to + at(0), pairs);
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
      Pack(pairs, acc, u + 1);
      hopper::NamedSync(1 + group, 128);
      const uint4 v = LoadShared4(from + at(u));
      LoadWeights(item, u + 2);
      if (u + 1 < kUnits) hopper::StoreMatricesTransposed(to + at(u + 1), pairs);
      if (u * 16 + thread / 8 < item.Count()) {
        asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(
                         shares + static_cast<uint64_t>(entry[u]) * kShareBytes),
                     "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
                     : "memory");
      }
    }
    if (kUnits % 2 != 0) item.turns ^= kOutTurn;
  }
};

// A warpgroup: 64 rows of weights by kN rows of an expert.
template <int kN>
__device__ __forceinline__ void Multiply(const DownParams& p, Item& item) {
  const int warp = threadIdx.x % 128 / 32, lane = threadIdx.x % 32;
  float acc[kN / 2];
#pragma unroll
  for (int i = 0; i < kN / 2; ++i) acc[i] = 0;
  uint32_t a[2][4][4];
  const uint32_t own =
      item.state + p.ring + item.slot * kItemBytes + warp * (kInner / 128) * kTileBytes;
  const uint32_t operand = OperandAddress(item.state + kBlockBytes + item.Unit() * kUnitBytes);
  Packed packed = LoadPacked(own, 0);
#pragma unroll
  for (int part = 0; part < kInner / 64; ++part) {
    if (part >= 2) GroupWait<1>();  // the products that read these `a`
    Widen(a[part % 2], packed);
    if (part + 1 < kInner / 64) packed = LoadPacked(own, part + 1);
    GroupFence();
#pragma unroll
    for (uint32_t i = 0; i < 4; ++i) {
      GroupMultiply<kN>::Add(acc, a[part % 2][i], OperandAt(operand + part * kN * 8 + 2 * i));
    }
    GroupCommit();
  }
  hopper::FinishLoads();
  __syncwarp();  // every lane has read its weights
  if (lane == 0) BarrierArrive(item.state + kEmpty + item.slot * 8);
  ItemShares<kN> to;
  to.Begin(item);
  BarrierWait(OfChunk(item.state + kPermit, item.chunk), ParityOf(item.chunk));
  GroupWait<0>();
  to.Store(p, item, acc);
}

}  // namespace baltoro::cuda::int4_sum
