#pragma once

// Linear in every weight form against the reference (f64 sums). Tolerances, in root mean squares of
// a row: f32 sums of exact products 1e-4; kInt4Group rounds each weight to bf16 first, 2e-2; more
// than 8 rows with e4m3 inputs are added up by the hardware with fewer bits than f32 has, 5e-3.
// Results in bf16 may besides be off by half a unit.

#include <algorithm>

#include "ops/cuda/launch/card.h"
#include "ops/cuda/linear/linear.h"
#include "ops/cuda/linear/tiles/tiles_test_support.h"

namespace baltoro::cuda::linear_test {

using namespace product_test;

inline float ToleranceOf(const FormCase& form, int64_t rows) {
  if (form.form == WeightForm::kInt4Group) return 2e-2f;
  return form.quantise_input && rows > 8 ? 5e-3f : 1e-4f;
}

struct Answer {
  std::vector<float> values;  // [rows, n]
  bool gap_kept = true;
};

// The product, into rows with a gap that must not be written. `coded`: as after a norm that wrote
// the codes of x.
inline Answer Product(Context& context,
                      const Rows& x,
                      const Weights& w,
                      DType out_type,
                      int64_t gap,
                      bool coded = false) {
  const int64_t n = w.device.n, stride = n + gap, size = SizeOf(out_type);
  const std::vector<char> before(static_cast<size_t>(x.rows * stride * size), '\x7f');
  const Buffer memory = OnDevice(before);
  TensorView out(memory.data(), out_type, {x.rows, n});
  out.stride[0] = stride;
  OpContext ctx = context.get();
  RoundedRows rounded;
  if (coded) {
    const RowSource source{
        .x = x.memory.data(), .stride = x.stride, .rows = x.rows, .k = w.device.k};
    const QuantisedRows codes = QuantiseRows(ctx, source, w.device);
    rounded = {.codes = const_cast<void*>(codes.x),
               .scales = const_cast<float*>(codes.x_scales),
               .width = w.device.k,
               .of = x.memory.data(),
               .rows = x.rows,
               .stride = x.stride};
    const Beside with{.rounded = &rounded};
    ctx.beside = &with;
    // As many as leave room for another block on the multiprocessor.
    const LinearPlan plan = ChooseLinear(QuestionOf(ctx, out, x.device(), w.device), ThisCard());
    GPU_EXPECT((plan.kernel == LinearKernel::kFp8Rows16) ==
               (x.rows <= 8 && w.device.n < 2000 && x.rows * w.device.k <= 7 * 7168));
  }
  Linear(ctx, out, x.device(), w.device);
  context.Wait();
  const auto bytes = FromDevice<char>(memory.data(), before.size());
  Answer answer;
  for (int64_t t = 0; t < x.rows; ++t) {
    for (int64_t c = 0; c < stride; ++c) {
      const char* at = &bytes[static_cast<size_t>((t * stride + c) * size)];
      if (c >= n) {
        answer.gap_kept =
            answer.gap_kept && std::all_of(at, at + size, [](char b) { return b == '\x7f'; });
        continue;
      }
      float value = 0;
      if (out_type == DType::kF32) {
        std::memcpy(&value, at, 4);
      } else {
        Bf16 bf16;
        std::memcpy(&bf16, at, 2);
        value = ToFloat(bf16);
      }
      answer.values.push_back(value);
    }
  }
  return answer;
}

inline std::vector<float> Expected(const Rows& x, const Weights& w) {
  std::vector<float> want(static_cast<size_t>(x.rows * w.device.n));
  ReferenceSmallOps().linear({}, TensorView(want.data(), DType::kF32, {x.rows, w.device.n}),
                             x.reference(), w.reference);
  return want;
}

inline void Compare(Context& context,
                    const FormCase& form,
                    const Weights& w,
                    int64_t rows,
                    int64_t x_gap,
                    DType out_type,
                    int64_t out_gap) {
  const Rows x(static_cast<uint32_t>(rows), rows, w.device.k, x_gap);
  const Answer got = Product(context, x, w, out_type, out_gap);
  const std::string what = std::string(form.name) + " n " + std::to_string(w.device.n) + " k " +
                           std::to_string(w.device.k) + " T " + std::to_string(rows) +
                           (out_type == DType::kF32 ? " f32" : " bf16");
  ExpectNear(what, got.values, Expected(x, w), w.device.n, ToleranceOf(form, rows),
             out_type == DType::kF32 ? 0.0f : 0x1p-8f, ToleranceOf(form, rows) / 5);
  if (!got.gap_kept) Fail(what + ": wrote between rows");
}

}  // namespace baltoro::cuda::linear_test
