// Of 3 to 32 rows: adds up the pieces of each row and head (as mla_decode_merge.cu) and multiplies
// the sums with the head's value rows, in one launch. A thread block makes 32 columns of one head
// for 2 to 8 rows; its part of the matrix is in shared memory before the kernel ahead has ended.
//
//   latents       one or two rows at a time by 128 threads, four latents each; pieces in order
//   out^T = V x^T  columns are the rows of 16 x 8 products; warp w: columns 16 (w % 2) .. + 16,
//                  latents 128 (w / 2) .. + 128

#include <math_constants.h>

#include "device/cuda/cuda_status.h"
#include "ops/cuda/attention_kernels.h"
#include "ops/cuda/attention_mma.cuh"
#include "ops/cuda/hopper.cuh"
#include "ops/cuda/mla_decode_work.cuh"

namespace baltoro::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kColumns = 32;  // of a block
constexpr int kGroupThreads = kMlaLatent / 4;
constexpr int kGroups = kThreads / kGroupThreads;  // of threads, each with rows of its own
constexpr int kParts = 4;                    // warps that share the columns, each some latents
constexpr int kPitch = kMlaLatent * 2 + 16;  // bytes: 8 rows of 16 bytes touch all banks
constexpr int kLoads = 8;                    // pieces that a thread asks for together
constexpr int kProductRows = 8;
constexpr int kFewHeads = 16;  // of more heads the matrices are read too often by many rows
constexpr int kFewRows = 16;
constexpr int kRowsMax = 32;  // of more the pieces are read faster by a launch of their own

struct Params {
  MlaKernelArgs mla;
  HeadProductArgs values;
};

// A row and head.
struct Source {
  int first, second;  // of the first two pieces' places; the others follow at `stride`
  int stride;
  int count;  // of pieces; 0: there is no such row; -1: it was not cut
};

template <int kRows>
struct Shared {
  alignas(16) unsigned char weights[kColumns * kPitch];
  alignas(16) unsigned char latents[kProductRows * kPitch];
  float sums[kParts][kColumns][kProductRows];
  alignas(16) Source sources[kRows];
};

__device__ __forceinline__ float Low(uint32_t pair) {
  return __uint_as_float(pair << 16);
}
__device__ __forceinline__ float High(uint32_t pair) {
  return __uint_as_float(pair & 0xFFFF0000u);
}

// By a whole warp.
__device__ __forceinline__ Source Find(const Params& p, int row, int head) {
  Source source = {0, 0, 0, 0};
  if (row >= p.values.count || p.values.rows[row] < 0) return source;
  const MlaPlan& plan = p.mla.plan;
  const int tile_row = row * static_cast<int>(p.values.heads) + head;
  source.first = tile_row;
  source.count = -1;
  FindMerge(plan, tile_row, [&](const MlaMerge& merge) {
    const int in_tile = tile_row - merge.first_row;
    source.first = merge.first_slot * plan.tile_rows + in_tile;
    source.second = merge.second_slot * plan.tile_rows + in_tile;
    source.stride = merge.stride * plan.tile_rows;
    source.count = merge.count;
  });
  return source;
}

__device__ __forceinline__ int64_t At(const Source& source, int piece) {
  return piece == 0 ? source.first : source.second + (piece - 1) * source.stride;
}

// Rows [row, row + kRowsAtOnce) of the block: to shared memory, in bf16.
template <int kRowsAtOnce, typename Shared>
__device__ __forceinline__ void Merge(const Params& p, Shared& shared, int row) {
  constexpr int kBatch = kLoads / kRowsAtOnce;
  const MlaPlan& plan = p.mla.plan;
  Source source[kRowsAtOnce];
#pragma unroll
  for (int r = 0; r < kRowsAtOnce; ++r) source[r] = shared.sources[row + r];
  const int quad = threadIdx.x % kGroupThreads, lane = threadIdx.x % 32;
  float4 parts[kRowsAtOnce][kBatch];
  float lse[kRowsAtOnce], base[kRowsAtOnce], share[kRowsAtOnce];
  const auto log_sum = [&](int r, int piece) {
    return piece < source[r].count ? __ldcg(plan.partial_lse + At(source[r], piece))
                                   : -CUDART_INF_F;
  };
  const auto load = [&](int r, int first) {
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      parts[r][i] = make_float4(0, 0, 0, 0);
      if (first + i >= source[r].count) continue;
      parts[r][i] = __ldcg(reinterpret_cast<const float4*>(
          plan.partial_out + At(source[r], first + i) * kMlaLatent + 4 * quad));
    }
  };
  int most = 0;
#pragma unroll
  for (int r = 0; r < kRowsAtOnce; ++r) {
    load(r, 0);
    lse[r] = log_sum(r, lane);
    if (source[r].count < 0) {
      // One piece of weight 1; written as it is, in bf16.
      lse[r] = lane == 0 ? 0 : -CUDART_INF_F;
      const float2 packed =
          __ldcg(reinterpret_cast<const float2*>(static_cast<const __nv_bfloat16*>(p.mla.out) +
                                                 int64_t{source[r].first} * kMlaLatent + 4 * quad));
      parts[r][0].x = packed.x, parts[r][0].y = packed.y;
    }
    most = max(most, abs(source[r].count));
  }
#pragma unroll
  for (int r = 0; r < kRowsAtOnce; ++r) {
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
    share[r] = all == 0 ? 0 : p.mla.out_scale / all;
    if (source[r].count < 0) {
      const uint32_t low = __float_as_uint(parts[r][0].x), high = __float_as_uint(parts[r][0].y);
      parts[r][0] = make_float4(Low(low), High(low), Low(high), High(high));
      share[r] = 1;
    }
  }
  float4 sum[kRowsAtOnce] = {};
#pragma unroll 1
  for (int first = 0; first < most; first += kBatch) {
#pragma unroll
    for (int r = 0; r < kRowsAtOnce; ++r) {
      if (first > 0) load(r, first);
      if (first % 32 == 0 && first > 0) lse[r] = hopper::Exp2(log_sum(r, first + lane) - base[r]);
    }
#pragma unroll
    for (int r = 0; r < kRowsAtOnce; ++r) {
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        const float weight = __shfl_sync(~0u, lse[r], (first + i) % 32);
        sum[r].x += weight * parts[r][i].x;
        sum[r].y += weight * parts[r][i].y;
        sum[r].z += weight * parts[r][i].z;
        sum[r].w += weight * parts[r][i].w;
      }
    }
  }
#pragma unroll
  for (int r = 0; r < kRowsAtOnce; ++r) {
    uint2 packed;
    packed.x = hopper::PackBf16(sum[r].x * share[r], sum[r].y * share[r]);
    packed.y = hopper::PackBf16(sum[r].z * share[r], sum[r].w * share[r]);
    *reinterpret_cast<uint2*>(shared.latents + (row + r) * kPitch + quad * 8) = packed;
  }
}

// Sums of this warp's columns and latents, kept for those of the others.
template <typename Shared>
__device__ __forceinline__ void Multiply(Shared& shared) {
  constexpr int kSteps = kMlaLatent / kParts / 16;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int tile = warp % 2, part = warp / 2;
  const uint32_t at = part * (kMlaLatent / kParts) * 2;
  const uint32_t a_at = hopper::SharedAddress(shared.weights) + at +
                        (tile * 16 + lane % 16) * kPitch + lane / 16 * 16;
  const uint32_t b_at =
      hopper::SharedAddress(shared.latents) + at + lane % 8 * kPitch + lane / 8 * 16;
  uint32_t a[kSteps][4], b[kSteps / 2][4];
#pragma unroll
  for (int step = 0; step < kSteps; ++step) LoadMatrices4(a[step], a_at + step * 32);
#pragma unroll
  for (int pair = 0; pair < kSteps / 2; ++pair) LoadMatrices4(b[pair], b_at + pair * 64);
  float sums[2][4] = {};
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    const uint32_t half[2] = {b[step / 2][step % 2 * 2], b[step / 2][step % 2 * 2 + 1]};
    MultiplyAdd(sums[step % 2], a[step], half);
  }
#pragma unroll
  for (int e = 0; e < 4; ++e) {
    const int column = tile * 16 + lane / 4 + e / 2 * 8, row = lane % 4 * 2 + e % 2;
    shared.sums[part][column][row] = sums[0][e] + sums[1][e];
  }
}

template <int kRows>
__global__ void __launch_bounds__(kThreads, 4)
    MergeRowsBeforeKernel(const __grid_constant__ Params p) {
  extern __shared__ __align__(16) unsigned char raw[];
  Shared<kRows>& shared = *reinterpret_cast<Shared<kRows>*>(raw);
  const int head = blockIdx.y;
  const int first_column = static_cast<int>(blockIdx.x) * kColumns;
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
  // The plan is older than the kernels ahead.
  const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32, 0);
  for (int row = warp; row < kRows; row += kThreads / 32) {
    const Source source = Find(p, first_row + row, head);
    if (threadIdx.x % 32 == 0) shared.sources[row] = source;
  }
  __syncthreads();
  hopper::WaitForPredecessors();
  hopper::LetDependentsLaunch();
  constexpr int kRowsAtOnce = kRows / kGroups < 2 ? 1 : 2;
#pragma unroll 1
  for (int row = warp / (kGroupThreads / 32) * kRowsAtOnce; row < kRows;
       row += kGroups * kRowsAtOnce) {
    Merge<kRowsAtOnce>(p, shared, row);
  }
  if (kRows < kProductRows) {
    // Rows that a product has and the block has not: their sums are not used.
    constexpr int kRest = (kProductRows - kRows) * (kMlaLatent / 4);
    for (int at = threadIdx.x; at < kRest; at += kThreads) {
      const int row = kRows + at / (kMlaLatent / 4);
      *reinterpret_cast<uint2*>(shared.latents + row * kPitch + at % (kMlaLatent / 4) * 8) =
          make_uint2(0, 0);
    }
  }
  WaitAllCopies();
  __syncthreads();
  Multiply(shared);
  __syncthreads();
  for (int at = threadIdx.x; at < kRows * kColumns; at += kThreads) {
    const int column = at % kColumns, row = at / kColumns;
    if (first_row + row >= p.values.count) continue;
    const int to = p.values.rows[first_row + row];
    if (to < 0) continue;
    float result = 0;
#pragma unroll
    for (int part = 0; part < kParts; ++part) result += shared.sums[part][column][row];
    auto* const out = static_cast<__nv_bfloat16*>(p.values.out) + to * p.values.out_row_stride +
                      head * p.values.out_head_stride;
    out[first_column + column] = __float2bfloat16_rn(result);
  }
}

template <int kRows>
Status Launch(const Params& p, cudaStream_t stream) {
  auto* const kernel = MergeRowsBeforeKernel<kRows>;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(kAttentionValue / kColumns, static_cast<unsigned>(p.values.heads),
                        static_cast<unsigned>((p.values.count + kRows - 1) / kRows));
  config.blockDim = kThreads;
  config.dynamicSmemBytes = sizeof(Shared<kRows>);
  config.stream = stream;
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  config.attrs = &attribute;
  config.numAttrs = 1;
  BT_CUDA_RETURN_IF_ERROR(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                               static_cast<int>(config.dynamicSmemBytes)));
  BT_CUDA_RETURN_IF_ERROR(cudaLaunchKernelEx(&config, kernel, p));
  return Status();
}

}  // namespace

bool MergeRowsTakesBefore(const MlaKernelArgs& mla, const HeadProductArgs& values) {
  const int64_t most = values.heads > kFewHeads ? kFewRows : kRowsMax;
  return values.count <= most && mla.chunk_blocks == 0 && mla.lse == nullptr;
}

// As few rows a block as leave no more than a block a multiprocessor or two.
Status LaunchMergeRowsBefore(const MlaKernelArgs& mla,
                             const HeadProductArgs& values,
                             cudaStream_t stream) {
  const Params p = {mla, values};
  if (values.count <= 8) return Launch<2>(p, stream);
  if (values.count <= 16) return Launch<4>(p, stream);
  return Launch<8>(p, stream);
}

}  // namespace baltoro::cuda
