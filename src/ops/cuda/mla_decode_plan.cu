#include <climits>

#include "device/cuda/cuda_status.h"
#include "ops/cuda/mla_decode_internal.h"

namespace baltoro::cuda {
namespace {

// Costs in blocks of 64 keys, from measurements (docs/measured/cuda-mla.md).
constexpr int kPieceCost = 2;   // to begin and end a piece
constexpr int kLeastPiece = 2;  // no smaller piece is cut off
constexpr int kOverfill = 2;    // a part takes this much more to finish a sequence

constexpr int kClosed = -(1 << 30);  // room in a part that is not there
constexpr int kThreads = 256;        // more warps would hold each other up

struct PlanArgs {
  MlaPlan plan;
  const int32_t* query_begin;
  const int32_t* key_count;
  int sequences;
  int heads;
  int chunk_blocks;
};

__device__ int TilesOf(const PlanArgs& args, int sequence) {
  const int rows = (args.query_begin[sequence + 1] - args.query_begin[sequence]) * args.heads;
  return (rows + kMlaTileRows - 1) / kMlaTileRows;
}

// Walks the work once, filling parts of `capacity`; writes the plan if `write`. Returns the parts
// used, or more than there are.
__device__ int Fill(
    const PlanArgs& args, const int16_t* tiles, const int32_t* blocks, int capacity, bool write) {
  const MlaPlan& plan = args.plan;
  int part = -1;  // the part that is being filled
  int space = kClosed;
  int merges = 0;
  int64_t chunk_slot = 0;
  const auto open = [&](int tile, int sequence, int block) {
    ++part;
    space = capacity;
    if (write && part < plan.num_parts) {
      const int first_query = args.query_begin[sequence];
      const int rows = (args.query_begin[sequence + 1] - first_query) * args.heads;
      plan.parts[part] = {tile, sequence, block, first_query, rows, args.key_count[sequence], {}};
    }
  };
  for (int tile = 0; tile < plan.tiles; ++tile) {
    // The same tile of all sequences begins a part, so that parts of different tiles read the
    // same keys at about the same time.
    space = kClosed;
    for (int sequence = 0; sequence < args.sequences; ++sequence) {
      if (tiles[sequence] <= tile) continue;
      const int count = blocks[sequence];
      const int chunk = args.chunk_blocks > 0 ? args.chunk_blocks : max(count, 1);
      const int chunks = max((count + chunk - 1) / chunk, 1);
      int first_part = part, pieces = 0;
      for (int done = 0; done < count || pieces == 0;) {
        const int rest = min(count - done, chunk);
        if (rest + kPieceCost <= space + kOverfill ||
            (args.chunk_blocks > 0 && space == capacity)) {
          done += rest;
          space -= rest + kPieceCost;
          ++pieces;
          if (pieces == 1) first_part = part;
          continue;
        }
        const int fits = space - kPieceCost;
        if (args.chunk_blocks == 0 && fits >= kLeastPiece) {
          const int take = min(fits, rest - kLeastPiece);
          if (take >= kLeastPiece) {
            done += take;
            ++pieces;
            if (pieces == 1) first_part = part;
          }
        }
        open(tile, sequence, done);
      }
      if (write && args.chunk_blocks > 0) {
        plan.chunk_slots[tile * args.sequences + sequence] = static_cast<int32_t>(chunk_slot);
        if (chunk_slot + chunks > plan.slots) __trap();  // max_total_blocks was not true
      }
      if (write && pieces > 1) {
        const int first_row = args.query_begin[sequence] * args.heads + tile * kMlaTileRows;
        const int rows = args.query_begin[sequence + 1] * args.heads - first_row;
        MlaMerge merge = {first_row, min(rows, kMlaTileRows), pieces, 0, 0, 0, {}};
        if (args.chunk_blocks > 0) {
          merge.first_slot = static_cast<int32_t>(chunk_slot);
          merge.second_slot = merge.first_slot + 1;
          merge.stride = 1;
        } else {
          merge.first_slot = 2 * first_part + 1;
          merge.second_slot = 2 * (first_part + 1);
          merge.stride = 2;
        }
        plan.merges[++merges] = merge;
      }
      chunk_slot += chunks;
    }
  }
  if (write) {
    plan.merges[0].count = merges;
    for (int rest = part + 1; rest <= plan.num_parts; ++rest) {
      plan.parts[rest] = {plan.tiles, 0, 0, 0, 0, 0, {}};
    }
  }
  return part + 1;
}

__global__ void __launch_bounds__(kThreads) PlanKernel(const PlanArgs args) {
  __shared__ int32_t blocks[kMlaMaxSequences];
  __shared__ int16_t tiles[kMlaMaxSequences];
  __shared__ unsigned long long total;
  if (threadIdx.x == 0) total = 0;
  __syncthreads();
  unsigned long long cost = 0;
  for (int s = threadIdx.x; s < args.sequences; s += kThreads) {
    tiles[s] = static_cast<int16_t>(TilesOf(args, s));
    blocks[s] = (args.key_count[s] + kMlaBlockTokens - 1) / kMlaBlockTokens;
    cost += static_cast<unsigned long long>(tiles[s]) * (blocks[s] + kPieceCost);
  }
  atomicAdd(&total, cost);
  __syncthreads();
  // The first lane of each warp tries another capacity; the smallest that fits is taken. Beyond
  // those the step is doubled: a part a tile fits at the latest.
  __shared__ int chosen;
  if (threadIdx.x == 0) chosen = INT_MAX;
  __syncthreads();
  const int parts = args.plan.num_parts;
  int least = max(static_cast<int>((total + parts - 1) / parts), kPieceCost + kLeastPiece);
  const int warp = threadIdx.x / 32;
  for (int step = max(1, least / 64);; step *= 2) {
    const int capacity = least + warp * step;
    if (threadIdx.x % 32 == 0 && Fill(args, tiles, blocks, capacity, false) <= parts) {
      atomicMin(&chosen, capacity);
    }
    __syncthreads();
    if (chosen != INT_MAX) break;
    least += kThreads / 32 * step;
  }
  if (threadIdx.x == 0) Fill(args, tiles, blocks, chosen, true);
}

}  // namespace

Status PlanMlaDecode(const MlaDecodeLimits& limits,
                     const MlaDecodeSequences& sequences,
                     void* workspace,
                     cudaStream_t stream) {
  BT_RETURN_IF_ERROR(MlaDecodeWorkspaceBytes(limits).status());
  if (workspace == nullptr || sequences.query_begin == nullptr || sequences.key_count == nullptr) {
    return InvalidArgument("MLA decode plan: a required array is null");
  }
  PlanArgs args = {};
  args.plan = CutMlaWorkspace(limits, workspace);
  args.query_begin = sequences.query_begin;
  args.key_count = sequences.key_count;
  args.sequences = limits.sequences;
  args.heads = limits.heads;
  args.chunk_blocks = limits.chunk_blocks;
  PlanKernel<<<1, kThreads, 0, stream>>>(args);
  return CudaLaunchStatus("MLA decode plan");
}

}  // namespace baltoro::cuda
