#include "grammar/json_number.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "grammar/grammar_matcher.h"

namespace baltoro {
namespace {

Grammar Compile(const NumberRules& rules) {
  GrammarBuilder builder;
  const Result<GrammarBuilder::Expr> expr = AddNumber(builder, rules);
  EXPECT_TRUE(expr.ok()) << expr.status().message();
  const GrammarBuilder::Rule start = builder.DeclareRule("start");
  builder.DefineRule(start, expr.value());
  const Result<Grammar> grammar = builder.Build(start);
  EXPECT_TRUE(grammar.ok()) << grammar.status().message();
  return grammar.ok() ? grammar.value() : Grammar();
}

NumberBound At(const char* number, bool exclusive = false) {
  return {.value = Decimal::Of(Json::parse(number)), .exclusive = exclusive};
}

TEST(DecimalTest, SpellsWhatTheNumberSays) {
  const auto text = [](const char* number) {
    const Decimal value = Decimal::Of(Json::parse(number));
    return (value.negative ? "-" : "") + value.whole + "." + value.fraction;
  };
  EXPECT_EQ(text("0"), ".");
  EXPECT_EQ(text("-0.0"), ".");
  EXPECT_EQ(text("-12.50"), "-12.5");
  EXPECT_EQ(text("1e3"), "1000.");
  EXPECT_EQ(text("1.5e-3"), ".0015");
  EXPECT_EQ(text("0.1"), ".1");
  EXPECT_EQ(text("1e22"), "10000000000000000000000.");
  EXPECT_LT(Decimal::Of(-3).Compare(Decimal::Of(-2.5)), 0);
  EXPECT_GT(Decimal::Of(10).Compare(Decimal::Of(9.75)), 0);
  EXPECT_EQ(Decimal::Of(1.0).Compare(Decimal::Of(1)), 0);
}

TEST(JsonNumberTest, IntegerRangesAreExact) {
  const std::pair<int, int> ranges[] = {{0, 0},    {0, 9},        {3, 17}, {-5, 5},   {-120, -7},
                                        {99, 101}, {-1000, 1000}, {7, 7},  {12, 1234}};
  for (const auto& [low, high] : ranges) {
    const Grammar grammar = Compile({.fractions = false,
                                     .lower = At(std::to_string(low).c_str()),
                                     .upper = At(std::to_string(high).c_str())});
    for (int i = -1500; i <= 1500; ++i) {
      EXPECT_EQ(Matches(grammar, std::to_string(i)), low <= i && i <= high) << i;
    }
    for (const char* wrong : {"", "-", "-0", "00", "01", "1.0", "1e1", "+1"}) {
      EXPECT_FALSE(Matches(grammar, wrong)) << wrong;
    }
  }
}

TEST(JsonNumberTest, IntegerBoundsMayBeFractionsOrFarAway) {
  const Grammar half = Compile({.fractions = false, .lower = At("2.5"), .upper = At("6", true)});
  for (int i = -10; i < 20; ++i) EXPECT_EQ(Matches(half, std::to_string(i)), i >= 3 && i < 6) << i;
  const Grammar far = Compile({.fractions = false, .lower = At("-1e300"), .upper = At("1e300")});
  EXPECT_TRUE(Matches(far, "999999999999999999"));
  EXPECT_TRUE(Matches(far, "-999999999999999999"));
  EXPECT_FALSE(Matches(far, "1000000000000000000"));
  const Grammar above = Compile({.fractions = false, .lower = At("9007199254740993")});
  EXPECT_FALSE(Matches(above, "9007199254740992"));
  EXPECT_TRUE(Matches(above, "9007199254740993"));
}

TEST(JsonNumberTest, MultiplesAreExact) {
  for (const int factor : {1, 2, 3, 5, 7, 15, 60, 100, 1000, 1500}) {
    for (const bool bounded : {false, true}) {
      NumberRules rules{.fractions = false};
      rules.multiples = {Decimal::Of(factor)};
      if (bounded) rules.lower = At("-7"), rules.upper = At("123456");
      const Grammar grammar = Compile(rules);
      for (int i = -200; i <= 3100; ++i) {
        const bool wanted = i % factor == 0 && (!bounded || i >= -7);
        EXPECT_EQ(Matches(grammar, std::to_string(i)), wanted) << i << " of " << factor;
      }
      EXPECT_FALSE(Matches(grammar, "00"));
      EXPECT_FALSE(Matches(grammar, "-"));
    }
  }
  NumberRules two{.fractions = false};
  two.multiples = {Decimal::Of(4), Decimal::Of(6)};
  const Grammar twelve = Compile(two);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(Matches(twelve, std::to_string(i)), i % 12 == 0) << i;
}

TEST(JsonNumberTest, DecimalMultiplesAreExact) {
  const auto multiples = [](const char* factor) {
    NumberRules rules;
    rules.multiples = {Decimal::Of(Json::parse(factor))};
    return Compile(rules);
  };
  const Grammar cents = multiples("0.01");
  for (const char* yes : {"0", "19.99", "-0.5", "1.50", "3"})
    EXPECT_TRUE(Matches(cents, yes)) << yes;
  for (const char* no : {"0.001", "1.", "19.990", ".5", "01.5"})
    EXPECT_FALSE(Matches(cents, no)) << no;
  const Grammar halves = multiples("2.5");
  for (const char* yes : {"0", "2.5", "5", "-7.5", "10.0"})
    EXPECT_TRUE(Matches(halves, yes)) << yes;
  for (const char* no : {"1", "2", "2.4", "0.5", "12"}) EXPECT_FALSE(Matches(halves, no)) << no;
  NumberRules huge;
  huge.multiples = {Decimal::Of(Json::parse("0.1234567"))};
  GrammarBuilder builder;
  EXPECT_FALSE(AddNumber(builder, huge).ok());
}

// Compared with arithmetic on doubles, as readers of JSON do it.
TEST(JsonNumberTest, DecimalRangesAreExact) {
  struct Range {
    const char* low;
    bool low_exclusive;
    const char* high;
    bool high_exclusive;
  };
  for (const Range& range :
       {Range{"0", false, "1", false}, Range{"0", true, "1", true},
        Range{"-1.5", false, "2.25", true}, Range{"-3.75", true, "-0.5", false},
        Range{"99.5", false, "100.5", false}, Range{"0.05", true, "0.051", false},
        Range{"-0.001", false, "0", true}, Range{"7", false, "7", false},
        Range{"-90", false, "90", false}}) {
    const Grammar grammar = Compile({.lower = At(range.low, range.low_exclusive),
                                     .upper = At(range.high, range.high_exclusive)});
    const double low = std::stod(range.low), high = std::stod(range.high);
    for (const int scale : {1, 4, 10, 40, 1000, 10000}) {
      for (int i = -4100; i <= 4100; ++i) {
        const double value = static_cast<double>(i) / scale;
        char text[32];
        snprintf(text, sizeof text, "%.4f", value);
        const double read = std::stod(text);
        const bool wanted = (range.low_exclusive ? read > low : read >= low) &&
                            (range.high_exclusive ? read < high : read <= high);
        EXPECT_EQ(Matches(grammar, text), wanted) << text << " " << range.low << ".." << range.high;
      }
    }
  }
}

TEST(JsonNumberTest, NoRoundingCarriesANumberOverItsBound) {
  const Grammar below = Compile({.upper = At("100000000000000", true)});
  EXPECT_FALSE(Matches(below, "99999999999999.9999"));
  EXPECT_FALSE(Matches(below, "100000000000000"));
  EXPECT_TRUE(Matches(below, "99999999999999"));
  const Grammar high = Compile({.lower = At("1e16", true)});
  EXPECT_FALSE(Matches(high, "10000000000000000"));
  EXPECT_TRUE(Matches(high, "10000000000000001"));
}

TEST(JsonNumberTest, ExcludedNumbersHaveNoOtherSpelling) {
  NumberRules rules;
  rules.excluded = {Decimal::Of(5), Decimal::Of(0.5), Decimal::Of(0)};
  const Grammar grammar = Compile(rules);
  for (const char* no : {"5", "5.0", "5e0", "50e-1", "0.5", "0.50", "0", "-0", "0.0"}) {
    EXPECT_FALSE(Matches(grammar, no)) << no;
  }
  for (const char* yes : {"4", "-5", "5.5", "55", "0.05"})
    EXPECT_TRUE(Matches(grammar, yes)) << yes;
  const Grammar broken = Compile({.integers = false});
  for (const char* yes : {"0.5", "-3.25", "7.01"}) EXPECT_TRUE(Matches(broken, yes)) << yes;
  for (const char* no : {"5", "5.0", "1.50", "1e-3", "382864926350033.99"})
    EXPECT_FALSE(Matches(broken, no)) << no;
}

TEST(JsonNumberTest, FreeNumbersAreBounded) {
  const Grammar grammar = Compile({});
  for (const char* yes : {"0", "-0", "1.5", "1e10", "1E+99", "2.5e-7", "999999999999999999"}) {
    EXPECT_TRUE(Matches(grammar, yes)) << yes;
  }
  for (const char* no : {"1e100", "1.", ".5", "+1", "01", "1000000000000000000", "NaN", "1e"}) {
    EXPECT_FALSE(Matches(grammar, no)) << no;
  }
}

}  // namespace
}  // namespace baltoro
