#include "media/picture_rules.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

namespace baltoro {
namespace {

using ::testing::HasSubstr;

constexpr const char* kFile = "preprocessor_config.json";

Result<PictureRules> Parse(const std::string& section) {
  return ParsePictureRules("{\"media_proc_cfg\": {" + section + "}}", kFile);
}

TEST(PictureRulesTest, TheFileOfKimiK25GivesTheDefaults) {
  const auto rules =
      Parse(R"("in_patch_limit": 16384, "patch_size": 14, "image_mean": [0.5, 0.5, 0.5],
      "image_std": [0.5, 0.5, 0.5], "merge_kernel_size": 2, "fixed_output_tokens": null,
      "patch_limit_on_one_side": 512, "in_patch_limit_each_frame": 4096, "in_patch_limit_video": null,
      "sample_fps": 2.0, "max_num_frames_each_video": null, "temporal_merge_kernel_size": 4,
      "timestamp_mode": "hh:mm:ss.fff")");
  ASSERT_TRUE(rules.ok()) << rules.status().message();
  EXPECT_EQ(rules.value(), PictureRules());
}

TEST(PictureRulesTest, EveryNumberIsTheFiles) {
  const auto rules = Parse(R"("in_patch_limit": 100, "patch_size": 16, "image_mean": [0, 1, 2],
      "image_std": [1, 2, 3], "merge_kernel_size": [4, 4], "patch_limit_on_one_side": 64)");
  ASSERT_TRUE(rules.ok()) << rules.status().message();
  const PictureRules wanted{.patch = 16,
                            .merge = 4,
                            .patches_max = 100,
                            .side_patches_max = 64,
                            .frame_patches_max = 100,
                            .mean = {0, 1, 2},
                            .std = {1, 2, 3}};
  EXPECT_EQ(rules.value(), wanted);
}

TEST(PictureRulesTest, WhatIsWrongIsNamed) {
  const std::pair<const char*, const char*> cases[] = {
      {R"("in_patch_limit": 9)", "media_proc_cfg.patch_size is missing"},
      {R"("patch_size": 14)", "media_proc_cfg.in_patch_limit is missing"},
      {R"("patch_size": 0, "in_patch_limit": 9)", "patch_size is 0; expected"},
      {R"("patch_size": 14.5, "in_patch_limit": 9)", "patch_size is 14.5; expected"},
      {R"("patch_size": "14", "in_patch_limit": 9)", "patch_size is \"14\"; expected"},
      {R"("patch_size": 14, "in_patch_limit": 18446744073709551615)", "in_patch_limit is 18446744"},
      {R"("patch_size": 14, "in_patch_limit": -5)", "in_patch_limit is -5"},
      {R"("patch_size": 14, "in_patch_limit": 9, "merge_kernel_size": [2, 3])",
       "merge_kernel_size is 2 by 3; expected an integer from 1 to 16, or two equal ones"},
      {R"("patch_size": 14, "in_patch_limit": 9, "merge_kernel_size": [99, 99])",
       "merge_kernel_size is 99"},
      {R"("patch_size": 14, "in_patch_limit": 9, "patch_limit_on_one_side": 511)",
       "patch_limit_on_one_side is 511; expected a multiple of merge_kernel_size, 2"},
      {R"("patch_size": 14, "in_patch_limit": 9, "image_mean": [0.5])",
       "image_mean is [0.5]; expected a list of 3 numbers"},
      {R"("patch_size": 14, "in_patch_limit": 9, "image_std": [0.5, 0, 0.5])",
       "image_std is [0.5,0,0.5]"},
      {R"("patch_size": 14, "in_patch_limit": 9, "fixed_output_tokens": 64)",
       "fixed_output_tokens is set; expected null"},
  };
  for (const auto& [section, wanted] : cases) {
    const auto rules = Parse(section);
    ASSERT_FALSE(rules.ok()) << section;
    EXPECT_THAT(rules.status().message(), HasSubstr(std::string(kFile) + ": "));
    EXPECT_THAT(rules.status().message(), HasSubstr(wanted));
  }
  EXPECT_THAT(ParsePictureRules(R"({"media_proc_cfg": 3})", kFile).status().message(),
              HasSubstr("preprocessor_config.json: media_proc_cfg is 3; expected an object"));
  for (const char* text : {"[]", "{}"}) {
    EXPECT_THAT(ParsePictureRules(text, kFile).status().message(),
                HasSubstr("preprocessor_config.json: media_proc_cfg is missing"));
  }
  EXPECT_THAT(ParsePictureRules("{", kFile).status().message(),
              HasSubstr("preprocessor_config.json"));
}

TEST(PictureRulesTest, AModelWithoutTheFileHasNoRules) {
  const auto folder = std::filesystem::temp_directory_path() / "picture_rules_test";
  std::filesystem::create_directories(folder);
  std::filesystem::remove(folder / kFile);
  EXPECT_EQ(ReadPictureRules(folder).status().code(), Code::kNotFound);
  std::ofstream(folder / kFile) << R"({"media_proc_cfg": {"patch_size": 14, "in_patch_limit": 7}})";
  EXPECT_EQ(ReadPictureRules(folder).value().patches_max, 7);
  std::filesystem::remove_all(folder);
}

// Sizes that the model's own code gives.
TEST(PictureRulesTest, PicturesFitAsTheModelSays) {
  struct Case {
    int width, height, scaled_width, scaled_height, grid_height, grid_width, tokens;
  };
  const Case cases[] = {
      {1, 1, 1, 1, 2, 2, 1},
      {448, 448, 448, 448, 32, 32, 256},
      {600, 400, 600, 400, 30, 44, 330},
      {1024, 768, 1024, 768, 56, 74, 1036},
      {1920, 1080, 1920, 1080, 78, 138, 2691},
      {1792, 1792, 1792, 1792, 128, 128, 4096},
      {3000, 3000, 1794, 1794, 130, 130, 4225},
      {4000, 3000, 2073, 1554, 112, 150, 4200},
      {8000, 100, 7168, 89, 8, 512, 1024},
  };
  const PictureRules rules;
  for (const Case& c : cases) {
    const PictureFit fit = FitPicture(c.width, c.height, rules);
    EXPECT_EQ(fit.width, c.scaled_width) << c.width;
    EXPECT_EQ(fit.height, c.scaled_height) << c.width;
    EXPECT_EQ(fit.grid_height, c.grid_height) << c.width;
    EXPECT_EQ(fit.grid_width, c.grid_width) << c.width;
    EXPECT_EQ(fit.tokens(rules), c.tokens) << c.width;
  }
}

// A chunk of frames of 1080p has 48 x 86 patches a frame and 1,032 tokens, says the model's own
// code.
TEST(PictureRulesTest, FramesFitAsTheModelSays) {
  const PictureFit fit = FitPicture(1920, 1080, PictureRules().OfFrames());
  EXPECT_EQ(fit.width, 1196);
  EXPECT_EQ(fit.height, 672);
  EXPECT_EQ(fit.grid_height, 48);
  EXPECT_EQ(fit.grid_width, 86);
  EXPECT_EQ(fit.tokens(PictureRules()), 1032);
}

TEST(PictureRulesTest, RulesOfFramesAreRead) {
  const auto rules = Parse(R"("patch_size": 14, "in_patch_limit": 900,
      "in_patch_limit_each_frame": 300, "temporal_merge_kernel_size": 2,
      "in_patch_limit_video": null)");
  ASSERT_TRUE(rules.ok()) << rules.status().message();
  EXPECT_EQ(rules.value().frame_patches_max, 300);
  EXPECT_EQ(rules.value().item_frames, 2);
  EXPECT_EQ(rules.value().OfFrames().patches_max, 300);
  // A model of small pictures that says nothing of frames has none that are larger.
  EXPECT_EQ(Parse(R"("patch_size": 14, "in_patch_limit": 900)").value().frame_patches_max, 900);
  EXPECT_THAT(Parse(R"("patch_size": 14, "in_patch_limit": 9, "in_patch_limit_video": 5)")
                  .status()
                  .message(),
              HasSubstr("in_patch_limit_video is set; expected null"));
}

TEST(PictureRulesTest, NoPictureHasMorePatchesThanIsSaid) {
  PictureRules small = {.patches_max = 250};
  small.side_patches_max = 16;
  PictureRules coarse;
  coarse.merge = 4;
  for (const PictureRules& rules : {PictureRules(), PictureRules().OfFrames(), small, coarse}) {
    int64_t most = 0;
    for (int width = 1; width <= 9000; width += width < 600 ? 1 : 97) {
      for (int height = width; height <= 9000; height += 7) {
        most = std::max(most, FitPicture(width, height, rules).patches());
        ASSERT_LE(most, PatchesMax(rules)) << width << " x " << height;
      }
    }
    EXPECT_GE(most, PatchesMax(rules) * 95 / 100);  // nor is much room kept for none
  }
  // What a limit of 16,384 patches comes to.
  EXPECT_EQ(FitPicture(489, 6971, PictureRules()).patches(), 36 * 492);
}

TEST(PictureRulesTest, NoPictureIsLargerThanTheEncodersTable) {
  const PictureRules rules;
  for (const int width : {1, 2, 3, 13, 14, 15, 27, 28, 29, 4096, 7168, 7169, 16384}) {
    for (const int height : {1, 2, 3, 13, 14, 15, 27, 28, 29, 4096, 7168, 7169, 16384}) {
      const PictureFit fit = FitPicture(width, height, rules);
      EXPECT_GE(fit.width, 1);
      EXPECT_GE(fit.height, 1);
      EXPECT_LE(fit.width, width);
      EXPECT_LE(fit.height, height);
      EXPECT_LE(fit.grid_width, 512);
      EXPECT_LE(fit.grid_height, 512);
    }
  }
}

}  // namespace
}  // namespace baltoro
