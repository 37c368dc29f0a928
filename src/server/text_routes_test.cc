// /tokenize and /detokenize.

#include <gmock/gmock.h>

#include "server/server_fixture.h"

namespace baltoro {
namespace {

using test::Answer;

class TextRoutesTest : public test::ServerFixture {
 protected:
  void SetUp() override { Start(Says("x")); }
};

TEST_F(TextRoutesTest, TextBecomesTokensAndTextAgain) {
  const std::string text = "Hello, 世界 <|im_end|>";

  const Json tokens = Post("/tokenize", {{"prompt", text}, {"return_token_strs", true}}).json();
  const Json back = Post("/detokenize", {{"tokens", tokens["tokens"]}}).json();

  EXPECT_EQ(tokens["tokens"], Json(tokenizer_->Encode(text)));
  EXPECT_EQ(tokens["count"], tokens["tokens"].size());
  EXPECT_EQ(tokens["token_strs"].size(), tokens["tokens"].size());
  EXPECT_EQ(tokens["max_model_len"], test::kTestModelLength);
  EXPECT_EQ(back["prompt"], text);
}

TEST_F(TextRoutesTest, AConversationHasTheTokensOfItsPrompt) {
  const Json conversation = {{"messages", {{{"role", "user"}, {"content", "Hello!"}}}}};

  const Json tokens = Post("/tokenize", conversation).json();
  Post("/v1/chat/completions", conversation);

  EXPECT_EQ(tokens["tokens"], Json(engine_->submitted().at(0).prompt));
  EXPECT_TRUE(tokens["token_strs"].is_null());
}

TEST_F(TextRoutesTest, LongTextsAreServedToo) {
  const std::string text(300'000, 'a');

  const Answer answer = Post("/tokenize", {{"prompt", text}});

  ASSERT_EQ(answer.status, 200);
  EXPECT_EQ(Post("/detokenize", {{"tokens", answer.json()["tokens"]}}).json()["prompt"], text);
}

TEST_F(TextRoutesTest, BadFieldsAreNamed) {
  const auto param = [&](const char* target, const Json& body) -> std::string {
    const Answer answer = Post(target, body);
    EXPECT_EQ(answer.status, 400) << body.dump();
    return answer.error()["param"].is_string() ? answer.error()["param"] : "(none)";
  };
  EXPECT_EQ(param("/tokenize", Json::object()), "prompt");
  EXPECT_EQ(param("/tokenize", {{"prompt", 1}}), "prompt");
  EXPECT_EQ(param("/tokenize", {{"messages", 1}}), "messages");
  EXPECT_EQ(param("/detokenize", Json::object()), "tokens");
  EXPECT_EQ(param("/detokenize", {{"tokens", {-1}}}), "tokens");
  EXPECT_EQ(param("/detokenize", {{"tokens", {2304}}}), "tokens");
  EXPECT_EQ(param("/detokenize", Json::array()), "(none)");
  EXPECT_EQ(Post("/tokenize", {{"prompt", "a"}, {"model", "other"}}).status, 404);
}

}  // namespace
}  // namespace baltoro
