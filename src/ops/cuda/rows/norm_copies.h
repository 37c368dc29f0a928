#pragma once

// What a norm writes beside its rows, for those who read them next (fused_args.h): codes of
// e4m3 with their scales, or the rows in the order of an expert bank's matrices. Rows without gaps.

#include "ops/cuda/choose/norm.h"
#include "ops/cuda/fused_args.h"

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

// What `ctx` has room for, of rows `out`.
inline void AskForCopies(const OpContext& ctx, const TensorView& out, NormQuestion& question) {
  const RoundedRows* const rounded = RoundedOf(ctx);
  const OrderedRows* const ordered = OrderedOf(ctx);
  question.codes_wanted =
      rounded != nullptr && rounded->codes != nullptr && rounded->width == out.dim(1);
  question.order_wanted = ordered != nullptr && ordered->data != nullptr;
}

// Where the chosen copy goes; from now on ctx says that it is of `out`, and of none where the norm
// writes none.
inline NormCopies TakeNormCopies(const OpContext& ctx, const TensorView& out, NormCopy copy) {
  ForgetNormCopies(ctx, out);
  NormCopies copies;
  if (copy == NormCopy::kCodes) {
    RoundedRows& to = *RoundedOf(ctx);
    to.of = out.data;
    to.rows = out.dim(0);
    to.stride = out.stride[0];
    copies.codes = static_cast<char*>(to.codes);
    copies.scales = to.scales;
  } else if (copy == NormCopy::kMatrixOrder) {
    OrderedRows& to = *OrderedOf(ctx);
    to.of = out.data;
    to.rows = out.dim(0);
    to.stride = out.stride[0];
    copies.ordered = to.data;
  }
  return copies;
}

}  // namespace baltoro::cuda
