#include "ops/cuda/product.h"

#include <algorithm>

#include "base/check.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/moe_int4_layout.h"
#include "ops/cuda/product_params.h"

namespace baltoro::cuda {
namespace {

using product::kWarps;
using product::Params;

using product::kMultiprocessors;
constexpr int32_t kClusterMax = 8;

// How the blocks share the work: strips beside one another, columns among warps and blocks.
struct Split {
  int32_t log_warps_k = 0, cluster = 1;
};

// What a block costs beside its steps, in steps.
constexpr int64_t kBlockCost = 2;

// The split whose busiest multiprocessor has the least to do; of equals that with the smallest
// cluster, then the most warps a strip.
Split ChooseSplit(int32_t strips, int32_t steps, int32_t tiles, bool one_matrix) {
  Split best;
  int64_t least = INT64_MAX;
  for (int32_t cluster = 1; cluster <= (one_matrix ? kClusterMax : 1); cluster *= 2) {
    for (int32_t log = 3; log >= 0; --log) {
      const int32_t parts = cluster << log;
      if (parts > steps && parts > 1) continue;
      const int64_t in_block = kWarps >> log;
      const int64_t blocks = (strips + in_block - 1) / in_block * cluster * tiles;
      const int64_t each = (blocks + kMultiprocessors - 1) / kMultiprocessors;
      const int64_t cost = each * ((steps + parts - 1) / parts + kBlockCost);
      if (cost >= least) continue;
      least = cost;
      best = {log, cluster};
    }
  }
  return best;
}

int ColumnTiles(int32_t rows) {
  return rows <= 8 ? 1 : rows <= 16 ? 2 : rows <= 32 ? 4 : 8;
}

}  // namespace

bool ProductTakes(const PackedMatrix& w) {
  if (w.form == WeightForm::kF32) return false;
  return w.form != WeightForm::kBf16 || w.k % 8 == 0;
}

bool WideTakes(const PackedMatrix& w) {
  if (w.n % 8 != 0) return false;
  switch (w.form) {
    case WeightForm::kBf16:
      return w.k % 64 == 0;
    case WeightForm::kFp8Block:
      return w.quantise_input;
    case WeightForm::kInt8:
    case WeightForm::kInt8Static:
      return true;
    default:
      return false;
  }
}

void LaunchProduct(const ProductArgs& args, cudaStream_t stream) {
  const PackedMatrix& w = args.w;
  BT_CHECK(ProductTakes(w) && w.k < 1 << 17);
  if (args.rows == 0) return;
  const ProductLayout layout = LayoutOf(w.form, w.n, w.k);
  const bool integers = w.form == WeightForm::kInt8 || w.form == WeightForm::kInt8Static ||
                        w.form == WeightForm::kInt4;
  Params p = {};
  p.weights = static_cast<const char*>(w.data);
  p.slot_bytes = w.stride_bytes;
  p.scales = layout.scales;
  p.biases = w.form == WeightForm::kInt8Static ? layout.biases : 0;
  p.row_bytes = layout.row_bytes;
  p.n = static_cast<int32_t>(w.n);
  p.k = static_cast<int32_t>(w.k);
  p.steps = static_cast<int32_t>(w.form == WeightForm::kBf16 ? (w.k + 63) / 64 : layout.steps);
  p.strips = static_cast<int32_t>(w.form == WeightForm::kInt4Group ? Int4HalfRows(w.n) / 8
                                                                   : (w.n + 15) / 16);
  p.x = static_cast<const char*>(args.x);
  const bool codes = w.form == WeightForm::kFp8Block && w.quantise_input;
  const bool bytes = integers || codes;
  p.x_row_bytes = args.x_stride * (bytes ? 1 : 2);
  p.x_scales = args.x_scales;
  p.x_scales_stride = static_cast<int32_t>(args.x_scales_stride);
  p.out = args.out;
  p.out_stride = args.out_stride;
  p.out_bf16 = args.out_type == DType::kBf16;
  p.rows = args.rows;
  p.tiles = args.tiles;
  p.num_tiles = args.num_tiles;
  p.order = args.order;
  p.top_k = args.top_k;
  p.gather = args.gather;
  p.scatter = args.scatter;
  p.route_weights = args.route_weights;
  BT_CHECK(reinterpret_cast<uintptr_t>(p.x) % 16 == 0 && p.x_row_bytes % 16 == 0);

  if (args.wide) {
    BT_CHECK(WideTakes(w) && (args.out_type == DType::kF32 || args.out_stride % 8 == 0));
    BT_CHECK(args.tiles == nullptr || args.tile_rows == kWideProductRows);
    if (w.form == WeightForm::kBf16) p.row_bytes = w.k * 2;
    p.strips =
        static_cast<int32_t>((w.n + product::kWideWeightRows - 1) / product::kWideWeightRows);
    const int32_t tiles = args.tiles == nullptr
                              ? (args.rows + kWideProductRows - 1) / kWideProductRows
                              : args.tiles_max;
    product::LaunchWide(w.form, p, tiles, stream);
    return;
  }
  product::Shape shape;
  shape.column_tiles = ColumnTiles(args.tiles == nullptr ? args.rows : args.tile_rows);
  const int32_t tile_rows = 8 * shape.column_tiles;
  const int32_t tiles =
      args.tiles == nullptr ? (args.rows + tile_rows - 1) / tile_rows : args.tiles_max;
  BT_CHECK(tiles <= 65535);
  const Split split = ChooseSplit(p.strips, p.steps, tiles, args.tiles == nullptr);
  p.log_warps_k = split.log_warps_k;
  p.cluster = split.cluster;
  const int32_t in_block = kWarps >> p.log_warps_k;
  shape.grid = dim3(static_cast<unsigned>((p.strips + in_block - 1) / in_block * p.cluster),
                    static_cast<unsigned>(tiles));
  switch (w.form) {
    case WeightForm::kBf16:
      return product::LaunchBf16(p, shape, stream);
    case WeightForm::kFp8Block:
      return codes ? product::LaunchFp8Codes(p, shape, stream)
                   : product::LaunchFp8(p, shape, stream);
    case WeightForm::kInt4Group:
      return product::LaunchInt4Group(p, shape, stream);
    case WeightForm::kInt4:
      return product::LaunchInt4(p, shape, stream);
    case WeightForm::kInt8:
    case WeightForm::kInt8Static:
      return product::LaunchInt8(p, shape, stream);
    case WeightForm::kF32:
      BT_CHECK(false);
  }
}

}  // namespace baltoro::cuda
