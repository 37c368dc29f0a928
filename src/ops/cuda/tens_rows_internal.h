#pragma once

// What the host side (tens_rows.cc) tells the kernel of tens of rows (tens_rows_kernel.cu).

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstdint>

#include "base/status.h"
#include "ops/cuda/query_rotation.h"
#include "ops/cuda/tens_rows.h"

namespace baltoro::cuda {

inline constexpr int kTensRowsStep = 64;       // columns of a stage: 128 bytes of each row
inline constexpr int kTensRowsGroupRows = 64;  // rows of weights of a warpgroup
inline constexpr int kTensRowsSplitMax = 8;
inline constexpr int kTensRowsGroupsMax = 3;
// Pairs of a thread's results whose angles are loaded before the products; a rotating plan has
// tile / 4 / split of them.
inline constexpr int kTensRowsAngles = 4;

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
  int barriers_at, shared;       // in shared memory: barriers, all
};

// Bytes of a stage that holds so many rows.
constexpr int TensRowsStageBytes(int rows) {
  return (rows * kTensRowsStep * 2 + 1023) / 1024 * 1024;
}
// What a block's share of the sums of a cluster takes, where the stages were.
constexpr int TensRowsSumsBytes(int groups, int tile) {
  return groups * kTensRowsGroupRows * tile * 4;
}

// bf16 [n, k], the second matrix and x [rows, k], in boxes of a block's rows by kTensRowsStep.
struct TensRowsMaps {
  CUtensorMap first, second, x;
};

// Clusters that run at once with so much shared memory a block.
int TensRowsClusters(const TensRowsPlan& plan, int shared);

Status LaunchTensRows(const TensRowsPlan& plan,
                      const TensRowsParams& params,
                      const TensRowsMaps& maps,
                      cudaStream_t stream);

}  // namespace baltoro::cuda
