#pragma once

// What the product kernel (tiles_kernel.cuh) knows of each weight form: how 16 rows by one step
// of columns are loaded and multiplied. The columns that a lane holds are the same for weights and
// activations, in whatever order.

#include <cuda_bf16.h>

#include "ops/cuda/experts/bank_device.cuh"
#include "ops/cuda/layout/int4_layout.h"
#include "ops/cuda/linear/tiles/tiles_params.h"

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
  static constexpr int kRing = RingOfBf16(kN);
  static constexpr int kRingBytes = kRingStepBytes;
  template <int kN>
  static constexpr int kDepth = kN <= 2 ? 4 : 2;  // steps in flight
  template <int kN>
  static constexpr int kAhead =
      kN == 1   ? 4
      : kN == 2 ? 2
                : 0;                 // steps of activations in flight; 0: loaded where used
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

// Pairs of f16 from four codes: the first two, the last two.
__device__ __forceinline__ uint2 E4m3ToF16(uint32_t word) {
  uint2 v;
  asm("{\n"
      ".reg .b16 low, high;\n"
      "mov.b32 {low, high}, %2;\n"
      "cvt.rn.f16x2.e4m3x2 %0, low;\n"
      "cvt.rn.f16x2.e4m3x2 %1, high;\n"
      "}\n"
      : "=r"(v.x), "=r"(v.y)
      : "r"(word));
  return v;
}

// c += a (16 x 16, row) * b (16 x 8, column), f16 operands.
__device__ __forceinline__ void MultiplyAddF16(
    float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// Both sides e4m3 codes, exact in f16.
struct Fp8CodesForm {
  using Sum = float;
  static constexpr int kColumns = 128;
  template <int kN>
  static constexpr int kRing = RingOfFp8Codes(kN);
  static constexpr int kRingBytes = kRingStepBytes;
  template <int kN>
  static constexpr int kAhead = kN == 1   ? 3
                                : kN == 2 ? 2
                                          : 1;  // steps of activations in flight
  template <int kN>
  static constexpr int kDepth = kAhead<kN>;
  static constexpr int kPieces = 2;             // of 16 bytes, of a row of x and step
  static constexpr bool kScaledInput = true;    // one scale a row and step
  static constexpr bool kScaledWeights = true;  // one a band of 8 rows and step, with the input
  static constexpr bool kHalvesApart = false;

  using Rows = Fp8Form::Rows;
  struct Weights {
    uint4 low[2], high[2];
  };

  static __device__ __forceinline__ void Start(
      uint32_t slot, const Params&, const Rows& rows, int step, int) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      CopyOrZero(slot + j * 512, rows.low + step * 128 + j * 64, true);
      CopyOrZero(slot + 1024 + j * 512, rows.high + step * 128 + j * 64, true);
    }
  }
  static __device__ __forceinline__ void Take(Weights& w, uint32_t slot) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      w.low[j] = LoadShared4(slot + j * 512);
      w.high[j] = LoadShared4(slot + 1024 + j * 512);
    }
  }
  static __device__ __forceinline__ float2 WeightScales(const Rows& rows, int step) {
    return make_float2(__ldg(rows.scale_low + step), __ldg(rows.scale_high + step));
  }

  static __device__ __forceinline__ uint4
  LoadPiece(const Params&, const char* x, int step, int i, int lane) {
    return *reinterpret_cast<const uint4*>(x + step * 128 + i * 64 + lane % 4 * 16);
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
      for (int i = 0; i < 4; ++i) {
        const uint2 a = E4m3ToF16(low[i]), b = E4m3ToF16(high[i]);
#pragma unroll
        for (int n = 0; n < kN; ++n) {
          const uint4 piece = x.Piece(n, j);
          const uint2 v = E4m3ToF16(i == 0   ? piece.x
                                    : i == 1 ? piece.y
                                    : i == 2 ? piece.z
                                             : piece.w);
          MultiplyAddF16(part[n], a.x, b.x, a.y, b.y, v.x, v.y);
        }
      }
    }
    const float2 scales = x.WeightScales();
#pragma unroll
    for (int n = 0; n < kN; ++n) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const float scale = x.Scale(n, e);
        acc[n][e] += part[n][e] * (scales.x * scale);
        acc[n][2 + e] += part[n][2 + e] * (scales.y * scale);
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

}  // namespace baltoro::cuda::product
