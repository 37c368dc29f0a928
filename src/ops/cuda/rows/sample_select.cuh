#pragma once

// The cut that leaves the fewest best elements of a row whose measures, each 1 or its weight, sum
// to at least a target. A histogram over the cluster finds the bin in which the cut lies; its
// elements, once they are few, are ranked one against the other. Sums are integers: the answer is
// that of a sort.

#include "ops/cuda/rows/sample_device.cuh"

namespace baltoro::cuda::sampling {

// Which bin an element falls into, of those between two logits. Falling logits, rising bins; equal
// logits, one bin.
struct Bins {
  uint32_t low, high;  // keys, both inclusive
  float top, scale;    // by value, if scale >= 0
  int shift;           // by key

  // Of equal width in logits: few elements in each of logits as models give them. Halves, since the
  // difference of two floats may be none.
  __device__ static Bins ByValue(float low, float high) {
    const float half = high * 0.5f - low * 0.5f;
    return {KeyOf(low), KeyOf(high), high, half > 0 ? kBins / half : 0.0f, 0};
  }
  __device__ static Bins ByKey(uint32_t low, uint32_t high) {
    const uint32_t range = high - low;
    const int bits = range == 0 ? 0 : 32 - __clz(static_cast<int>(range));
    return {low, high, 0, -1, max(0, bits - 10)};
  }
  __device__ bool Hold(float x) const {
    const uint32_t key = KeyOf(x);
    return key >= low && key <= high;
  }
  __device__ int Of(float x) const {
    if (scale < 0) return static_cast<int>((high - KeyOf(x)) >> shift);
    const float place = (top * 0.5f - x * 0.5f) * scale;
    return min(max(__float2int_rz(place), 0), kBins - 1);
  }
};
static_assert(kBins == 1 << 10);

// Measures: how much of the target an element is.
struct One {
  static constexpr bool kCounts = true;
  __device__ uint64_t operator()(float) const { return 1; }
};
struct Weighed {
  static constexpr bool kCounts = false;
  const Weigher& weigher;
  __device__ uint64_t operator()(float x) const { return weigher.Units(x); }
};

template <typename Measure>
struct Selection {
  Row& row;
  const Cut& cut;
  Measure measure;

  template <typename F>
  __device__ void ForEachIn(const Bins& bins, F f) {
    row.ForEach([&](float x, int32_t id) {
      if (bins.Hold(x) && Kept(cut, x, id)) f(x, id);
    });
  }

  __device__ void Count(const Bins& bins) {
    Histogram& histogram = row.s.histogram;
    for (int i = threadIdx.x; i < kBins; i += kThreads) {
      histogram.counts[i] = 0;
      for (auto& part : histogram.parts) part[i] = 0;
    }
    if (threadIdx.x == 0) row.s.list_count = 0;
    __syncthreads();
    ForEachIn(bins, [&](float x, int32_t) {
      const int bin = bins.Of(x);
      atomicAdd(&histogram.counts[bin], 1u);
      if constexpr (Measure::kCounts) return;
      const uint64_t units = measure(x);
      const uint32_t parts[3] = {static_cast<uint32_t>(units) & 0x7FFF,
                                 static_cast<uint32_t>(units >> 15) & 0x7FFF,
                                 static_cast<uint32_t>(units >> 30)};
#pragma unroll
      for (int i = 0; i < 3; ++i) {
        if (parts[i] != 0) atomicAdd(&histogram.parts[i][bin], parts[i]);
      }
    });
  }

  // Each block sums its share of the bins over the cluster, and tells all blocks.
  __device__ void Merge() {
    row.Barrier();
    constexpr int kShare = kBins / kCluster;
    if (threadIdx.x < kShare) {
      const int bin = static_cast<int>(row.rank()) * kShare + static_cast<int>(threadIdx.x);
      uint64_t sum = 0;
      uint32_t count = 0;
      for (unsigned block = 0; block < kCluster; ++block) {
        const Histogram* theirs = row.Of(&row.s.histogram, block);
        count += theirs->counts[bin];
        if constexpr (Measure::kCounts) continue;
        sum += theirs->parts[0][bin] + (uint64_t{theirs->parts[1][bin]} << 15) +
               (uint64_t{theirs->parts[2][bin]} << 30);
      }
      if constexpr (Measure::kCounts) sum = count;
      for (unsigned block = 0; block < kCluster; ++block) {
        *row.Of(&row.s.merged[bin], block) = sum;
        *row.Of(&row.s.merged_counts[bin], block) = count;
      }
    }
    row.Barrier();
  }

  // The bin in which the sum, which is `above` before the first, reaches the target: shared.bin and
  // what belongs to it; -1 if none does.
  __device__ void FindBin(uint64_t above, uint64_t target) {
    Shared& s = row.s;
    constexpr int kEach = kBins / kThreads;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int first = static_cast<int>(threadIdx.x) * kEach;
    uint64_t mine = 0;
    for (int i = 0; i < kEach; ++i) mine += s.merged[first + i];
    uint64_t running = mine;
    for (int step = 1; step < 32; step *= 2) {
      const uint64_t other = __shfl_up_sync(~0u, running, step);
      if (lane >= step) running += other;
    }
    if (lane == 31) s.warps[0][warp] = running;
    if (threadIdx.x == 0) s.bin = -1;
    __syncthreads();
    uint64_t at = above + running - mine;
    for (int before = 0; before < warp; ++before) at += s.warps[0][before];
    for (int i = 0; i < kEach; ++i) {
      const uint64_t next = at + s.merged[first + i];
      if (at < target && target <= next) {
        s.bin = first + i;
        s.bin_above = at;
        s.bin_count = s.merged_counts[first + i];
      }
      at = next;
    }
    __syncthreads();
  }

  // The elements of a bin, at most kListMax, in the first block's list.
  __device__ void Gather(const Bins& bins, int bin) {
    uint32_t* const count = row.Of(&row.s.list_count, 0);
    Candidates* const list = row.Of(&row.s.list, 0);
    ForEachIn(bins, [&](float x, int32_t id) {
      if (bins.Of(x) != bin) return;
      const uint32_t at = atomicAdd(count, 1u);
      list->keys[at] = RankOf(x, id);
      list->measures[at] = measure(x);
    });
    row.Barrier();
  }

  // The first block ranks the list and tells all blocks the cut.
  __device__ Cut CutInList(uint64_t above, uint64_t target) {
    Shared& s = row.s;
    if (row.rank() == 0) {
      const uint32_t count = s.list_count;
      for (uint32_t i = threadIdx.x; i < count; i += kThreads) {
        const uint64_t key = s.list.keys[i];
        uint64_t at = above;
        for (uint32_t k = 0; k < count; ++k) at += s.list.keys[k] > key ? s.list.measures[k] : 0;
        if (at >= target || at + s.list.measures[i] < target) continue;
        for (unsigned block = 0; block < kCluster; ++block) {
          *row.Of(&s.cut, block) = {LogitOf(key), IdOf(key)};
        }
      }
    }
    row.Barrier();
    return s.cut;
  }

  // Of elements that all have one logit, those with the lowest ids.
  __device__ Cut CutInTies(uint32_t key, uint64_t above, uint64_t target) {
    const float x = ValueOf(key);
    const uint64_t each = measure(x);
    const uint64_t needed = (target - above + each - 1) / each;
    const int32_t id = row.FindInOrder(
        [&](float y, int32_t other) -> uint64_t { return y == x && Kept(cut, y, other) ? 1 : 0; },
        [&](uint64_t) { return needed; });
    return {x, id};
  }

  // Keys of the lowest and the highest element of a bin.
  __device__ Bins Narrow(const Bins& bins, int bin) {
    uint64_t ends[2] = {~uint64_t{0}, 0};
    ForEachIn(bins, [&](float x, int32_t) {
      if (bins.Of(x) != bin) return;
      ends[0] = min(ends[0], uint64_t{KeyOf(x)});
      ends[1] = max(ends[1], uint64_t{KeyOf(x)});
    });
    row.Reduce(ends, [](int i, uint64_t a, uint64_t b) { return i == 0 ? min(a, b) : max(a, b); });
    return Bins::ByKey(static_cast<uint32_t>(ends[0]), static_cast<uint32_t>(ends[1]));
  }

  // The new cut among kept elements from `low` to `high`; the old one if they do not reach the
  // target, which is at least 1. All threads of the cluster call it with the same values.
  __device__ Cut Find(float low, float high, uint64_t target) {
    uint64_t above = 0;
    Bins bins = Bins::ByValue(low, high);
    while (true) {
      Count(bins);
      Merge();
      FindBin(above, target);
      const int bin = row.s.bin;
      if (bin < 0) return cut;
      above = row.s.bin_above;
      if (row.s.bin_count <= kListMax) {
        Gather(bins, bin);
        return CutInList(above, target);
      }
      bins = Narrow(bins, bin);
      if (bins.low == bins.high) return CutInTies(bins.low, above, target);
    }
  }
};

template <typename Measure>
__device__ Cut
FindCut(Row& row, const Cut& cut, float low, float high, uint64_t target, Measure measure) {
  return Selection<Measure>{row, cut, measure}.Find(low, high, target);
}

}  // namespace baltoro::cuda::sampling
