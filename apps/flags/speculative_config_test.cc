#include "flags/speculative_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace baltoro {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

struct Read {
  SpeculationConfig config;
  std::vector<std::string> notices;
};

Read Accept(const Json& config, int tensor_parallel = 1) {
  Read read;
  Result<SpeculationConfig> result = ReadSpeculativeConfig(config, tensor_parallel, read.notices);
  EXPECT_TRUE(result.ok()) << result.status().message();
  if (result.ok()) read.config = result.value();
  return read;
}

std::string ErrorOf(const Json& config) {
  std::vector<std::string> notices;
  const auto result = ReadSpeculativeConfig(config, 4, notices);
  return result.ok() ? "accepted" : result.status().message();
}

Json Ngram(Json more = Json::object()) {
  Json config = {{"method", "ngram"}, {"num_speculative_tokens", 4}};
  config.update(more);
  return config;
}

TEST(SpeculativeConfigTest, NothingAskedForIsNothing) {
  EXPECT_FALSE(Accept(Json::object()).config.enabled());
  EXPECT_FALSE(Accept({{"method", nullptr}, {"model", nullptr}}).config.enabled());
}

TEST(SpeculativeConfigTest, LookupHasUpstreamsDefaults) {
  const SpeculationConfig plain = Accept(Ngram()).config;
  EXPECT_EQ(plain.method, DraftMethod::kNgram);
  EXPECT_EQ(plain.drafts, 4);
  EXPECT_EQ(plain.lookup_min, 5);
  EXPECT_EQ(plain.lookup_max, 5);
  const SpeculationConfig most = Accept(Ngram({{"prompt_lookup_max", 3}})).config;
  EXPECT_EQ(most.lookup_min, 3);
  EXPECT_EQ(most.lookup_max, 3);
  const SpeculationConfig both =
      Accept(Ngram({{"prompt_lookup_max", 4}, {"prompt_lookup_min", 2}})).config;
  EXPECT_EQ(both.lookup_min, 2);
  EXPECT_EQ(both.lookup_max, 4);
  EXPECT_EQ(Accept({{"model", "ngram"}, {"num_speculative_tokens", 2}}).config.method,
            DraftMethod::kNgram);
}

TEST(SpeculativeConfigTest, KeysOfADraftModelAreToldToChangeNothing) {
  const Read read = Accept(Ngram({{"model", "/m"},
                                  {"draft_tensor_parallel_size", 1},
                                  {"quantization", "fp8"},
                                  {"revision", nullptr}}));
  EXPECT_THAT(read.notices,
              ElementsAre("--speculative-config: model, draft_tensor_parallel_size, quantization: "
                          "no effect: ngram has no draft model"));
  EXPECT_THAT(Accept(Ngram({{"rejection_sample_method", "probabilistic"}})).notices,
              ElementsAre(HasSubstr("is taken as strict")));
  EXPECT_TRUE(Accept(Ngram({{"rejection_sample_method", "standard"},
                            {"use_heterogeneous_vocab", false},
                            {"speculative_token_tree", nullptr}}))
                  .notices.empty());
}

TEST(SpeculativeConfigTest, ADraftModelHasItsDirectoryAndItsRanks) {
  const Read read = Accept({{"method", "eagle3"},
                            {"model", "/drafts"},
                            {"num_speculative_tokens", 3},
                            {"draft_tensor_parallel_size", 4}},
                           /*tensor_parallel=*/4);
  EXPECT_EQ(read.config.method, DraftMethod::kEagle3);
  EXPECT_EQ(read.config.model, "/drafts");
  EXPECT_EQ(read.config.draft_ranks, 4);
  EXPECT_TRUE(read.notices.empty());
  EXPECT_EQ(Accept({{"method", "eagle3"}}, 4).config.draft_ranks, 4);
  EXPECT_EQ(
      Accept({{"method", "eagle3"}, {"draft_tensor_parallel_size", nullptr}}, 4).config.draft_ranks,
      4);
  EXPECT_EQ(Accept({{"method", "eagle3"}, {"draft_tensor_parallel_size", 1}}, 4).config.draft_ranks,
            1);
  EXPECT_THAT(Accept({{"method", "eagle3"}, {"prompt_lookup_min", 2}}).notices,
              ElementsAre(HasSubstr("prompt_lookup_min: no effect")));
}

TEST(SpeculativeConfigTest, TheNumberFollowsWhatIsMeasured) {
  EXPECT_TRUE(Accept(Ngram(Json::object())).config.adaptive);
  EXPECT_FALSE(Accept(Ngram({{"adaptive", false}})).config.adaptive);
  const Json synthetic = {{"rejection_sample_method", "synthetic"},
                          {"synthetic_acceptance_length", 2}};
  EXPECT_FALSE(Accept(Ngram(synthetic)).config.adaptive);
  EXPECT_THAT(ErrorOf(Ngram({{"adaptive", 1}})), HasSubstr("adaptive: expected true or false"));
  EXPECT_THAT(Accept(Ngram({{"disable_by_batch_size", 8}})).notices,
              ElementsAre(HasSubstr("disable_by_batch_size: no effect")));
}

TEST(SpeculativeConfigTest, SyntheticRatesAreThoseOfTheMeanLength) {
  const Read read = Accept(
      Ngram({{"rejection_sample_method", "synthetic"}, {"synthetic_acceptance_length", 3.25}}));
  EXPECT_THAT(read.config.synthetic_rates, ElementsAre(1, 1, 0.25, 0));
  EXPECT_THAT(read.notices, ElementsAre(HasSubstr("answers are meaningless")));
  EXPECT_THAT(Accept(Ngram({{"rejection_sample_method", "synthetic"},
                            {"synthetic_acceptance_rates", {0.9, 0.5, 0.5, 0.1}}}))
                  .config.synthetic_rates,
              ElementsAre(0.9, 0.5, 0.5, 0.1));
}

TEST(SpeculativeConfigTest, WhatIsWrongIsNamedWithTheFix) {
  EXPECT_THAT(ErrorOf({{"method", "eagle3"}, {"model", "/d"}, {"num_speculative_tokens", 6}}),
              HasSubstr("from 1 to 5"));
  EXPECT_THAT(ErrorOf(Ngram({{"tensor_parallel_size", 1}})),
              HasSubstr("Please pass 'draft_tensor_parallel_size' instead."));
  EXPECT_THAT(ErrorOf({{"method", "ngram"}}), HasSubstr("num_speculative_tokens: it is not given"));
  EXPECT_THAT(ErrorOf({{"num_speculative_tokens", 3}}), HasSubstr("method: it is not given"));
  EXPECT_THAT(ErrorOf({{"method", "medusa"}}),
              HasSubstr("method: medusa is not one that is served; give ngram"));
  EXPECT_THAT(ErrorOf(Ngram({{"num_speculative_tokens", 33}})), HasSubstr("from 1 to 32"));
  EXPECT_THAT(ErrorOf(Ngram({{"num_speculative_tokens", 0}})), HasSubstr("from 1 to 32"));
  EXPECT_THAT(ErrorOf(Ngram({{"num_speculative_tokens", "4"}})), HasSubstr("from 1 to 32"));
  EXPECT_THAT(ErrorOf(Ngram({{"num_speculative_token", 4}})),
              HasSubstr("did you mean num_speculative_tokens?"));
  EXPECT_THAT(ErrorOf(Ngram({{"zzz", 4}})), HasSubstr("zzz: no such key"));
  EXPECT_THAT(ErrorOf(Ngram({{"prompt_lookup_min", 4}, {"prompt_lookup_max", 3}})),
              HasSubstr("prompt_lookup_min=4 must be <= prompt_lookup_max=3"));
  EXPECT_THAT(ErrorOf(Ngram({{"draft_tensor_parallel_size", 3}})), HasSubstr("expected 1 or 4"));
  EXPECT_THAT(ErrorOf({{"method", "eagle3"}, {"draft_tensor_parallel_size", 2}}),
              HasSubstr("draft_tensor_parallel_size: it is 2, expected 1 or 4"));
  EXPECT_THAT(ErrorOf(Ngram({{"speculative_token_tree", "[(0,)]"}})), HasSubstr("chain"));
  EXPECT_THAT(ErrorOf(Ngram({{"rejection_sample_method", "other"}})),
              HasSubstr("expected strict or synthetic"));
  EXPECT_THAT(ErrorOf(Ngram({{"synthetic_acceptance_length", 2}})),
              HasSubstr("needs rejection_sample_method synthetic"));
  EXPECT_THAT(ErrorOf(Ngram({{"rejection_sample_method", "synthetic"}})),
              HasSubstr("one of the two"));
  EXPECT_THAT(ErrorOf(Ngram({{"rejection_sample_method", "synthetic"},
                             {"synthetic_acceptance_length", 5.5}})),
              HasSubstr("from 1 to 5"));
  EXPECT_THAT(ErrorOf(Ngram({{"rejection_sample_method", "synthetic"},
                             {"synthetic_acceptance_rates", {0.5, 0.6, 0, 0}}})),
              HasSubstr("none above the one before"));
}

}  // namespace
}  // namespace baltoro
