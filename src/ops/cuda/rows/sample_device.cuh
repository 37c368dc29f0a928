#pragma once

// One row of logits in the shared memory of a cluster: walking over it, sums over it, and weights.
// Of every 128 ids of a block's slice each lane of a warp has four, and each warp has a run of
// them, so that an order of warps and lanes is an order of ids.

#include <cooperative_groups.h>

#include <cstdint>

#include "ops/cuda/rows/rows_device.cuh"
#include "ops/cuda/rows/sample.h"

namespace baltoro::cuda::sampling {

inline constexpr int kCluster = 8;
inline constexpr int kThreads = 512;
inline constexpr int kWarps = kThreads / 32;
inline constexpr int kTile = 128;
inline constexpr int kBins = 1024;
inline constexpr int kListMax = 1024;
inline constexpr int kValues = 4;  // that one reduction carries at most

// Sums of weights count 2^-44: the heaviest weighs 2^44, and 2^19 of those fit into 63 bits.
inline constexpr float kUnit = 0x1p44f;
// A weight of exp2(-46) or less rounds to none of them.
inline constexpr float kNoWeight = 46;

static_assert(kListMax >= kSampleTopMax);

// What is kept: logits above `value`, and of those equal to it ids up to `id`.
struct Cut {
  float value;
  int32_t id;
};

struct Histogram {
  uint32_t counts[kBins];
  uint32_t parts[3][kBins];  // of the weights: 15 bits, 15 bits and the rest
};

struct Candidates {
  uint64_t keys[kListMax];
  uint64_t measures[kListMax];
};

struct Shared {
  uint64_t slots[2][kValues][kCluster];
  uint64_t warps[kValues][kWarps];
  // A histogram is merged before candidates are gathered, with a cluster barrier between.
  union {
    Histogram histogram;
    Candidates list;
  };
  uint64_t merged[kBins];
  uint32_t merged_counts[kBins];
  uint32_t list_count;
  int32_t found;
  Cut cut;
  uint64_t bin_above;
  int32_t bin;
  uint32_t bin_count;
};

// Integers in the order of the floats; equal zeros are equal.
__device__ inline uint32_t KeyOf(float x) {
  const uint32_t bits = __float_as_uint(x + 0.0f);
  return bits ^ (static_cast<uint32_t>(static_cast<int32_t>(bits) >> 31) | 0x80000000u);
}
__device__ inline float ValueOf(uint32_t key) {
  return __uint_as_float(key >> 31 != 0 ? key ^ 0x80000000u : ~key);
}
// Greater is better: the higher logit, of equal ones the lower id.
__device__ inline uint64_t RankOf(float x, int32_t id) {
  return static_cast<uint64_t>(KeyOf(x)) << 32 | static_cast<uint32_t>(~id);
}
__device__ inline int32_t IdOf(uint64_t rank) {
  return ~static_cast<int32_t>(static_cast<uint32_t>(rank));
}
__device__ inline float LogitOf(uint64_t rank) {
  return ValueOf(static_cast<uint32_t>(rank >> 32));
}

// exp((x - highest) / temperature), in units of 2^-44.
struct Weigher {
  float highest, scale, rest;  // scale + rest: log2(e) / temperature

  __device__ Weigher(float highest_, float temperature) : highest(highest_) {
    const double exact = 1.4426950408889634 / static_cast<double>(temperature);
    scale = static_cast<float>(exact);
    rest = static_cast<float>(exact - static_cast<double>(scale));
  }
  __device__ float Weight(float x) const {
    const float below = highest - x;
    const float power = below * scale;
    const float lost = fmaf(below, scale, -power) + below * rest;
    const float weight = exp2f(-power) * fmaf(lost, -0.69314718f, 1.0f);
    return power < kNoWeight ? weight : 0.0f;  // also where the product is no number
  }
  __device__ uint64_t Units(float x) const {
    const float weight = Weight(x);
    return weight == 0 ? 0 : __float2ull_rn(weight * kUnit);
  }
};

class Row {
 public:
  __device__ Row(Shared& shared, float* slice, int slice_size)
      : s(shared),
        cluster_(cooperative_groups::this_cluster()),
        slice_(slice),
        begin_(static_cast<int>(cluster_.block_rank()) * slice_size),
        rank_(cluster_.block_rank()),
        lane_(threadIdx.x % 32),
        warp_(threadIdx.x / 32) {
    const int tiles = slice_size / kTile, each = (tiles + kWarps - 1) / kWarps;
    first_ = min(tiles, warp_ * each);
    last_ = min(tiles, first_ + each);
  }

  Shared& s;

  __device__ unsigned rank() const { return rank_; }
  __device__ int begin() const { return begin_; }
  __device__ int lane() const { return lane_; }
  __device__ int first_tile() const { return first_; }
  __device__ int last_tile() const { return last_; }
  __device__ float4* tile(int t) const {
    return reinterpret_cast<float4*>(slice_) + t * (kTile / 4) + lane_;
  }
  // The id of the first of this lane's four.
  __device__ int id_of(int t) const { return begin_ + t * kTile + lane_ * 4; }
  // The element of an id, or null if another block has it.
  __device__ float* Find(int32_t id, int slice_size) const {
    const int at = id - begin_;
    return at >= 0 && at < slice_size ? slice_ + at : nullptr;
  }

  __device__ void Barrier() { cluster_.sync(); }
  // The two halves of a barrier. Before the first write to another block's memory there must be
  // one: it may not have begun.
  __device__ void Arrive() { cluster_.barrier_arrive(); }
  __device__ void AwaitOthers() { cluster_.barrier_wait(); }
  template <typename T>
  __device__ T* Of(T* mine, unsigned rank) {
    return cluster_.map_shared_rank(mine, rank);
  }

  // f(x, id) for all elements of this thread, in rising order of ids.
  template <typename F>
  __device__ void ForEach(F f) const {
    for (int t = first_; t < last_; ++t) {
      const float4 x = *tile(t);
      const int id = id_of(t);
      f(x.x, id);
      f(x.y, id + 1);
      f(x.z, id + 2);
      f(x.w, id + 3);
    }
  }

  // values[i] of all threads of the cluster by op(i, a, b), the same in all of them.
  template <int kCount, typename Op>
  __device__ void Reduce(uint64_t (&values)[kCount], Op op) {
    static_assert(kCount <= kValues);
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      for (int step = 16; step > 0; step /= 2) {
        values[i] = op(i, values[i], __shfl_xor_sync(~0u, values[i], step));
      }
      if (lane_ == 0) s.warps[i][warp_] = values[i];
    }
    __syncthreads();
    if (warp_ == 0) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        uint64_t value = s.warps[i][lane_ % kWarps];
        for (int step = kWarps / 2; step > 0; step /= 2) {
          value = op(i, value, __shfl_xor_sync(~0u, value, step));
        }
        Send(i, value);
      }
    }
    Barrier();
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      values[i] = s.slots[phase_][i][0];
      for (int block = 1; block < kCluster; ++block) {
        values[i] = op(i, values[i], s.slots[phase_][i][block]);
      }
    }
    phase_ ^= 1;
  }

  // The first id at which the running sum of measure(x, id) reaches target(total), which is at
  // most the total and at least 1.
  template <typename Measure, typename Target>
  __device__ int32_t FindInOrder(Measure measure, Target target_of) {
    uint64_t mine = 0;
    ForEach([&](float x, int id) { mine += measure(x, id); });
    for (int step = 16; step > 0; step /= 2) mine += __shfl_xor_sync(~0u, mine, step);
    if (lane_ == 0) s.warps[0][warp_] = mine;
    __syncthreads();
    if (warp_ == 0) {
      uint64_t value = s.warps[0][lane_ % kWarps];
      for (int step = kWarps / 2; step > 0; step /= 2) value += __shfl_xor_sync(~0u, value, step);
      Send(0, value);
    }
    Barrier();
    uint64_t total = 0, before = 0;
    for (unsigned block = 0; block < kCluster; ++block) {
      const uint64_t value = s.slots[phase_][0][block];
      total += value;
      before += block < rank_ ? value : 0;
    }
    phase_ ^= 1;
    for (int warp = 0; warp < warp_; ++warp) before += s.warps[0][warp];
    const uint64_t target = target_of(total);
    if (before < target && target <= before + mine) Walk(measure, target, before);
    Barrier();
    return s.found;
  }

 private:
  __device__ void Send(int i, uint64_t value) {
    if (lane_ < kCluster) *Of(&s.slots[phase_][i][rank_], lane_) = value;
  }

  // The end of FindInOrder by the warp whose elements hold it.
  template <typename Measure>
  __device__ void Walk(Measure measure, uint64_t target, uint64_t before) {
    for (int t = first_; t < last_; ++t) {
      const float4 four = *tile(t);
      const float x[4] = {four.x, four.y, four.z, four.w};
      uint64_t measures[4], sum = 0;
#pragma unroll
      for (int i = 0; i < 4; ++i) sum += measures[i] = measure(x[i], id_of(t) + i);
      uint64_t running = sum;
      for (int step = 1; step < 32; step *= 2) {
        const uint64_t other = __shfl_up_sync(~0u, running, step);
        if (lane_ >= step) running += other;
      }
      const uint64_t after = before + running;
      if (after - sum < target && target <= after) {
        uint64_t at = after - sum;
        int32_t id = id_of(t);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          at += measures[i];
          id += at < target ? 1 : 0;
        }
        for (unsigned block = 0; block < kCluster; ++block) *Of(&s.found, block) = id;
      }
      before += __shfl_sync(~0u, running, 31);
      if (before >= target) return;
    }
  }

  cooperative_groups::cluster_group cluster_;
  float* slice_;
  int begin_, first_, last_;
  unsigned rank_;
  int lane_, warp_;
  int phase_ = 0;
};

__device__ inline bool Kept(const Cut& cut, float x, int32_t id) {
  return x > cut.value || (x == cut.value && id <= cut.id);
}

}  // namespace baltoro::cuda::sampling
