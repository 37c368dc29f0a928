#include "engine/followed_constraints.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <span>
#include <string>
#include <vector>

#include "engine/testing/scripted_constraint.h"

namespace baltoro {
namespace {

using ::testing::HasSubstr;

class FollowedConstraintsTest : public ::testing::Test {
 protected:
  static StepPlan PlanOf(const std::string& script, const std::vector<TokenId>& output = {}) {
    StepPlan plan;
    AdmittedSequence& admitted = plan.admitted.emplace_back();
    admitted.request = RequestId{7};
    admitted.output = output;
    admitted.constrained = true;
    admitted.constraint = SharedBytes(script);
    return plan;
  }
  // Which of the first 32 tokens may come.
  static uint32_t MaskOf(TokenConstraint& constraint) {
    uint32_t mask = ~uint32_t{0};
    constraint.FillMask({}, std::span(&mask, 1));
    return mask;
  }

  std::shared_ptr<test::ScriptedFactory> factory_ = std::make_shared<test::ScriptedFactory>();
  std::shared_ptr<ConstraintTable> table_ = std::make_shared<ConstraintTable>();
  FollowedConstraints followed_{factory_, table_};
};

TEST_F(FollowedConstraintsTest, RanksFindThemForTheStepOfTheirAdmission) {
  ASSERT_TRUE(followed_.Make(PlanOf("5,9 3 4")).ok());
  const auto held = table_->Find(RequestId{7});
  ASSERT_NE(held, nullptr);
  EXPECT_EQ(MaskOf(*held), uint32_t{1} << 5 | 1 << 9);
  followed_.Forget();
  EXPECT_EQ(table_->size(), 0u);  // who has it keeps it
  EXPECT_TRUE(held->Accept(9));
  EXPECT_EQ(MaskOf(*held), uint32_t{1} << 3);
}

TEST_F(FollowedConstraintsTest, OneThatComesBackStandsWhereItsOutputEnds) {
  ASSERT_TRUE(followed_.Make(PlanOf("5,9 3 4", {9, 3})).ok());
  EXPECT_EQ(MaskOf(*table_->Find(RequestId{7})), uint32_t{1} << 4);
}

TEST_F(FollowedConstraintsTest, WhatCannotBeMadeFailsItsRequestAlone) {
  for (const StepPlan& plan :
       {PlanOf("make-error 5"), PlanOf("make-throw 5"), PlanOf("5,9 3", {4})}) {
    ASSERT_TRUE(followed_.Make(plan).ok());
    const auto held = table_->Find(RequestId{7});
    ASSERT_NE(held, nullptr);
    EXPECT_FALSE(held->error().ok());
    followed_.Forget();
  }
}

TEST_F(FollowedConstraintsTest, APlanWithoutTheFormIsRefused) {
  EXPECT_THAT(followed_.Make(PlanOf("")).message(), HasSubstr("no form came with it"));
  FollowedConstraints none(nullptr, nullptr);
  EXPECT_FALSE(none.Make(PlanOf("5")).ok());
  EXPECT_TRUE(none.Make({}).ok());
}

}  // namespace
}  // namespace baltoro
