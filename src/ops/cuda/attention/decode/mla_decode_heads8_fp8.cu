// Up to 8 rows (heads times query tokens of a sequence) over a cache of fp8. Tiles of 64 rows would
// be seven eighths empty, and widening the cache in shared memory takes longer than reading it:
// here keys and values are the rows of 16 x 8 products (mla_decode_heads8_fp8_device.cuh).
//
// One thread block a multiprocessor; a producer warp copies blocks of 64 keys as they lie into four
// stages, eight warps compute, two blocks between two pairs of barriers, so that these and the
// softmax, in which products rest, are paid for half as often. The plan, the block table and old
// keys are read before the kernel ahead has ended.

#include <cuda.h>
#include <math_constants.h>

#include "device/cuda/cuda_status.h"
#include "ops/cuda/attention/decode/mla_decode_heads8_fp8_device.cuh"
#include "ops/cuda/launch/placed_launch.h"
#include "ops/cuda/launch/tensor_map.h"

namespace baltoro::cuda {
namespace {

using namespace mla;           // NOLINT: the parts that the attention kernels share
using namespace mla::few_fp8;  // NOLINT: likewise

constexpr int kThreads = kComputers + 32;
constexpr int kStages = 4;
constexpr int kRound = 2;  // blocks between the barriers

constexpr float kLn2 = 0.69314718056f;

constexpr int kQueryWords = kMlaWidth / 2 / 32;  // of a row, each lane's

struct Shared {
  uint64_t full[kStages];
  uint64_t empty[kStages];
  Rows<kRound> rows;
  alignas(16) unsigned char queries[2][kRows * kQueryPitch];  // of this piece and the next one
};

constexpr int kSharedBytes = 1024 + kStages * kRawBytes + static_cast<int>(sizeof(Shared));

struct RawMaps {
  CUtensorMap latent;
  CUtensorMap rope;
};

__device__ void Produce(
    const MlaKernelArgs& args, const RawMaps& maps, uint32_t stages, Shared& shared, int part) {
  const bool first_lane = threadIdx.x % 32 == 0;
  uint32_t block = 0;  // of this part
  bool waited = args.early_keys;
  MlaWalker walker(args, part);
  for (MlaPiece piece; walker.Next(piece);) {
    BlockTable table(args, piece);
    const int count = piece.end_block - piece.begin_block;
    if (!waited) WaitForPredecessors();
    waited = true;
    for (int i = 0; i < count; ++i, ++block) {
      const int row = table.Row(i);
      if (!first_lane) continue;
      const uint32_t s = block % kStages;
      const uint32_t full = SharedAddress(&shared.full[s]);
      const uint32_t to = stages + s * kRawBytes;
      hopper::Wait(SharedAddress(&shared.empty[s]), (block / kStages & 1) ^ 1);
      ArriveExpecting(full, kRawBytes);
      CopyBox(to, &maps.latent, full, 0, row, 0);
      CopyBox(to + kRawRopeAt, &maps.rope, full, 0, row, 0);
    }
  }
}

class Worker : Piece<kRound> {
 public:
  __device__ Worker(
      const MlaKernelArgs& args, const __nv_bfloat16* q, uint32_t stages, Shared& shared, int part)
      : Piece<kRound>(shared.rows, args.scale_log2),
        args_(args),
        q_(q),
        stages_(stages),
        shared_(shared),
        part_(part) {}

  __device__ __forceinline__ void Run() {
    MlaWalker walker(args_, part_);
    MlaPiece piece;
    if (!walker.Next(piece)) {
      // A part without keys gives its multiprocessor back. One waits, so that no step ends early.
      if (part_ == 0) WaitForPredecessors();
      return;
    }
    int position = Position(piece);
    int firsts[kRound];  // positions of the first keys of the next blocks
    LoadFirsts(piece, 0, firsts);
    WaitForPredecessors();
    LetDependentsLaunch();
    uint32_t words[kQueryWords];
    AskForQueries(piece, words);
    StoreQueries(words, 0);
    SyncComputers();
    uint32_t block = 0;  // of this part
    bool more = true;
#pragma unroll 1
    for (uint32_t turn = 0; more; ++turn) {
      BeginPiece(SharedAddress(shared_.queries[turn % 2]), position);
      const int count = piece.end_block - piece.begin_block;
      MlaPiece next = piece;
      more = false;
#pragma unroll 1
      for (int i = 0; i < Most(count, 1); i += kRound) {
        if (count > 0) Compute(piece, i, min(count - i, kRound), block + i, firsts);
        LoadFirsts(piece, i + kRound, firsts);
        if (i > 0) continue;
        // Behind blocks, so that what is not at hand is waited for when there is no hurry.
        more = walker.Next(next);
        if (more) {
          position = Position(next);
          AskForQueries(next, words);
        }
      }
      block += count;
      if (more) {
        StoreQueries(words, turn + 1);
        LoadFirsts(next, 0, firsts);
      }
      End(piece);
      piece = next;
    }
  }

 private:
  __device__ static __forceinline__ int Most(int a, int b) {
    return a > b ? a : b;
  }

  // Of this warp's row.
  __device__ __forceinline__ int Position(const MlaPiece& piece) const {
    return __ldg(args_.sequences.first_position + piece.sequence) +
           (piece.tile_row + warp_) / args_.heads;
  }

  // A warp a row. A row that is not there has the queries of the last one; what becomes of them is
  // not written.
  __device__ __forceinline__ void AskForQueries(const MlaPiece& piece,
                                                uint32_t (&words)[kQueryWords]) const {
    static_assert(kWarps == kRows && kQueryWords * 64 == kMlaWidth);
    const auto* const from = reinterpret_cast<const uint32_t*>(
                                 q_ + (piece.first_row + min(warp_, piece.rows - 1)) * kMlaWidth) +
                             lane_;
#pragma unroll
    for (int i = 0; i < kQueryWords; ++i) words[i] = __ldcg(from + i * 32);
  }

  // As halves, in the order in which four lanes have 16 columns of keys, 4 each: columns 4 c + {0,
  // 1} of lane c as the product's 2 c + {0, 1}, its 4 c + {2, 3} as 2 c + {8, 9}.
  __device__ __forceinline__ void StoreQueries(const uint32_t (&words)[kQueryWords],
                                               uint32_t turn) const {
    const int word = lane_ % 8;
    const uint32_t to = SharedAddress(shared_.queries[turn % 2]) + warp_ * kQueryPitch +
                        (lane_ / 8 * 8 + word % 2 * 4 + word / 2) * 4;
#pragma unroll
    for (int i = 0; i < kQueryWords; ++i) {
      asm volatile("st.shared.b32 [%0], %1;" ::"r"(to + i * 128), "r"(Halves(words[i])) : "memory");
    }
  }

  // Blocks i .. i + count of the piece, of which the first is `block` of this part.
  __device__ __forceinline__ void Compute(
      const MlaPiece& piece, int i, int count, uint32_t block, const int (&firsts)[kRound]) {
#pragma unroll 1
    for (int b = 0; b < count; ++b) {
      const uint32_t s = (block + b) % kStages;
      hopper::Wait(SharedAddress(&shared_.full[s]), (block + b) / kStages & 1);
      Scores(Stage(block + b), b);
    }
    SyncComputers();
    int seen[kRound];
#pragma unroll
    for (int b = 0; b < kRound; ++b) {
      seen[b] = 0;
      if (b >= count) continue;
      const int in_block = min(piece.key_count - (piece.begin_block + i + b) * kTokens, kTokens);
      seen[b] = min(in_block, position_ - firsts[b] + 1);
      if (in_block < kTokens) ClearTail(Stage(block + b), in_block);
    }
    Softmax(seen, count);
    SyncComputers();
    Rescale();
#pragma unroll 1
    for (int b = 0; b < count; ++b) {
      const uint32_t s = (block + b) % kStages;
      Values(Stage(block + b), b);
      FinishLoads();
      __syncwarp();
      if (lane_ == 0) Arrive(SharedAddress(&shared_.empty[s]));
    }
  }

  // Of blocks i .. i + kRound of the piece, those that it has.
  __device__ __forceinline__ void LoadFirsts(const MlaPiece& piece,
                                             int i,
                                             int (&firsts)[kRound]) const {
    const int32_t* const positions = args_.sequences.block_positions;
#pragma unroll
    for (int b = 0; b < kRound; ++b) {
      const int block = piece.begin_block + i + b;
      firsts[b] = block * kTokens;
      if (positions == nullptr || block >= piece.end_block) continue;
      firsts[b] = __ldg(positions + piece.sequence * args_.sequences.table_stride + block);
    }
  }

  __device__ __forceinline__ uint32_t Stage(uint32_t block) const {
    return stages_ + block % kStages * kRawBytes;
  }

  // Divides by the softmax sum and writes.
  __device__ __forceinline__ void End(const MlaPiece& piece) {
    PutSums();
#pragma unroll
    for (int r = 0; r < 2; ++r) Write(piece, lane_ % 4 * 2 + r, r);
    SyncComputers();  // what is shared may be overwritten
  }

  __device__ __forceinline__ void Write(const MlaPiece& piece, int row, int r) const {
    if (row >= piece.rows) return;
    const float sum = rows_.sum[row];
    const float lse = sum == 0 ? -CUDART_INF_F : rows_.reference[row] + log2f(sum);
    const float share = sum == 0 ? 0 : 1 / sum;
    const bool writes_lse = warp_ == 0 && lane_ / 4 == 0;
    const int column = warp_ * 64 + lane_ / 4 * 2;
    if (piece.slot >= 0) {
      const int64_t at = int64_t{piece.slot} * kRows + row;
      if (writes_lse) args_.plan.partial_lse[at] = lse;
      float* const to = args_.plan.partial_out + at * kMlaLatent + column;
#pragma unroll
      for (int t = 0; t < 4; ++t) {
        *reinterpret_cast<float2*>(to + 16 * t) =
            sum == 0 ? make_float2(0, 0) : make_float2(out_[t][r] * share, out_[t][2 + r] * share);
      }
      return;
    }
    const int64_t at = piece.first_row + row;
    if (writes_lse && args_.lse != nullptr) args_.lse[at] = lse * kLn2;
    const float scaled = share * args_.out_scale;
    auto* const to = static_cast<__nv_bfloat16*>(args_.out) + at * kMlaLatent + column;
#pragma unroll
    for (int t = 0; t < 4; ++t) {
      *reinterpret_cast<uint32_t*>(to + 16 * t) =
          sum == 0 ? 0 : PackBf16(out_[t][r] * scaled, out_[t][2 + r] * scaled);
    }
  }

  const MlaKernelArgs& args_;
  const __nv_bfloat16* const q_;
  const uint32_t stages_;
  Shared& shared_;
  const int part_;
};

__global__ void __launch_bounds__(kThreads, 1)
    MlaHeads8Fp8Kernel(const __grid_constant__ MlaKernelArgs args,
                       const __nv_bfloat16* q,
                       const __grid_constant__ RawMaps maps) {
  extern __shared__ unsigned char raw[];
  const uint32_t stages = (SharedAddress(raw) + 1023) & ~1023u;
  Shared& shared =
      *reinterpret_cast<Shared*>(raw + (stages + kStages * kRawBytes - SharedAddress(raw)));
  if (threadIdx.x == 0) {
    for (int s = 0; s < kStages; ++s) {
      InitBarrier(SharedAddress(&shared.full[s]), 1);
      InitBarrier(SharedAddress(&shared.empty[s]), kWarps);
    }
    FenceBarrierInit();
    PrefetchMap(&maps.latent);
    PrefetchMap(&maps.rope);
  }
  __syncthreads();
  if (threadIdx.x < kComputers) {
    Worker worker(args, q, stages, shared, blockIdx.x);
    worker.Run();
  } else {
    Produce(args, maps, stages, shared, blockIdx.x);
  }
}

}  // namespace

Status MakeFp8KeyMaps(const void* data,
                      int64_t num_blocks,
                      CUtensorMap& latent_map,
                      CUtensorMap& rope_map) {
  const auto rows = static_cast<cuuint64_t>(num_blocks * kTokens);
  const auto* const cache = static_cast<const char*>(data);
  const TensorMapShape latent = {CU_TENSOR_MAP_DATA_TYPE_UINT8,
                                 CU_TENSOR_MAP_SWIZZLE_128B,
                                 {128, rows, kMlaLatent / 128},
                                 {kMlaWidth, 128},
                                 {128, kTokens, kMlaLatent / 128}};
  const TensorMapShape rope = {CU_TENSOR_MAP_DATA_TYPE_UINT8,
                               CU_TENSOR_MAP_SWIZZLE_64B,
                               {64, rows, 1},
                               {kMlaWidth, rows * kMlaWidth},
                               {64, kTokens, 1}};
  BT_RETURN_IF_ERROR(MakeTensorMap(latent, cache, latent_map));
  return MakeTensorMap(rope, cache + kMlaLatent, rope_map);
}

Status LaunchMlaHeads8Fp8(const MlaKernelArgs& args,
                          const MlaDecodeArgs& from,
                          const LaunchStream& stream) {
  static_assert(kSharedBytes <= 232448);
  LaunchNote note = "MLA decode, heads8 fp8";
  if (args.early_keys) note.early_reads = CacheOf(from, args.cache_type);
  RawMaps maps = {};
  BT_RETURN_IF_ERROR(MakeFp8KeyMaps(from.cache, from.num_blocks, maps.latent, maps.rope));
  BT_CUDA_RETURN_IF_ERROR(cudaFuncSetAttribute(
      MlaHeads8Fp8Kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes));
  BT_CUDA_RETURN_IF_ERROR(LaunchPlaced(
      note, MlaHeads8Fp8Kernel, dim3(static_cast<unsigned>(args.plan.num_parts)), dim3(kThreads),
      kSharedBytes, stream, 0, args, static_cast<const __nv_bfloat16*>(from.q), maps));
  return Status();
}

}  // namespace baltoro::cuda
