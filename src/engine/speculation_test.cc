// Drafts change when tokens come, never which: what a request gets with prompt look-up, or with a
// draft model, is, to the last bit of its log-probabilities, what it gets without.

#include "engine/speculation.h"

#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "engine/testing/disturbed_ops.h"
#include "engine/testing/model_engine.h"

namespace baltoro {
namespace {

using test::DisturbedOps;
using test::kVocab;
using test::MakeRequest;
using test::ModelEngine;
using test::Setting;
using test::Told;

SpeculationConfig Ngram(int32_t drafts) {
  SpeculationConfig speculation;
  speculation.method = DraftMethod::kNgram;
  speculation.drafts = drafts;
  speculation.lookup_min = 1;  // of a small vocabulary: there are drafts all the time
  speculation.lookup_max = 3;
  return speculation;
}

// Sampled in every way that there is; of a small vocabulary, so that loops come soon.
std::vector<Request> Mixed(int count) {
  std::vector<Request> requests;
  for (int i = 0; i < count; ++i) {
    Request request = MakeRequest(1 + i % 4, 1 + (i * 37) % 150, 40 + i * 7 % 50);
    request.id = RequestId{static_cast<uint64_t>(i) + 1};
    SamplingParams& sampling = request.sampling;
    sampling.temperature = i % 3 == 0 ? 0.0f : 0.7f;
    sampling.seed = 1000 + static_cast<uint64_t>(i);
    sampling.top_p = i % 4 == 1 ? 0.8f : 1.0f;
    sampling.top_k = i % 5 == 2 ? 5 : 0;
    sampling.min_p = i % 7 == 3 ? 0.05f : 0.0f;
    sampling.repetition_penalty = i % 6 == 3 ? 1.2f : 1.0f;
    sampling.presence_penalty = i % 8 == 4 ? 0.3f : 0.0f;
    sampling.frequency_penalty = i % 8 == 5 ? 0.1f : 0.0f;
    sampling.logprobs = i % 2 == 0 ? 3 : -1;
    if (i % 9 == 4) sampling.prompt_logprobs = 1;
    if (i % 5 == 0) sampling.logit_bias = {{3, 2.0f}, {7, -4.0f}, {20, 1.5f}};
    if (i % 11 == 6) sampling.allowed_token_ids = {5, 9, 33, 40};
    if (i % 4 == 3) request.stop.stop_ids = {11, 12, 13, 14, 15};
    if (i % 8 == 3) request.stop.min_tokens = 20;
    if (i % 6 == 1) request.constraint = "loop 3,5,7,11 13,17 40,41,42,43,44";
    if (i % 12 == 8) request.constraint = "1 2 3 4,5,6 1 2 3 4,5,6 1 2 3 4,5,6 8";
    requests.push_back(std::move(request));
  }
  return requests;
}

struct Outcome {
  std::vector<Told> told;
  EngineStats stats;
};

Outcome AskAll(const Setting& setting, const std::vector<Request>& requests) {
  ModelEngine engine(setting);
  Outcome out;
  for (const Request& request : requests) engine.Submit(request);
  for (const Request& request : requests) {
    out.told.push_back(engine.Wait(static_cast<uint64_t>(request.id)));
  }
  out.stats = engine.stats();
  return out;
}

void ExpectSame(const Outcome& with, const Outcome& without) {
  ASSERT_EQ(with.told.size(), without.told.size());
  for (size_t i = 0; i < with.told.size(); ++i) {
    EXPECT_EQ(with.told[i].tokens, without.told[i].tokens) << i;
    EXPECT_EQ(with.told[i].logprobs, without.told[i].logprobs) << i;
    EXPECT_EQ(with.told[i].prompt_logprobs, without.told[i].prompt_logprobs) << i;
    EXPECT_EQ(with.told[i].finish, without.told[i].finish) << i << with.told[i].error;
    EXPECT_NE(with.told[i].finish, FinishReason::kError) << with.told[i].error;
  }
  EXPECT_EQ(without.stats.drafts, DraftStats());
  const DraftStats& drafts = with.stats.drafts;
  EXPECT_GT(drafts.accepted_tokens, 0u);
  EXPECT_GT(drafts.draft_tokens, drafts.accepted_tokens);
  uint64_t sum = 0;
  for (const uint64_t count : drafts.accepted_at) sum += count;
  EXPECT_EQ(sum, drafts.accepted_tokens);
}

TEST(SpeculationTest, AnswersAreThoseWithoutDrafts) {
  const std::vector<Request> requests = Mixed(48);
  const Outcome plain = AskAll({}, requests);
  for (const int32_t drafts : {1, 3, 8, 32}) {
    SCOPED_TRACE(drafts);
    const Outcome with = AskAll({.speculation = Ngram(drafts)}, requests);
    ExpectSame(with, plain);
    EXPECT_LT(with.stats.step, plain.stats.step);
  }
  ExpectSame(AskAll({.prefix_caching = true, .speculation = Ngram(4)}, requests), plain);
  // Steps with less room than there are drafts; plans that could be made ahead, and are not.
  ExpectSame(
      AskAll(
          {.threads = 1, .max_num_seqs = 6, .max_num_batched_tokens = 9, .speculation = Ngram(5)},
          requests),
      plain);
  ExpectSame(AskAll({.async = true, .speculation = Ngram(4)}, requests), plain);
}

TEST(SpeculationTest, PreemptionChangesNothing) {
  std::vector<Request> requests;
  for (int i = 0; i < 8; ++i) {
    Request request = MakeRequest(static_cast<uint64_t>(i) + 1, 50 + i, 120);
    request.sampling.temperature = i % 2 == 0 ? 0.0f : 0.6f;
    request.sampling.seed = static_cast<uint64_t>(i);
    if (i % 3 == 2) request.constraint = "loop 3,5,7,11 13,17 40,41,42,43,44";
    requests.push_back(request);
  }
  const Outcome plain = AskAll({}, requests);
  for (const bool caching : {false, true}) {
    const Outcome tight =
        AskAll({.num_blocks = 8, .prefix_caching = caching, .speculation = Ngram(6)}, requests);
    ExpectSame(tight, plain);
    EXPECT_GT(tight.stats.preemptions, 0u);
  }
}

TEST(SpeculationTest, ACacheWithScalesIsReadTheSame) {
  const std::vector<Request> requests = Mixed(16);
  for (const KvForm kv : {KvForm::kFp8, KvForm::kFp8Groups}) {
    ExpectSame(AskAll({.kv = kv, .speculation = Ngram(4)}, requests), AskAll({.kv = kv}, requests));
  }
}

// Where a row's bits depend on the rows beside it, steps of fixed sizes hold with drafts too.
TEST(SpeculationTest, FixedStepsKeepAnswersApart) {
  Setting setting{.prefix_caching = true,
                  .deterministic = true,
                  .fixed = {.prompt_chunk = 64, .decode_rows = 4, .key_part_blocks = 1},
                  .ops = &DisturbedOps<DType::kBf16, 4>()};
  const std::vector<Request> requests = Mixed(24);
  const Outcome plain = AskAll(setting, requests);
  for (const int32_t drafts : {1, 3, 8}) {
    SCOPED_TRACE(drafts);
    setting.speculation = Ngram(drafts);
    ExpectSame(AskAll(setting, requests), plain);
  }
}

// Random drafts of every form: of one in some tens the model thinks the same.
class DraftModelsTest : public ::testing::TestWithParam<size_t> {
 protected:
  static SpeculationConfig Eagle3(int32_t drafts) {
    SpeculationConfig speculation;
    speculation.method = DraftMethod::kEagle3;
    speculation.drafts = drafts;
    return speculation;
  }
  test::GoldenDraft draft_{GetParam()};
};

TEST_P(DraftModelsTest, AnswersAreThoseWithoutDrafts) {
  const std::vector<Request> requests = Mixed(12);
  const Outcome plain = AskAll({.draft = &draft_}, requests);
  const auto with = [&](Setting setting, int32_t drafts) {
    setting.draft = &draft_;
    setting.speculation = Eagle3(drafts);
    const Outcome outcome = AskAll(setting, requests);
    ExpectSame(outcome, plain);
    return outcome.stats;
  };
  with({.prefix_caching = true}, 5);
  with({.threads = 1, .max_num_seqs = 6, .max_num_batched_tokens = 9}, 3);
  EXPECT_GT(with({.num_blocks = 9}, 1).preemptions, 0u);
}

INSTANTIATE_TEST_SUITE_P(Recorded,
                         DraftModelsTest,
                         ::testing::Range(size_t{0}, test::GoldenDraft::Count(), size_t{8}),
                         [](const auto& instance) {
                           return test::GoldenDraft::NameOf(instance.param);
                         });

// What is measured with them: that many tokens a step.
TEST(SpeculationTest, SyntheticRatesGiveTheirLength) {
  SpeculationConfig speculation = Ngram(3);
  speculation.synthetic_rates = {1, 0.5, 0};
  std::vector<Request> requests;
  for (int i = 1; i <= 8; ++i) {
    requests.push_back(MakeRequest(static_cast<uint64_t>(i), 150, 150));
    requests.back().sampling.seed = static_cast<uint64_t>(i);
  }
  const DraftStats drafts = AskAll({.speculation = speculation}, requests).stats.drafts;
  EXPECT_GT(drafts.drafts, 200u);
  EXPECT_NEAR(static_cast<double>(drafts.accepted_tokens) / static_cast<double>(drafts.drafts), 1.5,
              0.1);
  EXPECT_EQ(drafts.accepted_at[2], 0u);
}

}  // namespace
}  // namespace baltoro
