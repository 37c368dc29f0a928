#pragma once

// What a norm writes beside its rows, for those who read them next (layer/fused_args.h): codes of
// e4m3 with their scales, or the rows in the order of an expert bank's matrices. Rows without gaps.

#include "ops/cuda/layer/fused_args.h"

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

// Rows `out` are written without copies.
inline void ForgetNormCopies(const OpContext& ctx, const TensorView& out) {
  RoundedRows* const rounded = RoundedOf(ctx);
  OrderedRows* const ordered = OrderedOf(ctx);
  if (rounded != nullptr && rounded->of == out.data) rounded->of = nullptr;
  if (ordered != nullptr && ordered->of == out.data) ordered->of = nullptr;
}

// The one that `ctx` has room for, of rows `out`; from now on ctx says that it is of `out`, and of
// none where the norm writes none. `rounds`, `orders`: whether the norm could write codes, matrix
// order; it has eight columns a lane then.
inline NormCopies TakeNormCopies(const OpContext& ctx,
                                 const TensorView& out,
                                 bool rounds,
                                 bool orders) {
  ForgetNormCopies(ctx, out);
  NormCopies copies;
  if (out.dtype != DType::kBf16) return copies;
  if (RoundedRows* const to = RoundedOf(ctx); to != nullptr && to->codes != nullptr && rounds &&
                                              to->width == out.dim(1) && to->width % 128 == 0) {
    to->of = out.data;
    to->rows = out.dim(0);
    to->stride = out.stride[0];
    copies.codes = static_cast<char*>(to->codes);
    copies.scales = to->scales;
    return copies;
  }
  if (OrderedRows* const to = OrderedOf(ctx);
      to != nullptr && to->data != nullptr && orders && out.dim(1) % 32 == 0) {
    to->of = out.data;
    to->rows = out.dim(0);
    to->stride = out.stride[0];
    copies.ordered = to->data;
  }
  return copies;
}

}  // namespace baltoro::cuda
