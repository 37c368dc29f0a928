#pragma once

// JSON numbers within bounds, as texts. Everything is decimal: a bound means what its digits say,
// and so many digits are written that no rounding of a reader can carry a number over its bound.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/status.h"
#include "grammar/grammar_builder.h"

namespace baltoro {

// A decimal number of any size.
struct Decimal {
  bool negative = false;  // never of zero
  std::string whole;      // digits without leading zeros; empty: 0
  std::string fraction;   // digits without trailing zeros

  // `number` must be a JSON number.
  static Decimal Of(const Json& number);
  // Below 0, 0 or above 0, as *this is below, equal or above.
  int Compare(const Decimal& other) const;
  Decimal Negated() const;
};

struct NumberBound {
  Decimal value;
  bool exclusive = false;
};

struct NumberRules {
  bool integers = true;   // whole numbers may come, written without a fraction
  bool fractions = true;  // numbers that are not whole may come
  std::optional<NumberBound> lower = {}, upper = {};
  std::vector<Decimal> multiples = {};  // of each of these; each above zero
  std::vector<Decimal> excluded = {};
};

// Whole numbers have at most 18 digits; fractions 16, or fewer beside bounds; exponents (without
// rules only) two. What cannot be made is kInvalidArgument: a factor with too many digits.
Result<GrammarBuilder::Expr> AddNumber(GrammarBuilder& builder, const NumberRules& rules);

}  // namespace baltoro
