#include "flags/serve_bench_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace baltoro {
namespace {

using Args = std::vector<std::string>;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

BenchServeCommand Accept(const Args& args, const Environment& environment = {}) {
  Outcome<BenchServeCommand> out = ParseBenchServe(args, environment);
  if (const auto* ending = std::get_if<Ending>(&out)) ADD_FAILURE() << ending->err;
  return std::holds_alternative<Ending>(out) ? BenchServeCommand()
                                             : std::get<BenchServeCommand>(out);
}

std::string Refuse(const Args& args, int code = 2) {
  Outcome<BenchServeCommand> out = ParseBenchServe(args, {});
  const auto* ending = std::get_if<Ending>(&out);
  EXPECT_NE(ending, nullptr) << "accepted";
  if (ending == nullptr) return "";
  EXPECT_EQ(ending->exit_code, code);
  return ending->err;
}

TEST(BenchServeOptionsTest, UniqueBeginningsAndGeneralLengths) {
  const BenchServeCommand command = Accept({"--random-input", "5", "--random-output=6",
                                            "--num-prompt", "7", "--random_prefix_len", "8"});
  EXPECT_EQ(command.data.random_input, 5);
  EXPECT_EQ(command.data.random_output, 6);
  EXPECT_EQ(command.data.prompts, 7);
  EXPECT_EQ(command.data.random_prefix, 8);
  EXPECT_THAT(Refuse({"--random", "5"}), HasSubstr("ambiguous option"));
  const BenchServeCommand general = Accept({"--input-len", "9", "--output-len", "10"});
  EXPECT_EQ(general.data.random_input, 9);
  EXPECT_EQ(general.data.random_output, 10);
  EXPECT_EQ(general.data.hf_output, 10);
}

TEST(BenchServeOptionsTest, RequestsHaveABound) {
  EXPECT_THAT(Refuse({"--num-prompts", "2000000000"}), HasSubstr("--num-prompts"));
  EXPECT_THAT(Refuse({"--num-warmups", "2000000000"}), HasSubstr("--num-warmups"));
  EXPECT_EQ(Accept({"--num-prompts", "1000000"}).data.prompts, 1'000'000);
}

TEST(BenchServeOptionsTest, WhereRequestsGo) {
  EXPECT_EQ(Accept({}).endpoint, "/v1/completions");
  const BenchServeCommand chat =
      Accept({"--backend", "openai-chat", "--base-url", "http://h:81/root/"});
  EXPECT_EQ(chat.endpoint, "/root/v1/chat/completions");
  EXPECT_EQ(chat.host, "h");
  EXPECT_EQ(chat.port, 81);
  EXPECT_EQ(Accept({"--base-url", "[::1]:5"}).host, "::1");
  EXPECT_TRUE(Accept({"--base-url", "https://h"}).https);
  EXPECT_EQ(Accept({"--base-url", "https://h"}).port, 443);
  EXPECT_TRUE(Accept({"--base-url", "https://h:8", "--insecure"}).insecure);
  EXPECT_THAT(Refuse({"--base-url", "http://h:x"}), HasSubstr("'x' is not a number"));
  EXPECT_THAT(Refuse({"--backend", "openai-chat", "--endpoint", "/v1/completions"}),
              HasSubstr("ends in chat/completions"));
  EXPECT_THAT(Refuse({"--backend", "openai-audio"}, 1), HasSubstr("--backend openai-audio"));
  const Environment keys = {{"OPENAI_API_KEY", "a"}, {"VLLM_API_KEY", "b"}};
  EXPECT_THAT(Accept({}, keys).headers, ElementsAre(Pair("authorization", "Bearer a")));
  EXPECT_THAT(Accept({"--header", "Authorization=x", "k=v=w"}, keys).headers,
              ElementsAre(Pair("authorization", "x"), Pair("k", "v=w")));
  EXPECT_THAT(Refuse({"--header", "k"}), HasSubstr("'k' is not of the form KEY=VALUE"));
}

TEST(BenchServeOptionsTest, LoadAndSweeps) {
  EXPECT_EQ(Accept({}).load.rate, kAllAtOnce);
  EXPECT_EQ(Accept({"--request-rate", "2.5"}).load.rate, 2.5);
  EXPECT_THAT(Refuse({"--request-rate", "0"}), HasSubstr("0 is no rate above 0"));
  EXPECT_THAT(Refuse({"--request-rate", "fast"}), HasSubstr("'fast' is not a number"));
  EXPECT_EQ(Accept({"--ramp-up-strategy=linear", "--ramp-up-start-rps=1", "--ramp-up-end-rps=2"})
                .load.ramp_end,
            2);
  EXPECT_THAT(Refuse({"--ramp-up-strategy=linear"}), HasSubstr("needs --ramp-up-start-rps"));
  EXPECT_THAT(Refuse({"--ramp-up-strategy=linear", "--request-rate=1"}),
              HasSubstr("--request-rate"));
  EXPECT_THAT(Accept({"--sweep-rate", "1", "inf"}).sweep_rates, ElementsAre(1, kAllAtOnce));
  EXPECT_THAT(Refuse({"--sweep-rate", "1", "--sweep-concurrency", "1"}),
              HasSubstr("one of the two"));
  EXPECT_THAT(Refuse({"--sweep-prompts", "2"}), HasSubstr("needs --sweep-concurrency"));
  EXPECT_THAT(Refuse({"--sweep-svg", "f"}), HasSubstr("needs --sweep-concurrency"));
  EXPECT_THAT(Refuse({"--sweep-rate", "1", "--save-result", "--result-filename", "f"}),
              HasSubstr("needs --append-result"));
}

TEST(BenchServeOptionsTest, BodiesAndReports) {
  const BenchServeCommand command =
      Accept({"--temperature", "0", "--top-k", "3", "--extra-body", R"({"top_k":4,"seed":1})",
              "--logprobs", "2", "--dataset-name", "custom", "--dataset-path", "f"});
  EXPECT_EQ(command.body, (Json{{"repetition_penalty", 1.0},
                                {"top_k", 4},
                                {"temperature", 0.0},
                                {"logprobs", 2},
                                {"seed", 1}}));
  EXPECT_TRUE(command.notices.empty());
  EXPECT_EQ(Accept({}).body["ignore_eos"], Json(true));
  EXPECT_THAT(Accept({"--goodput", "ttft:100", "e2el:5.5"}).goodput,
              ElementsAre(Pair("e2el", 5.5), Pair("ttft", 100)));
  EXPECT_THAT(Refuse({"--goodput", "itl:1"}), HasSubstr("'itl:1' is not ttft, tpot or e2el"));
  EXPECT_THAT(Refuse({"--percentile-metrics", "ttft,x"}), HasSubstr("'x' is none of"));
  EXPECT_THAT(Accept({"--metric-percentiles", "25,99.9"}).percentiles, ElementsAre(25, 99.9));
  EXPECT_THAT(Refuse({"--metric-percentiles", "101"}), HasSubstr("not within 0 and 100"));
  EXPECT_THAT(Accept({"--save-detailed"}).notices.back(), HasSubstr("without --save-result"));
}

TEST(BenchServeOptionsTest, WhatChangesNothingIsTold) {
  const auto last = [](Args args) {
    args.insert(args.end(), {"--temperature", "0", "--ignore-eos"});
    const std::vector<std::string> notices = Accept(args).notices;
    EXPECT_LE(notices.size(), 1U);
    return notices.empty() ? "" : notices.back();
  };
  EXPECT_EQ(last({"--random-input-len", "5", "--max-concurrency", "2"}), "");
  EXPECT_EQ(last({"--dataset-name", "prefix_repetition", "--prefix-repetition-num-prefixes", "2"}),
            "");
  EXPECT_EQ(last({"--dataset-name", "prefix_repetition", "--random-input-len", "2"}),
            "--random-input-len has no effect with --dataset-name prefix_repetition");
  EXPECT_EQ(last({"--burstiness", "2"}), "--burstiness has no effect without --request-rate");
  EXPECT_EQ(last({"--burstiness", "2", "--sweep-rate", "1"}), "");
  EXPECT_EQ(last({"--request-rate", "2", "--sweep-rate", "1"}),
            "--request-rate has no effect beside --sweep-rate");
  EXPECT_EQ(last({"--no-oversample"}), "--no-oversample has no effect with --dataset-name random");
}

TEST(BenchServeOptionsTest, DrawnPicturesAsUpstreamAsksForThem) {
  const auto drawn = [](Args args) {
    args.insert(args.end(), {"--backend", "openai-chat", "--dataset-name", "random-mm"});
    return args;
  };
  const BenchServeCommand plain = Accept(drawn({"--random-input-len", "5", "--input-len", "6"}));
  EXPECT_EQ(plain.data.random_input, 6);
  EXPECT_EQ(plain.data.pictures_min, 1);
  EXPECT_EQ(plain.data.pictures_max, 1);
  EXPECT_THAT(plain.data.picture_sizes,
              ElementsAre(PictureBucket{256, 256, 0.5}, PictureBucket{720, 1280, 0.5}));
  EXPECT_EQ(plain.body["ignore_eos"], true);
  EXPECT_EQ(plain.notices.size(), 2U);  // about the full length and the temperature
  const BenchServeCommand many = Accept(
      drawn({"--random-mm-base-items-per-request", "5", "--random-mm-num-mm-items-range-ratio",
             "0.5", "--random-mm-limit-mm-per-prompt", R"({"image":6,"video":0})",
             "--random-mm-bucket-config", "{(28, 56, 1): 1.0}"}));
  EXPECT_EQ(many.data.pictures_min, 2);
  EXPECT_EQ(many.data.pictures_max, 6);
  EXPECT_THAT(many.data.picture_sizes, ElementsAre(PictureBucket{28, 56, 1}));
  EXPECT_THAT(Refuse(drawn({"--random-mm-base-items-per-request", "3",
                            "--random-mm-limit-mm-per-prompt.image", "2"})),
              HasSubstr("3 pictures at least are more than the 2"));
  EXPECT_THAT(Refuse(drawn({"--random-mm-limit-mm-per-prompt", R"({"video":1})"})),
              HasSubstr("as \"image\""));
  EXPECT_THAT(Refuse(drawn({"--random-mm-bucket-config", "{(720, 1280, 16): 1}"})),
              HasSubstr("only pictures are drawn"));
  EXPECT_THAT(Refuse({"--dataset-name", "random-mm"}), HasSubstr("needs --backend openai-chat"));
  EXPECT_THAT(Accept({"--random-mm-base-items-per-request", "2"}).notices,
              ::testing::Contains(
                  "--random-mm-base-items-per-request has no effect with --dataset-name random"));
}

TEST(BenchServeOptionsTest, DataSetsSayWhatTheyNeed) {
  EXPECT_THAT(Refuse({"--dataset-name", "hf"}), HasSubstr("needs --dataset-path"));
  EXPECT_THAT(Refuse({"--dataset-path", "f"}), HasSubstr("--dataset-name random is drawn"));
  EXPECT_THAT(Refuse({"--dataset-name", "agent"}), HasSubstr("needs --backend openai-chat"));
  EXPECT_THAT(Refuse({"--dataset-name", "burstgpt"}, 1), HasSubstr("--dataset-name burstgpt"));
  EXPECT_THAT(Refuse({"--plot-timeline"}, 1), HasSubstr("--save-detailed"));
  EXPECT_EQ(
      Accept({"--backend", "openai-chat", "--dataset-name", "agent", "--agent-context-max", "200k"})
          .data.agent_context_max,
      200'000);
}

}  // namespace
}  // namespace baltoro
