// Which copy of each expert that a row chose it reads: a warp a row, a lane an expert. Floor: a
// launch, and three loads that follow each other.

#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/launch/regions.h"
#include "ops/cuda/rows/route_device.cuh"
#include "ops/expert_copies.h"

namespace baltoro::cuda {
namespace {

constexpr int kWarps = 4;

struct CopiesParams {
  int32_t* ids;                     // [rows, top_k]
  const int32_t* first;             // [experts + 1]
  const int32_t* slots;             // [slots of all ranks]
  unsigned long long *of, *chosen;  // rows of each slot and of each expert, or null
  int64_t rows;
  int top_k, experts;
};

__global__ void __launch_bounds__(32 * kWarps) ChooseCopiesKernel(const CopiesParams p) {
  hopper::WaitForPredecessors();
  hopper::LetDependentsLaunch();
  const int64_t row = int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if (row >= p.rows) return;
  int32_t* const at = p.ids + row * p.top_k + lane;
  const int32_t id = lane < p.top_k ? *at : -1;
  const bool known = id >= 0 && id < p.experts;
  int32_t first = 0;
  uint32_t count = 0;
  if (known) {
    first = p.first[id];
    count = static_cast<uint32_t>(p.first[id + 1] - first);
  }
  uint32_t hash = kCopyHashStart;
  for (int j = 0; j < p.top_k; ++j) hash = MixChosen(hash, __shfl_sync(~0u, id, j));
  if (lane >= p.top_k) return;
  const int32_t slot = known ? p.slots[first + ChosenCopy(hash, id, count)] : -1;
  *at = slot;
  if (known && p.of != nullptr) atomicAdd(p.of + slot, 1ull);
  if (known && p.chosen != nullptr) atomicAdd(p.chosen + id, 1ull);
}

}  // namespace

void ChooseCopies(const OpContext& ctx, TensorView ids, const ExpertCopies& copies) {
  BT_CHECK(ids.rank == 2 && ids.dtype == DType::kI32 && ids.contiguous());
  BT_CHECK(ids.dim(1) <= kRouteTopMax && kRouteTopMax <= 32 && copies.first.size() > 1);
  BT_CHECK(copies.rows.empty() || copies.rows.size() == copies.slots.size());
  BT_CHECK(copies.chosen.empty() || copies.chosen.size() + 1 == copies.first.size());
  if (ids.num_elements() == 0) return;
  const CopiesParams p = {.ids = ids.as<int32_t>(),
                          .first = copies.first.data(),
                          .slots = copies.slots.data(),
                          .of = reinterpret_cast<unsigned long long*>(copies.rows.data()),
                          .chosen = reinterpret_cast<unsigned long long*>(copies.chosen.data()),
                          .rows = ids.dim(0),
                          .top_k = static_cast<int>(ids.dim(1)),
                          .experts = static_cast<int>(copies.first.size()) - 1};
  const Region chosen = RegionOf(p.ids, ids.num_elements());
  const Region by_slot = RegionOf(copies.rows.data(), static_cast<int64_t>(copies.rows.size()));
  const Region by_expert =
      RegionOf(copies.chosen.data(), static_cast<int64_t>(copies.chosen.size()));
  const LaunchNote note =
      WaitsFirst("choice of copies", Regions(chosen, by_slot, by_expert), chosen);
  const dim3 grid(static_cast<unsigned>((p.rows + kWarps - 1) / kWarps));
  LaunchAhead(note, StreamOf(ctx), ChooseCopiesKernel, grid, 32 * kWarps, p);
}

}  // namespace baltoro::cuda
