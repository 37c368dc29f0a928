#pragma once

// How the products by digits (int4_digits.cu, int4_digits_down.cu) and those of few FP8 rows
// (fp8_streaming.cu) are dealt out among blocks.
//
// Multiprocessors do not get equal shares of the memory's rate, and what rows cost beside their
// weights is known roughly: with shares that are fixed beforehand the first block ended when two
// thirds of the time were over. So a block has most of what it will do as a share of its own, which
// needs no asking, and takes the rest in small pieces from what all blocks have in common, larger
// ones first. Whoever computes a strip, its sums are the same.
//
// The warp that feeds the ring knows what comes next; the others read it from a queue in shared
// memory, where they find the rows' entries too.

#include <cstddef>

#include "ops/cuda/experts/streaming/int4_streaming_shared.cuh"

namespace baltoro::cuda {

struct WorkParams {
  const MoeStart* starts = nullptr;
  const MoeTile* tiles = nullptr;
  const int32_t* num_tiles = nullptr;
  const int32_t* order = nullptr;
  const float* weights = nullptr;  // of entries, told of where given
  uint32_t* taken = nullptr;       // pieces of what is common, so far
  int32_t units = 0;               // of a tile
  int32_t piece = 0;               // units of the smallest
  int32_t align = 0;               // where own shares begin, a power of two
};

// What is in common: pieces of four times `piece` units, then of twice, then of `piece`.
struct CommonWork {
  int begin, end, piece, fours, twos, pieces;

  __device__ __forceinline__ CommonWork(int first, int last, int each, int blocks)
      : begin(first), end(last), piece(each) {
    int left = end - begin;
    fours = max(0, left - 3 * blocks * piece) / (4 * piece);
    left -= fours * 4 * piece;
    twos = max(0, left - blocks * piece) / (2 * piece);
    left -= twos * 2 * piece;
    pieces = fours + twos + (left + piece - 1) / piece;
  }

  // Units first .. last - 1 of piece `index`.
  __device__ __forceinline__ void Find(int index, int& first, int& last) const {
    const int ones = index - fours - twos;
    if (index < fours) {
      first = begin + index * 4 * piece;
      last = first + 4 * piece;
    } else if (ones < 0) {
      first = begin + (fours * 4 + (index - fours) * 2) * piece;
      last = first + 2 * piece;
    } else {
      first = begin + (fours * 4 + twos * 2 + ones) * piece;
      last = min(end, first + piece);
    }
  }
};

// A run as the warps that multiply see it.
struct WorkRun {
  int begin, count;  // rows of the tile; none: no run is left
  int first, last;   // units
  int slot;
};

// A run's place is not written again before all have read it: the ring has no more than eight
// stages, and each run one at least.
inline constexpr int kQueue = 16;

// kRows: of a tile at most.
template <int kRows>
struct WorkQueueOf {
  int4 runs[kQueue];
  uint64_t full[kQueue];
  int32_t entries[kQueue][kRows];  // those beyond the count repeat the first
  float weights[kQueue][kRows];
};
using WorkQueue = WorkQueueOf<kDigitTileRows>;

// Where they are in a queue at `queue` in shared memory.
__device__ __forceinline__ uint32_t RunAt(uint32_t queue, uint32_t at) {
  return queue + offsetof(WorkQueue, runs) + at * sizeof(int4);
}
template <int kRows = kDigitTileRows>
__device__ __forceinline__ uint32_t EntryAt(uint32_t queue, uint32_t at, int row) {
  return queue + offsetof(WorkQueueOf<kRows>, entries) + (at * kRows + row) * sizeof(int32_t);
}
template <int kRows = kDigitTileRows>
__device__ __forceinline__ uint32_t WeightAt(uint32_t queue, uint32_t at, int row) {
  return queue + offsetof(WorkQueueOf<kRows>, weights) + (at * kRows + row) * sizeof(float);
}
__device__ __forceinline__ uint32_t FullAt(uint32_t queue, uint32_t at) {
  return queue + offsetof(WorkQueue, full) + at * sizeof(uint64_t);
}

__device__ __forceinline__ void InitQueue(uint32_t queue) {
  if (threadIdx.x == 0) {
    for (int i = 0; i < kQueue; ++i) BarrierInit(FullAt(queue, i), 1);
  }
}

// By the warps that multiply; `index` counts runs.
__device__ __forceinline__ WorkRun ReadRun(uint32_t queue, uint32_t index) {
  const uint32_t at = index % kQueue;
  BarrierWait(FullAt(queue, at), index / kQueue & 1);
  const uint4 raw = LoadShared4(RunAt(queue, at));
  return {static_cast<int>(raw.x), static_cast<int>(raw.y & 255), static_cast<int>(raw.z),
          static_cast<int>(raw.w), static_cast<int>(raw.y >> 8)};
}

template <int kRows = kDigitTileRows>
__device__ __forceinline__ int ReadEntry(uint32_t queue, uint32_t index, int row) {
  int entry;
  asm volatile("ld.shared.s32 %0, [%1];"
               : "=r"(entry)
               : "r"(EntryAt<kRows>(queue, index % kQueue, row)));
  return entry;
}

__device__ __forceinline__ float ReadWeight(uint32_t queue, uint32_t index, int row) {
  float weight;
  asm volatile("ld.shared.f32 %0, [%1];"
               : "=f"(weight)
               : "r"(WeightAt(queue, index % kQueue, row)));
  return weight;
}

// Of the warp that feeds the ring, by all its lanes.
template <int kRows>
class WorkFeederOf {
 public:
  __device__ __forceinline__ WorkFeederOf(const WorkParams& work, uint32_t queue)
      : p_(work), queue_(queue) {
    const int block = static_cast<int>(blockIdx.x);
    const auto start = [&](int of) {
      return MoeFirstUnit(work.starts, of, work.units) & -work.align;
    };
    common_ = start(static_cast<int>(gridDim.x));
    end_ = __ldcg(work.num_tiles) * work.units;
    unit_ = start(block);
    last_ = start(block + 1);
    if (unit_ >= last_) Ask();
  }

  // The next run, if there is one.
  __device__ __forceinline__ bool Next(UnitRun& run) {
    if (unit_ >= last_) {
      const int index = __shfl_sync(~0u, asked_, 0);
      const CommonWork common(common_, end_, p_.piece, static_cast<int>(gridDim.x));
      if (index >= common.pieces) return false;
      common.Find(index, unit_, last_);
    }
    const int tile = unit_ / p_.units, first = unit_ - tile * p_.units;
    const int4 raw = __ldcg(reinterpret_cast<const int4*>(p_.tiles) + tile);
    run = {{raw.x, raw.y, raw.z, 0}, first, min(p_.units, first + last_ - unit_)};
    unit_ += run.last - run.first;
    const int lane = threadIdx.x % 32;
    if (lane < kRows) {
      entry_ = __ldcg(p_.order + run.tile.begin + (lane < run.tile.count ? lane : 0));
    }
    return true;
  }

  // Tells the others of it, once its first weights are asked for.
  __device__ __forceinline__ void Tell(const UnitRun& run) {
    const int lane = threadIdx.x % 32;
    const uint32_t at = told_++ % kQueue;
    if (lane < kRows) {
      asm volatile("st.shared.s32 [%0], %1;" ::"r"(EntryAt<kRows>(queue_, at, lane)), "r"(entry_)
                   : "memory");
      if (p_.weights != nullptr) {
        const float weight = run.tile.count > 0 ? __ldcg(p_.weights + entry_) : 0.0f;
        asm volatile("st.shared.f32 [%0], %1;" ::"r"(WeightAt<kRows>(queue_, at, lane)), "f"(weight)
                     : "memory");
      }
    }
    if (lane == 0) {
      asm volatile("st.shared.v4.s32 [%0], {%1, %2, %3, %4};" ::"r"(RunAt(queue_, at)),
                   "r"(run.tile.begin), "r"(run.tile.count | run.tile.slot << 8), "r"(run.first),
                   "r"(run.last)
                   : "memory");
    }
    __syncwarp();
    if (lane == 0) BarrierArrive(FullAt(queue_, at));
  }

  // That there is none.
  __device__ __forceinline__ void TellEnd() {
    entry_ = 0;
    Tell({{0, 0, 0, 0}, 0, 0});
  }

  // Where few stages of a run are left to ask for, the next piece is asked for.
  __device__ __forceinline__ void AskAhead() {
    if (unit_ >= last_) Ask();
  }

 private:
  __device__ __forceinline__ void Ask() {
    if (threadIdx.x % 32 == 0) asked_ = static_cast<int>(atomicAdd(p_.taken, 1u));
  }

  const WorkParams& p_;
  uint32_t queue_;
  int common_, end_;  // units of what is in common
  int unit_, last_;
  int asked_ = 0, entry_ = 0;
  uint32_t told_ = 0;
};
using WorkFeeder = WorkFeederOf<kDigitTileRows>;

}  // namespace baltoro::cuda
