// What lies between the router's product and the gate/up product of a bank of up to 256 tokens, in
// one launch: the first cluster chooses each token's experts, a warp a token, and sorts the entries
// by expert; the other blocks, if any (shared_at_choice.cu has their work where it can), have a row
// each, which they make digits of where gate/up takes digits, and of the shared experts' first
// product the input of their second one. As launches of their own each of these is 1 to 4 us, most
// of them the way there.
//
// Ids go to the shared memory of the first block, or of the first three (Sorters). These wait for
// them alone: the weights, which take as long as the choice, are made while they sort.

#include <type_traits>

#include "ops/cuda/experts/bank_regions.h"
#include "ops/cuda/experts/route/bank_route_device.cuh"
#include "ops/cuda/experts/streaming/int4_digits.cuh"
#include "ops/cuda/experts/streaming/int4_digits.h"
#include "ops/cuda/rows/fp8_round_device.cuh"
#include "ops/cuda/rows/norm_device.cuh"
#include "ops/cuda/rows/route_warp_device.cuh"

namespace baltoro::cuda {
namespace {

using namespace moe_route;

constexpr int kRanks = kPrepareRanks;  // blocks of a cluster
constexpr int kEach = kPrepareEach;    // entries of a thread
constexpr int kFewWarps = kPrepareFewWarps, kManyWarps = kPrepareManyWarps;
constexpr int kSlotsMax = kPrepareSlotsMax;
static_assert(kWarpExpertsMax == kPrepareExpertsMax);

struct PrepareParams {
  Params route;
  MoeChoice choice;
  RouterParams router;
  int32_t tokens, top_k;
  DigitRows digits;  // null: none
  MoeGated gated;
};

// Of a form with the sum, whose tables take longest, three blocks sort, and write a part of them
// each.
constexpr int Sorters(bool sums) {
  return sums ? 3 : 1;
}

template <int kWarps, bool kSums>
struct ChoosingShared {
  Tables<kSlotsMax> tables;
  std::conditional_t<kSums, Deals, int> deals;
  int32_t slots[kWarpExpertsMax];        // of the experts
  int32_t experts[kEach * 32 * kWarps];  // of the entries, from all blocks
  RouteWarpShared warps[kWarps];
  uint64_t arrived;  // a barrier that counts the entries' bytes
};

// By a block that sorts, all of whose entries are there.
template <int kWarps, bool kSums>
__device__ __forceinline__ void Sort(const PrepareParams& p,
                                     int rank,
                                     ChoosingShared<kWarps, kSums>& shared) {
  Tables<kSlotsMax>& t = shared.tables;
  const int i = threadIdx.x;
  int slots[kEach], among[kEach];
#pragma unroll
  for (int b = 0; b < kEach; ++b) {
    const int entry = i + b * 32 * kWarps;
    slots[b] = -1;
    if (entry < p.route.entries) slots[b] = shared.slots[shared.experts[entry]];
    among[b] = slots[b] >= 0 ? atomicAdd(&t.counts[slots[b]], 1) : 0;
  }
  __syncthreads();
  const int count = i < p.route.slots ? t.counts[i] : 0;
  if constexpr (kSums) {
    WriteTables(p.route, count, {.tiles = rank == 1, .starts = rank == 0, .units = rank == 2}, t,
                &shared.deals);
    if (rank > 0) return;
  } else {
    WriteTables(p.route, count, {}, t, nullptr);
  }
#pragma unroll
  for (int b = 0; b < kEach; ++b) {
    if (slots[b] >= 0) p.route.order[t.first_rows[slots[b]] + among[b]] = i + b * 32 * kWarps;
  }
}

// By the blocks of the first cluster. While there are enough of them those that sort do not choose.
template <int kWarps, bool kSums>
__device__ __forceinline__ void ChooseAndSort(const PrepareParams& p) {
  constexpr int kSorters = Sorters(kSums);
  __shared__ ChoosingShared<kWarps, kSums> shared;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, rank = static_cast<int>(blockIdx.x);
  const uint32_t arrived = SharedAddress(&shared.arrived);
  if (rank < kSorters && threadIdx.x == 0) {
    BarrierInit(arrived, 1);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    BarrierExpectBytes(arrived, static_cast<uint32_t>(p.route.entries) * 4);
  }
  __syncwarp();
  ClusterArriveRelaxed();  // all blocks are there when one writes to another
  const int first = p.tokens <= (kRanks - kSorters) * kWarps ? kSorters
                    : p.tokens <= (kRanks - 1) * kWarps      ? 1
                                                             : 0;
  const int token = rank < first ? p.tokens : rank - first + (kRanks - first) * warp;
  float biases[kWarpExperts];
#pragma unroll
  for (int j = 0; j < kWarpExperts; ++j) {
    const int expert = lane + 32 * j;
    const bool there = expert < p.choice.experts && p.choice.bias != nullptr && token < p.tokens;
    biases[j] = there ? __ldg(p.choice.bias + expert) : 0.0f;
  }
  if (rank < kSorters) {
    for (int i = threadIdx.x; i < p.route.slots; i += 32 * kWarps) shared.tables.counts[i] = 0;
    for (int e = threadIdx.x; e < p.choice.experts; e += 32 * kWarps) {
      const int slot = p.route.slot_of == nullptr ? e : __ldg(p.route.slot_of + e);
      shared.slots[e] = slot < p.route.slots ? slot : -1;
    }
    __syncthreads();
  }
  WaitForEarlierKernels();
  AllowNextKernel();  // it may read what is older than this kernel
  ClusterWait();
  WarpChoice choice = {32, 0};
  const float* const logits = p.choice.logits + token * p.choice.logits_stride;
  if (token < p.tokens) {
    choice = ChooseByWarp(p.router, logits, p.choice.bias, biases, shared.warps[warp]);
    if (choice.rank < p.top_k) {
      const int entry = token * p.top_k + choice.rank;
#pragma unroll
      for (int to = 0; to < kSorters; ++to) {
        SendToBlock(&shared.experts[entry], to, choice.expert, arrived);
      }
      p.choice.ids[entry] = choice.expert;
    }
  }
  if (rank < kSorters) {
    BarrierWait(arrived, 0);
    Sort<kWarps, kSums>(p, rank, shared);
  }
  const bool hands = first == 0;
  if (token < p.tokens && !(hands && rank < kSorters)) {
    WeighByWarp(p.router, logits, choice, p.choice.weights + token * p.top_k, shared.warps[warp]);
  }
  if (!hands || rank < kSorters) return;
  // Of those that sort and choose too: they end last. To choose once more is less than to be told.
  const int handed = rank - kSorters + (kRanks - kSorters) * warp;
  const int theirs = handed / kWarps + kRanks * (handed % kWarps);
  if (handed >= kSorters * kWarps || theirs >= p.tokens) return;
  const float* const their_logits = p.choice.logits + theirs * p.choice.logits_stride;
  choice = ChooseByWarp(p.router, their_logits, p.choice.bias, biases, shared.warps[warp]);
  WeighByWarp(p.router, their_logits, choice, p.choice.weights + theirs * p.top_k,
              shared.warps[warp]);
}

__device__ __forceinline__ void GateEight(const MoeGated& g, int row, int at, float (&gate)[8]) {
  const __nv_bfloat16* const from = g.x + row * g.x_stride + at;
  float up[8];
  LoadEight(from, 8, true, gate);
  LoadEight(from + g.width, 8, true, up);
#pragma unroll
  for (int i = 0; i < 8; ++i) gate[i] = GatedUp(gate[i], up[i]);
}

// As swiglu.cu, bit for bit, by `threads` threads.
__device__ __forceinline__ void GateRow(const MoeGated& g, int row, int thread, int threads) {
  for (int at = thread * 8; at / 256 * 256 < g.width; at += threads * 8) {
    float v[8] = {};
    if (at < g.width) GateEight(g, row, at, v);
    const int64_t to = int64_t{row} * g.width + at;
    if (g.codes == nullptr) {
      if (at < g.width) StoreEight(g.out + to, 8, true, v);
      continue;
    }
    float scale;
    RoundToBf16(v);
    const uint2 rounded = RoundEight(v, scale);
    if (at >= g.width) continue;
    *reinterpret_cast<uint2*>(g.codes + to) = rounded;
    if (at % 128 == 0) g.scales[to / 128] = scale;
  }
}

// Rows of a block that does not choose: a form with the sum has no digits made, and so a warp a
// row.
template <int kWarps, bool kSums>
constexpr int kRowsOfBlock = kSums ? kWarps : 1;

template <int kWarps, bool kSums>
__global__ void __launch_bounds__(32 * kWarps)
    PrepareKernel(const __grid_constant__ PrepareParams p) {
  if (blockIdx.x < kRanks) return ChooseAndSort<kWarps, kSums>(p);
  const int thread = static_cast<int>(threadIdx.x);
  const int first = (static_cast<int>(blockIdx.x) - kRanks) * kRowsOfBlock<kWarps, kSums>;
  WaitForEarlierKernels();
  AllowNextKernel();
  if constexpr (kSums) {
    const int row = first + thread / 32;
    if (row < p.tokens) GateRow(p.gated, row, thread % 32, 32);
  } else {
    __shared__ uint32_t largest_of[kWarps];
    if (first >= p.tokens) return;
    if (p.gated.x != nullptr) GateRow(p.gated, first, thread, 32 * kWarps);
    if (p.digits.x != nullptr) WriteDigits<kWarps>(p.digits, first, largest_of);
  }
}

template <int kWarps, bool kSums>
Status Launch(const PrepareParams& p, const LaunchStream& stream) {
  const bool rows = p.digits.x != nullptr || p.gated.x != nullptr;
  // Whole clusters.
  constexpr int kRows = kRanks * kRowsOfBlock<kWarps, kSums>;
  const int blocks = kRanks + (rows ? (p.tokens + kRows - 1) / kRows * kRanks : 0);
  Regions writes = SortWrites(p.route);
  writes.Add(RegionOf(p.choice.ids, p.route.entries));
  writes.Add(RegionOf(p.choice.weights, p.route.entries));
  writes.Add(MadeBy(p.gated, p.tokens));
  writes.Add(MadeBy(p.digits, p.tokens));
  const Region logits = RowsRegion(p.choice.logits, p.tokens, p.choice.logits_stride * 4,
                                   int64_t{p.choice.experts} * 4);
  const LaunchNote note = WaitsFirst(
      "MoE preparation", writes, {logits, InputOf(p.gated, p.tokens), InputOf(p.digits, p.tokens)});
  return LaunchOverlapped(note, PrepareKernel<kWarps, kSums>, dim3(static_cast<unsigned>(blocks)),
                          dim3(32 * kWarps), 0, stream, kRanks, p);
}

}  // namespace

Status LaunchMoePrepare(const moe_route::Params& route,
                        int32_t warps,
                        const MoeChoice& choice,
                        const DigitRows& digits,
                        const MoeGated& gated,
                        int32_t tokens,
                        const LaunchStream& stream) {
  const PrepareParams p = {.route = route,
                           .choice = choice,
                           .router = {.experts = choice.experts,
                                      .top_k = choice.top_k,
                                      .normalise = choice.normalise,
                                      .scaling = choice.scaling},
                           .tokens = tokens,
                           .top_k = choice.top_k,
                           .digits = digits,
                           .gated = gated};
  if (tokens > kRanks * warps) return InvalidArgument("MoE: too many tokens to prepare");
  // With the sum a thread is needed for each block of its kernel.
  if (route.units != nullptr) return Launch<kManyWarps, true>(p, stream);
  return warps == kFewWarps ? Launch<kFewWarps, false>(p, stream)
                            : Launch<kManyWarps, false>(p, stream);
}

}  // namespace baltoro::cuda
