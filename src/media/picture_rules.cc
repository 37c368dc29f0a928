#include "media/picture_rules.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/config_reader.h"
#include "base/file.h"
#include "base/json.h"

namespace baltoro {
namespace {

constexpr std::string_view kFileName = "preprocessor_config.json";
constexpr const char* kSection = "media_proc_cfg";
constexpr uint64_t kBytesMax = 1 << 20;

// One integer, or a list of equal ones, one a side.
Status ReadMerge(const ConfigReader& read, const std::string& file, PictureRules& rules) {
  std::vector<int32_t> sides;
  BT_RETURN_IF_ERROR(read.AddIntegers("merge_kernel_size", 1, 16, sides));
  if (sides.size() > 1) {
    return InvalidArgument(
        fmt::format("{}: {}.merge_kernel_size is {} by {}; expected an integer "
                    "from 1 to 16, or two equal ones",
                    file, kSection, sides[0], sides[1]));
  }
  if (!sides.empty()) rules.merge = sides[0];
  return {};
}

Status ReadFrames(const ConfigReader& read, const std::string& file, PictureRules& rules) {
  const int64_t most = std::min(rules.frame_patches_max, rules.patches_max);
  BT_RETURN_IF_ERROR(
      read.IntegerOr("in_patch_limit_each_frame", 1, 1 << 20, most, rules.frame_patches_max));
  BT_RETURN_IF_ERROR(
      read.IntegerOr("temporal_merge_kernel_size", 1, 64, rules.item_frames, rules.item_frames));
  if (!read.Has("in_patch_limit_video")) return {};
  return InvalidArgument(fmt::format(
      "{}: {}.in_patch_limit_video is set; expected null: each frame of a video has a limit alone",
      file, kSection));
}

Status ReadSection(const ConfigReader& read, const std::string& file, PictureRules& rules) {
  BT_RETURN_IF_ERROR(read.Integer("patch_size", 1, 256, rules.patch));
  BT_RETURN_IF_ERROR(read.Integer("in_patch_limit", 1, 1 << 20, rules.patches_max));
  BT_RETURN_IF_ERROR(ReadMerge(read, file, rules));
  BT_RETURN_IF_ERROR(read.IntegerOr("patch_limit_on_one_side", 1, 4096, rules.side_patches_max,
                                    rules.side_patches_max));
  if (rules.side_patches_max % rules.merge != 0) {
    return InvalidArgument(fmt::format(
        "{}: {}.patch_limit_on_one_side is {}; expected a multiple of merge_kernel_size, {}", file,
        kSection, rules.side_patches_max, rules.merge));
  }
  BT_RETURN_IF_ERROR(read.NumbersOr("image_mean", -10, 10, rules.mean));
  BT_RETURN_IF_ERROR(read.NumbersOr("image_std", 1e-3, 10, rules.std));
  if (read.Has("fixed_output_tokens")) {
    return InvalidArgument(fmt::format(
        "{}: {}.fixed_output_tokens is set; expected null: pictures take as many tokens as they "
        "have",
        file, kSection));
  }
  return ReadFrames(read, file, rules);
}

}  // namespace

Result<PictureRules> ParsePictureRules(std::string_view json, const std::string& file) {
  auto parsed = ParseJson(json);
  if (!parsed.ok()) return InvalidArgument(file + ": " + parsed.status().message());
  const Json& root = parsed.value();
  if (!root.is_object() || !root.contains(kSection)) {
    return InvalidArgument(fmt::format(
        "{}: {} is missing; expected an object, as Kimi K2.5's file has it", file, kSection));
  }
  BT_ASSIGN_OR_RETURN(const ConfigReader read, ConfigReader(root, "", file).ObjectOr(kSection));
  PictureRules rules;
  BT_RETURN_IF_ERROR(ReadSection(read, file, rules));
  return rules;
}

Result<PictureRules> ReadPictureRules(const std::string& model_dir) {
  const std::string path = fmt::format("{}/{}", model_dir, kFileName);
  BT_ASSIGN_OR_RETURN(const std::string json, ReadFile(path, kBytesMax));
  return ParsePictureRules(json, path);
}

PictureRules PictureRules::OfFrames() const {
  PictureRules rules = *this;
  rules.patches_max = frame_patches_max;
  return rules;
}

PictureFit FitPicture(int width, int height, const PictureRules& rules) {
  // The order of these operations, in double, is the model's own: a side is cut off to a whole
  // number at the end.
  const double across = std::max(1, width / rules.patch);
  const double down = std::max(1, height / rules.patch);
  const double side_max = static_cast<double>(rules.side_patches_max) * rules.patch;
  const double scale =
      std::min({1.0, std::sqrt(static_cast<double>(rules.patches_max) / (across * down)),
                side_max / width, side_max / height});
  const auto scaled = [&](int side) {
    const int cut = std::max(1, static_cast<int>(side * scale));
    return std::min(cut, rules.side_patches_max * rules.patch);
  };
  const auto patches = [&](int side) {
    const int token = rules.patch * rules.merge;
    return (side + token - 1) / token * rules.merge;
  };
  PictureFit fit{.width = scaled(width), .height = scaled(height)};
  fit.grid_width = patches(fit.width);
  fit.grid_height = patches(fit.height);
  return fit;
}

// A side of `grid` patches was longer than grid - merge before it was padded, and its whole patches
// come, scaled, to more than one less. What the limit leaves the other side may be a patch longer.
int64_t PatchesMax(const PictureRules& rules) {
  const int merge = rules.merge;
  const auto padded = [&](int64_t side) { return (side + merge - 1) / merge * merge; };
  const int64_t side_max = padded(rules.side_patches_max);
  int64_t most = 0;
  for (int64_t grid = merge; grid <= side_max; grid += merge) {
    const int64_t whole = grid - merge - 1;
    const int64_t other = whole < 1 ? side_max : padded(rules.patches_max / whole + 2);
    most = std::max(most, grid * std::min(other, side_max));
  }
  return most;
}

}  // namespace baltoro
