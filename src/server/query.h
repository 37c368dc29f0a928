#pragma once

// The query of a request's target: "limit=5&after=a%20b".

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace baltoro {

using QueryFields = std::vector<std::pair<std::string, std::string>>;  // name, value

// In their order, decoded; a '+' is a space, and a field without '=' has an empty value. Nothing
// where a '%' is not followed by two hexadecimal digits (kBadQuery).
std::optional<QueryFields> ReadQuery(std::string_view query);

inline constexpr const char* kBadQuery = "query: a % is not followed by two hexadecimal digits";

}  // namespace baltoro
