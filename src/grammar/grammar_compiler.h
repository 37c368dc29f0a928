#pragma once

// Expressions to automata: what has no calls becomes one automaton, what has is cut into rules.

#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "grammar/automaton.h"
#include "grammar/compiled_grammar.h"
#include "grammar/counted_text.h"
#include "grammar/expressions.h"

namespace baltoro {

class GrammarCompiler {
 public:
  GrammarCompiler(const Expressions& expressions, const GrammarLimits& limits);
  Result<Grammar> Compile(uint32_t start);

 private:
  // What is known of an expression before it is compiled.
  struct Form {
    bool judged = false;
    bool inlined = false;  // a call of a rule that stands in place of it
    bool pure = false;     // no calls, tokens, members: a regular language
    bool regular = false;  // pure, and small enough to become one automaton without counting
    bool loops = false;
    bool counted = false;  // a repetition that is counted while matching
    int64_t size = 0;      // states that it puts into the automaton that it stands in
    int64_t full = 0;      // the same with everything unrolled
    int64_t uses = 0;
    std::optional<Dfa> dfa;  // of characters, And and Not
    // OfLength that is counted: the text beside the unit, see CountedText.
    std::shared_ptr<const CountedText> counted_text{};
  };
  struct TempEdge {
    LabelEdge edge{};
    CompiledGrammar::Action action = CompiledGrammar::Action::kNone;
    uint16_t item = 0;
  };
  struct TempState {
    std::vector<TempEdge> edges;
    CompiledGrammar::Accept accept = CompiledGrammar::Accept::kNo;
  };
  struct TempRule {
    CompiledGrammar::Rule rule{};  // without places
    std::vector<TempState> states{};
    uint32_t body = 0;
    std::string name{};  // of the rule that it is or belongs to
  };
  struct Symbol {
    CompiledGrammar::EdgeKind kind{};
    uint32_t id = 0;
  };
  enum class Mode { kUnrolled, kMixed };

  Status Reach(uint32_t start);
  std::vector<uint32_t> PartsFirst(uint32_t body) const;
  Status Judge(uint32_t index);
  bool StandsAlone(uint32_t index) const;
  Result<Dfa> MakeDfa(uint32_t expr, Mode mode);
  Status EmitNode(Nfa& nfa, uint32_t expr, uint32_t from, uint32_t to);
  void EmitRepeat(Nfa& nfa, const ExprNode& node, uint32_t from, uint32_t to);
  uint32_t Label(CompiledGrammar::EdgeKind kind, uint32_t id);
  uint32_t RuleOfName(uint32_t rule);
  uint32_t RuleOfExpr(uint32_t expr);
  Status CompileRule(uint32_t index);
  Status CompileCounter(TempRule& out, const ExprNode& node);
  Status JudgeLength(const ExprNode& node, Form& form);
  // What OfLength means, without counting.
  Result<Dfa> UnrollLength(const ExprNode& node);
  static void CompileCountedText(TempRule& out, const ExprNode& repeat, const CountedText& text);
  Status CompileAnyOrder(TempRule& out, const ExprNode& node);
  static void AppendFragment(TempRule& out,
                             const Dfa& dfa,
                             std::span<const uint32_t> hubs,
                             uint32_t end,
                             CompiledGrammar::Action action,
                             uint16_t item);
  CompiledGrammar Assemble() const;
  Status TooMany(const char* what, int64_t limit) const;

  const Expressions& all_;
  const GrammarLimits limits_;
  AutomatonBudget budget_;
  std::vector<Form> forms_;
  std::vector<TempRule> rules_;
  std::unordered_map<uint32_t, uint32_t> rule_of_name_, rule_of_expr_;
  std::unordered_map<uint64_t, uint32_t> labels_;
  std::vector<Symbol> symbols_;  // of labels from 256 up
  struct Job {
    uint32_t expr, from, to;
  };
  std::vector<Job> jobs_;
  uint32_t compiling_ = 0;  // the rule whose parts get its name
  int64_t states_ = 0, edges_ = 0;
};

// kInvalidArgument with the rule's name if one of the expressions in `order` (all that are reached,
// parts first) comes back to itself before anything is read. Looks at expressions alone, so it
// costs little; what only the automata show is left to CompiledGrammar::Derive.
Status RefuseLeftRecursion(const Expressions& expressions, const std::vector<uint32_t>& order);

// Leaves out what can never be part of a finished text.
CompiledGrammar PruneGrammar(const CompiledGrammar& grammar);

}  // namespace baltoro
