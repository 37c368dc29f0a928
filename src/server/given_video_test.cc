// Videos as text: what requests give, and what prompts say.

#include "server/given_video.h"

#include <gmock/gmock.h>

namespace baltoro {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr const char* kPlace = "<|kimi_k25_video_placeholder|>";

TEST(GivenVideoTest, FramesStandBetweenCommas) {
  EXPECT_THAT(FramesOf("data:video/jpeg;base64,AAAA").value(), ElementsAre("AAAA"));
  EXPECT_THAT(FramesOf("DATA:Video/JPEG;base64,AA,,BB").value(), ElementsAre("AA", "", "BB"));
  for (const char* wrong : {"", "data:video/mp4;base64,AAAA", "https://a.example/b.mp4",
                            "data:video/jpeg,AAAA", "data:image/jpeg;base64,AAAA"}) {
    EXPECT_THAT(FramesOf(wrong).status().message(), HasSubstr("2 frames a second")) << wrong;
  }
}

TEST(GivenVideoTest, PartsAreRead) {
  std::vector<GivenPicture> out;
  Json part = {{"type", "video_url"}, {"video_url", {{"url", "data:video/jpeg;base64,A,B,C"}}}};
  ASSERT_TRUE(IsVideoPart(part));
  ASSERT_TRUE(TakeVideo(part, "here", out).ok());
  EXPECT_EQ(out.at(0).frames, 3);
  EXPECT_EQ(out.at(0).place, "here.video_url");
  Json plain = {{"type", "video_url"}, {"video_url", "data:video/jpeg;base64,A"}};
  ASSERT_TRUE(TakeVideo(plain, "here", out).ok());
  EXPECT_EQ(out.at(1).frames, 1);
  const auto refusal = [&](Json wrong) { return TakeVideo(wrong, "here", out).message(); };
  EXPECT_EQ(refusal({{"type", "video_url"}}), "here.video_url: is required");
  EXPECT_EQ(refusal({{"video_url", Json::object()}}), "here.video_url.url: is required");
  EXPECT_THAT(refusal({{"video_url", 5}}), HasSubstr("must be a URL"));
  EXPECT_THAT(refusal({{"video_url", "file:///a.mp4"}}), HasSubstr("here.video_url: must be of"));
  EXPECT_EQ(out.size(), 2u);
}

TEST(GivenVideoTest, FoursOfFramesAreItems) {
  EXPECT_EQ(ItemsOf(1, 4), 1);
  EXPECT_EQ(ItemsOf(4, 4), 1);
  EXPECT_EQ(ItemsOf(5, 4), 2);
}

// As the model's own code writes them.
TEST(GivenVideoTest, EachItemSaysWhenItBegins) {
  EXPECT_EQ(VideoText(2, 4, "<|media_pad|>"),
            "00:00:00.000<|media_begin|>video<|media_content|><|media_pad|><|media_end|>"
            "00:00:02.000<|media_begin|>video<|media_content|><|media_pad|><|media_end|>");
  EXPECT_THAT(VideoText(2, 3, ""), HasSubstr("<|media_end|>00:00:01.500<|media_begin|>"));
  // An hour, a minute and a second are 7,322 frames; a day has 172,800.
  EXPECT_THAT(VideoText(2, 7322, ""), HasSubstr("<|media_end|>01:01:01.000<"));
  EXPECT_THAT(VideoText(2, 172802, ""), HasSubstr("<|media_end|>00:00:01.000<"));
}

TEST(GivenVideoTest, OnlyTheTemplatesWordsBecomeVideos) {
  const std::string place = kPlace;
  std::vector<TextSegment> segments = {
      {.text = "a" + place + "\n" + place + "b", .special_allowed = true},
      {.text = place, .special_allowed = false},
      {.text = "c", .special_allowed = true}};
  const std::vector<int64_t> items = {1, 2};
  EXPECT_EQ(SpellVideos(items, 4, "*", segments), 2u);
  EXPECT_EQ(segments[0].text, "a" + VideoText(1, 4, "*") + "\n" + VideoText(2, 4, "*") + "b");
  EXPECT_EQ(segments[1].text, place);
  EXPECT_EQ(segments[2].text, "c");
  segments = {{.text = place + place, .special_allowed = true}};
  EXPECT_EQ(SpellVideos({}, 4, "*", segments), 2u);
}

}  // namespace
}  // namespace baltoro
