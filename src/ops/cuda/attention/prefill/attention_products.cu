// Products of each head with its own matrix: queries into the latent space, latents to value heads.
//
// A thread block makes kRows x kColumns of one head's product; all of the sum's dimension lies in
// shared memory at once; of value heads it comes in parts, each multiplied while the next come. The
// matrices do not depend on the kernel before, so they are asked for before its end is waited for,
// as is the list of rows.

#include "ops/cuda/attention/attention_kernels.h"
#include "ops/cuda/attention/prefill/attention_mma.cuh"
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/launch/placed_launch.h"
#include "ops/cuda/ptx/hopper.cuh"

namespace baltoro::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kManyThreads = 256;  // of tiles that have a multiprocessor to themselves

// Bytes from one row to the next in shared memory.
template <int kDepth>
constexpr int kPitch = HeadProductPitch(kDepth);

// Columns [begin, begin + kWidth) of rows [0, kRows) of `from` to shared memory; row r comes from
// row_of(r), -1 gives zeros.
template <int kDepth, int kRows, int kBlockThreads, int kWidth = kDepth, typename RowOf>
__device__ __forceinline__ void CopyRows(
    uint32_t to, const __nv_bfloat16* from, int64_t stride, RowOf row_of, int begin = 0) {
  constexpr int kChunks = kWidth / 8;
  static_assert(kRows * kChunks % kBlockThreads == 0);
#pragma unroll 8
  for (int n = 0; n < kRows * kChunks / kBlockThreads; ++n) {
    const int i = n * kBlockThreads + static_cast<int>(threadIdx.x);
    const int row = i / kChunks, chunk = begin / 8 + i % kChunks;
    const int source = row_of(row);
    const auto* const address = from + (source < 0 ? 0 : source * stride) + chunk * 8;
    CopyAsync16(to + row * kPitch<kDepth> + chunk * 16, address, source >= 0);
  }
}

// What was asked for so far is a group; all but the last kPending groups have come.
__device__ __forceinline__ void CommitCopies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int kPending>
__device__ __forceinline__ void WaitCopies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

// Each warp makes some columns of 16 rows.
template <int kDepth, int kRows, int kColumns, bool kAbsorb, int kBlockThreads>
__global__ void __launch_bounds__(kBlockThreads)
    HeadProductKernel(const __grid_constant__ HeadProductArgs args) {
  constexpr int kRowTiles = kRows / 16;
  constexpr int kWarpColumns = kColumns / (kBlockThreads / 32 / kRowTiles);
  static_assert(kBlockThreads / 32 % kRowTiles == 0 && kWarpColumns % 8 == 0);
  static_assert(kRows <= kBlockThreads);
  constexpr int kPart = 128, kParts = kDepth / kPart;
  // Attention starts once the rows have come: it asks for much at once, behind which these loads
  // would have waited. Of few rows, as soon as the rows may be read.
  constexpr bool kLate = kAbsorb && kRows > 16;
  extern __shared__ __align__(16) unsigned char raw[];
  __shared__ int rows[kRows];
  const uint32_t w_at = hopper::SharedAddress(raw);
  const uint32_t x_at = w_at + kColumns * kPitch<kDepth>;
  const int head = blockIdx.y;
  const int first_column = blockIdx.x * kColumns;
  const int64_t first_row = int64_t{blockIdx.z} * kRows;
  const int count = static_cast<int>(min(args.count - first_row, int64_t{kRows}));
  const auto* const w = static_cast<const __nv_bfloat16*>(args.w) + head * args.w_head_stride +
                        int64_t{first_column} * kDepth;
  CopyRows<kDepth, kColumns, kBlockThreads>(w_at, w, kDepth, [](int row) { return row; });
  if (threadIdx.x < kRows) {
    // Older than the kernels ahead.
    rows[threadIdx.x] =
        static_cast<int>(threadIdx.x) < count ? args.rows[first_row + threadIdx.x] : -1;
  }
  __syncthreads();
  // The kernel behind value heads may be placed before what is ahead has ended; of queries it may
  // not: MlaKernelArgs::early_keys.
  if (!kAbsorb) hopper::LetDependentsLaunch();
  hopper::WaitForPredecessors();
  if (kAbsorb && !kLate) hopper::LetDependentsLaunch();
  const auto* const x = static_cast<const __nv_bfloat16*>(args.x) + head * args.x_head_stride;
#pragma unroll
  for (int part = 0; part < kParts; ++part) {
    CopyRows<kDepth, kRows, kBlockThreads, kPart>(
        x_at, x, args.x_row_stride,
        [&](int row) -> int {
          if constexpr (kAbsorb) return rows[row];
          return rows[row] < 0 ? -1 : static_cast<int>(first_row) + row;
        },
        part* kPart);
    CommitCopies();
  }
  auto* const out = static_cast<__nv_bfloat16*>(args.out) + head * args.out_head_stride;
  // The rotated part, behind the latent one, of some rows a block; stored behind the products, so
  // that nothing waits for it.
  constexpr int kChunks = kAttentionRope / 8;
  constexpr int kRotated = kRows * kChunks / (kMlaLatent / kColumns);  // of a block
  constexpr int kTurns = kAbsorb ? (kRotated + kBlockThreads - 1) / kBlockThreads : 1;
  uint4 rotated[kTurns];
  const auto rotated_at = [&](int turn) {
    const int i = turn * kBlockThreads + static_cast<int>(threadIdx.x);
    const int row = i / kChunks * (kMlaLatent / kColumns) + static_cast<int>(blockIdx.x);
    return i < kRotated && row < count ? row : -1;
  };
  if constexpr (kAbsorb) {
    static_assert(kRows * kChunks % (kMlaLatent / kColumns) == 0);
#pragma unroll
    for (int turn = 0; turn < kTurns; ++turn) {
      rotated[turn] = make_uint4(0, 0, 0, 0);
      const int row = rotated_at(turn);
      if (row < 0 || rows[row] < 0) continue;
      rotated[turn] = __ldcg(reinterpret_cast<const uint4*>(x + rows[row] * args.x_row_stride +
                                                            kDepth + threadIdx.x % kChunks * 8));
    }
  }
  if (!kAbsorb && blockIdx.x == 0 && args.lse != nullptr && static_cast<int>(threadIdx.x) < count &&
      rows[threadIdx.x] >= 0) {
    args.lse_out[rows[threadIdx.x] * args.lse_out_stride + head] =
        __ldcg(args.lse + (first_row + threadIdx.x) * args.heads + head);
  }

  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int warp_row = warp % kRowTiles * 16;
  const int warp_column = warp / kRowTiles * kWarpColumns;
  // Several sums side by side where a warp has few tiles of columns: products wait for theirs.
  constexpr int kSums = kWarpColumns == 8 ? 4 : kWarpColumns == 16 ? 2 : 1;
  float sums[kSums][kWarpColumns / 8][4] = {};
  // Lane l gives the address of row l % 16, columns 8 (l / 16); of the matrix row l % 8, columns
  // 8 (l / 8 % 2).
  const uint32_t a_at = x_at + (warp_row + lane % 16) * kPitch<kDepth> + lane / 16 * 16;
  const uint32_t b_at = w_at + (warp_column + lane % 8) * kPitch<kDepth> + lane / 8 % 2 * 16;
  const auto multiply = [&](int part) {
#pragma unroll 4
    for (int in_part = 0; in_part < kPart / 16; ++in_part) {
      const int step = part * (kPart / 16) + in_part;
      uint32_t a[4], b[kWarpColumns / 8][2];
      LoadMatrices4(a, a_at + step * 32);
#pragma unroll
      for (int j = 0; j < kWarpColumns / 8; ++j) {
        LoadMatrices2(b[j], b_at + j * 8 * kPitch<kDepth> + step * 32);
      }
#pragma unroll
      for (int j = 0; j < kWarpColumns / 8; ++j) MultiplyAdd(sums[in_part % kSums][j], a, b[j]);
    }
  };
  // Products of what has come while the rest comes.
  static_assert(kParts == 1 || kParts == 4);
  if constexpr (kParts == 4) {
    WaitCopies<3>();
    __syncthreads();
    multiply(0);
    WaitCopies<2>();
    __syncthreads();
    multiply(1);
    WaitCopies<1>();
    __syncthreads();
    multiply(2);
  }
  WaitCopies<0>();
  __syncthreads();
  if (kLate) hopper::LetDependentsLaunch();
  multiply(kParts - 1);
#pragma unroll
  for (int i = 1; i < kSums; ++i) {
#pragma unroll
    for (int j = 0; j < kWarpColumns / 8; ++j) {
#pragma unroll
      for (int e = 0; e < 4; ++e) sums[0][j][e] += sums[i][j][e];
    }
  }
  if constexpr (kAbsorb && kWarpColumns >= 32) {
    // By whole runs of a row's columns, through where the rows of x were.
    constexpr int kTiles = kWarpColumns / 8;
    static_assert(kTiles == 4 || kTiles == 8);
    __syncthreads();
    const uint32_t turned = x_at + warp * 16 * kWarpColumns * 2;
    const auto place = [&](int row, int tile) {
      const int swap = kTiles == 8 ? row % 8 : row / 2 % 4;  // 8 rows touch all banks
      return turned + row * kWarpColumns * 2 + (tile ^ swap) * 16;
    };
#pragma unroll
    for (int j = 0; j < kTiles; j += 2) {
      uint32_t m[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float* const pair = &sums[0][j + i / 2][i % 2 * 2];
        m[i] = hopper::PackBf16(pair[0], pair[1]);
      }
      hopper::StoreMatrices(place(lane % 16, j + lane / 16), m);
    }
    __syncwarp();
#pragma unroll
    for (int n = 0; n < kTiles / 2; ++n) {
      const int row = (n * 32 + lane) / kTiles, tile = (n * 32 + lane) % kTiles;
      uint4 v;
      asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                   : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                   : "r"(place(row, tile)));
      if (warp_row + row >= count) continue;
      *reinterpret_cast<uint4*>(out + (first_row + warp_row + row) * args.out_row_stride +
                                first_column + warp_column + tile * 8) = v;
    }
  } else {
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
  if constexpr (kAbsorb) {
#pragma unroll
    for (int turn = 0; turn < kTurns; ++turn) {
      const int row = rotated_at(turn);
      if (row < 0) continue;
      *reinterpret_cast<uint4*>(out + (first_row + row) * args.out_row_stride + kMlaLatent +
                                threadIdx.x % kChunks * 8) = rotated[turn];
    }
  }
}

template <int kDepth, int kRows, int kColumns, bool kAbsorb, int kBlockThreads = kThreads>
void Launch(const HeadProductPlan& plan, const HeadProductArgs& args, const LaunchStream& stream) {
  auto* const kernel = HeadProductKernel<kDepth, kRows, kColumns, kAbsorb, kBlockThreads>;
  const dim3 grid(static_cast<unsigned>(plan.strips), static_cast<unsigned>(args.heads),
                  static_cast<unsigned>(plan.row_blocks));
  constexpr int kBytes = HeadProductBytes(kDepth, kRows, kColumns);
  BT_CHECK(plan.shared_bytes == kBytes);
  CheckCuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes),
            "attention head product");
  LaunchNote note = kAbsorb ? "queries to latents" : "value heads";
  if (kAbsorb) {
    note.next = NextStarts::kAfterWait;
    note.writes = RowsRegion(args.out, args.count, args.out_row_stride * 2,
                             args.heads * args.out_head_stride * 2);
  }
  CheckCuda(LaunchPlaced(note, kernel, grid, dim3(kBlockThreads), kBytes, stream, 0, args),
            "attention head product");
}

}  // namespace

void LaunchAbsorbQueries(const HeadProductPlan& plan,
                         const HeadProductArgs& args,
                         const LaunchStream& stream) {
  switch (plan.kernel) {
    case HeadProductWay::kRows16Columns32:
      return Launch<kAttentionNope, 16, 32, true>(plan, args, stream);
    case HeadProductWay::kRows64Columns32:
      return Launch<kAttentionNope, 64, 32, true>(plan, args, stream);
    case HeadProductWay::kRows64Columns64:
      return Launch<kAttentionNope, 64, 64, true>(plan, args, stream);
    case HeadProductWay::kRows64Columns128:
      return Launch<kAttentionNope, 64, 128, true, kManyThreads>(plan, args, stream);
  }
}

void LaunchValueHeads(const HeadProductPlan& plan,
                      const HeadProductArgs& args,
                      const LaunchStream& stream) {
  if (plan.kernel == HeadProductWay::kRows16Columns32) {
    return Launch<kMlaLatent, 16, 32, false>(plan, args, stream);
  }
  BT_CHECK(plan.kernel == HeadProductWay::kRows64Columns32);
  Launch<kMlaLatent, 64, 32, false, kManyThreads>(plan, args, stream);
}

}  // namespace baltoro::cuda
