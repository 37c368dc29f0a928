#include "ops/cpu/weight_product.h"

#include "base/check.h"
#include "ops/cpu/quantise_rows.h"

namespace baltoro::cpu {

WeightProduct::WeightProduct(DType act, const PackedMatrix& w)
    : kernels_(KernelsFor(act, PlainType(w.form))),
      like_(w),
      integers_(HasIntegerProducts(w.form)),
      multiply_(IsPlain(w.form) ? nullptr : MultiplyCodesFor(kernels_, w.form)),
      panel_bytes_(PanelBytes(w.form, w.k)) {
  if (integers_) {
    scale_count_ = 1;
    BT_CHECK(w.k < kIntDepthEnd);
    BT_CHECK(w.form != WeightForm::kInt8Static || w.input_scale > 0);
  } else if (w.quantise_input) {
    BT_CHECK(w.form == WeightForm::kFp8Block);
    scale_count_ = GroupCount(w.form, w.k);
  }
}

ProductInput WeightProduct::Allocate(Arena& scratch, int64_t rows) const {
  const int64_t bytes = integers_ ? RoundUp(rows, kTileRows) / kTileRows *
                                        CeilDiv(like_.k, kIntBlockK) * kIntTileBytes
                                  : TileBytes(kernels_.tile, rows, like_.k);
  ProductInput input = {.tiles = scratch.AllocateArray<char>(static_cast<size_t>(bytes))};
  if (scale_count_ > 0) {
    input.scales = scratch.AllocateArray<float>(static_cast<size_t>(rows * scale_count_));
  }
  return input;
}

void WeightProduct::Fill(const ProductInput& to,
                         const RowSource& source,
                         int64_t begin,
                         int64_t end) const {
  if (integers_) {
    QuantiseToInt8(kernels_, like_, to.tiles, to.scales, source, begin, end);
  } else if (quantises()) {
    QuantiseToFp8(kernels_, like_, to.tiles, to.scales, source, begin, end);
  } else {
    FillTiles(kernels_, to.tiles, source, begin, end, like_.k);
  }
}

float* WeightProduct::Multiply(const ProductInput& in,
                               int64_t row,
                               int64_t rows,
                               const PackedMatrix& w,
                               int64_t begin,
                               int64_t end,
                               float* buffer,
                               const void* next) const {
  BT_CHECK(row % kTileRows == 0 && w.form == like_.form && w.k == like_.k);
  if (multiply_ == nullptr) {
    LeftOperand a = TilesAt(in.tiles, kernels_.tile, w.k);
    a.data = in.tiles + row / kTileRows * a.row_tile;
    return MultiplyColumns(kernels_, a, rows, w, begin, end, buffer, next);
  }
  const int64_t skipped = begin % kPanelColumns;
  const int64_t row_tile_bytes =
      integers_ ? CeilDiv(w.k, kIntBlockK) * kIntTileBytes : TileBytes(kernels_.tile, 1, w.k);
  const CodedProduct product = {
      .form = w.form,
      .k = w.k,
      .tiles = in.tiles + row / kTileRows * row_tile_bytes,
      .rows = rows,
      .row_scales = in.scales == nullptr ? nullptr : in.scales + row * scale_count_,
      .panels = static_cast<const char*>(PanelOf(w, begin)),
      .columns = skipped + end - begin,
      .next = next,
      .c = buffer,
      .ldc = ProductStride(begin, end)};
  multiply_(product);
  return buffer + skipped;
}

}  // namespace baltoro::cpu
