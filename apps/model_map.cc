#include "model_map.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "base/file.h"
#include "base/trim.h"

namespace baltoro {
namespace {

constexpr uint64_t kMapBytesMax = 64 << 10;
constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";  // some editors begin a file with it

std::string WithoutSlashes(std::string_view name) {
  while (name.size() > 1 && name.ends_with('/')) name.remove_suffix(1);
  return std::string(name);
}

// `where` begins an error: "BALTORO_MODEL_MAP models.map:3".
Status AddPair(std::string_view pair, const std::string& where, ModelMap& map) {
  const size_t equals = pair.find('=');
  const std::string name = WithoutSlashes(Trim(pair.substr(0, equals)));
  const std::string target(equals == pair.npos ? "" : Trim(pair.substr(equals + 1)));
  if (name.empty() || target.empty()) {
    return InvalidArgument(fmt::format(
        "{}: `{}` is no NAME=MODEL, as moonshotai/Kimi-K2-Instruct=/models/k2", where, pair));
  }
  const auto [there, is_new] = map.emplace(name, target);
  if (is_new || there->second == target) return {};
  return InvalidArgument(
      fmt::format("{}: {} is given two models: {} and {}", where, name, there->second, target));
}

}  // namespace

Result<ModelMap> ReadModelMap(const std::string& value) {
  ModelMap map;
  if (Trim(value).empty()) return map;
  const bool is_list = value.find('=') != value.npos;
  std::string text = value;
  if (!is_list) {
    Result<std::string> file = ReadFile(value, kMapBytesMax, kModelMapVariable);
    if (!file.ok()) {
      return Status(file.status().code(), file.status().message() +
                                              "; without a `=` it is the path of a file with "
                                              "NAME=MODEL on each line");
    }
    text = std::move(file).value();
    if (text.starts_with(kByteOrderMark)) text.erase(0, kByteOrderMark.size());
  } else if (value.size() > kMapBytesMax) {
    return InvalidArgument(fmt::format("{}: more than 64 KiB; give a file", kModelMapVariable));
  }
  const char separator = is_list ? ',' : '\n';
  int line = 0;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find(separator, begin), text.size());
    std::string_view pair = std::string_view(text).substr(begin, end - begin);
    begin = end + 1;
    ++line;
    if (!is_list) pair = pair.substr(0, pair.find('#'));
    pair = Trim(pair);
    if (pair.empty()) continue;
    const std::string where = is_list ? std::string(kModelMapVariable)
                                      : fmt::format("{} {}:{}", kModelMapVariable, value, line);
    BT_RETURN_IF_ERROR(AddPair(pair, where, map));
  }
  return map;
}

const std::string* FindMapped(const ModelMap& map, const std::string& model) {
  const auto found = map.find(WithoutSlashes(model));
  return found == map.end() ? nullptr : &found->second;
}

}  // namespace baltoro
