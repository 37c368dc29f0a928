#pragma once

// How rows become what a product with a coded matrix reads (quantise.cu).

#include "ops/cuda/choose/facts.h"
#include "ops/cuda/choose/launch_shape.h"

namespace baltoro::cuda {

enum class QuantiseKernel : uint8_t {
  kNone,      // rows are read as they are
  kKnown,     // they are codes already
  kFp8Units,  // e4m3, several units of 256 columns a warp
  kFp8Rows,   // e4m3 of any rows
  kInt8Rows,
  kPad,  // bf16, padded to whole steps
};

struct QuantiseQuestion {
  RowsFacts x = {};  // bf16; its alignment counts the way between rows even of one
  bool gated = false, f32 = false;
  bool known = false;  // there are codes of these rows
  int64_t k = 0;
  WeightForm form = WeightForm::kBf16;
  bool quantise_input = false;

  bool operator==(const QuantiseQuestion&) const = default;
};

struct QuantisePlan {
  QuantiseKernel kernel = QuantiseKernel::kNone;
  int32_t units = 0;  // of a warp: 1 or 4 (kFp8Units)
  LaunchShape launch = {};

  bool operator==(const QuantisePlan&) const = default;
};

// Whether a matrix of this form reads codes of 8 bits with a sum in integers.
constexpr bool ReadsIntegers(WeightForm form) {
  return form == WeightForm::kInt8 || form == WeightForm::kInt4 || form == WeightForm::kInt8Static;
}

// Whether products with a matrix of this form take rows as codes that depend on the row alone, each
// with scales of its own: then codes that somebody has made serve all such matrices. Those of
// kInt8Static depend on the matrix.
constexpr bool ReadsCodes(WeightForm form, bool quantise_input) {
  return form == WeightForm::kFp8Block ? quantise_input
                                       : ReadsIntegers(form) && form != WeightForm::kInt8Static;
}
// Scales of a row of `width` elements.
constexpr int64_t ScalesOfCodes(WeightForm form, int64_t width) {
  return form == WeightForm::kFp8Block ? SharesOf(width, 128) : 1;
}

inline QuantisePlan ChooseQuantise(const QuantiseQuestion& q) {
  constexpr int32_t kThreads = 256, kWarps = kThreads / 32;
  const bool integers = ReadsIntegers(q.form);
  const bool fp8 = q.form == WeightForm::kFp8Block && q.quantise_input;
  const bool plain = !q.gated && !q.f32;
  if (!integers && !fp8 && !q.gated && q.k % 8 == 0 && q.x.aligned(16)) return {};
  if ((fp8 || integers) && plain && q.known) return {.kernel = QuantiseKernel::kKnown};
  const int64_t steps = SharesOf(q.k, 128);
  const auto rows = static_cast<int32_t>(q.x.rows);
  if (fp8 && plain && q.k % 128 == 0 && q.x.aligned(16)) {
    // Few rows: as many warps as there can be.
    const int32_t units = q.x.rows * steps <= 16 * 1024 ? 1 : 4;
    const int64_t all = q.x.rows * SharesOf(steps, 2);
    return {.kernel = QuantiseKernel::kFp8Units,
            .units = units,
            .launch = {.x = static_cast<int32_t>(SharesOf(all, kWarps * int64_t{units})),
                       .threads = kThreads}};
  }
  if (fp8) {
    return {
        .kernel = QuantiseKernel::kFp8Rows,
        .launch = {
            .x = rows, .y = static_cast<int32_t>(SharesOf(steps, kWarps)), .threads = kThreads}};
  }
  return {.kernel = integers ? QuantiseKernel::kInt8Rows : QuantiseKernel::kPad,
          .launch = {.x = rows, .threads = kThreads}};
}

}  // namespace baltoro::cuda
