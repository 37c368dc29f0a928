#pragma once

// The sum over a token's experts in the joined INT4 down product (moe_wide_down.cu): three warps of
// a block add up the shares of a chunk, [T k, 128] bf16 in the L2, and what `out` holds.
//
// All shares of a token lie together, 256 bytes each. The twelve warps that multiply wait for these
// three wherever the ring is full, so instructions count: a token takes about 110, of which 68 are
// its sums; one address, one condition for all its loads, no division. Its shares are asked for
// while those of two others are added.

#include "ops/cuda/moe_joined_down.cuh"

namespace baltoro::cuda::joined {

inline constexpr int kItemStrips = 4;
inline constexpr int kChunkStrips = 2 * kItemStrips;
static_assert(kShareBytes == kChunkStrips * 32);  // 8 low columns, 8 high ones a strip

__device__ __forceinline__ void AwaitCount(const uint32_t* counter, uint32_t count) {
  while (LoadAcquire(counter) < count) __nanosleep(50);
}

// A warp adds up a chunk of every kAddWarps-th token of the block, a lane four columns.
template <typename Out, typename Params>
struct Adder {
  const Params& p;
  const uint32_t* held;         // of the block's tokens
  int warp, lane, first, each;  // token, tokens
  int column;

  // The shares of two tokens and what they are added to: while two are added, two are under way.
  struct Pair {
    uint2 shares[2][8];
    Four<Out> before[2];
  };

  __device__ __forceinline__ Adder(const Params& params, const uint32_t* held_shares)
      : p(params), held(held_shares) {
    warp = static_cast<int>(threadIdx.x) / 32 - 4 * kGroups - 1;
    lane = threadIdx.x % 32;
    first = FirstOf(p.tokens, blockIdx.x) + warp;
    each = max(0, (FirstOf(p.tokens, blockIdx.x + 1) - first + kAddWarps - 1) / kAddWarps);
    // This lane's 8 bytes of a share: strip `part % 4` of an item, low or high columns.
    const int part = lane / 2;
    column = (part / 8 * kItemStrips + part % 4) * 8 + part / 4 % 2 * (p.hidden / 2) + lane % 2 * 4;
  }

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

  // A token of the warp's, this lane's part.
  struct Place {
    const char* shares;
    Out* out;
    int at;  // among the warp's tokens
  };
  __device__ __forceinline__ void Next(Place& place) const {
    place.shares += kAddWarps * kShareBytes * p.top_k;
    place.out += kAddWarps * p.out_stride;
    ++place.at;
  }

  __device__ __forceinline__ void Load(Pair& pair, Place& place) const {
#pragma unroll
    for (int n = 0; n < 2; ++n, Next(place)) {
      if (place.at >= each) continue;
      pair.before[n] = __ldcs(reinterpret_cast<const Four<Out>*>(place.out));
      LoadShares(pair.shares[n], place.shares, held[warp + place.at * kAddWarps]);
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
        if ((held[warp + place.at * kAddWarps] >> j & 1) == 0) continue;
        AddShare(sum, __ldcg(reinterpret_cast<const uint2*>(place.shares + j * kShareBytes)));
      }
      AddBefore(sum, pair.before[n]);
      StoreFour(place.out, sum);
    }
  }

  __device__ __forceinline__ Out* out() const {
    return static_cast<Out*>(p.out);
  }

  // Brings what a chunk is added to into the L2: two runs of 64 columns of each token.
  __device__ __forceinline__ void Prefetch(int chunk) const {
#pragma unroll 1
    for (int i = lane / 4; i < each; i += 8) {
      const Out* line = out() + (first + i * kAddWarps) * p.out_stride + chunk * kChunkStrips * 8 +
                        lane / 2 % 2 * (p.hidden / 2) + lane % 2 * 32;
      asm volatile("prefetch.global.L2 [%0];" ::"l"(line));
    }
  }

  __device__ __forceinline__ void Run() const {
    Prefetch(0);
    char* shares = p.shares;
    for (int chunk = 0, turn = 0; chunk < p.chunks; ++chunk, NextBuffer(p, turn, shares)) {
      const int64_t row = static_cast<int64_t>(first) * p.top_k;
      Place load = {shares + row * kShareBytes + lane * 8,
                    out() + first * p.out_stride + column + chunk * kChunkStrips * 8, 0};
      Place add = load;
      // One lane asks for all, as every question of every block goes to one place in the L2.
      if (warp == 0 && lane == 0) AwaitCount(p.written + chunk, gridDim.x);
      hopper::NamedSync(1 + kGroups, 32 * kAddWarps);
      Pair a, b;
      Load(a, load);
      if (chunk + 1 < p.chunks) Prefetch(chunk + 1);
      while (add.at < each) {
        Load(b, load);
        Add(a, add);
        Load(a, load);
        Add(b, add);
      }
      __syncwarp();
      // What was read has arrived, as it has been added; nobody waits for what was stored.
      if (lane == 0) TellAdded(p.added + chunk);
    }
  }
};

}  // namespace baltoro::cuda::joined
