#pragma once

// ExpertBank in every weight form against the reference (f64, nothing rounded between). The middle
// activation and each expert's share are rounded to bf16 (2^-9 each), the weights of kInt4Group
// too. Together 3e-2 of a row's root mean square, 6e-3 on average.
//
// The grouped kernels add products of e4m3 codes with about 13 bits: gate and up are off by 1e-3 of
// their root mean square. So 7 % of the middle's codes are neighbours of the reference's, a 16th of
// the number off, and where a row's middle is one large number, so is its whole result. A model of
// this on the host (noise of 1e-3 before the rounding, the shapes and rows of these tests) is off
// by 1.06e-2 on average and by 0.21 where I is 128 and a token has one expert: 0.3 and 1.5e-2.

#include "ops/cuda/experts/expert_bank.h"
#include "ops/cuda/experts/expert_bank_test_support.h"
#include "ops/cuda/norm_begun.h"

namespace baltoro::cuda::bank_test {

struct Tolerance {
  float largest, typical;
};
// `rows` of an expert, on average: from three on by the grouped kernels.
inline Tolerance ToleranceOf(const FormCase& form, double rows) {
  if (form.quantise_input && rows > 3) return {0.3f, 1.5e-2f};
  return {3e-2f, 6e-3f};
}

inline constexpr float kBefore = 0.25f;  // what out holds before it is added to

inline std::vector<float> Expected(const Bank& bank, const Step& step) {
  const int64_t rows = step.x.rows;
  std::vector<float> out(static_cast<size_t>(rows * bank.shape.hidden), kBefore);
  ReferenceSmallOps().expert_bank(
      {}, {.out = TensorView(out.data(), DType::kF32, {rows, bank.shape.hidden}),
           .x = step.x.reference(),
           .ids = TensorView(const_cast<int32_t*>(step.ids.data()), DType::kI32,
                             {rows, bank.shape.top_k}),
           .weights = TensorView(const_cast<float*>(step.weights.data()), DType::kF32,
                                 {rows, bank.shape.top_k}),
           .gate_up = bank.gate_up.reference,
           .down = bank.down.reference,
           .slot_of = bank.slot_of});
  return out;
}

// Instead of a way that is asked for.
inline constexpr ExpertsKernel kChosen = ExpertsKernel::kNone;

// What becomes of `before`, in its own type.
template <typename Element>
std::vector<Element> AddTo(const std::vector<Element>& before,
                           Context& context,
                           const Bank& bank,
                           const Step& step,
                           bool graph = false,
                           ExpertsKernel fp8 = kChosen,
                           const Rows* shared = nullptr,
                           const Weights* shared_down = nullptr) {
  const int64_t rows = step.x.rows;
  const DType type = sizeof(Element) == sizeof(float) ? DType::kF32 : DType::kBf16;
  const Buffer out = OnDevice(before);
  const Buffer ids = OnDevice(step.ids), weights = OnDevice(step.weights);
  ExpertBankArgs args{.out = TensorView(out.data(), type, {rows, bank.shape.hidden}),
                      .x = step.x.device(),
                      .ids = TensorView(ids.data(), DType::kI32, {rows, bank.shape.top_k}),
                      .weights = TensorView(weights.data(), DType::kF32, {rows, bank.shape.top_k}),
                      .gate_up = bank.gate_up.device,
                      .down = bank.down.device,
                      .slot_of = bank.slot_of};
  if (shared != nullptr) {
    args.shared = shared->device();
    args.shared_down = shared_down->device;
  }
  const OpContext ctx = context.get();
  if (graph) {
    Capture(ctx, [&] { ExpertBank(ctx, args); })->Launch(ctx);
    context.Wait();
  } else if (fp8 != kChosen) {
    BT_CHECK(!bank.shape.holes);
    ExpertBankBy(ctx, args, ExpertsBy(ExpertsQuestionOf(ctx, args), fp8));
    context.Wait();
  } else {
    ExpertBank(ctx, args);
    context.Wait();
  }
  return FromDevice<Element>(out.data(), before.size());
}

inline std::vector<float> Product(Context& context,
                                  const Bank& bank,
                                  const Step& step,
                                  bool graph = false,
                                  ExpertsKernel fp8 = kChosen,
                                  const Rows* shared = nullptr,
                                  const Weights* shared_down = nullptr) {
  const auto count = static_cast<size_t>(step.x.rows * bank.shape.hidden);
  return AddTo(std::vector<float>(count, kBefore), context, bank, step, graph, fp8, shared,
               shared_down);
}

inline void Compare(Context& context,
                    const FormCase& form,
                    const Bank& bank,
                    std::initializer_list<int64_t> rows,
                    bool hot,
                    std::initializer_list<ExpertsKernel> forms = {kChosen}) {
  for (const int64_t t : rows) {
    const Step step(bank, t, hot);
    const double mean =
        static_cast<double>(t * bank.shape.top_k) / static_cast<double>(bank.shape.slots);
    const std::vector<float> want = Expected(bank, step);
    for (const ExpertsKernel fp8 : forms) {
      const bool grouped =
          fp8 == ExpertsKernel::kFp8Grouped128 || fp8 == ExpertsKernel::kFp8GroupedSum;
      const Tolerance tolerance = ToleranceOf(form, grouped                               ? 1000
                                                    : fp8 == ExpertsKernel::kFp8Streaming ? 1
                                                                                          : mean);
      const std::string how = fp8 == kChosen ? "" : std::string(" ") + NameOf(fp8);
      const std::vector<float> got = Product(context, bank, step, false, fp8);
      for (int again = 0; fp8 != kChosen && again < 2; ++again) {
        if (Product(context, bank, step, false, fp8) == got) continue;
        Fail(Name(form, bank.shape, t) + how + ": other bits in run " + std::to_string(again + 2));
        break;
      }
      ExpectNear(Name(form, bank.shape, t) + (hot ? " hot" : "") + how, got, want,
                 bank.shape.hidden, tolerance.largest, 0, tolerance.typical);
    }
  }
}

}  // namespace baltoro::cuda::bank_test
