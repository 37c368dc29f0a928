#pragma once

// Grammars are put together from expressions over bytes and tokens: JSON Schema, regular
// expressions, grammar text and the model's tool format all end here. An expression is a value
// of the builder that made it; using one twice copies nothing. One thread.

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "grammar/compile_budget.h"
#include "grammar/grammar.h"
#include "request/request.h"

namespace baltoro {

struct CodePointRange {
  char32_t first = 0, last = 0;  // both included; surrogates are never matched
};

// Bounds on what Build makes; beyond them it answers kInvalidArgument and names the bound.
struct GrammarLimits {
  int64_t max_states = 50'000;   // over all rules
  int64_t max_bytes = 32 << 20;  // of the finished grammar
  int max_depth = 64;            // of rules open at once while matching
  // Shared by all that is made for one request. Null: work is bounded, time is not.
  std::shared_ptr<CompileBudget> budget = nullptr;
};

class GrammarBuilder {
 public:
  enum class Expr : uint32_t {};
  enum class Rule : uint32_t {};
  static constexpr int64_t kUnbounded = -1;

  explicit GrammarBuilder(GrammarLimits limits = {});
  const GrammarLimits& limits() const;
  ~GrammarBuilder();
  GrammarBuilder(const GrammarBuilder&) = delete;
  GrammarBuilder& operator=(const GrammarBuilder&) = delete;

  Expr Empty();    // matches nothing at all, successfully
  Expr Nothing();  // never matches
  Expr Literal(std::string_view bytes);
  Expr Bytes(uint8_t first, uint8_t last);
  // One character of the class as UTF-8.
  Expr CodePoints(std::span<const CodePointRange> ranges);
  Expr Sequence(std::span<const Expr> parts);
  Expr Choice(std::span<const Expr> branches);
  Expr Optional(Expr part);
  // Large bounds are counted while matching, not unrolled.
  Expr Repeat(Expr part, int64_t min, int64_t max);

  // A deterministic automaton over bytes, for languages that no expression says well (multiples of
  // a number). State 0 starts; edges are sorted and do not overlap; at least one state.
  struct ByteState {
    struct Edge {
      uint8_t first = 0, last = 0;  // both included
      uint32_t target = 0;
    };
    std::vector<Edge> edges;
    bool accept = false;
  };
  Expr Automaton(std::span<const ByteState> states);

  // A rule may call itself, directly or through others, as long as something is read before it
  // does (left recursion is refused by Build with the rule's name).
  Rule DeclareRule(std::string name);
  void DefineRule(Rule rule, Expr body);
  Expr Call(Rule rule);

  // One token by id, whatever bytes it has; how control tokens are named.
  Expr Token(TokenId id);
  // Any one token that is not an added one, whatever its bytes. Only where the model writes freely:
  // it can begin and end inside a character.
  Expr AnyText();

  // The members of an object: items in any order, each at most once, with `separator` between two.
  struct Member {
    Expr item;
    bool required = false;
  };
  struct Members {
    std::vector<Member> members;  // at most 256
    std::vector<Expr> extra;      // may come any number of times, at any place
    Expr separator{};
    int64_t min_total = 0, max_total = kUnbounded;  // of members and extras together
  };
  // A combination that can never be completed matches nothing.
  Expr AnyOrder(const Members& members);

  // Both must match: the language of a regular expression within another (no Call, Token or
  // AnyOrder inside). Used for `pattern` beside `maxLength`, and for keys that are not declared.
  Expr And(Expr left, Expr right);
  // Any string of whole characters that `part` does not match; `part` as in And.
  Expr Not(Expr part);

  // The texts of `text` that are `min` to `max` of `unit` one after the other (max is not
  // kUnbounded), as And(text, Repeat(unit, min, max)) would have it; but counted beside the
  // automaton of `text` where that comes to the same, so that places differ in a number only.
  Expr OfLength(Expr text, Expr unit, int64_t min, int64_t max);
  // `exact`, written as OfLength(loose, unit, 0, max) if that is the same language.
  Expr AsLength(Expr exact, Expr loose, Expr unit, int64_t max);

  // Removes what can never be finished; an empty language is kInvalidArgument ("nothing matches").
  Result<Grammar> Build(Rule start);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace baltoro
