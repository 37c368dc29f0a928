// The streaming form of the expert products: few rows an expert, bound by the bytes of the weights.
// Of more than 32 entries, with I = 256, int4_digits.cu and int4_digits_down.cu have it.
//
// Each block, a few per multiprocessor, takes an equal share of the weight strips (16 rows x all
// columns) of the chosen experts, in order. One warp feeds a ring in shared memory with bulk
// copies, far ahead; the others widen the 4-bit values in registers and multiply: weights are the
// 16 rows of the matrix instruction, tokens its 8 columns, activations come through the L1 cache.
//
// Two forms of the work. kWarpsK warps share one strip along its columns and add up at its end (the
// long strips of gate/up); two strips of one expert are in work together where there are two, so
// that activations are loaded once for both. Or kWarpsM warps take a strip each (the short ones of
// down).

#include "ops/cuda/experts/bank_internal.h"
#include "ops/cuda/experts/bank_regions.h"
#include "ops/cuda/experts/streaming/int4_digits.h"
#include "ops/cuda/experts/streaming/int4_streaming_device.cuh"
#include "ops/cuda/experts/streaming/int4_streaming_multiply.cuh"
#include "ops/cuda/layout/int4_layout.h"

namespace baltoro::cuda {
namespace {

// The rarer tiles of more than 8 rows. Not inlined, so that they do not take registers from the
// others.
template <typename F, int kN>
__device__ __noinline__ Progress<F> MultiplyLargeRun(const ProductParams& p,
                                                     UnitRun run,
                                                     Shared shared,
                                                     Progress<F> progress) {
  MultiplyRun<F, kN>(p, run, shared, progress);
  return progress;
}

template <typename F>
__global__ void __launch_bounds__(F::kThreads, kStreamingBlocks)
    StreamProductKernel(const __grid_constant__ ProductParams p) {
  extern __shared__ __align__(128) char memory[];
  Shared shared;
  shared.partials = reinterpret_cast<float4*>(memory + F::kStages * F::kStageBytes);
  shared.ring = SharedAddress(memory);
  shared.full = shared.ring + F::kStages * F::kStageBytes + F::kPartialBytes;
  shared.empty = shared.full + 8 * F::kStages;
  InitRing<F::kStages>(shared.full, shared.empty, F::kWarps);
  // The down product's weights depend on the routing alone, and the gate/up product let this kernel
  // start only once the routing was done: its ring is filled while gate/up ends.
  const bool feeder = threadIdx.x >= F::kWarps * 32;
  if (F::kGateUp || !feeder) WaitForEarlierKernels();
  AllowNextKernel();

  const int units_per_tile = (p.strips + F::kWarpsM - 1) / F::kWarpsM;
  const int first = FirstUnit(p, blockIdx.x, units_per_tile);
  const int last = FirstUnit(p, blockIdx.x + 1, units_per_tile);
  if (feeder) {
    FeedRing<F>(p, first, last, units_per_tile, shared.ring, shared.full, shared.empty);
    return;
  }
  Progress<F> progress;
  for (int unit = first; unit < last;) {
    const UnitRun run = NextRun(p, unit, last, units_per_tile);
    unit += run.last - run.first;
    if (run.tile.count == 0) continue;  // not held here
    if (run.tile.count <= 8) {
      MultiplyRun<F, 1>(p, run, shared, progress);
    } else if (run.tile.count <= 16) {
      progress = MultiplyLargeRun<F, 2>(p, run, shared, progress);
    } else {
      progress = MultiplyLargeRun<F, 4>(p, run, shared, progress);
    }
  }
}

template <typename F>
Status Launch(const LaunchNote& note,
              int32_t blocks,
              const ProductParams& params,
              const LaunchStream& stream) {
  return LaunchMoeStreaming(note, StreamProductKernel<F>, blocks, F::kThreads, F::kSharedBytes,
                            stream, params);
}

// The tiles, as the routing cut them or one an entry.
void SetTiles(const MoeShape& shape,
              const MoeInt4Args& args,
              const MoeWorkspace& space,
              const ExpertsPlan& plan,
              ProductParams& p) {
  p.starts = space.starts;
  p.tiles = space.tiles;
  p.order = space.order;
  p.top_k = shape.top_k;
  if (plan.kernel != ExpertsKernel::kInt4Entries) return;
  p.ids = args.ids;
  p.slot_of = args.slot_of;
  p.experts = args.experts;
  p.slots = shape.slots;
  p.entries = args.tokens * shape.top_k;
}

// What says which rows an expert takes.
Region EntriesOf(const Int4BankRegions& of, const ExpertsPlan& plan) {
  return plan.kernel == ExpertsKernel::kInt4Entries ? of.ids() : of.sorted();
}

}  // namespace

Status LaunchMoeStreamGateUp(const MoeShape& shape,
                             const MoeInt4Args& args,
                             const MoeWorkspace& space,
                             const ExpertsPlan& plan,
                             const LaunchStream& stream) {
  ProductParams p = {};
  p.weights = static_cast<const char*>(args.gate_up);
  p.slot_bytes = Int4PackedBytes(2 * shape.intermediate, shape.hidden);
  p.strips = 2 * shape.intermediate / 16;
  p.column_tiles = shape.hidden / 128;
  SetTiles(shape, args, space, plan, p);
  p.in = args.x;
  p.in_stride = args.x_stride;
  p.out = space.middle;
  p.out_stride = shape.intermediate;
  const Int4BankRegions of{shape, args, space};
  const LaunchNote note = WaitsFirst("MoE gate/up", of.middle(), {EntriesOf(of, plan), of.x()});
  return Launch<GateUpForm>(note, plan.blocks, p, stream);
}

Status LaunchMoeStreamDown(const MoeShape& shape,
                           const MoeInt4Args& args,
                           const MoeWorkspace& space,
                           const ExpertsPlan& plan,
                           const LaunchStream& stream) {
  ProductParams p = {};
  p.weights = static_cast<const char*>(args.down);
  p.slot_bytes = Int4PackedBytes(shape.hidden, shape.intermediate);
  p.strips = shape.hidden / 16;
  p.column_tiles = shape.intermediate / 128;
  SetTiles(shape, args, space, plan, p);
  p.in = space.middle;
  p.in_stride = shape.intermediate;
  p.out = space.shares;
  p.out_stride = shape.hidden;
  p.route_weights = args.weights;
  // Its weights are asked for at once; whether entries are sorted, or chosen, by then, the order of
  // launches checks.
  const Int4BankRegions of{shape, args, space};
  LaunchNote note = "MoE down";
  note.writes = of.shares();
  note.reads = {EntriesOf(of, plan), of.middle(), of.weights()};
  note.early_reads = EntriesOf(of, plan);
  return Launch<DownForm>(note, plan.blocks, p, stream);
}

}  // namespace baltoro::cuda
