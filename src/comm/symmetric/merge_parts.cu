#include "comm/symmetric/merge_parts.h"
#include "ops/cuda/rows/rows_device.cuh"

namespace baltoro::cuda {
namespace {

// A block takes a head of a row.
__global__ void MergePartsKernel(const __grid_constant__ MergePartsArgs args) {
  const int64_t row = blockIdx.x, head = blockIdx.y;
  const auto lse = [&](int rank) {
    const char* const sums = args.parts + rank * args.message_bytes + args.sums_at;
    return reinterpret_cast<const float*>(sums)[row * args.heads + head];
  };
  float highest = -INFINITY;
  for (int rank = 0; rank < args.ranks; ++rank) highest = fmaxf(highest, lse(rank));
  const float base = highest == -INFINITY ? 0 : highest;
  float total = 0;
  for (int rank = 0; rank < args.ranks; ++rank) total += expf(lse(rank) - base);
  for (int i = static_cast<int>(threadIdx.x); i < args.value; i += static_cast<int>(blockDim.x)) {
    const int64_t at = (row * args.heads + head) * args.value + i;
    float sum = 0;
    for (int rank = 0; rank < args.ranks; ++rank) {
      const float weight = expf(lse(rank) - base);
      if (weight == 0) continue;
      const char* const part = args.parts + rank * args.message_bytes;
      sum += weight * __bfloat162float(reinterpret_cast<const __nv_bfloat16*>(part)[at]);
    }
    auto* const own = reinterpret_cast<__nv_bfloat16*>(args.own) + row * args.own_stride;
    Round(total == 0 ? 0 : sum / total, own + head * args.value + i);
  }
}

}  // namespace

void LaunchMergeParts(const LaunchStream& stream, const MergePartsArgs& args) {
  const dim3 grid(static_cast<unsigned>(args.rows), static_cast<unsigned>(args.heads));
  MergePartsKernel<<<grid, 128, 0, stream>>>(args);
  stream.order->AddPlain("merge of heads");
  CheckLaunch("merge of heads");
}

}  // namespace baltoro::cuda
