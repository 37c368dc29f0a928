// ExpertBank in every weight form against the reference, and with what is beside it. What is of
// e4m3 weights alone is in expert_bank_test_fp8.cc.

#include <cmath>

#include "device/cuda/device_info.h"
#include "ops/cuda/experts/expert_bank.h"
#include "ops/cuda/experts/expert_bank_test_compare.h"

namespace baltoro::cuda {
namespace {

using namespace bank_test;

GPU_TEST(ExpertBankTest, SmallBanksInEveryForm) {
  Context context;
  for (const FormCase& form : kForms) {
    if (form.form == WeightForm::kF32) continue;  // no bank is kept so
    for (const Shape& shape : {Shape{256, 128, 16, 4}, Shape{256, 128, 12, 4, true},
                               Shape{160, 96, 9, 3}, Shape{72, 32, 5, 2, true}}) {
      const bool whole_groups = shape.hidden % 32 == 0 && shape.intermediate % 32 == 0;
      if (form.form == WeightForm::kInt4Group && !whole_groups) continue;
      const Bank bank(form, shape);
      Compare(context, form, bank, {1, 3, 17, 129}, false);
      Compare(context, form, bank, {5, 70}, true);
    }
  }
}

GPU_TEST(ExpertBankTest, RankShapeInEveryForm) {
  Context context;
  for (const FormCase& form : kForms) {
    if (form.form == WeightForm::kF32) continue;
    const Bank bank(form, {7168, 256, 12, 8, true});
    Compare(context, form, bank, {1, 4}, false);
  }
}

GPU_TEST(ExpertBankTest, ManyRowsInEveryForm) {
  Context context;
  for (const FormCase& form : kForms) {
    if (form.form == WeightForm::kF32) continue;
    const Bank bank(form, {768, 192, 6, 3, true});
    Compare(context, form, bank, {60, 500}, false);
    Compare(context, form, bank, {150}, true);
  }
}

// A bank with the shared experts, whose second product has the form `shared_form`.
void CompareWithShared(Context& context,
                       const FormCase& form,
                       const FormCase& shared_form,
                       const Shape& shape,
                       std::initializer_list<int64_t> rows,
                       const Tolerance& tolerance) {
  const Bank bank(form, shape);
  const int64_t width = shape.intermediate;
  const Weights shared_down(5, shared_form, 1, shape.hidden, width);
  for (const int64_t t : rows) {
    const Step step(bank, t, false);
    const Rows shared(6, t, 2 * width, 8);
    std::vector<float> gated(static_cast<size_t>(t * width));
    const TensorView gated_view(gated.data(), DType::kF32, {t, width});
    ReferenceSmallOps().swiglu({}, gated_view, shared.reference());
    // As an activation is kept.
    for (float& v : gated) v = ToFloat(ToBf16(v));
    std::vector<float> want(static_cast<size_t>(t * shape.hidden));
    ReferenceSmallOps().linear({}, TensorView(want.data(), DType::kF32, {t, shape.hidden}),
                               gated_view, shared_down.reference);
    const std::vector<float> routed = Expected(bank, step);
    for (size_t i = 0; i < want.size(); ++i) want[i] += routed[i] - kBefore;
    const std::vector<float> got =
        Product(context, bank, step, false, kChosen, &shared, &shared_down);
    ExpectNear(Name(form, shape, t) + " shared", got, want, shape.hidden, tolerance.largest, 0,
               tolerance.typical);
  }
}

// With the shared experts' second product: of few tokens in the same kernels, of more before them.
GPU_TEST(ExpertBankTest, Fp8WithSharedExperts) {
  Context context;
  for (const FormCase& form : kForms) {
    if (!form.quantise_input) continue;
    for (const Shape& shape : {Shape{7168, 256, 12, 8, true}, Shape{512, 384, 4, 3}}) {
      CompareWithShared(context, form, form, shape, {1, 4, 7, 16, 21}, {0.3f, 1.5e-2f});
    }
  }
}

// Of more tokens they come before the bank, which adds to them.
GPU_TEST(ExpertBankTest, SharedExpertsOfManyTokens) {
  Context context;
  const FormCase bf16 = kForms[0];
  for (const FormCase& form : kForms) {
    if (form.quantise_input) {
      CompareWithShared(context, form, form, {512, 384, 40, 8, true}, {17, 50, 530},
                        {0.3f, 1.5e-2f});
    } else if (form.form == WeightForm::kInt4Group) {
      CompareWithShared(context, form, bf16, {512, 256, 64, 8, true}, {17, 50}, {3e-2f, 6e-3f});
      CompareWithShared(context, form, bf16, {256, 256, 900, 8}, {530}, {3e-2f, 6e-3f});
    }
  }
}

// Results in bf16 are those in f32, rounded once.
GPU_TEST(ExpertBankTest, ResultsInBf16AreThoseInF32Rounded) {
  Context context;
  const auto check = [&](const FormCase& form, const Bank& bank, int64_t rows, ExpertsKernel fp8) {
    const Step step(bank, rows, false);
    std::vector<float> exact;
    std::vector<Bf16> rounded;
    for (int64_t i = 0; i < rows * bank.shape.hidden; ++i) {
      exact.push_back(static_cast<float>(i * 37 % 127 - 63) / 64);  // is a bf16
      rounded.push_back(ToBf16(exact.back()));
    }
    exact = AddTo(exact, context, bank, step, false, fp8);
    rounded = AddTo(rounded, context, bank, step, false, fp8);
    int64_t wrong = 0;
    for (size_t i = 0; i < exact.size(); ++i) wrong += rounded[i].bits != ToBf16(exact[i]).bits;
    if (wrong != 0) {
      Fail(Name(form, bank.shape, rows) + ": " + std::to_string(wrong) + " results differ");
    }
  };
  for (const FormCase& form : kForms) {
    if (form.form == WeightForm::kF32) continue;
    const Bank bank(form, {256, 128, 12, 4, true});
    for (const int64_t rows : {20, 70}) check(form, bank, rows, kChosen);
    if (!form.quantise_input) continue;
    const Bank whole(form, {640, 256, 6, 3});
    for (const ExpertsKernel fp8 : {ExpertsKernel::kFp8Streaming, ExpertsKernel::kFp8Grouped128,
                                    ExpertsKernel::kFp8GroupedSum}) {
      for (const int64_t rows : {3, 65}) check(form, whole, rows, fp8);
    }
  }
}

// The shared experts' part is rounded before the others' sum is added, and with it once more.
GPU_TEST(ExpertBankTest, SharedExpertsInBf16) {
  Context context;
  for (const FormCase& form : kForms) {
    if (!form.quantise_input && form.form != WeightForm::kInt4Group) continue;
    const Bank bank(form, {512, 256, 6, 3, true});
    const FormCase plain = form.quantise_input ? form : kForms[0];
    const Weights shared_down(5, plain, 1, 512, 256);
    for (const int64_t rows : {3, 40}) {
      const Step step(bank, rows, false);
      const Rows shared(6, rows, 512, 8);
      const std::vector<float> want =
          Product(context, bank, step, false, kChosen, &shared, &shared_down);
      const std::vector<Bf16> rounded = AddTo(std::vector<Bf16>(want.size()), context, bank, step,
                                              false, kChosen, &shared, &shared_down);
      std::vector<float> got;
      for (const Bf16 v : rounded) got.push_back(ToFloat(v));
      // Of few rows other kernels make the results in f32.
      const Tolerance tolerance = rows > 16 ? Tolerance{0x1p-5f, 4e-3f} : ToleranceOf(form, 4);
      ExpectNear(Name(form, bank.shape, rows) + " shared in bf16", got, want, 512,
                 tolerance.largest, 0, tolerance.typical);
    }
  }
}

GPU_TEST(ExpertBankTest, NaNStaysInItsRow) {
  Context context;
  for (const FormCase& form : kForms) {
    if (form.form == WeightForm::kF32) continue;
    const Bank bank(form, {256, 128, 12, 4});
    for (const int64_t rows : {3, 40}) {
      const std::vector<float> want = Product(context, bank, Step(bank, rows, true));
      const std::vector<float> got = Product(context, bank, Step(bank, rows, true, 2));
      int64_t others = 0, numbers = 0;
      for (int64_t at = 0; at < std::ssize(got); ++at) {
        if (at / 256 == 2) {
          numbers += !std::isnan(got[at]);
        } else {
          others += got[at] != want[at];
        }
      }
      const std::string what = Name(form, bank.shape, rows) + ": ";
      if (others != 0) Fail(what + std::to_string(others) + " numbers of other rows changed");
      if (numbers != 0) Fail(what + std::to_string(numbers) + " numbers of its row are none");
    }
  }
}

// The norm's second copy, and nothing else of the rows, makes the same bits.
GPU_TEST(ExpertBankTest, TakesRowsThatTheNormOrdered) {
  Context context;
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  const FormCase form{"int4 group", WeightForm::kInt4Group};
  struct Case {
    Shape shape;
    int64_t rows;
    bool reads;
  };
  // Grouped and with the sum, of a middling number of rows, streaming.
  for (const Case& one : {Case{{384, 128, 6, 2}, 40, true}, Case{{256, 256, 3, 2}, 47, true},
                          Case{{256, 256, 8, 4}, 40, true}, Case{{384, 128, 16, 2}, 40, false}}) {
    const Bank bank(form, one.shape);
    const Step step(bank, one.rows, false);
    const int64_t hidden = one.shape.hidden;
    const auto count = static_cast<size_t>(one.rows * hidden);
    std::vector<float> sum(count), delta(count), weight(static_cast<size_t>(hidden), 1.5f);
    for (float& value : sum) value = normal(random);
    for (float& value : delta) value = normal(random);
    const Buffer delta_memory = OnDevice(delta), weight_memory = OnDevice(weight);
    const Buffer ids = OnDevice(step.ids), weights = OnDevice(step.weights);
    const Buffer normed = OnDevice(std::vector<uint16_t>(count));
    const Buffer ordered_memory = OnDevice(std::vector<uint16_t>(count, 0x7FC0));
    const auto view = [&](const Buffer& memory, DType type, int64_t width) {
      return TensorView(memory.data(), type, {one.rows, width});
    };
    const auto norm = [&](OrderedRows* ordered) {
      const Buffer residual = OnDevice(sum);
      OpContext ctx = context.get();
      const Beside with{.ordered = ordered};
      ctx.beside = &with;
      AddRmsNorm(ctx, view(normed, DType::kBf16, hidden), view(residual, DType::kF32, hidden),
                 view(delta_memory, DType::kF32, hidden),
                 TensorView(weight_memory.data(), DType::kF32, {hidden}), 1e-5f);
      context.Wait();
      return FromDevice<float>(residual.data(), count);
    };
    const auto product = [&](OrderedRows* ordered) {
      const Buffer out = OnDevice(std::vector<float>(count, kBefore));
      const ExpertBankArgs args{.out = view(out, DType::kF32, hidden),
                                .x = view(normed, DType::kBf16, hidden),
                                .ids = view(ids, DType::kI32, one.shape.top_k),
                                .weights = view(weights, DType::kF32, one.shape.top_k),
                                .gate_up = bank.gate_up.device,
                                .down = bank.down.device,
                                .slot_of = bank.slot_of};
      OpContext ctx = context.get();
      GPU_EXPECT(PlanBank(ctx, args).reads_ordered == one.reads);
      const Beside with{.ordered = ordered};
      ctx.beside = &with;
      ExpertBank(ctx, args);
      context.Wait();
      return FromDevice<float>(out.data(), count);
    };
    const std::vector<float> residual = norm(nullptr), want = product(nullptr);
    const std::vector<uint16_t> rows = FromDevice<uint16_t>(normed.data(), count);
    OrderedRows ordered{.data = ordered_memory.data()};
    GPU_EXPECT(product(&ordered) == want);  // a copy of nothing is not taken
    GPU_EXPECT(norm(&ordered) == residual);
    GPU_EXPECT(FromDevice<uint16_t>(normed.data(), count) == rows);
    GPU_EXPECT(ordered.of == normed.data() && ordered.rows == one.rows);
    if (one.reads) Clear(context.get(), view(normed, DType::kBf16, hidden));
    GPU_EXPECT(product(&ordered) == want);
  }
}

GPU_TEST(ExpertBankTest, RunsInAGraph) {
  Context context;
  for (const FormCase& form : kForms) {
    if (form.form == WeightForm::kF32) continue;
    const Bank bank(form, {256, 128, 12, 4, true});
    for (const int64_t rows : {2, 50}) {
      const Step step(bank, rows, false);
      const std::vector<float> want = Product(context, bank, step);
      GPU_EXPECT(Product(context, bank, step, true) == want);
    }
  }
}

}  // namespace
}  // namespace baltoro::cuda

int main(int argc, char** argv) {
  return baltoro::testing::RunGpuCases(argc, argv, baltoro::UsableDeviceCount());
}
