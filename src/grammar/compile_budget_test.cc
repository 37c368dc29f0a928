#include "grammar/compile_budget.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "grammar/grammar_builder.h"
#include "grammar/grammar_text.h"
#include "grammar/json_schema.h"
#include "grammar/regex.h"

namespace baltoro {
namespace {

using std::chrono::milliseconds;
using testing::HasSubstr;
using testing::StartsWith;

constexpr char kNoTimeLeft[] = "the grammar takes over 0 s to compile; make it smaller";

std::shared_ptr<CompileBudget> OfTime(milliseconds time) {
  return std::make_shared<CompileBudget>(CompileLimits{.time = time});
}

std::shared_ptr<CompileBudget> OfWork(int64_t work) {
  return std::make_shared<CompileBudget>(
      CompileLimits{.time = std::chrono::hours(1), .work = work});
}

std::string BuildText(const std::string& text, std::shared_ptr<CompileBudget> budget) {
  GrammarBuilder builder({.budget = std::move(budget)});
  const auto root = AddGrammarText(builder, text);
  if (!root.ok()) return root.status().message();
  return builder.Build(root.value()).status().message();
}

std::string BuildSchema(const Json& schema, std::shared_ptr<CompileBudget> budget) {
  GrammarBuilder builder({.budget = std::move(budget)});
  JsonSchemaOptions options;
  options.name = "tools[0]";
  return AddJsonSchema(builder, schema, options, nullptr).status().message();
}

TEST(CompileBudgetTest, OnceSpentItStaysSpentAndSaysWhichLimitWasMet) {
  CompileBudget work({.time = std::chrono::hours(1), .work = 10});
  EXPECT_TRUE(work.Charge(10));
  EXPECT_FALSE(work.spent());
  EXPECT_FALSE(work.Charge(1));
  EXPECT_FALSE(work.Charge(0));
  EXPECT_EQ(work.Failure().message(),
            "the grammar takes over 10 steps to compile; make it smaller");
  CompileBudget time({.time = milliseconds(0)});
  EXPECT_FALSE(time.Charge(1));
  EXPECT_EQ(time.Failure().message(), kNoTimeLeft);
  EXPECT_THAT(CompileBudget().Failure().message(), HasSubstr("over 2 s"));
}

TEST(CompileBudgetTest, ABuildWithoutTimeLeftStops) {
  EXPECT_EQ(BuildText("root ::= [a-z]+", OfTime(milliseconds(0))), kNoTimeLeft);
  EXPECT_EQ(BuildText("root ::= [a-z]+", OfTime(std::chrono::hours(1))), "");
}

TEST(CompileBudgetTest, WhatIsMadeForOneRequestSharesOneBudget) {
  const auto budget = OfWork(2'000);
  int built = 0;
  while (built < 1000 && BuildText("root ::= [a-z]+ [0-9]+", budget).empty()) ++built;
  EXPECT_GT(built, 0);
  EXPECT_LT(built, 1000);
}

TEST(CompileBudgetTest, ARuleThatIsOnlyItselfIsNamedBeforeAnythingIsMade) {
  const std::string message = "the rule \"root\" calls itself before it reads anything";
  EXPECT_EQ(BuildText("root ::= root", OfWork(0)), message);
  EXPECT_EQ(BuildText("root ::= \"a\"? root \"b\" | \"c\"", OfWork(0)), message);
  EXPECT_THAT(BuildText("root ::= a\na ::= b\nb ::= a | \"x\"", OfWork(0)),
              HasSubstr("calls itself before it reads anything"));
  EXPECT_EQ(BuildText("root ::= \"a\" root | \"b\"", OfWork(100'000)), "");
}

TEST(CompileBudgetTest, PatternsAgainstLongKeysAreCharged) {
  Json schema = {{"type", "object"}};
  for (const char* end : {"1", "2"}) {
    schema["properties"][std::string(1500, 'a') + end] = {{"type", "string"}};
  }
  for (int i = 0; i < 40; ++i) {
    schema["patternProperties"]["^(a{1,20000}b)" + std::to_string(i)] = {{"type", "string"}};
  }
  const std::string message = BuildSchema(schema, OfWork(20'000'000));
  EXPECT_THAT(message, StartsWith("tools[0]"));
  EXPECT_LT(message.size(), 400u);  // the path is cut
  EXPECT_THAT(message, HasSubstr("the grammar takes over 20000000 steps to compile"));
}

TEST(CompileBudgetTest, ARegularExpressionStopsMatchingWhenTheBudgetIsSpent) {
  const auto regex = Regex::Parse("^(a{1,200}b)*$");
  ASSERT_TRUE(regex.ok());
  CompileBudget budget({.time = std::chrono::hours(1), .work = 1000});
  const auto matched = regex.value().Matches(std::string(150, 'a'), {}, &budget);
  EXPECT_EQ(matched.status().code(), Code::kResourceExhausted);
  EXPECT_TRUE(budget.spent());
}

TEST(CompileBudgetTest, TheTrialOfASchemaTakesFromTheBudgetOfItsBuilder) {
  const Json schema = {{"type", "object"}, {"properties", {{"a", {{"type", "number"}}}}}};
  EXPECT_THAT(BuildSchema(schema, OfWork(3'000)), HasSubstr("over 3000 steps"));
  EXPECT_EQ(BuildSchema(schema, OfWork(100'000'000)), "");
}

}  // namespace
}  // namespace baltoro
