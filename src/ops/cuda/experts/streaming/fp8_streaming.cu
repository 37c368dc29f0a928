// The streaming form of the FP8 products (fp8_bank.h): few rows a matrix, bound by the bytes of the
// weights.
//
// The chosen matrices are dealt out among two blocks a multiprocessor (int4_digits_work.cuh). One
// warp asks the copy engine for weights, far ahead, 16 KB a stage; eight others each multiply 16
// rows by 128 columns of a stage: weights are the 16 rows of the matrix instruction, tokens its 8
// columns, both widened from e4m3 to f16, which is exact. Sums of 128 columns are scaled and added
// in f32. A unit of the work is a strip (gate and up) or 128 rows (down).
//
// Gate and up: a stage is 8 rows of each by 1,024 columns; the warps share a strip's columns and
// add up at its end. Down: a stage is 128 rows by 128 columns, a strip a warp.
//
// Floor: the bytes of the chosen matrices over the card's read bandwidth.

#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/experts/fp8_bank.h"
#include "ops/cuda/experts/streaming/fp8_streaming_device.cuh"
#include "ops/cuda/experts/streaming/fp8_streaming_multiply.cuh"
#include "ops/cuda/launch/tensor_map.h"
#include "ops/cuda/layout/product_layout.h"

namespace baltoro::cuda {
namespace {

// The rarer tiles of more than 8 rows. Not inlined, so that they do not take registers from the
// others.
template <bool kGated, int kN>
__device__ __noinline__ Progress<kGated> MultiplyLargeRun(const StreamParams& p,
                                                          WorkRun run,
                                                          float4* partials,
                                                          Progress<kGated> progress) {
  MultiplyRun<kGated, kN>(p, run, partials, progress);
  return progress;
}

template <bool kGated>
__global__ void __launch_bounds__(kThreads, kStreamingBlocks)
    Fp8StreamKernel(const __grid_constant__ StreamParams p,
                    const __grid_constant__ CUtensorMap map) {
  extern __shared__ char memory[];
  Progress<kGated> progress;
  Ring<kGated>& ring = progress.ring;
  ring.memory = (SharedAddress(memory) + 1023) / 1024 * 1024;
  InitQueue(ring.RunQueue());
  if (threadIdx.x == 0) {
    for (int s = 0; s < kStages<kGated>; ++s) {
      BarrierInit(ring.Full(s), 1);
      BarrierInit(ring.Empty(s), kWarps);
    }
    hopper::FenceBarrierInit();
    hopper::PrefetchMap(&map);
  }
  __syncthreads();
  // Weights depend on the routing alone. The kernels before down, and before gate/up where that is
  // said, let it start only once that was done: its ring is filled while they end.
  const bool feeder = threadIdx.x >= kWarps * 32;
  const bool waits = !feeder || (kGated && !p.early_inputs);
  if (waits) WaitForEarlierKernels();
  if (waits || !kGated) AllowNextKernel();
  if (feeder) {
    FeedRing<kGated>(p, &map, ring);
    return;
  }
  auto* sums = reinterpret_cast<float4*>(memory + (ring.memory - SharedAddress(memory)) +
                                         Ring<kGated>::kPartialsAt);
  for (;; ++progress.index) {
    const WorkRun run = ReadRun(ring.RunQueue(), progress.index);
    if (run.count == 0) return;
    if (run.count <= 8) {
      MultiplyRun<kGated, 1>(p, run, sums, progress);
    } else if (run.count <= 16) {
      progress = MultiplyLargeRun<kGated, 2>(p, run, sums, progress);
    } else {
      progress = MultiplyLargeRun<kGated, 4>(p, run, sums, progress);
    }
  }
}

template <bool kGated>
void Launch(const LaunchNote& note,
            const StreamParams& p,
            const CUtensorMap& map,
            int32_t blocks,
            const LaunchStream& stream) {
  const auto kernel = Fp8StreamKernel<kGated>;
  CheckCuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 kSharedBytes<kGated>),
            "shared memory of the streaming FP8 product");
  const Status launched = LaunchOverlapped(note, kernel, dim3(static_cast<unsigned>(blocks)),
                                           dim3(kThreads), kSharedBytes<kGated>, stream, 1, p, map);
  CheckLaunch(note.kernel);
  BT_CHECK(launched.ok());
}

}  // namespace

void LaunchFp8Stream(const Fp8Product& product, int32_t blocks, const LaunchStream& stream) {
  const PackedMatrix& w = product.w;
  BT_CHECK(w.form == WeightForm::kFp8Block && w.k % 128 == 0 &&
           w.n % (product.gated ? 16 : 2) == 0 && product.out_stride % 2 == 0);
  const ProductLayout layout = LayoutOf(w.form, w.n, w.k);
  StreamParams p = {};
  p.scales = static_cast<const char*>(w.data) + layout.scales;
  p.slot_bytes = w.stride_bytes;
  p.n = static_cast<int32_t>(w.n);
  p.half = p.n / 2;
  p.steps = static_cast<int32_t>(layout.steps);
  p.stages = product.gated ? (p.steps + kWarps - 1) / kWarps : p.steps;
  p.work = {.starts = product.starts,
            .tiles = product.tiles,
            .num_tiles = product.num_tiles,
            .order = product.order,
            .taken = product.taken,
            .units = product.gated ? p.half / 8 : (p.n + 16 * kWarps - 1) / (16 * kWarps),
            .piece = product.gated ? kFp8StreamDeal.gate_up_piece : kFp8StreamDeal.down_piece,
            .align = 1};
  p.x = static_cast<const char*>(product.x);
  p.x_row_bytes = product.x_row_bytes;
  p.x_scales = product.x_scales;
  p.out = product.out;
  p.out_stride = product.out_stride;
  p.top_k = product.top_k;
  p.gather = product.gather;
  p.scatter = product.scatter;
  p.route_weights = product.route_weights;
  p.x_f32 = product.x_f32;
  BT_CHECK(!p.x_f32 || (!product.gated && p.steps <= kFp8RoundedSteps));
  CUtensorMap map;
  const auto rows = static_cast<cuuint32_t>(product.gated ? 8 : 16 * kWarps);
  const auto columns = static_cast<cuuint32_t>(product.gated ? kWarps : 1);
  const Status mapped =
      MakeTensorMap(TensorMapOf<4>{.type = CU_TENSOR_MAP_DATA_TYPE_UINT8,
                                   .swizzle = CU_TENSOR_MAP_SWIZZLE_128B,
                                   .sizes = {128, static_cast<cuuint64_t>(w.n),
                                             static_cast<cuuint64_t>(layout.steps),
                                             static_cast<cuuint64_t>(w.count)},
                                   .strides = {static_cast<cuuint64_t>(layout.row_bytes), 128,
                                               static_cast<cuuint64_t>(w.stride_bytes)},
                                   .box = {128, rows, columns, 1}},
                    w.data, map);
  BT_CHECK(mapped.ok());
  // Feeders take pieces of sorted entries and ask for their weights before the wait: of gate/up
  // where that is complete, of down always.
  const Regions sorted = SortedOf(product, blocks + 1);
  const Region taken = RegionOf(product.taken, 1);
  if (!product.gated) {
    LaunchNote note = "FP8 down, streaming";
    note.early_reads = sorted;
    note.early_writes = taken;
    return Launch<false>(note, p, map, blocks, stream);
  }
  p.early_inputs = stream.order->IsComplete(sorted) && stream.order->IsLeftAlone(taken);
  const Region out = RegionOf(static_cast<const float*>(product.out), product.rows * p.half);
  LaunchNote note = WaitsFirst("FP8 gate/up, streaming", {out, taken}, InputOf(product));
  note.reads.Add(sorted);
  note.reads.Add(taken);
  if (p.early_inputs) {
    note.early_reads = sorted;
    note.early_writes = taken;
  }
  Launch<true>(note, p, map, blocks, stream);
}

}  // namespace baltoro::cuda
