// Products of 9 to 64 rows with one FP8 matrix: bound by the bytes of the weights and by reading
// the rows once for each strip of them.
//
// A cluster of up to eight blocks has a strip of kN rows of weights, each block a part of the
// columns, so that all multiprocessors have work and the rows are read by few of them. The rows of
// x are the first operand of wgmma, all 64 of them, the weights its columns; the copy engine
// fetches boxes of both, weights before the wait for the kernel ahead. The sums of the parts are
// copied from one block's shared memory to another's, each block adding up its share of the rows in
// the order of the parts: no results go through memory in f32, and no block waits for a barrier of
// the cluster that it does not have to.
//
// Floor: the bytes of the matrix over the card's read bandwidth.

#include <algorithm>
#include <atomic>

#include "base/check.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/fp8_middle.h"
#include "ops/cuda/hopper.cuh"
#include "ops/cuda/moe_device.cuh"
#include "ops/cuda/moe_group_multiply.cuh"
#include "ops/cuda/product_layout.h"
#include "ops/cuda/product_wide_multiply.cuh"
#include "ops/cuda/tensor_map.h"

namespace baltoro::cuda {
namespace {

constexpr int kRowsMax = 64;
constexpr int kRowsMin = 9;
constexpr int kConsumers = 128;
constexpr int kThreads = kConsumers + 32;
constexpr int kStages = 5;
constexpr int kStepsMax = 16;  // of a block
constexpr int kPartsMax = 8;
constexpr int kInputBytes = kRowsMax * 128;
constexpr int kMultiprocessors = 132;  // of the cards this is tuned for

template <int kN>
constexpr int kStageBytes = kInputBytes + kN * 128;
// Of a row of sums; the rows that a warp stores together use all banks.
template <int kN>
constexpr int kPitch = (kN + 8) * 4;

struct Params {
  const float* scales;    // of the weights, [n / 8, steps]
  const float* x_scales;  // [rows, steps]
  int32_t n, steps, rows, parts;
  int32_t slice;      // rows that a block adds up
  int32_t box_bytes;  // of the rows of x
  void* out;
  int64_t out_stride;
  bool bf16;
};

template <int kN>
struct Shared {
  alignas(16) float weights[kStepsMax][kN / 8];
  float x[kStepsMax][kRowsMax];
  alignas(8) uint64_t full[kStages];
  uint64_t empty[kStages];
  uint64_t received;
};

__device__ __forceinline__ void ArriveCluster() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
// Where nothing that was written before matters to the others.
__device__ __forceinline__ void ArriveClusterRelaxed() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
__device__ __forceinline__ void WaitCluster() {
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

__device__ __forceinline__ uint32_t AddressAt(uint32_t address, int rank) {
  uint32_t there;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
  return there;
}

// From this block's shared memory to another's, told to a barrier there.
__device__ __forceinline__ void CopyToBlock(uint32_t to,
                                            uint32_t from,
                                            uint32_t bytes,
                                            uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], %2, "
      "[%3];" ::"r"(to),
      "r"(from), "r"(bytes), "r"(barrier)
      : "memory");
}

// One lane: all boxes of the block's steps, in turn.
template <int kN>
__device__ __forceinline__ void Feed(const Params& p,
                                     const CUtensorMap* map_w,
                                     const CUtensorMap* map_x,
                                     Shared<kN>& shared,
                                     uint32_t ring,
                                     int strip,
                                     int first,
                                     int count) {
  const auto ask = [&](int i) {
    const uint32_t full = SharedAddress(&shared.full[i % kStages]);
    BarrierExpectBytes(full, p.box_bytes + kN * 128);
    hopper::CopyBox(ring + i % kStages * kStageBytes<kN> + kInputBytes, map_w, full,
                    (first + i) * 128, strip * kN, 0);
  };
  const auto ask_rows = [&](int i) {
    hopper::CopyBox(ring + i % kStages * kStageBytes<kN>, map_x,
                    SharedAddress(&shared.full[i % kStages]), (first + i) * 128, 0, 0);
  };
  const int ahead = min(kStages, count);
  for (int i = 0; i < ahead; ++i) ask(i);
  WaitForEarlierKernels();
  for (int i = 0; i < ahead; ++i) ask_rows(i);
  for (int i = ahead; i < count; ++i) {
    BarrierWait(SharedAddress(&shared.empty[i % kStages]), i / kStages + 1 & 1);
    ask(i);
    ask_rows(i);
  }
}

template <int kN>
__device__ __forceinline__ void Multiply(float (&sums)[kN / 2], uint32_t stage) {
  const uint64_t a = SwizzledOperand(stage), b = SwizzledOperand(stage + kInputBytes);
  hopper::Pin(sums);
  GroupFence();
#pragma unroll
  for (int i = 0; i < 4; ++i) GroupMultiplyShared<kN>::E4m3(sums, a + 2 * i, b + 2 * i, i);
  GroupCommit();
}

// scaled += sums * the scales of their rows and of the bands of weights.
template <int kN>
__device__ __forceinline__ void AddScaled(float (&scaled)[kN / 2],
                                          float (&sums)[kN / 2],
                                          const Shared<kN>& shared,
                                          int step) {
  hopper::Pin(sums);
  const int row = static_cast<int>(threadIdx.x) / 32 * 16 + static_cast<int>(threadIdx.x) % 32 / 4;
  const float first = shared.x[step][row], second = shared.x[step][row + 8];
#pragma unroll
  for (int j = 0; j < kN / 8; ++j) {
    const float weight = shared.weights[step][j];
    const float low = first * weight, high = second * weight;
    scaled[4 * j] = fmaf(sums[4 * j], low, scaled[4 * j]);
    scaled[4 * j + 1] = fmaf(sums[4 * j + 1], low, scaled[4 * j + 1]);
    scaled[4 * j + 2] = fmaf(sums[4 * j + 2], high, scaled[4 * j + 2]);
    scaled[4 * j + 3] = fmaf(sums[4 * j + 3], high, scaled[4 * j + 3]);
  }
}

template <int kN>
__device__ __forceinline__ void MultiplySteps(float (&scaled)[kN / 2],
                                              Shared<kN>& shared,
                                              uint32_t ring,
                                              int count) {
  float sums[2][kN / 2];
#pragma unroll
  for (int i = 0; i < kN / 2; ++i) scaled[i] = 0;
  const auto begin = [&](int step, float(&next)[kN / 2]) {
    BarrierWait(SharedAddress(&shared.full[step % kStages]), step / kStages & 1);
    Multiply<kN>(next, ring + step % kStages * kStageBytes<kN>);
  };
  const auto finish = [&](int step, float(&here)[kN / 2]) {
    if (threadIdx.x % 32 == 0) BarrierArrive(SharedAddress(&shared.empty[step % kStages]));
    AddScaled<kN>(scaled, here, shared, step);
  };
  int step = 0;
  for (; step + 1 < count; step += 2) {
    begin(step, sums[0]);
    begin(step + 1, sums[1]);
    GroupWait<1>();
    finish(step, sums[0]);
    GroupWait<0>();
    finish(step + 1, sums[1]);
  }
  if (step == count) return;
  begin(step, sums[0]);
  GroupWait<0>();
  finish(step, sums[0]);
}

// A block's share of the rows: the parts' sums, in their order. `sums` of this block, `received` of
// the others one after the other.
template <int kN>
__device__ __forceinline__ void AddUp(
    const Params& p, int strip, int rank, const char* sums, const char* received) {
  constexpr int kFours = kN / 4;
  const int begin = rank * p.slice, rows = min(p.slice, p.rows - begin);
  for (int i = threadIdx.x; i < rows * kFours; i += kConsumers) {
    const int row = i / kFours, four = i % kFours;
    const int column = strip * kN + four * 4;
    if (column >= p.n) continue;
    float4 sum = {};
    for (int part = 0; part < p.parts; ++part) {
      const int other = part < rank ? part : part - 1;
      const char* const from = part == rank ? sums + (begin + row) * kPitch<kN>
                                            : received + (other * p.slice + row) * kPitch<kN>;
      const float4 v = reinterpret_cast<const float4*>(from)[four];
      sum.x += v.x;
      sum.y += v.y;
      sum.z += v.z;
      sum.w += v.w;
    }
    const int64_t to = (begin + row) * p.out_stride + column;
    if (p.bf16) {
      *reinterpret_cast<uint2*>(static_cast<__nv_bfloat16*>(p.out) + to) =
          make_uint2(hopper::PackBf16(sum.x, sum.y), hopper::PackBf16(sum.z, sum.w));
    } else {
      *reinterpret_cast<float4*>(static_cast<float*>(p.out) + to) = sum;
    }
  }
}

template <int kN>
__global__ void __launch_bounds__(kThreads)
    MiddleKernel(const __grid_constant__ Params p,
                 const __grid_constant__ CUtensorMap map_w,
                 const __grid_constant__ CUtensorMap map_x) {
  extern __shared__ char memory[];
  __shared__ Shared<kN> shared;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int rank = static_cast<int>(blockIdx.x) % p.parts;
  const int strip = static_cast<int>(blockIdx.x) / p.parts;
  const int first = p.steps * rank / p.parts, count = p.steps * (rank + 1) / p.parts - first;
  const uint32_t ring = (SharedAddress(memory) + 1023) / 1024 * 1024;
  char* const sums = memory + (ring - SharedAddress(memory)) + kStages * kStageBytes<kN>;
  char* const received = sums + p.parts * p.slice * kPitch<kN>;
  const uint32_t slice_bytes = p.slice * kPitch<kN>;
  const uint32_t arrived = SharedAddress(&shared.received);
  if (threadIdx.x == 0) {
    for (int s = 0; s < kStages; ++s) {
      BarrierInit(SharedAddress(&shared.full[s]), 1);
      BarrierInit(SharedAddress(&shared.empty[s]), kConsumers / 32);
    }
    BarrierInit(arrived, 1);
    hopper::FenceBarrierInit();
    BarrierExpectBytes(arrived, (p.parts - 1) * slice_bytes);
  }
  __syncthreads();
  if (p.parts > 1) ArriveCluster();  // the barriers can be told
  if (warp == kConsumers / 32) {
    if (lane == 0) Feed<kN>(p, &map_w, &map_x, shared, ring, strip, first, count);
    __syncwarp();
    WaitForEarlierKernels();
    if (p.parts == 1) return;
    WaitCluster();
    ArriveClusterRelaxed();
    WaitCluster();
    return;
  }
  // Scales of weights are there before the wait, those of rows behind it.
  for (int i = threadIdx.x; i < count * (kN / 8); i += kConsumers) {
    const int band = min(strip * (kN / 8) + i / count, p.n / 8 - 1);
    shared.weights[i % count][i / count] =
        __ldg(p.scales + static_cast<int64_t>(band) * p.steps + first + i % count);
  }
  WaitForEarlierKernels();
  AllowNextKernel();
  for (int i = threadIdx.x; i < count * p.rows; i += kConsumers) {
    shared.x[i % count][i / count] =
        __ldcg(p.x_scales + static_cast<int64_t>(i / count) * p.steps + first + i % count);
  }
  hopper::NamedSync(1, kConsumers);

  float scaled[kN / 2];
  MultiplySteps<kN>(scaled, shared, ring, count);
  const int row = warp * 16 + lane / 4;
#pragma unroll
  for (int i = 0; i < kN / 2; i += 2) {
    const int at = row + i % 4 / 2 * 8;
    if (at >= p.parts * p.slice) continue;
    *reinterpret_cast<float2*>(sums + at * kPitch<kN> + (i / 4 * 8 + lane % 4 * 2) * 4) =
        make_float2(scaled[i], scaled[i + 1]);
  }
  if (p.parts == 1) {
    hopper::NamedSync(1, kConsumers);
    return AddUp<kN>(p, strip, rank, sums, received);
  }
  hopper::FenceAsyncProxy();
  hopper::NamedSync(1, kConsumers);
  WaitCluster();
  if (static_cast<int>(threadIdx.x) < p.parts && static_cast<int>(threadIdx.x) != rank) {
    const int other = threadIdx.x, place = rank < other ? rank : rank - 1;
    CopyToBlock(AddressAt(SharedAddress(received) + place * slice_bytes, other),
                SharedAddress(sums) + other * slice_bytes, slice_bytes, AddressAt(arrived, other));
  }
  __syncwarp();
  BarrierWait(arrived, 0);
  ArriveClusterRelaxed();
  AddUp<kN>(p, strip, rank, sums, received);
  WaitCluster();  // what this block sent has been received: it may end
}

// Rows of weights of a block and parts of the columns.
struct Cut {
  int32_t strip_rows = 0, parts = 0;
};

int32_t Padded(int64_t rows) {
  return static_cast<int32_t>(RoundUp(rows, 8));
}

int32_t SliceOf(int64_t rows, int32_t parts) {
  return (Padded(rows) + parts - 1) / parts;
}

template <int kN>
int32_t SharedBytes(int64_t rows, int32_t parts) {
  return 1024 + kStages * kStageBytes<kN> + (2 * parts - 1) * SliceOf(rows, parts) * kPitch<kN>;
}

// Blocks that run at once: clusters do not fill the groups of 16 to 18 multiprocessors that they
// lie in.
template <int kN>
int32_t Room(int64_t rows, int32_t parts) {
  static std::atomic<int32_t> known[kPartsMax + 1][kRowsMax / 8 + 1];
  std::atomic<int32_t>& room = known[parts][Padded(rows) / 8];
  if (room == 0) {
    const int32_t bytes = SharedBytes<kN>(rows, parts);
    CheckCuda(
        cudaFuncSetAttribute(MiddleKernel<kN>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
        "FP8 product of tens of rows");
    cudaLaunchAttribute attribute = {};
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim = {static_cast<unsigned>(parts), 1, 1};
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(static_cast<unsigned>(parts));
    config.blockDim = dim3(kThreads);
    config.dynamicSmemBytes = static_cast<size_t>(bytes);
    config.attrs = &attribute;
    config.numAttrs = 1;
    int clusters = 0;
    CheckCuda(cudaOccupancyMaxActiveClusters(&clusters, MiddleKernel<kN>, &config),
              "room for an FP8 product of tens of rows");
    room = std::max(1, clusters * parts);
  }
  return room;
}

int32_t RoomOf(int32_t strip_rows, int64_t rows, int32_t parts) {
  switch (strip_rows) {
    case 96:
      return Room<96>(rows, parts);
    case 64:
      return Room<64>(rows, parts);
    default:
      return Room<32>(rows, parts);
  }
}

// Of the cuts whose blocks all run at once the one that should take the shortest time, in ns, by
// what a multiprocessor can read from the L2 while all do ([2112, 7168] by 64 rows: 7.2 us,
// measured 8.4). Clusters that come after others cost far more than that: their rings start empty.
// None: strip_rows 0.
Cut ChooseCut(int64_t rows, int64_t n, int64_t steps) {
  constexpr int64_t kBytesOfNs = 42, kSumCost = 1000;
  Cut best;
  int64_t least = INT64_MAX;
  for (const int32_t strip_rows : {96, 64, 32}) {
    for (int32_t parts = 1; parts <= kPartsMax; ++parts) {
      const int64_t each = (steps + parts - 1) / parts;
      if (each > kStepsMax || parts > steps) continue;
      const int64_t blocks = (n + strip_rows - 1) / strip_rows * parts;
      const int64_t room = RoomOf(strip_rows, rows, parts);
      if (blocks > room) continue;
      // Blocks of a multiprocessor share what it can read.
      const int64_t most = (room + kMultiprocessors - 1) / kMultiprocessors, usable = room / most;
      const int64_t beside = (blocks + usable - 1) / usable;
      const int64_t bytes = each * (strip_rows + Padded(rows)) * 128;
      const int64_t cost = beside * bytes / kBytesOfNs + (parts > 1 ? kSumCost : 0);
      if (cost >= least) continue;
      least = cost;
      best = {strip_rows, parts};
    }
  }
  return best;
}

CUtensorMap MapOf(const void* data, int64_t row_bytes, int64_t rows, int32_t box_rows) {
  CUtensorMap map;
  const Status mapped = MakeTensorMap(
      TensorMapShape{
          .type = CU_TENSOR_MAP_DATA_TYPE_UINT8,
          .swizzle = CU_TENSOR_MAP_SWIZZLE_128B,
          .sizes = {static_cast<cuuint64_t>(row_bytes), static_cast<cuuint64_t>(rows), 1},
          .strides = {static_cast<cuuint64_t>(row_bytes),
                      static_cast<cuuint64_t>(row_bytes * rows)},
          .box = {128, static_cast<cuuint32_t>(box_rows), 1}},
      data, map);
  BT_CHECK(mapped.ok());
  return map;
}

template <int kN>
void Launch(const Params& p, const CUtensorMap& w, const CUtensorMap& x, cudaStream_t stream) {
  const int bytes = SharedBytes<kN>(p.rows, p.parts);
  CheckCuda(
      cudaFuncSetAttribute(MiddleKernel<kN>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
      "FP8 product of tens of rows");
  const int strips = (p.n + kN - 1) / kN;
  const Status launched =
      LaunchOverlapped("FP8 product of tens of rows", MiddleKernel<kN>,
                       dim3(static_cast<unsigned>(strips * p.parts)), dim3(kThreads),
                       static_cast<size_t>(bytes), stream, static_cast<unsigned>(p.parts), p, w, x);
  CheckLaunch("FP8 product of tens of rows");
  BT_CHECK(launched.ok());
}

bool Aligned(const void* data, int64_t row_bytes, int64_t to) {
  return reinterpret_cast<uintptr_t>(data) % static_cast<uintptr_t>(to) == 0 && row_bytes % to == 0;
}

// Columns from which product.h, which has no blocks that share them to such an extent, is slower.
constexpr int64_t kColumnsMin = 3072;

}  // namespace

bool Fp8MiddleTakes(const TensorView& out, const TensorView& x, const PackedMatrix& w) {
  const int64_t rows = x.dim(0), bytes = SizeOf(out.dtype);
  return w.form == WeightForm::kFp8Block && w.quantise_input && w.count == 1 && w.n > 0 &&
         w.n % 8 == 0 && w.k % 128 == 0 && w.k >= kColumnsMin && rows >= kRowsMin &&
         rows <= kRowsMax && Aligned(w.data, 0, 16) &&
         Aligned(out.data, out.stride[0] * bytes, 4 * bytes) &&
         ChooseCut(rows, w.n, w.k / 128).strip_rows > 0;
}

void Fp8MiddleProduct(const OpContext& ctx,
                      TensorView out,
                      const QuantisedRows& in,
                      const PackedMatrix& w) {
  const ProductLayout layout = LayoutOf(w.form, w.n, w.k);
  const int64_t rows = out.dim(0);
  const Cut cut = ChooseCut(rows, w.n, layout.steps);
  const int32_t padded = Padded(rows);
  BT_CHECK(in.x_stride == w.k && in.x_scales_stride == layout.steps);
  Params p = {};
  p.scales = reinterpret_cast<const float*>(static_cast<const char*>(w.data) + layout.scales);
  p.x_scales = in.x_scales;
  p.n = static_cast<int32_t>(w.n);
  p.steps = static_cast<int32_t>(layout.steps);
  p.rows = static_cast<int32_t>(rows);
  p.parts = cut.parts;
  p.slice = SliceOf(rows, cut.parts);
  p.box_bytes = padded * 128;
  p.out = out.data;
  p.out_stride = out.stride[0];
  p.bf16 = out.dtype == DType::kBf16;
  const CUtensorMap weights = MapOf(w.data, layout.row_bytes, w.n, cut.strip_rows);
  const CUtensorMap x = MapOf(in.x, w.k, rows, padded);
  switch (cut.strip_rows) {
    case 96:
      return Launch<96>(p, weights, x, StreamOf(ctx));
    case 64:
      return Launch<64>(p, weights, x, StreamOf(ctx));
    default:
      return Launch<32>(p, weights, x, StreamOf(ctx));
  }
}

}  // namespace baltoro::cuda
