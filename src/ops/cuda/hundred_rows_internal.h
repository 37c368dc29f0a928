#pragma once

// What the host side (hundred_rows.cc) tells the kernel of hundreds of rows
// (hundred_rows_kernel.cu).

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstdint>

#include "base/status.h"
#include "ops/cuda/hundred_rows.h"
#include "ops/cuda/query_rotation.h"

namespace baltoro::cuda {

struct HundredRowsMatrix {
  void* out;  // [rows, n] f32 or bf16, a row every out_stride elements
  int64_t out_stride;
  int n, strips;  // rows of weights; blocks' worth of them
  bool bf16;
};

struct HundredRowsParams {
  HundredRowsMatrix first, second;  // second: no strips where there is one matrix
  QueryRotation rotation;           // head 0: nothing is rotated
  int rows, steps;
  int parts, tiles;  // of a cluster
  int part_inverse;  // 65,536 over `parts`, up: exact for quotients of numbers below 8,192
  int slice;         // rows of a tile that a block adds up
  int stages;
  bool once;  // every weight is read by one cluster alone
};

// bf16 [n, k] and the second matrix in boxes of plan.columns / plan.tiles rows, x [rows, k] in
// boxes of a tile's rows; kHundredRowsStep columns.
struct HundredRowsMaps {
  CUtensorMap first, second, x;
};

// `shape`: LaunchShapeOf the plan.
Status LaunchHundredRows(const HundredRowsPlan& plan,
                         const LaunchShape& shape,
                         const HundredRowsParams& params,
                         const HundredRowsMaps& maps,
                         cudaStream_t stream);

}  // namespace baltoro::cuda
