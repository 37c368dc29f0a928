#include "media/picture_rules.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/file.h"
#include "base/json.h"

namespace baltoro {
namespace {

constexpr std::string_view kFileName = "preprocessor_config.json";
constexpr const char* kSection = "media_proc_cfg";
constexpr uint64_t kBytesMax = 1 << 20;

// One key of the section at a time, each refused with the file, the key, what it says and what is
// expected.
class RulesReader {
 public:
  RulesReader(const Json& section, const std::string& file) : section_(section), file_(file) {}

  bool Has(const char* key) const {
    const auto found = section_.find(key);
    return found != section_.end() && !found->is_null();
  }
  Status Refuse(const char* key, const std::string& expected) const {
    const auto found = section_.find(key);
    return InvalidArgument(
        fmt::format("{}: {}.{} is {}; expected {}", file_, kSection, key,
                    found == section_.end()
                        ? "missing"
                        : found->dump(-1, ' ', false, Json::error_handler_t::replace).substr(0, 60),
                    expected));
  }

  template <typename Integer>
  Status Take(const char* key, int64_t low, int64_t high, Integer& out) const {
    const auto found = section_.find(key);
    const Status refused = Refuse(key, fmt::format("an integer from {} to {}", low, high));
    if (found == section_.end() || !found->is_number_integer()) return refused;
    if (found->is_number_unsigned() && found->get<uint64_t>() > static_cast<uint64_t>(high)) {
      return refused;
    }
    const int64_t value = found->get<int64_t>();
    if (value < low || value > high) return refused;
    out = static_cast<Integer>(value);
    return {};
  }
  // The same, or a list of two equal ones, one a side.
  Status TakeSides(const char* key, int64_t low, int64_t high, int& out) const {
    const Json& value = section_.at(key);
    if (!value.is_array()) return Take(key, low, high, out);
    const std::string expected =
        fmt::format("an integer from {} to {}, or two equal ones", low, high);
    if (value.size() != 2 || value[0] != value[1] || !value[0].is_number_integer()) {
      return Refuse(key, expected);
    }
    const Json one = {{key, value[0]}};
    return RulesReader(one, file_).Take(key, low, high, out);
  }
  Status TakeChannels(const char* key, double low, double high, std::array<float, 3>& out) const {
    const Json& value = section_.at(key);
    const Status refused =
        Refuse(key, fmt::format("three numbers from {} to {}, one a channel", low, high));
    if (!value.is_array() || value.size() != out.size()) return refused;
    for (size_t i = 0; i < out.size(); ++i) {
      if (!value[i].is_number()) return refused;
      const auto number = value[i].get<double>();
      if (!(number >= low && number <= high)) return refused;
      out[i] = static_cast<float>(number);
    }
    return {};
  }

 private:
  const Json& section_;
  const std::string& file_;
};

}  // namespace

Result<PictureRules> ParsePictureRules(std::string_view json, const std::string& file) {
  auto parsed = ParseJson(json);
  if (!parsed.ok()) return InvalidArgument(file + ": " + parsed.status().message());
  const Json& root = parsed.value();
  if (!root.is_object() || !root.contains(kSection) || !root.at(kSection).is_object()) {
    return InvalidArgument(fmt::format(
        "{}: {} is missing; expected an object, as Kimi K2.5's file has it", file, kSection));
  }
  const RulesReader read(root.at(kSection), file);
  PictureRules rules;
  BT_RETURN_IF_ERROR(read.Take("patch_size", 1, 256, rules.patch));
  BT_RETURN_IF_ERROR(read.Take("in_patch_limit", 1, 1 << 20, rules.patches_max));
  if (read.Has("merge_kernel_size")) {
    BT_RETURN_IF_ERROR(read.TakeSides("merge_kernel_size", 1, 16, rules.merge));
  }
  if (read.Has("patch_limit_on_one_side")) {
    BT_RETURN_IF_ERROR(read.Take("patch_limit_on_one_side", 1, 4096, rules.side_patches_max));
  }
  if (rules.side_patches_max % rules.merge != 0) {
    return read.Refuse("patch_limit_on_one_side",
                       fmt::format("a multiple of merge_kernel_size, {}", rules.merge));
  }
  if (read.Has("image_mean")) {
    BT_RETURN_IF_ERROR(read.TakeChannels("image_mean", -10, 10, rules.mean));
  }
  if (read.Has("image_std")) {
    BT_RETURN_IF_ERROR(read.TakeChannels("image_std", 1e-3, 10, rules.std));
  }
  if (read.Has("fixed_output_tokens")) {
    return read.Refuse("fixed_output_tokens", "null: pictures take as many tokens as they have");
  }
  return rules;
}

Result<PictureRules> ReadPictureRules(const std::string& model_dir) {
  const std::string path = fmt::format("{}/{}", model_dir, kFileName);
  BT_ASSIGN_OR_RETURN(const std::string json, ReadFile(path, kBytesMax));
  return ParsePictureRules(json, path);
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

}  // namespace baltoro
