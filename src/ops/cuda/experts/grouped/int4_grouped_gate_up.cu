// The gate/up product of many rows, with SiLU * mul: bound by arithmetic.
//
// A block takes 256 rows of weights (16 strips) by up to 112 tokens of one expert at a time, a
// persistent share of all such pieces; two blocks take neighbouring pieces of the same tokens at
// the same time, so that the second finds the activations in the L2. Two warpgroups each widen
// twice 64 rows of 4-bit values into registers, the first operand of wgmma; tokens are the second
// operand, in shared memory. While the products of 64 rows and columns run, the next are widened,
// those of the next stage included. Of a middling number of rows tiles are smaller and a
// multiprocessor has two blocks, which do not wait for the same stages. Four warps fill a ring:
// weights by bulk copies, the expert's rows of activations 16 bytes a thread.
//
// Activations are read in "matrix order": within each 32 columns, column 8 t + 2 q + e lies at
// 8 q + 2 t + e, which is how the packed weights number them (int4_layout.h). The norm ahead
// writes x in that order too (Beside::ordered), or a kernel before brings it into it; the middle
// activations are written in it.

#include "ops/cuda/experts/bank_device.cuh"
#include "ops/cuda/experts/bank_internal.h"
#include "ops/cuda/experts/bank_regions.h"
#include "ops/cuda/experts/grouped/int4_grouped_gate_up_device.cuh"
#include "ops/cuda/experts/grouped/int4_grouped_gate_up_multiply.cuh"
#include "ops/cuda/layout/matrix_order.cuh"

namespace baltoro::cuda {
namespace {

template <typename Form>
__global__ void __launch_bounds__(kThreads, Form::kBlocks)
    GateUpKernel(const __grid_constant__ GateUpParams p) {
  extern __shared__ char memory[];
  constexpr int kStages = Form::kStages;
  Ring<Form> ring;
  ring.input = (SharedAddress(memory) + 1023) / 1024 * 1024;
  ring.weights = ring.input + kStages * kInputBytes<Form>;
  ring.full = ring.weights + kStages * kWeightBytes;
  ring.empty = ring.full + 8 * kStages;
  if (threadIdx.x == 0) {
    for (int s = 0; s < kStages; ++s) {
      BarrierInit(ring.full + 8 * s, 1 + kProducers);
      BarrierInit(ring.empty + 8 * s, kConsumerWarps);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();
  WaitForEarlierKernels();
  AllowNextKernel();
  const Share share(p);
  if (threadIdx.x >= 32 * kConsumerWarps) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(Form::kCopying));
    Produce(p, share, ring);
    return;
  }
  // Registers move from the producers to the others; together they stay at 168 or 80 a thread.
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(Form::kMultiplying));
  // The next piece is looked up before this one is multiplied.
  MoeTile next = {};
  int next_strip = 0;
  bool any = share.first < share.last && share.Get(p, share.first, &next, &next_strip);
  for (int unit = share.first; unit < share.last; ++unit) {
    const MoeTile tile = next;
    const int strip = next_strip;
    const bool has = any;
    any = unit + 1 < share.last && share.Get(p, unit + 1, &next, &next_strip);
    if (has) MultiplyTile<Form, Form::kStep>(p, tile, strip, ring);
  }
}

constexpr int kOrderThreads = 128;

// x in matrix order; a thread takes kOrderEights eights of columns.
constexpr int kOrderEights = 4;
__global__ void __launch_bounds__(kOrderThreads) MatrixOrderKernel(const __nv_bfloat16* x,
                                                                   int64_t x_stride,
                                                                   __nv_bfloat16* out,
                                                                   int32_t hidden) {
  const int first = (blockIdx.x * kOrderEights * kOrderThreads + threadIdx.x) * 8;
  const __nv_bfloat16* from = x + blockIdx.y * x_stride + first;
  __nv_bfloat16* to = out + static_cast<int64_t>(blockIdx.y) * hidden + first;
  AllowNextKernel();
  // All of it ahead of the wait, as the note of the launch says.
  uint4 eights[kOrderEights];
#pragma unroll
  for (int i = 0; i < kOrderEights; ++i) {
    const int at = i * kOrderThreads * 8;
    eights[i] = first + at < hidden ? *reinterpret_cast<const uint4*>(from + at) : uint4{};
  }
#pragma unroll
  for (int i = 0; i < kOrderEights; ++i) {
    const int at = i * kOrderThreads * 8;
    const uint4 ordered = InMatrixOrder(eights[i]);
    if (first + at < hidden) *reinterpret_cast<uint4*>(to + at) = ordered;
  }
  WaitForEarlierKernels();  // so that whoever waits for this kernel has waited for the routing
}

template <typename Form>
Status Launch(const LaunchNote& note,
              const GateUpParams& p,
              int32_t teams,
              const LaunchStream& stream) {
  const cudaError_t error = cudaFuncSetAttribute(
      GateUpKernel<Form>, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes<Form>);
  if (error != cudaSuccess) {
    return Status(Code::kInternal, std::string("MoE gate/up: ") + cudaGetErrorString(error));
  }
  return LaunchOverlapped(note, GateUpKernel<Form>, dim3(teams * kGroupedTeam * Form::kBlocks),
                          dim3(kThreads), kSharedBytes<Form>, stream, 1, p);
}

}  // namespace

Status LaunchMoeGroupedGateUp(const MoeShape& shape,
                              const MoeInt4Args& args,
                              const MoeWorkspace& space,
                              const ExpertsPlan& plan,
                              int32_t tile_rows,
                              const LaunchStream& stream) {
  if (plan.makes_ordered != (args.ordered == nullptr)) {
    return InvalidArgument("MoE: x in matrix order is not given as planned");
  }
  const Int4BankRegions of{shape, args, space};
  if (plan.makes_ordered) {
    const int columns = kOrderThreads * kOrderEights * 8;
    LaunchNote note = "MoE activations in matrix order";
    note.early_reads = of.x();
    note.early_writes = of.ordered();
    note.reads = note.early_reads;
    note.writes = note.early_writes;
    BT_RETURN_IF_ERROR(LaunchOverlapped(
        note, MatrixOrderKernel, dim3((shape.hidden + columns - 1) / columns, args.tokens),
        dim3(kOrderThreads), 0, stream, 1, args.x, args.x_stride, space.ordered, shape.hidden));
  }
  GateUpParams p = {};
  BT_RETURN_IF_ERROR(MakeWeightMap(shape, args.gate_up, p.map));
  p.strips = 2 * shape.intermediate / 16;
  p.column_tiles = shape.hidden / 128;
  // With the sum tiles with most rows come first.
  p.starts = plan.kernel == ExpertsKernel::kInt4GroupedSum ? nullptr : space.starts;
  p.num_tiles = space.num_tiles;
  p.tiles = space.tiles;
  p.order = space.order;
  p.in = args.ordered != nullptr ? args.ordered : space.ordered;
  p.in_stride = shape.hidden;
  p.out = space.middle;
  p.out_stride = shape.intermediate;
  p.top_k = shape.top_k;
  const LaunchNote note =
      WaitsFirst("MoE gate/up, grouped", of.middle(), {of.sorted(), of.ordered()});
  return tile_rows == kMiddlingTileRows ? Launch<Middling>(note, p, plan.blocks, stream)
                                        : Launch<Many>(note, p, plan.blocks, stream);
}

}  // namespace baltoro::cuda
