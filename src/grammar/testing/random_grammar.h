#pragma once

// Random expressions, made twice: for a GrammarBuilder, and as a tree that is matched in the
// plainest way, so that one judges the other.

#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "grammar/grammar_builder.h"

namespace baltoro::test {

// What is matched: bytes, and tokens named by their id as 256 + id.
using Symbols = std::vector<int>;

inline Symbols SymbolsOf(std::string_view text) {
  Symbols out;
  for (const char c : text) out.push_back(static_cast<unsigned char>(c));
  return out;
}

struct PlainExpr {
  enum class Kind {
    kNothing,
    kLiteral,
    kRange,
    kSequence,
    kChoice,
    kRepeat,
    kCall,
    kAnyOrder,
    kAnd,
    kNot
  };
  Kind kind = Kind::kNothing;
  std::string text;                               // kLiteral
  int first = 0, last = 0;                        // kRange: symbols
  int64_t min = 0, max = -1;                      // kRepeat; kAnyOrder: of all items
  int rule = 0;                                   // kCall
  std::vector<std::shared_ptr<PlainExpr>> parts;  // kAnyOrder: members, extras, the separator last
  std::vector<bool> required;                     // kAnyOrder: of members
};
using PlainPtr = std::shared_ptr<PlainExpr>;

// All places where a match from a place can end.
class PlainMatcher {
 public:
  PlainMatcher(const std::vector<PlainPtr>& rules, const Symbols& text)
      : rules_(rules), text_(text) {}

  bool Matches(int rule) {
    return Ends(*rules_[static_cast<size_t>(rule)], 0, 0).contains(text_.size());
  }

 private:
  using Places = std::set<size_t>;

  Places Ends(const PlainExpr& expr, size_t from, int depth) {
    using Kind = PlainExpr::Kind;
    if (depth > 200) return {};
    const auto key = std::pair(&expr, from);
    if (const auto found = memo_.find(key); found != memo_.end()) return found->second;
    Places out;
    switch (expr.kind) {
      case Kind::kNothing:
        break;
      case Kind::kLiteral: {
        size_t at = from;
        for (const char c : expr.text) {
          if (at >= text_.size() || text_[at] != static_cast<unsigned char>(c)) return {};
          ++at;
        }
        out.insert(at);
        break;
      }
      case Kind::kRange:
        if (from < text_.size() && text_[from] >= expr.first && text_[from] <= expr.last) {
          out.insert(from + 1);
        }
        break;
      case Kind::kSequence:
        out.insert(from);
        for (const PlainPtr& part : expr.parts) {
          Places next;
          for (const size_t at : out) next.merge(Ends(*part, at, depth + 1));
          out = std::move(next);
        }
        break;
      case Kind::kChoice:
        for (const PlainPtr& part : expr.parts) out.merge(Ends(*part, from, depth + 1));
        break;
      case Kind::kRepeat: {
        // Counts over the length of the text add nothing but empty parts.
        Places now = {from};
        const auto bound = static_cast<int64_t>(text_.size()) + 1;
        for (int64_t i = 0;; ++i) {
          if (i >= expr.min || i > bound) out.insert(now.begin(), now.end());
          if ((expr.max >= 0 && i >= expr.max) || i > std::min(expr.min, bound) + bound) break;
          Places next;
          for (const size_t at : now) next.merge(Ends(*expr.parts[0], at, depth + 1));
          now = std::move(next);
        }
        break;
      }
      case Kind::kCall:
        out = Ends(*rules_[static_cast<size_t>(expr.rule)], from, depth + 1);
        break;
      case Kind::kAnyOrder:
        Items(expr, from, {}, 0, depth, out);
        break;
      case Kind::kAnd: {
        const Places right = Ends(*expr.parts[1], from, depth + 1);
        for (const size_t at : Ends(*expr.parts[0], from, depth + 1)) {
          if (right.contains(at)) out.insert(at);
        }
        break;
      }
      case Kind::kNot: {  // texts here are ASCII
        const Places not_here = Ends(*expr.parts[0], from, depth + 1);
        for (size_t at = from; at <= text_.size(); ++at) {
          if (!not_here.contains(at)) out.insert(at);
        }
        break;
      }
    }
    memo_[key] = out;
    return out;
  }

  void Items(const PlainExpr& expr,
             size_t from,
             std::set<size_t> taken,
             int64_t total,
             int depth,
             Places& out) {
    const size_t members = expr.required.size();
    bool complete = total >= expr.min;
    for (size_t i = 0; i < members; ++i) complete &= !expr.required[i] || taken.contains(i);
    if (complete) out.insert(from);
    if (expr.max >= 0 && total >= expr.max) return;
    if (from > text_.size()) return;
    const Places starts = total == 0 ? Places{from} : Ends(*expr.parts.back(), from, depth + 1);
    for (const size_t start : starts) {
      for (size_t i = 0; i + 1 < expr.parts.size(); ++i) {
        if (i < members && taken.contains(i)) continue;
        std::set<size_t> more = taken;
        if (i < members) more.insert(i);
        for (const size_t end : Ends(*expr.parts[i], start, depth + 1)) {
          if (end > start) Items(expr, end, more, total + 1, depth + 1, out);
        }
      }
    }
  }

  const std::vector<PlainPtr>& rules_;
  const Symbols& text_;
  std::map<std::pair<const PlainExpr*, size_t>, Places> memo_;
};

// Both forms of random expressions over the letters a to c.
class RandomGrammar {
 public:
  using Expr = GrammarBuilder::Expr;
  struct Pair {
    Expr expr;
    PlainPtr plain;
  };

  RandomGrammar(GrammarBuilder& builder, uint32_t seed, bool with_tokens)
      : b_(builder), random_(seed), with_tokens_(with_tokens) {}

  // Rule 0 is the start. Calls are always behind a letter, so that no rule is left recursive.
  GrammarBuilder::Rule Make() {
    const int rules = 1 + Pick(3);
    for (int i = 0; i < rules; ++i) {
      rules_.push_back(b_.DeclareRule("rule" + std::to_string(i)));
      plain_.push_back(nullptr);
    }
    for (size_t i = 0; i < rules_.size(); ++i) {
      const Pair body = Any(3, true);
      b_.DefineRule(rules_[i], body.expr);
      plain_[i] = body.plain;
    }
    return rules_[0];
  }
  const std::vector<PlainPtr>& plain_rules() const { return plain_; }

 private:
  using Kind = PlainExpr::Kind;
  int Pick(int below) { return static_cast<int>(random_() % static_cast<unsigned>(below)); }

  Pair Letter() {
    auto plain = std::make_shared<PlainExpr>();
    if (Pick(3) == 0) {
      plain->kind = Kind::kRange;
      plain->first = 'a' + Pick(3);
      plain->last = plain->first + Pick('c' - plain->first + 1);
      return {b_.Bytes(static_cast<uint8_t>(plain->first), static_cast<uint8_t>(plain->last)),
              plain};
    }
    plain->kind = Kind::kLiteral;
    for (int i = Pick(2); i >= 0; --i) plain->text += static_cast<char>('a' + Pick(3));
    return {b_.Literal(plain->text), plain};
  }

  Pair Join(bool choice, const std::vector<Pair>& parts) {
    auto plain = std::make_shared<PlainExpr>();
    plain->kind = choice ? Kind::kChoice : Kind::kSequence;
    std::vector<Expr> exprs;
    for (const Pair& part : parts) {
      exprs.push_back(part.expr);
      plain->parts.push_back(part.plain);
    }
    return {choice ? b_.Choice(exprs) : b_.Sequence(exprs), plain};
  }

  Pair Any(int depth, bool calls) {
    if (depth == 0) return Letter();
    switch (Pick(calls ? 11 : 7)) {
      case 0:
        return Letter();
      case 1:
      case 2:
        return Join(false, {Any(depth - 1, calls), Any(depth - 1, calls)});
      case 3:
        return Join(true, {Any(depth - 1, calls), Any(depth - 1, calls)});
      case 4:
      case 5: {
        // Counted while matching where the bounds are large.
        const bool large = Pick(3) == 0;
        const Pair part = large ? Letter() : Any(depth - 1, false);
        auto plain = std::make_shared<PlainExpr>();
        plain->kind = Kind::kRepeat;
        plain->min = Pick(3);
        plain->max = large ? 70 + Pick(2) : Pick(2) == 0 ? -1 : plain->min + Pick(3);
        plain->parts = {part.plain};
        return {b_.Repeat(part.expr, plain->min, plain->max), plain};
      }
      case 6: {
        const Pair left = Any(depth - 1, false), right = Any(depth - 1, false);
        auto plain = std::make_shared<PlainExpr>();
        if (Pick(3) == 0) return Join(true, {left, right});
        if (Pick(2) == 0) return OfLength(left);
        plain->kind = Kind::kAnd;
        plain->parts = {left.plain, right.plain};
        return {b_.And(left.expr, right.expr), plain};
      }
      case 7:
      case 8: {
        auto plain = std::make_shared<PlainExpr>();
        plain->kind = Kind::kCall;
        plain->rule = Pick(static_cast<int>(rules_.size()));
        return Join(false, {Letter(), {b_.Call(rules_[static_cast<size_t>(plain->rule)]), plain}});
      }
      case 9: {
        if (!with_tokens_) return Letter();
        auto plain = std::make_shared<PlainExpr>();
        plain->kind = Kind::kRange;
        const int id = Pick(2);
        plain->first = plain->last = 256 + id;
        return {b_.Token(id), plain};
      }
      default:
        return Object(depth);
    }
  }

  // Counted beside the automaton where that can be.
  Pair OfLength(const Pair& text) {
    const Pair unit = Pick(2) == 0 ? Letter() : Join(true, {Letter(), Letter()});
    auto lengths = std::make_shared<PlainExpr>();
    lengths->kind = Kind::kRepeat;
    lengths->min = Pick(3);
    lengths->max = 8 + Pick(2);
    lengths->parts = {unit.plain};
    auto plain = std::make_shared<PlainExpr>();
    plain->kind = Kind::kAnd;
    plain->parts = {text.plain, lengths};
    return {b_.OfLength(text.expr, unit.expr, lengths->min, lengths->max), plain};
  }

  Pair Object(int depth) {
    auto plain = std::make_shared<PlainExpr>();
    plain->kind = Kind::kAnyOrder;
    GrammarBuilder::Members members;
    const int count = Pick(4);
    for (int i = 0; i < count; ++i) {
      const Pair item = Join(false, {Letter(), Any(std::min(depth - 1, 1), true)});
      members.members.push_back({item.expr, Pick(2) == 0});
      plain->parts.push_back(item.plain);
      plain->required.push_back(members.members.back().required);
    }
    if (Pick(3) == 0) {
      const Pair extra = Letter();
      members.extra.push_back(extra.expr);
      plain->parts.push_back(extra.plain);
    }
    const Pair separator = Letter();
    members.separator = separator.expr;
    plain->parts.push_back(separator.plain);
    members.min_total = plain->min = Pick(3) == 0 ? Pick(3) : 0;
    members.max_total = plain->max = Pick(3) == 0 ? Pick(4) : -1;
    return {b_.AnyOrder(members), plain};
  }

  GrammarBuilder& b_;
  std::mt19937 random_;
  bool with_tokens_;
  std::vector<GrammarBuilder::Rule> rules_;
  std::vector<PlainPtr> plain_;
};

}  // namespace baltoro::test
