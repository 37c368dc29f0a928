#pragma once

// Regular expressions as JSON Schema uses them: ECMA-262 without what is not regular. Where the
// dialects of validators differ (\d, \w, \s, `.` and `$` beyond ASCII), a match is what all of them
// call one, unless it is asked otherwise.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "grammar/char_set.h"
#include "grammar/grammar_builder.h"

namespace baltoro {

struct RegexOptions {
  // The whole text matches; otherwise, as `pattern` has it, some part of it does.
  bool anchored = false;
  // Characters as a JSON string spells them: raw where JSON allows that, else the shortest escape.
  // One spelling for each character, so that languages made this way can be met and excluded.
  bool json_spelling = false;
  // Matches what any dialect calls a match: for a language that is then excluded.
  bool widest = false;
};

class Regex {
 public:
  // Look-around, back references, word boundaries, \p, flags and anchors inside an alternative are
  // kInvalidArgument; the message names the construct and its place (in characters, from 1).
  static Result<Regex> Parse(std::string_view pattern);

  GrammarBuilder::Expr Add(GrammarBuilder& builder, const RegexOptions& options) const;

  // Whether `text` (UTF-8) matches; spelling does not apply. kResourceExhausted when that would
  // take long, or `budget`, which may be null, is spent.
  Result<bool> Matches(std::string_view text,
                       const RegexOptions& options,
                       CompileBudget* budget = nullptr) const;

  // As Add, but only texts of `min` to `max` characters, by counting what repeats; perhaps not all
  // of them, where the rest of the text has a length of its own. Nothing if counting cannot do it.
  std::optional<GrammarBuilder::Expr> AddOfLength(GrammarBuilder& builder,
                                                  const RegexOptions& options,
                                                  int64_t min,
                                                  int64_t max) const;

 private:
  friend class RegexParser;
  friend class RegexEmitter;
  friend class RegexSimulation;

  enum class Kind : uint8_t { kClass, kSequence, kChoice, kRepeat, kStart, kEnd };
  struct Node {
    Kind kind = Kind::kSequence;
    bool has_anchor = false;
    uint32_t set = 0;                     // kClass: index into sets_
    uint32_t place = 0;                   // anchors: the character of the pattern, from 0
    std::vector<uint32_t> children = {};  // kRepeat: one
    int64_t min = 0, max = 0;             // kRepeat
    int64_t size = 0;                     // characters when unrolled
  };
  struct ClassSet {
    CharSet sure;   // what every dialect means
    CharSet maybe;  // what some dialect means
  };
  // One way through the alternatives that hold anchors.
  struct Variant {
    bool at_start = false, at_end = false;
    std::vector<uint32_t> parts = {};  // nodes without anchors
  };

  // Characters of the node's texts; max may be kUnbounded.
  void Lengths(uint32_t node, int64_t& min, int64_t& max) const;

  std::vector<Node> nodes_;
  std::vector<ClassSet> sets_;
  std::vector<Variant> variants_;
  uint32_t root_ = 0;
};

Result<GrammarBuilder::Expr> AddRegex(GrammarBuilder& builder,
                                      std::string_view pattern,
                                      const RegexOptions& options = {});

// One character of `set` as RegexOptions::json_spelling has it.
GrammarBuilder::Expr AddJsonSpelling(GrammarBuilder& builder, const CharSet& set);

}  // namespace baltoro
