#pragma once

// What the host side (bf16_rows128.cc) tells the kernel of tens of rows (bf16_rows128_kernel.cu).

#include <cuda.h>

#include <cstdint>

#include "base/status.h"
#include "ops/cuda/launch/launch_stream.h"
#include "ops/cuda/linear/bf16_rows128.h"
#include "ops/cuda/rows/query_rotation.h"

namespace baltoro::cuda {

struct Bf16Rows128Matrix {
  void* out;  // [rows, n] f32 or bf16, a row every out_stride elements
  int64_t out_stride;
  int n, strips;  // rows of weights; blocks' worth of them
  bool bf16;
};

struct Bf16Rows128Params {
  Bf16Rows128Matrix first, second;  // second: no strips where there is one matrix
  QueryRotation rotation;           // head 0: nothing is rotated
  int rows, steps, log_split;
  int strip_rows, input_rows;    // of the boxes
  int stages, inputs;            // of the rings
  int early;                     // stages of weights that are asked for at once, at first
  int stage_bytes, input_bytes;  // of one of each
  int barriers_at;               // in shared memory
};

// bf16 [n, k], the second matrix and x [rows, k], in boxes of a block's rows by kBf16Rows128Step.
struct Bf16Rows128Maps {
  CUtensorMap first, second, x;
};

// Clusters that run at once with so much shared memory a block.
int Bf16Rows128Clusters(const Bf16Rows128Plan& plan, int shared);

// `shape`: LaunchShapeOf the plan.
Status LaunchBf16Rows128(const Bf16Rows128Plan& plan,
                         const LaunchShape& shape,
                         const Bf16Rows128Params& params,
                         const Bf16Rows128Maps& maps,
                         const LaunchNote& note,
                         const LaunchStream& stream);

}  // namespace baltoro::cuda
