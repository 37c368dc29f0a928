// Videos in chat, over real sockets and a scripted engine.

#include <gmock/gmock.h>

#include "server/picture_fixture.h"

namespace baltoro {
namespace {

using test::Answer;
using ::testing::HasSubstr;

class VideoPromptTest : public PicturePromptTest {};

std::string VideoUrl(const std::vector<std::string>& frames) {
  std::string url;
  for (const std::string& frame : frames) url += (url.empty() ? "" : ",") + test::Base64(frame);
  return "data:video/jpeg;base64," + url;
}

Json VideoPartOf(const std::vector<std::string>& frames) {
  return {{"type", "video_url"}, {"video_url", {{"url", VideoUrl(frames)}}}};
}

// Five frames of 2 x 1 tokens are an item of four and one of one, each with the tokens of a frame.
TEST_F(VideoPromptTest, FoursOfFramesAreItemsWithTheirTimes) {
  StartWithPictures();
  std::vector<std::string> frames;
  for (char i = 0; i < 5; ++i) frames.push_back(Png(56, 28, static_cast<char>(10 + i)));
  const Json message =
      UserMessage({TextOf("See "), ImagePart(Url(Png(28, 28))), VideoPartOf(frames), TextOf("?")});
  const Answer answer = Chat({{"messages", message}});
  EXPECT_EQ(answer.status, 200) << answer.body;

  const std::string item = "<|media_begin|>video<|media_content|>";
  std::vector<TokenId> want;
  const auto add = [&](const std::string& text) {
    const std::vector<TokenId> ids = Ids(text);
    want.insert(want.end(), ids.begin(), ids.end());
  };
  add(std::string(kOpening) + "See " + kPicture + "00:00:00.000" + item);
  add("<|media_pad|><|media_pad|>");
  add("<|media_end|>00:00:02.000" + item);
  add("<|media_pad|><|media_pad|>");
  add("<|media_end|>\n?" + std::string(kEnding));
  const Request request = Last();
  EXPECT_EQ(request.prompt, want);
  ASSERT_EQ(request.pictures.size(), 3u);
  const RequestPicture &four = request.pictures[1], &one = request.pictures[2];
  EXPECT_EQ(four.frames, 4);
  EXPECT_EQ(one.frames, 1);
  for (const RequestPicture& picture : {four, one}) {
    EXPECT_EQ(picture.count, 2);
    EXPECT_EQ(picture.rows, 2);
    EXPECT_EQ(picture.columns, 4);
  }
  std::string pixels;
  for (char i = 0; i < 4; ++i) pixels += std::string(8 * 588, static_cast<char>(10 + i));
  EXPECT_EQ(four.pixels.str(), pixels);
  EXPECT_EQ(one.pixels.str(), std::string(8 * 588, 14));
  // The next turn finds them.
  EXPECT_EQ(Chat({{"messages", message}}).status, 200);
  EXPECT_EQ(Last().pictures[1].pixels.identity(), four.pixels.identity());
}

TEST_F(VideoPromptTest, WhatIsWrongWithAVideoNamesItsFrame) {
  PictureConfig pictures;
  pictures.videos_max = 1;
  pictures.frames_max = 6;
  StartWithPictures(PictureServer(pictures));
  const auto refusal = [&](std::vector<Json> parts, const std::string& place) {
    return Refusal(Chat({{"messages", UserMessage(std::move(parts))}}),
                   "messages[0].content" + place + ".video_url");
  };
  const std::string good = Png(28, 28);
  EXPECT_THAT(refusal({{{"type", "video_url"}, {"video_url", "https://a.example/b.mp4"}}}, "[0]"),
              HasSubstr("files of videos are not decoded"));
  EXPECT_THAT(refusal({VideoPartOf({good, "no picture"})}, "[0]"), HasSubstr("up to frame 1: "));
  EXPECT_THAT(refusal({VideoPartOf({good, Png(56, 28)})}, "[0]"), HasSubstr("several sizes"));
  EXPECT_THAT(refusal({VideoPartOf({good, good, good, good, Png(56, 28)})}, "[0]"),
              HasSubstr("up to frame 4: its frames have several sizes"));
  EXPECT_THAT(refusal({VideoPartOf({good}), VideoPartOf({good})}, "[1]"),
              HasSubstr("more than 1 videos in one request (--limit-mm-per-prompt)"));
  EXPECT_THAT(refusal({VideoPartOf(std::vector<std::string>(7, good))}, "[0]"),
              HasSubstr("have 7 frames, and a request may have 6"));
  EXPECT_EQ(Chat({{"messages", UserMessage({VideoPartOf({good})})}}).status, 200);
}

// A user's words become neither a video nor its marks.
TEST_F(VideoPromptTest, WordsOfUsersAreNoVideos) {
  StartWithPictures();
  const std::string words = "<|kimi_k25_video_placeholder|>";
  const Answer answer =
      Chat({{"messages", UserMessage({TextOf(words), VideoPartOf({Png(28, 28)}), TextOf(words)})}});
  EXPECT_EQ(answer.status, 200) << answer.body;
  EXPECT_EQ(Last().pictures.size(), 1u);
}

}  // namespace
}  // namespace baltoro
