#pragma once

// What the host side (bf16_rows1024.cc) tells the kernel of hundreds of rows
// (bf16_rows1024_kernel.cu).

#include <cuda.h>

#include <cstdint>

#include "base/status.h"
#include "ops/cuda/launch/launch_stream.h"
#include "ops/cuda/linear/bf16_rows1024.h"
#include "ops/cuda/rows/query_rotation.h"

namespace baltoro::cuda {

struct Bf16Rows1024Matrix {
  void* out;  // [rows, n] f32 or bf16, a row every out_stride elements
  int64_t out_stride;
  int n, strips;  // rows of weights; blocks' worth of them
  bool bf16;
};

struct Bf16Rows1024Params {
  Bf16Rows1024Matrix first, second;  // second: no strips where there is one matrix
  QueryRotation rotation;            // head 0: nothing is rotated
  int rows, steps;
  int parts, tiles;  // of a cluster
  int part_inverse;  // 65,536 over `parts`, up: exact for quotients of numbers below 8,192
  int slice;         // rows of a tile that a block adds up
  int stages;
  bool once;  // every weight is read by one cluster alone
};

// bf16 [n, k] and the second matrix in boxes of plan.columns / plan.tiles rows, x [rows, k] in
// boxes of a tile's rows; kBf16Rows1024Step columns.
struct Bf16Rows1024Maps {
  CUtensorMap first, second, x;
};

// `shape`: LaunchShapeOf the plan.
Status LaunchBf16Rows1024(const Bf16Rows1024Plan& plan,
                          const LaunchShape& shape,
                          const Bf16Rows1024Params& params,
                          const Bf16Rows1024Maps& maps,
                          const LaunchNote& note,
                          const LaunchStream& stream);

}  // namespace baltoro::cuda
