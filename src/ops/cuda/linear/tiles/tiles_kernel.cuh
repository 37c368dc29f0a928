#pragma once

// The product kernel; see tiles.h. What depends on the weight form is in tiles_form_*.cuh.

#include <cuda_bf16.h>

#include <type_traits>

#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/launch/launch_stream.h"
#include "ops/cuda/launch/overlapped_launch.h"
#include "ops/cuda/linear/tiles/tiles_form_loads.cuh"
#include "ops/cuda/linear/tiles/tiles_params.h"
#include "ops/cuda/ptx/barriers.cuh"

namespace baltoro::cuda::product {

template <typename Sum>
struct alignas(16) Sums {
  Sum v[4];
};

__device__ inline void ClusterArriveAndWait() {
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::
                   : "memory");
}

// `at` of this block's shared memory, in that of block `rank` of the cluster.
template <typename Sum>
__device__ inline Sums<Sum> LoadFromBlock(const Sums<Sum>* at, uint32_t rank) {
  uint32_t v[4];
  asm volatile(
      "{\n"
      ".reg .u32 there;\n"
      "mapa.shared::cluster.u32 there, %4, %5;\n"
      "ld.shared::cluster.v4.u32 {%0, %1, %2, %3}, [there];\n"
      "}\n"
      : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3])
      : "r"(SharedAddress(at)), "r"(rank)
      : "memory");
  Sums<Sum> sums;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if constexpr (std::is_same_v<Sum, int>) {
      sums.v[i] = static_cast<Sum>(v[i]);
    } else {
      sums.v[i] = __uint_as_float(v[i]);
    }
  }
  return sums;
}

// The rows of a tile: where each comes from, goes to, and what it is multiplied by.
template <int kN>
struct TileRows {
  int32_t in[8 * kN], out[8 * kN];
  float factor[8 * kN];

  // By threads 0 .. 8 kN - 1; rows beyond `count` repeat the first.
  __device__ __forceinline__ void Fill(const Params& p, int begin, int count) {
    const int i = threadIdx.x;
    if (i >= 8 * kN) return;
    const int row = begin + (i < count ? i : 0);
    const int entry = p.order == nullptr ? row : __ldcg(p.order + row);
    in[i] = p.gather ? entry / p.top_k : row;
    out[i] = p.scatter ? entry : row;
    factor[i] = p.route_weights == nullptr ? 1.0f : __ldcg(p.route_weights + entry);
  }
};

template <class F>
concept ScaledWeights = F::kScaledWeights;

// The activations of a step and, where the form has them, the scales of the lane's two rows of each
// column tile: in registers, or loaded where they are used.
template <class F, int kN>
struct LoadedInput {
  uint4 pieces[kN][F::kPieces];
  float scales[kN][2];
  float2 weight_scales;

  __device__ __forceinline__ uint4 Piece(int n, int i) const { return pieces[n][i]; }
  __device__ __forceinline__ float Scale(int n, int e) const { return scales[n][e]; }
  __device__ __forceinline__ float2 WeightScales() const { return weight_scales; }
};

template <class F, int kN>
struct Input {
  const Params& p;
  const int32_t* in_rows;
  const char* (&x)[kN];
  const typename F::Rows& rows;
  int step, lane;

  __device__ __forceinline__ uint4 Piece(int n, int i) const {
    return F::LoadPiece(p, x[n], step, i, lane);
  }
  __device__ __forceinline__ float Scale(int n, int e) const {
    if (!F::kScaledInput || p.x_scales == nullptr) return 1;
    const int row = in_rows[n * 8 + lane % 4 * 2 + e];
    return p.x_scales[static_cast<int64_t>(row) * p.x_scales_stride + step];
  }
  __device__ __forceinline__ void LoadInto(LoadedInput<F, kN>& to) const {
#pragma unroll
    for (int n = 0; n < kN; ++n) {
#pragma unroll
      for (int i = 0; i < F::kPieces; ++i) to.pieces[n][i] = Piece(n, i);
      to.scales[n][0] = Scale(n, 0);
      to.scales[n][1] = Scale(n, 1);
    }
    if constexpr (ScaledWeights<F>) to.weight_scales = F::WeightScales(rows, step);
  }
};

// One column tile's sums of a strip.
template <class F, int kN>
__device__ __forceinline__ void Store(const Params& p,
                                      const char* weights,
                                      const TileRows<kN>& tile,
                                      int count,
                                      int strip,
                                      int n,
                                      int lane,
                                      const Sums<typename F::Sum>& sums) {
  if (strip >= p.strips) return;
  const int g = lane / 4;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int token = n * 8 + lane % 4 * 2 + i % 2;
    const int row = F::kHalvesApart ? strip * 8 + g + (i < 2 ? 0 : p.strips * 8)
                                    : strip * 16 + g + (i < 2 ? 0 : 8);
    if (token >= count || row >= p.n) continue;
    const float value = F::Finish(p, weights, sums.v[i], row, tile.in[token]) * tile.factor[token];
    const int64_t at = static_cast<int64_t>(tile.out[token]) * p.out_stride + row;
    if (p.out_bf16) {
      static_cast<__nv_bfloat16*>(p.out)[at] = __float2bfloat16_rn(value);
    } else {
      static_cast<float*>(p.out)[at] = value;
    }
  }
}

// Grid: blocks of strips times the cluster, tiles of rows.
template <class F, int kN>
__global__ void __launch_bounds__(kThreads, kN == 8 ? 1 : 2)
    Kernel(const __grid_constant__ Params p) {
  using Sum = typename F::Sum;
  constexpr int kDepth = F::template kDepth<kN>, kAhead = F::template kAhead<kN>;
  static_assert(kDepth % (kAhead > 0 ? kAhead : 1) == 0);
  __shared__ Sums<Sum> partials[kWarps][kN][32];
  __shared__ TileRows<kN> tile_rows;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int warps_k = 1 << p.log_warps_k;
  const int rank = blockIdx.x % p.cluster;
  const int first_strip = static_cast<int>(blockIdx.x / p.cluster) * (kWarps >> p.log_warps_k);
  const int strip = first_strip + (warp >> p.log_warps_k);
  const int part = rank * warps_k + (warp & (warps_k - 1)), parts = p.cluster * warps_k;
  int step = p.steps * part / parts;
  const int last = strip < p.strips ? p.steps * (part + 1) / parts : step;

  const char* weights = p.weights;
  int begin = static_cast<int>(blockIdx.y) * 8 * kN;
  int count = min(8 * kN, p.rows - begin);
  constexpr int kRing = F::template kRing<kN>;
  [[maybe_unused]] typename F::Weights w[kRing > 0 ? 1 : kDepth];
  if (p.tiles != nullptr) {
    WaitForEarlierKernels();
    if (static_cast<int>(blockIdx.y) >= __ldcg(p.num_tiles)) return;
    const int4 tile = __ldcg(reinterpret_cast<const int4*>(p.tiles) + blockIdx.y);
    weights += tile.x * p.slot_bytes;
    begin = tile.y;
    count = tile.z;
  }
  const typename F::Rows rows(p, weights, strip, lane);
  [[maybe_unused]] uint32_t ring = 0;  // of the lane
  if constexpr (kRing > 0) {
    extern __shared__ __align__(128) char memory[];
    ring = SharedAddress(memory) + warp * kRing * F::kRingBytes + lane * 16;
#pragma unroll
    for (int d = 0; d < kRing; ++d) {
      if (step + d < last) F::Start(ring + d * F::kRingBytes, p, rows, step + d, lane);
      CommitCopies();
    }
  } else {
#pragma unroll
    for (int d = 0; d < kDepth; ++d) {
      if (step + d < last) F::Load(w[d], p, rows, step + d, lane);
    }
  }
  AllowNextKernel();
  // The first weights, which no kernel writes, are on their way before the activations are there.
  if (p.tiles == nullptr) WaitForEarlierKernels();
  tile_rows.Fill(p, begin, count);
  __syncthreads();
  const char* x[kN];
#pragma unroll
  for (int n = 0; n < kN; ++n) x[n] = p.x + tile_rows.in[n * 8 + lane / 4] * p.x_row_bytes;

  Sum acc[kN][4] = {};
  const auto input = [&](int at) { return Input<F, kN>{p, tile_rows.in, x, rows, at, lane}; };
  if constexpr (kAhead > 0) {
    LoadedInput<F, kN> loaded[kAhead];
#pragma unroll
    for (int d = 0; d < kAhead; ++d) {
      if (step + d < last) input(step + d).LoadInto(loaded[d]);
    }
    if constexpr (kRing > 0) {
      for (int place = 0; step < last; step += kAhead) {
#pragma unroll
        for (int d = 0; d < kAhead; ++d) {
          if (step + d >= last) break;
          WaitCopies<kRing - 1>();
          const uint32_t slot = ring + place * F::kRingBytes;
          F::Take(w[0], slot);
          F::template Multiply<kN>(acc, w[0], loaded[d]);
          if (step + d + kAhead < last) input(step + d + kAhead).LoadInto(loaded[d]);
          if (step + d + kRing < last) F::Start(slot, p, rows, step + d + kRing, lane);
          CommitCopies();
          if (++place == kRing) place = 0;
        }
      }
    } else {
      for (; step < last; step += kDepth) {
#pragma unroll
        for (int d = 0; d < kDepth; ++d) {
          if (step + d >= last) break;
          F::template Multiply<kN>(acc, w[d], loaded[d % kAhead]);
          if (step + d + kAhead < last) input(step + d + kAhead).LoadInto(loaded[d % kAhead]);
          if (step + d + kDepth < last) F::Load(w[d], p, rows, step + d + kDepth, lane);
        }
      }
    }
  } else {
    for (; step < last; step += kDepth) {
#pragma unroll
      for (int d = 0; d < kDepth; ++d) {
        if (step + d >= last) break;
        F::template Multiply<kN>(acc, w[d], input(step + d));
        if (step + d + kDepth < last) F::Load(w[d], p, rows, step + d + kDepth, lane);
      }
    }
  }

#pragma unroll
  for (int n = 0; n < kN; ++n) {
    partials[warp][n][lane] = {acc[n][0], acc[n][1], acc[n][2], acc[n][3]};
  }
  __syncthreads();
  const int units = (kWarps >> p.log_warps_k) * kN;
  for (int unit = warp; unit < units; unit += kWarps) {
    const int s = unit / kN, n = unit % kN;
    Sums<Sum> sums = {};
    for (int k = 0; k < warps_k; ++k) {
      const Sums<Sum> one = partials[s * warps_k + k][n][lane];
#pragma unroll
      for (int i = 0; i < 4; ++i) sums.v[i] += one.v[i];
    }
    if (p.cluster == 1) {
      Store<F, kN>(p, weights, tile_rows, count, first_strip + s, n, lane, sums);
    } else {
      partials[s * warps_k][n][lane] = sums;  // read by this warp alone until now
    }
  }
  if (p.cluster == 1) return;
  ClusterArriveAndWait();
  for (int unit = rank + p.cluster * warp; unit < units; unit += p.cluster * kWarps) {
    const int s = unit / kN, n = unit % kN;
    Sums<Sum> sums = {};
    for (int r = 0; r < p.cluster; ++r) {
      const Sums<Sum> one = LoadFromBlock(&partials[s * warps_k][n][lane], r);
#pragma unroll
      for (int i = 0; i < 4; ++i) sums.v[i] += one.v[i];
    }
    Store<F, kN>(p, weights, tile_rows, count, first_strip + s, n, lane, sums);
  }
  ClusterArriveAndWait();  // until all have read
}

template <class F, int kN>
void LaunchTiles(const Params& p, const LaunchShape& shape, const LaunchStream& stream) {
  constexpr int kBytes = F::template kRing<kN> * kWarps * kRingStepBytes;
  BT_CHECK(shape.shared == kBytes);
  if constexpr (kBytes > 0) {
    CheckCuda(
        cudaFuncSetAttribute(Kernel<F, kN>, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes),
        "shared memory of a product");
  }
  const Status launched =
      LaunchOverlapped("product", Kernel<F, kN>,
                       dim3(static_cast<unsigned>(shape.x), static_cast<unsigned>(shape.y)),
                       dim3(kThreads), kBytes, stream, static_cast<unsigned>(shape.cluster), p);
  CheckLaunch("product");
  BT_CHECK(launched.ok());
}

template <class F>
void LaunchForm(const Params& p, const TilesPlan& plan, const LaunchStream& stream) {
  switch (plan.eights) {
    case 1:
      return LaunchTiles<F, 1>(p, plan.launch, stream);
    case 2:
      return LaunchTiles<F, 2>(p, plan.launch, stream);
    case 4:
      return LaunchTiles<F, 4>(p, plan.launch, stream);
    default:
      return LaunchTiles<F, 8>(p, plan.launch, stream);
  }
}

}  // namespace baltoro::cuda::product
