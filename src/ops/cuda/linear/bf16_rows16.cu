#include "ops/cuda/linear/bf16_rows16.h"

#include "ops/cuda/launch/overlapped_launch.h"
#include "ops/cuda/ptx/barriers.cuh"
#include "ops/cuda/rows/kv_token_device.cuh"
#include "ops/cuda/rows/norm_begun_device.cuh"
#include "ops/cuda/rows/query_rotation.h"

namespace baltoro::cuda {
namespace {

using namespace bf16_rows16;

struct Matrix {
  const char* w;
  void* out;
  int64_t out_stride;
  int strips;
  bool bf16;
};

struct Params {
  Matrix first, second;
  const char* x;
  int64_t x_row_bytes;
  int rows, k, blocks;
  BegunNormArgs from, to;  // where x comes from a norm, and where the product goes
  __nv_bfloat16* normed;   // of `from`, written for those after; null: not
  int64_t normed_stride;
};

// What the second product of queries needs beside it.
struct QueryParams {
  InputParams input;
  int head_strips, nope_strips;
};

// Eight elements of the low-rank query times the weight of their norm, and the sum of their
// squares.
__device__ __forceinline__ void WeighQuery(uint4& x, uint32_t weight, float& squares) {
  const uint4 low = LoadShared4(weight), high = LoadShared4(weight + 16);
  const uint32_t weights[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
  uint32_t* const words[4] = {&x.x, &x.y, &x.z, &x.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float a = __uint_as_float(*words[i] << 16);
    const float b = __uint_as_float(*words[i] & 0xFFFF0000u);
    squares = fmaf(a, a, fmaf(b, b, squares));
    *words[i] = hopper::PackBf16(a * __uint_as_float(weights[2 * i]),
                                 b * __uint_as_float(weights[2 * i + 1]));
  }
}

// Eight columns of one token of a norm's residual, on their way to Params::normed.
struct NormedPart {
  float4 x[2], weight[2];
  int token, column;

  __device__ __forceinline__ void Load(const BegunNormArgs& norm, int at_token, int at_column) {
    token = at_token;
    column = at_column;
    const auto* const from =
        reinterpret_cast<const float4*>(norm.residual + token * norm.residual_stride + column);
    const auto* const weights = reinterpret_cast<const float4*>(norm.weight + column);
#pragma unroll
    for (int i = 0; i < 2; ++i) x[i] = __ldcg(from + i), weight[i] = __ldg(weights + i);
  }
  __device__ __forceinline__ void Write(__nv_bfloat16* to, int64_t stride, float scale) const {
    uint32_t words[4];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      words[2 * i] =
          hopper::PackBf16(x[i].x * (scale * weight[i].x), x[i].y * (scale * weight[i].y));
      words[2 * i + 1] =
          hopper::PackBf16(x[i].z * (scale * weight[i].z), x[i].w * (scale * weight[i].w));
    }
    *reinterpret_cast<uint4*>(to + token * stride + column) =
        make_uint4(words[0], words[1], words[2], words[3]);
  }
};

// kStrips strips of 8 rows of weights a block, the columns shared by its warps. kTall: of 9 to 16
// rows, else of up to 8.
template <int kStrips, bool kQuery, bool kTall>
__global__ void __launch_bounds__(kThreads, kTall&& kStrips == 1 ? 1 : 2)
    Bf16Rows16Kernel(const __grid_constant__ Params p, const __grid_constant__ QueryParams query) {
  extern __shared__ __align__(128) char memory[];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (kQuery && static_cast<int>(blockIdx.x) >= p.blocks) {
    WriteToken(query.input, static_cast<int>(blockIdx.x) - p.blocks,
               reinterpret_cast<float*>(memory));
    return;
  }
  int strip = static_cast<int>(blockIdx.x) * kStrips;
  const bool of_second = !kQuery && strip >= p.first.strips;
  if (of_second) strip -= p.first.strips;
  const Matrix& m = of_second ? p.second : p.first;
  // Of one strip each chunk of columns is shared by the warps and arrives by itself, so that the
  // others are multiplied meanwhile; of several strips a warp has all chunks of its columns.
  constexpr bool kByChunk = kStrips == 1 && !kQuery;
  const int groups = p.k / kGroup;
  const auto chunk_begin = [&](int c) { return groups * c / kChunks; };
  const auto first_of = [&](int c, int of_warp) {
    if constexpr (kByChunk) {
      const int from = chunk_begin(c);
      return from + (chunk_begin(c + 1) - from) * of_warp / kWarps;
    } else {
      return min(groups * of_warp / kWarps + c * kChunk, groups * (of_warp + 1) / kWarps);
    }
  };
  // This warp's groups of chunk c.
  const auto begin_of = [&](int c) { return first_of(c, warp); };
  const auto end_of = [&](int c) {
    return kByChunk ? first_of(c, warp + 1) : first_of(c + 1, warp);
  };
  const uint32_t shared = SharedAddress(memory);
  constexpr int kRows = kStrips * kStripRows;
  const WeightRows place(p.k);
  const uint32_t barrier = shared + place.Barrier(kRows);
  if (threadIdx.x == 0) {
    for (int c = 0; c < (kByChunk ? kChunks : 1); ++c) BarrierInit(barrier + 8 * c, 1);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    if constexpr (kByChunk) {
      for (int c = 0; c < kChunks; ++c) {
        BarrierExpectBytes(barrier + 8 * c,
                           kRows * (chunk_begin(c + 1) - chunk_begin(c)) * kGroup * 2);
      }
    } else {
      BarrierExpectBytes(barrier, kRows * place.row);
    }
  }
  __syncthreads();
  // By the copy engine: loads of so many bytes would keep the warps.
  const int64_t first_row = static_cast<int64_t>(strip) * kStripRows;
  if constexpr (kByChunk) {
    const int row = lane % kStripRows, c = lane / kStripRows;
    static_assert(kChunks * kStripRows == 32);
    const int at = chunk_begin(c) * kGroup * 2, bytes = chunk_begin(c + 1) * kGroup * 2 - at;
    if (warp == 0 && bytes > 0) {
      CopyBulk(shared + place.At(row) + at, m.w + (first_row + row) * place.row + at, bytes,
               barrier + 8 * c, ReadOncePolicy());
    }
  } else if (threadIdx.x < kRows) {
    CopyBulk(shared + place.At(threadIdx.x), m.w + (first_row + threadIdx.x) * place.row, place.row,
             barrier, ReadOncePolicy());
  }
  [[maybe_unused]] const uint32_t q_norm = shared + place.Bytes(kRows);
  if constexpr (kQuery) {
    auto* const to = reinterpret_cast<float4*>(memory + place.Bytes(kRows));
    for (int i = threadIdx.x; i < p.k / 4; i += kThreads) {
      to[i] = __ldg(reinterpret_cast<const float4*>(query.input.q_norm) + i);
    }
    __syncthreads();
  }
  // Positions are older than the kernel ahead. Of the warps that end with the sums of a strip.
  constexpr int kHalves = kTall ? 2 : 1;  // of 8 rows
  [[maybe_unused]] float2 angles[kHalves];
  [[maybe_unused]] int in_head = -1;
  if constexpr (kQuery) {
    in_head = (strip + warp) % query.head_strips - query.nope_strips;
#pragma unroll
    for (int h = 0; h < kHalves; ++h) {
      const int token = lane / 4 + 8 * h;
      if (warp >= kStrips || in_head < 0 || token >= p.rows) continue;
      angles[h] = AngleOf(query.input, token, in_head * (kStripRows / 2) + lane % 4);
    }
  }
  WaitForEarlierKernels();
  AllowNextKernel();  // only now: see docs/kernels/decode-step.md

  const int token = lane / 4;
  const char* const x_row = p.x + token * p.x_row_bytes + lane % 4 * 16;
  const int column = (strip + warp) * kStripRows + lane % 4 * 2;  // of warps below kStrips
  // Rows are asked for far ahead where a warp has many groups.
  constexpr int kBuffers = kStrips == 1 && !kQuery ? 3 : 1;
  uint4 x[kBuffers][kHalves][kChunk];
  const auto load = [&](int c, uint4(&to)[kHalves][kChunk]) {
#pragma unroll
    for (int i = 0; i < kChunk; ++i) {
      const int group = begin_of(c) + i;
#pragma unroll
      for (int h = 0; h < kHalves; ++h) {
        to[h][i] = make_uint4(0, 0, 0, 0);
        if (group >= end_of(c) || token + 8 * h >= p.rows) continue;
        to[h][i] = __ldcg(
            reinterpret_cast<const uint4*>(x_row + h * 8 * p.x_row_bytes + group * kGroup * 2));
      }
    }
  };
#pragma unroll
  for (int c = 0; c < kBuffers; ++c) load(c, x[c]);
  // What the sums are to be scaled with and added to.
  [[maybe_unused]] float squares[kHalves] = {};
  [[maybe_unused]] float4 parts[kHalves];
  float2 held[kHalves], to_weight = make_float2(0, 0);
  if constexpr (!kQuery) {
#pragma unroll
    for (int h = 0; h < kHalves; ++h) {
      if (p.from.squares != nullptr && warp + 8 * h < p.rows) {
        parts[h] = LoadSquares(p.from, warp + 8 * h, lane);
      }
      held[h] = make_float2(0, 0);
      if (p.to.residual == nullptr || warp >= kStrips) continue;
      to_weight = __ldg(reinterpret_cast<const float2*>(p.to.weight + column));
      if (token + 8 * h >= p.rows) continue;
      held[h] = __ldcg(reinterpret_cast<const float2*>(
          p.to.residual + (token + 8 * h) * p.to.residual_stride + column));
    }
  }
  constexpr int kSums = kStrips == 1 ? 2 : 1;  // side by side: products wait for their sums
  float acc[kStrips][kSums][4] = {};
  const uint32_t own = shared + place.At(token) + lane % 4 * 16;
  if constexpr (!kByChunk) BarrierWait(barrier, 0);
#pragma unroll
  for (int c = 0; c < kChunks; ++c) {
    if (!kByChunk && begin_of(c) >= end_of(c)) break;
    // Of every chunk, though a warp may have nothing of it: what comes in later would meet the
    // sums.
    if constexpr (kByChunk) BarrierWait(barrier + 8 * c, 0);
    if (kBuffers == 1 && c > 0) load(c, x[0]);
    uint4(&here)[kHalves][kChunk] = x[c % kBuffers];
#pragma unroll
    for (int i = 0; i < kChunk; ++i) {
      const int group = begin_of(c) + i;
      if (group >= end_of(c)) break;
      if constexpr (kQuery) {
#pragma unroll
        for (int h = 0; h < kHalves; ++h) {
          WeighQuery(here[h][i], q_norm + (group * kGroup + lane % 4 * 8) * 4, squares[h]);
        }
      }
#pragma unroll
      for (int s = 0; s < kStrips; ++s) {
        const uint4 v = LoadShared4(own + s * place.At(kStripRows) + group * kGroup * 2);
        const uint4 low = here[0][i];
        const uint4 high = kTall ? here[kHalves - 1][i] : make_uint4(0, 0, 0, 0);
        constexpr int kLast = kSums - 1;
        MultiplyAdd(acc[s][2 * i & kLast], low.x, high.x, low.y, high.y, v.x, v.y);
        MultiplyAdd(acc[s][(2 * i + 1) & kLast], low.z, high.z, low.w, high.w, v.z, v.w);
      }
    }
    if (kBuffers > 1 && c + kBuffers < kChunks) load(c + kBuffers, here);
  }

  // The last warps have this block's parts of the normalised rows.
  NormedPart normed;
  [[maybe_unused]] int part = kThreads - 1 - static_cast<int>(threadIdx.x);
  const auto load_part = [&] {
    if (kQuery || p.normed == nullptr) return false;
    const int eight = part / p.rows * p.blocks + static_cast<int>(blockIdx.x);
    if (eight * 8 >= p.from.width) return false;
    normed.Load(p.from, part % p.rows, eight * 8);
    return true;
  };
  bool writes = load_part();

  // The warps' sums, over the weights, which all have read.
  __syncthreads();
  const auto sums_of = [&](int of_warp, int s, int h) {
    return reinterpret_cast<float2*>(memory) + ((of_warp * kStrips + s) * kHalves + h) * 32 + lane;
  };
#pragma unroll
  for (int s = 0; s < kStrips; ++s) {
#pragma unroll
    for (int h = 0; h < kHalves; ++h) {
      float2 sum = make_float2(acc[s][0][2 * h], acc[s][0][2 * h + 1]);
#pragma unroll
      for (int i = 1; i < kSums; ++i) {
        sum.x += acc[s][i][2 * h];
        sum.y += acc[s][i][2 * h + 1];
      }
      *sums_of(warp, s, h) = sum;
    }
  }
  // Of queries [warp][token]: squares; of the rows of a norm [token]: scales.
  auto* const by_token = reinterpret_cast<float*>(memory + kWarps * kStrips * kHalves * 32 * 8);
#pragma unroll
  for (int h = 0; h < kHalves; ++h) {
    if constexpr (kQuery) {
      const float sum = SumOfFour(squares[h]);
      if (lane % 4 == 0) by_token[warp * kRowsMax + token + 8 * h] = sum;
    } else {
      if (p.from.squares == nullptr || warp + 8 * h >= p.rows) continue;
      const float scale = RowScale(p.from, parts[h]);
      if (lane == 0) by_token[warp + 8 * h] = scale;
    }
  }
  __syncthreads();
  while (writes) {
    normed.Write(p.normed, p.normed_stride, by_token[normed.token]);
    part += kThreads;
    writes = load_part();
  }
  auto* const squares_of = by_token + kTokenBytes / 4;  // of a norm's sums: [strip][token]
#pragma unroll
  for (int h = 0; h < kHalves; ++h) {
    const int row = token + 8 * h;
    if (warp >= kStrips) break;
    float2 sum = make_float2(0, 0);
#pragma unroll
    for (int other = 0; other < kWarps; ++other) {
      const float2 one = *sums_of(other, warp, h);
      sum.x += one.x;
      sum.y += one.y;
    }
    if constexpr (kQuery) {
      float all = 0;
#pragma unroll
      for (int other = 0; other < kWarps; ++other) all += by_token[other * kRowsMax + row];
      const float scale = 1.0f / sqrtf(all / static_cast<float>(p.k) + query.input.eps);
      sum.x *= scale;
      sum.y *= scale;
      if (in_head >= 0) sum = Rotate(sum, angles[h]);
    } else if (p.from.squares != nullptr) {
      const float scale = row < p.rows ? by_token[row] : 0;
      sum.x *= scale;
      sum.y *= scale;
    }
    if (!kQuery && p.to.residual != nullptr) {
      float own = 0;
      if (row < p.rows) own = AddToNorm(p.to, row, column, held[h], sum, to_weight);
      own = SumOfFour(own);
      if (lane % 4 == 0) squares_of[warp * kRowsMax + row] = own;
      continue;
    }
    if (row >= p.rows) continue;
    const int64_t at = row * m.out_stride + column;
    if (m.bf16) {
      *reinterpret_cast<uint32_t*>(static_cast<__nv_bfloat16*>(m.out) + at) =
          hopper::PackBf16(sum.x, sum.y);
    } else {
      *reinterpret_cast<float2*>(static_cast<float*>(m.out) + at) = sum;
    }
  }
  if (kQuery || p.to.residual == nullptr) return;
  __syncthreads();
  if (threadIdx.x >= static_cast<unsigned>(p.rows)) return;
  float sum = 0;
#pragma unroll
  for (int s = 0; s < kStrips; ++s) sum += squares_of[s * kRowsMax + threadIdx.x];
  WriteSquares(p.to, static_cast<int>(threadIdx.x), static_cast<int>(blockIdx.x), p.blocks, sum);
}

Matrix MatrixOf(const TensorView& out, const PackedMatrix& w) {
  return {.w = static_cast<const char*>(w.data),
          .out = out.data,
          .out_stride = out.stride[0],
          .strips = static_cast<int>(w.n / kStripRows),
          .bf16 = out.dtype == DType::kBf16};
}

Region OutOf(const Matrix& m, int64_t rows) {
  const int64_t size = m.bf16 ? 2 : 4;
  return RowsRegion(m.out, rows, m.out_stride * size, m.strips * kStripRows * size);
}

// With norms around it, it touches more than is listed: it may touch anything.
LaunchNote NoteOf(const Params& p) {
  LaunchNote note = "bf16_rows16";
  note.next = NextStarts::kAfterWait;
  if (p.from.squares != nullptr || p.to.residual != nullptr) return note;
  note.writes = {OutOf(p.first, p.rows), OutOf(p.second, p.rows)};
  note.reads = RowsRegion(p.x, p.rows, p.x_row_bytes, int64_t{p.k} * 2);
  return note;
}

template <int kStrips, bool kQuery>
void Launch(const Bf16Rows16Plan& plan,
            const Params& p,
            const QueryParams& query,
            const LaunchStream& stream) {
  const auto bytes = static_cast<size_t>(plan.launch.shared);
  const auto kernel = plan.tall ? Bf16Rows16Kernel<kStrips, kQuery, true>
                                : Bf16Rows16Kernel<kStrips, kQuery, false>;
  CheckCuda(AllowShared(kernel, plan.launch.shared), "bf16_rows16");
  const Status launched = LaunchOverlapped(kQuery ? LaunchNote("bf16_rows16, queries") : NoteOf(p),
                                           kernel, dim3(static_cast<unsigned>(plan.launch.x)),
                                           dim3(kThreads), bytes, stream, 1, p, query);
  CheckLaunch("bf16_rows16");
  BT_CHECK(launched.ok());
}

void LaunchStrips(const Bf16Rows16Plan& plan, Params& p, const LaunchStream& stream) {
  p.blocks = plan.launch.x;
  BT_CHECK(p.blocks * plan.strips == p.first.strips + p.second.strips);
  BT_CHECK(plan.tall == (p.rows > kHalfRows));
  switch (plan.strips) {
    case 1:
      return Launch<1, false>(plan, p, {}, stream);
    case 2:
      return Launch<2, false>(plan, p, {}, stream);
    default:
      return Launch<7, false>(plan, p, {}, stream);
  }
}

Params ParamsOf(const TensorView& x, const Matrix& first, int64_t k) {
  return {.first = first,
          .second = {},
          .x = static_cast<const char*>(x.data),
          .x_row_bytes = x.dim(0) <= 1 ? 0 : x.stride[0] * 2,
          .rows = static_cast<int>(x.dim(0)),
          .k = static_cast<int>(k),
          .blocks = 0,
          .from = {},
          .to = {},
          .normed = nullptr,
          .normed_stride = 0};
}

void CheckProduct(const TensorView& out, const TensorView& x, const PackedMatrix& w) {
  BT_CHECK(x.rank == 2 && out.rank == 2 && w.form == WeightForm::kBf16);
  BT_CHECK(out.dim(0) == x.dim(0) && out.dim(1) == w.n && x.dim(1) == w.k);
}

}  // namespace

void Bf16Rows16Product(const OpContext& ctx,
                       const Bf16Rows16Plan& plan,
                       TensorView out,
                       TensorView x,
                       const PackedMatrix& w,
                       const NormsOfProduct& norms) {
  CheckProduct(out, x, w);
  Params p = ParamsOf(x, MatrixOf(out, w), w.k);
  if (norms.from != nullptr) p.from = BegunNormArgsOf(*norms.from);
  if (norms.to != nullptr) p.to = BegunNormArgsOf(*norms.to);
  LaunchStrips(plan, p, StreamOf(ctx));
}

void Bf16Rows16Products(const OpContext& ctx,
                        const Bf16Rows16Plan& plan,
                        TensorView out,
                        const PackedMatrix& w,
                        TensorView second_out,
                        const PackedMatrix& second,
                        TensorView x,
                        const BegunNorm* norm) {
  const TensorView& rows = norm == nullptr ? x : norm->rows;
  CheckProduct(out, rows, w);
  CheckProduct(second_out, rows, second);
  Params p = ParamsOf(rows, MatrixOf(out, w), w.k);
  p.second = MatrixOf(second_out, second);
  if (norm != nullptr) {
    BT_CHECK(x.dtype == DType::kBf16 && x.dim(0) == p.rows && x.dim(1) == p.k && InVectors(x));
    p.from = BegunNormArgsOf(*norm);
    p.normed = static_cast<__nv_bfloat16*>(x.data);
    p.normed_stride = x.stride[0];
  }
  LaunchStrips(plan, p, StreamOf(ctx));
}

void QueryProduct(const OpContext& ctx,
                  const Bf16Rows16Plan& plan,
                  const AttentionInputArgs& args) {
  Params p = ParamsOf(args.qkv_a, MatrixOf(FlatQueries(args), args.q_weight), args.q_weight.k);
  p.blocks = p.first.strips / kQueryStrips;
  BT_CHECK(plan.strips == kQueryStrips && plan.launch.x == p.blocks + p.rows);
  const int64_t width = args.q.dim(2);
  const QueryParams query = {.input = InputParamsOf(args),
                             .head_strips = static_cast<int>(width / kStripRows),
                             .nope_strips = static_cast<int>((width - args.rope.dim) / kStripRows)};
  Launch<kQueryStrips, true>(plan, p, query, StreamOf(ctx));
}

}  // namespace baltoro::cuda
