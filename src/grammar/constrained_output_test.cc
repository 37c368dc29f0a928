#include "grammar/constrained_output.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "grammar/constraint_factory.h"
#include "grammar/grammar_builder.h"

namespace baltoro {
namespace {

using Expr = GrammarBuilder::Expr;
using testing::ElementsAre;

constexpr TokenId kEnd = 4, kThinkEnd = 5, kSection = 6;

// a, b, c, ab, then special ones.
std::shared_ptr<const TokenTrie> Trie() {
  const std::string_view texts[] = {"a", "b", "c", "ab", "<end>", "</think>", "<section>"};
  return std::make_shared<const TokenTrie>(
      texts, std::vector<bool>{false, false, false, false, true, true, true});
}

Grammar Build(GrammarBuilder& b, Expr expr) {
  const auto rule = b.DeclareRule("root");
  b.DefineRule(rule, expr);
  auto grammar = b.Build(rule);
  EXPECT_TRUE(grammar.ok()) << grammar.status().message();
  return std::move(grammar).value();
}

std::unique_ptr<TokenConstraint> Make(const OutputConstraint& constraint) {
  Request request;
  request.constraint = constraint.Serialise();
  request.stop.eos_ids = {kEnd};
  auto made = MakeConstraintFactory(Trie())->Make(request);
  EXPECT_TRUE(made.ok()) << made.status().message();
  return std::move(made).value();
}

std::vector<TokenId> Allowed(TokenConstraint& constraint, std::vector<TokenId> drafted = {}) {
  std::vector<uint32_t> mask(1, 0x7F);
  constraint.FillMask(drafted, mask);
  std::vector<TokenId> out;
  for (TokenId id = 0; id < 32; ++id) {
    if (HasBit(mask, id)) out.push_back(id);
  }
  return out;
}

OutputConstraint AbOrSection() {
  GrammarBuilder b;
  const Expr branches[] = {b.Literal("ab"), b.Token(kSection)};
  OutputConstraint constraint;
  constraint.grammar = Build(b, b.Choice(branches));
  return constraint;
}

TEST(ConstrainedOutputTest, TheEndComesWhereTheGrammarAccepts) {
  const auto constraint = Make(AbOrSection());
  EXPECT_THAT(Allowed(*constraint), ElementsAre(0, 3, kSection));
  EXPECT_FALSE(constraint->Accept(kEnd));
  EXPECT_TRUE(constraint->Accept(0));
  EXPECT_THAT(Allowed(*constraint), ElementsAre(1));
  EXPECT_THAT(Allowed(*constraint, {1}), ElementsAre(kEnd));
  EXPECT_TRUE(constraint->Accept(1));
  EXPECT_TRUE(constraint->Accept(kEnd));
  EXPECT_THAT(Allowed(*constraint), ElementsAre(kEnd));
  constraint->Rollback(3);
  EXPECT_THAT(Allowed(*constraint), ElementsAre(0, 3, kSection));
}

TEST(ConstrainedOutputTest, ReasoningIsFreeButForTheEnd) {
  OutputConstraint output = AbOrSection();
  output.starts_in_reasoning = true;
  output.think_end = kThinkEnd;
  output.section_begin = kSection;
  const auto constraint = Make(output);
  EXPECT_THAT(Allowed(*constraint), ElementsAre(0, 1, 2, 3, kThinkEnd, kSection));
  EXPECT_TRUE(constraint->Accept(2));
  EXPECT_THAT(Allowed(*constraint, {kSection}), ElementsAre(kEnd));
  EXPECT_THAT(Allowed(*constraint, {kThinkEnd}), ElementsAre(0, 3, kSection));
  EXPECT_THAT(Allowed(*constraint), ElementsAre(0, 1, 2, 3, kThinkEnd, kSection));
}

TEST(ConstrainedOutputTest, ASectionThatTheGrammarDoesNotBeginWithIsNotReached) {
  GrammarBuilder b;
  OutputConstraint output;
  output.grammar = Build(b, b.Literal("ab"));
  output.starts_in_reasoning = true;
  output.think_end = kThinkEnd;
  output.section_begin = kSection;
  const auto constraint = Make(output);
  EXPECT_THAT(Allowed(*constraint), ElementsAre(0, 1, 2, 3, kThinkEnd));
  EXPECT_FALSE(constraint->Accept(kSection));
}

TEST(ConstrainedOutputTest, ASpentBudgetLeavesTheEndOfReasoningAlone) {
  OutputConstraint output;
  output.starts_in_reasoning = true;
  output.think_end = kThinkEnd;
  output.thinking_budget = 1;
  const auto constraint = Make(output);
  EXPECT_TRUE(constraint->Accept(0));
  EXPECT_THAT(Allowed(*constraint), ElementsAre(kThinkEnd));
  EXPECT_FALSE(constraint->Accept(0));
  EXPECT_THAT(Allowed(*constraint, {kThinkEnd}), ElementsAre(0, 1, 2, 3, 4, 5, 6));
  constraint->Rollback(1);
  EXPECT_EQ(Allowed(*constraint).size(), 6u);
}

TEST(ConstrainedOutputTest, BannedSequencesAreNeverCompleted) {
  OutputConstraint output;
  output.banned_sequences = {{2}, {0, 1}};
  const auto constraint = Make(output);
  EXPECT_THAT(Allowed(*constraint), ElementsAre(0, 1, 3, 4, 5, 6));
  EXPECT_THAT(Allowed(*constraint, {0}), ElementsAre(0, 3, 4, 5, 6));
  EXPECT_FALSE(constraint->Accept(2));
}

TEST(ConstrainedOutputTest, WhereNothingIsLeftItSaysWhy) {
  OutputConstraint output = AbOrSection();
  output.banned_sequences = {{0}, {3}, {kSection}};
  const auto constraint = Make(output);
  EXPECT_THAT(Allowed(*constraint), ElementsAre());
  EXPECT_THAT(constraint->error(), testing::HasSubstr("grammar"));
}

TEST(ConstraintFactoryTest, AModelWithoutTokenizerFailsWithItsError) {
  Request request;
  request.constraint = OutputConstraint().Serialise();
  const auto made = MakeConstraintFactory("/nowhere", 7)->Make(request);
  ASSERT_FALSE(made.ok());
  EXPECT_THAT(made.status().message(), testing::HasSubstr("/nowhere"));
}

TEST(ConstraintFactoryTest, ADamagedConstraintIsRefused) {
  Request request;
  request.constraint = "damaged";
  EXPECT_FALSE(MakeConstraintFactory(Trie())->Make(request).ok());
}

}  // namespace
}  // namespace baltoro
