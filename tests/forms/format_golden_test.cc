// Tiny checkpoints in each weight format, as other libraries write them, against what transformers
// says with the same numbers (tools/record_format_golden.py), on every instruction set of this
// machine. Prints the table of errors.

#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>

#include "base/file.h"
#include "ops/thread_pool.h"
#include "support/chosen_experts.h"
#include "support/isas.h"
#include "support/tiny_model.h"

namespace baltoro {
namespace {

const std::string kFolder = "tests/golden/formats/";

const Json& Golden() {
  static const Json golden = ReadJsonFile(kFolder + "logits.json").value();
  return golden;
}

struct Case {
  const char* name;    // of the table
  const char* folder;  // of the checkpoint
  bool quantise_fp8_inputs;
  const char* want;        // of the recording: products as the format has them, or weights decoded
  double float32_nmse;     // at most; with float32 activations
  double bf16_nmse;        // at most; the same experts chosen
  WeightForm expert_form;  // that must be in memory
};

// The root of the summed squared deviations over that of the summed squares.
double RelativeError(std::span<const float> got, std::span<const float> want) {
  double wrong = 0, sum = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    wrong += (double{got[i]} - want[i]) * (double{got[i]} - want[i]);
    sum += double{want[i]} * want[i];
  }
  return std::sqrt(wrong / sum);
}

class FormatGoldenTest : public ::testing::TestWithParam<Case> {
 protected:
  std::unique_ptr<K2Model> Load(const OpsTable& ops) {
    K2LoadOptions options;
    options.weights.quantise_fp8_inputs = GetParam().quantise_fp8_inputs;
    auto model = K2Model::Load(config_, kFolder + GetParam().folder, ops, &pool_, options);
    EXPECT_TRUE(model.ok()) << model.status().message();
    return std::move(model).value();
  }
  // Of the recorded rows.
  std::vector<float> Logits(K2Model& model, int32_t absorbed_from) {
    const auto tokens = Golden()["tokens"].get<std::vector<int32_t>>();
    const std::vector<float> all =
        test::TinyRunner(model, std::ssize(tokens)).Run(tokens, absorbed_from);
    std::vector<float> out;
    for (const auto row : recorded_["rows"].get<std::vector<int64_t>>()) {
      const auto from = all.begin() + row * config_.vocab;
      out.insert(out.end(), from, from + config_.vocab);
    }
    return out;
  }
  std::vector<float> Wanted(const char* key) {
    std::vector<float> out;
    for (const Json& row : recorded_[key]) {
      for (const Json& logit : row) out.push_back(logit.get<float>());
    }
    return out;
  }

  const Json& recorded_ = Golden()["formats"][GetParam().folder];
  K2Config config_ = K2Config::Read(kFolder + GetParam().folder).value();
  ThreadPool pool_{1};  // tests run side by side
};

TEST_P(FormatGoldenTest, LogitsAreThoseOfTransformers) {
  const Case& c = GetParam();
  const std::vector<float> want = Wanted(c.want), decoded = Wanted("decoded");
  const double reference = RelativeError(Logits(*Load(ReferenceOps()), INT32_MAX), want);
  EXPECT_LT(reference * reference, c.float32_nmse);
  const auto exact = Load(test::NotingFloat32Ops());
  const auto rounded = Load(test::FollowingBf16Ops());
  for (const cpu::Isa isa : test::SupportedIsas()) {
    SCOPED_TRACE(cpu::NameOf(isa));
    const test::ForcedIsa forced(isa);
    test::ForgetExperts();
    const double float32 = RelativeError(Logits(*exact, INT32_MAX), want);
    test::RewindExperts();
    const std::vector<float> bf16 = Logits(*rounded, INT32_MAX);
    test::RewindExperts();
    const std::vector<float> absorbed = Logits(*rounded, 0);

    std::printf("| %s | %s | %.1e | %.1e | %.2f %% | %.2f %% |\n", c.name,
                std::string(cpu::NameOf(isa)).c_str(), reference, float32,
                100 * RelativeError(bf16, want), 100 * RelativeError(bf16, decoded));
    EXPECT_LT(float32 * float32, c.float32_nmse);
    EXPECT_LT(std::pow(RelativeError(bf16, want), 2), c.bf16_nmse);
    EXPECT_LT(std::pow(RelativeError(absorbed, want), 2), c.bf16_nmse);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Formats,
    FormatGoldenTest,
    ::testing::Values(
        Case{"FP8, weights alone", "fp8", false, "decoded", 1e-10, 1e-3, WeightForm::kFp8Block},
        Case{"FP8, inputs in e4m3 too", "fp8", true, "exact", 1e-10, 1e-2, WeightForm::kFp8Block},
        Case{"INT4, groups of 32", "int4", false, "exact", 1e-10, 1e-3, WeightForm::kInt4Group},
        Case{"W4A8 with static W8A8", "ascend", false, "exact", 1e-10, 2.5e-3, WeightForm::kInt4}));

// The forms are really kept: no matrix was decoded on the way.
TEST_P(FormatGoldenTest, MatricesStayInTheirForm) {
  const auto source = OpenWeights(kFolder + GetParam().folder, {}).value();
  const WeightPlan plan = PlanWeights(config_, *source, ReferenceOps(), {}).value();
  EXPECT_TRUE(plan.notes.empty());
  for (const PlannedMatrix* experts :
       {&plan.layers[1].experts.gate_up, &plan.layers[1].experts.down}) {
    EXPECT_EQ(experts->matrix.form, GetParam().expert_form);
  }
  const bool ascend = GetParam().expert_form == WeightForm::kInt4;
  EXPECT_EQ(plan.layers[0].qkv_a.matrix.form == WeightForm::kInt8Static, ascend);
  EXPECT_EQ(plan.layers[0].kv_a.matrix.n, 0);
  EXPECT_EQ(plan.layers[1].kv_a.matrix.n > 0, ascend);  // whose input has constants of its own
  EXPECT_TRUE(IsPlain(plan.layers[0].kv_b.matrix.form));
}

}  // namespace
}  // namespace baltoro
