#include "grammar/leaf_profile.h"

#include <algorithm>
#include <array>
#include <optional>

#include "grammar/key_hash.h"

namespace baltoro {

namespace {

using Accept = CompiledGrammar::Accept;
using Action = CompiledGrammar::Action;
using Edge = CompiledGrammar::Edge;

constexpr size_t kExitsMax = 20'000;
constexpr uint32_t kNoEdge = UINT32_MAX;

class ProfileMaker {
 public:
  ProfileMaker(const CompiledGrammar& grammar, uint32_t state, const TokenTrie& trie)
      : g_(grammar), rule_(g_.rules[g_.states[state].rule]), start_(state), trie_(trie) {
    const uint32_t index = g_.states[state].rule;
    const uint32_t end = index + 1 < g_.rules.size() ? g_.rules[index + 1].first_state
                                                     : static_cast<uint32_t>(g_.states.size() - 1);
    loops_.resize(end - rule_.first_state);
    rows_.resize(end - rule_.first_state);
    counted_ = rule_.kind == CompiledGrammar::RuleKind::kCounter;
    for (int byte = 0; byte < 256; ++byte) {
      if (rule_.follow[byte]) follow_ |= uint64_t{1} << ByteClass(static_cast<uint8_t>(byte));
    }
  }

  std::shared_ptr<const LeafInside> MakeInside() {
    inside_ = std::make_shared<LeafInside>();
    inside_->all.resize(trie_.words());
    if (counted_) inside_->up_to.assign(LeafInside::kUpTo, TokenBits(trie_.words()));
    Walk(trie_.plain(), true);
    Walk(trie_.rest(), false);
    for (size_t count = 1; count < inside_->up_to.size(); ++count) {
      for (size_t i = 0; i < trie_.words(); ++i) {
        inside_->up_to[count][i] |= inside_->up_to[count - 1][i];
      }
    }
    std::sort(inside_->beyond.begin(), inside_->beyond.end());
    return inside_;
  }

  std::shared_ptr<const LeafExits> MakeExits() {
    exits_ = std::make_shared<LeafExits>();
    if (Walk(trie_.plain(), true) && Walk(trie_.rest(), false)) {
      exits_->rests = ByteTrie::Make(std::move(rests_));
    } else {
      exits_ = std::make_shared<LeafExits>();
      exits_->too_many = true;
    }
    return exits_;
  }

 private:
  struct Place {
    uint32_t state = 0;
    uint16_t repetitions = 0;
    uint16_t characters = 0;
  };

  // Where each byte leads from one state: an index into the grammar's edges.
  using Row = std::array<uint32_t, 256>;

  const Edge* Next(uint32_t state, uint8_t byte) {
    std::unique_ptr<Row>& row = rows_[state - rule_.first_state];
    if (row == nullptr) {
      row = std::make_unique<Row>();
      row->fill(kNoEdge);
      uint32_t index = g_.states[state].first_edge;
      for (const Edge& edge : g_.EdgesOf(state)) {
        std::fill(row->begin() + edge.first, row->begin() + edge.last + 1, index++);
      }
    }
    const uint32_t edge = (*row)[byte];
    return edge == kNoEdge ? nullptr : &g_.edges[edge];
  }

  void AddInside(TokenId token, uint32_t repetitions, uint32_t state) {
    SetBit(inside_->all, token);
    if (!counted_) return;
    repetitions += g_.states[state].needs;
    if (repetitions < LeafInside::kUpTo) {
      SetBit(inside_->up_to[repetitions], token);
    } else {
      inside_->beyond.emplace_back(repetitions, token);
    }
  }

  // False: too many exits.
  bool Walk(const ByteTrie& trie, bool whole_characters) {
    std::vector<Place> path(ByteTrie::kBytesMax + 1);
    path[0] = {.state = start_};
    const auto& nodes = trie.nodes;
    if (LoopsBelow(trie, 0, start_, whole_characters)) {
      TakeAll(trie, 0, path[0]);
      return true;
    }
    for (uint32_t at = 1; at < nodes.size();) {
      const ByteTrie::Node& node = nodes[at];
      const Place& from = path[node.depth - 1];
      // Leaving before anything is read is not this leaf's business.
      if (exits_ != nullptr && node.depth > 1 && rule_.follow[node.byte] &&
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
      if (LoopsBelow(trie, at, place.state, whole_characters)) {
        TakeAll(trie, at, place);
        at = node.end;
        continue;
      }
      if (inside_ != nullptr) {
        for (uint32_t i = node.first_token; i < node.end_token; ++i) {
          AddInside(trie.tokens[i], place.repetitions, place.state);
        }
      }
      ++at;
    }
    return true;
  }

  bool AddExits(const ByteTrie& trie, uint32_t node, const Place& from) {
    const uint32_t end = trie.TokensEnd(node);
    const size_t depth = trie.nodes[node].depth - 1u;
    for (uint32_t i = trie.nodes[node].first_token; i < end; ++i) {
      if (exits_->exits.size() >= kExitsMax) return false;
      const auto index = static_cast<TokenId>(exits_->exits.size());
      exits_->exits.push_back({trie.tokens[i], from.repetitions});
      rests_.push_back({trie_.TokenBytes(trie.tokens[i]).substr(depth), index});
    }
    return true;
  }

  // All tokens at or below the node, whose characters lead back to the same state.
  void TakeAll(const ByteTrie& trie, uint32_t node, const Place& place) {
    if (inside_ == nullptr) return;
    const uint32_t end = trie.TokensEnd(node);
    for (uint32_t i = trie.nodes[node].first_token; i < end; ++i) {
      const int more = counted_ ? trie.characters[i] - place.characters : 0;
      AddInside(trie.tokens[i], static_cast<uint32_t>(place.repetitions + more), place.state);
    }
  }

  // From the state every character under the node leads back to it, as one repetition where those
  // are counted, and none of them can come after the leaf if exits are sought. Where characters can
  // be cut, they must be ASCII.
  bool LoopsBelow(const ByteTrie& trie, uint32_t node, uint32_t state, bool whole_characters) {
    uint64_t loops = Loops(state);
    if (!whole_characters) loops &= ~(uint64_t{1} << kByteClassNotAscii);
    const uint64_t below = trie.below[node];
    if ((below & ~loops) != 0) return false;
    return exits_ == nullptr || g_.states[state].accept == Accept::kNo || (below & follow_) == 0;
  }

  // The classes of characters that lead from the state back to it.
  uint64_t Loops(uint32_t state) {
    std::optional<uint64_t>& known = loops_[state - rule_.first_state];
    if (!known) known = FindLoops(state);
    return *known;
  }

  uint64_t FindLoops(uint32_t state) {
    uint64_t loops = ~uint64_t{0};
    for (int byte = 0; byte < 0x80; ++byte) {
      const Edge* edge = Next(state, static_cast<uint8_t>(byte));
      if (edge == nullptr || (edge->action == Action::kCount) != counted_ ||
          edge->target != state) {
        loops &= ~(uint64_t{1} << ByteClass(static_cast<uint8_t>(byte)));
      }
    }
    struct Span {
      int first, last;            // lead bytes
      int next_first, next_last;  // the byte after
      int length;
    };
    constexpr Span kSpans[] = {{0xC2, 0xDF, 0x80, 0xBF, 2}, {0xE0, 0xE0, 0xA0, 0xBF, 3},
                               {0xE1, 0xEC, 0x80, 0xBF, 3}, {0xED, 0xED, 0x80, 0x9F, 3},
                               {0xEE, 0xEF, 0x80, 0xBF, 3}, {0xF0, 0xF0, 0x90, 0xBF, 4},
                               {0xF1, 0xF3, 0x80, 0xBF, 4}, {0xF4, 0xF4, 0x80, 0x8F, 4}};
    for (const Span& span : kSpans) {
      for (int lead = span.first; lead <= span.last; ++lead) {
        const Edge* edge = Next(state, static_cast<uint8_t>(lead));
        if (edge != nullptr && (edge->action == Action::kCount) == counted_ &&
            Returns(edge->target, state, span.length - 1, span.next_first, span.next_last)) {
          continue;
        }
        return loops & ~(uint64_t{1} << kByteClassNotAscii);
      }
    }
    return loops;
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

  const CompiledGrammar& g_;
  const CompiledGrammar::Rule& rule_;
  const uint32_t start_;
  const TokenTrie& trie_;
  bool counted_ = false;
  uint64_t follow_ = 0;                         // classes of the bytes that may come after the leaf
  std::vector<std::optional<uint64_t>> loops_;  // by state of the rule, once known
  // One of them is being made.
  std::shared_ptr<LeafInside> inside_;
  std::shared_ptr<LeafExits> exits_;
  std::vector<std::unique_ptr<Row>> rows_;  // by state of the rule, once asked for
  std::vector<ByteTrie::Entry> rests_;
};

}  // namespace

int64_t LeafInside::num_bytes() const {
  return static_cast<int64_t>((1 + up_to.size()) * all.size() * sizeof(uint32_t) +
                              beyond.size() * sizeof(beyond[0]));
}

void LeafInside::AddTo(std::span<uint32_t> bits, int64_t left) const {
  const auto limit = static_cast<int64_t>(kUpTo);
  const bool bounded =
      !up_to.empty() && (left < limit || (!beyond.empty() && left < beyond.back().first));
  const TokenBits& from = bounded ? up_to[static_cast<size_t>(std::min(left, limit - 1))] : all;
  for (size_t i = 0; i < bits.size(); ++i) bits[i] |= from[i];
  if (!bounded || left < limit) return;
  for (const auto& [count, token] : beyond) {
    if (count > left) break;
    SetBit(bits, token);
  }
}

int64_t LeafExits::num_bytes() const {
  return static_cast<int64_t>(exits.size() * sizeof(Exit)) + rests.num_bytes();
}

namespace {

// What the store knows by this key, else what `make` gives, which is kept.
template <typename Profile, typename Make>
std::shared_ptr<const Profile> FindOrMake(
    uint64_t kind, const Key128& content, uint32_t place, MaskStore& store, Make make) {
  KeyHash hash(kind);
  hash.Add(content.low);
  hash.Add(content.high);
  hash.Add(place);
  const Key128 key = hash.key();
  if (const auto found = store.Find(key)) return std::static_pointer_cast<const Profile>(found);
  std::shared_ptr<const Profile> made = make();
  store.Keep(key, made);
  return made;
}

}  // namespace

std::shared_ptr<const LeafInside> LeafInside::Get(const CompiledGrammar& grammar,
                                                  uint32_t state,
                                                  const TokenTrie& trie,
                                                  MaskStore& store) {
  const CompiledGrammar::Rule& rule = grammar.rules[grammar.states[state].rule];
  return FindOrMake<LeafInside>(0x696E7369u, rule.content, state - rule.first_state, store,
                                [&] { return ProfileMaker(grammar, state, trie).MakeInside(); });
}

std::shared_ptr<const LeafExits> LeafExits::Get(const CompiledGrammar& grammar,
                                                uint32_t state,
                                                const TokenTrie& trie,
                                                MaskStore& store) {
  const CompiledGrammar::Rule& rule = grammar.rules[grammar.states[state].rule];
  return FindOrMake<LeafExits>(0x65786974u, rule.content_and_follow, state - rule.first_state,
                               store,
                               [&] { return ProfileMaker(grammar, state, trie).MakeExits(); });
}

}  // namespace baltoro
