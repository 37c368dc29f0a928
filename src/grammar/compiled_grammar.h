#pragma once

// The inside of a Grammar: rules as automata that call each other, with a register per open rule.

#include <array>
#include <bitset>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "grammar/compile_budget.h"
#include "grammar/mask_store.h"
#include "request/request.h"

namespace baltoro {

class CompiledGrammar {
 public:
  static constexpr int kMaxDepth = 255;
  static constexpr uint32_t kItemsMax = 256;
  static constexpr uint8_t kNever = 255;  // a height that no depth allows

  enum class EdgeKind : uint8_t { kByte, kCall, kToken, kAnyText };
  // What following an edge asks of the register, and does to it.
  enum class Action : uint8_t {
    kNone,
    kCount,      // one more repetition, at most the rule's max
    kItem,       // takes Edge::item
    kSeparator,  // at least one more item may follow
  };
  enum class RuleKind : uint8_t {
    kPlain,
    kCounter,  // the register counts repetitions
    kItems,    // the register holds which items were taken
  };
  enum class Accept : uint8_t {
    kNo,
    kYes,
    kRegister,  // where the register says that enough was repeated or taken
  };

  struct Edge {
    EdgeKind kind = EdgeKind::kByte;
    Action action = Action::kNone;
    uint8_t first = 0, last = 0;  // bytes
    uint16_t item = 0;
    bool tail = false;    // derived: a call after which the caller has nothing left to do
    uint32_t symbol = 0;  // the called rule, or the token's id
    uint32_t target = 0;
  };
  struct State {
    uint32_t first_edge = 0;  // to the next state's
    uint32_t rule = 0;
    Accept accept = Accept::kNo;
    // Derived: how many more rules must be open at once, at the least, to finish this one.
    uint8_t height = kNever;
    // Derived, of counters: the repetitions that must yet begin before the rule can end.
    uint32_t needs = 0;
  };
  using ItemSet = std::array<uint64_t, kItemsMax / 64>;
  struct Rule {
    RuleKind kind = RuleKind::kPlain;
    uint32_t first_state = 0;   // the start; the rule's states lie together
    int64_t min = 0, max = -1;  // repetitions, or items in all; -1: no bound
    // kItems: members come first, then extras, which may be taken again.
    uint32_t first_item = 0, members = 0, extras = 0;
    ItemSet required{};

    // Derived.
    uint8_t height = kNever;
    uint32_t needs_max = 0;  // of its states
    bool can_be_empty = false;
    bool leaf = false;        // reads bytes alone, and a byte decides where it goes
    std::bitset<256> follow;  // leaf: bytes that can come after it
    // Leaf: equal for leaves that behave alike but for min and max; and also for what follows.
    Key128 content, content_and_follow;
  };

  // States hold a last one more, which ends the edges of the one before.
  std::vector<Edge> edges;
  std::vector<State> states;
  std::vector<Rule> rules;  // rules[0] is the start
  int max_depth = 64;
  std::vector<uint8_t> item_heights;          // derived; of all rules' items
  std::vector<std::bitset<256>> state_bytes;  // derived; the bytes that a state has edges for
  Key128 hash;                                // derived, of everything

  int64_t num_states() const { return static_cast<int64_t>(states.size()) - 1; }
  int64_t num_bytes() const;
  std::span<const Edge> EdgesOf(uint32_t state) const {
    return std::span(edges).subspan(states[state].first_edge,
                                    states[state + 1].first_edge - states[state].first_edge);
  }

  // Checks everything and fills in what is derived. A rule that can call itself before anything is
  // read is refused: `left_recursive` is then its index. `budget` may be null.
  Status Derive(uint32_t* left_recursive = nullptr, CompileBudget* budget = nullptr);

  std::string Serialise() const;
  static Result<CompiledGrammar> Parse(std::string_view bytes);

 private:
  Status Check() const;
  void DeriveNeeds();
  void DeriveHeights();
  Status DeriveEmptiness(uint32_t* left_recursive);
  std::vector<bool> ReachRegister() const;
  void DeriveLeaves();
  Status DeriveFollows(CompileBudget* budget);
};

}  // namespace baltoro
