#include "server/query.h"

#include <algorithm>

#include "base/percent.h"

namespace baltoro {
namespace {

std::optional<std::string> DecodeField(std::string_view written) {
  std::string spaced(written);
  std::replace(spaced.begin(), spaced.end(), '+', ' ');
  return PercentDecode(spaced);
}

}  // namespace

std::optional<QueryFields> ReadQuery(std::string_view query) {
  QueryFields fields;
  while (!query.empty()) {
    const std::string_view pair = query.substr(0, query.find('&'));
    query.remove_prefix(std::min(query.size(), pair.size() + 1));
    const size_t equals = std::min(pair.find('='), pair.size());
    auto name = DecodeField(pair.substr(0, equals));
    auto value = DecodeField(pair.substr(std::min(pair.size(), equals + 1)));
    if (!name || !value) return std::nullopt;
    fields.emplace_back(*std::move(name), *std::move(value));
  }
  return fields;
}

}  // namespace baltoro
