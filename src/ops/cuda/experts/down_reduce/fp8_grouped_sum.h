#pragma once

// Parts of the FP8 bank (fp8_bank.h): the down product of many rows and the sum over a token's
// experts in one kernel, so that the shares of experts stay in the L2 (fp8_grouped_sum.cu).

#include "ops/cuda/choose/experts_down_sum.h"
#include "ops/cuda/experts/bank_internal.h"
#include "ops/cuda/launch/launch_stream.h"
#include "ops/ops.h"

namespace baltoro::cuda {

struct Fp8GroupedSum {
  PackedMatrix down;                     // slots matrices [H, 256]
  const void* x = nullptr;               // e4m3 codes [T k, 256] in sorted order
  const float* x_scales = nullptr;       // [T k, 2]
  const float* route_weights = nullptr;  // [T k]
  MoeRows rows;                          // routed, with the fields of the sum
  ExpertsSum sum;                        // as planned
  void* shares = nullptr;                // sum.buffers of entries * grouped_sum::kShareBytes
  TensorView out;                        // [T, H] f32 or bf16, added to; 16-byte aligned rows
};
// Reads the routing's tables before it waits for the kernel ahead: behind a kernel alone that lets
// others start only once it has waited for the routing (docs/kernels/decode-step.md, point 4).
void LaunchFp8GroupedSum(const Fp8GroupedSum& args, const LaunchStream& stream);

}  // namespace baltoro::cuda
