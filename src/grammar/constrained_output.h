#pragma once

// The output of one request under an OutputConstraint.

#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "grammar/grammar_matcher.h"
#include "grammar/output_constraint.h"
#include "request/request.h"

namespace baltoro {

// One thread at a time. Rollback reaches GrammarMatcher::kRollbackMax tokens back.
class ConstrainedOutput final : public TokenConstraint {
 public:
  // `ends`: the tokens that end the request. `mask_steps_max`: see GrammarMatcher.
  ConstrainedOutput(std::shared_ptr<const OutputConstraint> constraint,
                    std::vector<TokenId> ends,
                    std::shared_ptr<const TokenTrie> trie,
                    std::shared_ptr<MaskStore> store,
                    int64_t mask_steps_max = GrammarMatcher::kMaskStepsMax);

  void FillMask(std::span<const TokenId> drafted, std::span<uint32_t> mask) override;
  bool Accept(TokenId token) override;
  void Rollback(int tokens) override;
  Status error() const override { return error_; }

 private:
  enum class Part : uint8_t { kReasoning, kText, kEnded };
  struct Step {
    TokenId token = 0;
    Part part_before{};
    bool matched = false;  // the matcher took it as well
  };
  bool TryAccept(TokenId token);
  bool IsEnd(TokenId token) const;
  bool IsBanned(TokenId token) const;
  // Whether the last token of `banned`, if it came next, would complete it.
  bool IsNearlyThere(const std::vector<TokenId>& banned) const;
  bool ReasoningIsSpent() const;
  void FillHere(std::span<uint32_t> mask);
  void FillReasoning(std::span<uint32_t> mask);
  void FillText(std::span<uint32_t> mask);

  const std::shared_ptr<const OutputConstraint> constraint_;
  const std::vector<TokenId> ends_;
  const std::shared_ptr<const TokenTrie> trie_;
  std::optional<GrammarMatcher> matcher_;
  Part part_ = Part::kText;
  int64_t reasoning_tokens_ = 0;
  std::deque<Step> steps_;  // the last ones
  TokenBits bits_;
  Status error_;
};

}  // namespace baltoro
