#pragma once

// Paths with an argument: "/v1/responses/{id}/cancel". The argument is not empty; where it comes
// last it may hold slashes (names of models do).

#include <optional>
#include <string>
#include <string_view>

namespace baltoro {

bool PathMatches(std::string_view pattern, std::string_view path);
// The argument of a path that matches, percent-decoded; not empty. Nothing where it is not well
// written.
std::optional<std::string> PathArgument(std::string_view pattern, std::string_view path);

}  // namespace baltoro
