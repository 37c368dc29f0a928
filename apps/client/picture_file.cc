#include "client/picture_file.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/base64.h"
#include "base/file.h"
#include "media/decode_picture.h"

namespace baltoro {

std::string PictureUrl(std::string_view bytes) {
  const std::string_view type = PictureType(bytes);
  if (type.empty()) return "";
  std::string url = fmt::format("data:{};base64,", type);
  AppendBase64(url, bytes);
  return url;
}

Result<std::string> ReadPictureUrl(const std::string& path,
                                   std::string_view flag,
                                   uint64_t bytes_max) {
  // Opened first: how large it is may be the answer to why it is not taken.
  BT_ASSIGN_OR_RETURN(const InputFile file, InputFile::Open(path, UINT64_MAX, flag));
  const std::string named = fmt::format("{} {}", flag, path);
  if (file.bytes() > bytes_max) {
    return InvalidArgument(fmt::format(
        "{}: the file has {} bytes, and the server takes {} of a picture: make it smaller", named,
        file.bytes(), bytes_max));
  }
  const Result<std::string> bytes = ReadWhole(file, bytes_max);
  if (!bytes.ok()) {
    return Status(bytes.status().code(), fmt::format("{}: {}", named, bytes.status().message()));
  }
  std::string url = PictureUrl(bytes.value());
  if (!url.empty()) return url;
  return InvalidArgument(fmt::format(
      "{}: {}: give a JPEG, PNG, WebP or GIF file", named,
      bytes.value().empty() ? "the file is empty" : "not a picture of a format that is taken"));
}

uint64_t PictureBytesMaxOf(const Json& server_info) {
  const auto facts = server_info.find("pictures");
  if (facts == server_info.end() || !facts->is_object()) return kPictureFileBytesMax;
  const auto bytes = facts->find("file_bytes_max");
  if (bytes == facts->end() || !bytes->is_number_unsigned()) return kPictureFileBytesMax;
  return std::min(bytes->get<uint64_t>(), kPictureFileBytesMax);
}

}  // namespace baltoro
