#pragma once

// What a norm writes beside its rows, for those who read them next (ops.h): codes of e4m3 with
// their scales, or the rows in the order of an expert bank's matrices. Rows without gaps.

#include "ops/ops.h"

namespace baltoro::cuda {

struct NormCopies {
  char* codes = nullptr;
  float* scales = nullptr;
  void* ordered = nullptr;  // bf16
};

// Of the rows from `row` on.
inline NormCopies RowsFrom(const NormCopies& copies, int64_t row, int64_t width) {
  NormCopies from = copies;
  if (from.codes != nullptr) {
    from.codes += row * width;
    from.scales += row * (width / 128);
  }
  if (from.ordered != nullptr) from.ordered = static_cast<uint16_t*>(from.ordered) + row * width;
  return from;
}

// Those that `ctx` has room for, of rows `out` that are written eight columns (`vectors`) at a
// time; from now on ctx says that they are of `out`, and of none where the norm writes none.
inline NormCopies TakeNormCopies(const OpContext& ctx, const TensorView& out, bool vectors) {
  NormCopies copies;
  const bool rows = vectors && out.dtype == DType::kBf16;
  if (RoundedRows* const to = ctx.rounded; to != nullptr) {
    if (to->of == out.data) to->of = nullptr;
    if (rows && to->codes != nullptr && to->width == out.dim(1) && to->width % 128 == 0) {
      to->of = out.data;
      to->rows = out.dim(0);
      to->stride = out.stride[0];
      copies.codes = static_cast<char*>(to->codes);
      copies.scales = to->scales;
      return copies;
    }
  }
  if (OrderedRows* const to = ctx.ordered;
      to != nullptr && to->data != nullptr && rows && out.dim(1) % 32 == 0) {
    to->of = out.data;
    to->rows = out.dim(0);
    to->stride = out.stride[0];
    copies.ordered = to->data;
  }
  return copies;
}

}  // namespace baltoro::cuda
