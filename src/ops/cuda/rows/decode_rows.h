#pragma once

// What QuantiseRows made of rows for kFp8Block, as rows again.

#include <cstdint>

#include "ops/cuda/launch/launch_stream.h"

namespace baltoro::cuda {

// out[r, c] = bf16(codes[r, c] * scales[r, c / 128]).  codes [rows, width] as
// layout/product_layout.h has them, at a multiple of 8 bytes; scales [rows, width / 128]; out
// [rows, width] bf16, at a multiple of 16 bytes; width a multiple of 128.
void LaunchDecodeRows(const LaunchStream& stream,
                      void* out,
                      const void* codes,
                      const float* scales,
                      int64_t rows,
                      int64_t width);

}  // namespace baltoro::cuda
