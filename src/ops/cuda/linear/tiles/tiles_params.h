#pragma once

// Between the launcher of products and their kernels.

#include <cstdint>

#include "ops/cuda/launch/launch_stream.h"
#include "ops/cuda/layout/product_layout.h"
#include "ops/cuda/linear/tiles/tiles.h"

namespace baltoro::cuda::product {

// What the kernel is given; ProductArgs (tiles.h) in its terms.
struct Params {
  const char* weights;
  int64_t slot_bytes;
  int64_t scales, biases;  // offsets
  int64_t row_bytes;
  int32_t n, k, steps, strips;
  int32_t log_warps_k, cluster;
  const char* x;
  int64_t x_row_bytes;
  const float* x_scales;
  int32_t x_scales_stride;
  void* out;
  int64_t out_stride;
  bool out_bf16;
  int32_t rows;
  const MoeTile* tiles;
  const int32_t* num_tiles;
  const int32_t* order;
  int32_t top_k;
  bool gather, scatter;
  const float* route_weights;
};

// In tiles128.cu; p.steps counts 128 bytes of a row, p.strips kWideWeightRows rows.
void LaunchWide(WeightForm form,
                const Params& p,
                const TilesPlan& plan,
                const LaunchStream& stream);

// One translation unit each: they take long to compile.
void LaunchBf16(const Params& p, const TilesPlan& plan, const LaunchStream& stream);
void LaunchFp8(const Params& p, const TilesPlan& plan, const LaunchStream& stream);
void LaunchFp8Codes(const Params& p, const TilesPlan& plan, const LaunchStream& stream);
void LaunchInt4Group(const Params& p, const TilesPlan& plan, const LaunchStream& stream);
void LaunchInt8(const Params& p, const TilesPlan& plan, const LaunchStream& stream);
void LaunchInt4(const Params& p, const TilesPlan& plan, const LaunchStream& stream);

}  // namespace baltoro::cuda::product
