#include <algorithm>
#include <string>
#include <vector>

#include "grammar/grammar_compiler.h"

namespace baltoro {

namespace {

using Kind = ExprNode::Kind;

constexpr int kRoundsMax = 64;

class LeftRecursion {
 public:
  LeftRecursion(const Expressions& all, const std::vector<uint32_t>& order)
      : all_(all),
        order_(order),
        dead_(all.nodes.size()),
        empty_(all.nodes.size()),
        mark_(all.nodes.size(), Mark::kNew) {}

  // A rule that calls itself first; null if there is none.
  const std::string* Find() {
    for (const uint32_t expr : order_) dead_[expr] = IsDead(all_.nodes[expr]);
    // Parts and callees come first, so that only circles of calls take more than one round.
    bool changed = true;
    for (int round = 0; changed && round < kRoundsMax; ++round) {
      changed = false;
      for (const uint32_t expr : order_) {
        if (empty_[expr] || !CanBeEmpty(all_.nodes[expr])) continue;
        empty_[expr] = true;
        changed = true;
      }
    }
    for (const uint32_t expr : order_) {
      if (const std::string* name = FindFrom(expr)) return name;
    }
    return nullptr;
  }

 private:
  enum class Mark : uint8_t { kNew, kOnPath, kDone };

  // Matches nothing, as far as can be seen without following calls.
  bool IsDead(const ExprNode& node) const {
    const auto dead = [&](uint32_t part) { return bool{dead_[part]}; };
    switch (node.kind) {
      case Kind::kNothing:
        return true;
      case Kind::kSequence:
        return std::any_of(node.parts.begin(), node.parts.end(), dead);
      case Kind::kChoice:
        return std::all_of(node.parts.begin(), node.parts.end(), dead);
      case Kind::kRepeat:
        return node.min > 0 && dead(node.parts[0]);
      default:
        return false;
    }
  }

  // False where only an automaton would tell.
  bool CanBeEmpty(const ExprNode& node) const {
    const auto empty = [&](uint32_t part) { return bool{empty_[part]}; };
    switch (node.kind) {
      case Kind::kLiteral:
        return node.text.empty();
      case Kind::kSequence:
        return std::all_of(node.parts.begin(), node.parts.end(), empty);
      case Kind::kChoice:
        return std::any_of(node.parts.begin(), node.parts.end(), empty);
      case Kind::kRepeat:
        return node.min == 0 || empty(node.parts[0]);
      case Kind::kCall:
        return empty(all_.rules[node.symbol].body);
      case Kind::kAnyOrder: {
        const auto& required = all_.any_orders[node.symbol].required;
        return all_.any_orders[node.symbol].min_total <= 0 &&
               std::find(required.begin(), required.end(), true) == required.end();
      }
      default:
        return false;
    }
  }

  // The `next`-th expression with which the node can begin; false if there are no more.
  bool First(const ExprNode& node, size_t next, uint32_t& part) const {
    switch (node.kind) {
      case Kind::kCall:
        part = all_.rules[node.symbol].body;
        return next == 0;
      case Kind::kSequence:
        if (next > 0 && next <= node.parts.size() && !empty_[node.parts[next - 1]]) return false;
        break;
      case Kind::kChoice:
      case Kind::kRepeat:
        break;
      case Kind::kAnyOrder: {
        const Expressions::AnyOrder& order = all_.any_orders[node.symbol];
        if (order.max_total == 0 || next >= order.items.size()) return false;
        part = order.items[next];
        return true;
      }
      default:
        return false;
    }
    if (next >= node.parts.size()) return false;
    part = node.parts[next];
    return true;
  }

  const std::string* FindFrom(uint32_t start) {
    if (mark_[start] != Mark::kNew || dead_[start]) return nullptr;
    struct Visit {
      uint32_t expr;
      size_t next;
    };
    std::vector<Visit> path = {{start, 0}};
    mark_[start] = Mark::kOnPath;
    while (!path.empty()) {
      uint32_t part = 0;
      Visit& visit = path.back();
      if (!First(all_.nodes[visit.expr], visit.next++, part)) {
        mark_[visit.expr] = Mark::kDone;
        path.pop_back();
        continue;
      }
      if (dead_[part] || mark_[part] == Mark::kDone) continue;
      if (mark_[part] == Mark::kNew) {
        mark_[part] = Mark::kOnPath;
        path.push_back({part, 0});
        continue;
      }
      // Parts come before their wholes, so that a call is among what leads back.
      for (size_t i = path.size(); i-- > 0;) {
        const ExprNode& node = all_.nodes[path[i].expr];
        if (node.kind == Kind::kCall) return &all_.rules[node.symbol].name;
      }
    }
    return nullptr;
  }

  const Expressions& all_;
  const std::vector<uint32_t>& order_;
  std::vector<bool> dead_, empty_;
  std::vector<Mark> mark_;
};

}  // namespace

Status RefuseLeftRecursion(const Expressions& expressions, const std::vector<uint32_t>& order) {
  const std::string* name = LeftRecursion(expressions, order).Find();
  if (name == nullptr) return {};
  return InvalidArgument("the rule \"" + *name + "\" calls itself before it reads anything");
}

}  // namespace baltoro
