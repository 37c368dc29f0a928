#pragma once

// A server with a scripted engine that takes pictures, and requests with some. Tests only.

#include <gmock/gmock.h>

#include <string>
#include <utility>
#include <vector>

#include "media/test_pictures.h"
#include "server/server_fixture.h"
#include "support/vocabulary.h"

namespace baltoro {

// One colour; 28 pixels of a side are one token.
inline std::string Png(int width, int height, char grey = 100) {
  std::string rows;
  for (int y = 0; y < height; ++y) rows += '\0' + std::string(static_cast<size_t>(width), grey);
  return MakePng(static_cast<uint32_t>(width), static_cast<uint32_t>(height), 8, 0, rows);
}

inline std::string Url(const std::string& bytes, const std::string& type = "image/png") {
  return "data:" + type + ";base64," + test::Base64(bytes);
}

inline Json ImagePart(const std::string& url) {
  return {{"type", "image_url"}, {"image_url", {{"url", url}, {"detail", "high"}}}};
}

inline Json TextOf(const std::string& text) {
  return {{"type", "text"}, {"text", text}};
}

inline Json UserMessage(std::vector<Json> parts) {
  return Json::array({{{"role", "user"}, {"content", Json(parts)}}});
}

class PicturePromptTest : public test::ServerFixture {
 protected:
  static ServerConfig PictureServer(PictureConfig pictures = {}) {
    ServerConfig config = DefaultConfig();
    pictures.decoder = {BT_PICTURE_WORKER, "work"};
    config.pictures = std::move(pictures);
    return config;
  }

  void StartWithPictures(ServerConfig config = PictureServer(), int32_t tokens_max = 4096) {
    ASSERT_NO_FATAL_FAILURE(Start(Says("seen"), std::move(config)));
    engine_->set_picture_tokens_max(tokens_max);
    server_->SetEngine(engine_.get());  // which reads the line above
    pad_ = Ids("<|media_pad|>").at(0);
  }

  Request Last() const { return engine_->submitted().back(); }

  // The prompt is what the template makes of `text`, each placeholder as often as its picture has
  // tokens.
  void ExpectPrompt(const std::string& text, const std::vector<int32_t>& counts) const {
    std::vector<TokenId> want;
    std::vector<int32_t> begins;
    for (const TokenId token : Ids(text)) {
      if (token != pad_) {
        want.push_back(token);
        continue;
      }
      ASSERT_LT(begins.size(), counts.size());
      const int32_t count = counts[begins.size()];
      begins.push_back(static_cast<int32_t>(want.size()));
      want.insert(want.end(), static_cast<size_t>(count), pad_);
    }
    const Request request = Last();
    EXPECT_EQ(request.prompt, want);
    ASSERT_EQ(request.pictures.size(), counts.size());
    for (size_t i = 0; i < counts.size(); ++i) {
      const RequestPicture& picture = request.pictures[i];
      EXPECT_EQ(picture.begin, begins[i]);
      EXPECT_EQ(picture.count, counts[i]);
      EXPECT_EQ(picture.frames, 1);
      EXPECT_EQ(picture.rows * picture.columns, 4 * counts[i]);
      EXPECT_EQ(picture.pixels.size(), static_cast<size_t>(4 * counts[i] * 3 * 14 * 14));
    }
  }

  std::string Refusal(const test::Answer& answer, const std::string& place) const {
    EXPECT_EQ(answer.status, 400) << answer.body;
    const std::string message = answer.error().value("message", "");
    EXPECT_THAT(message, ::testing::StartsWith(place + ": "));
    return message;
  }

  TokenId pad_ = -1;
};

inline constexpr const char* kPicture =
    "<|media_begin|>image<|media_content|><|media_pad|><|media_end|>\n";
inline constexpr const char* kOpening = "<|im_user|>user<|im_middle|>";
inline constexpr const char* kEnding = "<|im_end|><|im_assistant|>assistant<|im_middle|><think>";

}  // namespace baltoro
