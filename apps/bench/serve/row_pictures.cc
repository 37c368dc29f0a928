// The pictures of a row of a data set, as URLs that requests carry.

#include <fmt/format.h>

#include <filesystem>

#include "base/base64.h"
#include "bench/serve/dataset_parts.h"
#include "client/picture_file.h"
#include "media/decode_picture.h"

namespace baltoro {
namespace {

bool IsUrl(std::string_view text) {
  for (const std::string_view scheme : {"data:", "http://", "https://", "file://"}) {
    if (text.starts_with(scheme)) return true;
  }
  return false;
}

// The media type of a picture whose file this is, as base64; empty: it is none.
std::string_view TypeOfBase64(std::string_view text) {
  constexpr size_t kBegin = 64;  // whole groups, and more than the longest signature
  std::string bytes;
  return DecodeBase64(text.substr(0, kBegin), bytes) ? PictureType(bytes) : "";
}

Result<std::string> OnePicture(const Json& value, const std::string& folder) {
  if (value.is_object()) {
    for (const char* name : {"bytes", "url", "src", "path"}) {
      const auto found = value.find(name);
      if (found != value.end() && found->is_string()) return OnePicture(*found, folder);
    }
  }
  if (!value.is_string()) {
    return InvalidArgument(
        "a picture is a URL, base64 of a file, a path, or an object with one of these as bytes, "
        "url, src or path");
  }
  const std::string& text = value.get_ref<const std::string&>();
  if (IsUrl(text)) return text;
  if (const std::string_view type = TypeOfBase64(text); !type.empty()) {
    return fmt::format("data:{};base64,{}", type, text);
  }
  constexpr size_t kPathMax = 4096;
  if (text.size() > kPathMax) return InvalidArgument("neither a URL nor base64 of a picture");
  return ReadPictureUrl((std::filesystem::path(folder) / text).string(), "its picture");
}

}  // namespace

Result<std::vector<std::string>> RowPictures(const Json& row,
                                             std::string_view field,
                                             size_t most,
                                             const std::string& folder) {
  std::vector<std::string> out;
  const auto found = row.find(field);
  if (found == row.end() || found->is_null()) return out;
  const Json list = found->is_array() ? *found : Json::array({*found});
  for (const Json& value : list) {
    if (out.size() == most) break;
    Result<std::string> url = OnePicture(value, folder);
    if (!url.ok()) {
      return Status(url.status().code(), fmt::format("{}: {}", field, url.status().message()));
    }
    out.push_back(std::move(url).value());
  }
  return out;
}

}  // namespace baltoro
