#include "grammar/grammar_compiler.h"

#include <algorithm>
#include <memory>

#include "base/check.h"
#include "grammar/minimise.h"

namespace baltoro {

using Accept = CompiledGrammar::Accept;
using Action = CompiledGrammar::Action;
using EdgeKind = CompiledGrammar::EdgeKind;
using Kind = ExprNode::Kind;
using RuleKind = CompiledGrammar::RuleKind;

namespace {

constexpr int64_t kHuge = int64_t{1} << 40;
constexpr int64_t kAutomatonSize = 20'000;  // over this a regular expression is cut into rules
constexpr int64_t kInlineSize = 24;         // over this one within a rule becomes a rule itself
constexpr int64_t kInlineRuleSize = 256;    // a rule up to this, without loops, is no rule
constexpr int64_t kUnrollSize = 64;         // a repetition over this is counted
constexpr int64_t kUnrolledMax = 400'000;   // within And and Not
constexpr int64_t kComparedSize = 2'000;    // of what may be another way to say a length
constexpr int64_t kRepeatMax = 1'000'000'000;
constexpr char kTooComplex[] = "the grammar is too complex: its automata take too many steps";

int64_t Times(int64_t count, int64_t size) {
  return count > 0 && size > kHuge / count ? kHuge : std::min(kHuge, count * size);
}

}  // namespace

GrammarCompiler::GrammarCompiler(const Expressions& expressions, const GrammarLimits& limits)
    : all_(expressions), limits_(limits), forms_(expressions.nodes.size()) {
  budget_.max_states = limits.max_states;
  budget_.work = 400'000'000;
  budget_.whole = limits.budget.get();
}

Status GrammarCompiler::TooMany(const char* what, int64_t limit) const {
  return InvalidArgument("the grammar is too large: over " + std::to_string(limit) + " (" + what +
                         ")");
}

Result<Grammar> GrammarCompiler::Compile(uint32_t start) {
  BT_RETURN_IF_ERROR(Reach(start));
  const std::vector<uint32_t> order = PartsFirst(all_.rules[start].body);
  BT_RETURN_IF_ERROR(RefuseLeftRecursion(all_, order));
  for (const uint32_t expr : order) {
    BT_RETURN_IF_ERROR(Judge(expr));
    forms_[expr].judged = true;
    if (!budget_.Take(1 + static_cast<int64_t>(all_.nodes[expr].parts.size()))) {
      return budget_.Failure(kTooComplex);
    }
  }
  RuleOfName(start);
  for (uint32_t i = 0; i < rules_.size(); ++i) {
    BT_RETURN_IF_ERROR(CompileRule(i));
    states_ += static_cast<int64_t>(rules_[i].states.size());
    if (states_ > limits_.max_states) return TooMany("max_states", limits_.max_states);
    for (const TempState& state : rules_[i].states) {
      edges_ += static_cast<int64_t>(state.edges.size());
    }
    // Pruning may drop some of them, but seldom most.
    const auto edge_bytes = edges_ * static_cast<int64_t>(sizeof(CompiledGrammar::Edge));
    if (edge_bytes > 4 * limits_.max_bytes) return TooMany("max_bytes", limits_.max_bytes);
  }
  CompiledGrammar grammar = Assemble();
  uint32_t recursive = UINT32_MAX;
  const Status status = grammar.Derive(&recursive, limits_.budget.get());
  if (recursive != UINT32_MAX) {
    return InvalidArgument("the rule \"" + rules_[recursive].name +
                           "\" calls itself before it reads anything");
  }
  BT_RETURN_IF_ERROR(status);
  auto pruned = std::make_shared<CompiledGrammar>(PruneGrammar(grammar));
  BT_RETURN_IF_ERROR(pruned->Derive(nullptr, limits_.budget.get()));
  if (pruned->num_bytes() > limits_.max_bytes) return TooMany("max_bytes", limits_.max_bytes);
  return Grammar(std::move(pruned));
}

// Marks what the start rule needs and counts uses.
Status GrammarCompiler::Reach(uint32_t start) {
  std::vector<bool> rule_seen(all_.rules.size());
  std::vector<uint32_t> todo;
  const auto use = [&](uint32_t expr) {
    if (forms_[expr].uses++ == 0) todo.push_back(expr);
  };
  Status status;
  const auto use_rule = [&](uint32_t rule) {
    if (rule_seen[rule]) return;
    rule_seen[rule] = true;
    if (all_.rules[rule].defined) {
      use(all_.rules[rule].body);
    } else {
      status = InvalidArgument("the rule \"" + all_.rules[rule].name + "\" is not defined");
    }
  };
  use_rule(start);
  while (!todo.empty()) {
    const uint32_t at = todo.back();
    todo.pop_back();
    for (const uint32_t part : all_.nodes[at].parts) use(part);
    if (all_.nodes[at].kind == Kind::kCall) use_rule(all_.nodes[at].symbol);
  }
  return status;
}

// What is reached from `body`, each behind its parts, and calls behind the rules that they call but
// where those call themselves.
std::vector<uint32_t> GrammarCompiler::PartsFirst(uint32_t body) const {
  std::vector<uint32_t> order;
  std::vector<bool> entered(forms_.size());
  struct Visit {
    uint32_t expr;
    size_t next;  // of its parts; a call has one, the rule's body
  };
  std::vector<Visit> path = {{body, 0}};
  entered[body] = true;
  while (!path.empty()) {
    const uint32_t expr = path.back().expr;
    const size_t next = path.back().next++;
    const ExprNode& node = all_.nodes[expr];
    const bool is_call = node.kind == Kind::kCall;
    if (next < (is_call ? 1 : node.parts.size())) {
      const uint32_t part = is_call ? all_.rules[node.symbol].body : node.parts[next];
      if (!entered[part]) {
        entered[part] = true;
        path.push_back({part, 0});
      }
    } else {
      order.push_back(expr);
      path.pop_back();
    }
  }
  return order;
}

// Fills in the form of an expression whose parts are judged.
Status GrammarCompiler::Judge(uint32_t index) {
  const ExprNode& node = all_.nodes[index];
  Form& form = forms_[index];
  form.pure = true;
  form.regular = true;
  for (const uint32_t part : node.parts) {
    form.pure = form.pure && forms_[part].pure;
    form.regular = form.regular && forms_[part].regular;
    form.loops = form.loops || forms_[part].loops;
    form.full = std::min(kHuge, form.full + forms_[part].full);
  }
  form.full += 1;
  switch (node.kind) {
    case Kind::kLiteral:
      form.full = std::max<int64_t>(1, static_cast<int64_t>(node.text.size()));
      break;
    case Kind::kCall: {
      // A small rule becomes part of its callers: the automaton of a string is then one, also where
      // its characters are a rule.
      const Form& body = forms_[all_.rules[node.symbol].body];
      form.inlined = body.judged && body.regular && !body.loops && body.full <= kInlineRuleSize;
      form.pure = form.regular = form.inlined;
      form.full = form.inlined ? body.full + 1 : 1;
      break;
    }
    case Kind::kToken:
    case Kind::kAnyText:
    case Kind::kAnyOrder:
      form.pure = false;
      form.regular = false;
      form.full = 1;
      break;
    case Kind::kCodePoints: {
      BT_ASSIGN_OR_RETURN(form.dfa, CharacterDfa(node.ranges, budget_));
      break;
    }
    case Kind::kAutomaton: {
      BT_ASSIGN_OR_RETURN(form.dfa, Minimise(all_.automata[node.symbol], budget_));
      form.loops = true;
      break;
    }
    case Kind::kAnd:
    case Kind::kNot: {
      if (!form.pure) {
        return InvalidArgument("And and Not take regular expressions only: no rules, no tokens");
      }
      if (form.full > kUnrolledMax) return TooMany("max_states", limits_.max_states);
      BT_ASSIGN_OR_RETURN(const Dfa left, MakeDfa(node.parts[0], Mode::kUnrolled));
      if (node.kind == Kind::kNot) {
        BT_ASSIGN_OR_RETURN(form.dfa, ComplementOfText(left, budget_));
      } else {
        BT_ASSIGN_OR_RETURN(const Dfa right, MakeDfa(node.parts[1], Mode::kUnrolled));
        BT_ASSIGN_OR_RETURN(form.dfa, Intersect(left, right, budget_));
      }
      form.regular = true;
      form.loops = true;  // unknown
      break;
    }
    case Kind::kOfLength:
      BT_RETURN_IF_ERROR(JudgeLength(node, form));
      break;
    case Kind::kRepeat: {
      if (node.max > kRepeatMax || node.min > kRepeatMax) {
        return InvalidArgument("a repetition of more than 1000000000 times is not supported");
      }
      const int64_t count =
          node.max == GrammarBuilder::kUnbounded ? std::max<int64_t>(node.min, 1) : node.max;
      const Form& part = forms_[node.parts[0]];
      const int64_t size = StandsAlone(node.parts[0]) && !part.regular ? 1 : part.full;
      form.full = Times(count, part.full);
      const int64_t unrolled = Times(count, size);
      form.counted = unrolled > kUnrollSize && (count > 4 || unrolled > 32 * kUnrollSize);
      if (form.counted) form.regular = false;
      if (node.max == GrammarBuilder::kUnbounded) form.loops = true;
      break;
    }
    default:
      break;
  }
  if (form.dfa) form.full = static_cast<int64_t>(form.dfa->states.size());
  if (form.full > kAutomatonSize) form.regular = false;
  if (form.regular) {
    form.size = form.full;
    return {};
  }
  // Parts that become rules count as one.
  int64_t size = 1;
  for (const uint32_t part : node.parts) {
    size = std::min(kHuge, size + (StandsAlone(part) ? 1 : forms_[part].size));
  }
  form.size = node.kind == Kind::kRepeat
                  ? Times(node.max == GrammarBuilder::kUnbounded ? node.min + 1 : node.max, size)
                  : size;
  return {};
}

// Within the automaton of a rule that has calls, becomes a rule of its own.
bool GrammarCompiler::StandsAlone(uint32_t index) const {
  const Form& form = forms_[index];
  const Kind kind = all_.nodes[index].kind;
  if (form.counted || kind == Kind::kAnyOrder) return true;
  if (form.regular) return form.loops || form.size > kInlineSize;
  if (kind == Kind::kCall || kind == Kind::kToken || kind == Kind::kAnyText) return false;
  return form.uses > 1 && form.size > kInlineSize;
}

uint32_t GrammarCompiler::Label(EdgeKind kind, uint32_t id) {
  const auto next = static_cast<uint32_t>(256 + symbols_.size());
  const auto [found, is_new] =
      labels_.try_emplace(uint64_t{id} << 8 | static_cast<uint64_t>(kind), next);
  if (is_new) symbols_.push_back({kind, id});
  return found->second;
}

uint32_t GrammarCompiler::RuleOfName(uint32_t rule) {
  const auto [found, is_new] =
      rule_of_name_.try_emplace(rule, static_cast<uint32_t>(rules_.size()));
  if (is_new) {
    rules_.push_back({.body = all_.rules[rule].body, .name = all_.rules[rule].name});
  }
  return found->second;
}

uint32_t GrammarCompiler::RuleOfExpr(uint32_t expr) {
  const auto [found, is_new] =
      rule_of_expr_.try_emplace(expr, static_cast<uint32_t>(rules_.size()));
  if (is_new) {
    std::string name = rules_[compiling_].name;
    rules_.push_back({.body = expr, .name = std::move(name)});
  }
  return found->second;
}

Result<Dfa> GrammarCompiler::MakeDfa(uint32_t expr, Mode mode) {
  if (mode == Mode::kUnrolled && forms_[expr].dfa) return *forms_[expr].dfa;
  Nfa nfa;
  const uint32_t start = nfa.Add();
  const uint32_t accept = nfa.Add();
  jobs_ = {{expr, start, accept}};
  bool outermost = true;
  int64_t counted = 0;  // states that the budget was charged for
  while (!jobs_.empty()) {
    const Job job = jobs_.back();
    jobs_.pop_back();
    const bool never_inline =
        forms_[job.expr].counted || all_.nodes[job.expr].kind == Kind::kAnyOrder;
    if (mode == Mode::kUnrolled && forms_[job.expr].counted_text && !forms_[job.expr].dfa) {
      std::vector<Job> others = std::move(jobs_);  // the parts are made on the way
      BT_ASSIGN_OR_RETURN(forms_[job.expr].dfa, UnrollLength(all_.nodes[job.expr]));
      jobs_ = std::move(others);
    }
    if (mode == Mode::kMixed && (never_inline || (!outermost && StandsAlone(job.expr)))) {
      const ExprNode& node = all_.nodes[job.expr];
      const uint32_t rule =
          node.kind == Kind::kCall ? RuleOfName(node.symbol) : RuleOfExpr(job.expr);
      const uint32_t label = Label(EdgeKind::kCall, rule);
      nfa.states[job.from].edges.push_back({label, label, job.to});
    } else {
      BT_RETURN_IF_ERROR(EmitNode(nfa, job.expr, job.from, job.to));
    }
    outermost = false;
    const auto made = static_cast<int64_t>(nfa.states.size());
    if (!budget_.Take(1 + made - counted) || made > 2 * kUnrolledMax) {
      if (budget_.spent()) return budget_.Failure(kTooComplex);
      return TooMany("max_states", limits_.max_states);
    }
    counted = made;
  }
  return Determinise(nfa, start, accept, budget_);
}

// Adds ways from `from` to `to`. Nothing added leads into `from` or out of `to`.
Status GrammarCompiler::EmitNode(Nfa& nfa, uint32_t expr, uint32_t from, uint32_t to) {
  const ExprNode& node = all_.nodes[expr];
  const auto edge = [&](uint32_t first, uint32_t last) {
    nfa.states[from].edges.push_back({first, last, to});
  };
  if (forms_[expr].dfa) {
    const Dfa& dfa = *forms_[expr].dfa;
    const auto base = static_cast<uint32_t>(nfa.states.size());
    nfa.states.resize(nfa.states.size() + dfa.states.size());
    nfa.states[from].free.push_back(base);
    for (size_t i = 0; i < dfa.states.size(); ++i) {
      Nfa::State& copy = nfa.states[base + i];
      copy.edges = dfa.states[i].edges;
      for (LabelEdge& one : copy.edges) one.target += base;
      if (dfa.states[i].accept) copy.free.push_back(to);
    }
    return {};
  }
  switch (node.kind) {
    case Kind::kNothing:
      break;
    case Kind::kLiteral: {
      if (node.text.empty()) nfa.states[from].free.push_back(to);
      uint32_t at = from;
      for (size_t i = 0; i < node.text.size(); ++i) {
        const auto byte = static_cast<unsigned char>(node.text[i]);
        const uint32_t next = i + 1 < node.text.size() ? nfa.Add() : to;
        nfa.states[at].edges.push_back({byte, byte, next});
        at = next;
      }
      break;
    }
    case Kind::kBytes:
      edge(node.first, node.last);
      break;
    case Kind::kSequence: {
      uint32_t at = from;
      for (size_t i = 0; i < node.parts.size(); ++i) {
        const uint32_t next = i + 1 < node.parts.size() ? nfa.Add() : to;
        jobs_.push_back({node.parts[i], at, next});
        at = next;
      }
      break;
    }
    case Kind::kChoice:
      for (const uint32_t part : node.parts) jobs_.push_back({part, from, to});
      break;
    case Kind::kRepeat:
      EmitRepeat(nfa, node, from, to);
      break;
    case Kind::kCall: {
      if (forms_[expr].inlined) {
        jobs_.push_back({all_.rules[node.symbol].body, from, to});
        break;
      }
      const uint32_t label = Label(EdgeKind::kCall, RuleOfName(node.symbol));
      edge(label, label);
      break;
    }
    case Kind::kToken: {
      const uint32_t label = Label(EdgeKind::kToken, node.symbol);
      edge(label, label);
      break;
    }
    case Kind::kAnyText: {
      const uint32_t label = Label(EdgeKind::kAnyText, 0);
      edge(label, label);
      break;
    }
    case Kind::kOfLength:
      BT_CHECK(node.parts.size() > 2);  // else it has an automaton, or stands alone
      jobs_.push_back({node.parts[2], from, to});
      break;
    case Kind::kCodePoints:
    case Kind::kAutomaton:
    case Kind::kAnd:
    case Kind::kNot:
    case Kind::kAnyOrder:
      BT_CHECK(false);  // have an automaton, or stand alone
  }
  return {};
}

void GrammarCompiler::EmitRepeat(Nfa& nfa, const ExprNode& node, uint32_t from, uint32_t to) {
  const uint32_t part = node.parts[0];
  uint32_t at = from;
  const auto once = [&] {
    const uint32_t next = nfa.Add();
    jobs_.push_back({part, at, next});
    at = next;
  };
  for (int64_t i = 0; i < node.min; ++i) once();
  if (node.max == GrammarBuilder::kUnbounded) {
    const uint32_t loop = nfa.Add();
    const uint32_t back = nfa.Add();
    nfa.states[at].free.push_back(loop);
    jobs_.push_back({part, loop, back});
    nfa.states[back].free.push_back(loop);
    nfa.states[loop].free.push_back(to);
    return;
  }
  for (int64_t i = node.min; i < node.max; ++i) {
    nfa.states[at].free.push_back(to);
    once();
  }
  nfa.states[at].free.push_back(to);
}

Status GrammarCompiler::CompileRule(uint32_t index) {
  compiling_ = index;
  const uint32_t body = rules_[index].body;
  const Form& form = forms_[body];
  const ExprNode& node = all_.nodes[body];
  TempRule made;  // rules_ may grow meanwhile
  if (form.counted_text) {
    CompileCountedText(made, all_.nodes[node.parts[1]], *form.counted_text);
  } else if (form.counted) {
    BT_RETURN_IF_ERROR(CompileCounter(made, node));
  } else if (node.kind == Kind::kAnyOrder) {
    BT_RETURN_IF_ERROR(CompileAnyOrder(made, node));
  } else {
    const Mode mode = form.regular ? Mode::kUnrolled : Mode::kMixed;
    BT_ASSIGN_OR_RETURN(const Dfa dfa, MakeDfa(body, mode));
    for (const Dfa::State& state : dfa.states) {
      TempState& copy = made.states.emplace_back();
      copy.accept = state.accept ? Accept::kYes : Accept::kNo;
      for (const LabelEdge& edge : state.edges) copy.edges.push_back({.edge = edge});
    }
  }
  rules_[index].rule = made.rule;
  rules_[index].states = std::move(made.states);
  return {};
}

Status GrammarCompiler::CompileCounter(TempRule& out, const ExprNode& node) {
  const uint32_t part = node.parts[0];
  BT_ASSIGN_OR_RETURN(const Dfa dfa,
                      MakeDfa(part, forms_[part].regular ? Mode::kUnrolled : Mode::kMixed));
  out.rule.kind = RuleKind::kCounter;
  // Where the part can be empty, the least count is reached by empty ones.
  out.rule.min = dfa.states[0].accept ? 0 : node.min;
  out.rule.max = node.max;
  out.states.emplace_back().accept = Accept::kRegister;
  const uint32_t hubs[] = {0};
  AppendFragment(out, dfa, hubs, 0, Action::kCount, 0);
  return {};
}

Status GrammarCompiler::JudgeLength(const ExprNode& node, Form& form) {
  if (!form.pure) {
    return InvalidArgument("a length is that of a regular expression: no rules, no tokens");
  }
  const Form* exact = node.parts.size() > 2 ? &forms_[node.parts[2]] : nullptr;
  std::optional<CountedText> text;
  const ExprNode& repeat = all_.nodes[node.parts[1]];
  if (exact == nullptr || exact->full <= kComparedSize) {
    BT_ASSIGN_OR_RETURN(const Dfa whole, MakeDfa(node.parts[0], Mode::kUnrolled));
    BT_ASSIGN_OR_RETURN(const Dfa unit, MakeDfa(repeat.parts[0], Mode::kUnrolled));
    BT_ASSIGN_OR_RETURN(text, CountUnits(whole, unit, repeat.min, repeat.max, budget_));
  }
  if (exact != nullptr && text) {
    BT_ASSIGN_OR_RETURN(const Dfa meant, MakeDfa(node.parts[2], Mode::kUnrolled));
    BT_ASSIGN_OR_RETURN(const Dfa loose, MakeDfa(node.parts[0], Mode::kUnrolled));
    BT_ASSIGN_OR_RETURN(const Dfa lengths, MakeDfa(node.parts[1], Mode::kUnrolled));
    BT_ASSIGN_OR_RETURN(const Dfa made, Intersect(loose, lengths, budget_));
    if (!SameLanguage(meant, made)) text.reset();
  }
  if (exact != nullptr && !text) {  // stands for its last part
    form.regular = exact->regular;
    form.loops = exact->loops;
    form.full = exact->full;
    return {};
  }
  if (text && !text->states.empty()) {
    form.regular = false;
    form.counted = true;
    form.loops = true;
    form.counted_text = std::make_shared<const CountedText>(std::move(*text));
    return {};
  }
  BT_ASSIGN_OR_RETURN(form.dfa, UnrollLength(node));
  form.regular = true;
  form.loops = true;
  return {};
}

Result<Dfa> GrammarCompiler::UnrollLength(const ExprNode& node) {
  if (node.parts.size() > 2) return MakeDfa(node.parts[2], Mode::kUnrolled);
  BT_ASSIGN_OR_RETURN(const Dfa text, MakeDfa(node.parts[0], Mode::kUnrolled));
  BT_ASSIGN_OR_RETURN(const Dfa lengths, MakeDfa(node.parts[1], Mode::kUnrolled));
  return Intersect(text, lengths, budget_);
}

void GrammarCompiler::CompileCountedText(TempRule& out,
                                         const ExprNode& repeat,
                                         const CountedText& text) {
  out.rule.kind = RuleKind::kCounter;
  out.rule.min = repeat.min <= text.least ? 0 : repeat.min;
  out.rule.max = repeat.max;
  for (const CountedText::State& state : text.states) {
    TempState& copy = out.states.emplace_back();
    copy.accept = state.accept ? Accept::kRegister : Accept::kNo;
    const Action action = state.between_units ? Action::kCount : Action::kNone;
    for (const LabelEdge& edge : state.edges) {
      copy.edges.push_back({.edge = edge, .action = action});
    }
  }
}

Status GrammarCompiler::CompileAnyOrder(TempRule& out, const ExprNode& node) {
  const Expressions::AnyOrder& order = all_.any_orders[node.symbol];
  CompiledGrammar::Rule& rule = out.rule;
  const auto members = static_cast<uint32_t>(order.required.size());
  rule.kind = RuleKind::kItems;
  rule.min = std::max<int64_t>(0, order.min_total);
  rule.max = order.max_total;
  rule.members = members;
  rule.extras = static_cast<uint32_t>(order.items.size()) - members;
  // The start, after an item, after a separator.
  out.states.resize(3);
  if (rule.max >= 0 && rule.max < rule.min) {
    rule.max = rule.min;
    out.states.resize(1);
    return {};
  }
  if (rule.max > kRepeatMax || rule.min > kRepeatMax) {
    return InvalidArgument("more than 1000000000 members are not supported");
  }
  out.states[0].accept = Accept::kRegister;
  out.states[1].accept = Accept::kRegister;
  for (uint32_t i = 0; i < members; ++i) {
    if (order.required[i]) rule.required[i / 64] |= uint64_t{1} << (i % 64);
  }
  BT_ASSIGN_OR_RETURN(const Dfa separator, MakeDfa(order.separator, Mode::kMixed));
  const uint32_t after_item[] = {1};
  AppendFragment(out, separator, after_item, 2, Action::kSeparator, 0);
  // Texts within items become rules of their own, so that they are leaves.
  std::vector<uint32_t> hubs = {0, 2};
  if (separator.states[0].accept) hubs.push_back(1);
  for (uint32_t i = 0; i < order.items.size(); ++i) {
    BT_ASSIGN_OR_RETURN(const Dfa item, MakeDfa(order.items[i], Mode::kMixed));
    if (item.states[0].accept) return InvalidArgument("a member can be empty");
    AppendFragment(out, item, hubs, 1, Action::kItem, static_cast<uint16_t>(i));
  }
  return {};
}

// Adds the states of `dfa`, entered from each of `hubs` by an edge with the action, left to `end`.
// That the empty text is accepted is for the caller to see.
void GrammarCompiler::AppendFragment(TempRule& out,
                                     const Dfa& dfa,
                                     std::span<const uint32_t> hubs,
                                     uint32_t end,
                                     Action action,
                                     uint16_t item) {
  bool start_is_target = false;
  for (const Dfa::State& state : dfa.states) {
    for (const LabelEdge& edge : state.edges) start_is_target |= edge.target == 0;
  }
  std::vector<uint32_t> place(dfa.states.size(), end);
  for (size_t i = 0; i < dfa.states.size(); ++i) {
    const bool only_ends = dfa.states[i].accept && dfa.states[i].edges.empty();
    if (only_ends || (i == 0 && !start_is_target)) continue;
    place[i] = static_cast<uint32_t>(out.states.size());
    out.states.emplace_back();
  }
  const auto add = [&](uint32_t from, const Dfa::State& state, Action with) {
    for (const LabelEdge& edge : state.edges) {
      TempEdge copy{.edge = edge, .action = with, .item = item};
      copy.edge.target = place[edge.target];
      out.states[from].edges.push_back(copy);
      if (!dfa.states[edge.target].accept || copy.edge.target == end) continue;
      copy.edge.target = end;
      out.states[from].edges.push_back(copy);
    }
  };
  for (const uint32_t hub : hubs) add(hub, dfa.states[0], action);
  for (size_t i = 0; i < dfa.states.size(); ++i) {
    if (place[i] != end) add(place[i], dfa.states[i], Action::kNone);
  }
}

CompiledGrammar GrammarCompiler::Assemble() const {
  CompiledGrammar grammar;
  grammar.max_depth = std::clamp(limits_.max_depth, 0, CompiledGrammar::kMaxDepth - 1);
  uint32_t items = 0;
  for (const TempRule& temp : rules_) {
    const auto base = static_cast<uint32_t>(grammar.states.size());
    CompiledGrammar::Rule rule = temp.rule;
    rule.first_state = base;
    rule.first_item = items;
    items += rule.members + rule.extras;
    grammar.rules.push_back(rule);
    for (const TempState& state : temp.states) {
      grammar.states.push_back(
          {.first_edge = static_cast<uint32_t>(grammar.edges.size()), .accept = state.accept});
      for (const TempEdge& one : state.edges) {
        CompiledGrammar::Edge edge{.action = one.action, .item = one.item};
        edge.target = base + one.edge.target;
        if (one.edge.first <= 255) {
          edge.first = static_cast<uint8_t>(one.edge.first);
          edge.last = static_cast<uint8_t>(std::min(one.edge.last, 255u));
          grammar.edges.push_back(edge);
        }
        edge.first = edge.last = 0;
        for (uint32_t label = std::max(one.edge.first, 256u); label <= one.edge.last; ++label) {
          edge.kind = symbols_[label - 256].kind;
          edge.symbol = symbols_[label - 256].id;
          grammar.edges.push_back(edge);
        }
      }
    }
  }
  grammar.states.push_back({.first_edge = static_cast<uint32_t>(grammar.edges.size())});
  return grammar;
}

Result<Grammar> CompileExpressions(const Expressions& expressions,
                                   uint32_t start,
                                   const GrammarLimits& limits) {
  return GrammarCompiler(expressions, limits).Compile(start);
}

}  // namespace baltoro
