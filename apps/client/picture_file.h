#pragma once

// Pictures of this machine, as requests carry them. Any thread.

#include <cstdint>
#include <string>
#include <string_view>

#include "base/json.h"
#include "base/status.h"

namespace baltoro {

// More than any server takes at once, where it does not say what it takes.
inline constexpr uint64_t kPictureFileBytesMax = uint64_t{256} << 20;

// "data:image/png;base64,..." of the bytes of a JPEG, PNG, GIF or WebP file; empty where they begin
// as none of these.
std::string PictureUrl(std::string_view bytes);

// The same of a file. An error names `flag`, the path, what is wrong and what to give instead;
// `bytes_max` is what the server takes of one file.
Result<std::string> ReadPictureUrl(const std::string& path,
                                   std::string_view flag,
                                   uint64_t bytes_max = kPictureFileBytesMax);

// What /server_info says of the largest file that the server takes; kPictureFileBytesMax where it
// says nothing of it.
uint64_t PictureBytesMaxOf(const Json& server_info);

}  // namespace baltoro
