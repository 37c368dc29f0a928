// One thread block a multiprocessor; a producer warp copies blocks of 64 keys into two stages of
// shared memory, two warpgroups compute. Warpgroup w owns columns [256 w, 256 w + 256) of the
// output and computes the scores of the blocks of its parity:
//
//   own block i:    S = Q K_i^T;  O += P_{i-1} V_{i-1} (the other's P, from shared memory);
//                   P_i = exp2(S - reference), to shared memory for the other;  O += P_i V_i.
//
// so that one computes scores or exponentials while the other multiplies. Half a stage is given
// back as soon as its last reader is done: the half of V_i in the owner's columns first.
//
// The softmax reference of a row is raised only when a block's maximum exceeds it by more than
// 2^kSlack; below that the larger exponentials lose nothing in floating point, and the sums need no
// rescaling. Whether it is raised depends on the row alone.

#include <cuda.h>

#include "device/cuda/cuda_status.h"
#include "ops/cuda/attention/decode/mla_decode_consumer.cuh"
#include "ops/cuda/attention/decode/mla_decode_producer.cuh"
#include "ops/cuda/launch/placed_launch.h"
#include "ops/cuda/launch/tensor_map.h"

namespace baltoro::cuda {
namespace {

using namespace mla;  // NOLINT: the roles of this kernel

// Warpgroups 0 and 1 compute; of the third one warp is the producer.
constexpr int kThreads = kComputeThreads + 128;
// Of a thread; what three warpgroups have is 504.
constexpr int kComputeRegisters = 232;
constexpr int kProducerRegisters = 40;

template <MlaCacheType kType>
__global__ void __launch_bounds__(kThreads, 1)
    MlaKernel(const __grid_constant__ MlaKernelArgs args, const __grid_constant__ Maps maps) {
  extern __shared__ unsigned char raw[];
  const Layout smem(raw, args.plan.tile_rows);
  Small& small = *smem.small;
  if (threadIdx.x == 0) {
    constexpr int kWarps = 4;  // of a warpgroup
    for (int s = 0; s < 2; ++s) {
      InitBarrier(SharedAddress(&small.full_early[s]), 1);
      InitBarrier(SharedAddress(&small.full_late[s]), 1);
      InitBarrier(SharedAddress(&small.empty_early[s]), kWarps);
      InitBarrier(SharedAddress(&small.empty_late[s]), kWarps);
      InitBarrier(SharedAddress(&small.full_p[s]), 32 * kWarps);
      for (int w = 0; w < 2; ++w) InitBarrier(SharedAddress(&small.full_sums[s][w]), 32 * kWarps);
    }
    InitBarrier(SharedAddress(&small.full_q), 1);
    InitBarrier(SharedAddress(&small.empty_q), 2 * kWarps);
    FenceBarrierInit();
    PrefetchMap(&maps.q);
    if constexpr (kType != MlaCacheType::kBf16) PrefetchMap(&maps.half);
    PrefetchMap(&maps.rope);
  }
  __syncthreads();
  WaitForPredecessors();
  LetDependentsLaunch();  // the merge waits for this kernel's end itself
  int part = static_cast<int>(blockIdx.x);
  // Neighbours have the same keys, of different tiles.
  const int tiles = args.plan.tiles;
  const int tile_parts = tiles > 1 ? args.plan.merges[0].tile_parts : 0;
  if (part < tile_parts * tiles) part = part % tiles * tile_parts + part / tiles;
  const int role = __shfl_sync(0xFFFFFFFF, static_cast<int>(threadIdx.x) / 128, 0);
  if (role < 2) {
    RaiseRegisters<kComputeRegisters>();
    Consumer<kType> consumer(args, smem, part);
    consumer.Run();
  } else {
    LowerRegisters<kProducerRegisters>();
    if (threadIdx.x < kComputeThreads + 32) Produce<kType>(args, maps, smem, part);
  }
}

// A row-major bf16 matrix [rows, 576] as 9 tiles of 64 columns.
TensorMapShape TiledBf16(int64_t rows, int box_rows, int box_tiles) {
  return {CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
          CU_TENSOR_MAP_SWIZZLE_128B,
          {64, static_cast<cuuint64_t>(rows), kMlaWidth / 64},
          {kMlaWidth * 2, 128},
          {64, static_cast<cuuint32_t>(box_rows), static_cast<cuuint32_t>(box_tiles)}};
}

TensorMapShape RawLatent(int64_t rows, int token_bytes) {
  return {CU_TENSOR_MAP_DATA_TYPE_UINT8,
          CU_TENSOR_MAP_SWIZZLE_128B,
          {128, static_cast<cuuint64_t>(rows), kMlaLatent / 128},
          {static_cast<cuuint64_t>(token_bytes), 128},
          {128, kTokens, 2}};
}

TensorMapShape RawRope(int64_t rows) {
  return {CU_TENSOR_MAP_DATA_TYPE_UINT8,
          CU_TENSOR_MAP_SWIZZLE_NONE,
          {64, static_cast<cuuint64_t>(rows), 1},
          {kMlaWidth, static_cast<cuuint64_t>(rows) * kMlaWidth},
          {64, kTokens, 1}};
}

// One column of 64 elements of tokens in the form of group scales.
TensorMapShape GroupedRope(int64_t rows) {
  return {CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
          CU_TENSOR_MAP_SWIZZLE_128B,
          {64, static_cast<cuuint64_t>(rows), 1},
          {kGroupedBytes, static_cast<cuuint64_t>(rows) * kGroupedBytes},
          {64, kTokens, 1}};
}

TensorMapShape GroupScales(int64_t rows) {
  return {CU_TENSOR_MAP_DATA_TYPE_FLOAT32,
          CU_TENSOR_MAP_SWIZZLE_NONE,
          {4, static_cast<cuuint64_t>(rows), 1},
          {kGroupedBytes, static_cast<cuuint64_t>(rows) * kGroupedBytes},
          {4, kTokens, 1}};
}

// Those of the cache.
Status MakeCacheMaps(MlaCacheType type, const MlaDecodeArgs& from, Maps& maps) {
  const int64_t cached = from.num_blocks * kTokens;
  const auto* const cache = static_cast<const char*>(from.cache);
  switch (type) {
    case MlaCacheType::kBf16:
      return MakeTensorMap(TiledBf16(cached, kTokens, 1), cache, maps.rope);
    case MlaCacheType::kFp8E4m3:
      BT_RETURN_IF_ERROR(MakeTensorMap(RawLatent(cached, kMlaWidth), cache, maps.half));
      return MakeTensorMap(RawRope(cached), cache + kMlaLatent, maps.rope);
    case MlaCacheType::kFp8Groups:
      BT_RETURN_IF_ERROR(MakeTensorMap(RawLatent(cached, kGroupedBytes), cache, maps.half));
      BT_RETURN_IF_ERROR(MakeTensorMap(GroupScales(cached), cache + kGroupedScalesAt, maps.scales));
      return MakeTensorMap(GroupedRope(cached), cache + kGroupedRopeAt, maps.rope);
  }
  return InvalidArgument("MLA decode: an unknown cache type");
}

template <MlaCacheType kType>
Status Launch(const DecodePlan& plan,
              const MlaKernelArgs& args,
              const MlaDecodeArgs& from,
              const LaunchStream& stream) {
  Maps maps = {};
  const TensorMapShape q = TiledBf16(from.rows * args.heads, args.plan.tile_rows, kMlaWidth / 64);
  BT_RETURN_IF_ERROR(MakeTensorMap(q, from.q, maps.q));
  BT_RETURN_IF_ERROR(MakeCacheMaps(kType, from, maps));
  auto* const kernel = MlaKernel<kType>;
  BT_CUDA_RETURN_IF_ERROR(AllowShared(kernel, plan.shared_bytes));
  BT_CUDA_RETURN_IF_ERROR(
      LaunchPlaced("MLA decode", kernel, dim3(static_cast<unsigned>(plan.parts)), dim3(kThreads),
                   static_cast<size_t>(plan.shared_bytes), stream, 0, args, maps));
  return Status();
}

}  // namespace

Status LaunchMlaAttention(const DecodePlan& plan,
                          const MlaKernelArgs& args,
                          const MlaDecodeArgs& from,
                          const LaunchStream& stream) {
  switch (plan.kernel) {
    case DecodeWay::kBf16Rows8:
      return LaunchMlaHeads8Bf16(args, from, stream);
    case DecodeWay::kFp8Rows8:
      return LaunchMlaHeads8Fp8(args, from, stream);
    case DecodeWay::kBf16Rows64:
      return Launch<MlaCacheType::kBf16>(plan, args, from, stream);
    case DecodeWay::kFp8Rows64:
      return Launch<MlaCacheType::kFp8E4m3>(plan, args, from, stream);
    case DecodeWay::kFp8GroupsRows64:
      return Launch<MlaCacheType::kFp8Groups>(plan, args, from, stream);
  }
  return InvalidArgument("MLA decode: an unknown kernel");
}

}  // namespace baltoro::cuda
