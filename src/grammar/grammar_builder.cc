#include "grammar/grammar_builder.h"

#include <utility>

#include "base/check.h"
#include "base/keyed_hash.h"
#include "grammar/expressions.h"

namespace baltoro {

using Kind = ExprNode::Kind;

struct GrammarBuilder::State {
  GrammarLimits limits;
  Expressions all;
  std::unordered_map<std::string, Expr, KeyedStringHash> literals;

  Expr Add(ExprNode node) {
    for (const uint32_t part : node.parts) BT_CHECK(part < all.nodes.size());
    all.nodes.push_back(std::move(node));
    return static_cast<Expr>(all.nodes.size() - 1);
  }
};

namespace {

constexpr int64_t kCountedFrom = 8;  // shorter texts have few places

uint32_t Index(GrammarBuilder::Expr expr) {
  return static_cast<uint32_t>(expr);
}

std::vector<uint32_t> Indices(std::span<const GrammarBuilder::Expr> parts) {
  std::vector<uint32_t> out;
  out.reserve(parts.size());
  for (const GrammarBuilder::Expr part : parts) out.push_back(Index(part));
  return out;
}

}  // namespace

GrammarBuilder::GrammarBuilder(GrammarLimits limits) : state_(std::make_unique<State>()) {
  state_->limits = std::move(limits);
  // Expr 0, which a Members without separator has.
  state_->Add({.kind = Kind::kLiteral});
}

GrammarBuilder::~GrammarBuilder() = default;

const GrammarLimits& GrammarBuilder::limits() const {
  return state_->limits;
}

GrammarBuilder::Expr GrammarBuilder::Empty() {
  return Expr{0};
}

GrammarBuilder::Expr GrammarBuilder::Nothing() {
  return state_->Add({.kind = Kind::kNothing});
}

GrammarBuilder::Expr GrammarBuilder::Literal(std::string_view bytes) {
  if (bytes.empty()) return Empty();
  const auto [found, is_new] = state_->literals.try_emplace(std::string(bytes));
  if (is_new) found->second = state_->Add({.kind = Kind::kLiteral, .text = std::string(bytes)});
  return found->second;
}

GrammarBuilder::Expr GrammarBuilder::Bytes(uint8_t first, uint8_t last) {
  if (first > last) return Nothing();
  return state_->Add({.kind = Kind::kBytes, .first = first, .last = last});
}

GrammarBuilder::Expr GrammarBuilder::CodePoints(std::span<const CodePointRange> ranges) {
  return state_->Add({.kind = Kind::kCodePoints, .ranges = {ranges.begin(), ranges.end()}});
}

GrammarBuilder::Expr GrammarBuilder::Sequence(std::span<const Expr> parts) {
  if (parts.empty()) return Empty();
  if (parts.size() == 1) return parts[0];
  return state_->Add({.kind = Kind::kSequence, .parts = Indices(parts)});
}

GrammarBuilder::Expr GrammarBuilder::Choice(std::span<const Expr> branches) {
  if (branches.empty()) return Nothing();
  if (branches.size() == 1) return branches[0];
  return state_->Add({.kind = Kind::kChoice, .parts = Indices(branches)});
}

GrammarBuilder::Expr GrammarBuilder::Optional(Expr part) {
  const Expr branches[] = {Empty(), part};
  return Choice(branches);
}

GrammarBuilder::Expr GrammarBuilder::Repeat(Expr part, int64_t min, int64_t max) {
  if (min < 0) min = 0;
  if (max != kUnbounded && max < min) return Nothing();
  if (max == 0) return Empty();
  if (min == 1 && max == 1) return part;
  return state_->Add({.kind = Kind::kRepeat, .min = min, .max = max, .parts = {Index(part)}});
}

GrammarBuilder::Expr GrammarBuilder::Automaton(std::span<const ByteState> states) {
  BT_CHECK(!states.empty());
  Dfa dfa;
  dfa.states.resize(states.size());
  for (size_t i = 0; i < states.size(); ++i) {
    dfa.states[i].accept = states[i].accept;
    for (const ByteState::Edge& edge : states[i].edges) {
      BT_CHECK(edge.first <= edge.last && edge.target < states.size());
      dfa.states[i].edges.push_back({edge.first, edge.last, edge.target});
    }
  }
  state_->all.automata.push_back(std::move(dfa));
  ExprNode node{.kind = Kind::kAutomaton};
  node.symbol = static_cast<uint32_t>(state_->all.automata.size() - 1);
  return state_->Add(std::move(node));
}

GrammarBuilder::Rule GrammarBuilder::DeclareRule(std::string name) {
  state_->all.rules.push_back({.name = std::move(name)});
  return static_cast<Rule>(state_->all.rules.size() - 1);
}

void GrammarBuilder::DefineRule(Rule rule, Expr body) {
  Expressions::Rule& defined = state_->all.rules[static_cast<size_t>(rule)];
  BT_CHECK(!defined.defined && Index(body) < state_->all.nodes.size());
  defined.defined = true;
  defined.body = Index(body);
}

GrammarBuilder::Expr GrammarBuilder::Call(Rule rule) {
  BT_CHECK(static_cast<size_t>(rule) < state_->all.rules.size());
  return state_->Add({.kind = Kind::kCall, .symbol = static_cast<uint32_t>(rule)});
}

GrammarBuilder::Expr GrammarBuilder::Token(TokenId id) {
  BT_CHECK(id >= 0);
  return state_->Add({.kind = Kind::kToken, .symbol = static_cast<uint32_t>(id)});
}

GrammarBuilder::Expr GrammarBuilder::AnyText() {
  return state_->Add({.kind = Kind::kAnyText});
}

GrammarBuilder::Expr GrammarBuilder::AnyOrder(const Members& members) {
  BT_CHECK(members.members.size() <= 256 && members.extra.size() <= 256);
  Expressions::AnyOrder order;
  ExprNode node{.kind = Kind::kAnyOrder};
  node.symbol = static_cast<uint32_t>(state_->all.any_orders.size());
  for (const Member& member : members.members) {
    order.items.push_back(Index(member.item));
    order.required.push_back(member.required);
  }
  for (const Expr extra : members.extra) order.items.push_back(Index(extra));
  order.separator = Index(members.separator);
  order.min_total = members.min_total;
  order.max_total = members.max_total;
  node.parts = order.items;
  node.parts.push_back(order.separator);
  state_->all.any_orders.push_back(std::move(order));
  return state_->Add(std::move(node));
}

GrammarBuilder::Expr GrammarBuilder::And(Expr left, Expr right) {
  return state_->Add({.kind = Kind::kAnd, .parts = {Index(left), Index(right)}});
}

GrammarBuilder::Expr GrammarBuilder::Not(Expr part) {
  return state_->Add({.kind = Kind::kNot, .parts = {Index(part)}});
}

GrammarBuilder::Expr GrammarBuilder::OfLength(Expr text, Expr unit, int64_t min, int64_t max) {
  if (max < std::max<int64_t>(min, 0)) return Nothing();
  const Expr lengths = Repeat(unit, min, max);
  if (max < kCountedFrom) return And(text, lengths);
  return state_->Add({.kind = Kind::kOfLength, .parts = {Index(text), Index(lengths)}});
}

GrammarBuilder::Expr GrammarBuilder::AsLength(Expr exact, Expr loose, Expr unit, int64_t max) {
  if (max < kCountedFrom) return exact;
  const Expr lengths = Repeat(unit, 0, max);
  return state_->Add(
      {.kind = Kind::kOfLength, .parts = {Index(loose), Index(lengths), Index(exact)}});
}

Result<Grammar> GrammarBuilder::Build(Rule start) {
  return CompileExpressions(state_->all, static_cast<uint32_t>(start), state_->limits);
}

}  // namespace baltoro
