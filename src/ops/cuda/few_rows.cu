#include "ops/cuda/few_rows.h"

#include "ops/cuda/dev_switch.h"
#include "ops/cuda/kv_token_device.cuh"
#include "ops/cuda/moe_device.cuh"

namespace baltoro::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kStripRows = 8;
constexpr int kGroup = 32;  // columns: 16 bytes a lane
constexpr int kChunk = 7;   // groups of a warp that are asked for together
constexpr int kChunks = 4;  // of a warp at most
constexpr int kGroupsMax = kChunk * kChunks * kWarps;
// Of a block. A block of [7168, 1024] and one of a matrix of 7168 columns just fill a
// multiprocessor.
constexpr int kSharedMax = 116480;
constexpr int kMultiprocessors = 132;
constexpr int kHalfRows = 8;   // of the matrix instruction
constexpr int kQueryPad = 32;  // elements between rows of queries: they use all banks

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
  bool early;
};

// What the second product of queries needs beside it.
struct QueryParams {
  InputParams input;
  int head_strips, nope_strips;
};

// Where rows of weights lie in shared memory: the second of each two is shifted by half of what all
// banks give at once, so that eight lanes that read of both touch each bank once.
struct WeightRows {
  int row, shift, pair;  // bytes

  __host__ __device__ explicit WeightRows(int k)
      : row(k * 2), shift(k * 2 % 128 == 0 ? 64 : 0), pair(2 * row + shift) {}
  __host__ __device__ int At(int r) const { return r / 2 * pair + r % 2 * (row + shift); }
  // All, and behind them the barrier, unless the last shift has room for it beyond the sums of the
  // warps, which come to lie where the weights were.
  __host__ __device__ int Bytes(int rows) const {
    return rows / 2 * pair + (InShift(rows) ? 0 : 16);
  }
  __host__ __device__ int Barrier(int rows) const {
    return InShift(rows) ? LastShift(rows) : rows / 2 * pair;
  }

 private:
  __host__ __device__ int LastShift(int rows) const { return (rows / 2 - 1) * pair + row; }
  __host__ __device__ bool InShift(int rows) const {
    constexpr int kSumBytes =
        kWarps * 32 * 2 * 8 / kStripRows;  // of a row of weights, 16 rows of x
    return shift > 0 && LastShift(rows) >= rows * kSumBytes;
  }
};

// This warp's row of the low-rank query, normalised, to shared memory. `weight` is read before.
constexpr int kQueryEights = 8;  // a lane: rows of up to 2048

__device__ __forceinline__ void NormaliseQuery(const InputParams& p,
                                               int row,
                                               int lane,
                                               __nv_bfloat16* to) {
  const __nv_bfloat16* from = p.x + row * p.stride;
  float x[kQueryEights][kEight];
  float squares = 0;
#pragma unroll
  for (int i = 0; i < kQueryEights; ++i) {
    const int at = (i * 32 + lane) * kEight;
    LoadEight(from + at, p.q_lora - at, true, x[i]);
    squares = AddSquares(x[i], squares);
  }
#pragma unroll
  for (int step = 16; step > 0; step /= 2) squares += __shfl_xor_sync(~0u, squares, step);
  const float scale = 1.0f / sqrtf(squares / static_cast<float>(p.q_lora) + p.eps);
#pragma unroll
  for (int i = 0; i < kQueryEights; ++i) {
    const int at = (i * 32 + lane) * kEight;
    if (at >= p.q_lora) break;
    float weight[kEight];
    LoadEight(p.q_norm + at, kEight, true, weight);
    Normalise(x[i], scale, weight);
    StoreEight(to + at, kEight, true, x[i]);
  }
}

// Cosine and sine of a pair; positions outside the table spoil it.
__device__ __forceinline__ float2 AngleOf(const InputParams& p, int token, int j) {
  const int64_t position = p.positions[token];
  if (position < 0 || position >= p.table_positions) {
    return make_float2(__int_as_float(0x7FC00000), __int_as_float(0x7FC00000));
  }
  const int64_t at = position * (p.cache.rope / 2) + j;
  return make_float2(p.cos[at], p.sin[at]);
}

__device__ __forceinline__ float2 Rotate(float2 pair, float2 angle) {
  const float a = __bfloat162float(__float2bfloat16_rn(pair.x));
  const float b = __bfloat162float(__float2bfloat16_rn(pair.y));
  return make_float2(fmaf(a, angle.x, -b * angle.y), fmaf(b, angle.x, a * angle.y));
}

// kStrips strips of 8 rows of weights a block, the columns shared by its warps. kTall: of 9 to 16
// rows, else of up to 8.
template <int kStrips, bool kQuery, bool kTall>
__global__ void __launch_bounds__(kThreads, kTall&& kStrips == 1 ? 1 : 2)
    FewRowsKernel(const __grid_constant__ Params p, const __grid_constant__ QueryParams query) {
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
  const int groups = p.k / kGroup;
  const int begin = groups * warp / kWarps, end = groups * (warp + 1) / kWarps;
  const uint32_t shared = SharedAddress(memory);
  constexpr int kRows = kStrips * kStripRows;
  const WeightRows place(p.k);
  const uint32_t barrier = shared + place.Barrier(kRows);
  if (threadIdx.x == 0) {
    BarrierInit(barrier, 1);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    BarrierExpectBytes(barrier, kRows * place.row);
  }
  __syncthreads();
  if (threadIdx.x < kRows) {
    // By the copy engine: loads of so many bytes would keep the warps.
    const int64_t row = static_cast<int64_t>(strip) * kStripRows + threadIdx.x;
    CopyBulk(shared + place.At(threadIdx.x), m.w + row * place.row, place.row, barrier,
             ReadOncePolicy());
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
  if (p.early) AllowNextKernel();
  WaitForEarlierKernels();
  AllowNextKernel();  // only now: see docs/kernels/decode-step.md

  const int token = lane / 4;
  // The rows as they lie in memory, or normalised in shared memory.
  const char* x_row = p.x + token * p.x_row_bytes + lane % 4 * 16;
  [[maybe_unused]] uint32_t x_shared = 0;
  if constexpr (kQuery) {
    auto* const rows = reinterpret_cast<__nv_bfloat16*>(memory + place.Bytes(kRows));
    for (int row = warp; row < p.rows; row += kWarps) {
      NormaliseQuery(query.input, row, lane, rows + row * (p.k + kQueryPad));
    }
    __syncthreads();
    x_shared = SharedAddress(rows + token * (p.k + kQueryPad)) + lane % 4 * 16;
  }
  // Rows are asked for far ahead where a warp has many groups.
  constexpr int kBuffers = kStrips == 1 && !kQuery ? 3 : 1;
  uint4 x[kBuffers][kHalves][kChunk];
  const auto load = [&](int c, uint4(&to)[kHalves][kChunk]) {
#pragma unroll
    for (int i = 0; i < kChunk; ++i) {
      const int group = begin + c * kChunk + i;
#pragma unroll
      for (int h = 0; h < kHalves; ++h) {
        to[h][i] = make_uint4(0, 0, 0, 0);
        if (group >= end || token + 8 * h >= p.rows) continue;
        if constexpr (kQuery) {
          to[h][i] = LoadShared4(x_shared + (h * 8 * (p.k + kQueryPad) + group * kGroup) * 2);
        } else {
          to[h][i] = __ldcg(
              reinterpret_cast<const uint4*>(x_row + h * 8 * p.x_row_bytes + group * kGroup * 2));
        }
      }
    }
  };
#pragma unroll
  for (int c = 0; c < kBuffers; ++c) load(c, x[c]);
  constexpr int kSums = kStrips == 1 ? 2 : 1;  // side by side: products wait for their sums
  float acc[kStrips][kSums][4] = {};
  const uint32_t own = shared + place.At(token) + lane % 4 * 16;
  BarrierWait(barrier, 0);
#pragma unroll
  for (int c = 0; c < kChunks; ++c) {
    if (begin + c * kChunk >= end) break;
    if (kBuffers == 1 && c > 0) load(c, x[0]);
    uint4(&here)[kHalves][kChunk] = x[c % kBuffers];
#pragma unroll
    for (int i = 0; i < kChunk; ++i) {
      const int group = begin + c * kChunk + i;
      if (group >= end) break;
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
  __syncthreads();
  if (warp >= kStrips) return;
#pragma unroll
  for (int h = 0; h < kHalves; ++h) {
    if (token + 8 * h >= p.rows) continue;
    float2 sum = make_float2(0, 0);
#pragma unroll
    for (int other = 0; other < kWarps; ++other) {
      const float2 one = *sums_of(other, warp, h);
      sum.x += one.x;
      sum.y += one.y;
    }
    if constexpr (kQuery) {
      if (in_head >= 0) sum = Rotate(sum, angles[h]);
    }
    const int64_t at = (token + 8 * h) * m.out_stride + (strip + warp) * kStripRows + lane % 4 * 2;
    if (m.bf16) {
      *reinterpret_cast<uint32_t*>(static_cast<__nv_bfloat16*>(m.out) + at) =
          hopper::PackBf16(sum.x, sum.y);
    } else {
      *reinterpret_cast<float2*>(static_cast<float*>(m.out) + at) = sum;
    }
  }
}

bool Aligned(const void* data, int64_t row_bytes, int64_t to) {
  return reinterpret_cast<uintptr_t>(data) % static_cast<uintptr_t>(to) == 0 && row_bytes % to == 0;
}

// Strips of a block: the multiprocessor that has most has as few as can be; of equals the most,
// whose rows are loaded once. 0: the matrix is not for this kernel.
int StripsOfBlock(int64_t n, int64_t k) {
  const int64_t strips = n / kStripRows;
  int best = 0;
  int64_t least = INT64_MAX;
  for (const int each : {1, 2, 7}) {
    const int64_t bytes = WeightRows(static_cast<int>(k)).Bytes(each * kStripRows);
    if (strips % each != 0 || bytes > kSharedMax) continue;
    const int64_t blocks = strips / each;
    const int64_t most = (blocks + kMultiprocessors - 1) / kMultiprocessors;
    // What does not fit at once is not ahead of anything.
    if (most * bytes > 2 * kSharedMax) continue;
    if (most * each > least) continue;
    least = most * each;
    best = each;
  }
  return best;
}

bool TakesMatrix(const TensorView& out, const PackedMatrix& w) {
  return w.form == WeightForm::kBf16 && w.count == 1 && w.n % kStripRows == 0 && w.n > 0 &&
         w.k % kGroup == 0 && w.k / kGroup >= kWarps && w.k / kGroup <= kGroupsMax &&
         Aligned(w.data, w.k * 2, 16) &&
         Aligned(out.data, out.dim(0) <= 1 ? 0 : out.stride[0] * SizeOf(out.dtype),
                 2 * SizeOf(out.dtype)) &&
         StripsOfBlock(w.n, w.k) > 0;
}

bool TakesRows(const TensorView& x) {
  return x.dtype == DType::kBf16 && x.dim(0) >= 1 && x.dim(0) <= kFewRowsMax && InVectors(x);
}

// Every block reads all rows: of many blocks that is more than the weights.
bool RowsAreLight(int64_t rows, const PackedMatrix& w) {
  constexpr int64_t kMost = int64_t{32} << 20;
  return rows <= kHalfRows || w.n / kStripRows / StripsOfBlock(w.n, w.k) * rows * w.k * 2 <= kMost;
}

Matrix MatrixOf(const TensorView& out, const PackedMatrix& w) {
  return {.w = static_cast<const char*>(w.data),
          .out = out.data,
          .out_stride = out.stride[0],
          .strips = static_cast<int>(w.n / kStripRows),
          .bf16 = out.dtype == DType::kBf16};
}

template <int kStrips, bool kQuery>
void Launch(
    const Params& p, const QueryParams& query, int blocks, int query_bytes, cudaStream_t stream) {
  const int bytes = WeightRows(p.k).Bytes(kStrips * kStripRows) + query_bytes;
  const auto kernel = p.rows > kHalfRows ? FewRowsKernel<kStrips, kQuery, true>
                                         : FewRowsKernel<kStrips, kQuery, false>;
  CheckCuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
            "few rows");
  const Status launched =
      LaunchOverlapped("few rows", kernel, dim3(static_cast<unsigned>(blocks)), dim3(kThreads),
                       static_cast<size_t>(bytes), stream, 1, p, query);
  CheckLaunch("few rows");
  BT_CHECK(launched.ok());
}

void LaunchStrips(Params& p, int strips_of_block, cudaStream_t stream) {
  p.blocks = (p.first.strips + p.second.strips) / strips_of_block;
  switch (strips_of_block) {
    case 1:
      return Launch<1, false>(p, {}, p.blocks, 0, stream);
    case 2:
      return Launch<2, false>(p, {}, p.blocks, 0, stream);
    default:
      return Launch<7, false>(p, {}, p.blocks, 0, stream);
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
          .early = EarlyNext(1)};
}

void CheckProduct(const TensorView& out, const TensorView& x, const PackedMatrix& w) {
  BT_CHECK(x.rank == 2 && out.rank == 2 && FewRowsTakes(out, x, w));
  BT_CHECK(out.dim(0) == x.dim(0) && out.dim(1) == w.n && x.dim(1) == w.k);
}

constexpr int kQueryStrips = 2;

}  // namespace

bool FewRowsTakes(const TensorView& out, const TensorView& x, const PackedMatrix& w) {
  return TakesRows(x) && TakesMatrix(out, w) && RowsAreLight(x.dim(0), w);
}

void FewRowsProduct(const OpContext& ctx, TensorView out, TensorView x, const PackedMatrix& w) {
  CheckProduct(out, x, w);
  Params p = ParamsOf(x, MatrixOf(out, w), w.k);
  LaunchStrips(p, StripsOfBlock(w.n, w.k), StreamOf(ctx));
}

void FewRowsProducts(const OpContext& ctx,
                     TensorView out,
                     const PackedMatrix& w,
                     TensorView second_out,
                     const PackedMatrix& second,
                     TensorView x) {
  CheckProduct(out, x, w);
  CheckProduct(second_out, x, second);
  Params p = ParamsOf(x, MatrixOf(out, w), w.k);
  p.second = MatrixOf(second_out, second);
  LaunchStrips(p, 1, StreamOf(ctx));
}

bool QueryProductTakes(const AttentionInputArgs& args) {
  const TensorView& x = args.qkv_a;
  const PackedMatrix& w = args.q_weight;
  const KvLayerView& cache = args.cache;
  if (!TakesRows(x) || x.stride[0] % kEight != 0 || args.q.rank != 3) return false;
  const int64_t width = args.q.dim(2), nope = width - args.rope.dim;
  TensorView flat(args.q.data, args.q.dtype, {x.dim(0), args.q.dim(1) * width});
  flat.stride[0] = args.q.stride[0];
  return args.q.dtype == DType::kBf16 && args.q.stride[1] == width && TakesMatrix(flat, w) &&
         w.n == args.q.dim(1) * width && w.n / kStripRows % kQueryStrips == 0 &&
         nope % kStripRows == 0 && width % kStripRows == 0 && nope > 0 &&
         w.k == x.dim(1) - cache.latent - cache.rope && w.k <= 32 * kEight * kQueryEights &&
         WeightRows(static_cast<int>(w.k)).Bytes(kQueryStrips * kStripRows) +
                 kFewRowsMax * (w.k + kQueryPad) * 2 <=
             kSharedMax &&
         Aligned(args.q_norm.data, 0, 16) &&
         InputThreads(cache.latent) + InputThreads(cache.rope) <= kThreads;
}

void QueryProduct(const OpContext& ctx, const AttentionInputArgs& args) {
  BT_CHECK(QueryProductTakes(args));
  TensorView flat(args.q.data, args.q.dtype, {args.qkv_a.dim(0), args.q_weight.n});
  flat.stride[0] = args.q.stride[0];
  const int64_t k = args.q_weight.k;
  Params p = ParamsOf(args.qkv_a, MatrixOf(flat, args.q_weight), k);
  p.blocks = p.first.strips / kQueryStrips;
  const int64_t width = args.q.dim(2);
  const QueryParams query = {.input = InputParamsOf(args),
                             .head_strips = static_cast<int>(width / kStripRows),
                             .nope_strips = static_cast<int>((width - args.rope.dim) / kStripRows)};
  const auto row_bytes = static_cast<int>((k + kQueryPad) * 2);
  Launch<kQueryStrips, true>(p, query, p.blocks + p.rows, p.rows * row_bytes, StreamOf(ctx));
}

}  // namespace baltoro::cuda
