// Tiny random models of every branch of the family against logits recorded from transformers
// (tools/record_tiny_golden.py), on every instruction set of this machine.

#include "support/golden_model.h"

#include <gtest/gtest.h>

#include "support/chosen_experts.h"
#include "support/isas.h"
#include "support/support.h"

namespace baltoro {
namespace {

class GoldenTest : public ::testing::TestWithParam<size_t> {
 protected:
  // On the instruction set that is in use.
  void ExpectAgreement(K2Model& exact, K2Model& rounded) {
    golden_.ExpectAgreement(golden_.Logits(exact, golden_.tokens() / 2),
                            "CPU in float32, expanded then absorbed");
    test::ForgetExperts();
    const std::vector<float> want = golden_.Logits(exact, INT32_MAX);
    golden_.ExpectAgreement(want, "CPU in float32, expanded");

    // In bf16 the CPU is held to the error that transformers makes in bf16, both with the experts
    // of float32.
    const test::Tolerance tolerance{.nmse = golden_.bf16_nmse(), .max_abs = 1};
    for (const int32_t absorbed_from : {INT32_MAX, 0}) {
      test::RewindExperts();
      EXPECT_TRUE(test::Near(golden_.Logits(rounded, absorbed_from), want, tolerance))
          << absorbed_from;
    }
  }

  test::GoldenModel golden_{GetParam()};
};

// One test, so that the weights are made once.
TEST_P(GoldenTest, LogitsAgreeWithTransformers) {
#ifndef __SANITIZE_THREAD__  // plain loops on one thread: no race to see, and most of the time
  {
    const auto reference = golden_.Load(ReferenceOps());
    golden_.ExpectAgreement(golden_.Logits(*reference, INT32_MAX), "reference, expanded");
    golden_.ExpectAgreement(golden_.Logits(*reference, 0), "reference, absorbed");
  }
#endif
  const auto exact = golden_.Load(test::NotingFloat32Ops());
  const auto rounded = golden_.Load(test::FollowingBf16Ops());
  for (const cpu::Isa isa : test::SupportedIsas()) {
    SCOPED_TRACE(cpu::NameOf(isa));
    const test::ForcedIsa forced(isa);
    ExpectAgreement(*exact, *rounded);
  }
}

INSTANTIATE_TEST_SUITE_P(Tiny,
                         GoldenTest,
                         ::testing::Range(size_t{0}, test::GoldenModel::Count()),
                         [](const auto& instance) {
                           return test::GoldenModel::NameOf(instance.param);
                         });

}  // namespace
}  // namespace baltoro
