#include "ops/cuda/linear/tiles/tiles.h"

#include "base/check.h"
#include "ops/cuda/choose/quantise.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/launch/card.h"
#include "ops/cuda/linear/tiles/tiles_params.h"

namespace baltoro::cuda {
TilesQuestion QuestionOf(const ProductArgs& args) {
  const bool one = args.tiles == nullptr;
  return {.w = FactsOf(args.w),
          .rows = args.rows,
          .tile_rows = one ? 0 : args.tile_rows,
          .tiles_max = one ? 0 : args.tiles_max,
          .wide = args.wide};
}

void LaunchProduct(const ProductArgs& args, const LaunchStream& stream) {
  if (args.rows == 0) return;
  LaunchProduct(args, ChooseTiles(QuestionOf(args), ThisCard()), stream);
}

void LaunchProduct(const ProductArgs& args, const TilesPlan& plan, const LaunchStream& stream) {
  using product::Params;
  const PackedMatrix& w = args.w;
  BT_CHECK(TilesCan(FactsOf(w)) && w.k < 1 << 17);
  if (args.rows == 0) return;
  const ProductLayout layout = LayoutOf(w.form, w.n, w.k);
  const TilesMeasure measure(FactsOf(w));
  Params p = {};
  p.weights = static_cast<const char*>(w.data);
  p.slot_bytes = w.stride_bytes;
  p.scales = layout.scales;
  p.biases = w.form == WeightForm::kInt8Static ? layout.biases : 0;
  p.row_bytes = layout.row_bytes;
  p.n = static_cast<int32_t>(w.n);
  p.k = static_cast<int32_t>(w.k);
  p.steps = static_cast<int32_t>(measure.steps);
  p.strips = static_cast<int32_t>(measure.strips);
  p.x = static_cast<const char*>(args.x);
  const bool codes = w.form == WeightForm::kFp8Block && w.quantise_input;
  const bool bytes = ReadsIntegers(w.form) || codes;
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

  if (plan.wide) {
    BT_CHECK(args.out_type == DType::kF32 || args.out_stride % 8 == 0);
    if (w.form == WeightForm::kBf16) p.row_bytes = w.k * 2;
    p.strips = static_cast<int32_t>(SharesOf(w.n, product::kWideWeightRows));
    return product::LaunchWide(w.form, p, plan, stream);
  }
  p.log_warps_k = plan.log_warps_k;
  p.cluster = plan.cluster;
  switch (w.form) {
    case WeightForm::kBf16:
      return product::LaunchBf16(p, plan, stream);
    case WeightForm::kFp8Block:
      return codes ? product::LaunchFp8Codes(p, plan, stream) : product::LaunchFp8(p, plan, stream);
    case WeightForm::kInt4Group:
      return product::LaunchInt4Group(p, plan, stream);
    case WeightForm::kInt4:
      return product::LaunchInt4(p, plan, stream);
    case WeightForm::kInt8:
    case WeightForm::kInt8Static:
      return product::LaunchInt8(p, plan, stream);
    case WeightForm::kF32:
      BT_CHECK(false);
  }
}

}  // namespace baltoro::cuda
