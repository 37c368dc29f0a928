#pragma once

// Requests that sample in every way there is, and how likely each token of theirs is, by what
// ops/sampling.h says, in plain double arithmetic.

#include <algorithm>
#include <cmath>
#include <vector>

#include "engine/testing/known_logits.h"
#include "request/request.h"

namespace baltoro::test {

struct SamplingContext {
  const char* name;
  void (*choose)(SamplingParams&);
  std::vector<TokenId> prompt = {17, 4, 61, 4, 33, 80};
  std::vector<TokenId> output = {};  // sampled before, as of a request that was preempted
  std::vector<TokenId> banned = {};  // while the output is shorter than
  int32_t min_tokens = 0;

  SamplingParams sampling() const {
    SamplingParams sampling;
    choose(sampling);
    return sampling;
  }
};

inline const std::vector<TokenId> kFew = {3, 4, 8, 9, 17, 33, 34, 61, 80};

inline const std::vector<SamplingContext>& SamplingContexts() {
  using Params = SamplingParams;
  static const std::vector<SamplingContext> contexts = {
      {.name = "plain", .choose = [](Params&) {}},
      {.name = "cool", .choose = [](Params& p) { p.temperature = 0.5f; }},
      {.name = "hot", .choose = [](Params& p) { p.temperature = 2.5f; }, .prompt = {1}},
      {.name = "top_k", .choose = [](Params& p) { p.top_k = 5; }},
      {.name = "top_k of one", .choose = [](Params& p) { p.top_k = 1; }},
      {.name = "top_p", .choose = [](Params& p) { p.top_p = 0.8f; }, .prompt = {42, 7}},
      {.name = "small top_p",
       .choose =
           [](Params& p) {
             p.temperature = 1.5f;
             p.top_p = 0.3f;
           }},
      {.name = "min_p", .choose = [](Params& p) { p.min_p = 0.1f; }, .prompt = {12, 13, 14}},
      {.name = "top_k, top_p, min_p",
       .choose =
           [](Params& p) {
             p.temperature = 1.4f;
             p.top_p = 0.9f;
             p.min_p = 0.02f;
             p.top_k = 20;
           }},
      {.name = "repetition",
       .choose =
           [](Params& p) {
             p.repetition_penalty = 1.8f;
             p.allowed_token_ids = kFew;
           },
       .output = {9, 34, 9}},
      {.name = "repetition below one", .choose = [](Params& p) { p.repetition_penalty = 0.6f; }},
      {.name = "presence",
       .choose =
           [](Params& p) {
             p.presence_penalty = 1.5f;
             p.allowed_token_ids = kFew;
           },
       .output = {8, 8, 3}},
      {.name = "frequency",
       .choose =
           [](Params& p) {
             p.frequency_penalty = 0.9f;
             p.allowed_token_ids = kFew;
           }},
      {.name = "negative penalties",
       .choose =
           [](Params& p) {
             p.presence_penalty = -0.7f;
             p.frequency_penalty = -0.4f;
           },
       .output = {5, 5, 6}},
      {.name = "logit bias",
       .choose =
           [](Params& p) {
             p.logit_bias = {{3, 4.0f}, {80, 2.5f}, {33, -100.0f}};
           }},
      {.name = "allowed ids",
       .choose =
           [](Params& p) {
             p.temperature = 1.3f;
             p.allowed_token_ids = kFew;
           }},
      {.name = "two allowed ids",
       .choose =
           [](Params& p) {
             p.allowed_token_ids = {2, 89};
           },
       .prompt = {89}},
      {.name = "min_tokens that end inside",
       .choose = [](Params& p) { p.allowed_token_ids = kFew; },
       .output = {9},
       .banned = {4, 33, 61, 80},
       .min_tokens = 3},
      {.name = "penalties, top_p, bias",
       .choose =
           [](Params& p) {
             p.temperature = 0.9f;
             p.top_p = 0.95f;
             p.presence_penalty = 0.5f;
             p.frequency_penalty = 0.3f;
             p.repetition_penalty = 1.2f;
             p.logit_bias = {{9, 3.0f}, {17, 1.0f}};
           },
       .output = {17, 9, 9}},
      {.name = "everything",
       .choose =
           [](Params& p) {
             p.temperature = 1.2f;
             p.top_p = 0.97f;
             p.min_p = 0.01f;
             p.top_k = 7;
             p.presence_penalty = 0.4f;
             p.frequency_penalty = 0.2f;
             p.repetition_penalty = 1.1f;
             p.logit_bias = {{4, 1.0f}, {61, -1.0f}};
             p.allowed_token_ids = kFew;
           },
       .output = {3, 3},
       .banned = {17, 80},
       .min_tokens = 4},
  };
  return contexts;
}

// The probability of each token behind `output`, by what ops/sampling.h says.
inline std::vector<double> Probabilities(const LogitsTable& table,
                                         const SamplingContext& context,
                                         const std::vector<TokenId>& output) {
  const SamplingParams sampling = context.sampling();
  const TokenId last = output.empty() ? context.prompt.back() : output.back();
  const std::vector<float>& raw = table[static_cast<size_t>(last)];
  std::vector<double> logits(raw.begin(), raw.end());
  const size_t vocab = table.size();
  std::vector<int> in_output(vocab), anywhere;
  for (const TokenId id : output) ++in_output[static_cast<size_t>(id)];
  anywhere = in_output;
  for (const TokenId id : context.prompt) ++anywhere[static_cast<size_t>(id)];
  for (const auto& [id, bias] : sampling.logit_bias) logits[static_cast<size_t>(id)] += bias;
  const bool bans = std::ssize(output) < context.min_tokens;
  std::vector<size_t> kept;
  for (size_t id = 0; id < vocab; ++id) {
    double& x = logits[id];
    if (anywhere[id] > 0) {
      const double penalty = sampling.repetition_penalty;
      x = x > 0 ? x / penalty : x * penalty;
    }
    x -= in_output[id] * double{sampling.frequency_penalty};
    if (in_output[id] > 0) x -= sampling.presence_penalty;
    const std::vector<TokenId>& allowed = sampling.allowed_token_ids;
    const auto token = static_cast<TokenId>(id);
    if (!allowed.empty() && std::ranges::count(allowed, token) == 0) continue;
    if (bans && std::ranges::count(context.banned, token) > 0) continue;
    kept.push_back(id);
  }
  std::ranges::sort(kept, [&](size_t a, size_t b) { return logits[a] > logits[b]; });
  std::vector<double> weights(vocab, 0.0);
  const double highest = logits[kept[0]];
  for (const size_t id : kept) {
    weights[id] = std::exp((logits[id] - highest) / sampling.temperature);
  }
  std::erase_if(kept, [&](size_t id) { return weights[id] < sampling.min_p; });
  const auto most = static_cast<size_t>(sampling.top_k);
  if (most > 0 && kept.size() > most) kept.resize(most);
  const auto sum = [&] {
    double total = 0;
    for (const size_t id : kept) total += weights[id];
    return total;
  };
  if (sampling.top_p < 1) {
    const double wanted = sum() * sampling.top_p;
    double got = 0;
    size_t count = 0;
    while (count < kept.size() && (count == 0 || got < wanted)) got += weights[kept[count++]];
    kept.resize(count);
  }
  const double total = sum();
  std::vector<double> out(vocab, 0.0);
  for (const size_t id : kept) out[id] = weights[id] / total;
  return out;
}

}  // namespace baltoro::test
