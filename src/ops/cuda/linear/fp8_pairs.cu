// The large form of the FP8 products (fp8_bank.h): hundreds of rows of each matrix, bound by the
// matrix units and by the power that they may draw.
//
//   out[r, n] = sum over steps s of 128 columns of
//               (x[r, 128 s ..] . w[n, 128 s ..]) * x_scales[r, s] * w_scales[n / 8, s]
//   x [rows, k] and w [count][n, k] e4m3 codes in the order of product_layout.h, scales f32;
//   out bf16 or f32 [rows, n], or codes and scales of silu(gate) * up.
//
// A block of 384 threads takes 128 rows of x by kN rows of weights at a time (a piece), a share of
// all pieces. The rows of x are the first operand of wgmma, 64 a warpgroup; weights are its
// columns, kG at a time (a group). The sum of a group over the 128 columns of a step is scaled and
// added up in f32 (the instruction itself adds with fewer bits), while the matrix units have the
// other warpgroup's group or, where two groups' sums fit into registers (kDeep), the next one. Rows
// of whole eights of steps have a form of their own (fp8_pairs_eights.cuh).
//
// Of gate and up a block takes 128 rows each: a row's group of the middle is in four lanes, and is
// rounded to e4m3 where it is.
//
// One thread asks the copy engine for codes, and every eight steps for the scales of those steps:
// a consumer's own loads from global memory would come back behind the codes asked for before them
// and so take away most of the ring's depth. Where a row has fewer than eight steps a piece's
// scales lie together, and come as they are. Pairs of blocks fetch the weights for each other.
//
// One matrix of some hundred rows has too few pieces for the card: then two pairs of blocks, a
// cluster, have half of the columns each, and hand each other the sums of half of their rows from
// shared memory to shared memory. The first weights of one matrix come before the wait.
//
// Floor: 2 n k T operations over the card's FP8 rate.

#include <algorithm>

#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/launch/overlapped_launch.h"
#include "ops/cuda/launch/tensor_map.h"
#include "ops/cuda/layout/product_layout.h"
#include "ops/cuda/linear/fp8_pairs.h"
#include "ops/cuda/linear/fp8_pairs_device.cuh"
#include "ops/cuda/linear/fp8_pairs_eights.cuh"
#include "ops/cuda/linear/fp8_pairs_multiply.cuh"
#include "ops/cuda/linear/fp8_pairs_store.cuh"

namespace baltoro::cuda {
namespace {

using namespace fp8_pairs;

// Where the columns are in halves, each pair of blocks finishes the rows of one warpgroup: the sums
// of the others go to the block that has them, a thread's to the same thread there.
template <typename S>
__device__ __forceinline__ void SendSums(const PieceRing<S>& ring,
                                         int block,
                                         const float (&sums)[S::kN / 2]) {
  uint32_t to, arrived;
  asm("mapa.shared::cluster.u32 %0, %1, %2;"
      : "=r"(to)
      : "r"(ring.base + S::kReceived + threadIdx.x % 128 * 16), "r"(block));
  asm("mapa.shared::cluster.u32 %0, %1, %2;"
      : "=r"(arrived)
      : "r"(ring.base + S::kArrived), "r"(block));
#pragma unroll
  for (int i = 0; i < S::kN / 2; i += 4) {
    asm volatile(
        "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, "
        "[%5];" ::"r"(to + i / 4 * 2048),
        "f"(sums[i]), "f"(sums[i + 1]), "f"(sums[i + 2]), "f"(sums[i + 3]), "r"(arrived)
        : "memory");
  }
}

template <typename S>
__device__ __forceinline__ void AddReceived(const PieceRing<S>& ring, float (&sums)[S::kN / 2]) {
  WaitBounded(ring.base + S::kArrived, 0);
#pragma unroll
  for (int i = 0; i < S::kN / 2; i += 4) {
    const uint4 v = LoadShared4(ring.base + S::kReceived + threadIdx.x % 128 * 16 + i / 4 * 2048);
    sums[i] += __uint_as_float(v.x);
    sums[i + 1] += __uint_as_float(v.y);
    sums[i + 2] += __uint_as_float(v.z);
    sums[i + 3] += __uint_as_float(v.w);
  }
}

__device__ __forceinline__ void ArriveCluster() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}

template <typename S>
__device__ __forceinline__ void Consume(const TileParams& p, Order order, PieceRing<S> ring) {
  const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32, 0);
  const int lane = threadIdx.x % 32;
  const uint32_t staging = ring.base + S::kStaging + warp * kWarpStaging;
  float scaled[S::kN / 2];
  const int rank = order.pieces.rank, part = order.part;
  Group<S> group = {p, ring, warp / 4, part * 2 + 1 - rank, scaled};
  // A block without a tile of its own computes the other's and stores nothing.
  const auto rows_of = [&](const Order& of) {
    if (of.Done()) return WarpRows{};
    const int own = of.first + of.pieces.rank, last = of.pieces.tiles - 1;
    const MoeTile tile = LoadTileAhead(p, min(own, last));
    // Not by the count, which is not there yet.
    return WarpRows{tile.begin, tile.count, own > last ? kTileRows : warp * 16};
  };
  WarpRows rows = rows_of(order);
  [[maybe_unused]] RowOut out;
  if (!S::kGated) {
    out.LoadEntry(p, rows);
    out.LoadFactor(p);
  }
  while (!order.Done()) {
    const int strip = order.strip;
    const int2 halves = HalfRows<S>(p, strip);
    const ScalePlace place(order.steps, rows.begin, halves);
    WarpRows ahead;
    group.WaitFull();
    const bool band_there = S::kGated || halves.x + lane * 8 < p.n;
    const int steps = order.steps;
    const auto look_ahead = [&] {
      order.Next();
      ahead = rows_of(order);
    };
    if constexpr (S::kEights) {
      look_ahead();
      MultiplyEights<S>(EightWork<S>(group.ring, scaled, group.number, group.other),
                        steps / kScaleSteps, band_there);
    } else {
      MultiplyPiece<S>(group, steps, place, band_there, look_ahead);
    }
    // Before the results are stored, so that they are not waited for: nothing more is given back.
    if (p.early_weights && order.Done()) ArriveCluster();
    if constexpr (S::kSplit) {
      if (group.number != part) {
        SendSums<S>(ring, group.number * 2 + rank, scaled);
        return;
      }
      AddReceived<S>(ring, scaled);
    }
    if constexpr (S::kGated) {
      StoreMiddle(p, rows, strip, staging, scaled);
    } else {
      RowOut out_ahead;
      out_ahead.LoadEntry(p, ahead);
      if constexpr (S::kFloats) {
        StoreFloats<S::kN>(p, out, halves.x, staging, scaled);
      } else {
        StoreShares<S::kN>(p, out, halves.x, staging, scaled);
      }
      out_ahead.LoadFactor(p);
      out = out_ahead;
    }
    rows = ahead;
  }
}

template <typename S>
__global__ void __launch_bounds__(kThreads, 1) Fp8PairsKernel(const __grid_constant__ TileParams p,
                                                              const __grid_constant__ Maps maps,
                                                              PerStrips per_strips) {
  extern __shared__ char memory[];
  PieceRing<S> ring;
  ring.base = (SharedAddress(memory) + 1023) / 1024 * 1024;
  if (threadIdx.x == 0) {
    const uint32_t barriers = ring.base + S::kBarriers;
    for (int s = 0; s < S::kStages; ++s) {
      BarrierInit(barriers + 8 * s, 1);
      BarrierInit(barriers + 8 * (S::kStages + s), 2 * kConsumerWarps);
    }
    for (int s = 0; s < kScaleSlots; ++s) {
      BarrierInit(barriers + 8 * (2 * S::kStages + s), kConsumerWarps);
    }
    if constexpr (S::kSplit) BarrierInit(ring.base + S::kArrived, 1);
    hopper::FenceBarrierInit();
    if constexpr (S::kSplit) BarrierExpectBytes(ring.base + S::kArrived, S::kReceivedBytes);
    hopper::PrefetchMap(&maps.weights);
    hopper::PrefetchMap(&maps.x);
    hopper::PrefetchMap(&maps.bands);
    hopper::PrefetchMap(&maps.x_scales);
  }
  __syncthreads();
  ClusterBarrier();
  const auto wait = [] {
    WaitForEarlierKernels();
    AllowNextKernel();
  };
  if (!p.early_weights) wait();
  const Order order(p, per_strips, S::kSplit);
  // Registers move from the producer to the others; together they stay at 168 a thread.
  if (threadIdx.x >= kConsumers) {
    hopper::LowerRegisters<56>();
    if (threadIdx.x == kConsumers) Feed<S>(p, maps, order, ring, wait);
  } else {
    hopper::RaiseRegisters<224>();
    if (p.early_weights) wait();
    Consume<S>(p, order, ring);
  }
  __syncwarp();
  // Until the other blocks send no more.
  if (!p.early_weights || threadIdx.x >= kConsumers) ArriveCluster();
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

struct MapShape {
  int64_t row_bytes, rows, count, stride;
  cuuint32_t columns, box_rows;  // of a box
};

CUtensorMap MapOf(const void* data, const MapShape& shape, bool codes) {
  const int64_t size = codes ? 1 : 4;
  CUtensorMap map;
  const Status mapped = MakeTensorMap(
      TensorMapShape{
          .type = codes ? CU_TENSOR_MAP_DATA_TYPE_UINT8 : CU_TENSOR_MAP_DATA_TYPE_FLOAT32,
          .swizzle = codes ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_NONE,
          .sizes = {static_cast<cuuint64_t>(shape.row_bytes / size),
                    static_cast<cuuint64_t>(shape.rows), static_cast<cuuint64_t>(shape.count)},
          .strides = {static_cast<cuuint64_t>(shape.row_bytes),
                      static_cast<cuuint64_t>(shape.stride)},
          .box = {shape.columns, shape.box_rows, 1}},
      data, map);
  BT_CHECK(mapped.ok());
  return map;
}

template <typename S>
void Launch(const Fp8Product& product,
            const LaunchShape& shape,
            TileParams p,
            const LaunchStream& stream) {
  const PackedMatrix& w = product.w;
  const ProductLayout layout = LayoutOf(w.form, w.n, w.k);
  const int64_t tiles =
      product.tiles == nullptr ? (product.rows + kTileRows - 1) / kTileRows : product.tiles_max;
  p.strips = static_cast<int32_t>(S::kGated ? w.n / 256 : (w.n + S::kN - 1) / S::kN);
  const int64_t pairs = (tiles + 1) / 2 * p.strips, scale_bytes = layout.steps * 4;
  BT_CHECK(shape.shared == S::kShared && shape.cluster == S::kCluster);
  BT_CHECK(pairs * p.strips < int64_t{1} << 31);
  Maps maps;
  maps.weights =
      MapOf(w.data, {layout.row_bytes, w.n, w.count, w.stride_bytes, 128, S::kN / 2}, true);
  maps.x = MapOf(p.x, {w.k, product.rows, 1, product.rows * w.k, 128, kTileRows}, true);
  maps.bands = maps.x_scales = maps.x;
  if (layout.steps >= kScaleSteps) {
    maps.bands =
        MapOf(p.scales,
              {scale_bytes, (w.n + 7) / 8, w.count, w.stride_bytes, kScaleSteps, S::kBands}, false);
    maps.x_scales = MapOf(
        p.x_scales,
        {scale_bytes, product.rows, 1, product.rows * scale_bytes, kScaleSteps, kTileRows}, false);
  }
  const auto kernel = Fp8PairsKernel<S>;
  CheckCuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, S::kShared),
            "shared memory of fp8_pairs");
  p.early_weights = product.tiles == nullptr;
  const int64_t size = product.out_f32 ? 4 : 2;
  const Region out = RowsRegion(product.out, product.rows, product.out_stride * size, w.n * size);
  LaunchNote note = "fp8_pairs";
  if (product.gated) note = GatedNote(product);
  if (product.tiles == nullptr) note = WaitsFirst(note.kernel, out, InputOf(product));
  const Status launched =
      LaunchOverlapped(note, kernel, dim3(static_cast<unsigned>(shape.x)), dim3(kThreads),
                       S::kShared, stream, S::kCluster, p, maps, PerStrips::Of(p.strips));
  CheckLaunch(note.kernel);
  BT_CHECK(launched.ok());
}

template <bool kFloats>
void LaunchPlain(const Fp8Product& product,
                 const Fp8TilesPlan& plan,
                 const TileParams& p,
                 const LaunchStream& stream) {
  const LaunchShape& shape = plan.launch;
  switch (plan.piece) {
    case 64:
      return Launch<Shape<false, 64, 64, 2, kFloats>>(product, shape, p, stream);
    case 80:
      return Launch<Shape<false, 80, 80, 2, kFloats, true>>(product, shape, p, stream);
    case 128:
      return Launch<Shape<false, 128, 128, 2, kFloats>>(product, shape, p, stream);
    case 144:
      if (plan.halves) {
        return Launch<Shape<false, 144, 72, 2, kFloats, true>>(product, shape, p, stream);
      }
      return Launch<Shape<false, 144, 72, 2, kFloats>>(product, shape, p, stream);
    case 192:
      if (plan.eights) {
        return Launch<Shape<false, 192, 192, 1, kFloats, false, true>>(product, shape, p, stream);
      }
      return Launch<Shape<false, 192, 96, 2, kFloats>>(product, shape, p, stream);
    default:
      if (plan.eights) {
        return Launch<Shape<false, 256, 128, 1, kFloats, false, true>>(product, shape, p, stream);
      }
      if (plan.group == 64) {
        return Launch<Shape<false, 256, 64, 2, kFloats>>(product, shape, p, stream);
      }
      return Launch<Shape<false, 256, 128, 1, kFloats>>(product, shape, p, stream);
  }
}

}  // namespace

void LaunchFp8Pairs(const Fp8Product& product,
                    const Fp8TilesPlan& plan,
                    TileParams p,
                    const LaunchStream& stream) {
  p.pair = true;
  p.tile_rows = kTileRows;
  p.parts = 1;
  if (product.gated && plan.eights) {
    return Launch<Shape<true, 256, 128, 1, false, false, true>>(product, plan.launch, p, stream);
  }
  if (product.gated) return Launch<Shape<true, 256, 128, 1>>(product, plan.launch, p, stream);
  return product.out_f32 ? LaunchPlain<true>(product, plan, p, stream)
                         : LaunchPlain<false>(product, plan, p, stream);
}

}  // namespace baltoro::cuda
