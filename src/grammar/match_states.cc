#include "grammar/match_states.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/check.h"
#include "grammar/key_hash.h"
#include "grammar/token_trie.h"

namespace baltoro {

namespace {

using Accept = CompiledGrammar::Accept;
using Action = CompiledGrammar::Action;
using EdgeKind = CompiledGrammar::EdgeKind;
using Rule = CompiledGrammar::Rule;
using RuleKind = CompiledGrammar::RuleKind;

// Counts this far from their bounds behave alike for one token, which has no more bytes.
constexpr int64_t kFar = ByteTrie::kBytesMax + 1;
constexpr size_t kMetMax = 64 * MatchStates::kStacksMax;

bool Has(const CompiledGrammar::ItemSet& set, uint32_t item) {
  return (set[item / 64] >> (item % 64) & 1) != 0;
}

// Required items that were not taken.
int64_t Missing(const Rule& rule, const CompiledGrammar::ItemSet& taken) {
  int64_t count = 0;
  for (size_t i = 0; i < taken.size(); ++i) {
    count += __builtin_popcountll(rule.required[i] & ~taken[i]);
  }
  return count;
}

uint64_t FrameHash(uint32_t state, uint32_t parent, uint32_t reg) {
  return MixBits((uint64_t{state} << 32 | parent) + MixBits(reg));
}

}  // namespace

MatchStates::MatchStates(std::shared_ptr<const CompiledGrammar> grammar)
    : grammar_(std::move(grammar)), g_(*grammar_) {
  InternItems({});
  Begin();
  start_ = InternConfig();
  BT_CHECK(start_ == kDead);
  if (g_.rules[0].height > g_.max_depth) return;  // also where nothing matches
  Begin();
  Reach(InternFrame(g_.rules[0].first_state, kNoFrame, 0));
  Close();
  start_ = InternConfig();
}

uint32_t MatchStates::InternFrame(uint32_t state, uint32_t parent, uint32_t reg) {
  const uint64_t hash = FrameHash(state, parent, reg);
  const uint32_t found = frame_ids_.Find(hash, [&](uint32_t i) {
    return frames_[i].state == state && frames_[i].parent == parent && frames_[i].reg == reg;
  });
  if (found != IdTable::kNone) return found;
  Frame frame{.state = state, .parent = parent, .reg = reg};
  KeyHash key(state);
  if (parent != kNoFrame) {
    frame.depth = static_cast<uint8_t>(frames_[parent].depth + 1);
    key.Add(frames_[parent].key.low);
    key.Add(frames_[parent].key.high);
  }
  const Rule& rule = g_.rules[g_.states[state].rule];
  if (rule.kind == RuleKind::kCounter) {
    const int64_t needed = std::clamp<int64_t>(rule.min - reg, 0, kFar);
    const int64_t far = kFar + rule.needs_max;
    const int64_t left = rule.max < 0 ? far : std::min(rule.max - reg, far);
    key.Add(static_cast<uint64_t>(needed << 32 | left));
  } else if (rule.kind == RuleKind::kItems) {
    key.Add(items_[reg].key.low);
    key.Add(items_[reg].key.high);
  }
  frame.key = key.key();
  const auto id = static_cast<uint32_t>(frames_.size());
  frames_.push_back(frame);
  seen_.push_back(0);
  frame_ids_.Insert(hash, id, [&](uint32_t i) {
    return FrameHash(frames_[i].state, frames_[i].parent, frames_[i].reg);
  });
  return id;
}

uint32_t MatchStates::InternItems(const TakenItems& items) {
  KeyHash key(0x6974656Du);
  for (const uint64_t word : items.set) key.Add(word);
  key.Add(static_cast<uint64_t>(items.total));
  const uint64_t hash = key.key().low;
  const uint32_t found =
      items_ids_.Find(hash, [&](uint32_t i) { return items_[i].key == key.key(); });
  if (found != IdTable::kNone) return found;
  const auto id = static_cast<uint32_t>(items_.size());
  items_.push_back(items);
  items_.back().key = key.key();
  items_ids_.Insert(hash, id, [&](uint32_t i) { return items_[i].key.low; });
  return id;
}

MatchStates::Config MatchStates::InternConfig() {
  steps_left_ -= static_cast<int64_t>(met_) + 1;
  if (exhausted()) return kDead;
  if (found_.size() > kStacksMax || met_ > kMetMax) {
    overflowed_ = true;
    return kDead;
  }
  std::sort(found_.begin(), found_.end());
  uint64_t hash = found_accepts_ ? 0x9E3779B97F4A7C15u : 1;
  for (const uint32_t head : found_) hash = MixBits(hash ^ head) + head;
  hash = MixBits(hash);
  const uint32_t same = config_ids_.Find(hash, [&](uint32_t i) {
    return configs_[i].accepts == found_accepts_ && std::ranges::equal(heads(i), found_);
  });
  if (same != IdTable::kNone) return same;
  ConfigInfo config;
  config.first = static_cast<uint32_t>(heads_.size());
  config.count = static_cast<uint32_t>(found_.size());
  config.accepts = found_accepts_;
  heads_.insert(heads_.end(), found_.begin(), found_.end());
  // Numbers of frames differ from matcher to matcher, so the key does not depend on their order.
  Key128 sum{found_accepts_, 0};
  for (const uint32_t head : found_) {
    sum.low += frames_[head].key.low;
    sum.high += MixBits(frames_[head].key.high ^ frames_[head].key.low);
    config.first_bytes |= g_.state_bytes[frames_[head].state];
  }
  KeyHash key(found_.size());
  key.Add(sum.low);
  key.Add(sum.high);
  config.key = key.key();
  const auto id = static_cast<uint32_t>(configs_.size());
  configs_.push_back(config);
  config_ids_.Insert(hash, id, [&](uint32_t i) {
    uint64_t again = configs_[i].accepts ? 0x9E3779B97F4A7C15u : 1;
    for (const uint32_t head : heads(i)) again = MixBits(again ^ head) + head;
    return MixBits(again);
  });
  return id;
}

void MatchStates::Begin() {
  ++round_;
  found_.clear();
  todo_.clear();
  found_accepts_ = false;
  met_ = 0;
}

void MatchStates::Reach(uint32_t frame) {
  if (seen_[frame] == round_) return;
  seen_[frame] = round_;
  ++met_;
  todo_.push_back(frame);
}

// Ends rules that can end and opens those that are called, until only stacks that read are left.
void MatchStates::Close() {
  while (!todo_.empty() && met_ <= kMetMax) {
    const uint32_t at = todo_.back();
    todo_.pop_back();
    const Frame frame = frames_[at];  // frames_ grows below
    if (AcceptsHere(frame)) {
      if (frame.parent == kNoFrame) {
        found_accepts_ = true;
      } else {
        Reach(frame.parent);
      }
    }
    bool reads = false;
    for (const Edge& edge : g_.EdgesOf(frame.state)) {
      if (edge.kind != EdgeKind::kCall) {
        reads = true;
        continue;
      }
      uint32_t reg = 0;
      if (!Follow(frame, edge, reg)) continue;
      uint32_t parent = frame.parent;
      if (!edge.tail) parent = InternFrame(edge.target, frame.parent, reg);
      const int depth = parent == kNoFrame ? 0 : frames_[parent].depth + 1;
      const Rule& callee = g_.rules[edge.symbol];
      if (depth + callee.height > g_.max_depth) continue;
      Reach(InternFrame(callee.first_state, parent, 0));
    }
    if (reads) found_.push_back(at);
  }
}

bool MatchStates::AcceptsHere(const Frame& frame) const {
  switch (g_.states[frame.state].accept) {
    case Accept::kNo:
      return false;
    case Accept::kYes:
      return true;
    case Accept::kRegister:
      break;
  }
  const Rule& rule = g_.rules[g_.states[frame.state].rule];
  if (rule.kind == RuleKind::kCounter) return frame.reg >= rule.min;
  const TakenItems& taken = items_[frame.reg];
  return taken.total >= rule.min && Missing(rule, taken.set) == 0;
}

bool MatchStates::Follow(const Frame& from, const Edge& edge, uint32_t& reg) {
  const CompiledGrammar::State& target = g_.states[edge.target];
  if (from.depth + target.height > g_.max_depth) return false;
  reg = from.reg;
  if (edge.action == Action::kNone && target.needs == 0) return true;
  const Rule& rule = g_.rules[target.rule];
  const bool counts = edge.action == Action::kCount;
  if (rule.kind == RuleKind::kCounter && rule.max >= 0 &&
      int64_t{from.reg} + (counts ? 1 : 0) + target.needs > rule.max) {
    return false;
  }
  switch (edge.action) {
    case Action::kNone:
      break;
    case Action::kCount:
      // Without a bound only the way to the least count matters.
      if (rule.max >= 0 || from.reg < rule.min) ++reg;
      break;
    case Action::kItem:
      return FollowItem(from, rule, edge, reg);
    case Action::kSeparator:
      for (uint32_t item = rule.members + rule.extras; item-- > 0;) {
        if (ItemFits(from, rule, item)) return true;
      }
      return false;
  }
  return true;
}

// The item can be taken now, and finished at this depth.
bool MatchStates::ItemFits(const Frame& from, const Rule& rule, uint32_t item) const {
  const TakenItems& taken = items_[from.reg];
  if (from.depth + g_.item_heights[rule.first_item + item] > g_.max_depth) return false;
  const bool member = item < rule.members;
  if (member && Has(taken.set, item)) return false;
  if (rule.max < 0) return true;
  // Places for the required ones are kept free.
  const bool required = member && Has(rule.required, item);
  return taken.total + (required ? 0 : 1) + Missing(rule, taken.set) <= rule.max;
}

bool MatchStates::FollowItem(const Frame& from, const Rule& rule, const Edge& edge, uint32_t& reg) {
  if (!ItemFits(from, rule, edge.item)) return false;
  TakenItems taken = items_[from.reg];
  if (edge.item < rule.members) {
    taken.set[edge.item / 64] |= uint64_t{1} << (edge.item % 64);
  }
  if (rule.max >= 0 || taken.total < rule.min) ++taken.total;
  reg = InternItems(taken);
  return true;
}

bool MatchStates::CanLeave(uint32_t frame, int64_t more) const {
  const Rule& rule = g_.rules[g_.states[frames_[frame].state].rule];
  if (rule.kind != RuleKind::kCounter) return true;
  const int64_t count = frames_[frame].reg + more;
  return count >= rule.min && (rule.max < 0 || count <= rule.max);
}

int64_t MatchStates::RepetitionsLeft(uint32_t frame) const {
  const Rule& rule = g_.rules[g_.states[frames_[frame].state].rule];
  if (rule.kind != RuleKind::kCounter || rule.max < 0) return std::numeric_limits<int64_t>::max();
  return rule.max - frames_[frame].reg;
}

MatchStates::Config MatchStates::Step(Config from, uint8_t byte) {
  if (!configs_[from].first_bytes[byte]) return kDead;
  const uint64_t key = uint64_t{from} << 8 | byte;
  if (!memo_.empty()) {
    for (size_t at = MixBits(key) & (memo_.size() - 1); memo_[at].key != UINT64_MAX;
         at = (at + 1) & (memo_.size() - 1)) {
      if (memo_[at].key == key) return memo_[at].to;
    }
  }
  if (exhausted()) return kDead;
  Begin();
  for (uint32_t i = 0; i < configs_[from].count; ++i) {
    const Frame frame = frames_[heads_[configs_[from].first + i]];
    if (!g_.state_bytes[frame.state][byte]) continue;
    for (const Edge& edge : g_.EdgesOf(frame.state)) {
      if (edge.kind != EdgeKind::kByte || byte < edge.first || byte > edge.last) continue;
      uint32_t reg = 0;
      if (Follow(frame, edge, reg)) Reach(InternFrame(edge.target, frame.parent, reg));
    }
  }
  Close();
  const Config to = InternConfig();
  if (exhausted()) return kDead;
  Remember(key, to);
  return to;
}

void MatchStates::Remember(uint64_t key, Config to) {
  const auto put = [&](const StepMemo& memo) {
    size_t at = MixBits(memo.key) & (memo_.size() - 1);
    while (memo_[at].key != UINT64_MAX) at = (at + 1) & (memo_.size() - 1);
    memo_[at] = memo;
  };
  if (2 * (memo_count_ + 1) > memo_.size()) {
    std::vector<StepMemo> old(memo_.empty() ? 256 : 2 * memo_.size());
    old.swap(memo_);
    for (const StepMemo& memo : old) {
      if (memo.key != UINT64_MAX) put(memo);
    }
  }
  put({key, to});
  ++memo_count_;
}

MatchStates::Config MatchStates::StepToken(Config from, TokenId token, bool is_text) {
  Begin();
  for (uint32_t i = 0; i < configs_[from].count; ++i) {
    const Frame frame = frames_[heads_[configs_[from].first + i]];
    for (const Edge& edge : g_.EdgesOf(frame.state)) {
      const bool fits =
          (edge.kind == EdgeKind::kToken && edge.symbol == static_cast<uint32_t>(token)) ||
          (edge.kind == EdgeKind::kAnyText && is_text);
      uint32_t reg = 0;
      if (fits && Follow(frame, edge, reg)) Reach(InternFrame(edge.target, frame.parent, reg));
    }
  }
  Close();
  return InternConfig();
}

MatchStates::Config MatchStates::Union(Config left, Config right) {
  if (left == right || dead(right)) return left;
  if (dead(left)) return right;
  Begin();
  for (const Config config : {left, right}) {
    const auto more = heads(config);
    found_.insert(found_.end(), more.begin(), more.end());
    found_accepts_ = found_accepts_ || accepts(config);
  }
  std::sort(found_.begin(), found_.end());
  found_.erase(std::unique(found_.begin(), found_.end()), found_.end());
  return InternConfig();
}

MatchStates::Config MatchStates::Only(std::span<const uint32_t> chosen) {
  Begin();
  found_.assign(chosen.begin(), chosen.end());
  return InternConfig();
}

MatchStates::Config MatchStates::Of(std::span<const uint32_t> frames) {
  Begin();
  for (const uint32_t frame : frames) Reach(frame);
  Close();
  return InternConfig();
}

int64_t MatchStates::num_bytes() const {
  return static_cast<int64_t>(
             frames_.capacity() * (sizeof(Frame) + sizeof(uint32_t)) +
             items_.capacity() * sizeof(TakenItems) + configs_.capacity() * sizeof(ConfigInfo) +
             heads_.capacity() * sizeof(uint32_t) + memo_.capacity() * sizeof(StepMemo)) +
         frame_ids_.num_bytes() + items_ids_.num_bytes() + config_ids_.num_bytes();
}

void MatchStates::Compact(std::span<Config*> live) {
  MatchStates fresh(grammar_);
  std::vector<uint32_t> new_frame(frames_.size(), kNoFrame);
  std::vector<uint32_t> chain;
  const auto move_frame = [&](uint32_t frame) {
    chain.clear();
    for (; frame != kNoFrame && new_frame[frame] == kNoFrame; frame = frames_[frame].parent) {
      chain.push_back(frame);
    }
    uint32_t parent = frame == kNoFrame ? kNoFrame : new_frame[frame];
    for (; !chain.empty(); chain.pop_back()) {
      const Frame& old = frames_[chain.back()];
      const bool items = g_.rules[g_.states[old.state].rule].kind == RuleKind::kItems;
      const uint32_t reg = items ? fresh.InternItems(items_[old.reg]) : old.reg;
      parent = fresh.InternFrame(old.state, parent, reg);
      new_frame[chain.back()] = parent;
    }
    return parent;
  };
  std::vector<Config> new_config(configs_.size(), UINT32_MAX);
  for (Config* config : live) {
    Config& made = new_config[*config];
    if (made == UINT32_MAX) {
      fresh.Begin();
      for (const uint32_t head : heads(*config)) fresh.found_.push_back(move_frame(head));
      fresh.found_accepts_ = accepts(*config);
      made = fresh.InternConfig();
    }
    *config = made;
  }
  frames_ = std::move(fresh.frames_);
  frame_ids_ = std::move(fresh.frame_ids_);
  items_ = std::move(fresh.items_);
  items_ids_ = std::move(fresh.items_ids_);
  configs_ = std::move(fresh.configs_);
  heads_ = std::move(fresh.heads_);
  config_ids_ = std::move(fresh.config_ids_);
  memo_ = std::move(fresh.memo_);
  memo_count_ = fresh.memo_count_;
  seen_ = std::move(fresh.seen_);
  round_ = fresh.round_;
  start_ = fresh.start_;
}

}  // namespace baltoro
