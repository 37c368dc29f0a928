#pragma once

// Parameters of the kernels of norms, and the form for many rows.

#include "ops/cuda/launch/launch_stream.h"
#include "ops/cuda/rows/norm_copies.h"

namespace baltoro::cuda {

struct NormParams {
  void* x;  // read; with a delta also written
  const void* delta;
  void* out;
  const float* weight;
  int64_t x_stride, delta_stride, out_stride;
  int width;
  float eps;
  bool vectors;
  NormCopies copies;  // one at most
};

// NormWay::kRowsStreaming, of norms with a sum, rows in bf16.
void LaunchStreamNorm(const OpContext& ctx,
                      const NormPlan& plan,
                      int64_t rows,
                      const NormParams& p,
                      bool rounded_delta);

}  // namespace baltoro::cuda
