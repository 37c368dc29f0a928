#include "grammar/compiled_grammar.h"

#include <utility>

#include "request/wire.h"

namespace baltoro {

namespace {

constexpr uint32_t kMagic = 0x4D475442;  // "BTGM"
constexpr uint16_t kVersion = 1;

Status Damaged(const char* what) {
  return InvalidArgument(std::string("the grammar is damaged: ") + what);
}

}  // namespace

int64_t CompiledGrammar::num_bytes() const {
  return static_cast<int64_t>(edges.size() * sizeof(Edge) + states.size() * sizeof(State) +
                              rules.size() * sizeof(Rule) + item_heights.size() +
                              state_bytes.size() * sizeof(state_bytes[0]));
}

std::string CompiledGrammar::Serialise() const {
  WireWriter writer;
  writer.Put(kMagic);
  writer.Put(kVersion);
  writer.Put(static_cast<uint16_t>(max_depth));
  writer.Put(static_cast<uint32_t>(rules.size()));
  for (const Rule& rule : rules) {
    writer.Put(rule.kind);
    writer.Put(rule.first_state);
    writer.Put(rule.min);
    writer.Put(rule.max);
    writer.Put(rule.first_item);
    writer.Put(rule.members);
    writer.Put(rule.extras);
    for (const uint64_t word : rule.required) writer.Put(word);
  }
  writer.Put(static_cast<uint32_t>(states.size()));
  for (const State& state : states) {
    writer.Put(state.first_edge);
    writer.Put(state.accept);
  }
  writer.Put(static_cast<uint32_t>(edges.size()));
  for (const Edge& edge : edges) {
    writer.Put(edge.kind);
    writer.Put(edge.action);
    writer.Put(edge.first);
    writer.Put(edge.last);
    writer.Put(edge.item);
    writer.Put(edge.symbol);
    writer.Put(edge.target);
  }
  return writer.Take();
}

Result<CompiledGrammar> CompiledGrammar::Parse(std::string_view bytes) {
  WireReader reader(bytes);
  if (reader.Get<uint32_t>() != kMagic || reader.Get<uint16_t>() != kVersion) {
    return Damaged("it is none, or of another version");
  }
  CompiledGrammar out;
  out.max_depth = reader.Get<uint16_t>();
  out.rules.resize(reader.GetCount(65));
  for (Rule& rule : out.rules) {
    rule.kind = reader.GetEnum(RuleKind::kItems);
    rule.first_state = reader.Get<uint32_t>();
    rule.min = reader.Get<int64_t>();
    rule.max = reader.Get<int64_t>();
    rule.first_item = reader.Get<uint32_t>();
    rule.members = reader.Get<uint32_t>();
    rule.extras = reader.Get<uint32_t>();
    for (uint64_t& word : rule.required) word = reader.Get<uint64_t>();
  }
  out.states.resize(reader.GetCount(5));
  for (State& state : out.states) {
    state.first_edge = reader.Get<uint32_t>();
    state.accept = reader.GetEnum(Accept::kRegister);
  }
  out.edges.resize(reader.GetCount(14));
  for (Edge& edge : out.edges) {
    edge.kind = reader.GetEnum(EdgeKind::kAnyText);
    edge.action = reader.GetEnum(Action::kSeparator);
    edge.first = reader.Get<uint8_t>();
    edge.last = reader.Get<uint8_t>();
    edge.item = reader.Get<uint16_t>();
    edge.symbol = reader.Get<uint32_t>();
    edge.target = reader.Get<uint32_t>();
  }
  BT_RETURN_IF_ERROR(reader.Finish("grammar"));
  BT_RETURN_IF_ERROR(out.Derive());
  return out;
}

Status CompiledGrammar::Check() const {
  if (max_depth < 0 || max_depth >= kMaxDepth) return Damaged("its depth");
  if (rules.empty() || states.size() < 2) return Damaged("it has no rule");
  if (states.size() > (1u << 24) || edges.size() > (1u << 26)) return Damaged("its size");
  const auto last_state = static_cast<uint32_t>(states.size() - 1);
  if (rules[0].first_state != 0) return Damaged("the start");
  uint64_t items = 0;
  for (size_t i = 0; i < rules.size(); ++i) {
    const Rule& rule = rules[i];
    const uint32_t end = i + 1 < rules.size() ? rules[i + 1].first_state : last_state;
    if (rule.first_state >= end || end > last_state) return Damaged("the order of rules");
    if (rule.min < 0 || rule.max < -1 || rule.max > UINT32_MAX / 2 || rule.min > UINT32_MAX / 2 ||
        (rule.max >= 0 && rule.max < rule.min)) {
      return Damaged("the bounds of a rule");
    }
    if (rule.members > kItemsMax || rule.extras > kItemsMax || rule.first_item != items) {
      return Damaged("the items of a rule");
    }
    items += rule.members + rule.extras;
    for (uint32_t item = 0; item < kItemsMax; ++item) {
      if (item >= rule.members && (rule.required[item / 64] >> (item % 64) & 1) != 0) {
        return Damaged("a required item");
      }
    }
    const bool items_rule = rule.kind == RuleKind::kItems;
    if (!items_rule && rule.members + rule.extras != 0) return Damaged("items of a plain rule");
    for (uint32_t state = rule.first_state; state < end; ++state) {
      if (states[state].first_edge > states[state + 1].first_edge ||
          states[state + 1].first_edge > edges.size()) {
        return Damaged("the edges of a state");
      }
      if (states[state].accept == Accept::kRegister && rule.kind == RuleKind::kPlain) {
        return Damaged("a register that is not there");
      }
      for (const Edge& edge : EdgesOf(state)) {
        if (edge.target < rule.first_state || edge.target >= end) return Damaged("an edge's end");
        if (edge.kind == EdgeKind::kByte && edge.first > edge.last)
          return Damaged("an edge's bytes");
        if (edge.kind == EdgeKind::kCall && edge.symbol >= rules.size()) return Damaged("a call");
        if (edge.kind == EdgeKind::kToken && edge.symbol > INT32_MAX) return Damaged("a token");
        const bool fits =
            edge.action == Action::kNone ||
            (edge.action == Action::kCount ? rule.kind == RuleKind::kCounter : items_rule);
        if (!fits) return Damaged("an edge's action");
        if (edge.action == Action::kItem && edge.item >= rule.members + rule.extras) {
          return Damaged("an edge's item");
        }
      }
    }
  }
  if (states[0].first_edge != 0 || states[last_state].first_edge != edges.size()) {
    return Damaged("the count of edges");
  }
  return {};
}

}  // namespace baltoro
