#include "vision/vision_config.h"

#include <fmt/format.h>

#include <cmath>
#include <string_view>

#include "base/config_reader.h"
#include "base/file.h"

namespace baltoro {
namespace {

constexpr int64_t kWidthMax = int64_t{1} << 20;

Status Refuse(std::string_view key, std::string_view said, std::string_view expected) {
  return InvalidArgument(
      fmt::format("config.json: vision_config.{} is {}; expected {}", key, said, expected));
}

// A key whose only known value is what this encoder computes.
Status Only(const ConfigReader& read, std::string_view key, std::string_view value) {
  std::string said;
  BT_RETURN_IF_ERROR(read.StringOr(key, value, said));
  if (said == value) return {};
  return Refuse(key, '"' + said + '"', fmt::format("\"{}\"", value));
}

Status ReadForms(const ConfigReader& read) {
  BT_RETURN_IF_ERROR(Only(read, "pos_emb_type", "divided_fixed"));
  BT_RETURN_IF_ERROR(Only(read, "merge_type", "sd2_tpool"));
  BT_RETURN_IF_ERROR(Only(read, "video_attn_type", "spatial_temporal"));
  BT_RETURN_IF_ERROR(Only(read, "mm_projector_type", "patchmerger"));
  return Only(read, "projector_hidden_act", "gelu");
}

Status ReadMerge(const ConfigReader& read, VisionConfig& config) {
  double sides[2] = {2, 2};
  BT_RETURN_IF_ERROR(read.NumbersOr("merge_kernel_size", 1, 16, sides));
  for (const double side : sides) {
    if (side != std::floor(side)) {
      return Refuse("merge_kernel_size", fmt::format("[{}, {}]", sides[0], sides[1]),
                    "two integers");
    }
  }
  config.merge_rows = static_cast<int32_t>(sides[0]);
  config.merge_columns = static_cast<int32_t>(sides[1]);
  return {};
}

Status ReadSizes(const ConfigReader& read, VisionConfig& config) {
  BT_RETURN_IF_ERROR(read.Integer("vt_hidden_size", 1, kWidthMax, config.hidden));
  BT_RETURN_IF_ERROR(read.Integer("vt_num_hidden_layers", 1, 4096, config.layers));
  BT_RETURN_IF_ERROR(read.Integer("vt_num_attention_heads", 1, 4096, config.heads));
  BT_RETURN_IF_ERROR(read.Integer("vt_intermediate_size", 1, kWidthMax, config.intermediate));
  BT_RETURN_IF_ERROR(read.Integer("patch_size", 1, 256, config.patch));
  BT_RETURN_IF_ERROR(read.Integer("init_pos_emb_height", 1, 4096, config.table_rows));
  BT_RETURN_IF_ERROR(read.Integer("init_pos_emb_width", 1, 4096, config.table_columns));
  BT_RETURN_IF_ERROR(read.Integer("init_pos_emb_time", 1, 4096, config.frames_max));
  BT_RETURN_IF_ERROR(read.Integer("text_hidden_size", 1, kWidthMax, config.text_hidden));
  BT_RETURN_IF_ERROR(read.NumberOr("projector_ln_eps", 0, 1, 1e-5, config.projector_eps));
  int64_t projected = config.hidden;
  BT_RETURN_IF_ERROR(read.IntegerOr("mm_hidden_size", 1, kWidthMax, config.hidden, projected));
  if (projected != config.hidden) {
    return Refuse("mm_hidden_size", std::to_string(projected),
                  fmt::format("vt_hidden_size, {}", config.hidden));
  }
  return ReadMerge(read, config);
}

}  // namespace

VisionWidths VisionConfig::widths() const {
  return {.hidden = hidden,
          .intermediate = intermediate,
          .heads = heads,
          .pixels = pixels(),
          .merged = merged(),
          .projector = merged(),
          .text_hidden = text_hidden};
}

Result<VisionConfig> VisionConfig::Parse(const Json& json) {
  if (!json.is_object()) return InvalidArgument("config.json: not a JSON object");
  const ConfigReader outer(json, "");
  if (!outer.Has("vision_config")) {
    return InvalidArgument("config.json: vision_config is missing; this model reads no pictures");
  }
  BT_ASSIGN_OR_RETURN(const ConfigReader read, outer.ObjectOr("vision_config"));
  VisionConfig config;
  BT_RETURN_IF_ERROR(ReadForms(read));
  BT_RETURN_IF_ERROR(ReadSizes(read, config));
  BT_ASSIGN_OR_RETURN(const ConfigReader text, outer.ObjectOr("text_config"));
  int64_t text_hidden = 0;
  BT_RETURN_IF_ERROR(text.IntegerOr("hidden_size", 1, kWidthMax, config.text_hidden, text_hidden));
  if (text_hidden != config.text_hidden) {
    return Refuse("text_hidden_size", std::to_string(config.text_hidden),
                  fmt::format("text_config.hidden_size, {}", text_hidden));
  }
  BT_RETURN_IF_ERROR(config.Validate());
  return config;
}

Result<VisionConfig> VisionConfig::Read(const std::string& dir) {
  BT_ASSIGN_OR_RETURN(const Json json, ReadJsonFile(dir + "/config.json"));
  auto config = Parse(json);
  if (!config.ok()) return Status(config.status().code(), dir + "/" + config.status().message());
  Result<PictureRules> rules = ReadPictureRules(dir);
  if (rules.status().code() == Code::kNotFound) return config;
  BT_RETURN_IF_ERROR(rules.status());
  config.value().rules = rules.value();
  BT_RETURN_IF_ERROR(config.value().CheckRules(dir));
  return config;
}

VisionConfig VisionConfig::Released() {
  return {.hidden = 1152,
          .layers = 27,
          .heads = 16,
          .intermediate = 4304,
          .patch = 14,
          .table_rows = 64,
          .table_columns = 64,
          .frames_max = 4,
          .text_hidden = 7168};
}

// The door cuts by the rules, the encoder merges by its own sizes.
Status VisionConfig::CheckRules(const std::string& dir) const {
  if (rules.patch == patch && rules.merge == merge_rows && rules.merge == merge_columns) return {};
  return InvalidArgument(
      fmt::format("{}/preprocessor_config.json: patches of {} pixels, {} x {} of which are merged; "
                  "vision_config in config.json has {} and {} x {}",
                  dir, rules.patch, rules.merge, rules.merge, patch, merge_rows, merge_columns));
}

Status VisionConfig::Validate() const {
  const auto positive = [](std::string_view key, int64_t size) -> Status {
    if (size > 0) return {};
    return Refuse(key, std::to_string(size), "at least 1");
  };
  BT_RETURN_IF_ERROR(positive("vt_hidden_size", hidden));
  BT_RETURN_IF_ERROR(positive("vt_num_hidden_layers", layers));
  BT_RETURN_IF_ERROR(positive("vt_num_attention_heads", heads));
  BT_RETURN_IF_ERROR(positive("vt_intermediate_size", intermediate));
  BT_RETURN_IF_ERROR(positive("patch_size", patch));
  BT_RETURN_IF_ERROR(positive("init_pos_emb_height", table_rows));
  BT_RETURN_IF_ERROR(positive("init_pos_emb_width", table_columns));
  BT_RETURN_IF_ERROR(positive("init_pos_emb_time", frames_max));
  BT_RETURN_IF_ERROR(positive("text_hidden_size", text_hidden));
  BT_RETURN_IF_ERROR(positive("merge_kernel_size", std::min(merge_rows, merge_columns)));
  // Pairs of a head are rotated by columns and rows in turn.
  if (hidden % heads != 0 || head_size() % 4 != 0) {
    return Refuse("vt_num_attention_heads", std::to_string(heads),
                  fmt::format("a number that divides vt_hidden_size, {}, into heads whose size is "
                              "a multiple of 4",
                              hidden));
  }
  return {};
}

}  // namespace baltoro
