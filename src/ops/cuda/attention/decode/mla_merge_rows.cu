// Of 3 to 64 rows: adds up the pieces of each row and head (as mla_decode_merge.cu) and multiplies
// the sums with the head's value rows, in one launch. A thread block makes 32 columns of one head
// for 2 to 16 rows; its part of the matrix is in shared memory before the kernel ahead has ended.
//
//   latents       each of the four blocks of a head and its rows, a cluster, adds up a quarter of
//                 the latents, pieces in order, and gives it to all four
//   out^T = V x^T  columns are the rows of 16 x 8 products; warp w: columns 16 (w % 2) .. + 16,
//                  latents 128 (w / 2) .. + 128

#include <math_constants.h>

#include "device/cuda/cuda_status.h"
#include "ops/cuda/attention/attention_kernels.h"
#include "ops/cuda/attention/decode/mla_decode_work.cuh"
#include "ops/cuda/attention/prefill/attention_mma.cuh"
#include "ops/cuda/launch/placed_launch.h"
#include "ops/cuda/ptx/hopper.cuh"

namespace baltoro::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kColumns = kMergedColumns;  // of a block
constexpr int kCluster = kAttentionValue / kColumns;
constexpr int kShare = kMlaLatent / kCluster;  // latents that a block adds up
constexpr int kParts = 4;                      // warps that share the columns, each some latents
constexpr int kPitch = kMlaLatent * 2 + 16;    // bytes: 8 rows of 16 bytes touch all banks
constexpr int kFloats = 32;                    // of pieces that a thread asks for together
constexpr int kProductRows = 8;

struct Params {
  MlaKernelArgs mla;
  HeadProductArgs values;
};

// How a block of kRows rows adds up: a warp has kAtOnce rows, 32 kEach of the block's latents each.
template <int kRows>
struct Form {
  static constexpr int kEach = kRows >= 8 ? 4 : 2;
  static constexpr int kWarpsOfRow = kShare / 32 / kEach;
  static constexpr int kMergers = kRows * kWarpsOfRow < kWarps ? kRows * kWarpsOfRow : kWarps;
  static constexpr int kAtOnce = kRows * kWarpsOfRow / kMergers;
  static constexpr int kBatch = kFloats / kEach / kAtOnce;  // pieces
  static constexpr int kTiles = kRows < kProductRows ? 1 : kRows / kProductRows;
  static_assert(kAtOnce == 1 || kWarpsOfRow == 1);
};

template <int kRows>
struct Shared {
  static constexpr int kPadded = Form<kRows>::kTiles * kProductRows;
  alignas(16) unsigned char weights[kColumns * kPitch];
  alignas(16) unsigned char latents[kPadded * kPitch];
  float sums[kParts][kColumns][kPadded];
  uint64_t full;  // latents of all blocks of the cluster are here
};

__device__ __forceinline__ float Low(uint32_t pair) {
  return __uint_as_float(pair << 16);
}
__device__ __forceinline__ float High(uint32_t pair) {
  return __uint_as_float(pair & 0xFFFF0000u);
}

template <int kEach>
struct Floats {
  float v[kEach];
};

template <int kEach>
__device__ __forceinline__ void Load(Floats<kEach>& to, const float* from) {
  if constexpr (kEach == 4) {
    const float4 x = __ldcg(reinterpret_cast<const float4*>(from));
    to.v[0] = x.x, to.v[1] = x.y, to.v[2] = x.z, to.v[3] = x.w;
  } else {
    const float2 x = __ldcg(reinterpret_cast<const float2*>(from));
    to.v[0] = x.x, to.v[1] = x.y;
  }
}

template <int kEach>
__device__ __forceinline__ void Load(Floats<kEach>& to, const __nv_bfloat16* from) {
  if constexpr (kEach == 4) {
    const uint2 x = __ldcg(reinterpret_cast<const uint2*>(from));
    to.v[0] = Low(x.x), to.v[1] = High(x.x), to.v[2] = Low(x.y), to.v[3] = High(x.y);
  } else {
    const uint32_t x = __ldcg(reinterpret_cast<const uint32_t*>(from));
    to.v[0] = Low(x), to.v[1] = High(x);
  }
}

// To `at` of the shared memory of all blocks of the cluster, in bf16; completes on their `full`.
template <int kEach>
__device__ __forceinline__ void Give(uint32_t at, uint32_t full, const Floats<kEach>& x) {
#pragma unroll
  for (int rank = 0; rank < kCluster; ++rank) {
    uint32_t to, barrier;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(to) : "r"(at), "r"(rank));
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(barrier) : "r"(full), "r"(rank));
    if constexpr (kEach == 4) {
      asm volatile(
          "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.b32 [%0], {%1, %2}, "
          "[%3];" ::"r"(to),
          "r"(hopper::PackBf16(x.v[0], x.v[1])), "r"(hopper::PackBf16(x.v[2], x.v[3])), "r"(barrier)
          : "memory");
    } else {
      asm volatile(
          "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::"r"(
              to),
          "r"(hopper::PackBf16(x.v[0], x.v[1])), "r"(barrier)
          : "memory");
    }
  }
}

// A row and head: where the first two of its pieces are, the others follow at `stride`.
struct Source {
  int first, second, stride;
  int count;  // of pieces; 0: there is no such row; -1: it was not cut

  __device__ __forceinline__ int64_t At(int piece) const {
    return piece == 0 ? first : second + (piece - 1) * stride;
  }
};

// Of rows row, row + 1, .. by a whole warp. The plan is older than the kernels ahead. As FindMerge,
// but for all rows at once and with one load after the other only where there are more than 32
// entries: where this kernel begins late, it waits for them.
template <int kCount>
__device__ __forceinline__ void Find(const Params& p,
                                     int row,
                                     int head,
                                     Source (&sources)[kCount]) {
  const MlaPlan& plan = p.mla.plan;
  const int lane = threadIdx.x % 32;
  const int count = plan.merges[0].count;
#pragma unroll
  for (int r = 0; r < kCount; ++r) {
    const bool there = row + r < p.values.count && p.values.rows[row + r] >= 0;
    sources[r].first = (row + r) * static_cast<int>(p.values.heads) + head;
    sources[r].count = there ? -1 : 0;
  }
#pragma unroll 1
  for (int begin = 0; begin < count; begin += 32) {
    MlaMerge merge = {};
    if (begin + lane < count) merge = plan.merges[1 + begin + lane];
#pragma unroll
    for (int r = 0; r < kCount; ++r) {
      const int tile_row = (row + r) * static_cast<int>(p.values.heads) + head;
      const bool mine = tile_row >= merge.first_row && tile_row < merge.first_row + merge.rows;
      const uint32_t ballot = __ballot_sync(~0u, mine);
      if (ballot == 0 || sources[r].count == 0) continue;
      const int from = __ffs(static_cast<int>(ballot)) - 1;
      const int in_tile = tile_row - merge.first_row;
      sources[r].first = __shfl_sync(~0u, merge.first_slot * plan.tile_rows + in_tile, from);
      sources[r].second = __shfl_sync(~0u, merge.second_slot * plan.tile_rows + in_tile, from);
      sources[r].stride = __shfl_sync(~0u, merge.stride * plan.tile_rows, from);
      sources[r].count = __shfl_sync(~0u, merge.count, from);
    }
  }
}

// A warp's rows: `sum` gets latents [column, column + kEach) of them.
template <int kRows>
__device__ __forceinline__ void Merge(const Params& p,
                                      const Source (&source)[Form<kRows>::kAtOnce],
                                      int column,
                                      Floats<Form<kRows>::kEach> (&sum)[Form<kRows>::kAtOnce]) {
  using F = Form<kRows>;
  constexpr int kAtOnce = F::kAtOnce, kBatch = F::kBatch, kEach = F::kEach;
  const MlaPlan& plan = p.mla.plan;
  const int lane = threadIdx.x % 32;
  Floats<kEach> parts[kAtOnce][kBatch];
  float lse[kAtOnce], base[kAtOnce], share[kAtOnce];
  const auto log_sum = [&](int r, int piece) {
    return piece < source[r].count ? __ldcg(plan.partial_lse + source[r].At(piece)) : -CUDART_INF_F;
  };
  const auto load = [&](int r, int first) {
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      parts[r][i] = {};
      if (first + i >= source[r].count) continue;
      Load(parts[r][i], plan.partial_out + source[r].At(first + i) * kMlaLatent + column);
    }
  };
  int most = 0;
#pragma unroll
  for (int r = 0; r < kAtOnce; ++r) {
    lse[r] = log_sum(r, lane);
    load(r, 0);
    if (source[r].count < 0) {
      // One piece of weight 1; written as it is, in bf16.
      lse[r] = lane == 0 ? 0 : -CUDART_INF_F;
      Load(parts[r][0], static_cast<const __nv_bfloat16*>(p.mla.out) +
                            int64_t{source[r].first} * kMlaLatent + column);
    }
    most = max(most, abs(source[r].count));
  }
#pragma unroll
  for (int r = 0; r < kAtOnce; ++r) {
    float highest = lse[r];
#pragma unroll 1
    for (int piece = 32 + lane; piece < source[r].count; piece += 32) {
      highest = fmaxf(highest, log_sum(r, piece));
    }
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
      highest = fmaxf(highest, __shfl_xor_sync(~0u, highest, step));
    }
    base[r] = highest == -CUDART_INF_F ? 0 : highest;
    lse[r] = hopper::Exp2(lse[r] - base[r]);
    float all = lse[r];
#pragma unroll 1
    for (int piece = 32 + lane; piece < source[r].count; piece += 32) {
      all += hopper::Exp2(log_sum(r, piece) - base[r]);
    }
#pragma unroll
    for (int step = 16; step > 0; step /= 2) all += __shfl_xor_sync(~0u, all, step);
    share[r] = source[r].count < 0 ? 1 : all == 0 ? 0 : p.mla.out_scale / all;
    sum[r] = {};
  }
#pragma unroll 1
  for (int first = 0; first < most; first += kBatch) {
#pragma unroll
    for (int r = 0; r < kAtOnce; ++r) {
      if (first > 0) load(r, first);
      if (first % 32 == 0 && first > 0) lse[r] = hopper::Exp2(log_sum(r, first + lane) - base[r]);
    }
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      if (i % 8 == 0 && i > 0 && first + i >= most) break;
#pragma unroll
      for (int r = 0; r < kAtOnce; ++r) {
        const float weight = __shfl_sync(~0u, lse[r], (first + i) % 32);
#pragma unroll
        for (int e = 0; e < kEach; ++e) sum[r].v[e] += weight * parts[r][i].v[e];
      }
    }
  }
#pragma unroll
  for (int r = 0; r < kAtOnce; ++r) {
#pragma unroll
    for (int e = 0; e < kEach; ++e) sum[r].v[e] *= share[r];
  }
}

// Sums of this warp's columns and latents, kept for those of the others.
template <int kRows>
__device__ __forceinline__ void Multiply(Shared<kRows>& shared) {
  constexpr int kSteps = kMlaLatent / kParts / 16;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int tile = warp % 2, part = warp / 2;
  const uint32_t at = part * (kMlaLatent / kParts) * 2;
  const uint32_t a_at = hopper::SharedAddress(shared.weights) + at +
                        (tile * 16 + lane % 16) * kPitch + lane / 16 * 16;
  const uint32_t b_at =
      hopper::SharedAddress(shared.latents) + at + lane % 8 * kPitch + lane / 8 * 16;
  uint32_t a[kSteps][4];
#pragma unroll
  for (int step = 0; step < kSteps; ++step) LoadMatrices4(a[step], a_at + step * 32);
#pragma unroll
  for (int t = 0; t < Form<kRows>::kTiles; ++t) {
    uint32_t b[kSteps / 2][4];
#pragma unroll
    for (int pair = 0; pair < kSteps / 2; ++pair) {
      LoadMatrices4(b[pair], b_at + t * kProductRows * kPitch + pair * 64);
    }
    float sums[2][4] = {};
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const uint32_t half[2] = {b[step / 2][step % 2 * 2], b[step / 2][step % 2 * 2 + 1]};
      MultiplyAdd(sums[step % 2], a[step], half);
    }
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int column = tile * 16 + lane / 4 + e / 2 * 8;
      const int row = t * kProductRows + lane % 4 * 2 + e % 2;
      shared.sums[part][column][row] = sums[0][e] + sums[1][e];
    }
  }
}

template <int kRows>
__global__ void __launch_bounds__(kThreads, kRows == 4 ? 4 : 3)
    MergeRowsKernel(const __grid_constant__ Params p) {
  using F = Form<kRows>;
  extern __shared__ __align__(16) unsigned char raw[];
  Shared<kRows>& shared = *reinterpret_cast<Shared<kRows>*>(raw);
  const int head = blockIdx.y, rank = blockIdx.x;
  const int first_column = rank * kColumns;
  const int first_row = static_cast<int>(blockIdx.z) * kRows;
  const auto* const w = static_cast<const __nv_bfloat16*>(p.values.w) +
                        head * p.values.w_head_stride + int64_t{first_column} * kMlaLatent;
  constexpr int kChunks = kMlaLatent / 8;
#pragma unroll
  for (int i = 0; i < kColumns * kChunks / kThreads; ++i) {
    const int at = i * kThreads + static_cast<int>(threadIdx.x);
    CopyAsync16(hopper::SharedAddress(shared.weights) + at / kChunks * kPitch + at % kChunks * 16,
                w + at * 8, true);
  }
  const uint32_t full = hopper::SharedAddress(&shared.full);
  if (threadIdx.x == 0) {
    hopper::InitBarrier(full, 1);
    hopper::FenceBarrierInit();
    hopper::ArriveExpecting(full, kRows * kMlaLatent * 2);
  }
  __syncthreads();
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
  const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32, 0);
  const int lane = threadIdx.x % 32;
  const int warp_row = warp / F::kWarpsOfRow * F::kAtOnce;
  const int column = rank * kShare + (warp % F::kWarpsOfRow * 32 + lane) * F::kEach;
  Source source[F::kAtOnce] = {};
  if (warp < F::kMergers) Find(p, first_row + warp_row, head, source);
  // Two columns of one row a thread in the end.
  const int out_row = static_cast<int>(threadIdx.x) / (kColumns / 2);
  const int out_column = static_cast<int>(threadIdx.x) % (kColumns / 2) * 2;
  int to = -1;
  if (out_row < kRows && first_row + out_row < p.values.count) {
    to = p.values.rows[first_row + out_row];
  }
  if constexpr (kRows < kProductRows) {
    // Rows that a product has and the block has not: their sums are not used.
    constexpr int kRest = (kProductRows - kRows) * kMlaLatent / 8;
    for (int at = threadIdx.x; at < kRest; at += kThreads) {
      const int row = kRows + at / (kMlaLatent / 8);
      *reinterpret_cast<uint4*>(shared.latents + row * kPitch + at % (kMlaLatent / 8) * 16) =
          make_uint4(0, 0, 0, 0);
    }
  }
  const uint32_t latents = hopper::SharedAddress(shared.latents) + warp_row * kPitch + column * 2;
  // All blocks are there when one writes to another.
  asm volatile("barrier.cluster.wait.aligned;" ::: "memory");

  // The other warps add nothing up, and what they write comes from these. Without a branch the
  // compiler moves addresses behind the wait.
  if (first_row + warp_row < p.values.count) {
    hopper::WaitForPredecessors();
    hopper::LetDependentsLaunch();
  }
  Floats<F::kEach> sum[F::kAtOnce];
  Merge<kRows>(p, source, column, sum);
  if (warp < F::kMergers) {
#pragma unroll
    for (int r = 0; r < F::kAtOnce; ++r) Give(latents + r * kPitch, full, sum[r]);
  }
  WaitAllCopies();
  __syncthreads();
  hopper::Wait(full, 0);
  Multiply(shared);
  __syncthreads();
  if (to < 0) return;
  float result[2] = {};
#pragma unroll
  for (int e = 0; e < 2; ++e) {
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      result[e] += shared.sums[part][out_column + e][out_row];
    }
  }
  auto* const out = static_cast<__nv_bfloat16*>(p.values.out) + to * p.values.out_row_stride +
                    head * p.values.out_head_stride;
  *reinterpret_cast<uint32_t*>(out + first_column + out_column) =
      hopper::PackBf16(result[0], result[1]);
}

template <int kRows>
Status Launch(const MergePlan& plan, const Params& p, const LaunchStream& stream) {
  auto* const kernel = MergeRowsKernel<kRows>;
  const dim3 grid(kCluster, static_cast<unsigned>(p.values.heads),
                  static_cast<unsigned>(plan.blocks));
  constexpr int kBytes = sizeof(Shared<kRows>);
  BT_CUDA_RETURN_IF_ERROR(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes));
  BT_CUDA_RETURN_IF_ERROR(
      LaunchPlaced("merge and values", kernel, grid, dim3(kThreads), kBytes, stream, kCluster, p));
  return Status();
}

}  // namespace

Status LaunchMergeRows(const MergePlan& plan,
                       const MlaKernelArgs& mla,
                       const HeadProductArgs& values,
                       const LaunchStream& stream) {
  const Params p = {mla, values};
  switch (plan.kernel) {
    case MergeWay::kWithValuesRows2:
      return Launch<2>(plan, p, stream);
    case MergeWay::kWithValuesRows4:
      return Launch<4>(plan, p, stream);
    case MergeWay::kWithValuesRows8:
      return Launch<8>(plan, p, stream);
    case MergeWay::kWithValuesRows16:
      return Launch<16>(plan, p, stream);
    case MergeWay::kWithValuesRow1:
    case MergeWay::kQuarters:
    case MergeWay::kRows:
      break;
  }
  return InvalidArgument("MLA decode: not a merge of rows with their values");
}

}  // namespace baltoro::cuda
