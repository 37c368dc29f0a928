// The highest of each row of logits. A cluster of eight blocks reads a row once, which is the
// floor.

#include "ops/cuda/rows/sample_device.cuh"

namespace baltoro::cuda {
namespace {

using sampling::kCluster;
using sampling::kThreads;

struct Params {
  const float* logits;
  int64_t stride;
  int width, part;  // of a row; of it for each block, in eights
  const int32_t* names;
  int32_t* tokens;
  bool vectors;
};

// Above all ranks.
constexpr uint64_t kNotFinite = ~uint64_t{0};

__device__ uint64_t RankOrNone(float x, int id) {
  return isfinite(x) ? sampling::RankOf(x, id) : kNotFinite;
}

__device__ uint64_t WarpMax(uint64_t value) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) value = max(value, __shfl_xor_sync(~0u, value, step));
  return value;
}

__global__ void __cluster_dims__(kCluster, 1, 1) __launch_bounds__(kThreads) PickBest(Params p) {
  __shared__ uint64_t warps[kThreads / 32];
  __shared__ uint64_t parts[kCluster];
  const auto cluster = cooperative_groups::this_cluster();
  const int rank = static_cast<int>(cluster.block_rank());
  const int64_t row = blockIdx.x / kCluster;
  hopper::LetDependentsLaunch();
  cluster.barrier_arrive();  // no block writes to one that has not begun
  hopper::WaitForPredecessors();
  const float* const logits = p.logits + row * p.stride;
  uint64_t best = 0;
  const int end = min(p.width, (rank + 1) * p.part);
  for (int at = rank * p.part + static_cast<int>(threadIdx.x) * kEight; at < end;
       at += kThreads * kEight) {
    float x[kEight];
    LoadEight(logits + at, end - at, p.vectors, x);
#pragma unroll
    for (int i = 0; i < kEight; ++i) {
      if (at + i < end) best = max(best, RankOrNone(x[i], at + i));
    }
  }
  best = WarpMax(best);
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = best;
  __syncthreads();
  cluster.barrier_wait();
  if (threadIdx.x == 0) {
    for (const uint64_t value : warps) best = max(best, value);
    *cluster.map_shared_rank(&parts[rank], 0) = best;
  }
  cluster.sync();
  if (rank != 0 || threadIdx.x != 0) return;
  for (const uint64_t value : parts) best = max(best, value);
  const int32_t id = sampling::IdOf(best);
  p.tokens[row] = best == kNotFinite ? -1 : p.names == nullptr ? id : p.names[id];
}

}  // namespace

void Pick(const OpContext& ctx, TensorView tokens, TensorView logits, TensorView names) {
  BT_CHECK(logits.rank == 2 && logits.dtype == DType::kF32 && tokens.dtype == DType::kI32);
  BT_CHECK(tokens.rank == 1 && tokens.dim(0) == logits.dim(0) && logits.dim(1) > 0);
  BT_CHECK(!names || (names.dtype == DType::kI32 && names.dim(0) == logits.dim(1)));
  if (logits.dim(0) == 0) return;
  const int each = (Eights(logits.dim(1)) + kCluster - 1) / kCluster * kEight;
  const Params p = {.logits = logits.as<float>(),
                    .stride = logits.stride[0],
                    .width = static_cast<int>(logits.dim(1)),
                    .part = each,
                    .names = names ? names.as<int32_t>() : nullptr,
                    .tokens = tokens.as<int32_t>(),
                    .vectors = InVectors(logits)};
  LaunchAhead("pick", StreamOf(ctx), PickBest,
              dim3(static_cast<unsigned>(logits.dim(0)) * kCluster), kThreads, p);
}

}  // namespace baltoro::cuda
