#include "server/route_path.h"

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

int HexDigit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

}  // namespace

bool PathMatches(std::string_view pattern, std::string_view path) {
  return pattern == path || Argument(pattern, path).has_value();
}

std::optional<std::string> PathArgument(std::string_view pattern, std::string_view path) {
  return PercentDecode(Argument(pattern, path).value_or(""));
}

std::optional<std::string> PercentDecode(std::string_view written) {
  std::string out;
  for (size_t i = 0; i < written.size(); ++i) {
    if (written[i] != '%') {
      out.push_back(written[i]);
      continue;
    }
    const int high = i + 3 <= written.size() ? HexDigit(written[i + 1]) : -1;
    const int low = i + 3 <= written.size() ? HexDigit(written[i + 2]) : -1;
    if (high < 0 || low < 0) return std::nullopt;
    out.push_back(static_cast<char>(high * 16 + low));
    i += 2;
  }
  return out;
}

}  // namespace baltoro
