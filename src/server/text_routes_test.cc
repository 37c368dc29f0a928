// /tokenize, /detokenize, /tokenizer_info, prompts that are only rendered, and the reset of what is
// remembered of them.

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

TEST_F(TextRoutesTest, APromptIsRenderedAsItWouldBeAsked) {
  const Json chat = {{"messages", {{{"role", "user"}, {"content", "Hello <|im_end|>!"}}}},
                     {"temperature", 0.5},
                     {"max_tokens", 7},
                     {"request_id", "r"}};
  const Json completion = {{"prompt", {"one", "two"}}, {"max_tokens", 7}};

  const Json rendered = Post("/v1/chat/completions/render", chat).json();
  const Json list = Post("/v1/completions/render", completion).json();
  EXPECT_EQ(engine_->submitted().size(), 0u) << "nothing is generated";
  Post("/v1/chat/completions", chat);
  Post("/v1/completions", completion);

  const auto asked = engine_->submitted();
  ASSERT_EQ(asked.size(), 3u);
  EXPECT_EQ(rendered["token_ids"], Json(asked[0].prompt));
  EXPECT_EQ(rendered["prompt"], tokenizer_->Decode(asked[0].prompt, false));
  EXPECT_EQ(rendered["request_id"], "chatcmpl-r");
  EXPECT_EQ(rendered["sampling_params"]["temperature"], 0.5);
  EXPECT_EQ(rendered["sampling_params"]["max_tokens"], 7);
  ASSERT_EQ(list.size(), 2u);
  EXPECT_EQ(list[0]["token_ids"], Json(asked[1].prompt));
  EXPECT_EQ(list[1]["prompt"], "two");
  EXPECT_EQ(Post("/v1/chat/completions/render", {{"messages", 1}}).status, 400);
  EXPECT_EQ(Post("/v1/completions/render", {{"prompt", "a"}, {"model", "other"}}).status, 404);
  const Json response = Post("/v1/responses/render", {{"input", "two"}}).json();
  Post("/v1/responses", {{"input", "two"}});
  EXPECT_EQ(response["token_ids"], Json(engine_->submitted().back().prompt));
  EXPECT_EQ(Get("/v1/responses/" + response["request_id"].get<std::string>()).status, 404);
}

TEST_F(TextRoutesTest, RoutesOnDemandAreNotThereWithoutIt) {
  EXPECT_EQ(Get("/tokenizer_info").status, 404);
  EXPECT_EQ(Post("/reset_prefix_cache", {}).status, 404);
  EXPECT_EQ(Post("/start_profile", {}).status, 404);
  EXPECT_FALSE(Get("/server_info?config_format=json").json().contains("vllm_config"));
  EXPECT_EQ(server_->RouteList().find("/reset_prefix_cache"), std::string::npos);
  EXPECT_EQ(Get("/docs").body.find("/reset_prefix_cache"), std::string::npos);
}

class RoutesOnDemandTest : public test::ServerFixture {
 protected:
  void SetUp() override { Start(Says("x"), WithAllRoutes()); }
};

TEST_F(RoutesOnDemandTest, ARecordingBeginsAndIsTold) {
  const Answer begun = Post("/start_profile", {});

  EXPECT_EQ(begun.status, 200);
  EXPECT_EQ(begun.body, "");
  EXPECT_EQ(Post("/stop_profile", {}).json(), (Json{{"file", "/nowhere/f"}}));
}

TEST_F(RoutesOnDemandTest, UpstreamsFormOfTheInfoHasItAsTextOrAsAnObject) {
  const Json own = Get("/server_info").json(), json = Get("/server_info?config_format=json").json(),
             text = Get("/server_info?config_format=text").json();

  EXPECT_EQ(json["vllm_config"]["version"], own["version"]);
  EXPECT_EQ(json["vllm_config"]["flags"], (Json{{"seed", 3}}));
  EXPECT_EQ(json["vllm_env"], (Json{{"VLLM_LOGGING_LEVEL", "INFO"}}));
  EXPECT_GT(json["system_env"]["processors"], 0);
  EXPECT_EQ(ParseJson(text["vllm_config"].get<std::string>()).value(), json["vllm_config"]);
  EXPECT_EQ(Get("/server_info?config_format=yaml").status, 400);
}

TEST_F(RoutesOnDemandTest, TheTokenizerIsTold) {
  EXPECT_EQ(Get("/tokenizer_info").json(), (Json{{"tokenizer_class", "T"}}));
  EXPECT_EQ(Get("/reset_prefix_cache").status, 405);
}

// The engine finds prompts under equal salts alone.
TEST_F(RoutesOnDemandTest, AResetSeparatesPromptsFromThoseBeforeIt) {
  const Json ask = {{"prompt", "a"}, {"max_tokens", 1}, {"cache_salt", "mine"}};
  Post("/v1/completions", ask);
  Post("/v1/completions", ask);

  const Answer answer = Post("/reset_prefix_cache", {});
  Post("/v1/completions", ask);

  EXPECT_EQ(answer.status, 200);
  EXPECT_EQ(answer.body, "");
  const auto asked = engine_->submitted();
  ASSERT_EQ(asked.size(), 3u);
  EXPECT_EQ(asked[0].cache_salt, asked[1].cache_salt);
  EXPECT_NE(asked[1].cache_salt, asked[2].cache_salt);
  EXPECT_EQ(asked[1].cache_salt.size(), asked[2].cache_salt.size());
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
