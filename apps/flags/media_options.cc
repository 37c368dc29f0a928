#include "flags/media_options.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <utility>

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

Status ReadMediaHosts(const std::vector<std::string>& hosts, MediaOptions& out) {
  for (std::string host : hosts) {
    if (host == "*") {
      out.any_public_host = true;
      continue;
    }
    for (char& c : host) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
    if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
    const bool address = std::count(host.begin(), host.end(), ':') > 1;
    const char* const in_name = "abcdefghijklmnopqrstuvwxyz0123456789-_.";
    if (host.empty() || (!address && host.find_first_not_of(in_name) != host.npos)) {
      return InvalidArgument(
          fmt::format("--allowed-media-domains {}: expected the whole name of a host, without "
                      "scheme and port, or * for every host with a public address",
                      host));
    }
    out.hosts.push_back(std::move(host));
  }
  return {};
}

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
    } else if (kind == "video") {
      out.videos_max = count;
    } else if (count > 0) {
      notices.push_back(fmt::format(
          "{} has no effect here: {}: a request with one is refused however many it has", kFlag,
          kind));
    }
    const auto sized = [&](const char* key) { return value.is_object() && value.contains(key); };
    if ((image || kind == "video") && (sized("width") || sized("height") || sized("num_frames"))) {
      notices.push_back(
          fmt::format("{}: {}: sizes have no effect: room is left for the largest", kFlag, kind));
    }
  }
  return {};
}

}  // namespace baltoro
