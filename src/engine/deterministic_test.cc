// --deterministic: what a request gets, to the last bit of its log-probabilities, whatever else is
// computed. On operations that keep a row apart from others, and on some that do not.

#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "engine/testing/answers.h"
#include "engine/testing/disturbed_ops.h"
#include "engine/testing/model_engine.h"

namespace baltoro {
namespace {

using test::Answer;
using test::AskAll;
using test::Different;
using test::DisturbedOps;
using test::MakeRequest;
using test::ModelEngine;
using test::Setting;
using test::ToAnswer;
using test::Told;

constexpr int32_t kDecodeRows = 4;

Setting Disturbed() {
  return {.deterministic = true,
          .fixed = {.prompt_chunk = 64, .decode_rows = kDecodeRows, .key_part_blocks = 1},
          .ops = &DisturbedOps<DType::kBf16, kDecodeRows>()};
}

// Prompts with beginnings in common, of all lengths around chunks and blocks, sampled in many ways.
std::vector<Request> Mixed(int count) {
  std::vector<Request> requests;
  constexpr int kLengths[] = {1, 63, 64, 65, 127, 128, 129, 190, 200, 256};
  for (int i = 0; i < count; ++i) {
    Request request = MakeRequest(1 + i % 3, kLengths[i % 10], 20 + i * 7 % 60);
    request.id = RequestId{static_cast<uint64_t>(i) + 1};
    request.sampling.temperature = i % 3 == 0 ? 0.0f : 0.9f;
    request.sampling.top_p = i % 4 == 0 ? 0.8f : 1.0f;
    request.sampling.seed = 1000 + i;
    request.sampling.logprobs = 3;
    if (i % 6 == 5) request.sampling.prompt_logprobs = 1;
    requests.push_back(request);
  }
  return requests;
}

// Each in an engine that has computed nothing else.
std::vector<Answer> Alone(const Setting& setting, const std::vector<Request>& requests) {
  std::vector<Answer> answers;
  for (const Request& request : requests) {
    ModelEngine engine(setting);
    answers.push_back(ToAnswer(engine.Ask(request)));
  }
  return answers;
}

// Twice all at once, so that the second time much is found in the cache.
std::vector<std::vector<Answer>> Together(const Setting& setting,
                                          const std::vector<Request>& requests,
                                          EngineStats* stats = nullptr) {
  ModelEngine engine(setting);
  std::vector<std::vector<Answer>> rounds = {AskAll(engine, requests, 1000),
                                             AskAll(engine, requests, 2000)};
  if (stats != nullptr) *stats = engine.stats();
  return rounds;
}

TEST(DeterministicTest, NothingDependsOnTheBatchWhereRowsDependOnTheirStep) {
  const std::vector<Request> requests = Mixed(12);
  const std::vector<Answer> alone = Alone(Disturbed(), requests);
  for (const int32_t seqs : {1, 3, 16}) {
    Setting setting = Disturbed();
    setting.async = seqs > 1;
    setting.max_num_seqs = seqs;
    setting.max_num_batched_tokens = seqs == 3 ? 64 : 200;
    setting.prefix_caching = seqs != 3;
    EngineStats stats;
    for (const auto& answers : Together(setting, requests, &stats)) {
      EXPECT_EQ(Different(answers, alone), 0) << seqs << " sequences";
    }
    EXPECT_EQ(stats.prefix_hits > 0, setting.prefix_caching);
  }
}

TEST(DeterministicTest, NorOnPreemption) {
  std::vector<Request> requests = Mixed(8);
  for (Request& request : requests) request.stop.max_tokens = 100;
  const std::vector<Answer> alone = Alone(Disturbed(), requests);
  for (const bool async : {false, true}) {
    Setting setting = Disturbed();
    setting.num_blocks = 8;
    setting.async = async;
    setting.prefix_caching = async;
    EngineStats stats;
    for (const auto& answers : Together(setting, requests, &stats)) {
      EXPECT_EQ(Different(answers, alone), 0) << "async " << async;
    }
    EXPECT_GT(stats.preemptions, 0u);
  }
}

// The operations above are worth something: without fixed steps hardly an answer stays.
TEST(DeterministicTest, WithoutFixedStepsTheBatchIsSeen) {
  const std::vector<Request> requests = Mixed(12);
  Setting setting = Disturbed();
  setting.fixed = {};
  setting.prefix_caching = true;
  const std::vector<Answer> alone = Alone(setting, requests);
  EXPECT_GT(Different(Together(setting, requests)[0], alone), 6);
}

// A conversation whose second turn repeats the first one's answer. Keys of the answer were computed
// in absorbed form; as a part of a prompt they are computed in expanded form.
TEST(DeterministicTest, AnAnswerInThePrefixCacheIsNotSeen) {
  Request first = MakeRequest(1, 100, 150);
  first.sampling.logprobs = 0;
  for (const Setting& base : {Setting{}, Disturbed()}) {
    Setting setting = base;
    setting.prefix_caching = true;
    setting.deterministic = true;
    const auto second_turn = [&](const Setting& used) {
      ModelEngine engine(used);
      const Told told = engine.Ask(first);
      Request second = first;
      second.id = RequestId{2};
      second.prompt.insert(second.prompt.end(), told.tokens.begin(), told.tokens.end());
      second.prompt.push_back(7);
      second.stop.max_tokens = 30;
      ModelEngine fresh(used);
      return std::pair(ToAnswer(engine.Ask(second)), ToAnswer(fresh.Ask(second)));
    };
    const auto [cached, computed] = second_turn(setting);
    EXPECT_EQ(cached, computed);
    if (base.deterministic) continue;
    setting.deterministic = false;
    const auto [other, same] = second_turn(setting);
    EXPECT_EQ(same, computed);
    EXPECT_NE(other, computed);
  }
}

// Chunks are found where whole ones are the same, and nowhere else.
TEST(DeterministicTest, ThePrefixCacheHasWholeChunks) {
  Setting setting = Disturbed();
  setting.prefix_caching = true;
  setting.fixed.prompt_chunk = 128;
  ModelEngine engine(setting);
  Request request = MakeRequest(1, 300, 2);
  EXPECT_EQ(engine.Ask(request).cached_tokens, 0);
  request.id = RequestId{2};
  EXPECT_EQ(engine.Ask(request).cached_tokens, 256);
  request.id = RequestId{3};
  request.prompt.resize(255);
  EXPECT_EQ(engine.Ask(request).cached_tokens, 128);
  request.id = RequestId{4};
  request.prompt.resize(127);
  EXPECT_EQ(engine.Ask(request).cached_tokens, 0);
}

}  // namespace
}  // namespace baltoro
