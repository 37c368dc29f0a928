// FP8 products in tiles (fp8_bank.h): tens of rows a matrix and more.
//
// A block takes 256 rows of weights by up to 128 rows of x at a time, a share of all such pieces.
// Two warpgroups take twice 64 rows of weights each, the first operand of wgmma; the rows of x are
// its columns, so that a tile of 85 rows costs 96. One thread asks the copy engine for the weights,
// four warps copy rows of x wherever they lie, 16 bytes at a time. The sum of a stage, 128 columns,
// is scaled and added up in f32 (the instruction itself adds with fewer bits).
//
// Behind its first piece a block of experts takes the next one that nobody has: multiprocessors
// read memory at different rates, and with equal shares the slowest is waited for.
//
// Of gate and up a block takes 128 rows each: it has a whole group of the middle, and rounds it to
// e4m3 where it is.
//
// Floor: 2 n k T operations over the card's FP8 rate, or the bytes of the chosen matrices over the
// read bandwidth.

#include <algorithm>

#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/experts/fp8_bank.h"
#include "ops/cuda/launch/card.h"
#include "ops/cuda/launch/overlapped_launch.h"
#include "ops/cuda/launch/tensor_map.h"
#include "ops/cuda/layout/product_layout.h"
#include "ops/cuda/linear/fp8_pairs.h"
#include "ops/cuda/linear/fp8_tiles_device.cuh"
#include "ops/cuda/linear/fp8_tiles_store.cuh"
#include "ops/cuda/linear/tiles/tiles128_multiply.cuh"
#include "ops/cuda/ptx/group_multiply.cuh"

namespace baltoro::cuda {
namespace {

using namespace fp8_tiles;

// The four producer warps: eight threads a row of x, rows thread / 8 and every 16th from there.
template <bool kGated>
__device__ void Produce(
    const TileParams& p, const CUtensorMap* map, Pieces pieces, Dealt& dealt, Ring ring) {
  constexpr int kStep = kProducers / 8, kRows = kTileRows / kStep;
  const int thread = threadIdx.x - kConsumers;
  const int row = thread / 8, chunk = thread % 8;
  const uint64_t policy = p.once ? ReadOncePolicy() : NormalPolicy();
  const uint32_t to_row = row * 128 + ((chunk ^ (row & 7)) << 4);
  const uint32_t to_scale = (thread % 8 / 2 * (kScalePitch / 4) + thread / 8 * 2 + thread % 2) * 4;
  int number = 0;
  for (; !pieces.Done(); NextPiece(p, dealt, pieces, number)) {
    uint32_t taken = 0;
    const bool takes = p.dealt != nullptr && thread == 0;
    if (takes) taken = atomicAdd(p.dealt, 1u);
    const PairedTile paired = TileOf(p, pieces);
    const MoeTile tile = paired.tile;
    const int strip = pieces.Strip();
    const int low = strip * (kGated ? 128 : kWeightRows);  // first rows of the two boxes
    const int high = low + (kGated ? p.half : 128);
    const auto source = [&](int i) {
      const int at = tile.begin + min(i, tile.count - 1);
      return p.gather ? __ldcg(p.order + at) / p.top_k : at;
    };
    uint32_t from[kRows];  // in 16 bytes
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      from[i] = static_cast<uint32_t>(source(row + kStep * i) * (p.x_row_bytes / 16));
    }
    const float* row_scales = p.x_scales + static_cast<int64_t>(source(thread)) * p.steps;
    const int band_row = thread < 16 ? low + thread * 8 : high + (thread - 16) * 8;
    const float* band_scales = reinterpret_cast<const float*>(p.scales + tile.slot * p.slot_bytes) +
                               static_cast<int64_t>(min(band_row / 8, (p.n - 1) / 8)) * p.steps;
    const int last = pieces.Step(p, 1);
    int step = pieces.Step(p, 0);
    const char* columns = p.x + step * 128 + chunk * 16;
    for (; step < last; ++step, columns += 128) {
      BarrierWait(ring.Empty(), ring.parity ^ 1);
      if (thread == 0) {
        BarrierExpectBytes(ring.Full(), kWeightBytes);
        if (paired.shared) {
          CopyBoxToBoth(ring.Weights() + pieces.rank * kBoxBytes, map, ring.Full(), step * 128,
                        pieces.rank == 0 ? low : high, tile.slot, policy);
        } else {
          hopper::CopyBox(ring.Weights(), map, ring.Full(), step * 128, low, tile.slot, policy);
          hopper::CopyBox(ring.Weights() + kBoxBytes, map, ring.Full(), step * 128, high, tile.slot,
                          policy);
        }
      }
      const uint32_t to = ring.Input() + to_row;
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        if (row + kStep * i >= tile.count) break;
        Copy16(to + i * kStep * 128, columns + static_cast<uint64_t>(from[i]) * 16);
      }
      Copy4(ring.Scales() + to_scale, row_scales + step);
      if (thread < kWeightRows / 8) {
        Copy4(ring.Scales() + 4 * kScalePitch + thread * 4, band_scales + step);
      }
      asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(ring.Full())
                   : "memory");
      ring.Next();
    }
    if (takes) TellNext(dealt, number, static_cast<int>(gridDim.x + taken));
  }
}

__device__ __forceinline__ float2 LoadShared2f(uint32_t address) {
  const uint2 v = LoadShared2(address);
  return make_float2(__uint_as_float(v.x), __uint_as_float(v.y));
}

template <int kN>
__device__ __forceinline__ void Multiply(float (&sums)[kN / 2], uint64_t a, uint64_t b) {
  hopper::Pin(sums);
  GroupFence();
#pragma unroll
  for (int i = 0; i < 4; ++i) GroupMultiplyShared<kN>::E4m3(sums, a + 2 * i, b + 2 * i, i);
  GroupCommit();
}

// scaled += sums * the scales of the rows of x * those of the lane's two rows of weights.
template <int kN>
__device__ __forceinline__ void AddScaled(float (&scaled)[kN / 2],
                                          float (&sums)[kN / 2],
                                          uint32_t scales,
                                          float2 weights) {
  const uint32_t at = scales + threadIdx.x % 4 * kScalePitch;
  if (weights.x != weights.y) {  // hardly ever; by whole warps
#pragma unroll
    for (int i = 0; i < kN / 2; ++i) sums[i] *= i % 4 < 2 ? weights.x : weights.y;
    weights.x = 1;
  }
#pragma unroll
  for (int j = 0; j < kN / 16; ++j) {
    const uint4 x = LoadShared4(at + j * 16);
    const uint32_t words[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float scale = __uint_as_float(words[i]) * weights.x;
      const int to = 8 * j + i / 2 * 4 + i % 2;
      scaled[to] += sums[to] * scale;
      scaled[to + 2] += sums[to + 2] * scale;
    }
  }
}

// The stage may be filled again; in a pair, by both blocks.
__device__ __forceinline__ void Release(const TileParams& p, const Ring& ring, int lane) {
  if (lane != 0) return;
  BarrierArrive(ring.Empty());
  if (p.pair) ArriveAtOther(ring.Empty(), 1 - static_cast<int>(blockIdx.x) % 2);
}

// The same in f32, from the registers: eight neighbouring columns of a row at a time.
template <int kN>
__device__ __forceinline__ void StoreFloats(const TileParams& p,
                                            int part,
                                            int count,
                                            int first,
                                            const int32_t* rows,
                                            const float* factors,
                                            const float (&acc)[2][kN / 2]) {
  const int warp = threadIdx.x % 128 / 32, lane = threadIdx.x % 32;
  const int low = first + warp * 16 + lane / 4;
#pragma unroll
  for (int i = 0; i < kN / 2; ++i) {
    const int row = i / 4 * 8 + lane % 4 * 2 + i % 2;
    if (row >= count) continue;
    float* out = static_cast<float*>(p.out) +
                 (static_cast<int64_t>(part) * p.rows + rows[row]) * p.out_stride;
#pragma unroll
    for (int block = 0; block < 2; ++block) {
      const int column = low + block * 64 + (i % 4 < 2 ? 0 : 8);
      if (column < p.n) out[column] = acc[block][i] * factors[row];
    }
  }
}

template <bool kGated, int kN>
__device__ __forceinline__ void MultiplyPiece(const TileParams& p,
                                              const MoeTile& tile,
                                              const Pieces& pieces,
                                              int buffer,
                                              Shared& shared,
                                              uint32_t staging,
                                              Ring& ring) {
  const int group = threadIdx.x / 128, warp = threadIdx.x % 128 / 32, lane = threadIdx.x % 32;
  // The two blocks of 64 rows, in bytes of the stage's weights.
  const uint32_t first_block = group * (kGated ? kBoxBytes / 2 : kBoxBytes);
  constexpr uint32_t kNextBlock = kGated ? kBoxBytes : kBoxBytes / 2;
  const uint32_t bands = 4 * kScalePitch + (first_block / 1024 + warp * 2) * 4;
  float scaled[2][kN / 2];
#pragma unroll
  for (int i = 0; i < kN / 2; ++i) scaled[0][i] = scaled[1][i] = 0;
  const int steps = pieces.Step(p, 1) - pieces.Step(p, 0);
  for (int step = 0; step < steps; ++step) {
    BarrierWait(ring.Full(), ring.parity);
    hopper::FenceAsyncProxy();
    const uint64_t a = SwizzledOperand(ring.Weights() + first_block);
    const uint64_t b = SwizzledOperand(ring.Input());
    const uint32_t scales = ring.Scales();
    const float2 low = LoadShared2f(scales + bands);
    const float2 high = LoadShared2f(scales + bands + kNextBlock / 1024 * 4);
    if constexpr (kN <= 96) {
      float sums[2][kN / 2];
      Multiply<kN>(sums[0], a, b);
      Multiply<kN>(sums[1], a + kNextBlock / 16, b);
      GroupWait<1>();
      hopper::Pin(sums[0]);
      AddScaled<kN>(scaled[0], sums[0], scales, low);
      GroupWait<0>();
      hopper::Pin(sums[1]);
      Release(p, ring, lane);
      AddScaled<kN>(scaled[1], sums[1], scales, high);
    } else {
      float sums[kN / 2];
      Multiply<kN>(sums, a, b);
      GroupWait<0>();
      hopper::Pin(sums);
      AddScaled<kN>(scaled[0], sums, scales, low);
      Multiply<kN>(sums, a + kNextBlock / 16, b);
      GroupWait<0>();
      hopper::Pin(sums);
      Release(p, ring, lane);
      AddScaled<kN>(scaled[1], sums, scales, high);
    }
    ring.Next();
  }
  const int strip = pieces.Strip();
  if constexpr (kGated) {
    StoreMiddle<kN>(p, tile, strip, shared, staging, scaled[0], scaled[1]);
  } else if (p.out_f32) {
    StoreFloats<kN>(p, pieces.Part(), tile.count, strip * kWeightRows + group * 128,
                    shared.row[buffer], shared.factor[buffer], scaled);
  } else {
    StoreShares<kN>(p, tile.count, strip * kWeightRows + group * 128, shared.row[buffer],
                    shared.factor[buffer], staging, scaled);
  }
}

template <bool kGated>
__global__ void __launch_bounds__(kThreads, 1)
    Fp8TilesKernel(const __grid_constant__ TileParams p, const __grid_constant__ CUtensorMap map) {
  extern __shared__ char memory[];
  __shared__ Shared shared;
  Ring ring;
  ring.operands = (SharedAddress(memory) + 1023) / 1024 * 1024;
  const uint32_t staging = ring.operands + kStages * kStageBytes;
  ring.scales = staging + kStagingBytes;
  ring.full = ring.scales + kScaleStages * kScaleBytes;
  ring.empty = ring.full + 8 * kStages;
  if (threadIdx.x == 0) {
    for (int s = 0; s < kStages; ++s) {
      BarrierInit(ring.full + 8 * s, 1 + kProducers);
      BarrierInit(ring.empty + 8 * s, p.pair ? 2 * kConsumerWarps : kConsumerWarps);
    }
    for (int i = 0; i < kDealtSlots; ++i) BarrierInit(SharedAddress(&shared.dealt.told[i]), 1);
    hopper::FenceBarrierInit();
    hopper::PrefetchMap(&map);
  }
  __syncthreads();
  if (p.pair) ClusterBarrier();
  const auto wait = [] {
    WaitForEarlierKernels();
    AllowNextKernel();
  };
  // Where the routing is older than the kernel ahead, those that write are all that waits.
  if (!p.early_inputs) wait();
  // Registers move from the producers to the others; together they stay at 168 a thread.
  if (threadIdx.x >= kConsumers) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 56;");
    Produce<kGated>(p, &map, Pieces(p), shared.dealt, ring);
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 224;");
    if (p.early_inputs) wait();
    Pieces pieces(p);
    MoeTile tile = {};
    int index = -1, buffer = 0, number = 0;
    for (; !pieces.Done(); NextPiece(p, shared.dealt, pieces, number)) {
      if (pieces.First(p) != index) {
        index = pieces.First(p);
        const PairedTile paired = TileOf(p, pieces);
        tile = paired.tile;
        if (!kGated) {
          // Two buffers: nobody is more than one tile ahead of another.
          buffer ^= 1;
          if (threadIdx.x < kTileRows) {
            const int at = tile.begin + min(static_cast<int>(threadIdx.x), tile.count - 1);
            const int entry = p.order == nullptr ? at : __ldcg(p.order + at);
            shared.row[buffer][threadIdx.x] = p.scatter ? entry : at;
            shared.factor[buffer][threadIdx.x] =
                p.route_weights == nullptr ? 1.0f : __ldg(p.route_weights + entry);
          }
          hopper::NamedSync(1, kConsumers);
        }
        if (paired.again) tile.count = 0;  // nothing is stored
      }
      if (tile.count <= 16) {
        MultiplyPiece<kGated, 16>(p, tile, pieces, buffer, shared, staging, ring);
      } else if (tile.count <= 32) {
        MultiplyPiece<kGated, 32>(p, tile, pieces, buffer, shared, staging, ring);
      } else if (tile.count <= 64) {
        MultiplyPiece<kGated, 64>(p, tile, pieces, buffer, shared, staging, ring);
      } else if (tile.count <= 96) {
        MultiplyPiece<kGated, 96>(p, tile, pieces, buffer, shared, staging, ring);
      } else {
        MultiplyPiece<kGated, 128>(p, tile, pieces, buffer, shared, staging, ring);
      }
    }
  }
  if (p.pair) ClusterBarrier();  // until the other block sends no more
}

template <bool kGated>
void Launch(const LaunchNote& note,
            const TileParams& p,
            const CUtensorMap& map,
            const LaunchShape& shape,
            const LaunchStream& stream) {
  const auto kernel = Fp8TilesKernel<kGated>;
  CheckCuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes),
            "shared memory of fp8_tiles");
  const Status launched =
      LaunchOverlapped(note, kernel, dim3(static_cast<unsigned>(shape.x)), dim3(kThreads),
                       kSharedBytes, stream, static_cast<unsigned>(shape.cluster), p, map);
  CheckLaunch(note.kernel);
  BT_CHECK(launched.ok());
}

}  // namespace

namespace {

constexpr int kSumThreads = 128;

// The sum of the parts' results, four columns a thread. Grid: columns, rows.
__global__ void __launch_bounds__(kSumThreads) SumPartsKernel(const float* parts,
                                                              int count,
                                                              int64_t part_stride,
                                                              int n,
                                                              void* out,
                                                              int64_t stride,
                                                              bool f32) {
  AllowNextKernel();
  WaitForEarlierKernels();
  const int column = (blockIdx.x * kSumThreads + threadIdx.x) * 4;
  if (column >= n) return;
  const float* from = parts + static_cast<int64_t>(blockIdx.y) * n + column;
  float4 sum = {};
#pragma unroll 4
  for (int i = 0; i < count; ++i) {
    const float4 v = __ldcs(reinterpret_cast<const float4*>(from + i * part_stride));
    sum.x += v.x;
    sum.y += v.y;
    sum.z += v.z;
    sum.w += v.w;
  }
  const int64_t to = blockIdx.y * stride + column;
  if (f32) {
    *reinterpret_cast<float4*>(static_cast<float*>(out) + to) = sum;
  } else {
    *reinterpret_cast<uint2*>(static_cast<__nv_bfloat16*>(out) + to) =
        make_uint2(hopper::PackBf16(sum.x, sum.y), hopper::PackBf16(sum.z, sum.w));
  }
}

}  // namespace

Fp8TilesQuestion QuestionOf(const Fp8Product& product, bool has_scratch) {
  const auto whole = [](const void* data) { return AlignmentOf(data) % 16 == 0; };
  const DType type = product.gated ? DType::kF8E4M3 : product.out_f32 ? DType::kF32 : DType::kBf16;
  const int64_t out_bytes = product.out_stride * SizeOf(type);
  return {
      .w = FactsOf(product.w),
      .rows = product.rows,
      .grouped = product.tiles != nullptr,
      .tiles_max = product.tiles_max,
      .gated = product.gated,
      .gather = product.gather,
      .whole_x = product.x_row_bytes == product.w.k && whole(product.x) && whole(product.x_scales),
      .out = {.type = type,
              .rows = product.rows,
              .width = product.w.n,
              .row_bytes = out_bytes,
              .alignment = AlignmentOf(product.out, out_bytes)},
      .has_scratch = has_scratch};
}

void LaunchFp8Tiles(const Fp8Product& product, const LaunchStream& stream, Arena* scratch) {
  LaunchFp8Tiles(product, ChooseFp8Tiles(QuestionOf(product, scratch != nullptr), ThisCard()),
                 stream, scratch);
}

void LaunchFp8Tiles(const Fp8Product& product,
                    const Fp8TilesPlan& plan,
                    const LaunchStream& stream,
                    Arena* scratch) {
  const PackedMatrix& w = product.w;
  BT_CHECK(w.form == WeightForm::kFp8Block && w.n % (product.gated ? 256 : 8) == 0);
  const ProductLayout layout = LayoutOf(w.form, w.n, w.k);
  BT_CHECK(product.x_row_bytes >= layout.row_bytes && product.x_row_bytes % 16 == 0);
  TileParams p = {};
  p.scales = static_cast<const char*>(w.data) + layout.scales;
  p.slot_bytes = w.stride_bytes;
  p.n = static_cast<int32_t>(w.n);
  p.half = p.n / 2;
  p.steps = static_cast<int32_t>(layout.steps);
  p.strips = (p.n + kWeightRows - 1) / kWeightRows;
  p.x = static_cast<const char*>(product.x);
  p.x_row_bytes = product.x_row_bytes;
  p.x_scales = product.x_scales;
  p.out = product.out;
  p.out_scales = product.out_scales;
  p.out_stride = product.out_stride;
  p.tiles = product.tiles;
  p.num_tiles = product.num_tiles;
  p.order = product.order;
  p.top_k = product.top_k;
  p.gather = product.gather;
  p.scatter = product.scatter;
  p.route_weights = product.route_weights;
  p.rows = static_cast<int32_t>(product.rows);
  p.out_f32 = product.out_f32;
  if (plan.pairs) return LaunchFp8Pairs(product, plan, p, stream);
  if (plan.launch.x == 0) return;
  p.pair = plan.pair;
  p.tile_rows = plan.tile_rows;
  p.parts = plan.parts;
  if (plan.parts > 1) {
    p.out = scratch->AllocateArray<float>(static_cast<size_t>(plan.parts * product.rows * w.n));
    p.out_stride = w.n;
    p.out_f32 = true;
  }
  // Rows of x stay in the L2 then.
  p.once = product.tiles != nullptr && product.rows <= (p.pair ? 2 : 1) * kTileRows * w.count;
  CUtensorMap map;
  const Status mapped = MakeTensorMap(
      TensorMapShape{.type = CU_TENSOR_MAP_DATA_TYPE_UINT8,
                     .swizzle = CU_TENSOR_MAP_SWIZZLE_128B,
                     .sizes = {static_cast<cuuint64_t>(layout.row_bytes),
                               static_cast<cuuint64_t>(w.n), static_cast<cuuint64_t>(w.count)},
                     .strides = {static_cast<cuuint64_t>(layout.row_bytes),
                                 static_cast<cuuint64_t>(w.stride_bytes)},
                     .box = {128, 128, 1}},
      w.data, map);
  BT_CHECK(mapped.ok());
  if (!p.pair && p.parts == 1) p.dealt = product.dealt;
  LaunchNote note = "fp8_tiles";
  if (product.gated) {
    // Sorted entries and rows are read, and pieces of the work taken, before the wait where these
    // are complete.
    Regions old = InputOf(product);
    old.Add(SortedOf(product, 0));
    const Region dealt = RegionOf(p.dealt, 1);
    p.early_inputs = product.tiles != nullptr && stream.order->IsComplete(old) &&
                     stream.order->IsLeftAlone(dealt);
    note = GatedNote(product);
    note.writes.Add(dealt);
    note.reads.Add(dealt);
    if (p.early_inputs) {
      note.early_reads = old;
      note.early_writes = dealt;
    }
    Launch<true>(note, p, map, plan.launch, stream);
  } else {
    Launch<false>(note, p, map, plan.launch, stream);
  }
  if (p.parts == 1) return;
  const int columns = 4 * kSumThreads;
  const dim3 grid(static_cast<unsigned>((p.n + columns - 1) / columns),
                  static_cast<unsigned>(p.rows));
  const Status launched =
      LaunchOverlapped("sum of parts", SumPartsKernel, grid, dim3(kSumThreads), 0, stream, 1,
                       static_cast<const float*>(p.out), p.parts, product.rows * w.n, p.n,
                       product.out, product.out_stride, product.out_f32);
  CheckLaunch("sum of parts");
  BT_CHECK(launched.ok());
}

}  // namespace baltoro::cuda
