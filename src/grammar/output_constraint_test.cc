#include "grammar/output_constraint.h"

#include <gtest/gtest.h>

namespace baltoro {
namespace {

OutputConstraint Sample() {
  OutputConstraint constraint;
  constraint.starts_in_reasoning = true;
  constraint.think_end = 7;
  constraint.thinking_budget = 100;
  constraint.banned_sequences = {{1, 2, 3}, {4}};
  return constraint;
}

TEST(OutputConstraintTest, ReadsWhatItWrote) {
  const auto read = OutputConstraint::Parse(Sample().Serialise());
  ASSERT_TRUE(read.ok()) << read.status().message();
  EXPECT_FALSE(read.value().grammar.has_value());
  EXPECT_TRUE(read.value().starts_in_reasoning);
  EXPECT_EQ(read.value().think_end, 7);
  EXPECT_EQ(read.value().section_begin, std::nullopt);
  EXPECT_EQ(read.value().thinking_budget, 100);
  EXPECT_EQ(read.value().banned_sequences, Sample().banned_sequences);
}

TEST(OutputConstraintTest, EveryTruncationIsRefused) {
  const std::string bytes = Sample().Serialise();
  for (size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_FALSE(OutputConstraint::Parse(std::string_view(bytes).substr(0, size)).ok()) << size;
  }
  EXPECT_FALSE(OutputConstraint::Parse(bytes + "x").ok());
}

TEST(OutputConstraintTest, AnEmptyBannedSequenceIsRefused) {
  OutputConstraint constraint = Sample();
  constraint.banned_sequences.emplace_back();
  EXPECT_FALSE(OutputConstraint::Parse(constraint.Serialise()).ok());
}

}  // namespace
}  // namespace baltoro
