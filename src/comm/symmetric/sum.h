#pragma once

// The sum of all ranks' parts, and with it the residual and the norm that follow.

#include <cuda_runtime_api.h>

#include <cstdint>

#include "comm/symmetric/peer_memory.h"
#include "ops/cuda/launch/launch_stream.h"
#include "ops/cuda/rows/norm_copies.h"

namespace baltoro::cuda {

enum class SumForm { kOneShot, kTwoShot };

struct SumParams {
  // Parts [rows, width], f32 or bf16; without `out` the sums too.
  void* x = nullptr;
  bool x_bf16 = false;
  int64_t x_stride = 0;
  // residual += sum; out = its norm. Null: the sum alone.
  void* out = nullptr;  // bf16
  int64_t out_stride = 0;
  float* residual = nullptr;
  int64_t residual_stride = 0;
  const float* weight = nullptr;
  float eps = 0;
  bool vectors = false;  // all rows may be read 16 bytes at a time
  NormCopies copies;     // of the norm, only with `vectors`
  int rows = 0, width = 0;

  SumRegion region;
  uint4* memory[kPeersMax] = {};  // of the region, in each rank's memory, this one's too
  uint32_t* counters = nullptr;   // of the region
  PeerWatch watch;
};

// Blocks that a row is cut to (they exchange their sums of squares), and blocks that run at once.
struct SumShape {
  int blocks_of_row = 1;
  int blocks_max = 1;
};

// The fewest blocks that hold a row, or more: 1, 2, 4 or 8.
int BlocksOfRow(int64_t packets, int wanted);
// How many blocks of any form of the kernel so many multiprocessors of the device run at once.
cudaError_t SumBlocksMax(const SumRegion& region,
                         int blocks_of_row,
                         int multiprocessors,
                         int* blocks);

// rows <= the region's for that form.
void LaunchSum(const LaunchStream& stream,
               SumForm form,
               const SumShape& shape,
               const SumParams& params);

}  // namespace baltoro::cuda
