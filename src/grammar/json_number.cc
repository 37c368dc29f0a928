#include "grammar/json_number.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <utility>

#include "base/check.h"
#include "grammar/regex.h"

namespace baltoro {

using Expr = GrammarBuilder::Expr;

namespace {

constexpr size_t kMaxWholeDigits = 18;
constexpr int64_t kMaxInteger = 999'999'999'999'999'999;
// A double tells numbers of so many digits apart.
constexpr size_t kExactDigits = 15;
constexpr int64_t kExactInteger = 999'999'999'999'999;
constexpr int64_t kMaxFactor = 2000;     // states of the automaton of multiples
constexpr int64_t kMaxListed = 500;      // multiples written out one by one
constexpr size_t kMaxFactorDigits = 12;  // after the point

// Cuts sign and exponent off the text of a number.
std::string_view PlainDigits(std::string_view text, int& exponent, bool& negative) {
  negative = text.starts_with('-');
  if (negative) text.remove_prefix(1);
  const size_t e = text.find_first_of("eE");
  if (e == text.npos) return text;
  std::string_view power = text.substr(e + 1);
  if (power.starts_with('+')) power.remove_prefix(1);
  std::from_chars(power.data(), power.data() + power.size(), exponent);
  return text.substr(0, e);
}

// Rounds towards +infinity if `up`, else towards -infinity, and stays within the writable ones;
// nothing if no writable one is on that side.
std::optional<int64_t> ToInteger(const NumberBound& bound, bool up) {
  const Decimal& value = bound.value;
  if (value.whole.size() > kMaxWholeDigits) {
    if (value.negative == up) return up ? -kMaxInteger : kMaxInteger;
    return std::nullopt;
  }
  int64_t magnitude = 0;
  for (const char digit : value.whole) magnitude = magnitude * 10 + (digit - '0');
  int64_t out = value.negative ? -magnitude : magnitude;
  if (!value.fraction.empty()) {
    if (up && !value.negative) ++out;
    if (!up && value.negative) --out;
  } else if (bound.exclusive) {
    out += up ? 1 : -1;
  }
  if (up ? out > kMaxInteger : out < -kMaxInteger) return std::nullopt;
  return std::clamp(out, -kMaxInteger, kMaxInteger);
}

class NumberMaker {
 public:
  explicit NumberMaker(GrammarBuilder& builder) : builder_(builder) {}

  Expr Digits(int64_t min, int64_t max) {
    return max <= 0 ? builder_.Empty() : builder_.Repeat(Digit('0', '9'), min, max);
  }
  Expr Digit(char first, char last) {
    return builder_.Bytes(static_cast<uint8_t>(first), static_cast<uint8_t>(last));
  }
  Expr Text(std::string_view text) { return builder_.Literal(text); }
  Expr Either(std::vector<Expr> ways) {
    if (ways.empty()) return builder_.Nothing();
    return ways.size() == 1 ? ways[0] : builder_.Choice(ways);
  }
  Expr Then(std::initializer_list<Expr> parts) {
    return builder_.Sequence(std::span<const Expr>(parts.begin(), parts.size()));
  }

  // Whole numbers from low to high, both at least 0.
  Expr Natural(int64_t low, int64_t high) {
    std::vector<Expr> ways;
    if (low > high) return builder_.Nothing();
    for (int64_t first = low; first <= high;) {
      const std::string from = std::to_string(first);
      int64_t end = 9;  // the last one with as many digits
      for (size_t i = 1; i < from.size(); ++i) end = end * 10 + 9;
      end = std::min(end, high);
      ways.push_back(SameLength(from, std::to_string(end)));
      first = end + 1;
    }
    return Either(std::move(ways));
  }

  Expr Integer(int64_t low, int64_t high) {
    std::vector<Expr> ways;
    if (high >= 0) ways.push_back(Natural(std::max<int64_t>(low, 0), high));
    if (low < 0) {
      ways.push_back(Then({Text("-"), Natural(std::max<int64_t>(-high, 1), -low)}));
    }
    return Either(std::move(ways));
  }

  // Decimals within the bounds, without exponent.
  Expr Ranged(const NumberRules& rules) {
    size_t digits = 1;
    for (const auto* bound : {&rules.lower, &rules.upper}) {
      if (*bound) digits = std::max(digits, (*bound)->value.whole.size());
    }
    room_ = digits >= kExactDigits ? 0 : static_cast<int64_t>(kExactDigits - digits);
    std::optional<NumberBound> negated_lower, negated_upper;
    if (rules.upper) {
      negated_lower = {.value = rules.upper->value.Negated(), .exclusive = rules.upper->exclusive};
    }
    if (rules.lower) {
      negated_upper = {.value = rules.lower->value.Negated(), .exclusive = rules.lower->exclusive};
    }
    return Either({Magnitude(rules.lower, rules.upper),
                   Then({Text("-"), Magnitude(negated_lower, negated_upper)})});
  }

  // N with N % factor == 0, where N are the digits of the number without its point, of which
  // `places` stand after it.
  Expr Multiples(int64_t factor, size_t places) {
    // States: start, after "-", after a first 0, then by remainder: in the whole part; then, for
    // each count of digits after the point, by remainder.
    using State = GrammarBuilder::ByteState;
    const auto modulus = static_cast<uint32_t>(factor);
    constexpr uint32_t kFirst = 3;
    std::vector<State> states(kFirst + modulus * (places + 1));
    int64_t scale = 1;
    for (size_t i = 0; i < places; ++i) scale = scale * 10 % factor;
    const auto at = [&](size_t place, int64_t remainder) {
      return kFirst + static_cast<uint32_t>(place) * modulus + static_cast<uint32_t>(remainder);
    };
    const auto edge = [](State& state, char byte, uint32_t target) {
      const auto value = static_cast<uint8_t>(byte);
      state.edges.push_back({.first = value, .last = value, .target = target});
    };
    for (uint32_t start = 0; start < 2; ++start) {
      if (start == 0) edge(states[0], '-', 1);
      edge(states[start], '0', 2);
      for (char digit = '1'; digit <= '9'; ++digit) {
        edge(states[start], digit, at(0, (digit - '0') % factor));
      }
    }
    // Between '.' and its first digit the text may not end, so the point leads to states of its
    // own: those of place `places` + remainder would accept. They are made where needed.
    const auto after_point = [&](int64_t remainder) {
      states.emplace_back();
      const auto index = static_cast<uint32_t>(states.size() - 1);
      for (char digit = '0'; digit <= '9'; ++digit) {
        edge(states[index], digit, at(1, (remainder * 10 + digit - '0') % factor));
      }
      return index;
    };
    states[2].accept = true;
    // The target first: making it moves the states.
    const auto add_point = [&](uint32_t from, int64_t remainder) {
      const uint32_t target = after_point(remainder);
      edge(states[from], '.', target);
    };
    if (places > 0) add_point(2, 0);
    for (int64_t remainder = 0; remainder < factor; ++remainder) {
      states[at(0, remainder)].accept = remainder * scale % factor == 0;
      for (char digit = '0'; digit <= '9'; ++digit) {
        const int64_t next = (remainder * 10 + digit - '0') % factor;
        edge(states[at(0, remainder)], digit, at(0, next));
        for (size_t place = 1; place < places; ++place) {
          edge(states[at(place, remainder)], digit, at(place + 1, next));
        }
      }
      int64_t left = 1;  // 10^(digits that a fraction ended at this place lacks)
      for (size_t place = places; place >= 1; --place) {
        states[at(place, remainder)].accept = remainder * left % factor == 0;
        left = left * 10 % factor;
      }
      if (places > 0) add_point(at(0, remainder), remainder);
    }
    for (State& state : states) {
      std::sort(state.edges.begin(), state.edges.end(),
                [](const auto& a, const auto& b) { return a.first < b.first; });
    }
    return builder_.Automaton(states);
  }

 private:
  // Digits from `low` to `high`, which are equally long.
  Expr SameLength(std::string_view low, std::string_view high) {
    const auto left = static_cast<int64_t>(low.size());
    if (low.find_first_not_of('0') == low.npos && high.find_first_not_of('9') == high.npos) {
      return Digits(left, left);
    }
    const std::string_view low_rest = low.substr(1), high_rest = high.substr(1);
    if (low[0] == high[0]) {
      return Then({Digit(low[0], low[0]), SameLength(low_rest, high_rest)});
    }
    const std::string nines(low_rest.size(), '9'), zeros(low_rest.size(), '0');
    std::vector<Expr> ways = {Then({Digit(low[0], low[0]), SameLength(low_rest, nines)}),
                              Then({Digit(high[0], high[0]), SameLength(zeros, high_rest)})};
    if (low[0] + 1 < high[0]) {
      const Expr between = Digit(static_cast<char>(low[0] + 1), static_cast<char>(high[0] - 1));
      ways.push_back(Then({between, Digits(left - 1, left - 1)}));
    }
    return Either(std::move(ways));
  }

  // "." and digits that `fraction` matches; nothing at all if `empty`, its value without digits,
  // is right too.
  Expr Point(Expr fraction, bool empty) {
    if (room_ == 0) return empty ? builder_.Empty() : builder_.Nothing();
    const Expr some = builder_.And(fraction, Digits(1, room_));
    const Expr out = Then({Text("."), some});
    return empty ? builder_.Optional(out) : out;
  }

  // Digits after the point that are at least (more than, if strict) those of `bound`.
  Expr AtLeast(std::string_view bound, int64_t room, bool strict) {
    if (bound.empty() && !strict) return Digits(0, room);
    if (room == 0) return builder_.Nothing();
    const char first = bound.empty() ? '0' : bound[0];
    const std::string_view rest = bound.empty() ? bound : bound.substr(1);
    std::vector<Expr> ways = {Then({Digit(first, first), AtLeast(rest, room - 1, strict)})};
    if (first < '9') {
      ways.push_back(Then({Digit(static_cast<char>(first + 1), '9'), Digits(0, room - 1)}));
    }
    return Either(std::move(ways));
  }

  Expr AtMost(std::string_view bound, int64_t room, bool strict) {
    if (bound.empty()) {
      if (strict) return builder_.Nothing();
      return room == 0 ? builder_.Empty() : builder_.Repeat(Digit('0', '0'), 0, room);
    }
    std::vector<Expr> ways = {builder_.Empty()};
    if (room > 0) {
      const char first = bound[0];
      ways.push_back(Then({Digit(first, first), AtMost(bound.substr(1), room - 1, strict)}));
      if (first > '0') {
        ways.push_back(Then({Digit('0', static_cast<char>(first - 1)), Digits(0, room - 1)}));
      }
    }
    return Either(std::move(ways));
  }

  static int64_t Whole(const Decimal& value) {
    if (value.whole.size() > kExactDigits) return kExactInteger + 1;
    int64_t out = 0;
    for (const char digit : value.whole) out = out * 10 + (digit - '0');
    return out;
  }

  // Numbers written without sign.
  Expr Magnitude(const std::optional<NumberBound>& lower, const std::optional<NumberBound>& upper) {
    const Expr any = Point(Digits(0, room_), true);
    Expr out = Then({Natural(0, kExactInteger), any});
    if (upper) {
      if (upper->value.negative) return builder_.Nothing();
      const int64_t whole = Whole(upper->value);
      const std::string& digits = upper->value.fraction;
      if (whole <= kExactInteger) {
        const bool ends = !digits.empty() || !upper->exclusive;
        std::vector<Expr> ways = {Then(
            {Text(std::to_string(whole)), Point(AtMost(digits, room_, upper->exclusive), ends)})};
        if (whole > 0) ways.push_back(Then({Natural(0, whole - 1), any}));
        out = Either(std::move(ways));
      }
    }
    if (lower && !lower->value.negative) {
      const int64_t whole = Whole(lower->value);
      if (whole > kExactInteger) return builder_.Nothing();
      const std::string& digits = lower->value.fraction;
      const bool ends = digits.empty() && !lower->exclusive;
      std::vector<Expr> ways = {Then(
          {Text(std::to_string(whole)), Point(AtLeast(digits, room_, lower->exclusive), ends)})};
      if (whole < kExactInteger) {
        ways.push_back(Then({Natural(whole + 1, kExactInteger), any}));
      }
      out = builder_.And(out, Either(std::move(ways)));
    }
    return out;
  }

  GrammarBuilder& builder_;
  int64_t room_ = 0;  // digits after the point
};

std::string TextOf(const Decimal& value) {
  std::string out = value.negative ? "-" : "";
  out += value.whole.empty() ? "0" : value.whole;
  if (!value.fraction.empty()) out += "." + value.fraction;
  return out;
}

// `value` as factor * 10^(zeros - places); false if the factor has too many digits.
bool Scaled(const Decimal& value, int64_t& factor, size_t& places, int64_t& zeros) {
  std::string digits = value.whole + value.fraction;
  places = value.fraction.size();
  digits.erase(0, std::min(digits.find_first_not_of('0'), digits.size()));
  zeros = 0;
  while (places == 0 && digits.size() > 1 && digits.back() == '0') {
    digits.pop_back();
    ++zeros;
  }
  if (digits.empty() || digits.size() > kMaxWholeDigits || places > kMaxFactorDigits) return false;
  factor = 0;
  for (const char digit : digits) factor = factor * 10 + (digit - '0');
  return true;
}

// The multiples of one factor, of either sign.
Result<Expr> AddMultiples(GrammarBuilder& builder, const Decimal& factor) {
  NumberMaker make(builder);
  int64_t value = 0, zeros = 0;
  size_t places = 0;
  if (!Scaled(factor, value, places, zeros) || value > kMaxFactor) {
    return InvalidArgument("a factor with this many digits");
  }
  const Expr multiples = make.Multiples(value, places);
  if (zeros == 0) return multiples;
  const Expr scaled =
      make.Then({multiples, make.Text(std::string(static_cast<size_t>(zeros), '0'))});
  // 0 itself, and not 00.
  const Expr leading = make.Either(
      {make.Text("0"),
       make.Then({builder.Optional(make.Text("-")), make.Digit('1', '9'),
                  builder.Repeat(make.Digit('0', '9'), 0, GrammarBuilder::kUnbounded)})});
  return builder.And(make.Either({make.Text("0"), scaled}), leading);
}

// The multiples of an integer between two others, if they are few.
std::optional<Expr> ListedMultiples(GrammarBuilder& builder,
                                    const Decimal& factor,
                                    int64_t low,
                                    int64_t high) {
  int64_t value = 0, zeros = 0;
  size_t places = 0;
  if (!Scaled(factor, value, places, zeros) || places > 0) return std::nullopt;
  for (; zeros > 0; --zeros) {
    if (value > kMaxInteger / 10) return builder.Literal("0");
    value *= 10;
  }
  if ((high / value) - (low / value) > kMaxListed) return std::nullopt;
  std::vector<Expr> ways;
  for (int64_t times = low / value - 1; times <= high / value + 1; ++times) {
    const int64_t multiple = times * value;  // both bounds are under 10^18
    if (multiple < low || multiple > high) continue;
    ways.push_back(builder.Literal(std::to_string(multiple)));
  }
  return ways.empty() ? builder.Nothing() : builder.Choice(ways);
}

Result<Expr> AddInteger(GrammarBuilder& builder, const NumberRules& rules) {
  NumberMaker make(builder);
  const auto low = rules.lower ? ToInteger(*rules.lower, true) : -kMaxInteger;
  const auto high = rules.upper ? ToInteger(*rules.upper, false) : kMaxInteger;
  if (!low || !high || *low > *high) return builder.Nothing();
  Expr out = make.Integer(*low, *high);
  for (const Decimal& factor : rules.multiples) {
    if (const auto listed = ListedMultiples(builder, factor, *low, *high)) {
      out = builder.And(out, *listed);
      continue;
    }
    BT_ASSIGN_OR_RETURN(const Expr multiples, AddMultiples(builder, factor));
    out = builder.And(out, multiples);
  }
  return out;
}

}  // namespace

Decimal Decimal::Of(const Json& number) {
  BT_CHECK(number.is_number());
  std::string text;
  if (number.is_number_float()) {
    // Unlike dump(), the fewest digits that mean this double.
    char buffer[64];
    const auto end = std::to_chars(buffer, buffer + sizeof buffer, number.get<double>());
    text.assign(buffer, end.ptr);
  } else {
    text = number.dump();
  }
  Decimal out;
  int exponent = 0;
  const std::string_view digits = PlainDigits(text, exponent, out.negative);
  const size_t point = digits.find('.');
  out.whole = digits.substr(0, point);
  if (point != digits.npos) out.fraction = digits.substr(point + 1);
  for (; exponent > 0; --exponent) {
    out.whole += out.fraction.empty() ? '0' : out.fraction[0];
    if (!out.fraction.empty()) out.fraction.erase(0, 1);
  }
  for (; exponent < 0; ++exponent) {
    out.fraction.insert(0, 1, out.whole.empty() ? '0' : out.whole.back());
    if (!out.whole.empty()) out.whole.pop_back();
  }
  out.whole.erase(0, std::min(out.whole.find_first_not_of('0'), out.whole.size()));
  out.fraction.erase(out.fraction.find_last_not_of('0') + 1);
  if (out.whole.empty() && out.fraction.empty()) out.negative = false;
  return out;
}

int Decimal::Compare(const Decimal& other) const {
  if (negative != other.negative) return negative ? -1 : 1;
  int out = 0;
  if (whole.size() != other.whole.size()) {
    out = whole.size() < other.whole.size() ? -1 : 1;
  } else {
    out = whole.compare(other.whole);
    if (out == 0) out = fraction.compare(other.fraction);
  }
  return negative ? -out : out;
}

Decimal Decimal::Negated() const {
  Decimal out = *this;
  out.negative = !negative && !(whole.empty() && fraction.empty());
  return out;
}

Result<Expr> AddNumber(GrammarBuilder& builder, const NumberRules& rules) {
  NumberMaker make(builder);
  const bool bounded = rules.lower || rules.upper || !rules.multiples.empty();
  Expr out{};
  // Beyond what a double tells apart, only whole numbers are written, which readers keep exactly.
  const auto far = [](const std::optional<NumberBound>& bound, bool negative) {
    return bound && bound->value.negative == negative && bound->value.whole.size() > kExactDigits;
  };
  const bool whole_factor =
      std::any_of(rules.multiples.begin(), rules.multiples.end(),
                  [](const Decimal& factor) { return factor.fraction.empty(); });
  if (!rules.fractions || whole_factor || far(rules.lower, false) || far(rules.upper, true)) {
    if (!rules.integers) return builder.Nothing();
    BT_ASSIGN_OR_RETURN(out, AddInteger(builder, rules));
  } else if (bounded) {
    out = make.Ranged(rules);
    for (const Decimal& factor : rules.multiples) {
      BT_ASSIGN_OR_RETURN(const Expr multiples, AddMultiples(builder, factor));
      out = builder.And(out, multiples);
    }
  } else if (rules.integers && rules.excluded.empty()) {
    BT_ASSIGN_OR_RETURN(
        out, AddRegex(builder, "-?(0|[1-9][0-9]{0,17})(\\.[0-9]{1,16})?([eE][+-]?[0-9]{1,2})?",
                      {.anchored = true}));
  } else {
    BT_ASSIGN_OR_RETURN(
        out, AddRegex(builder, "-?(0|[1-9][0-9]{0,14})(\\.[0-9]{1,16})?", {.anchored = true}));
  }
  if (!rules.integers || !rules.excluded.empty()) {
    // No more digits than a double tells apart: none is rounded to what may not come.
    BT_ASSIGN_OR_RETURN(
        const Expr exact,
        AddRegex(builder, "-?([0-9]{1,9}(\\.[0-9]{1,6})?|[0-9]{1,13}(\\.[0-9]{1,2})?)|-?[0-9]+",
                 {.anchored = true}));
    out = builder.And(out, exact);
  }
  if (!rules.integers) {
    BT_ASSIGN_OR_RETURN(const Expr broken,
                        AddRegex(builder, "[-0-9]+\\.[0-9]*[1-9]", {.anchored = true}));
    out = builder.And(out, broken);
  }
  if (!rules.excluded.empty()) {
    // One spelling for each number, so that excluding it excludes the number.
    BT_ASSIGN_OR_RETURN(const Expr plain, AddRegex(builder, "-?(0|[1-9][0-9]*)(\\.[0-9]*[1-9])?",
                                                   {.anchored = true}));
    std::vector<Expr> excluded = {builder.Literal("-0")};
    for (const Decimal& value : rules.excluded) excluded.push_back(builder.Literal(TextOf(value)));
    out = builder.And(builder.And(out, plain), builder.Not(builder.Choice(excluded)));
  }
  return out;
}

}  // namespace baltoro
