#pragma once

// The product kernel; see product.h. A form says how 16 rows by one step of columns are loaded and
// multiplied; the columns that a lane holds are the same for weights and activations, in whatever
// order.

#include <cuda_bf16.h>

#include <type_traits>

#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/moe_device.cuh"
#include "ops/cuda/moe_int4_layout.h"
#include "ops/cuda/product_params.h"

namespace baltoro::cuda::product {

__device__ __forceinline__ uint4 LoadWeights(const char* from) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(from));
  return v;
}

// Eight columns of a row of bf16, zeros beyond the last; k is a multiple of 8.
__device__ __forceinline__ uint4 LoadColumns(const char* row, int column, int k) {
  if (column >= k) return make_uint4(0, 0, 0, 0);
  return *reinterpret_cast<const uint4*>(row + column * 2);
}

__device__ __forceinline__ void MultiplyAdd8(
    int (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// 16 bytes to shared memory, zeros unless `inside`.
__device__ __forceinline__ void CopyOrZero(uint32_t to_shared, const char* from, bool inside) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to_shared), "l"(from),
               "r"(inside ? 16 : 0)
               : "memory");
}
__device__ __forceinline__ void CommitCopies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int kPending>
__device__ __forceinline__ void WaitCopies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

// Rows g and g + 8 of a strip, row-major; the last row again beyond the last.
struct RowPair {
  const char *low, *high;
  __device__ __forceinline__
  RowPair(const Params& p, const char* weights, int strip, int lane, int64_t row_bytes) {
    const int row = strip * 16 + lane / 4;
    low = weights + min(row, p.n - 1) * row_bytes + lane % 4 * 16;
    high = weights + min(row + 8, p.n - 1) * row_bytes + lane % 4 * 16;
  }
};

struct Bf16Form {
  using Sum = float;
  static constexpr int kColumns = 64;  // of a step
  template <int kN>
  static constexpr int kRing = kN <= 2 ? 6 : 0;  // steps in flight through shared memory
  static constexpr int kRingBytes = 2048;        // of a warp and step
  template <int kN>
  static constexpr int kDepth = kN <= 2 ? 4 : 2;  // steps in flight
  template <int kN>
  static constexpr int kAhead =
      kN <= 2 ? 4 : 0;               // steps of activations in flight; 0: loaded where used
  static constexpr int kPieces = 2;  // of 16 bytes, of a row of x and step
  static constexpr bool kScaledInput = false;  // one scale a row and step
  static constexpr bool kHalvesApart = false;  // the two rows of a lane are half a matrix apart

  struct Rows : RowPair {
    __device__ __forceinline__ Rows(const Params& p, const char* weights, int strip, int lane)
        : RowPair(p, weights, strip, lane, static_cast<int64_t>(p.k) * 2) {}
  };
  struct Weights {
    uint4 low[2], high[2];
  };

  static __device__ __forceinline__ void Load(
      Weights& w, const Params& p, const Rows& rows, int step, int lane) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const int column = step * 64 + j * 32;
      const bool inside = column + lane % 4 * 8 < p.k;
      w.low[j] = w.high[j] = make_uint4(0, 0, 0, 0);
      if (inside) w.low[j] = LoadWeights(rows.low + column * 2);
      if (inside) w.high[j] = LoadWeights(rows.high + column * 2);
    }
  }

  // The same through the lane's own 16 bytes of each 512 at `slot`: no other lane reads them.
  static __device__ __forceinline__ void Start(
      uint32_t slot, const Params& p, const Rows& rows, int step, int lane) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const int column = step * 64 + j * 32;
      const bool inside = column + lane % 4 * 8 < p.k;
      CopyOrZero(slot + j * 512, inside ? rows.low + column * 2 : rows.low, inside);
      CopyOrZero(slot + 1024 + j * 512, inside ? rows.high + column * 2 : rows.high, inside);
    }
  }
  static __device__ __forceinline__ void Take(Weights& w, uint32_t slot) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      w.low[j] = LoadShared4(slot + j * 512);
      w.high[j] = LoadShared4(slot + 1024 + j * 512);
    }
  }

  static __device__ __forceinline__ uint4
  LoadPiece(const Params& p, const char* x, int step, int i, int lane) {
    return LoadColumns(x, step * 64 + i * 32 + lane % 4 * 8, p.k);
  }

  template <int kN, class Input>
  static __device__ __forceinline__ void Multiply(float (&acc)[kN][4],
                                                  const Weights& w,
                                                  const Input& x) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const uint4 a = w.low[j], b = w.high[j];
#pragma unroll
      for (int n = 0; n < kN; ++n) {
        const uint4 v = x.Piece(n, j);
        MultiplyAdd(acc[n], a.x, b.x, a.y, b.y, v.x, v.y);
        MultiplyAdd(acc[n], a.z, b.z, a.w, b.w, v.z, v.w);
      }
    }
  }

  static __device__ __forceinline__ float Finish(const Params&, const char*, float sum, int, int) {
    return sum;
  }
};

// Two pairs of bf16 from four codes in the order of product_layout.h.
__device__ __forceinline__ uint2 WidenE4m3(uint32_t word) {
  // The code's bits in place have an exponent that is 120 too small.
  const uint32_t up = 0x7B807B80u;
  uint32_t pairs[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const uint32_t v = i == 0 ? word << 8 : word;
    const uint32_t raw = (v & 0x80008000u) | ((v >> 4) & 0x07F007F0u);
    const __nv_bfloat162 wide = __hmul2(*reinterpret_cast<const __nv_bfloat162*>(&raw),
                                        *reinterpret_cast<const __nv_bfloat162*>(&up));
    pairs[i] = *reinterpret_cast<const uint32_t*>(&wide);
  }
  return make_uint2(pairs[0], pairs[1]);
}

struct Fp8Form {
  using Sum = float;
  static constexpr int kColumns = 128;
  template <int kN>
  static constexpr int kRing = 0;
  template <int kN>
  static constexpr int kDepth = 2;
  template <int kN>
  static constexpr int kAhead =
      kN == 1 ? 2 : 0;               // steps of activations in flight; 0: loaded where used
  static constexpr int kPieces = 4;  // of 16 bytes, of a row of x and step
  static constexpr bool kScaledInput = true;  // one scale a row and step
  static constexpr bool kHalvesApart = false;

  struct Rows : RowPair {
    const float *scale_low, *scale_high;
    __device__ __forceinline__ Rows(const Params& p, const char* weights, int strip, int lane)
        : RowPair(p, weights, strip, lane, p.row_bytes) {
      const float* scales = reinterpret_cast<const float*>(weights + p.scales);
      const int last = (p.n - 1) / 8;
      scale_low = scales + static_cast<int64_t>(min(strip * 2, last)) * p.steps;
      scale_high = scales + static_cast<int64_t>(min(strip * 2 + 1, last)) * p.steps;
    }
  };
  struct Weights {
    uint4 low[2], high[2];
    float scale_low, scale_high;
  };

  static __device__ __forceinline__ void Load(
      Weights& w, const Params&, const Rows& rows, int step, int) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      w.low[j] = LoadWeights(rows.low + step * 128 + j * 64);
      w.high[j] = LoadWeights(rows.high + step * 128 + j * 64);
    }
    w.scale_low = __ldg(rows.scale_low + step);
    w.scale_high = __ldg(rows.scale_high + step);
  }

  static __device__ __forceinline__ uint4
  LoadPiece(const Params& p, const char* x, int step, int i, int lane) {
    return LoadColumns(x, step * 128 + i / 2 * 64 + lane % 4 * 16 + i % 2 * 8, p.k);
  }

  template <int kN, class Input>
  static __device__ __forceinline__ void Multiply(float (&acc)[kN][4],
                                                  const Weights& w,
                                                  const Input& x) {
    float part[kN][4] = {};
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const uint32_t low[4] = {w.low[j].x, w.low[j].y, w.low[j].z, w.low[j].w};
      const uint32_t high[4] = {w.high[j].x, w.high[j].y, w.high[j].z, w.high[j].w};
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const uint2 a = WidenE4m3(low[2 * half]), b = WidenE4m3(high[2 * half]);
        const uint2 c = WidenE4m3(low[2 * half + 1]), d = WidenE4m3(high[2 * half + 1]);
#pragma unroll
        for (int n = 0; n < kN; ++n) {
          const uint4 v = x.Piece(n, 2 * j + half);
          MultiplyAdd(part[n], a.x, b.x, a.y, b.y, v.x, v.y);
          MultiplyAdd(part[n], c.x, d.x, c.y, d.y, v.z, v.w);
        }
      }
    }
#pragma unroll
    for (int n = 0; n < kN; ++n) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const float scale = x.Scale(n, e);
        acc[n][e] += part[n][e] * (w.scale_low * scale);
        acc[n][2 + e] += part[n][2 + e] * (w.scale_high * scale);
      }
    }
  }

  static __device__ __forceinline__ float Finish(const Params&, const char*, float sum, int, int) {
    return sum;
  }
};

struct Int4GroupForm {
  using Sum = float;
  static constexpr int kColumns = 128;
  template <int kN>
  static constexpr int kRing = 0;
  template <int kN>
  static constexpr int kDepth = kN <= 2 ? 4 : 2;
  template <int kN>
  static constexpr int kAhead =
      kN == 1 ? 2 : 0;               // steps of activations in flight; 0: loaded where used
  static constexpr int kPieces = 4;  // of 16 bytes, of a row of x and step
  static constexpr bool kScaledInput = false;  // one scale a row and step
  static constexpr bool kHalvesApart = true;

  struct Rows {
    const char* tile;  // of the lane
    const char* scales;
    __device__ __forceinline__ Rows(const Params& p, const char* weights, int strip, int lane) {
      const char* first = weights + static_cast<int64_t>(min(strip, p.strips - 1)) * p.steps *
                                        static_cast<int>(kInt4TileBytes);
      tile = first + lane * 16;
      scales = first + 1024 + lane / 4 * 16;
    }
  };
  struct Weights {
    uint4 words[2], scales;
  };

  static __device__ __forceinline__ void Load(
      Weights& w, const Params&, const Rows& rows, int step, int) {
    const int at = step * static_cast<int>(kInt4TileBytes);
    w.words[0] = LoadWeights(rows.tile + at);
    w.words[1] = LoadWeights(rows.tile + at + 512);
    w.scales = LoadWeights(rows.scales + at);
  }

  static __device__ __forceinline__ uint4
  LoadPiece(const Params& p, const char* x, int step, int i, int lane) {
    return LoadColumns(x, step * 128 + i * 32 + lane % 4 * 8, p.k);
  }

  template <int kN, class Input>
  static __device__ __forceinline__ void Multiply(float (&acc)[kN][4],
                                                  const Weights& w,
                                                  const Input& x) {
    const uint32_t scales[4] = {w.scales.x, w.scales.y, w.scales.z, w.scales.w};
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const uint4 words = w.words[j / 2];
      const uint32_t low = j % 2 == 0 ? words.x : words.z;
      const uint32_t high = j % 2 == 0 ? words.y : words.w;
      const WidenScale scale_low = LoadScale(scales[j], false);
      const WidenScale scale_high = LoadScale(scales[j], true);
      uint32_t a[4], b[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        a[i] = WidenPair(low, i, scale_low);
        b[i] = WidenPair(high, i, scale_high);
      }
#pragma unroll
      for (int n = 0; n < kN; ++n) {
        const uint4 v = x.Piece(n, j);
        MultiplyAdd(acc[n], a[0], b[0], a[1], b[1], v.x, v.y);
        MultiplyAdd(acc[n], a[2], b[2], a[3], b[3], v.z, v.w);
      }
    }
  }

  static __device__ __forceinline__ float Finish(const Params&, const char*, float sum, int, int) {
    return sum * kWidenUndo;
  }
};

__device__ __forceinline__ float FinishInteger(
    const Params& p, const char* weights, int sum, int row, int in_row) {
  if (p.biases != 0) sum += reinterpret_cast<const int32_t*>(weights + p.biases)[row];
  const float scale = reinterpret_cast<const float*>(weights + p.scales)[row];
  return p.x_scales[static_cast<int64_t>(in_row) * p.x_scales_stride] * scale *
         static_cast<float>(sum);
}

struct Int8Form {
  using Sum = int;
  static constexpr int kColumns = 128;
  template <int kN>
  static constexpr int kRing = 0;
  template <int kN>
  static constexpr int kDepth = kN <= 2 ? 3 : 2;
  template <int kN>
  static constexpr int kAhead =
      kN == 1 ? 3 : 0;               // steps of activations in flight; 0: loaded where used
  static constexpr int kPieces = 2;  // of 16 bytes, of a row of x and step
  static constexpr bool kScaledInput = false;  // one scale a row and step
  static constexpr bool kHalvesApart = false;

  struct Rows : RowPair {
    __device__ __forceinline__ Rows(const Params& p, const char* weights, int strip, int lane)
        : RowPair(p, weights, strip, lane, p.row_bytes) {}
  };
  struct Weights {
    uint4 low[2], high[2];
  };

  static __device__ __forceinline__ void Load(
      Weights& w, const Params&, const Rows& rows, int step, int) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      w.low[j] = LoadWeights(rows.low + step * 128 + j * 64);
      w.high[j] = LoadWeights(rows.high + step * 128 + j * 64);
    }
  }

  static __device__ __forceinline__ uint4
  LoadPiece(const Params& p, const char* x, int step, int i, int lane) {
    static_cast<void>(p);
    return *reinterpret_cast<const uint4*>(x + step * 128 + i * 64 + lane % 4 * 16);
  }

  template <int kN, class Input>
  static __device__ __forceinline__ void Multiply(int (&acc)[kN][4],
                                                  const Weights& w,
                                                  const Input& x) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const uint4 a = w.low[j], b = w.high[j];
#pragma unroll
      for (int n = 0; n < kN; ++n) {
        const uint4 v = x.Piece(n, j);
        MultiplyAdd8(acc[n], a.x, b.x, a.y, b.y, v.x, v.y);
        MultiplyAdd8(acc[n], a.z, b.z, a.w, b.w, v.z, v.w);
      }
    }
  }

  static __device__ __forceinline__ float Finish(
      const Params& p, const char* weights, int sum, int row, int in_row) {
    return FinishInteger(p, weights, sum, row, in_row);
  }
};

struct Int4Form {
  using Sum = int;
  static constexpr int kColumns = 128;
  template <int kN>
  static constexpr int kRing = 0;
  template <int kN>
  static constexpr int kDepth = kN <= 2 ? 4 : 2;
  template <int kN>
  static constexpr int kAhead =
      kN == 1   ? 4
      : kN == 2 ? 2
                : 0;                 // steps of activations in flight; 0: loaded where used
  static constexpr int kPieces = 2;  // of 16 bytes, of a row of x and step
  static constexpr bool kScaledInput = false;  // one scale a row and step
  static constexpr bool kHalvesApart = false;

  struct Rows : RowPair {
    __device__ __forceinline__ Rows(const Params& p, const char* weights, int strip, int lane)
        : RowPair(p, weights, strip, lane, p.row_bytes) {}
  };
  struct Weights {
    uint4 low, high;
  };

  static __device__ __forceinline__ void Load(
      Weights& w, const Params&, const Rows& rows, int step, int) {
    w.low = LoadWeights(rows.low + step * 64);
    w.high = LoadWeights(rows.high + step * 64);
  }

  // Codes times 16: the sum is a multiple of 16 and below 2^31 for k < 2^17.
  static __device__ __forceinline__ uint32_t First(uint32_t word) {
    return (word << 4) & 0xF0F0F0F0u;
  }
  static __device__ __forceinline__ uint32_t Second(uint32_t word) { return word & 0xF0F0F0F0u; }

  static __device__ __forceinline__ uint4
  LoadPiece(const Params& p, const char* x, int step, int i, int lane) {
    static_cast<void>(p);
    return *reinterpret_cast<const uint4*>(x + step * 128 + lane % 4 * 32 + i * 16);
  }

  template <int kN, class Input>
  static __device__ __forceinline__ void Multiply(int (&acc)[kN][4],
                                                  const Weights& w,
                                                  const Input& x) {
    const uint32_t low[4] = {w.low.x, w.low.y, w.low.z, w.low.w};
    const uint32_t high[4] = {w.high.x, w.high.y, w.high.z, w.high.w};
#pragma unroll
    for (int j = 0; j < 2; ++j) {
#pragma unroll
      for (int n = 0; n < kN; ++n) {
        const uint4 v = x.Piece(n, j);
        const uint32_t a = low[2 * j], b = high[2 * j], c = low[2 * j + 1], d = high[2 * j + 1];
        MultiplyAdd8(acc[n], First(a), First(b), Second(a), Second(b), v.x, v.y);
        MultiplyAdd8(acc[n], First(c), First(d), Second(c), Second(d), v.z, v.w);
      }
    }
  }

  static __device__ __forceinline__ float Finish(
      const Params& p, const char* weights, int sum, int row, int in_row) {
    return FinishInteger(p, weights, sum / 16, row, in_row);
  }
};

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

// The activations of a step and, where the form has them, the scales of the lane's two rows of each
// column tile: in registers, or loaded where they are used.
template <class F, int kN>
struct LoadedInput {
  uint4 pieces[kN][F::kPieces];
  float scales[kN][2];

  __device__ __forceinline__ uint4 Piece(int n, int i) const { return pieces[n][i]; }
  __device__ __forceinline__ float Scale(int n, int e) const { return scales[n][e]; }
};

template <class F, int kN>
struct Input {
  const Params& p;
  const int32_t* in_rows;
  const char* (&x)[kN];
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
  // The first weights are on their way before the activations are there.
  if (p.tiles == nullptr) WaitForEarlierKernels();
  AllowNextKernel();
  tile_rows.Fill(p, begin, count);
  __syncthreads();
  const char* x[kN];
#pragma unroll
  for (int n = 0; n < kN; ++n) x[n] = p.x + tile_rows.in[n * 8 + lane / 4] * p.x_row_bytes;

  Sum acc[kN][4] = {};
  const auto input = [&](int at) { return Input<F, kN>{p, tile_rows.in, x, at, lane}; };
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
void LaunchTiles(const Params& p, const Shape& shape, cudaStream_t stream) {
  constexpr int kRing = F::template kRing<kN>;
  int shared_bytes = 0;
  if constexpr (kRing > 0) {
    shared_bytes = kRing * kWarps * F::kRingBytes;
    CheckCuda(cudaFuncSetAttribute(Kernel<F, kN>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                   shared_bytes),
              "shared memory of a product");
  }
  const Status launched =
      LaunchOverlapped("product", Kernel<F, kN>, shape.grid, dim3(kThreads), shared_bytes, stream,
                       static_cast<unsigned>(p.cluster), p);
  CheckLaunch("product");
  BT_CHECK(launched.ok());
}

template <class F>
void LaunchForm(const Params& p, const Shape& shape, cudaStream_t stream) {
  switch (shape.column_tiles) {
    case 1:
      return LaunchTiles<F, 1>(p, shape, stream);
    case 2:
      return LaunchTiles<F, 2>(p, shape, stream);
    case 4:
      return LaunchTiles<F, 4>(p, shape, stream);
    default:
      return LaunchTiles<F, 8>(p, shape, stream);
  }
}

}  // namespace baltoro::cuda::product
