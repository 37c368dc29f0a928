#include "comm/symmetric/group_parts.h"

#include "base/check.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/rows/rows_device.cuh"

namespace baltoro::cuda {
namespace {

constexpr int kThreads = 256;

template <typename T>
__global__ void RoundPartKernel(__nv_bfloat16* to, const T* from, int64_t count) {
  const int64_t step = int64_t{gridDim.x} * kThreads;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < count; i += step) {
    to[i] = __float2bfloat16_rn(AsFloat(from[i]));
  }
}

template <typename Own, typename Part>
__global__ void AddPartsKernel(Own* own,
                               const Part* part,
                               const __nv_bfloat16* parts,
                               int64_t stride,
                               int self,
                               int ranks,
                               int64_t count) {
  const int64_t step = int64_t{gridDim.x} * kThreads;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < count; i += step) {
    float sum = 0;
    for (int rank = 0; rank < ranks; ++rank) {
      const __nv_bfloat16 x =
          rank == self ? __float2bfloat16_rn(AsFloat(part[i])) : parts[rank * stride + i];
      sum += __bfloat162float(x);
    }
    Round(AsFloat(own[i]) + sum, own + i);
  }
}

unsigned BlocksOf(int64_t count) {
  return static_cast<unsigned>(std::min<int64_t>((count + kThreads - 1) / kThreads, 1024));
}

}  // namespace

void LaunchRoundPart(const LaunchStream& stream, uint16_t* to, const TensorView& from) {
  const int64_t count = from.num_elements();
  if (count == 0) return;
  auto* const rounded = reinterpret_cast<__nv_bfloat16*>(to);
  if (from.dtype == DType::kF32) {
    RoundPartKernel<<<BlocksOf(count), kThreads, 0, stream>>>(rounded, from.as<float>(), count);
  } else {
    RoundPartKernel<<<BlocksOf(count), kThreads, 0, stream>>>(rounded, from.as<__nv_bfloat16>(),
                                                              count);
  }
  stream.order->AddPlain("parts of replicas, rounded");
  CheckLaunch("parts of replicas, rounded");
}

void LaunchAddParts(const LaunchStream& stream,
                    const TensorView& own,
                    const TensorView& part,
                    const uint16_t* parts,
                    int64_t stride,
                    int self,
                    int ranks) {
  const int64_t count = own.num_elements();
  BT_CHECK(part.num_elements() == count);
  if (count == 0) return;
  const auto* const others = reinterpret_cast<const __nv_bfloat16*>(parts);
  const auto launch = [&](auto* to, const auto* mine) {
    AddPartsKernel<<<BlocksOf(count), kThreads, 0, stream>>>(to, mine, others, stride, self, ranks,
                                                             count);
  };
  const auto launch_to = [&](auto* to) {
    part.dtype == DType::kF32 ? launch(to, part.as<float>()) : launch(to, part.as<__nv_bfloat16>());
  };
  own.dtype == DType::kF32 ? launch_to(own.as<float>()) : launch_to(own.as<__nv_bfloat16>());
  stream.order->AddPlain("sum of replicas' parts");
  CheckLaunch("sum of replicas' parts");
}

}  // namespace baltoro::cuda
