// The streaming form of the expert products: few rows an expert, bound by the bytes of the weights.
//
// One block per multiprocessor takes an equal share of the weight strips (16 rows x all columns) of
// the chosen experts, in order. One warp feeds a ring in shared memory with bulk copies, far ahead;
// the others widen the 4-bit values in registers and multiply: weights are the 16 rows of the
// matrix instruction, tokens its 8 columns, activations come through the L1 cache. kWarpsK warps
// share a strip along its columns and add up at its end; kWarpsM strips are in work at a time.

#include <algorithm>

#include "ops/cuda/moe_device.cuh"
#include "ops/cuda/moe_int4_layout.h"
#include "ops/cuda/moe_internal.h"

namespace baltoro::cuda {
namespace {

constexpr int kTileBytes = static_cast<int>(kInt4TileBytes);
constexpr int kMaxColumnTiles = kStreamingTileRows / 8;  // 8 tokens each

struct ProductParams {
  const char* weights;
  int64_t slot_bytes;
  int32_t strips;        // 16-row strips of one matrix
  int32_t column_tiles;  // 128-column tiles of a strip
  const int32_t* num_tiles;
  const MoeTile* tiles;
  const int32_t* order;
  const __nv_bfloat16* in;  // gate/up: x by token; down: middle by sorted row
  int64_t in_stride;
  __nv_bfloat16* out;  // gate/up: middle; down: shares
  int32_t out_stride;
  int32_t top_k;
  const float* route_weights;  // down
};

template <bool kGateUp_, int kWarpsK_, int kWarpsM_, int kTilesPerStage_, int kStages_>
struct Form {
  static constexpr bool kGateUp = kGateUp_;
  static constexpr int kWarpsK = kWarpsK_, kWarpsM = kWarpsM_;
  static constexpr int kTilesPerStage = kTilesPerStage_;  // per warp
  static constexpr int kStages = kStages_;
  static constexpr int kWarps = kWarpsK * kWarpsM;
  static constexpr int kThreads = 32 * (kWarps + 1);
  static constexpr int kStripStageBytes = kWarpsK * kTilesPerStage * kTileBytes;
  static constexpr int kStageBytes = kWarpsM * kStripStageBytes;
  static constexpr int kPartialBytes =
      kWarpsK == 1 ? 0 : 2 * kWarps * kMaxColumnTiles * 32 * static_cast<int>(sizeof(float4));
  static constexpr int kSharedBytes = kStages * kStageBytes + kPartialBytes + kStages * 16;
};

// Where the ring stands.
template <typename F>
struct RingPosition {
  int stage = 0;
  uint32_t parity = 0;
  __device__ void Next() {
    if (++stage == F::kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

__device__ MoeTile LoadTile(const MoeTile* tiles, int at) {
  const int4 raw = __ldcg(reinterpret_cast<const int4*>(tiles) + at);
  return {raw.x, raw.y, raw.z, 0};
}

template <typename F>
__device__ void FeedRing(const ProductParams& p,
                         int first_unit,
                         int last_unit,
                         int units_per_tile,
                         uint32_t ring,
                         uint32_t full,
                         uint32_t empty) {
  const int lane = threadIdx.x % 32;
  const uint64_t policy = ReadOncePolicy();
  const int strip_bytes = p.column_tiles * kTileBytes;
  RingPosition<F> at;
  for (int unit = first_unit; unit < last_unit; ++unit) {
    const MoeTile tile = LoadTile(p.tiles, unit / units_per_tile);
    const int strip = unit % units_per_tile * F::kWarpsM;
    const int strips = min(F::kWarpsM, p.strips - strip);
    const char* from = p.weights + tile.slot * p.slot_bytes +
                       static_cast<int64_t>(strip + lane) * strip_bytes;
    for (int done = 0; done < strip_bytes; done += F::kStripStageBytes) {
      const int bytes = min(F::kStripStageBytes, strip_bytes - done);
      BarrierWait(empty + 8 * at.stage, at.parity ^ 1);
      if (lane == 0) BarrierExpectBytes(full + 8 * at.stage, bytes * strips);
      __syncwarp();
      if (lane < strips) {
        CopyBulk(ring + at.stage * F::kStageBytes + lane * F::kStripStageBytes,
                 from + done,
                 bytes,
                 full + 8 * at.stage,
                 policy);
      }
      at.Next();
    }
  }
}

// acc += one 16 x 128 tile of weights in shared memory by the rows' activations of these columns.
template <int kN>
__device__ __forceinline__ void MultiplyTile(float (&acc)[kN][4],
                                             uint32_t tile,
                                             const uint4 (&x)[kN][4],
                                             int lane) {
  const uint4 scales = LoadShared4(tile + 1024 + lane / 4 * 16);
  const uint32_t scale_words[4] = {scales.x, scales.y, scales.z, scales.w};
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const uint4 words = LoadShared4(tile + half * 512 + lane * 16);
    const uint32_t low[2] = {words.x, words.z}, high[2] = {words.y, words.w};
#pragma unroll
    for (int jj = 0; jj < 2; ++jj) {
      const int j = 2 * half + jj;
      const uint32_t scale_low = __byte_perm(scale_words[j], 0, 0x1010);
      const uint32_t scale_high = __byte_perm(scale_words[j], 0, 0x3232);
#pragma unroll
      for (int step = 0; step < 2; ++step) {
        const uint32_t a0 = WidenPair(low[jj], 2 * step, scale_low);
        const uint32_t a1 = WidenPair(high[jj], 2 * step, scale_high);
        const uint32_t a2 = WidenPair(low[jj], 2 * step + 1, scale_low);
        const uint32_t a3 = WidenPair(high[jj], 2 * step + 1, scale_high);
#pragma unroll
        for (int n = 0; n < kN; ++n) {
          const uint32_t b0 = step == 0 ? x[n][j].x : x[n][j].z;
          const uint32_t b1 = step == 0 ? x[n][j].y : x[n][j].w;
          MultiplyAdd(acc[n], a0, a1, a2, a3, b0, b1);
        }
      }
    }
  }
}

// What one thread holds of a strip: rows g and g + 8, tokens 2 t and 2 t + 1 of column tile n.
template <typename F>
__device__ __forceinline__ void StoreResult(
    const ProductParams& p, const MoeTile& tile, int strip, int n, int lane, const float (&c)[4]) {
  const int g = lane / 4;
#pragma unroll
  for (int e = 0; e < 2; ++e) {
    const int row = n * 8 + lane % 4 * 2 + e;
    if (row >= tile.count) continue;
    if (F::kGateUp) {
      p.out[static_cast<int64_t>(tile.begin + row) * p.out_stride + strip * 8 + g] =
          __float2bfloat16_rn(SiluTimes(c[e], c[2 + e]));
    } else {
      const int entry = __ldcg(p.order + tile.begin + row);
      const float weight = __ldg(p.route_weights + entry);
      *reinterpret_cast<__nv_bfloat162*>(p.out + static_cast<int64_t>(entry) * p.out_stride +
                                         strip * 16 + 2 * g) =
          __floats2bfloat162_rn(c[e] * weight, c[2 + e] * weight);
    }
  }
}

// Units [first, last) of one tile, all with kN column tiles.
template <typename F, int kN>
__device__ __forceinline__ void MultiplyUnits(const ProductParams& p,
                                           const MoeTile& tile,
                                           int first,
                                           int last,
                                           uint32_t ring,
                                           float4* partials,
                                           uint32_t full,
                                           uint32_t empty,
                                           RingPosition<F>& at) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int warp_m = warp / F::kWarpsK, warp_k = warp % F::kWarpsK;
  const int g = lane / 4, t = lane % 4;
  const __nv_bfloat16* in[kN];
#pragma unroll
  for (int n = 0; n < kN; ++n) {
    const int row = n * 8 + g;
    in[n] = nullptr;
    if (row < tile.count) {
      const int64_t source =
          F::kGateUp ? __ldcg(p.order + tile.begin + row) / p.top_k : tile.begin + row;
      in[n] = p.in + source * p.in_stride + t * 8;
    }
  }
  for (int unit = first; unit < last; ++unit) {
    const int strip = unit * F::kWarpsM + warp_m;
    const bool mine = F::kWarpsM == 1 || strip < p.strips;
    float acc[kN][4] = {};
    for (int base = 0; base < p.column_tiles; base += F::kWarpsK * F::kTilesPerStage) {
      const int column_tile = base + warp_k * F::kTilesPerStage;
      const uint32_t shared = ring + at.stage * F::kStageBytes + warp_m * F::kStripStageBytes +
                              warp_k * F::kTilesPerStage * kTileBytes;
#pragma unroll
      for (int c = 0; c < F::kTilesPerStage; ++c) {
        const bool inside = mine && column_tile + c < p.column_tiles;
        uint4 x[kN][4];
#pragma unroll
        for (int n = 0; n < kN; ++n) {
#pragma unroll
          for (int j = 0; j < 4; ++j) {
            x[n][j] = make_uint4(0, 0, 0, 0);
            if (inside && in[n] != nullptr) {
              x[n][j] =
                  *reinterpret_cast<const uint4*>(in[n] + (column_tile + c) * 128 + j * 32);
            }
          }
        }
        if (c == 0) BarrierWait(full + 8 * at.stage, at.parity);
        if (inside) MultiplyTile<kN>(acc, shared + c * kTileBytes, x, lane);
      }
      __syncwarp();
      if (lane == 0) BarrierArrive(empty + 8 * at.stage);
      at.Next();
    }
    if constexpr (F::kWarpsK == 1) {
      if (!mine) continue;
#pragma unroll
      for (int n = 0; n < kN; ++n) StoreResult<F>(p, tile, strip, n, lane, acc[n]);
    } else {
      // Two buffers: whoever adds up unit u has done so before the barrier of unit u + 1.
      float4* buffer = partials + (unit & 1) * F::kWarps * kMaxColumnTiles * 32;
#pragma unroll
      for (int n = 0; n < kN; ++n) {
        buffer[(warp * kMaxColumnTiles + n) * 32 + lane] =
            make_float4(acc[n][0], acc[n][1], acc[n][2], acc[n][3]);
      }
      asm volatile("bar.sync 1, %0;" ::"n"(F::kWarps * 32) : "memory");
      for (int job = (warp + unit) % F::kWarps; job < F::kWarpsM * kN; job += F::kWarps) {
        const int m = job / kN, n = job % kN;
        if (unit * F::kWarpsM + m >= p.strips) continue;
        float sum[4] = {};
#pragma unroll
        for (int k = 0; k < F::kWarpsK; ++k) {
          const float4 v = buffer[((m * F::kWarpsK + k) * kMaxColumnTiles + n) * 32 + lane];
          sum[0] += v.x;
          sum[1] += v.y;
          sum[2] += v.z;
          sum[3] += v.w;
        }
        StoreResult<F>(p, tile, unit * F::kWarpsM + m, n, lane, sum);
      }
    }
  }
}

template <typename F>
__global__ void __launch_bounds__(F::kThreads, 1) StreamProductKernel(const ProductParams p) {
  extern __shared__ __align__(128) char shared[];
  float4* partials = reinterpret_cast<float4*>(shared + F::kStages * F::kStageBytes);
  const uint32_t ring = SharedAddress(shared);
  const uint32_t full = ring + F::kStages * F::kStageBytes + F::kPartialBytes;
  const uint32_t empty = full + 8 * F::kStages;
  if (threadIdx.x == 0) {
    for (int s = 0; s < F::kStages; ++s) {
      BarrierInit(full + 8 * s, 1);
      BarrierInit(empty + 8 * s, F::kWarps);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();
  // The down product's weights depend on the routing alone, and the gate/up product let this kernel
  // start only once the routing was done: its ring is filled while gate/up ends.
  const bool feeder = threadIdx.x >= F::kWarps * 32;
  if (F::kGateUp || !feeder) WaitForEarlierKernels();
  AllowNextKernel();

  const int units_per_tile = (p.strips + F::kWarpsM - 1) / F::kWarpsM;
  const int64_t units = static_cast<int64_t>(__ldcg(p.num_tiles)) * units_per_tile;
  const int first = static_cast<int>(units * blockIdx.x / gridDim.x);
  const int last = static_cast<int>(units * (blockIdx.x + 1) / gridDim.x);
  if (feeder) {
    FeedRing<F>(p, first, last, units_per_tile, ring, full, empty);
    return;
  }
  RingPosition<F> at;
  for (int unit = first; unit < last;) {
    const int index = unit / units_per_tile;
    const MoeTile tile = LoadTile(p.tiles, index);
    const int begin = unit - index * units_per_tile;
    const int end = min(units_per_tile, begin + last - unit);
    if (tile.count <= 8) {
      MultiplyUnits<F, 1>(p, tile, begin, end, ring, partials, full, empty, at);
    } else if (tile.count <= 16) {
      MultiplyUnits<F, 2>(p, tile, begin, end, ring, partials, full, empty, at);
    } else {
      MultiplyUnits<F, 4>(p, tile, begin, end, ring, partials, full, empty, at);
    }
    unit += end - begin;
    // The next tile's first unit may use the buffer that is being added up.
    if constexpr (F::kWarpsK > 1) {
      asm volatile("bar.sync 1, %0;" ::"n"(F::kWarps * 32) : "memory");
    }
  }
}

Result<int> Multiprocessors() {
  int device = 0, count = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess) {
    error = cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device);
  }
  if (error != cudaSuccess) return Status(Code::kUnavailable, cudaGetErrorString(error));
  return count;
}

template <typename F>
Status Launch(const char* what, const ProductParams& params, cudaStream_t stream) {
  const auto kernel = StreamProductKernel<F>;
  const cudaError_t error =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, F::kSharedBytes);
  if (error != cudaSuccess) {
    return Status(Code::kInternal, std::string(what) + ": " + cudaGetErrorString(error));
  }
  BT_ASSIGN_OR_RETURN(const int blocks, Multiprocessors());
  return LaunchOverlapped(
      what, kernel, dim3(blocks), dim3(F::kThreads), F::kSharedBytes, stream, params);
}

}  // namespace

#ifndef BT_MOE_GATE_UP_FORM
#define BT_MOE_GATE_UP_FORM 14, 1, 1, 8
#endif
#ifndef BT_MOE_DOWN_FORM
#define BT_MOE_DOWN_FORM 1, 12, 2, 4
#endif

Status LaunchMoeStreamGateUp(const MoeShape& shape,
                             const MoeInt4Args& args,
                             const MoePlan& plan,
                             cudaStream_t stream) {
  ProductParams p = {};
  p.weights = static_cast<const char*>(args.gate_up);
  p.slot_bytes = Int4PackedBytes(2 * shape.intermediate, shape.hidden);
  p.strips = 2 * shape.intermediate / 16;
  p.column_tiles = shape.hidden / 128;
  p.num_tiles = plan.num_tiles;
  p.tiles = plan.tiles;
  p.order = plan.order;
  p.in = args.x;
  p.in_stride = args.x_stride;
  p.out = plan.middle;
  p.out_stride = shape.intermediate;
  p.top_k = shape.top_k;
  return Launch<Form<true, BT_MOE_GATE_UP_FORM>>("MoE gate/up", p, stream);
}

Status LaunchMoeStreamDown(const MoeShape& shape,
                           const MoeInt4Args& args,
                           const MoePlan& plan,
                           cudaStream_t stream) {
  ProductParams p = {};
  p.weights = static_cast<const char*>(args.down);
  p.slot_bytes = Int4PackedBytes(shape.hidden, shape.intermediate);
  p.strips = shape.hidden / 16;
  p.column_tiles = shape.intermediate / 128;
  p.num_tiles = plan.num_tiles;
  p.tiles = plan.tiles;
  p.order = plan.order;
  p.in = plan.middle;
  p.in_stride = shape.intermediate;
  p.out = plan.shares;
  p.out_stride = shape.hidden;
  p.top_k = shape.top_k;
  p.route_weights = args.weights;
  return Launch<Form<false, BT_MOE_DOWN_FORM>>("MoE down", p, stream);
}

}  // namespace baltoro::cuda
