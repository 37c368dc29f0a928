#pragma once

// For the expert bank's tests and benchmarks: device memory that frees itself, random banks in
// the checkpoint's form, and the bank computed by plain loops in double from that form.

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "ops/cuda/experts/int4_bank.h"
#include "ops/cuda/launch/card.h"
#include "ops/cuda/launch/launch_stream.h"
#include "ops/cuda/layout/int4_layout.h"

namespace baltoro::cuda::moe_test {

inline void Must(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(error));
  std::exit(2);
}
inline void Must(const Status& status, const char* what) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s: %s\n", what, status.message().c_str());
  std::exit(2);
}

inline LaunchStream OnDefaultStream() {
  static LaunchOrder order;
  return {nullptr, &order};
}

// Ways of the bank that are asked for; the streaming one of several is that of the tokens.
enum class Way { kChosen, kStreaming, kGrouped, kGroupedSum };

inline ExpertsQuestion QuestionOf(const MoeShape& s,
                                  int tokens,
                                  bool rounded = false,
                                  bool ordered = false) {
  ExpertsQuestion q;
  q.card = ThisCard();
  q.x = FactsOf(TensorView(nullptr, DType::kBf16, {tokens, s.hidden}));
  q.out = FactsOf(TensorView(nullptr, rounded ? DType::kBf16 : DType::kF32, {tokens, s.hidden}));
  q.top_k = s.top_k;
  q.gate_up = {
      .form = WeightForm::kInt4Group, .n = 2 * s.intermediate, .k = s.hidden, .count = s.slots};
  q.down = {.form = WeightForm::kInt4Group, .n = s.hidden, .k = s.intermediate, .count = s.slots};
  q.x_ordered = ordered;
  return q;
}

inline ExpertsPlan PlanOf(const ExpertsQuestion& q, Way way) {
  switch (way) {
    case Way::kStreaming:
      return ExpertsBy(q, Int4StreamingWay(q.entries(), q.intermediate()));
    case Way::kGrouped:
      return ExpertsBy(q, ExpertsKernel::kInt4Grouped);
    case Way::kGroupedSum:
      return ExpertsBy(q, ExpertsKernel::kInt4GroupedSum);
    default:
      return ChooseExperts(q);
  }
}

template <typename T>
class Memory {
 public:
  explicit Memory(size_t count) : count_(count) {
    Must(cudaMalloc(&data_, bytes() == 0 ? 1 : bytes()), "cudaMalloc");
  }
  explicit Memory(const std::vector<T>& host) : Memory(host.size()) {
    Must(cudaMemcpy(data_, host.data(), bytes(), cudaMemcpyHostToDevice), "upload");
    // From pageable memory the call may return before the last bytes have arrived.
    Must(cudaDeviceSynchronize(), "upload");
  }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  ~Memory() { cudaFree(data_); }
  T* get() const { return data_; }
  size_t bytes() const { return count_ * sizeof(T); }
  std::vector<T> Download() const {
    std::vector<T> host(count_);
    Must(cudaMemcpy(host.data(), data_, bytes(), cudaMemcpyDeviceToHost), "download");
    return host;
  }
  void Fill(int byte) { Must(cudaMemset(data_, byte, bytes()), "cudaMemset"); }

 private:
  T* data_ = nullptr;
  size_t count_;
};

struct Random {
  uint64_t state;
  uint64_t Next() {
    state += 0x9e3779b97f4a7c15u;
    uint64_t z = state;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  double Uniform() { return static_cast<double>(Next() >> 11) * 0x1p-53; }
};

inline uint16_t Bf16Bits(float v) {
  return __bfloat16_as_ushort(__float2bfloat16_rn(v));
}

// `count` matrices [n, k] as a checkpoint holds them.
struct Int4Source {
  int64_t count, n, k;
  std::vector<uint32_t> values;
  std::vector<uint16_t> scales;

  Int4Source(int64_t count_, int64_t n_, int64_t k_, Random& random)
      : count(count_), n(n_), k(k_), values(count * n * k / 8), scales(count * n * k / 32) {
    for (uint32_t& v : values) v = static_cast<uint32_t>(random.Next());
    // Results of about one: k products of values with deviation 4.6.
    for (uint16_t& s : scales) {
      s = Bf16Bits(static_cast<float>((0.5 + random.Uniform()) * 0.2 / __builtin_sqrt(double(k))));
    }
  }
  Int4Rows at(int64_t i) const {
    return {values.data() + i * n * k / 8, k / 8, scales.data() + i * n * k / 32, k / 32};
  }
};

struct DeviceSource {
  explicit DeviceSource(const Int4Source& s) : values(s.values), scales(s.scales), n(s.n), k(s.k) {}
  Memory<uint32_t> values;
  Memory<uint16_t> scales;
  int64_t n, k;
};

// `rounded`: to bf16, as the kernels have it that widen weights before the products.
__device__ inline double SourceWeight(const uint32_t* values,
                                      const uint16_t* scales,
                                      int64_t row,
                                      int64_t k,
                                      int64_t column,
                                      bool rounded) {
  const int q = static_cast<int>((values[row * (k / 8) + column / 8] >> (column % 8 * 4)) & 15) - 8;
  const float scale =
      __uint_as_float(static_cast<uint32_t>(scales[row * (k / 32) + column / 32]) << 16);
  const float weight = static_cast<float>(q) * scale;
  return rounded ? __bfloat162float(__float2bfloat16_rn(weight)) : weight;
}

struct ReferenceParams {
  const __nv_bfloat16* x;
  const int32_t* slots;  // [T k], -1: none
  const float* weights;
  const uint32_t *gate, *up, *down;
  const uint16_t *gate_scales, *up_scales, *down_scales;
  int64_t hidden, intermediate, top_k;
  double* middle;  // [T k, I]
  double* out;     // [T, H]
  bool rounded;    // weights
};

// Block: one warp; grid (I, T k).
static __global__ void ReferenceMiddle(ReferenceParams p) {
  const int64_t i = blockIdx.x, entry = blockIdx.y;
  const int slot = p.slots[entry];
  if (slot < 0) return;
  double gate = 0, up = 0;
  for (int64_t c = threadIdx.x; c < p.hidden; c += 32) {
    const double x = __bfloat162float(p.x[entry / p.top_k * p.hidden + c]);
    gate +=
        x * SourceWeight(p.gate, p.gate_scales, slot * p.intermediate + i, p.hidden, c, p.rounded);
    up += x * SourceWeight(p.up, p.up_scales, slot * p.intermediate + i, p.hidden, c, p.rounded);
  }
  for (int d = 16; d > 0; d /= 2) {
    gate += __shfl_down_sync(~0u, gate, d);
    up += __shfl_down_sync(~0u, up, d);
  }
  if (threadIdx.x == 0) {
    const double v = gate / (1 + exp(-gate)) * up;
    p.middle[entry * p.intermediate + i] = __bfloat162float(__double2bfloat16(v));
  }
}

// Grid (H, T).
static __global__ void ReferenceOut(ReferenceParams p) {
  const int64_t d = blockIdx.x, t = blockIdx.y;
  double sum = 0;
  for (int64_t j = 0; j < p.top_k; ++j) {
    const int64_t entry = t * p.top_k + j;
    const int slot = p.slots[entry];
    if (slot < 0) continue;
    double y = 0;
    for (int64_t c = threadIdx.x; c < p.intermediate; c += 32) {
      y += p.middle[entry * p.intermediate + c] *
           SourceWeight(p.down, p.down_scales, slot * p.hidden + d, p.intermediate, c, p.rounded);
    }
    sum += p.weights[entry] * y;
  }
  for (int s = 16; s > 0; s /= 2) sum += __shfl_down_sync(~0u, sum, s);
  if (threadIdx.x == 0) p.out[t * p.hidden + d] = sum;
}

}  // namespace baltoro::cuda::moe_test
