// Tiny random models of every branch of the family against logits recorded from transformers
// (tools/record_tiny_golden.py).

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "ops/thread_pool.h"
#include "support/chosen_experts.h"
#include "support/support.h"
#include "support/tiny_model.h"

namespace baltoro {
namespace {

const Json& Golden() {
  static const Json golden = ReadJsonFile("tests/golden/tiny_models.json").value();
  return golden;
}

class GoldenTest : public ::testing::TestWithParam<size_t> {
 protected:
  GoldenTest() : golden_(Golden()["cases"][GetParam()]) {
    config_ = K2Config::Parse(golden_["config"]).value();
    tokens_ = golden_["tokens"].get<std::vector<int32_t>>();
    half_ = static_cast<int32_t>(tokens_.size() / 2);
  }

  std::unique_ptr<K2Model> Load(const OpsTable& ops) {
    auto model = K2Model::Load(config_, source_, ops, &pool_, {});
    EXPECT_TRUE(model.ok()) << model.status().message();
    return std::move(model).value();
  }
  // Logits of all tokens, [tokens, vocab], computed in one step.
  std::vector<float> Logits(K2Model& model, int32_t absorbed_from) {
    return test::TinyRunner(model, std::ssize(tokens_)).Run(tokens_, absorbed_from);
  }

  // Every logit within 1e-4 of the largest of its row.
  void ExpectAgreement(const std::vector<float>& logits, const char* what) {
    for (size_t i = 0; i < golden_["rows"].size(); ++i) {
      const auto want = golden_["logits"][i].get<std::vector<float>>();
      const size_t row = golden_["rows"][i].get<size_t>();
      float largest = 0, worst = 0;
      for (size_t v = 0; v < want.size(); ++v) {
        largest = std::max(largest, std::abs(want[v]));
        worst = std::max(worst, std::abs(logits[row * want.size() + v] - want[v]));
      }
      EXPECT_LE(worst, 1e-4f * largest) << what << ", row " << row;
    }
  }

  const Json& golden_;
  K2Config config_;
  std::vector<int32_t> tokens_;
  int32_t half_ = 0;
  test::TinySource source_{golden_["bias"].get<bool>()};
  ThreadPool pool_{1};  // tests run side by side
};

// One test, so that the weights are made once.
TEST_P(GoldenTest, LogitsAgreeWithTransformers) {
#ifndef __SANITIZE_THREAD__  // plain loops on one thread: no race to see, and most of the time
  {
    const auto reference = Load(ReferenceOps());
    ExpectAgreement(Logits(*reference, INT32_MAX), "reference, expanded");
    ExpectAgreement(Logits(*reference, 0), "reference, absorbed");
  }
#endif
  const auto exact = Load(test::NotingFloat32Ops());
  ExpectAgreement(Logits(*exact, half_), "CPU in float32, expanded then absorbed");
  test::ForgetExperts();
  const std::vector<float> want = Logits(*exact, INT32_MAX);
  ExpectAgreement(want, "CPU in float32, expanded");

  // In bf16 the CPU is held to the error that transformers makes in bf16, both with the experts of
  // float32.
  const auto rounded = Load(test::FollowingBf16Ops());
  const test::Tolerance tolerance{.nmse = golden_["bf16_nmse"].get<double>(), .max_abs = 1};
  for (const int32_t absorbed_from : {INT32_MAX, 0}) {
    test::RewindExperts();
    EXPECT_TRUE(test::Near(Logits(*rounded, absorbed_from), want, tolerance)) << absorbed_from;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Tiny,
    GoldenTest,
    ::testing::Range(size_t{0}, Golden()["cases"].size()),
    [](const auto& instance) {
      return Golden()["cases"][instance.param]["name"].template get<std::string>();
    });

}  // namespace
}  // namespace baltoro
