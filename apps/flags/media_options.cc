#include "flags/media_options.h"

#include <fmt/format.h>

#include <string_view>

namespace baltoro {
namespace {

constexpr std::string_view kFlag = "--limit-mm-per-prompt";

// -1: it is none.
int64_t CountOf(const Json& value) {
  constexpr int64_t kMax = 1'000'000'000;
  const Json count = value.is_object() ? value.value("count", Json(999)) : value;
  if (!count.is_number_integer() || count < 0 || count > kMax) return -1;
  return count.get<int64_t>();
}

}  // namespace

Status ReadMediaLimits(const Json& limits, std::vector<std::string>& notices, MediaOptions& out) {
  for (const auto& [kind, value] : limits.items()) {
    const bool image = kind == "image";
    if (!image && kind != "video" && kind != "audio" && kind != "vision_chunk") {
      return InvalidArgument(
          fmt::format("{}: {}: no such key; image, video, audio or vision_chunk", kFlag, kind));
    }
    const int64_t count = CountOf(value);
    if (count < 0) {
      return InvalidArgument(
          fmt::format("{}: {}: expected a whole number from 0, or {{\"count\": N}}", kFlag, kind));
    }
    if (image) {
      out.pictures_max = count;
    } else if (count > 0) {
      notices.push_back(fmt::format(
          "{} has no effect here: {}: a request with one is refused however many it has", kFlag,
          kind));
    }
    if (image && value.is_object() && (value.contains("width") || value.contains("height"))) {
      notices.push_back(fmt::format(
          "{}: image: width and height: no effect: room is left for the largest picture", kFlag));
    }
  }
  return {};
}

}  // namespace baltoro
