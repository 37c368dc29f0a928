// ExpertBank where it chooses the experts of several tokens itself (moe_prepare.h) against the
// choice as a launch of its own.

#include "device/cuda/device_info.h"
#include "ops/cuda/expert_bank_test_support.h"

namespace baltoro::cuda {
namespace {

using namespace bank_test;

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
      const DType type = rows > 16 ? DType::kBf16 : DType::kF32;
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
      GPU_EXPECT(BankChooses(args));
      const OpContext ctx = context.get();
      if (!chooses) {
        Route(ctx, args.ids, args.weights, choice.logits, choice.bias, choice.params);
        args.choice = nullptr;
      }
      ExpertBank(ctx, args);
      context.Wait();
      auto made = FromDevice<uint16_t>(out.data(), elements * (type == DType::kF32 ? 2 : 1));
      for (const Buffer* more : {&ids, &weights}) {
        const auto part = FromDevice<uint16_t>(more->data(), chosen * 2);
        made.insert(made.end(), part.begin(), part.end());
      }
      return made;
    };
    if (run(false) != run(true)) {
      Fail(Name(form, bank.shape, rows) + (ties ? " ties" : "") + ": not as route and bank");
    }
  };
  for (const FormCase& form : kForms) {
    if (!form.quantise_input && form.form != WeightForm::kInt4Group) continue;
    for (const int64_t intermediate : {256, 128}) {
      const Bank few(form, {256, intermediate, 40, 3, true});
      for (const int64_t rows : {12, 30}) check(form, few, rows, rows == 30);
      check(form, Bank(form, {256, intermediate, 40, 1, true}), 110, false);
    }
  }
}

}  // namespace
}  // namespace baltoro::cuda

int main(int argc, char** argv) {
  return baltoro::testing::RunGpuCases(argc, argv, baltoro::UsableDeviceCount());
}
