#include "grammar/leaf_profile.h"

#include <algorithm>

#include "grammar/key_hash.h"

namespace baltoro {

namespace {

using Accept = CompiledGrammar::Accept;
using Action = CompiledGrammar::Action;
using Edge = CompiledGrammar::Edge;

constexpr size_t kExitsMax = 100'000;
constexpr uint32_t kNoState = UINT32_MAX;

bool IsPlainByte(int byte) {
  return byte >= 0x20 && byte != '"' && byte != '\\';
}

class ProfileMaker {
 public:
  ProfileMaker(const CompiledGrammar& grammar, uint32_t state, const TokenTrie& trie)
      : g_(grammar), rule_(g_.rules[g_.states[state].rule]), start_(state), trie_(trie) {
    const uint32_t index = g_.states[state].rule;
    const uint32_t end = index + 1 < g_.rules.size() ? g_.rules[index + 1].first_state
                                                     : static_cast<uint32_t>(g_.states.size() - 1);
    closed_.assign(end - rule_.first_state, kUnknown);
    counted_ = rule_.kind == CompiledGrammar::RuleKind::kCounter;
    for (int byte = 0; byte < 256; ++byte) {
      if (rule_.follow[byte] && IsPlainByte(byte)) follow_has_plain_ = true;
    }
  }

  std::shared_ptr<const LeafProfile> Make() {
    made_ = std::make_shared<LeafProfile>();
    made_->inside.resize(trie_.words());
    if (Walk(trie_.plain(), true) && Walk(trie_.rest(), false)) {
      Finish();
    } else {
      made_ = std::make_shared<LeafProfile>();
      made_->too_many_exits = true;
    }
    return made_;
  }

 private:
  static constexpr int8_t kUnknown = -1;

  struct Place {
    uint32_t state = 0;
    uint16_t repetitions = 0;
    uint16_t characters = 0;
  };

  const Edge* Next(uint32_t state, uint8_t byte) const {
    for (const Edge& edge : g_.EdgesOf(state)) {
      if (byte < edge.first) break;
      if (byte <= edge.last) return &edge;
    }
    return nullptr;
  }

  void AddInside(TokenId token, uint16_t repetitions) {
    SetBit(made_->inside, token);
    if (counted_) by_count_.emplace_back(repetitions, token);
  }

  // False: too many exits.
  bool Walk(const ByteTrie& trie, bool plain) {
    std::vector<Place> path(ByteTrie::kBytesMax + 1);
    path[0] = {.state = start_};
    const auto& nodes = trie.nodes;
    for (uint32_t at = 1; at < nodes.size();) {
      const ByteTrie::Node& node = nodes[at];
      const Place& from = path[node.depth - 1];
      // Leaving before anything is read is not this leaf's business.
      if (node.depth > 1 && rule_.follow[node.byte] &&
          g_.states[from.state].accept != Accept::kNo && !AddExits(trie, at, from)) {
        return false;
      }
      const Edge* edge = Next(from.state, node.byte);
      if (edge == nullptr) {
        at = node.end;
        continue;
      }
      Place& place = path[node.depth];
      place.state = edge->target;
      place.repetitions =
          static_cast<uint16_t>(from.repetitions + (edge->action == Action::kCount));
      place.characters = static_cast<uint16_t>(from.characters + ((node.byte & 0xC0) != 0x80));
      if (plain && TakesAnyPlain(place.state)) {
        TakeAll(trie, at, place);
        at = node.end;
        continue;
      }
      for (uint32_t i = node.first_token; i < node.end_token; ++i) {
        AddInside(trie.tokens[i], place.repetitions);
      }
      ++at;
    }
    return true;
  }

  bool AddExits(const ByteTrie& trie, uint32_t node, const Place& from) {
    const uint32_t end = trie.TokensEnd(node);
    const size_t depth = trie.nodes[node].depth - 1u;
    for (uint32_t i = trie.nodes[node].first_token; i < end; ++i) {
      if (made_->exit_tokens.size() >= kExitsMax) return false;
      const auto index = static_cast<TokenId>(made_->exit_tokens.size());
      made_->exit_tokens.push_back({trie.tokens[i], from.repetitions});
      exits_.push_back({trie_.TokenBytes(trie.tokens[i]).substr(depth), index});
    }
    return true;
  }

  // All tokens at or below the node are made of plain characters.
  void TakeAll(const ByteTrie& trie, uint32_t node, const Place& place) {
    const uint32_t end = trie.TokensEnd(node);
    for (uint32_t i = trie.nodes[node].first_token; i < end; ++i) {
      const int more = counted_ ? trie_.plain_characters()[i] - place.characters : 0;
      AddInside(trie.tokens[i], static_cast<uint16_t>(place.repetitions + more));
    }
  }

  // From the state every plain character leads back to it, as one repetition where those are
  // counted, and there is no way out before one.
  bool TakesAnyPlain(uint32_t state) {
    int8_t& known = closed_[state - rule_.first_state];
    if (known == kUnknown) known = FindTakesAnyPlain(state) ? 1 : 0;
    return known == 1;
  }

  bool FindTakesAnyPlain(uint32_t state) const {
    if (g_.states[state].accept != Accept::kNo && follow_has_plain_) return false;
    struct Span {
      int first, last;            // lead bytes
      int next_first, next_last;  // the byte after
      int length;
    };
    constexpr Span kSpans[] = {
        {0x20, 0x21, 0, 0, 1},       {0x23, 0x5B, 0, 0, 1},       {0x5D, 0x7F, 0, 0, 1},
        {0xC2, 0xDF, 0x80, 0xBF, 2}, {0xE0, 0xE0, 0xA0, 0xBF, 3}, {0xE1, 0xEC, 0x80, 0xBF, 3},
        {0xED, 0xED, 0x80, 0x9F, 3}, {0xEE, 0xEF, 0x80, 0xBF, 3}, {0xF0, 0xF0, 0x90, 0xBF, 4},
        {0xF1, 0xF3, 0x80, 0xBF, 4}, {0xF4, 0xF4, 0x80, 0x8F, 4}};
    for (const Span& span : kSpans) {
      for (int lead = span.first; lead <= span.last; ++lead) {
        const Edge* edge = Next(state, static_cast<uint8_t>(lead));
        if (edge == nullptr || (edge->action == Action::kCount) != counted_) return false;
        if (!Returns(edge->target, state, span.length - 1, span.next_first, span.next_last)) {
          return false;
        }
      }
    }
    return true;
  }

  // Whether all `bytes` further bytes, of which the first is in the range, lead to `home`.
  bool Returns(uint32_t at, uint32_t home, int bytes, int first, int last) const {
    if (bytes == 0) return at == home;
    int next = first;
    for (const Edge& edge : g_.EdgesOf(at)) {
      if (edge.last < next || edge.first > last) continue;
      if (edge.first > next || edge.action != Action::kNone) return false;
      if (!Returns(edge.target, home, bytes - 1, 0x80, 0xBF)) return false;
      next = edge.last + 1;
    }
    return next > last;
  }

  void Finish() {
    made_->exits = ByteTrie::Make(std::move(exits_));
    if (!counted_) return;
    std::stable_sort(by_count_.begin(), by_count_.end(),
                     [](const auto& a, const auto& b) { return a.first < b.first; });
    made_->up_to.resize(LeafProfile::kUpTo);
    TokenBits bits(trie_.words());
    size_t at = 0;
    for (int count = 0; count < LeafProfile::kUpTo; ++count) {
      for (; at < by_count_.size() && by_count_[at].first <= count; ++at) {
        SetBit(bits, by_count_[at].second);
      }
      made_->up_to[static_cast<size_t>(count)] = bits;
    }
    made_->beyond.assign(by_count_.begin() + static_cast<std::ptrdiff_t>(at), by_count_.end());
  }

  const CompiledGrammar& g_;
  const CompiledGrammar::Rule& rule_;
  const uint32_t start_;
  const TokenTrie& trie_;
  bool counted_ = false;
  bool follow_has_plain_ = false;
  std::vector<int8_t> closed_;  // by state of the rule: TakesAnyPlain, once known
  std::shared_ptr<LeafProfile> made_;
  std::vector<std::pair<uint16_t, TokenId>> by_count_;
  std::vector<ByteTrie::Entry> exits_;
};

}  // namespace

int64_t LeafProfile::num_bytes() const {
  size_t words = inside.size();
  for (const TokenBits& bits : up_to) words += bits.size();
  return static_cast<int64_t>(words * sizeof(uint32_t) + beyond.size() * sizeof(beyond[0]) +
                              exit_tokens.size() * sizeof(Exit)) +
         exits.num_bytes();
}

void LeafProfile::AddInside(int64_t left, std::span<uint32_t> bits) const {
  const bool bounded =
      !up_to.empty() && (left < kUpTo || (!beyond.empty() && left < beyond.back().first));
  const TokenBits& from =
      bounded ? up_to[static_cast<size_t>(std::min<int64_t>(left, kUpTo - 1))] : inside;
  for (size_t i = 0; i < bits.size(); ++i) bits[i] |= from[i];
  if (!bounded || left < kUpTo) return;
  for (const auto& [count, token] : beyond) {
    if (count > left) break;
    SetBit(bits, token);
  }
}

std::shared_ptr<const LeafProfile> LeafProfile::Get(const CompiledGrammar& grammar,
                                                    uint32_t state,
                                                    const TokenTrie& trie,
                                                    MaskStore& store) {
  const CompiledGrammar::Rule& rule = grammar.rules[grammar.states[state].rule];
  KeyHash key(0x70726F66u);
  key.Add(rule.content.low);
  key.Add(rule.content.high);
  key.Add(state - rule.first_state);
  if (auto found = store.Find(key.key())) {
    return std::static_pointer_cast<const LeafProfile>(std::move(found));
  }
  auto made = ProfileMaker(grammar, state, trie).Make();
  store.Keep(key.key(), made);
  return made;
}

}  // namespace baltoro
