#include <climits>

#include "device/cuda/cuda_status.h"
#include "ops/cuda/attention/decode/mla_decode_fill.h"

namespace baltoro::cuda {
namespace {

constexpr int kThreads = 256;  // more warps would hold each other up

__global__ void __launch_bounds__(kThreads) PlanKernel(const MlaPlanArgs args) {
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
  auto [least, step] = FirstCapacities(args, static_cast<int64_t>(total));
  static_assert(kMlaTries == kThreads / 32);
  const int warp = threadIdx.x / 32;
  for (;; step *= 2) {
    const int capacity = least + warp * step;
    if (threadIdx.x % 32 == 0 && FillParts(args, tiles, blocks, capacity, false) <= parts) {
      atomicMin(&chosen, capacity);
    }
    __syncthreads();
    const bool fits = chosen != INT_MAX;
    __syncthreads();  // nobody tries on before all have looked
    if (fits) break;
    least += kMlaTries * step;
  }
  if (threadIdx.x == 0) FillParts(args, tiles, blocks, chosen, true);
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
  MlaPlanArgs args = PlanArgsOf(limits, workspace);
  args.query_begin = sequences.query_begin;
  args.key_count = sequences.key_count;
  PlanKernel<<<1, kThreads, 0, stream>>>(args);
  return CudaLaunchStatus("MLA decode plan");
}

}  // namespace baltoro::cuda
