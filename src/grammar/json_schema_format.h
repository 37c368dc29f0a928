#pragma once

// The values of `format` that are languages of strings.

#include <optional>
#include <string>
#include <string_view>

namespace baltoro {

// A regular expression, to be matched as a whole, all of whose texts have the format; nothing for a
// format that is not known. Where a format allows more than anyone writes, less is matched.
std::optional<std::string> FormatPattern(std::string_view format);

// Formats that say how a value is meant and not how it is written: "int32", "password".
bool IsFormatHint(std::string_view format);

}  // namespace baltoro
