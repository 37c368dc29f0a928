#pragma once

// Where an output can stand in a grammar: a configuration is a set of stacks of open rules. Both
// are kept once each, so equal ones have equal numbers, and steps from one to another are
// remembered.

#include <bitset>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <vector>

#include "grammar/compiled_grammar.h"
#include "grammar/id_table.h"

namespace baltoro {

class MatchStates {
 public:
  using Config = uint32_t;
  static constexpr Config kDead = 0;  // no stack: nothing matches any more
  static constexpr uint32_t kNoFrame = UINT32_MAX;
  // More stacks at once than this: the configuration is dropped, and overflowed() says so.
  static constexpr size_t kStacksMax = 1024;

  // The innermost open rule of a stack. What lies under it is resumed when it ends.
  struct Frame {
    uint32_t state = 0;
    uint32_t parent = kNoFrame;
    uint32_t reg = 0;  // a count of repetitions, or an index of item sets
    uint8_t depth = 0;
    Key128 key{};
  };

  explicit MatchStates(std::shared_ptr<const CompiledGrammar> grammar);

  Config start() const { return start_; }
  Config Step(Config from, uint8_t byte);
  // The token as a whole: by its id, or as free text.
  Config StepToken(Config from, TokenId token, bool is_text);
  // What stands where either stands.
  Config Union(Config left, Config right);
  // These of a configuration's heads alone; where the output can end is left out.
  Config Only(std::span<const uint32_t> heads);
  // What follows from these stacks.
  Config Of(std::span<const uint32_t> frames);
  // Where the stack stands when its innermost rule has ended; `frame` has a parent.
  Config AfterRule(uint32_t frame) { return Of({&frames_[frame].parent, 1}); }

  // The output can end here.
  bool accepts(Config config) const { return configs_[config].accepts; }
  bool dead(Config config) const { return configs_[config].count == 0 && !accepts(config); }
  // Stacks whose innermost rule can read something.
  std::span<const uint32_t> heads(Config config) const {
    return std::span(heads_).subspan(configs_[config].first, configs_[config].count);
  }
  const Frame& frame(uint32_t index) const { return frames_[index]; }
  const std::bitset<256>& first_bytes(Config config) const { return configs_[config].first_bytes; }
  // Equal for configurations that take the same tokens next, whatever the matcher, in one process.
  const Key128& key(Config config) const { return configs_[config].key; }
  // For the guard of a repetition: it may end after `more` further ones, and there may be as many.
  bool CanLeave(uint32_t frame, int64_t more) const;
  int64_t RepetitionsLeft(uint32_t frame) const;  // INT64_MAX: no bound

  bool overflowed() const { return overflowed_; }
  // From now on, what is not known yet takes steps, one for each stack that is met; when none are
  // left the states are exhausted, and all new configurations dead.
  void LimitSteps(int64_t steps) { steps_left_ = steps; }
  bool exhausted() const { return steps_left_ < 0; }
  int64_t num_bytes() const;
  // Forgets all but what `live` needs, and renumbers those.
  void Compact(std::span<Config*> live);

 private:
  using Edge = CompiledGrammar::Edge;
  struct ConfigInfo {
    uint32_t first = 0, count = 0;  // in heads_
    bool accepts = false;
    Key128 key{};
    std::bitset<256> first_bytes;
  };
  struct TakenItems {
    CompiledGrammar::ItemSet set{};
    int64_t total = 0;
    Key128 key{};
  };
  struct StepMemo {
    uint64_t key = UINT64_MAX;  // config and byte
    Config to = 0;
  };

  uint32_t InternFrame(uint32_t state, uint32_t parent, uint32_t reg);
  uint32_t InternItems(const TakenItems& items);
  Config InternConfig();  // of found_ and found_accepts_
  void Begin();
  void Reach(uint32_t frame);
  void Close();
  // Takes the edge from the frame if depth and register let it; `reg` is the register after it.
  bool Follow(const Frame& from, const Edge& edge, uint32_t& reg);
  bool FollowItem(const Frame& from,
                  const CompiledGrammar::Rule& rule,
                  const Edge& edge,
                  uint32_t& reg);
  bool ItemFits(const Frame& from, const CompiledGrammar::Rule& rule, uint32_t item) const;
  bool AcceptsHere(const Frame& frame) const;
  void Remember(uint64_t key, Config to);

  std::shared_ptr<const CompiledGrammar> grammar_;
  const CompiledGrammar& g_;
  std::vector<Frame> frames_;
  IdTable frame_ids_;
  std::vector<TakenItems> items_;
  IdTable items_ids_;
  std::vector<ConfigInfo> configs_;
  std::vector<uint32_t> heads_;
  IdTable config_ids_;
  std::vector<StepMemo> memo_;
  size_t memo_count_ = 0;
  Config start_ = 0;
  bool overflowed_ = false;
  int64_t steps_left_ = std::numeric_limits<int64_t>::max();

  // Of the configuration that is being made.
  std::vector<uint32_t> seen_;  // by frame: the last round that met it
  uint32_t round_ = 0;
  std::vector<uint32_t> todo_, found_;
  bool found_accepts_ = false;
  size_t met_ = 0;
};

}  // namespace baltoro
