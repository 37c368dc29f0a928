#include "grammar/constrained_output.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace baltoro {

namespace {

constexpr int64_t kReadingsMax = 1024;  // of the output at once, in GrammarMatcher

// The client's to mend: its regex, schema or grammar.
Status TooAmbiguous(int64_t count, std::string_view of_what) {
  return InvalidArgument("the output's grammar is too ambiguous: over " + std::to_string(count) +
                         " " + std::string(of_what) +
                         "; write its regex, schema or rules so that a text can be read in fewer "
                         "ways");
}

// Enough for the longest banned sequence behind the farthest rollback.
constexpr size_t kStepsMax = GrammarMatcher::kRollbackMax + 256;

void ClearBit(std::span<uint32_t> bits, TokenId id) {
  if (id >= 0 && static_cast<size_t>(id) < 32 * bits.size()) {
    bits[static_cast<size_t>(id) >> 5] &= ~(uint32_t{1} << (id & 31));
  }
}

void SetBitIfThere(std::span<uint32_t> bits, TokenId id) {
  if (id >= 0 && static_cast<size_t>(id) < 32 * bits.size()) SetBit(bits, id);
}

}  // namespace

ConstrainedOutput::ConstrainedOutput(std::shared_ptr<const OutputConstraint> constraint,
                                     std::vector<TokenId> ends,
                                     std::shared_ptr<const TokenTrie> trie,
                                     std::shared_ptr<MaskStore> store,
                                     int64_t mask_steps_max)
    : constraint_(std::move(constraint)), ends_(std::move(ends)), trie_(std::move(trie)) {
  if (constraint_->grammar) {
    matcher_.emplace(*constraint_->grammar, trie_, std::move(store), mask_steps_max);
  }
  if (constraint_->starts_in_reasoning) part_ = Part::kReasoning;
}

bool ConstrainedOutput::IsEnd(TokenId token) const {
  return std::find(ends_.begin(), ends_.end(), token) != ends_.end();
}

// Whether `token` would complete a banned sequence.
bool ConstrainedOutput::IsBanned(TokenId token) const {
  return std::any_of(constraint_->banned_sequences.begin(), constraint_->banned_sequences.end(),
                     [&](const std::vector<TokenId>& banned) {
                       return banned.back() == token && IsNearlyThere(banned);
                     });
}

bool ConstrainedOutput::IsNearlyThere(const std::vector<TokenId>& banned) const {
  if (banned.size() > steps_.size() + 1) return false;
  for (size_t back = 1; back < banned.size(); ++back) {
    if (banned[banned.size() - 1 - back] != steps_[steps_.size() - back].token) return false;
  }
  return true;
}

bool ConstrainedOutput::ReasoningIsSpent() const {
  return constraint_->think_end && constraint_->thinking_budget >= 0 &&
         reasoning_tokens_ >= constraint_->thinking_budget;
}

void ConstrainedOutput::FillMask(std::span<const TokenId> drafted, std::span<uint32_t> mask) {
  int taken = 0;
  for (const TokenId token : drafted) {
    if (!Accept(token)) break;
    ++taken;
  }
  if (static_cast<size_t>(taken) == drafted.size()) {
    FillHere(mask);
  } else {
    std::fill(mask.begin(), mask.end(), 0);
    if (error_.ok()) {
      error_ = Status(Code::kInternal, "a drafted token is not allowed where it stands");
    }
  }
  Rollback(taken);
}

void ConstrainedOutput::FillHere(std::span<uint32_t> mask) {
  switch (part_) {
    case Part::kReasoning:
      FillReasoning(mask);
      break;
    case Part::kText:
      FillText(mask);
      break;
    case Part::kEnded:
      bits_.assign(mask.size(), 0);
      for (const TokenId end : ends_) SetBitIfThere(bits_, end);
      for (size_t i = 0; i < mask.size(); ++i) mask[i] &= bits_[i];
      return;
  }
  if (matcher_ && matcher_->exhausted()) {
    std::fill(mask.begin(), mask.end(), 0);
    error_ = TooAmbiguous(matcher_->mask_steps_max(), "steps to find what may come next");
    return;
  }
  for (const std::vector<TokenId>& banned : constraint_->banned_sequences) {
    // The way out of a spent budget stays open.
    const bool forced = part_ == Part::kReasoning && ReasoningIsSpent();
    if (!forced && IsNearlyThere(banned)) ClearBit(mask, banned.back());
  }
  const bool nothing = std::all_of(mask.begin(), mask.end(), [](uint32_t w) { return w == 0; });
  if (!nothing || part_ != Part::kText || !matcher_ || matcher_->CanFinish()) return;
  error_ =
      matcher_->overflowed()
          ? TooAmbiguous(kReadingsMax, "readings of the output at once")
          : InvalidArgument("no token that is allowed continues the output as its grammar demands");
}

void ConstrainedOutput::FillReasoning(std::span<uint32_t> mask) {
  if (ReasoningIsSpent()) {
    bits_.assign(mask.size(), 0);
    SetBitIfThere(bits_, *constraint_->think_end);
    for (size_t i = 0; i < mask.size(); ++i) mask[i] &= bits_[i];
    return;
  }
  for (const TokenId end : ends_) ClearBit(mask, end);
  const auto& section = constraint_->section_begin;
  if (section && matcher_ && !matcher_->Allows(*section)) ClearBit(mask, *section);
}

void ConstrainedOutput::FillText(std::span<uint32_t> mask) {
  if (!matcher_) return;
  bits_.resize(mask.size());
  matcher_->FillMask(bits_);
  const bool can_finish = matcher_->CanFinish();
  for (const TokenId end : ends_) {
    if (can_finish) {
      SetBitIfThere(bits_, end);
    } else {
      ClearBit(bits_, end);
    }
  }
  for (size_t i = 0; i < mask.size(); ++i) mask[i] &= bits_[i];
}

bool ConstrainedOutput::Accept(TokenId token) {
  if (TryAccept(token)) return true;
  if (matcher_ && matcher_->overflowed())
    error_ = TooAmbiguous(kReadingsMax, "readings of the output at once");
  return false;
}

bool ConstrainedOutput::TryAccept(TokenId token) {
  if (token < 0 || token >= trie_->vocab_size()) return false;
  Step step{.token = token, .part_before = part_};
  Part part_after = part_;
  const bool is_end = IsEnd(token);
  switch (part_) {
    case Part::kReasoning: {
      const bool leaves = token == constraint_->think_end;
      if (is_end || (ReasoningIsSpent() && !leaves)) return false;
      if (IsBanned(token) && !(leaves && ReasoningIsSpent())) return false;
      if (leaves) {
        part_after = Part::kText;
      } else if (token == constraint_->section_begin) {
        if (matcher_ && !matcher_->Accept(token)) return false;
        step.matched = matcher_.has_value();
        part_after = Part::kText;
      } else {
        ++reasoning_tokens_;
      }
      break;
    }
    case Part::kText:
      if (IsBanned(token)) return false;
      if (!matcher_) break;
      if (is_end) {
        if (!matcher_->CanFinish()) return false;
        part_after = Part::kEnded;
      } else {
        if (!matcher_->Accept(token)) return false;
        step.matched = true;
      }
      break;
    case Part::kEnded:
      if (!is_end) return false;
      break;
  }
  part_ = part_after;
  steps_.push_back(step);
  if (steps_.size() > kStepsMax) steps_.pop_front();
  return true;
}

void ConstrainedOutput::Rollback(int tokens) {
  BT_CHECK(tokens >= 0 && static_cast<size_t>(tokens) <= steps_.size());
  for (; tokens > 0; --tokens) {
    const Step step = steps_.back();
    steps_.pop_back();
    if (step.matched) matcher_->Rollback(1);
    if (step.part_before == Part::kReasoning && part_ == Part::kReasoning) --reasoning_tokens_;
    part_ = step.part_before;
  }
}

}  // namespace baltoro
