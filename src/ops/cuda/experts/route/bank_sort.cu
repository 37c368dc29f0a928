// Entries sorted by expert, by counting, where the experts are chosen already: by one block, or of
// many entries by a cluster, whose blocks have a share of the entries each and all know all counts.
// The order of rows of one expert varies from run to run; no result depends on it.

#include <algorithm>

#include "ops/cuda/experts/route/bank_route_device.cuh"

namespace baltoro::cuda {
namespace {

using namespace moe_route;

constexpr int kRanks = kSortBlocks;  // of the cluster
constexpr int kEach = kSortEach;     // entries of a thread that stay in its registers

// The slots of every blockDim-th entry from `entry` on. Nothing branches around a load, so that all
// are under way together.
__device__ __forceinline__ void LoadSlots(const Params& p,
                                          int entry,
                                          int end,
                                          int (&slots)[kEach]) {
#pragma unroll
  for (int b = 0; b < kEach; ++b) {
    slots[b] = __ldcg(p.ids + min(entry + b * static_cast<int>(blockDim.x), p.entries - 1));
  }
  bool known[kEach];
#pragma unroll
  for (int b = 0; b < kEach; ++b) {
    known[b] = entry + b * static_cast<int>(blockDim.x) < end &&
               static_cast<uint32_t>(slots[b]) < static_cast<uint32_t>(p.experts);
  }
  if (p.slot_of != nullptr) {
#pragma unroll
    for (int b = 0; b < kEach; ++b) slots[b] = __ldg(p.slot_of + (known[b] ? slots[b] : 0));
  }
#pragma unroll
  for (int b = 0; b < kEach; ++b) slots[b] = known[b] && slots[b] < p.slots ? slots[b] : -1;
}

__global__ void __launch_bounds__(kThreadsMax, 1) SortKernel(const __grid_constant__ Params p) {
  __shared__ Tables<kThreadsMax> t;
  __shared__ Deals deals;
  __shared__ int32_t own[kThreadsMax];     // of this block's share; read by the other blocks
  __shared__ int32_t firsts[kThreadsMax];  // where this block's rows of each slot begin
  const int i = threadIdx.x, threads = static_cast<int>(blockDim.x);
  const int rank = static_cast<int>(ClusterRank()), ranks = static_cast<int>(gridDim.x);
  const int share = (p.entries + ranks - 1) / ranks;
  const int begin = rank * share, end = min(p.entries, begin + share);
  if (!p.grouped) AllowNextKernel();
  own[i] = 0;
  __syncthreads();
  WaitForEarlierKernels();
  if (p.grouped) AllowNextKernel();  // the next one reads x, which is there now
  const bool kept = share <= kEach * threads;
  int slots[kEach], among[kEach];
  if (kept) {
    LoadSlots(p, begin + i, end, slots);
#pragma unroll
    for (int b = 0; b < kEach; ++b) among[b] = slots[b] >= 0 ? atomicAdd(&own[slots[b]], 1) : 0;
  }
  for (int e = begin + i; !kept && e < end; e += kEach * threads) {
    LoadSlots(p, e, end, slots);
#pragma unroll
    for (int b = 0; b < kEach; ++b) {
      if (slots[b] >= 0) p.ranks[e + b * threads] = atomicAdd(&own[slots[b]], 1);
    }
  }
  __syncthreads();
  int count = 0, before = 0;
  if (ranks == 1) {
    count = own[i];
  } else {
    ClusterArrive();
    ClusterWait();
    int theirs[kRanks];
#pragma unroll
    for (int r = 0; r < kRanks; ++r) theirs[r] = i < p.slots ? LoadFromBlock(&own[i], r) : 0;
#pragma unroll
    for (int r = 0; r < kRanks; ++r) {
      if (r == rank) before = count;
      count += theirs[r];
    }
    ClusterArriveRelaxed();
  }
  const bool sums = p.units != nullptr;
  WriteTables(p, count,
              {.tiles = rank == (sums ? 1 % ranks : 0),
               .starts = rank == 0,
               .units = rank == (sums ? 2 % ranks : 0)},
              t, sums ? &deals : nullptr);
  if (i < p.slots) firsts[i] = t.first_rows[i] + before;
  __syncthreads();
  if (kept) {
#pragma unroll
    for (int b = 0; b < kEach; ++b) {
      if (slots[b] >= 0) p.order[firsts[slots[b]] + among[b]] = begin + i + b * threads;
    }
  }
  for (int e = begin + i; !kept && e < end; e += kEach * threads) {
    LoadSlots(p, e, end, slots);
#pragma unroll
    for (int b = 0; b < kEach; ++b) {
      const int entry = e + b * threads;
      if (slots[b] >= 0) p.order[firsts[slots[b]] + p.ranks[entry]] = entry;
    }
  }
  if (ranks > 1) ClusterWait();  // counts stay until all have read them
}

}  // namespace

Status LaunchMoeSort(const moe_route::Params& params,
                     const ExpertsSort& sort,
                     const LaunchStream& stream) {
  const auto blocks = static_cast<unsigned>(sort.blocks),
             threads = static_cast<unsigned>(sort.threads);
  if (sort.threads < params.slots || (sort.blocks != 1 && sort.blocks != kRanks)) {
    return InvalidArgument("MoE: entries are not sorted by so many threads");
  }
  LaunchNote note = "MoE sort";
  if (params.grouped) note.next = NextStarts::kAfterWait;
  note.writes = SortWrites(params);
  note.reads = RegionOf(params.ids, params.entries);
  return LaunchOverlapped(note, SortKernel, dim3(blocks), dim3(threads), 0, stream, blocks, params);
}

}  // namespace baltoro::cuda
