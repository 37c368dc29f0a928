#include "server/route_path.h"

#include "base/percent.h"

namespace baltoro {
namespace {

// The argument as written.
std::optional<std::string_view> Argument(std::string_view pattern, std::string_view path) {
  const size_t begin = pattern.find('{');
  const size_t end = pattern.find('}');
  if (begin == std::string_view::npos || end == std::string_view::npos) return std::nullopt;
  const std::string_view front = pattern.substr(0, begin);
  const std::string_view back = pattern.substr(end + 1);
  if (path.size() <= front.size() + back.size()) return std::nullopt;
  if (!path.starts_with(front) || !path.ends_with(back)) return std::nullopt;
  const std::string_view argument =
      path.substr(front.size(), path.size() - front.size() - back.size());
  if (!back.empty() && argument.find('/') != std::string_view::npos) return std::nullopt;
  return argument;
}

}  // namespace

bool PathMatches(std::string_view pattern, std::string_view path) {
  return pattern == path || Argument(pattern, path).has_value();
}

std::optional<std::string> PathArgument(std::string_view pattern, std::string_view path) {
  return PercentDecode(Argument(pattern, path).value_or(""));
}

}  // namespace baltoro
