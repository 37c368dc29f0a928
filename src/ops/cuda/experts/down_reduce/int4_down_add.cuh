#pragma once

// The sum over a token's experts in the INT4 down product with the sum (int4_grouped_sum.cu): warps
// add up the shares of a chunk, [T k, 128] bf16 in the L2, and what `out` holds.
//
// All shares of a token lie together, 256 bytes each. Instructions count: a token takes about 110,
// of which 68 are its sums; one address, one condition for all its loads, no division. Its shares
// are asked for while those of two others are added.

#include "ops/cuda/experts/down_reduce/grouped_sum.cuh"

namespace baltoro::cuda::grouped_sum {

inline constexpr int kChunkStrips = 2 * kItemStrips;
static_assert(kShareBytes == kChunkStrips * 32);  // 8 low columns, 8 high ones a strip

__device__ __forceinline__ void AwaitCount(const uint32_t* counter, uint32_t count) {
  uint32_t turns = 0;
  while (LoadAcquire(counter) < count) {
    __nanosleep(50);
    if (++turns == kPatience) __trap();
  }
}

// A warp adds up a chunk of every kStep-th token from `first` on, `each` of them, a lane four
// columns.
template <typename Out, typename Params, int kStep>
struct Adder {
  const Params& p;
  const uint32_t* held;  // of these tokens and those between
  int first, each;

  // The shares of two tokens and what they are added to: while two are added, two are under way.
  struct Pair {
    uint2 shares[2][8];
    Four<Out> before[2];
  };

  // A token of the warp's, this lane's part.
  struct Place {
    const char* shares;
    Out* out;
    int at;  // among the warp's tokens
  };

  // Nearly always all exist. With a condition for each alone the predicates become bits of a
  // register, set and tested one by one, which takes more instructions than the sums.
  static __device__ __forceinline__ void LoadShares(uint2 (&to)[8],
                                                    const char* from,
                                                    uint32_t exist) {
    if ((exist & 0xff) == 0xff) {
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        to[j] = __ldcg(reinterpret_cast<const uint2*>(from + j * kShareBytes));
      }
      return;
    }
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      to[j] = make_uint2(0, 0);
      if (exist >> j & 1) to[j] = __ldcg(reinterpret_cast<const uint2*>(from + j * kShareBytes));
    }
  }

  __device__ __forceinline__ void Next(Place& place) const {
    place.shares += kStep * kShareBytes * p.top_k;
    place.out += kStep * p.out_stride;
    ++place.at;
  }

  __device__ __forceinline__ void Load(Pair& pair, Place& place) const {
#pragma unroll
    for (int n = 0; n < 2; ++n, Next(place)) {
      if (place.at >= each) continue;
      pair.before[n] = __ldcs(reinterpret_cast<const Four<Out>*>(place.out));
      LoadShares(pair.shares[n], place.shares, held[place.at * kStep]);
    }
  }

  __device__ __forceinline__ void Add(const Pair& pair, Place& place) const {
#pragma unroll
    for (int n = 0; n < 2; ++n, Next(place)) {
      if (place.at >= each) continue;
      float4 sum = {};
#pragma unroll
      for (int j = 0; j < 8; ++j) AddShare(sum, pair.shares[n][j]);
#pragma unroll 1
      for (int j = 8; j < p.top_k; ++j) {
        if ((held[place.at * kStep] >> j & 1) == 0) continue;
        AddShare(sum, __ldcg(reinterpret_cast<const uint2*>(place.shares + j * kShareBytes)));
      }
      AddBefore(sum, pair.before[n]);
      StoreFour(place.out, sum);
    }
  }

  // The warp's first token in a chunk and its buffer.
  __device__ __forceinline__ Place Begin(int chunk, const char* buffer) const {
    int lane = threadIdx.x % 32;
    asm volatile("" : "+r"(lane));  // what follows from it takes no registers between chunks
    // This lane's 8 bytes of a share: strip `part % 4` of an item, low or high columns.
    const int part = lane / 2;
    const int column = (chunk * kChunkStrips + part / 8 * kItemStrips + part % 4) * 8 +
                       part / 4 % 2 * (p.hidden / 2) + lane % 2 * 4;
    return {buffer + static_cast<int64_t>(first) * p.top_k * kShareBytes + lane * 8,
            static_cast<Out*>(p.sums) + first * p.out_stride + column, 0};
  }

  // Any number of tokens. `between` once the first are asked for.
  template <typename Between>
  __device__ __forceinline__ void AddAll(int chunk, const char* buffer, const Between& between) {
    Place load = Begin(chunk, buffer), add = load;
    Pair a, b;
    Load(a, load);
    between();
    while (add.at < each) {
      Load(b, load);
      Add(a, add);
      Load(a, load);
      Add(b, add);
    }
  }

  // Few tokens, one after the other.
  __device__ __forceinline__ void AddFew(int chunk, const char* buffer) {
    Place place = Begin(chunk, buffer);
#pragma unroll 1
    for (; place.at < each; Next(place)) {
      const uint32_t exist = held[place.at * kStep];
      const Four<Out> before = __ldcs(reinterpret_cast<const Four<Out>*>(place.out));
      uint2 shares[8];
      LoadShares(shares, place.shares, exist);
      float4 sum = {};
#pragma unroll
      for (int j = 0; j < 8; ++j) AddShare(sum, shares[j]);
#pragma unroll 1
      for (int j = 8; j < p.top_k; ++j) {
        if ((exist >> j & 1) == 0) continue;
        AddShare(sum, __ldcg(reinterpret_cast<const uint2*>(place.shares + j * kShareBytes)));
      }
      AddBefore(sum, before);
      StoreFour(place.out, sum);
    }
  }
};

}  // namespace baltoro::cuda::grouped_sum
