// Products of each head with its own matrix: queries into the latent space, latents to value heads.
//
// A thread block makes kRows x kColumns of one head's product; all of the sum's dimension lies in
// shared memory at once. The matrices do not depend on the kernel before, so they are asked for
// before its end is waited for.

#include "ops/cuda/attention_kernels.h"
#include "ops/cuda/attention_mma.cuh"
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/hopper.cuh"

namespace baltoro::cuda {
namespace {

constexpr int kFewHeads = 16;
constexpr int kTensOfRows = 128;

constexpr int kThreads = 128;
constexpr int kWarps = kThreads / 32;

// Bytes from one row to the next in shared memory: 8 rows of 16 bytes touch all banks.
template <int kDepth>
constexpr int kPitch = kDepth * 2 + 16;

// Rows [0, kRows) of `from` to shared memory; row r < count comes from row_of(r), -1 gives zeros.
template <int kDepth, int kRows, typename RowOf>
__device__ __forceinline__ void CopyRows(
    uint32_t to, const __nv_bfloat16* from, int64_t stride, int count, RowOf row_of) {
  constexpr int kChunks = kDepth / 8;
  for (int i = threadIdx.x; i < kRows * kChunks; i += kThreads) {
    const int row = i / kChunks, chunk = i % kChunks;
    const int source = row < count ? row_of(row) : -1;
    const auto* const address = from + (source < 0 ? 0 : source * stride) + chunk * 8;
    CopyAsync16(to + row * kPitch<kDepth> + chunk * 16, address, source >= 0);
  }
}

// Of up to 16 rows each warp makes some columns of all, else all columns of some rows.
template <int kDepth, int kRows, int kColumns, bool kAbsorb>
__global__ void __launch_bounds__(kThreads)
    HeadProductKernel(const __grid_constant__ HeadProductArgs args) {
  constexpr bool kFewRows = kRows == 16;
  constexpr int kWarpColumns = kFewRows ? kColumns / kWarps : kColumns;
  static_assert(kFewRows || kRows == 16 * kWarps);
  static_assert(kWarpColumns % 8 == 0);
  extern __shared__ __align__(16) unsigned char raw[];
  const uint32_t w_at = hopper::SharedAddress(raw);
  const uint32_t x_at = w_at + kColumns * kPitch<kDepth>;
  const int head = blockIdx.y;
  const int first_column = blockIdx.x * kColumns;
  const int64_t first_row = int64_t{blockIdx.z} * kRows;
  const int count = static_cast<int>(min(args.count - first_row, int64_t{kRows}));
  const auto* const w = static_cast<const __nv_bfloat16*>(args.w) + head * args.w_head_stride +
                        int64_t{first_column} * kDepth;
  CopyRows<kDepth, kColumns>(w_at, w, kDepth, kColumns, [](int row) { return row; });
  hopper::WaitForPredecessors();
  hopper::LetDependentsLaunch();  // only now: MlaDecodeArgs::keys_are_old
  const int32_t* const rows = args.rows + first_row;
  const auto* const x = static_cast<const __nv_bfloat16*>(args.x) + head * args.x_head_stride;
  CopyRows<kDepth, kRows>(x_at, x, args.x_row_stride, count, [&](int row) -> int {
    if constexpr (kAbsorb) return rows[row];
    return rows[row] < 0 ? -1 : static_cast<int>(first_row) + row;
  });
  auto* const out = static_cast<__nv_bfloat16*>(args.out) + head * args.out_head_stride;
  if (kAbsorb && blockIdx.x == 0) {
    // The rotated part, behind the latent one.
    constexpr int kChunks = kAttentionRope / 8;
    for (int i = threadIdx.x; i < count * kChunks; i += kThreads) {
      const int row = i / kChunks, chunk = i % kChunks;
      uint4 part = make_uint4(0, 0, 0, 0);
      if (rows[row] >= 0) {
        part =
            *reinterpret_cast<const uint4*>(x + rows[row] * args.x_row_stride + kDepth + chunk * 8);
      }
      *reinterpret_cast<uint4*>(out + (first_row + row) * args.out_row_stride + kMlaLatent +
                                chunk * 8) = part;
    }
  }
  WaitAllCopies();
  __syncthreads();

  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int warp_row = kFewRows ? 0 : warp * 16;
  const int warp_column = kFewRows ? warp * kWarpColumns : 0;
  // Several sums side by side where a warp has one tile of columns alone: products wait for theirs.
  constexpr int kSums = kWarpColumns == 8 ? 4 : 1;
  float sums[kSums][kWarpColumns / 8][4] = {};
  // Lane l gives the address of row l % 16, columns 8 (l / 16); of the matrix row l % 8, columns
  // 8 (l / 8 % 2).
  const uint32_t a_at = x_at + (warp_row + lane % 16) * kPitch<kDepth> + lane / 16 * 16;
  const uint32_t b_at = w_at + (warp_column + lane % 8) * kPitch<kDepth> + lane / 8 % 2 * 16;
#pragma unroll 4
  for (int step = 0; step < kDepth / 16; ++step) {
    uint32_t a[4];
    LoadMatrices4(a, a_at + step * 32);
#pragma unroll
    for (int j = 0; j < kWarpColumns / 8; ++j) {
      uint32_t b[2];
      LoadMatrices2(b, b_at + j * 8 * kPitch<kDepth> + step * 32);
      MultiplyAdd(sums[step % kSums][j], a, b);
    }
  }
#pragma unroll
  for (int i = 1; i < kSums; ++i) {
#pragma unroll
    for (int e = 0; e < 4; ++e) sums[0][0][e] += sums[i][0][e];
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int row = warp_row + lane / 4 + 8 * r;
    if (row >= count) continue;
    int64_t to = first_row + row;
    if constexpr (!kAbsorb) to = rows[row];
    if (to < 0) continue;
#pragma unroll
    for (int j = 0; j < kWarpColumns / 8; ++j) {
      const int column = first_column + warp_column + 8 * j + lane % 4 * 2;
      *reinterpret_cast<uint32_t*>(out + to * args.out_row_stride + column) =
          hopper::PackBf16(sums[0][j][2 * r], sums[0][j][2 * r + 1]);
    }
  }
}

template <int kDepth, int kRows, int kColumns, bool kAbsorb>
void Launch(const HeadProductArgs& args, int width, cudaStream_t stream) {
  auto* const kernel = HeadProductKernel<kDepth, kRows, kColumns, kAbsorb>;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(width / kColumns), static_cast<unsigned>(args.heads),
                        static_cast<unsigned>((args.count + kRows - 1) / kRows));
  config.blockDim = kThreads;
  config.dynamicSmemBytes = static_cast<size_t>(kRows + kColumns) * kPitch<kDepth>;
  config.stream = stream;
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  config.attrs = &attribute;
  config.numAttrs = 1;
  CheckCuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 static_cast<int>(config.dynamicSmemBytes)),
            "attention head product");
  CheckCuda(cudaLaunchKernelEx(&config, kernel, args), "attention head product");
}

__global__ void ScatterLseKernel(
    float* to, int64_t stride, const float* from, const int32_t* rows, int64_t count, int heads) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= count * heads) return;
  const int32_t row = rows[i / heads];
  if (row >= 0) to[row * stride + i % heads] = from[i];
}

}  // namespace

// Of few heads and up to 128 rows the largest tiles would leave most multiprocessors without a
// block: 8 heads of 64 rows are 32 blocks of 64 x 128.
void LaunchAbsorbQueries(const HeadProductArgs& args, cudaStream_t stream) {
  if (args.count <= 16) {
    Launch<kAttentionNope, 16, 32, true>(args, kMlaLatent, stream);
  } else if (args.heads <= kFewHeads && args.count <= 64) {
    Launch<kAttentionNope, 64, 32, true>(args, kMlaLatent, stream);
  } else if (args.heads <= kFewHeads && args.count <= kTensOfRows) {
    Launch<kAttentionNope, 64, 64, true>(args, kMlaLatent, stream);
  } else {
    Launch<kAttentionNope, 64, 128, true>(args, kMlaLatent, stream);
  }
}

void LaunchValueHeads(const HeadProductArgs& args, cudaStream_t stream) {
  if (args.count <= 16 || (args.heads <= kFewHeads && args.count <= kTensOfRows)) {
    Launch<kMlaLatent, 16, 32, false>(args, kAttentionValue, stream);
  } else {
    Launch<kMlaLatent, 64, 32, false>(args, kAttentionValue, stream);
  }
}

void LaunchScatterLse(float* to,
                      int64_t to_stride,
                      const float* from,
                      const int32_t* rows,
                      int64_t count,
                      int32_t heads,
                      cudaStream_t stream) {
  constexpr int kBlockThreads = 256;
  const auto blocks = static_cast<unsigned>((count * heads + kBlockThreads - 1) / kBlockThreads);
  ScatterLseKernel<<<blocks, kBlockThreads, 0, stream>>>(to, to_stride, from, rows, count, heads);
  CheckLaunch("attention lse");
}

}  // namespace baltoro::cuda
