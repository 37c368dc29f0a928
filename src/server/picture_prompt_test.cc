// Pictures through every API, over real sockets and a scripted engine.

#include <gmock/gmock.h>

#include <semaphore>

#include "server/picture_fixture.h"

namespace baltoro {
namespace {

using test::Answer;
using ::testing::HasSubstr;

// One whose Read waits until it is let go.
class SlowSource final : public MediaSource {
 public:
  Result<std::string> Read(const std::string& url, const MediaBounds&) override {
    asked.release();
    let_go.acquire();
    if (url.ends_with("none")) return InvalidArgument("there is none");
    return Png(28, 28);
  }

  std::counting_semaphore<> asked{0}, let_go{0};
};

TEST_F(PicturePromptTest, PicturesStandWhereTheyStoodInTheMessage) {
  StartWithPictures();
  const Answer answer =
      Chat({{"messages", UserMessage({TextOf("See "), ImagePart(Url(Png(28, 28))), TextOf(" and "),
                                      ImagePart(Url(Png(56, 84, 7))), TextOf("?")})}});
  EXPECT_EQ(answer.status, 200) << answer.body;
  ExpectPrompt(std::string(kOpening) + "See " + kPicture + " and " + kPicture + "?" + kEnding,
               {1, 6});
  const Request request = Last();
  EXPECT_EQ(request.pictures[1].rows, 6);
  EXPECT_EQ(request.pictures[1].columns, 4);
  EXPECT_EQ(request.pictures[0].pixels.str(), std::string(4 * 588, 100));
  EXPECT_EQ(request.pictures[1].pixels.str(), std::string(24 * 588, 7));
  EXPECT_EQ(answer.json()["usage"]["prompt_tokens"], request.prompt.size());
}

TEST_F(PicturePromptTest, StreamsAndChoicesShareThePictures) {
  StartWithPictures();
  const Answer answer = Chat({{"messages", UserMessage({ImagePart(Url(Png(30, 30)))})},
                              {"stream", true},
                              {"n", 2},
                              {"stream_options", {{"include_usage", true}}}});
  EXPECT_EQ(answer.status, 200);
  ExpectPrompt(std::string(kOpening) + kPicture + kEnding, {4});
  const std::vector<Request> requests = engine_->submitted();
  ASSERT_EQ(requests.size(), 2u);
  EXPECT_EQ(requests[0].pictures[0].pixels.identity(), requests[1].pictures[0].pixels.identity());
  EXPECT_EQ(answer.chunks().back()["usage"]["prompt_tokens"], requests[0].prompt.size());
}

TEST_F(PicturePromptTest, EveryWayThatVllmTakesAPartIsTaken) {
  StartWithPictures();
  const std::string url = Url(Png(28, 28));
  for (const Json& part :
       {Json{{"type", "image_url"}, {"image_url", url}}, Json{{"image_url", url}},
        Json{{"type", "input_image"}, {"image_url", url}}, Json{{"type", "image"}, {"image", url}},
        Json{{"type", "image_url"}, {"image_url", {{"url", Url(Png(28, 28), "image/x-odd")}}}},
        Json{{"type", "image_url"}, {"image_url", {{"url", "DATA:Image" + url.substr(10)}}}},
        ImagePart("data:" + url.substr(url.find(';'))),
        ImagePart(Url(Png(28, 28), "Application/Octet-Stream"))}) {
    EXPECT_EQ(Chat({{"messages", UserMessage({part})}}).status, 200) << part;
    ExpectPrompt(std::string(kOpening) + kPicture + kEnding, {1});
  }
}

TEST_F(PicturePromptTest, EqualPicturesHaveEqualHashes) {
  StartWithPictures();
  const Json one = ImagePart(Url(Png(28, 28, 1)));
  Chat({{"messages", UserMessage({one, one, ImagePart(Url(Png(28, 28, 2)))})}});
  const Request request = Last();
  ASSERT_EQ(request.pictures.size(), 3u);
  EXPECT_EQ(request.pictures[0].hash, request.pictures[1].hash);
  EXPECT_NE(request.pictures[0].hash, request.pictures[2].hash);
}

TEST_F(PicturePromptTest, ResultsOfToolsHavePicturesInEveryApi) {
  StartWithPictures();
  const std::string url = Url(Png(28, 28));
  const Json calls = {{{"id", "a"}, {"function", {{"name", "shoot"}, {"arguments", "{}"}}}}};
  EXPECT_EQ(Chat({{"messages",
                   {{{"role", "user"}, {"content", "Go"}},
                    {{"role", "assistant"}, {"tool_calls", calls}},
                    {{"role", "tool"},
                     {"tool_call_id", "a"},
                     {"content", Json::array({ImagePart(url), TextOf("done")})}}}}})
                .status,
            200);
  const std::vector<TokenId> chat = Last().prompt;
  ASSERT_EQ(Last().pictures.size(), 1u);

  const Json source = {
      {"type", "base64"}, {"media_type", "image/png"}, {"data", test::Base64(Png(28, 28))}};
  const Json result = {{"type", "tool_result"},
                       {"tool_use_id", "a"},
                       {"content", {{{"type", "image"}, {"source", source}}, TextOf("done")}}};
  const Json use = {
      {"type", "tool_use"}, {"id", "a"}, {"name", "shoot"}, {"input", Json::object()}};
  EXPECT_EQ(Post("/v1/messages", {{"max_tokens", 50},
                                  {"messages",
                                   {{{"role", "user"}, {"content", "Go"}},
                                    {{"role", "assistant"}, {"content", Json::array({use})}},
                                    {{"role", "user"}, {"content", Json::array({result})}}}}})
                .status,
            200);
  EXPECT_EQ(Last().prompt, chat);

  const Json output = {{{"type", "input_image"}, {"image_url", url}},
                       {{"type", "input_text"}, {"text", "done"}}};
  EXPECT_EQ(
      Post("/v1/responses",
           {{"input",
             {{{"role", "user"}, {"content", "Go"}},
              {{"type", "function_call"}, {"call_id", "a"}, {"name", "shoot"}, {"arguments", "{}"}},
              {{"type", "function_call_output"}, {"call_id", "a"}, {"output", output}}}}})
          .status,
      200);
  EXPECT_EQ(Last().prompt, chat);
  EXPECT_EQ(Last().pictures.size(), 1u);
}

TEST_F(PicturePromptTest, AFailedToolCanShowWhatItSaw) {
  StartWithPictures();
  const Json source = {
      {"type", "base64"}, {"media_type", "image/png"}, {"data", test::Base64(Png(28, 28))}};
  const Json result = {{"type", "tool_result"},
                       {"tool_use_id", "a"},
                       {"is_error", true},
                       {"content", Json::array({{{"type", "image"}, {"source", source}}})}};
  const Json use = {
      {"type", "tool_use"}, {"id", "a"}, {"name", "shoot"}, {"input", Json::object()}};
  EXPECT_EQ(Post("/v1/messages", {{"max_tokens", 50},
                                  {"messages",
                                   {{{"role", "user"}, {"content", "Go"}},
                                    {{"role", "assistant"}, {"content", Json::array({use})}},
                                    {{"role", "user"}, {"content", Json::array({result})}}}}})
                .status,
            200);
  EXPECT_THAT(tokenizer_->Decode(Last().prompt, false), HasSubstr("Error: <|media_begin|>"));
}

TEST_F(PicturePromptTest, MessagesAndResponsesTakePicturesOfTheUser) {
  StartWithPictures();
  const Json source = {
      {"type", "base64"}, {"media_type", "image/png"}, {"data", test::Base64(Png(28, 28))}};
  const Json message = UserMessage({TextOf("See "), {{"type", "image"}, {"source", source}}});
  Answer answer = Post("/v1/messages", {{"max_tokens", 50}, {"messages", message}});
  EXPECT_EQ(answer.status, 200);
  ExpectPrompt(std::string(kOpening) + "See " + kPicture + kEnding, {1});
  EXPECT_EQ(answer.json()["usage"]["input_tokens"], Last().prompt.size());
  answer = Post("/v1/messages/count_tokens", {{"messages", message}});
  EXPECT_EQ(answer.json()["input_tokens"], Last().prompt.size());

  const Json parts = {
      {{"type", "input_text"}, {"text", "See "}},
      {{"type", "input_image"}, {"image_url", Url(Png(28, 28))}, {"detail", "low"}}};
  answer = Post("/v1/responses", {{"input", {{{"role", "user"}, {"content", parts}}}}});
  EXPECT_EQ(answer.status, 200);
  ExpectPrompt(std::string(kOpening) + "See " + kPicture + kEnding, {1});
  // What goes on from there has the picture still.
  answer =
      Post("/v1/responses", {{"input", "And now?"}, {"previous_response_id", answer.json()["id"]}});
  EXPECT_EQ(answer.status, 200) << answer.body;
  EXPECT_EQ(Last().pictures.size(), 1u);
}

TEST_F(PicturePromptTest, WhatOnlyRendersShowsTheSamePrompt) {
  StartWithPictures();
  const Json body = {{"messages", UserMessage({ImagePart(Url(Png(56, 56))), TextOf("?")})}};
  Chat(body);
  const Request request = Last();
  EXPECT_EQ(Post("/tokenize", body).json()["tokens"], request.prompt);
  EXPECT_EQ(Post("/v1/chat/completions/render", body).json()["token_ids"], request.prompt);
  const Json parts = {{{"type", "input_image"}, {"image_url", Url(Png(56, 56))}},
                      {{"type", "input_text"}, {"text", "?"}}};
  const Json items = {{"input", {{{"role", "user"}, {"content", parts}}}}};
  EXPECT_EQ(Post("/v1/responses/render", items).json()["token_ids"], request.prompt);
}

TEST_F(PicturePromptTest, TextNeverBecomesAPlace) {
  StartWithPictures();
  const std::string words = "<|media_begin|>image<|media_content|><|media_pad|><|media_end|>";
  const Answer answer = Chat(
      {{"messages",
        {{{"role", "system"}, {"content", words}},
         {{"role", "user"},
          {"name", words},
          {"content",
           {TextOf(words), ImagePart(Url(Png(28, 28))), TextOf("<|media_"), TextOf("pad|>")}}}}},
       {"tools", {{{"type", "function"}, {"function", {{"name", "f"}, {"description", words}}}}}}});
  EXPECT_EQ(answer.status, 200) << answer.body;
  const Request request = Last();
  ASSERT_EQ(request.pictures.size(), 1u);
  EXPECT_EQ(std::count(request.prompt.begin(), request.prompt.end(), pad_), 1);
  EXPECT_EQ(request.prompt[static_cast<size_t>(request.pictures[0].begin)], pad_);
  EXPECT_EQ(Chat({{"messages", UserMessage({TextOf(words)})}}).status, 200);
  const Request text = Last();
  EXPECT_TRUE(text.pictures.empty());
  EXPECT_EQ(std::count(text.prompt.begin(), text.prompt.end(), pad_), 0);
}

TEST_F(PicturePromptTest, ATemplateWithoutPlacesIsNamed) {
  template_source_ =
      "{% for m in messages %}{% for p in m.content %}{{ p.text }}{% endfor %}{% endfor %}";
  StartWithPictures();
  const std::string why =
      Refusal(Chat({{"messages", UserMessage({ImagePart(Url(Png(28, 28)))})}}), "messages");
  EXPECT_THAT(why, HasSubstr("leaves places for 0 pictures, and the request has 1"));
}

TEST_F(PicturePromptTest, LimitsAreNamedWithTheFieldThatBreaksThem) {
  PictureConfig pictures;
  pictures.count_max = 3;
  pictures.each.bytes_max = 2000;
  pictures.each.pixels_max = 200 * 200;
  pictures.bytes_max = 1500;
  pictures.pixels_max = 50'000;
  StartWithPictures(PictureServer(pictures), /*tokens_max=*/40);
  const auto refusal = [&](const std::vector<Json>& parts, size_t at) {
    return Refusal(Chat({{"messages", UserMessage(parts)}}),
                   "messages[0].content[" + std::to_string(at) + "].image_url");
  };
  const Json small = ImagePart(Url(Png(28, 28)));
  EXPECT_THAT(refusal({small, small, TextOf("x"), small, small}, 4), HasSubstr("more than 3"));
  EXPECT_THAT(refusal({small, ImagePart(Url(Png(28, 28) + std::string(2000, 'x')))}, 1),
              HasSubstr("bytes"));
  EXPECT_THAT(refusal({ImagePart(Url(Png(201, 200)))}, 0), HasSubstr("pixels"));
  EXPECT_THAT(refusal({ImagePart(Url(Png(1, 201)))}, 0), HasSubstr("200"));
  EXPECT_THAT(refusal({ImagePart(Url(Png(196, 196)))}, 0), HasSubstr("takes 49 tokens"));
  const Json large = ImagePart(Url(Png(160, 160)));
  EXPECT_THAT(refusal({large, large}, 1), HasSubstr("50000 pixels together"));
  const std::string padded = Png(28, 28) + std::string(900, 'x');
  EXPECT_THAT(refusal({ImagePart(Url(padded)), ImagePart(Url(padded))}, 1),
              HasSubstr("1500 bytes together"));
  EXPECT_EQ(Chat({{"messages", UserMessage({small, small, small})}}).status, 200);
}

TEST_F(PicturePromptTest, PicturesCountAgainstTheModelsLength) {
  StartWithPictures();
  const Json large = ImagePart(Url(Png(1120, 1120)));  // 1600 tokens
  const Answer two = Chat({{"messages", UserMessage({large, large})}, {"max_tokens", 1000}});
  EXPECT_EQ(two.status, 400);
  EXPECT_THAT(two.error().value("message", ""), HasSubstr("maximum context length is"));
  EXPECT_THAT(Refusal(Chat({{"messages", UserMessage({large, large, large})}}),
                      "messages[0].content[2].image_url"),
              HasSubstr("4800 tokens, and the model's context is 4096"));
  EXPECT_THAT(Refusal(Chat({{"messages", UserMessage({large})}, {"truncate_prompt_tokens", 9}}),
                      "truncate_prompt_tokens"),
              HasSubstr("not cut"));
}

TEST_F(PicturePromptTest, BrokenPicturesAreRefusedInOurOwnWords) {
  StartWithPictures();
  const std::string good = Png(28, 28);
  std::string bomb = good;
  bomb.replace(16, 8, std::string("\0\0\xff\xff\0\0\xff\xff", 8));
  for (const std::string& bytes :
       {std::string("x"), good.substr(0, 40), good.substr(0, good.size() - 14), bomb,
        std::string("\xff\xd8\xff\xe0"), std::string("GIF89a"), std::string("RIFF....WEBPVP8 "),
        std::string("/etc/passwd"), std::string("<svg xmlns='http://www.w3.org/2000/svg'/>"),
        std::string(5000, '\0')}) {
    const std::string why = Refusal(Chat({{"messages", UserMessage({ImagePart(Url(bytes))})}}),
                                    "messages[0].content[0].image_url");
    for (const char* word : {"0x", "/", "lib", "::", "\\"}) {
      EXPECT_EQ(why.find(word), std::string::npos) << why;
    }
  }
  EXPECT_TRUE(engine_->submitted().empty());
}

TEST_F(PicturePromptTest, WhatIsNoPictureIsNamed) {
  StartWithPictures();
  const auto refusal = [&](const Json& part, const std::string& place = ".image_url") {
    return Refusal(Chat({{"messages", UserMessage({part})}}), "messages[0].content[0]" + place);
  };
  const std::string base64 = test::Base64(Png(28, 28));
  EXPECT_THAT(refusal(ImagePart("data:image/png;base64,")), HasSubstr("base64 is broken"));
  EXPECT_THAT(refusal(ImagePart("data:image/png;base64,AA\nA")), HasSubstr("base64 is broken"));
  EXPECT_THAT(refusal(ImagePart("data:image/png;base64,AB==")), HasSubstr("must be zero"));
  for (const std::string& url : {"data:," + base64, "data:image/png," + base64,
                                 std::string("data:"), "data:text/html;base64," + base64}) {
    EXPECT_THAT(refusal(ImagePart(url)), HasSubstr("data:image/...;base64")) << url;
  }
  EXPECT_THAT(refusal(ImagePart("https://a.example/b.png")), HasSubstr("--allowed-media-domains"));
  EXPECT_THAT(refusal(ImagePart("file:///etc/passwd")), HasSubstr("--allowed-local-media-path"));
  EXPECT_THAT(refusal(ImagePart("")), HasSubstr("must be a URL"));
  EXPECT_THAT(refusal({{"type", "image_url"}}), HasSubstr("is required"));
  EXPECT_THAT(refusal({{"type", "image_url"}, {"image_url", 5}}), HasSubstr("must be a URL"));
  EXPECT_THAT(refusal({{"type", "input_image"}, {"file_id", "x"}}, ".file_id"),
              HasSubstr("no files are kept"));
  EXPECT_THAT(refusal({{"type", "image"}}, ".image"), HasSubstr("is required"));
  Json odd = ImagePart(Url(Png(28, 28)));
  odd["image_url"]["detail"] = "finest";
  EXPECT_THAT(refusal(odd, ".image_url.detail"), HasSubstr("must be auto, low"));
  const Answer video = Chat({{"messages", UserMessage({{{"type", "video"}, {"video", "x"}}})}});
  EXPECT_THAT(Refusal(video, "messages[0].content[0].type"),
              HasSubstr("videos are taken as frames"));
}

// As in vLLM, where a part is a part, whoever says it.
TEST_F(PicturePromptTest, MessagesOfEveryRoleHavePictures) {
  StartWithPictures();
  const Json part = ImagePart(Url(Png(28, 28)));
  for (const std::string role : {"system", "developer", "assistant"}) {
    ASSERT_EQ(Chat({{"messages",
                     {{{"role", role}, {"content", Json::array({part})}},
                      {{"role", "user"}, {"content", Json::array({part})}}}}})
                  .status,
              200)
        << role;
    ASSERT_EQ(Last().pictures.size(), 2u);
    EXPECT_GT(Last().pictures[1].begin, Last().pictures[0].begin);
  }
  for (const std::string role : {"system", "developer"}) {
    const Json shown = {{"type", "input_image"}, {"image_url", Url(Png(28, 28))}};
    ASSERT_EQ(Post("/v1/responses", {{"input",
                                      {{{"role", role}, {"content", Json::array({shown})}},
                                       {{"role", "user"}, {"content", "x"}}}}})
                  .status,
              200)
        << role;
    EXPECT_EQ(Last().pictures.size(), 1u);
  }
}

TEST_F(PicturePromptTest, TheOtherApisNameTheirOwnPlaces) {
  StartWithPictures();
  const auto block = [&](const Json& source) {
    return Post(
        "/v1/messages",
        {{"max_tokens", 5}, {"messages", UserMessage({{{"type", "image"}, {"source", source}}})}});
  };
  const std::string place = "messages.0.content.0.source";
  Refusal(block(nullptr), place);
  Refusal(block({{"type", "file"}, {"file_id", "x"}}), place + ".type");
  Refusal(block({{"type", "base64"}, {"media_type", "text/html"}, {"data", "AAAA"}}),
          place + ".media_type");
  Refusal(block({{"type", "base64"}, {"media_type", "image/png"}, {"data", 1}}), place + ".data");
  Refusal(block({{"type", "base64"}, {"media_type", "image/png"}, {"data", "AAAA"}}),
          place + ".data");
  Refusal(block({{"type", "url"}, {"url", "http://a.example/"}}), place + ".url");
  const auto item = [&](const Json& part) {
    return Post("/v1/responses",
                {{"input", {{{"role", "user"}, {"content", Json::array({part})}}}}});
  };
  Refusal(item({{"type", "input_image"}, {"image_url", "data:,"}}),
          "input[0].content[0].image_url");
  Refusal(item({{"type", "input_image"}, {"file_id", "x"}}), "input[0].content[0].file_id");
}

TEST_F(PicturePromptTest, AModelWithoutAnEncoderSaysSo) {
  Start(Says("seen"));
  const Json body = {{"messages", UserMessage({ImagePart(Url(Png(28, 28)))})}};
  EXPECT_THAT(Refusal(Chat(body), "messages[0].content[0].image_url"),
              HasSubstr("this model reads text only"));
  EXPECT_THAT(Refusal(Post("/tokenize", body), "messages[0].content[0].image_url"),
              HasSubstr("this model reads text only"));
}

TEST_F(PicturePromptTest, ALimitOfNoneIsNamed) {
  PictureConfig pictures;
  pictures.count_max = 0;
  StartWithPictures(PictureServer(pictures));
  EXPECT_THAT(Refusal(Chat({{"messages", UserMessage({ImagePart(Url(Png(28, 28)))})}}),
                      "messages[0].content[0].image_url"),
              HasSubstr("--limit-mm-per-prompt"));
}

TEST_F(PicturePromptTest, TemplatesOfStringsTakeNone) {
  ServerConfig config = PictureServer();
  config.content_as_string = true;
  StartWithPictures(std::move(config));
  EXPECT_THAT(Refusal(Chat({{"messages", UserMessage({ImagePart(Url(Png(28, 28)))})}}),
                      "messages[0].content[0].image_url"),
              HasSubstr("--chat-template-content-format"));
}

TEST_F(PicturePromptTest, HeldPicturesAreBounded) {
  PictureConfig pictures;
  pictures.held_bytes_max = 1;
  StartWithPictures(PictureServer(pictures));
  engine_->Hold(true);
  const Json body = {{"messages", UserMessage({ImagePart(Url(Png(28, 28)))})}};
  std::thread first([&] { EXPECT_EQ(Chat(body).status, 200); });
  EXPECT_TRUE(test::Eventually([&] { return engine_->running() == 1; }));
  EXPECT_EQ(Chat(body).status, 429);
  engine_->Hold(false);
  first.join();
  EXPECT_TRUE(test::Eventually([&] { return Chat(body).status == 200; }));
}

TEST_F(PicturePromptTest, OneClientDoesNotHoldAllThatIsHeld) {
  PictureConfig pictures;
  pictures.held_bytes_max = 3 * 4 * 588;  // bytes of three pictures of a token each
  ServerConfig config = PictureServer(pictures);
  config.api_keys = {"one", "two"};
  StartWithPictures(std::move(config));
  const HttpHeaders one = {{"authorization", "Bearer one"}},
                    two = {{"authorization", "Bearer two"}};
  engine_->Hold(true);
  const Json body = {{"messages", UserMessage({ImagePart(Url(Png(28, 28)))})}};
  std::vector<std::thread> held;
  const auto hold = [&](const HttpHeaders& key) {
    const size_t before = engine_->running();
    held.emplace_back([&] { EXPECT_EQ(Post("/v1/chat/completions", body, key).status, 200); });
    EXPECT_TRUE(test::Eventually([&] { return engine_->running() == before + 1; }));
  };
  hold(one);
  EXPECT_EQ(Post("/v1/chat/completions", body, one).status, 429);
  hold(two);
  engine_->Hold(false);
  for (std::thread& thread : held) thread.join();
}

// What is not decoded again shares its bytes with what was.
TEST_F(PicturePromptTest, ALaterTurnOfTheSameClientDecodesNothingAgain) {
  ServerConfig config = PictureServer();
  config.api_keys = {"one", "two"};
  StartWithPictures(std::move(config));
  const auto ask = [&](const std::string& key, const std::string& url) {
    EXPECT_EQ(Post("/v1/chat/completions", {{"messages", UserMessage({ImagePart(url)})}},
                   {{"authorization", "Bearer " + key}})
                  .status,
              200);
    return Last().pictures.at(0);
  };
  const std::string url = Url(Png(28, 28)), other = Url(Png(28, 28, 7));
  const RequestPicture first = ask("one", url);
  EXPECT_NE(ask("one", other).pixels.identity(), first.pixels.identity());
  EXPECT_EQ(ask("one", url).pixels.identity(), first.pixels.identity());
  const RequestPicture another_key = ask("two", url);
  EXPECT_EQ(another_key.hash, first.hash);
  EXPECT_NE(another_key.pixels.identity(), first.pixels.identity()) << "keys learn of each other";
  const std::string metrics = Get("/metrics").body;
  EXPECT_THAT(metrics,
              HasSubstr("vllm:mm_cache_queries_total{engine=\"0\",model_name=\"pocket\"} 4\n"));
  EXPECT_THAT(metrics,
              HasSubstr("vllm:mm_cache_hits_total{engine=\"0\",model_name=\"pocket\"} 1\n"));
}

TEST_F(PicturePromptTest, StoredPicturesAreSharedAndShownShort) {
  StartWithPictures();
  const std::string url = Url(Png(28, 28) + std::string(2000, 'x'));
  const Json parts = {{{"type", "input_image"}, {"image_url", url}, {"detail", "low"}},
                      {{"type", "input_image"}, {"image_url", url}},
                      {{"type", "input_image"}, {"image_url", Url(Png(28, 28))}},
                      {{"type", "input_text"}, {"text", "?"}}};
  std::string id = Post("/v1/responses", {{"input", {{{"role", "user"}, {"content", parts}}}}})
                       .json()
                       .value("id", "");
  ASSERT_NE(id, "");
  const Request first = Last();
  for (int turn = 0; turn < 2; ++turn) {
    const Answer next =
        Post("/v1/responses", {{"input", "And now?"}, {"previous_response_id", id}});
    ASSERT_EQ(next.status, 200) << next.body;
    id = next.json()["id"];
    ASSERT_EQ(Last().pictures.size(), 3u);
    EXPECT_EQ(Last().pictures[1].hash, first.pictures[1].hash);
  }
  const Json shown =
      Get("/v1/responses/" + id + "/input_items?order=asc&limit=1").json()["data"][0]["content"];
  EXPECT_EQ(shown[0]["image_url"], "data:image/png;base64,...");
  EXPECT_EQ(shown[0]["detail"], "low");
  EXPECT_EQ(shown[2]["image_url"], Url(Png(28, 28)));
  // What a stored item says in the place of a picture is nothing that a client may say.
  Refusal(Post("/v1/responses",
               {{"previous_response_id", id},
                {"input",
                 {{{"role", "user"},
                   {"content", Json::array({{{"type", "input_image"}, {"image_url", 0}}})}}}}}),
          "input[0].content[0].image_url");
}

TEST_F(PicturePromptTest, LargePicturesDriveOutNoAnswerOfAnotherKey) {
  ServerConfig config = PictureServer();
  config.api_keys = {"one", "two"};
  config.responses.bytes = 400'000;
  StartWithPictures(std::move(config));
  const HttpHeaders one = {{"authorization", "Bearer one"}},
                    two = {{"authorization", "Bearer two"}};
  const std::string id = Post("/v1/responses", {{"input", "Hello"}}, one).json()["id"];
  const auto show = [&](char filling) {
    const std::string url = Url(Png(28, 28) + std::string(60'000, filling));
    const Json part = {{"type", "input_image"}, {"image_url", url}};
    return Post("/v1/responses",
                {{"input", {{{"role", "user"}, {"content", Json::array({part})}}}}}, two);
  };
  std::string last;
  for (const char filling : {'a', 'b', 'c', 'd', 'e', 'f', 'g', 'h'}) {
    const Answer answer = show(filling);
    ASSERT_EQ(answer.status, 200) << answer.body;
    last = answer.json()["id"];
  }
  EXPECT_EQ(Get("/v1/responses/" + id, one).status, 200);
  // A talk with a large picture goes on for as many turns as one likes: it is kept once.
  for (int turn = 0; turn < 30; ++turn) {
    const Answer next =
        Post("/v1/responses", {{"input", "And?"}, {"previous_response_id", last}}, two);
    ASSERT_EQ(next.status, 200) << turn << next.body;
  }
}

TEST_F(PicturePromptTest, WhatIsContinuedCountsWhileItsAnswerIsMade) {
  ServerConfig config = PictureServer();
  config.responses.bytes = 250'000;
  StartWithPictures(std::move(config));
  engine_->Hold(true);
  const auto body = [](char filling) {
    const std::string url = Url(Png(28, 28) + std::string(60'000, filling));
    const Json part = {{"type", "input_image"}, {"image_url", url}};
    return Json{{"input", {{{"role", "user"}, {"content", Json::array({part})}}}}};
  };
  std::thread first([&] { EXPECT_EQ(Post("/v1/responses", body('a')).status, 200); });
  EXPECT_TRUE(test::Eventually([&] { return engine_->running() == 1; }));
  const Answer second = Post("/v1/responses", body('b'));
  EXPECT_EQ(second.status, 429);
  EXPECT_THAT(second.body, HasSubstr("store: false"));
  engine_->Hold(false);
  first.join();
  EXPECT_EQ(Post("/v1/responses", body('b')).status, 200);
}

TEST_F(PicturePromptTest, WaitingForAPictureHoldsUpNobodyElse) {
  const auto source = std::make_shared<SlowSource>();
  ServerConfig config = PictureServer();
  config.http.threads = 1;
  config.media = source;
  StartWithPictures(std::move(config));
  const Json body = {{"messages", UserMessage({ImagePart("https://a.example/x.png")})}};
  std::thread waiting([&] { EXPECT_EQ(Chat(body).status, 200); });
  source->asked.acquire();
  EXPECT_EQ(Chat().status, 200);
  EXPECT_TRUE(Last().pictures.empty());
  source->let_go.release();
  waiting.join();
  EXPECT_EQ(Last().pictures.size(), 1u);
  source->let_go.release();
  const Json none = {{"messages", UserMessage({ImagePart("https://a.example/none")})}};
  EXPECT_THAT(Refusal(Chat(none), "messages[0].content[0].image_url"), HasSubstr("there is none"));
}

TEST_F(PicturePromptTest, WhoLeavesMeanwhileIsNotServed) {
  const auto source = std::make_shared<SlowSource>();
  ServerConfig config = PictureServer();
  config.media = source;
  StartWithPictures(std::move(config));
  const Json body = {{"messages", UserMessage({ImagePart("https://a.example/1"),
                                               ImagePart("https://a.example/2")})}};
  {
    HttpClient client({.port = server_->port(), .idle_timeout = 0.2});
    const auto gone = client.Stream(
        {.method = "POST", .target = "/v1/chat/completions", .headers = {}, .body = body.dump()},
        [](const SseEvent&) { return true; });
    EXPECT_FALSE(gone.ok());
  }
  source->asked.acquire();
  // Its connection is known to be closed once a later one was served and has some time behind it.
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  source->let_go.release(2);
  EXPECT_EQ(Chat().status, 200);
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  EXPECT_FALSE(source->asked.try_acquire());  // nobody asked for the second
  EXPECT_EQ(engine_->submitted().size(), 1u);
}

TEST_F(PicturePromptTest, ServerInfoSaysWhatARequestMayHold) {
  ServerConfig config =
      PictureServer({.rules = {}, .decoder = {}, .count_max = 3, .bytes_max = 5000});
  config.http.limits.body_bytes = 4000;
  StartWithPictures(config);

  const Json facts = Get("/server_info").json()["pictures"];

  EXPECT_EQ(facts["count_max"], 3);
  EXPECT_EQ(facts["file_bytes_max"], PictureLimits().bytes_max);
  EXPECT_EQ(facts["files_bytes_max"], 5000);
  EXPECT_EQ(facts["body_bytes_max"], 4000);
  EXPECT_EQ(facts["side_max"], PictureLimits().side_max);
}

TEST_F(PicturePromptTest, ServerInfoSaysThatThereAreNone) {
  StartWithPictures(PictureServer({.rules = {}, .decoder = {}, .count_max = 0, .videos_max = 0}));
  EXPECT_TRUE(Get("/server_info").json().at("pictures").is_null());
  ServerConfig texts = PictureServer();
  texts.content_as_string = true;
  StartWithPictures(texts);
  EXPECT_TRUE(Get("/server_info").json().at("pictures").is_null());
  StartWithPictures(PictureServer(), 0);
  EXPECT_TRUE(Get("/server_info").json().at("pictures").is_null());
}

}  // namespace
}  // namespace baltoro
