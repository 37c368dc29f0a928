#pragma once

// What the host side (tens_rows.cc) tells the kernel of tens of rows (tens_rows_kernel.cu).

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstdint>

#include "base/status.h"
#include "ops/cuda/query_rotation.h"
#include "ops/cuda/tens_rows.h"

namespace baltoro::cuda {

struct TensRowsMatrix {
  void* out;  // [rows, n] f32 or bf16, a row every out_stride elements
  int64_t out_stride;
  int n, strips;  // rows of weights; blocks' worth of them
  bool bf16;
};

struct TensRowsParams {
  TensRowsMatrix first, second;  // second: no strips where there is one matrix
  QueryRotation rotation;        // head 0: nothing is rotated
  int rows, steps, log_split;
  int strip_rows, input_rows;    // of the boxes
  int stages, inputs;            // of the rings
  int early;                     // stages of weights that are asked for at once, at first
  int stage_bytes, input_bytes;  // of one of each
  int barriers_at;               // in shared memory
};

// bf16 [n, k], the second matrix and x [rows, k], in boxes of a block's rows by kTensRowsStep.
struct TensRowsMaps {
  CUtensorMap first, second, x;
};

// Clusters that run at once with so much shared memory a block.
int TensRowsClusters(const TensRowsPlan& plan, int shared);

// `shape`: LaunchShapeOf the plan.
Status LaunchTensRows(const TensRowsPlan& plan,
                      const LaunchShape& shape,
                      const TensRowsParams& params,
                      const TensRowsMaps& maps,
                      cudaStream_t stream);

}  // namespace baltoro::cuda
