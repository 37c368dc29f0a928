#pragma once

// Percent-encoding, as in URLs (RFC 3986, section 2.1).

#include <optional>
#include <string>
#include <string_view>

namespace baltoro {

// The value of a hexadecimal digit; -1: it is none.
int HexDigit(char c);

// "a%20b" -> "a b"; nothing where a '%' is not followed by two hexadecimal digits.
std::optional<std::string> PercentDecode(std::string_view written);

}  // namespace baltoro
