#pragma once

// What the kernels of the FP8 bank of a few tokens share (fp8_entries4.cu, fp8_one_launch1.cu,
// fp8_one_launch8.cu).

#include "ops/cuda/experts/bank_device.cuh"
#include "ops/cuda/experts/route/choice_device.cuh"
#include "ops/cuda/fused_args.h"
#include "ops/cuda/launch/launch_stream.h"
#include "ops/cuda/layout/product_layout.h"
#include "ops/cuda/linear/e4m3_f16_device.cuh"
#include "ops/cuda/rows/fp8_round_device.cuh"
#include "ops/ops.h"

namespace baltoro::cuda::fp8_one_launch {

using product::E4m3ToF16;
using product::MultiplyAddF16;

constexpr int kExpertsMax = kFp8EntriesExperts;  // of a token

struct Experts {
  const int32_t* ids;
  const int32_t* slot_of;
  int32_t experts, slots, top_k;

  __device__ __forceinline__ int Slot(int entry) const { return SlotOf(__ldcg(ids + entry)); }
  __device__ __forceinline__ int SlotOf(int id) const {
    if (id < 0 || id >= experts) return -1;
    const int slot = slot_of == nullptr ? id : __ldg(slot_of + id);
    return slot < slots ? slot : -1;
  }
};

// part += 8 rows of weights by 64 columns: 16 bytes a lane of each side.
__device__ __forceinline__ void MultiplyWords(float (&part)[4], const uint4& x, const uint4& v) {
  const uint32_t a[4] = {x.x, x.y, x.z, x.w}, b[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const uint2 row = E4m3ToF16(a[i]), weights = E4m3ToF16(b[i]);
    MultiplyAddF16(part, row.x, 0, row.y, 0, weights.x, weights.y);
  }
}

// One matrix [H, steps * 128] as the end reads it.
struct DownMatrix {
  const char* w;
  int64_t slot_bytes, scales;
  int32_t steps;
};

inline DownMatrix Down(const PackedMatrix& w) {
  const ProductLayout layout = LayoutOf(w.form, w.n, w.k);
  return {.w = static_cast<const char*>(w.data),
          .slot_bytes = w.stride_bytes,
          .scales = layout.scales,
          .steps = static_cast<int32_t>(layout.steps)};
}

struct SingleParams {
  Experts experts;
  const char* w;  // gate/up
  int64_t slot_bytes, scales;
  const char* codes;      // [7168] of x
  const float* x_scales;  // [56]
  DownMatrix down, shared_down;
  const __nv_bfloat16* shared;  // [2 * 256]
  float* out;                   // [7168]
  MoeChoice choice;
  void* board = nullptr;  // of fp8_one_launch1.cu
};

// Both products and the sum of one token in one kernel (fp8_one_launch1.cu), where its shape is
// that of K2's rank of eight; the choice is in it.
void LaunchOneToken(const SingleParams& p, const LaunchStream& stream);

}  // namespace baltoro::cuda::fp8_one_launch
