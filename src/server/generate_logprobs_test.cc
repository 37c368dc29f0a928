// Log-probabilities of the generating endpoints.

#include <gmock/gmock.h>

#include <cmath>

#include "server/server_fixture.h"

namespace baltoro {
namespace {

using test::Answer;
using test::Play;

class GenerateLogprobsTest : public test::ServerFixture {};

TEST_F(GenerateLogprobsTest, ChatLogprobsNameTokensAndBytes) {
  const TokenId token = 300;
  Start([](const Request&) {
    std::vector<TokenEvent> events = Play({{token}}, FinishReason::kLength);
    events[0].logprobs = {{{token, -0.25f, 1}, {token, -0.25f, 1}, {200, -INFINITY, 2}}};
    return events;
  });

  const Json rows =
      Chat({{"logprobs", true}, {"top_logprobs", 2}}).json()["choices"][0]["logprobs"]["content"];
  const Json by_id = Chat({{"logprobs", true}, {"return_tokens_as_token_ids", true}})
                         .json()["choices"][0]["logprobs"]["content"];

  ASSERT_EQ(rows.size(), 1u);
  EXPECT_EQ(rows[0]["token"], tokenizer_->TokenBytes(token));
  EXPECT_EQ(rows[0]["logprob"], -0.25);
  EXPECT_EQ(rows[0]["bytes"].size(), tokenizer_->TokenBytes(token).size());
  ASSERT_EQ(rows[0]["top_logprobs"].size(), 2u);
  EXPECT_EQ(rows[0]["top_logprobs"][1]["logprob"], -9999.0);
  EXPECT_EQ(by_id[0]["token"], "token_id:300");
  EXPECT_EQ(engine_->submitted()[0].sampling.logprobs, 2);
}

TEST_F(GenerateLogprobsTest, EchoedLogprobsStartWithThePrompt) {
  Start([](const Request& request) {
    std::vector<TokenEvent> events = Play({{300}}, FinishReason::kLength);
    if (request.sampling.prompt_logprobs >= 0) {
      events[0].prompt_logprobs.emplace_back();
      for (size_t i = 1; i < request.prompt.size(); ++i) {
        events[0].prompt_logprobs.push_back({{request.prompt[i], -1.5f, 4}});
      }
    }
    events[0].logprobs = {{{300, -0.5f, 1}}};
    return events;
  });
  const std::string prompt = "naïve café";
  const Json body = {{"prompt", prompt}, {"echo", true}, {"logprobs", 0}};
  Json streamed = body;
  streamed["stream"] = true;
  Json only = body;
  only["max_tokens"] = 0;

  const Json choice = Complete(body).json()["choices"][0];
  const std::vector<Json> chunks = Complete(streamed).chunks();
  const Json nothing_new = Complete(only).json();

  const size_t tokens = Ids(prompt).size();
  EXPECT_EQ(choice["text"], prompt + std::string(tokenizer_->TokenBytes(300)));
  const Json& logprobs = choice["logprobs"];
  ASSERT_EQ(logprobs["tokens"].size(), tokens + 1);
  EXPECT_TRUE(logprobs["token_logprobs"][0].is_null());
  EXPECT_EQ(logprobs["token_logprobs"][1], -1.5);
  EXPECT_EQ(logprobs["token_logprobs"].back(), -0.5);
  // In characters, not in bytes: two of the prompt's characters have two bytes.
  EXPECT_EQ(logprobs["text_offset"].back(), 10);
  ASSERT_GE(chunks.size(), 2u);
  EXPECT_EQ(chunks[0]["choices"][0]["text"], prompt);
  EXPECT_EQ(chunks[0]["choices"][0]["logprobs"]["tokens"].size(), tokens);
  EXPECT_EQ(chunks[1]["choices"][0]["logprobs"]["text_offset"][0], 10);
  EXPECT_EQ(nothing_new["choices"][0]["text"], prompt);
  EXPECT_EQ(nothing_new["choices"][0]["logprobs"]["tokens"].size(), tokens);
  EXPECT_EQ(nothing_new["usage"]["completion_tokens"], 0);
}

TEST_F(GenerateLogprobsTest, TopLogprobsHaveEachKeyOnce) {
  Start([](const Request&) {
    std::vector<TokenEvent> events = Play({{200}}, FinishReason::kLength);
    // Three single bytes that are no characters by themselves.
    events[0].logprobs = {{{200, -1, 2}, {201, -0.5f, 1}, {200, -1, 2}, {202, -3, 3}}};
    return events;
  });

  const Answer answer = Complete({{"logprobs", 3}});

  EXPECT_EQ(answer.status, 200);
  (void)answer.json();  // refuses repeated keys
}

}  // namespace
}  // namespace baltoro
