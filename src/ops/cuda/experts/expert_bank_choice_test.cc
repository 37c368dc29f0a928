// ExpertBank where it chooses the experts itself, of one token in its products, of several in its
// preparation (bank_prepare.h), against the choice as a launch of its own.

#include <bit>

#include "device/cuda/device_info.h"
#include "ops/cuda/experts/expert_bank.h"
#include "ops/cuda/experts/expert_bank_test_support.h"
#include "ops/cuda/linear/tiles/tiles.h"

namespace baltoro::cuda {
namespace {

using namespace bank_test;

struct Made {
  std::vector<float> out;
  std::vector<uint32_t> choice;  // ids, then weights
};

// The choice of experts, the sort and the input of the shared experts' second product in one
// launch: the same bits as by launches of their own.
GPU_TEST(ExpertBankChoiceTest, ChoosesWhileItPrepares) {
  Context context;
  const auto check = [&](const FormCase& form, const Bank& bank, int64_t rows, bool ties) {
    const int64_t hidden = bank.shape.hidden, top_k = bank.shape.top_k;
    const auto experts = std::ssize(bank.slot_of);
    const FormCase plain = form.quantise_input ? form : kForms[0];
    const Weights shared_down(5, plain, 1, hidden, 256);
    const Step step(bank, rows, false);
    const Rows shared(6, rows, 512, 8);
    std::mt19937 random(static_cast<uint32_t>(rows));
    const auto draw = [&](int64_t count, float scale) {
      std::vector<float> all;
      const uint32_t values = ties ? 8 : 1u << 20;
      for (int64_t i = 0; i < count; ++i) {
        all.push_back(scale * static_cast<float>(random() % values) / static_cast<float>(values));
      }
      return OnDevice(all);
    };
    const Buffer logits = draw(rows * experts, 4), bias = draw(experts, 0.25f);
    const auto run = [&](bool chooses) {
      const DType type = rows > 16 && !ties ? DType::kBf16 : DType::kF32;
      const auto elements = static_cast<size_t>(rows * hidden), chosen = step.ids.size();
      const Buffer out = OnDevice(std::vector<float>(elements, kNaN));
      const Buffer ids = OnDevice(std::vector<int32_t>(chosen, -7));
      const Buffer weights = OnDevice(std::vector<float>(chosen, kNaN));
      const ExpertChoice choice{.logits = TensorView(logits.data(), DType::kF32, {rows, experts}),
                                .bias = TensorView(bias.data(), DType::kF32, {experts}),
                                .params = {.experts = static_cast<int32_t>(experts),
                                           .top_k = static_cast<int32_t>(top_k),
                                           .scaling = 2.5f}};
      ExpertBankArgs args{.out = TensorView(out.data(), type, {rows, hidden}),
                          .x = step.x.device(),
                          .ids = TensorView(ids.data(), DType::kI32, {rows, top_k}),
                          .weights = TensorView(weights.data(), DType::kF32, {rows, top_k}),
                          .gate_up = bank.gate_up.device,
                          .down = bank.down.device,
                          .slot_of = bank.slot_of,
                          .shared = shared.device(),
                          .shared_down = shared_down.device,
                          .choice = &choice};
      const OpContext ctx = context.get();
      GPU_EXPECT(PlanBank(ctx, args).chooses());
      if (!chooses) {
        Route(ctx, args.ids, args.weights, choice.logits, choice.bias, choice.params);
        args.choice = nullptr;
      }
      ExpertBank(ctx, args);
      context.Wait();
      Made made;
      if (type == DType::kF32) {
        made.out = FromDevice<float>(out.data(), elements);
      } else {
        for (const uint16_t bits : FromDevice<uint16_t>(out.data(), elements)) {
          made.out.push_back(std::bit_cast<float>(uint32_t{bits} << 16));
        }
      }
      for (const Buffer* more : {&ids, &weights}) {
        const auto part = FromDevice<uint32_t>(more->data(), chosen);
        made.choice.insert(made.choice.end(), part.begin(), part.end());
      }
      return made;
    };
    const Made alone = run(false), prepared = run(true);
    const std::string name = Name(form, bank.shape, rows) + (ties ? " ties" : "");
    if (alone.choice != prepared.choice) Fail(name + ": other experts");
    // Of more rows the shared experts' second product has another order of sums.
    const bool same_order = form.quantise_input || rows <= 64;
    double apart = 0, all = 0;
    for (size_t i = 0; i < alone.out.size(); ++i) {
      const double a = alone.out[i], b = prepared.out[i];
      apart += (a - b) * (a - b);
      all += a * a;
    }
    if (!(apart <= (same_order ? 0 : 1e-6) * all && all > 0)) {
      Fail(name + ": not as route and bank, " + std::to_string(apart / all));
    }
  };
  for (const FormCase& form : kForms) {
    if (!form.quantise_input && form.form != WeightForm::kInt4Group) continue;
    for (const int64_t intermediate : {256, 128}) {
      const Bank few(form, {256, intermediate, 40, 3, true});
      for (const int64_t rows : {12, 30}) check(form, few, rows, rows == 30);
      // One token: the products choose.
      if (intermediate == 256) {
        for (const bool ties : {false, true}) check(form, few, 1, ties);
      }
      const Bank one(form, {256, intermediate, 40, 1, true});
      check(form, one, 110, false);
      // Several tiles of what lies beside the choice, the last one not full.
      if (!form.quantise_input) {
        check(form, few, 90, true);
        check(form, one, 250, true);
      }
      if (form.quantise_input || intermediate != 256) continue;
      const Bank broad(form, {7168, intermediate, 12, 1, true});
      check(form, broad, 40, true);
      check(form, broad, 70, false);
    }
    if (!form.quantise_input) continue;
    // With the sum: all choose but those that sort, all but one, all.
    const Bank many(form, {256, 256, 40, 3, true});
    check(form, many, 60, true);
    check(form, many, 170, false);
    check(form, many, 250, true);
  }
}

// Few tokens in the shape that is one kernel, as by other kernels behind a choice of its own: the
// same bits of one token in INT4; else but for the order of sums, in FP8 of rows whose codes a norm
// wrote. Several times, as blocks know their words by the launch.
GPU_TEST(ExpertBankChoiceTest, FewTokensInOneKernel) {
  Context context;
  const auto check = [&](const FormCase& form, const Bank& bank, int64_t rows, uint32_t seed) {
    const bool fp8 = form.quantise_input;
    const int64_t hidden = bank.shape.hidden, experts = std::ssize(bank.slot_of);
    const Weights shared_down(5, fp8 ? form : kForms[0], 1, hidden, 256);
    const Step step(bank, rows, false);
    const Rows shared(6, rows, 512, 8);
    const TensorView x = step.x.device();
    OpContext ctx = context.get();
    const RowSource source{.x = x.data, .stride = x.stride[0], .rows = rows, .k = hidden};
    const QuantisedRows codes =
        fp8 ? QuantiseRows(ctx, source, bank.gate_up.device) : QuantisedRows{};
    RoundedRows rounded{.codes = const_cast<void*>(codes.x),
                        .scales = const_cast<float*>(codes.x_scales),
                        .width = hidden,
                        .of = x.data,
                        .rows = rows,
                        .stride = x.stride[0]};
    const Beside with{.rounded = &rounded};
    if (fp8) ctx.beside = &with;
    std::mt19937 random(seed);
    std::vector<float> drawn, drawn_bias;
    for (int64_t i = 0; i < rows * experts; ++i) {
      drawn.push_back(static_cast<float>(random() % 4096) / 1024);
    }
    for (int64_t e = 0; e < experts; ++e) {
      drawn_bias.push_back(static_cast<float>(random() % 64) / 256);
    }
    const Buffer logits = OnDevice(drawn), bias = OnDevice(drawn_bias);
    const ExpertChoice choice{
        .logits = TensorView(logits.data(), DType::kF32, {rows, experts}),
        .bias = TensorView(seed == 0 ? nullptr : bias.data(), DType::kF32, {experts}),
        .params = {.experts = static_cast<int32_t>(experts), .top_k = 8, .scaling = 2.5f}};
    const auto elements = static_cast<size_t>(rows * hidden),
               entries = static_cast<size_t>(rows * 8);
    std::vector<int32_t> chosen[2];
    std::vector<float> weighed[2], results[2];
    for (const bool chooses : {false, true}) {
      const Buffer out = OnDevice(std::vector<float>(elements, kNaN));
      const Buffer ids = OnDevice(std::vector<int32_t>(entries, -7));
      const Buffer weights = OnDevice(std::vector<float>(entries, kNaN));
      ExpertBankArgs args{.out = TensorView(out.data(), DType::kF32, {rows, hidden}),
                          .x = x,
                          .ids = TensorView(ids.data(), DType::kI32, {rows, 8}),
                          .weights = TensorView(weights.data(), DType::kF32, {rows, 8}),
                          .gate_up = bank.gate_up.device,
                          .down = bank.down.device,
                          .slot_of = bank.slot_of,
                          .shared = shared.device(),
                          .shared_down = shared_down.device,
                          .choice = &choice};
      GPU_EXPECT(PlanBank(ctx, args).chooses());
      if (!chooses) {
        Route(ctx, args.ids, args.weights, choice.logits, choice.bias, choice.params);
        args.choice = nullptr;
      }
      ExpertBank(ctx, args);
      context.Wait();
      chosen[chooses] = FromDevice<int32_t>(ids.data(), entries);
      weighed[chooses] = FromDevice<float>(weights.data(), entries);
      results[chooses] = FromDevice<float>(out.data(), elements);
    }
    const std::string name = Name(form, bank.shape, rows);
    if (chosen[0] != chosen[1] || weighed[0] != weighed[1]) Fail(name + ": other experts");
    for (int64_t row = 0; row < rows; ++row) {
      double apart = 0, all = 0;
      for (int64_t i = row * hidden; i < (row + 1) * hidden; ++i) {
        const double a = results[0][static_cast<size_t>(i)], b = results[1][static_cast<size_t>(i)];
        apart += (a - b) * (a - b);
        all += a * a;
      }
      // Codes of the middle may round the other way.
      if (!(apart <= (fp8 ? 1e-4 : rows > 1 ? 1e-5 : 0) * all))
        Fail(name + ": " + std::to_string(apart / all));
    }
  };
  for (const FormCase& form : kForms) {
    if (!form.quantise_input && form.form != WeightForm::kInt4Group) continue;
    const Bank bank(form, {7168, 256, 12, 8, true});
    for (const uint32_t seed : {0, 1}) check(form, bank, 1, seed);
    check(form, bank, 3, 0);
    check(form, bank, form.quantise_input ? 8 : 4, 1);
  }
}

}  // namespace
}  // namespace baltoro::cuda

int main(int argc, char** argv) {
  return baltoro::testing::RunGpuCases(argc, argv, baltoro::UsableDeviceCount());
}
