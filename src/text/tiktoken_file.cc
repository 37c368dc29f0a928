#include "text/tiktoken_file.h"

#include <algorithm>
#include <charconv>
#include <string_view>

#include "base/base64.h"
#include "base/file.h"

namespace baltoro {
Result<std::vector<std::string>> ReadTiktokenFile(const std::string& path) {
  BT_ASSIGN_OR_RETURN(const std::string content, ReadFile(path));
  std::vector<std::pair<size_t, std::string>> tokens;  // rank, bytes; in the order of the file
  std::string_view rest = content;
  const auto fail = [&](size_t line, const std::string& what) {
    return InvalidArgument(path + ":" + std::to_string(line) + ": " + what);
  };
  while (!rest.empty()) {
    const size_t length = std::min(rest.find('\n'), rest.size());
    std::string_view line = rest.substr(0, length);
    rest.remove_prefix(std::min(length + 1, rest.size()));
    if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
    const size_t space = line.find(' ');
    std::string bytes;
    if (space == std::string_view::npos || !DecodeBase64(line.substr(0, space), bytes)) {
      return fail(tokens.size() + 1, "expected base64, a space and a rank");
    }
    const std::string_view number = line.substr(space + 1);
    size_t rank = 0;
    const auto [stop, error] = std::from_chars(number.data(), number.data() + number.size(), rank);
    if (error != std::errc() || stop != number.data() + number.size()) {
      return fail(tokens.size() + 1, "the rank is not a number");
    }
    tokens.emplace_back(rank, std::move(bytes));
  }
  if (tokens.empty()) return InvalidArgument(path + ": no tokens in it");
  std::vector<std::string> by_rank(tokens.size());
  for (size_t i = 0; i < tokens.size(); ++i) {
    auto& [rank, bytes] = tokens[i];
    if (rank >= tokens.size()) {
      return fail(i + 1, "rank " + std::to_string(rank) + " is outside 0 to " +
                             std::to_string(tokens.size() - 1) + ", the number of lines less one");
    }
    if (!by_rank[rank].empty()) {
      return fail(i + 1, "rank " + std::to_string(rank) + " was given before");
    }
    by_rank[rank] = std::move(bytes);
  }
  return by_rank;
}

}  // namespace baltoro
