#pragma once

// Entries (token and expert) sorted by expert, and the tables that the bank's products read: what
// is done once the rows of each expert are counted (bank_sort.cu, bank_prepare.cu).
//
// All of it is the latency of a few steps, one after the other, by one block: so scans and tables
// are the work of the warps that have a slot a thread alone, nothing is divided that need not be,
// and what does not depend on each other is given to different blocks of a cluster.

#include "ops/cuda/experts/bank_device.cuh"
#include "ops/cuda/experts/route/bank_prepare.h"
#include "ops/cuda/launch/launch_stream.h"
#include "ops/cuda/launch/regions.h"

namespace baltoro::cuda::moe_route {

inline constexpr int kThreadsMax = kSortThreadsMax;

struct Params {
  const int32_t* ids = nullptr;
  const int32_t* slot_of = nullptr;
  int32_t experts = 0, slots = 0, entries = 0, blocks = 0;
  // Not of the streaming form in bf16: the next launch starts once this one has waited, and tiles
  // have kGroupedTileRows rows where `tile_rows` is not given.
  bool grouped = false;
  bool digits = false;     // of the streaming form by digits
  bool dealt = false;      // work is dealt out while it is done (int4_digits_work.cuh)
  int32_t own_parts = 16;  // then sixteenths of the cost in the blocks' own shares
  int32_t tile_rows = 0;   // rows of a tile at most; 0: as the form has it
  int32_t* num_tiles = nullptr;
  MoeTile* tiles = nullptr;
  MoeStart* starts = nullptr;
  int32_t* order = nullptr;
  int32_t* ranks = nullptr;  // [T k] scratch
  int32_t* units = nullptr;  // this and all below: null but with the sum
  int32_t* row_begin = nullptr;
  int32_t* block_of = nullptr;
  uint32_t* counters = nullptr;           // and where work is dealt out
  int32_t sum_blocks = 0, max_units = 0;  // blocks of the down product, units that one has room for
};

// What the launch that sorts writes. Where it says no rows of a tile, no more tiles come of the
// fewest that any form has.
inline Regions SortWrites(const Params& p) {
  const int64_t entries = p.entries, slots = p.slots;
  const int64_t tiles = (slots < entries ? slots : entries) +
                        entries / (p.tile_rows > 0 ? p.tile_rows : kDigitTileRows);
  return {RegionOf(p.num_tiles, 1),
          RegionOf(p.tiles, tiles),
          RegionOf(p.starts, p.blocks + 1),
          RegionOf(p.order, entries),
          RegionOf(p.ranks, entries),
          RegionOf(p.units, slots + 1),
          RegionOf(p.row_begin, slots + 1),
          RegionOf(p.block_of, slots + 1),
          RegionOf(p.counters, p.units != nullptr ? 2 * kMaxSumChunks : 2)};
}

// Of shared memory, kSlots at most.
template <int kSlots>
struct Tables {
  uint64_t warp_sums[2][32];  // of two scans
  int32_t counts[kSlots];
  int32_t first_rows[kSlots];
  int32_t first_tiles[kSlots];
  int32_t costs[kSlots + 1];  // before each slot
};

// With the sum besides.
struct Deals {
  uint64_t warp_sums[2][32];
  int32_t weights[kThreadsMax];  // of each key, the largest first; then before it
  int32_t loads[kMaxBlocks];
  int32_t most;
};

// Inclusive sum over the first `warps` warps, for them; by all threads. `value` may hold several
// counts side by side. `warp_sums` is used once.
__device__ inline uint64_t Scan(uint64_t value, int warps, uint64_t* warp_sums) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  if (warp < warps) {
#pragma unroll
    for (int d = 1; d < 32; d *= 2) {
      const uint64_t other = __shfl_up_sync(~0u, value, d);
      if (lane >= d) value += other;
    }
    if (lane == 31) warp_sums[warp] = value;
  }
  __syncthreads();
  if (warp < warps) {
#pragma unroll 4
    for (int w = 0; w < warp; ++w) value += warp_sums[w];
  }
  return value;
}

// Passes over the weights of an expert with `count` rows, rows of each but the last, and what one
// of `rows` rows costs (in quarters of the least, by digits in eighths; measured,
// docs/kernels/moe.md).
__device__ inline int Passes(const Params& p, int count) {
  const int most = p.tile_rows > 0 ? p.tile_rows
                   : p.grouped     ? kGroupedTileRows
                                   : kStreamingTileRows;
  if (count <= most) return count > 0 ? 1 : 0;
  return static_cast<int>(static_cast<uint32_t>(count + most - 1) / static_cast<uint32_t>(most));
}

__device__ inline int RowsOfPass(const Params& p, int count, int passes) {
  if (!p.grouped && p.tile_rows == 0) return kStreamingTileRows;
  if (passes <= 1) return max(8, (count + 7) / 8 * 8);
  const auto each = static_cast<uint32_t>(8 * passes);
  return max(8, static_cast<int>((static_cast<uint32_t>(count) + each - 1) / each) * 8);
}

__device__ inline int PassCost(const Params& p, int rows) {
  if (p.digits) return rows <= 4 ? 8 : rows <= 8 ? 11 : rows <= 12 ? 16 : 22;
  if (p.tile_rows > 0) return rows <= 8 ? 4 : rows <= 16 ? 6 : 12;
  if (p.grouped) return max(4, (rows + 15) / 16);
  return rows <= 8 ? 4 : rows <= 16 ? 7 : 12;
}

// Where block i's share of the tiles begins: the 65536ths of the whole cost that the blocks before
// it have, rounded down. Costs are below 2^22, blocks at most 2^9.
template <int kSlots>
__device__ __forceinline__ MoeStart StartOf(const Params& p, const Tables<kSlots>& t, int i) {
  const auto total = static_cast<uint32_t>(t.costs[p.slots] * p.own_parts) / 16;
  if (total == 0) return {0, 0};
  const auto blocks = static_cast<uint32_t>(p.blocks);
  const uint32_t whole = total * static_cast<uint32_t>(i), target = whole / blocks;
  const uint32_t fraction = ((whole - target * blocks) << 16) / blocks;
  int slot = 0;  // the last one that begins at or before the target
  for (int step = p.slots > 512 ? 512 : p.slots > 256 ? 256 : 128; step > 0; step /= 2) {
    if (slot + step < p.slots && t.costs[slot + step] <= static_cast<int>(target)) slot += step;
  }
  const int rows = t.counts[slot], passes = Passes(p, rows);
  const int its_rows = RowsOfPass(p, rows, passes), full_cost = PassCost(p, its_rows);
  uint32_t within = target - static_cast<uint32_t>(t.costs[slot]);
  int k = 0;
  if (passes > 1) {
    k = min(static_cast<int>(within / static_cast<uint32_t>(full_cost)), passes - 1);
    within -= static_cast<uint32_t>(k * full_cost);
  }
  const int tile_cost = PassCost(p, min(its_rows, rows - k * its_rows));
  const uint32_t part = (within << 16 | fraction) / static_cast<uint32_t>(tile_cost);
  return {t.first_tiles[slot] + k, static_cast<int32_t>(part)};
}

// The sum of the weights of threads with a larger key, and of some with the same: those before this
// one in an order that falls with the key and varies among equals. By all threads, after a barrier
// since `d.weights` was used.
__device__ inline int WeightBefore(int key, int weight, Deals& d, uint64_t* warp_sums) {
  const int i = threadIdx.x, last = static_cast<int>(blockDim.x) - 1;
  const int at = last - min(key, last);
  d.weights[i] = 0;
  __syncthreads();
  const int among_equals = weight > 0 ? atomicAdd(&d.weights[at], weight) : 0;
  __syncthreads();
  const int own = d.weights[i];
  const uint64_t sum =
      Scan(static_cast<uint64_t>(own), static_cast<int>(blockDim.x) / 32, warp_sums);
  d.weights[i] = static_cast<int>(sum) - own;
  __syncthreads();
  return d.weights[at] + among_equals;
}

// Whole experts to the blocks of the down product with the sum: the largest first, one each, the
// rest from the last block to the first. Where a block would get more than it has room for, or much
// more than others, experts are cut instead. By all threads; `units` of this thread's slot.
__device__ inline void DealExperts(const Params& p, int count, int units, int all, Deals& d) {
  const int i = threadIdx.x;
  if (i < p.sum_blocks) d.loads[i] = 0;
  if (i == 0) d.most = 0;
  const int larger = WeightBefore(count, i < p.slots ? 1 : 0, d, d.warp_sums[1]);
  if (i < p.slots) {
    const auto blocks = static_cast<uint32_t>(p.sum_blocks);
    const int at = static_cast<int>(static_cast<uint32_t>(larger) % blocks);
    const int block = larger < p.sum_blocks ? at : p.sum_blocks - 1 - at;
    p.block_of[i] = block;
    if (units > 0) atomicAdd(&d.loads[block], units);
  }
  __syncthreads();
  if (i < p.sum_blocks) atomicMax(&d.most, d.loads[i]);
  __syncthreads();
  if (i == 0) {
    p.block_of[p.slots] =
        d.most <= p.max_units && d.most * 2 * p.sum_blocks <= 3 * all + 4 * p.sum_blocks;
  }
}

// Which of the tables a block writes.
struct Share {
  bool tiles = true, starts = true, units = true;
};

// By all threads, of which `count` is the rows of each one's slot: t.first_rows, for all threads
// on return, and the tables in memory. The block has a thread a slot at least. `d`: with the
// sum.
template <int kSlots>
__device__ __forceinline__ void WriteTables(
    const Params& p, int count, const Share& share, Tables<kSlots>& t, Deals* d) {
  const int i = threadIdx.x, warps = (p.slots + 31) / 32;
  const int tiles = Passes(p, count), rows_of_pass = RowsOfPass(p, count, tiles);
  int cost = 0;
  if (tiles > 0) {
    cost = PassCost(p, count - (tiles - 1) * rows_of_pass);
    if (tiles > 1) cost += (tiles - 1) * PassCost(p, rows_of_pass);
  }
  // Counts side by side: rows in 22 bits, tiles in 20, cost in 22.
  const uint64_t own = static_cast<uint64_t>(count) | static_cast<uint64_t>(tiles) << 22 |
                       static_cast<uint64_t>(cost) << 42;
  const uint64_t before = Scan(own, warps, t.warp_sums[0]) - own;
  const int first_row = static_cast<int>(before & 0x3fffff);
  const int first_tile = static_cast<int>(before >> 22 & 0xfffff);
  const bool last = i == p.slots - 1;
  if (i < p.slots) {
    t.counts[i] = count;
    t.first_rows[i] = first_row;
    t.first_tiles[i] = first_tile;
    t.costs[i] = static_cast<int>(before >> 42);
    if (last) t.costs[p.slots] = t.costs[i] + cost;
  }
  __syncthreads();
  if (share.starts) {
    for (int b = i; b < p.blocks; b += static_cast<int>(blockDim.x)) p.starts[b] = StartOf(p, t, b);
    if (p.dealt) {
      // Where what the blocks have in common begins, of which nothing is taken.
      if (last) p.starts[p.blocks] = StartOf(p, t, p.blocks);
      if (i < 2) p.counters[i] = 0;
    } else if (last) {
      p.starts[p.blocks] = {first_tile + tiles, 0};
    }
  }
  if (share.tiles) {
    int tile_at = first_tile;
    if (d != nullptr) tile_at = WeightBefore(rows_of_pass, tiles, *d, d->warp_sums[0]);
    for (int k = 0; k < tiles; ++k) {
      const int at = k * rows_of_pass;
      reinterpret_cast<int4*>(p.tiles)[tile_at + k] =
          make_int4(i, first_row + at, min(rows_of_pass, count - at), 0);
    }
    if (last) *p.num_tiles = first_tile + tiles;
  }
  if (d == nullptr || !share.units) return;
  __syncthreads();  // of d->weights
  const int units = (count + 15) / 16;
  const int end_unit = static_cast<int>(Scan(static_cast<uint64_t>(units), warps, t.warp_sums[1]));
  if (i < p.slots) {
    p.units[i] = end_unit - units;
    p.row_begin[i] = first_row;
  }
  if (last) {
    p.units[p.slots] = end_unit;
    p.row_begin[p.slots] = first_row + count;
  }
  for (int c = i; c < 2 * kMaxSumChunks; c += static_cast<int>(blockDim.x)) p.counters[c] = 0;
  const uint64_t* const sums = t.warp_sums[1];
  uint64_t all = 0;
  for (int w = 0; w < warps; ++w) all += sums[w];
  DealExperts(p, count, units, static_cast<int>(all), *d);
}

// ---- clusters

__device__ inline uint32_t ClusterRank() {
  uint32_t rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

__device__ inline void ClusterArrive() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
// Nothing that others read was written.
__device__ inline void ClusterArriveRelaxed() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
__device__ inline void ClusterWait() {
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// The word at `word` of this block's shared memory, in the shared memory of block `rank`.
__device__ inline int LoadFromBlock(const int32_t* word, uint32_t rank) {
  const uint32_t address = SharedAddress(word);
  int value;
  asm volatile(
      "{\n"
      ".reg .u32 there;\n"
      "mapa.shared::cluster.u32 there, %1, %2;\n"
      "ld.shared::cluster.s32 %0, [there];\n"
      "}\n"
      : "=r"(value)
      : "r"(address), "r"(rank)
      : "memory");
  return value;
}

// To that place in block `rank`, whose `barrier` counts the four bytes once they are there: a
// barrier of the cluster would wait for whatever else was written to memory.
__device__ inline void SendToBlock(int32_t* word, uint32_t rank, int32_t value, uint32_t barrier) {
  asm volatile(
      "{\n"
      ".reg .u32 there, its_barrier;\n"
      "mapa.shared::cluster.u32 there, %0, %2;\n"
      "mapa.shared::cluster.u32 its_barrier, %3, %2;\n"
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.s32 [there], %1, [its_barrier];\n"
      "}\n" ::"r"(SharedAddress(word)),
      "r"(value), "r"(rank), "r"(barrier)
      : "memory");
}

}  // namespace baltoro::cuda::moe_route

namespace baltoro::cuda {

Status LaunchMoeSort(const moe_route::Params& params,
                     const ExpertsSort& sort,
                     const LaunchStream& stream);
// By blocks of `warps` (ExpertsPlan::prepare_warps). Without `digits.x` no digits are made, without
// `gated.x` nothing is gated.
Status LaunchMoePrepare(const moe_route::Params& route,
                        int32_t warps,
                        const MoeChoice& choice,
                        const DigitRows& digits,
                        const MoeGated& gated,
                        int32_t tokens,
                        const LaunchStream& stream);

}  // namespace baltoro::cuda
