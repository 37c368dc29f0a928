// What lanes of a warp do with each other: shuffles, votes, reductions, elections, and barriers
// of a part of them.

#include <algorithm>

#include "instruction_test.h"

namespace baltoro::instructions {
namespace {

constexpr uint32_t kLanes = 32;
enum Mode : int { kIndex, kUp, kDown, kButterfly };

// Lane l gives a[l], asks with b[l] and the segment c; the result, and whether a lane was found.
template <int kMode>
__global__ void ShuffleKernel(const uint32_t* in, uint32_t* out, uint32_t c) {
  const uint32_t lane = threadIdx.x, a = in[lane], b = in[kLanes + lane];
  uint32_t d, found;
#define BT_SHUFFLE(mode)                                                    \
  asm volatile("{ .reg .pred p; shfl.sync." mode                            \
               ".b32 %0|p, %2, %3, %4, 0xffffffff; selp.u32 %1, 1, 0, p; }" \
               : "=r"(d), "=r"(found)                                       \
               : "r"(a), "r"(b), "r"(c))
  if constexpr (kMode == kIndex) BT_SHUFFLE("idx");
  if constexpr (kMode == kUp) BT_SHUFFLE("up");
  if constexpr (kMode == kDown) BT_SHUFFLE("down");
  if constexpr (kMode == kButterfly) BT_SHUFFLE("bfly");
  out[lane] = d;
  out[kLanes + lane] = found;
}

template <int kMode>
void ExpectShuffled(uint32_t width) {
  const uint32_t segment = (kLanes - width) << 8, clamp = kMode == kUp ? 0 : kLanes - 1;
  Words in = SomeWords(2 * kLanes, 10 + width), want(2 * kLanes);
  for (uint32_t l = 0; l < kLanes; ++l) in[kLanes + l] %= kLanes;
  const uint32_t mask = segment >> 8;
  for (uint32_t l = 0; l < kLanes; ++l) {
    const uint32_t b = in[kLanes + l], last = (l & mask) | (clamp & ~mask);
    const int from = kMode == kUp          ? static_cast<int>(l) - static_cast<int>(b)
                     : kMode == kDown      ? static_cast<int>(l + b)
                     : kMode == kButterfly ? static_cast<int>(l ^ b)
                                           : static_cast<int>((l & mask) | (b & ~mask));
    const bool found =
        kMode == kUp ? from >= static_cast<int>(last) : from <= static_cast<int>(last);
    want[l] = in[found ? static_cast<uint32_t>(from) : l];
    want[kLanes + l] = found;
  }
  ExpectWords("shfl of mode " + std::to_string(kMode) + " in parts of " + std::to_string(width),
              Run(ShuffleKernel<kMode>, dim3(1), dim3(kLanes), in, 2 * kLanes, segment | clamp),
              want);
}

GPU_TEST(WarpTest, Shuffles) {
  for (const uint32_t width : {4u, 8u, 16u, 32u}) {
    ExpectShuffled<kIndex>(width);
    ExpectShuffled<kUp>(width);
    ExpectShuffled<kDown>(width);
    ExpectShuffled<kButterfly>(width);
  }
}

// Lanes of `members` together, the others together in the other branch.
__global__ void ReduceKernel(const uint32_t* in, uint32_t* out, uint32_t members) {
  const uint32_t lane = threadIdx.x, a = in[lane];
  uint32_t d[8];
  const auto reduce = [&](uint32_t mask) {
    asm volatile("redux.sync.add.s32 %0, %1, %2;" : "=r"(d[0]) : "r"(a), "r"(mask));
    asm volatile("redux.sync.min.s32 %0, %1, %2;" : "=r"(d[1]) : "r"(a), "r"(mask));
    asm volatile("redux.sync.max.s32 %0, %1, %2;" : "=r"(d[2]) : "r"(a), "r"(mask));
    asm volatile("redux.sync.min.u32 %0, %1, %2;" : "=r"(d[3]) : "r"(a), "r"(mask));
    asm volatile("redux.sync.max.u32 %0, %1, %2;" : "=r"(d[4]) : "r"(a), "r"(mask));
    asm volatile("redux.sync.and.b32 %0, %1, %2;" : "=r"(d[5]) : "r"(a), "r"(mask));
    asm volatile("redux.sync.or.b32 %0, %1, %2;" : "=r"(d[6]) : "r"(a), "r"(mask));
    asm volatile("redux.sync.xor.b32 %0, %1, %2;" : "=r"(d[7]) : "r"(a), "r"(mask));
  };
  if ((members >> lane & 1) != 0) {
    reduce(members);
  } else {
    reduce(~members);
  }
  for (uint32_t n = 0; n < 8; ++n) out[n * kLanes + lane] = d[n];
}

GPU_TEST(WarpTest, ReductionsOfAllAndOfParts) {
  for (const uint32_t members : {0xFFFFFFFFu, 0x55555555u, 0x0000FFFFu, 0x80000001u}) {
    const Words in = SomeWords(kLanes, members);
    Words want(8 * kLanes);
    for (uint32_t lane = 0; lane < kLanes; ++lane) {
      const uint32_t mine = (members >> lane & 1) != 0 ? members : ~members;
      uint32_t d[8] = {0, 0x7FFFFFFFu, 0x80000000u, ~0u, 0, ~0u, 0, 0};
      for (uint32_t l = 0; l < kLanes; ++l) {
        if ((mine >> l & 1) == 0) continue;
        const auto s = static_cast<int32_t>(in[l]);
        d[0] += in[l];
        d[1] = static_cast<uint32_t>(std::min(static_cast<int32_t>(d[1]), s));
        d[2] = static_cast<uint32_t>(std::max(static_cast<int32_t>(d[2]), s));
        d[3] = std::min(d[3], in[l]);
        d[4] = std::max(d[4], in[l]);
        d[5] &= in[l];
        d[6] |= in[l];
        d[7] ^= in[l];
      }
      for (uint32_t n = 0; n < 8; ++n) want[n * kLanes + lane] = d[n];
    }
    ExpectWords("redux", Run(ReduceKernel, dim3(1), dim3(kLanes), in, want.size(), members), want);
  }
}

__global__ void VoteKernel(const uint32_t* in, uint32_t* out) {
  const uint32_t lane = threadIdx.x;
  for (uint32_t round = 0; round < 4; ++round) {
    const bool mine = (in[round] >> lane & 1) != 0;
    out[round * kLanes + lane] = __ballot_sync(~0u, mine);
    out[(4 + round) * kLanes + lane] = __any_sync(~0u, mine);
    out[(8 + round) * kLanes + lane] = __all_sync(~0u, mine);
  }
  uint32_t elected;
  asm volatile("{ .reg .pred p; elect.sync _|p, 0xffffffff; selp.u32 %0, 1, 0, p; }"
               : "=r"(elected));
  out[12 * kLanes + lane] = elected;
}

GPU_TEST(WarpTest, Votes) {
  const Words in = {0, ~0u, 0x00010000u, 0xFFFFFFFEu};
  const Words got = Run(VoteKernel, dim3(1), dim3(kLanes), in, 13 * kLanes);
  Words want;
  for (uint32_t round = 0; round < 4; ++round) want.insert(want.end(), kLanes, in[round]);
  for (uint32_t round = 0; round < 4; ++round) want.insert(want.end(), kLanes, in[round] != 0);
  for (uint32_t round = 0; round < 4; ++round) want.insert(want.end(), kLanes, in[round] == ~0u);
  ExpectWords("votes", Words(got.begin(), got.begin() + 12 * kLanes), want);
  uint32_t elected = 0;
  for (uint32_t lane = 0; lane < kLanes; ++lane) elected += got[12 * kLanes + lane];
  GPU_EXPECT_EQ(elected, 1u);
}

// Lanes loop a different number of times, meet at a barrier of the warp, and read each other's.
__global__ void MeetKernel(const uint32_t* in, uint32_t* out) {
  __shared__ uint32_t sums[kLanes];
  const uint32_t lane = threadIdx.x;
  uint32_t sum = 0;
  for (uint32_t n = 0; n <= lane % 7; ++n) sum += in[(lane + n) % kLanes];
  sums[lane] = sum;
  __syncwarp();
  if (lane % 2 == 0) {
    out[lane] = sums[lane + 1];
    __syncwarp(0x55555555u);
  } else {
    out[lane] = sums[lane - 1];
    __syncwarp(0xAAAAAAAAu);
  }
}

GPU_TEST(WarpTest, LanesMeetAgain) {
  const Words in = SomeWords(kLanes, 20);
  Words sums(kLanes), want(kLanes);
  for (uint32_t lane = 0; lane < kLanes; ++lane)
    for (uint32_t n = 0; n <= lane % 7; ++n) sums[lane] += in[(lane + n) % kLanes];
  for (uint32_t lane = 0; lane < kLanes; ++lane) want[lane] = sums[lane ^ 1];
  ExpectWords("sums of a neighbour", Run(MeetKernel, dim3(1), dim3(kLanes), in, kLanes), want);
}

// Warps of a block: a named barrier that one side only arrives at.
__global__ void NamedKernel(const uint32_t* in, uint32_t* out) {
  __shared__ uint32_t values[kLanes];
  if (threadIdx.x < kLanes) {
    values[threadIdx.x] = in[threadIdx.x] + 1;
    asm volatile("bar.arrive 3, 64;" ::: "memory");
  } else {
    asm volatile("bar.sync 3, 64;" ::: "memory");
    out[threadIdx.x - kLanes] = values[kLanes - 1 - (threadIdx.x - kLanes)];
  }
}

GPU_TEST(WarpTest, ANamedBarrierIsArrivedAt) {
  const Words in = SomeWords(kLanes, 21);
  Words want;
  for (uint32_t lane = 0; lane < kLanes; ++lane) want.push_back(in[kLanes - 1 - lane] + 1);
  ExpectWords("a warp's values", Run(NamedKernel, dim3(1), dim3(2 * kLanes), in, kLanes), want);
}

}  // namespace
}  // namespace baltoro::instructions

INSTRUCTION_TEST_MAIN()
