#include "vision/vision_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "support/support.h"

namespace baltoro {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Kimi K2.5, as its config.json has it.
Json K25() {
  return Json::parse(R"({
    "model_type": "kimi_k25", "text_config": {"hidden_size": 7168},
    "vision_config": {
      "init_pos_emb_height": 64, "init_pos_emb_time": 4, "init_pos_emb_width": 64,
      "merge_kernel_size": [2, 2], "merge_type": "sd2_tpool", "mm_hidden_size": 1152,
      "mm_projector_type": "patchmerger", "patch_size": 14, "pos_emb_type": "divided_fixed",
      "projector_hidden_act": "gelu", "projector_ln_eps": 1e-05, "text_hidden_size": 7168,
      "video_attn_type": "spatial_temporal", "vt_hidden_size": 1152,
      "vt_intermediate_size": 4304, "vt_num_attention_heads": 16, "vt_num_hidden_layers": 27}})");
}

std::string Refusal(const Json& json) {
  const auto config = VisionConfig::Parse(json);
  return config.ok() ? "accepted" : config.status().message();
}

std::string RefusalWith(const char* key, const Json& value) {
  Json json = K25();
  json["vision_config"][key] = value;
  return Refusal(json);
}

TEST(VisionConfigTest, K25IsRead) {
  const auto parsed = VisionConfig::Parse(K25());

  ASSERT_TRUE(parsed.ok()) << parsed.status().message();
  const VisionConfig& config = parsed.value();
  EXPECT_EQ(config.hidden, 1152);
  EXPECT_EQ(config.layers, 27);
  EXPECT_EQ(config.heads, 16);
  EXPECT_EQ(config.head_size(), 72);
  EXPECT_EQ(config.intermediate, 4304);
  EXPECT_EQ(config.pixels(), 588);
  EXPECT_EQ(config.table_rows, 64);
  EXPECT_EQ(config.table_columns, 64);
  EXPECT_EQ(config.frames_max, 4);
  EXPECT_EQ(config.merged(), 4608);
  EXPECT_EQ(config.text_hidden, 7168);
  EXPECT_EQ(config.tokens({.frames = 4, .rows = 48, .columns = 86}), 1032);
}

TEST(VisionConfigTest, WhatIsMissingIsNamed) {
  Json json = K25();
  json["vision_config"].erase("vt_hidden_size");
  EXPECT_THAT(Refusal(json), HasSubstr("vision_config.vt_hidden_size is missing"));
  json.erase("vision_config");
  EXPECT_THAT(Refusal(json), HasSubstr("vision_config is missing; this model reads no pictures"));
}

TEST(VisionConfigTest, WhatCannotBeComputedIsRefused) {
  EXPECT_THAT(RefusalWith("vt_num_attention_heads", 7),
              HasSubstr("vision_config.vt_num_attention_heads is 7; expected a number that "
                        "divides vt_hidden_size, 1152"));
  EXPECT_THAT(RefusalWith("vt_num_attention_heads", 64), HasSubstr("multiple of 4"));  // of 18
  EXPECT_THAT(RefusalWith("mm_hidden_size", 1024), HasSubstr("expected vt_hidden_size, 1152"));
  EXPECT_THAT(RefusalWith("text_hidden_size", 2048),
              HasSubstr("expected text_config.hidden_size, 7168"));
  EXPECT_THAT(RefusalWith("merge_type", "sd2"), HasSubstr("expected \"sd2_tpool\""));
  EXPECT_THAT(RefusalWith("projector_hidden_act", "relu"), HasSubstr("expected \"gelu\""));
  EXPECT_THAT(RefusalWith("merge_kernel_size", Json::array({2})), HasSubstr("a list of 2 numbers"));
  EXPECT_THAT(RefusalWith("merge_kernel_size", Json::array({2, 1.5})), HasSubstr("two integers"));
  EXPECT_THAT(RefusalWith("merge_kernel_size", Json::array({2, "2"})),
              HasSubstr("a list of 2 numbers"));
  EXPECT_THAT(RefusalWith("patch_size", 0), HasSubstr("patch_size is 0; expected an integer"));
}

TEST(VisionConfigTest, WhatIsDoneToPicturesIsThePreprocessors) {
  const test::TempDir dir;
  std::ofstream(dir.path() + "/config.json") << K25().dump();
  EXPECT_EQ(VisionConfig::Read(dir.path()).value().rules, PictureRules());

  const auto write = [&](const std::string& more) {
    std::ofstream(dir.path() + "/preprocessor_config.json")
        << "{\"media_proc_cfg\": {\"patch_size\": 14, \"in_patch_limit\": 1000" << more << "}}";
  };
  write(
      R"(, "patch_limit_on_one_side": 64, "in_patch_limit_each_frame": 100, "image_mean": [0.1, 0.2, 0.3], "image_std": [0.25, 0.5, 1])");
  const VisionConfig config = VisionConfig::Read(dir.path()).value();
  EXPECT_THAT(config.rules.mean, ElementsAre(0.1, 0.2, 0.3));
  EXPECT_THAT(config.rules.std, ElementsAre(0.25, 0.5, 1));
  EXPECT_EQ(config.side_max(), 64);
  EXPECT_EQ(config.patches_max(), PatchesMax(config.rules));
  write(R"(, "patch_limit_on_one_side": 64, "in_patch_limit_each_frame": 500)");
  EXPECT_EQ(VisionConfig::Read(dir.path()).value().patches_max(),
            4 * PatchesMax({.patches_max = 500, .side_patches_max = 64}));

  write(R"(, "image_std": [0.5, 0, 0.5])");
  EXPECT_THAT(VisionConfig::Read(dir.path()).status().message(),
              HasSubstr("preprocessor_config.json: media_proc_cfg.image_std is [0.5,0,0.5]"));
  write(R"(, "merge_kernel_size": 4)");
  EXPECT_THAT(
      VisionConfig::Read(dir.path()).status().message(),
      HasSubstr("preprocessor_config.json: patches of 14 pixels, 4 x 4 of which are merged; "
                "vision_config in config.json has 14 and 2 x 2"));
}

}  // namespace
}  // namespace baltoro
