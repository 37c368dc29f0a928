#pragma once

// What requests get from an engine, alone and among each other.

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "engine/testing/event_log.h"
#include "request/request.h"

namespace baltoro::test {

struct Answer {
  std::vector<TokenId> tokens;
  std::vector<TokenLogprobs> logprobs, prompt_logprobs;
  bool operator==(const Answer&) const = default;
};

inline Answer ToAnswer(const Told& told) {
  EXPECT_EQ(told.finish, FinishReason::kLength) << told.error;
  return {told.tokens, told.logprobs, told.prompt_logprobs};
}

// One after the other. `id` is added to those of the requests.
template <typename Engine>
std::vector<Answer> AskEach(Engine& engine, std::vector<Request> requests, uint64_t id = 0) {
  std::vector<Answer> answers;
  for (Request& request : requests) {
    request.id = RequestId{static_cast<uint64_t>(request.id) + id};
    answers.push_back(ToAnswer(engine.Ask(request)));
  }
  return answers;
}

// All at once, in a random order.
template <typename Engine>
std::vector<Answer> AskAll(Engine& engine, std::vector<Request> requests, uint64_t id) {
  for (Request& request : requests) {
    request.id = RequestId{static_cast<uint64_t>(request.id) + id};
  }
  std::vector<Request> shuffled = requests;
  std::ranges::shuffle(shuffled, std::mt19937(static_cast<uint32_t>(id)));
  for (const Request& request : shuffled) engine.Submit(request);
  std::vector<Answer> answers;
  for (const Request& request : requests) {
    answers.push_back(ToAnswer(engine.Wait(static_cast<uint64_t>(request.id))));
  }
  return answers;
}

inline int Different(const std::vector<Answer>& some, const std::vector<Answer>& others) {
  int different = 0;
  for (size_t i = 0; i < some.size(); ++i) different += some[i] == others.at(i) ? 0 : 1;
  return different;
}

}  // namespace baltoro::test
