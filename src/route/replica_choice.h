#pragma once

// Which replica gets a request: the one that has least to compute before it answers this one. Pure.

#include <cstdint>
#include <span>
#include <vector>

namespace baltoro {

struct ReplicaLoad {
  bool serves = true;          // it takes requests now
  int64_t waiting_tokens = 0;  // of prompts that it has and that it has not begun to answer
  int32_t open = 0;            // requests that it has
  int64_t known_tokens = 0;    // of this prompt, in its prefix cache
};

// What a request that is answered costs another one's prompt, in tokens of prompts: each of its
// tokens is a row of the steps that compute the prompt.
inline constexpr int64_t kOpenRequestTokens = 64;

// The replicas that serve, the best first: by the tokens of prompts that are computed there before
// the answer to a prompt of `prompt_tokens` begins. Among equal ones those behind `last`, the one
// chosen before, come first.
std::vector<int32_t> RankReplicas(std::span<const ReplicaLoad> loads,
                                  int64_t prompt_tokens,
                                  int32_t last);

}  // namespace baltoro
