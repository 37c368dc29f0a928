#pragma once

// How blocks of one launch that all run at once hand results to each other: through the L2, in
// words of 64 bits that hold 32 bits of payload and the tag of the launch. A reader polls the words
// themselves, so that a meeting costs one way to the L2 and back; flags would need a store, a fence
// and a flag, then two loads. A word is written and read whole, so that its tag says that its
// payload is there.
//
// Each launch has another tag, counted in device memory by the kernel itself, as a graph replays
// it. No word is written twice in a launch, and none before `griddepcontrol.wait`, after which
// nobody reads words of the launch before: one board of words serves all launches of a rank's
// stream.

#include <cstdint>

namespace baltoro::cuda::resident {

__device__ __forceinline__ void Post(uint64_t* to, uint32_t payload, uint32_t tag) {
  asm volatile("st.relaxed.gpu.global.b64 [%0], %1;" ::"l"(to),
               "l"(static_cast<uint64_t>(tag) << 32 | payload)
               : "memory");
}

__device__ __forceinline__ uint32_t Tag(uint64_t word) {
  return static_cast<uint32_t>(word >> 32);
}

// How blocks wait, and give back shared memory. Otherwise only under tools (resident_attention.h).
struct Conduct {
  uint32_t tries_max = 1u << 22;  // of about a microsecond
  int givers = 1;                 // lanes of a warp that arrive for it at a barrier of free places
};

// How often a warp asks for words that are not there.
class Patience {
 public:
  __device__ __forceinline__ explicit Patience(const Conduct& conduct)
      : tries_max_(conduct.tries_max) {}
  // False: no lane of the warp misses anything. Ends the kernel rather than hang the device.
  __device__ __forceinline__ bool Again(bool missing) {
    if (++tries_ > tries_max_) __trap();
    return __any_sync(~0u, missing);
  }

 private:
  const uint32_t tries_max_;
  uint32_t tries_ = 0;
};

// Both are for whole warps: all lanes ask again until the last word of the warp came, so that the
// loop is short and has no branches but its own. A launch runs each of them once, and what a long
// one costs is its instructions' way from the L2.

// kCount times two neighbouring words, asked for together.
template <int kCount>
class Mail {
 public:
  // `at(i)`: where, aligned to 16 bytes. Lanes without `mine` get zeros.
  template <typename At>
  __device__ __forceinline__ void Ask(bool mine, At at) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      words_[i][0] = words_[i][1] = 0;
      if (mine) Load(i, at(i));
    }
  }
  // Of this lane: not all are of this launch.
  __device__ __forceinline__ bool Missing(bool mine, uint32_t tag) const {
    uint32_t wrong = 0;
#pragma unroll
    for (int i = 0; i < kCount; ++i) wrong |= (Tag(words_[i][0]) ^ tag) | (Tag(words_[i][1]) ^ tag);
    return mine && wrong != 0;
  }
  template <typename At>
  __device__ __forceinline__ void Await(Patience patience, uint32_t tag, bool mine, At at) {
    do {
      Ask(mine, at);
    } while (patience.Again(Missing(mine, tag)));
  }
  __device__ __forceinline__ uint32_t word(int i, int half) const {
    return static_cast<uint32_t>(words_[i][half]);
  }
  __device__ __forceinline__ float number(int i, int half) const {
    return __uint_as_float(word(i, half));
  }
  // Mail 2 g and 2 g + 1: eight neighbouring columns.
  __device__ __forceinline__ uint4 eight(int g) const {
    return make_uint4(word(2 * g, 0), word(2 * g, 1), word(2 * g + 1, 0), word(2 * g + 1, 1));
  }

 private:
  __device__ __forceinline__ void Load(int i, const uint64_t* from) {
    asm volatile("ld.relaxed.gpu.global.v2.b64 {%0, %1}, [%2];"
                 : "=l"(words_[i][0]), "=l"(words_[i][1])
                 : "l"(from)
                 : "memory");
  }

  uint64_t words_[kCount][2];
};

// One word each: of kCount places at once.
template <int kCount>
class Letters {
 public:
  template <typename Wanted, typename At>
  __device__ __forceinline__ void Ask(Wanted wanted, At at) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      words_[i] = 0;
      if (wanted(i)) Load(i, at(i));
    }
  }
  template <typename Wanted>
  __device__ __forceinline__ bool Missing(Wanted wanted, uint32_t tag) const {
    uint32_t wrong = 0;
#pragma unroll
    for (int i = 0; i < kCount; ++i) wrong |= wanted(i) ? Tag(words_[i]) ^ tag : 0;
    return wrong != 0;
  }
  __device__ __forceinline__ float number(int i) const {
    return __uint_as_float(static_cast<uint32_t>(words_[i]));
  }

 private:
  __device__ __forceinline__ void Load(int i, const uint64_t* from) {
    asm volatile("ld.relaxed.gpu.global.b64 %0, [%1];" : "=l"(words_[i]) : "l"(from) : "memory");
  }

  uint64_t words_[kCount];
};

}  // namespace baltoro::cuda::resident
