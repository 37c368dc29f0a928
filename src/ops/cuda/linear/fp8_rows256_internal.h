#pragma once

// What the host side (fp8_rows256.cc) tells the kernel of 9 to 256 rows of FP8
// (fp8_rows256_kernel.cu).

#include <cuda.h>

#include <cstdint>

#include "base/status.h"
#include "ops/cuda/choose/fp8_rows256.h"
#include "ops/cuda/launch/launch_stream.h"
#include "ops/cuda/rows/query_rotation.h"

namespace baltoro::cuda {

// kRotates: results are queries. kTwoMatrices: of a second matrix, which is bf16.
enum class Fp8Rows256Form : uint8_t { kPlain, kRotates, kTwoMatrices };

struct Fp8Rows256Matrix {
  const float* scales;       // of the weights, [n / 8, steps]; not of bf16
  int32_t n, steps, strips;  // a step is 128 bytes of a row; strips of a block's rows
  void* out;
  int64_t out_stride;
  bool bf16;
};

struct Fp8Rows256Params {
  Fp8Rows256Matrix first, second;  // second: no strips but in kTwoMatrices
  const float* x_scales;           // [rows, first.steps]
  QueryRotation rotation;
  int32_t rows, parts;
  int32_t tiles;      // of kFp8Rows256TileRows rows
  int32_t slice;      // rows of a tile that a block adds up
  int32_t box_rows;   // rows of x that are fetched for a tile
  bool early_inputs;  // x is read before the wait
};

// Boxes of 128 bytes: of weights by a block's strip of rows, of x by box_rows.
struct Fp8Rows256Maps {
  CUtensorMap w, x, second_w, second_x;
};

// Clusters of `parts` blocks with so much shared memory that run at once.
int32_t Fp8Rows256Clusters(int32_t strip_rows, int32_t parts, int32_t shared_bytes);
Status LaunchFp8Rows256(Fp8Rows256Form form,
                        const Fp8Rows256Plan& plan,
                        const Fp8Rows256Params& p,
                        const Fp8Rows256Maps& maps,
                        const LaunchNote& note,
                        const LaunchStream& stream);

}  // namespace baltoro::cuda
