#include "grammar/constrained_output.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "grammar/constrained_output.h"
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
  EXPECT_EQ(constraint->error().code(), Code::kInvalidArgument);
  EXPECT_THAT(constraint->error().message(), testing::HasSubstr("grammar"));
}

TEST(ConstraintFactoryTest, AModelWithoutTokenizerIsNoFaultOfTheClient) {
  Request request;
  request.constraint = OutputConstraint().Serialise();
  const auto made = MakeConstraintFactory("/nowhere", 7)->Make(request);
  ASSERT_FALSE(made.ok());
  EXPECT_EQ(made.status().code(), Code::kInternal);
  EXPECT_THAT(made.status().message(), testing::Not(testing::HasSubstr("/nowhere")));
}

TEST(ConstraintFactoryTest, ADamagedConstraintIsRefused) {
  Request request;
  request.constraint = "damaged";
  EXPECT_EQ(MakeConstraintFactory(Trie())->Make(request).status().code(), Code::kInternal);
}

TEST(ConstrainedOutputTest, EndsThatAreIgnoredAreNoWayOutOfAGrammar) {
  GrammarBuilder b;
  OutputConstraint fixed;
  fixed.grammar = Build(b, b.Literal("ab"));
  Request request;
  request.constraint = fixed.Serialise();
  request.stop.eos_ids = {kEnd};
  request.stop.ignore_eos = true;
  const auto made = MakeConstraintFactory(Trie())->Make(request);
  ASSERT_TRUE(made.ok()) << made.status().message();
  TokenConstraint& constraint = *made.value();
  EXPECT_THAT(Allowed(constraint), ElementsAre(0, 3));
  ASSERT_TRUE(constraint.Accept(3));
  EXPECT_THAT(Allowed(constraint), ElementsAre());
  EXPECT_TRUE(constraint.error().ok());  // so the request ends as one that is finished
  EXPECT_FALSE(constraint.Accept(kEnd));
}

TEST(ConstrainedOutputTest, ADraftThatIsNotAllowedIsAnErrorOfItsRequest) {
  const auto constraint = Make(AbOrSection());
  EXPECT_THAT(Allowed(*constraint, {2}), ElementsAre());
  EXPECT_EQ(constraint->error().message(), "a drafted token is not allowed where it stands");
}

TEST(ConstrainedOutputTest, AMaskThatTakesTooManyStepsEndsTheRequestAndIsNotKept) {
  // Two rules that read the same letters: each letter more doubles the ways of reading them.
  GrammarBuilder b;
  const auto pair = b.DeclareRule("pair"), other = b.DeclareRule("other");
  const Expr letters[] = {b.Bytes('a', 'c'), b.Optional(b.Call(other)), b.Optional(b.Call(pair))};
  const Expr more[] = {b.Bytes('a', 'c'), b.Optional(b.Call(pair)), b.Optional(b.Call(other))};
  b.DefineRule(pair, b.Sequence(letters));
  b.DefineRule(other, b.Sequence(more));
  auto ambiguous = std::make_shared<OutputConstraint>();
  ambiguous->grammar = Build(b, b.Call(pair));
  const auto store = std::make_shared<MaskStore>();
  ConstrainedOutput little(ambiguous, {kEnd}, Trie(), store, /*mask_steps_max=*/3);
  EXPECT_THAT(Allowed(little), ElementsAre());
  EXPECT_EQ(little.error().code(), Code::kInvalidArgument);
  EXPECT_THAT(little.error().message(),
              testing::HasSubstr("too ambiguous: over 3 steps to find what may come next"));
  ConstrainedOutput enough(ambiguous, {kEnd}, Trie(), store);
  EXPECT_THAT(Allowed(enough), ElementsAre(0, 1, 2, 3));
  EXPECT_TRUE(enough.error().ok());
}

TEST(ConstrainedOutputTest, SequencesThatAreBannedTwiceAreKeptOnce) {
  OutputConstraint twice;
  twice.banned_sequences = {{1, 2}, {0}, {1, 2}, {0}, {2, 2}};
  const auto parsed = OutputConstraint::Parse(twice.Serialise());
  ASSERT_TRUE(parsed.ok()) << parsed.status().message();
  EXPECT_THAT(parsed.value().banned_sequences,
              testing::UnorderedElementsAre(ElementsAre(0), ElementsAre(1, 2), ElementsAre(2, 2)));
}

}  // namespace
}  // namespace baltoro
