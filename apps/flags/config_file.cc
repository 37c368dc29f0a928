#include "flags/config_file.h"

#include <fmt/format.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <array>

#include "base/file.h"
#include "base/json.h"

namespace baltoro {
namespace {

constexpr size_t kFileBytesMax = size_t{1} << 20;
constexpr int kDepthMax = 32;
constexpr int kNodesMax = 100'000;  // an alias counts each time it is used

bool Contains(std::initializer_list<std::string_view> words, std::string_view word) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

bool IsPlain(const YAML::Node& node) {
  return node.Tag() != "!";
}  // not in quotes

bool IsTrue(const YAML::Node& node) {
  return node.IsScalar() && IsPlain(node) &&
         Contains({"true", "True", "TRUE", "yes", "Yes", "YES", "on", "On", "ON"}, node.Scalar());
}

bool IsFalse(const YAML::Node& node) {
  return node.IsScalar() && IsPlain(node) &&
         Contains({"false", "False", "FALSE", "no", "No", "NO", "off", "Off", "OFF"},
                  node.Scalar());
}

// Counts nodes over the whole file, so that nested aliases cannot grow without bound.
struct Budget {
  int nodes = kNodesMax;
};

Result<Json> ToJson(const YAML::Node& node, int depth, Budget& budget) {
  if (depth > kDepthMax || --budget.nodes < 0) {
    return InvalidArgument("nested too deeply, or too large");
  }
  if (node.IsNull()) return Json();
  if (node.IsSequence()) {
    Json list = Json::array();
    for (const YAML::Node& element : node) {
      BT_ASSIGN_OR_RETURN(Json value, ToJson(element, depth + 1, budget));
      list.push_back(std::move(value));
    }
    return list;
  }
  if (node.IsMap()) {
    Json object = Json::object();
    for (const auto& entry : node) {
      if (!entry.first.IsScalar()) return InvalidArgument("a key is not a word");
      BT_ASSIGN_OR_RETURN(Json value, ToJson(entry.second, depth + 1, budget));
      object[entry.first.Scalar()] = std::move(value);
    }
    return object;
  }
  if (IsTrue(node)) return Json(true);
  if (IsFalse(node)) return Json(false);
  if (IsPlain(node)) {
    Result<Json> number = ParseJson(node.Scalar());
    if (number.ok() && number.value().is_number()) return number;
  }
  return Json(node.Scalar());
}

std::string JsonText(const Json& value) {
  return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

bool TakesJsonList(const FlagTable& table, std::string flag) {
  std::replace(flag.begin(), flag.end(), '_', '-');
  const Result<FlagMatch> match = table.Find(flag);
  return match.ok() && match.value().spec->kind == ValueKind::kJsonStrings;
}

Status AddEntry(const FlagTable& table,
                const std::string& key,
                const YAML::Node& node,
                Budget& budget,
                ConfigArguments& result) {
  const std::string flag = "--" + key;
  if (IsTrue(node)) {
    result.args.push_back(flag);
    return Status();
  }
  if (IsFalse(node)) {
    result.notices.push_back(key + ": false in the file is left out; to turn a flag off write no-" +
                             key + ": true");
    return Status();
  }
  if (node.IsScalar()) {
    result.args.push_back(flag + "=" + node.Scalar());
    return Status();
  }
  if (node.IsNull()) return InvalidArgument(key + " has no value");
  BT_ASSIGN_OR_RETURN(const Json value, ToJson(node, 0, budget));
  if (value.is_object() || TakesJsonList(table, flag)) {
    result.args.push_back(flag + "=" + JsonText(value));
    return Status();
  }
  if (value.empty()) return Status();
  result.args.push_back(flag);
  for (const Json& element : value) {
    const std::string text = element.is_string() ? element.get<std::string>() : JsonText(element);
    if (text.starts_with('-') && text.size() > 1 && (text[1] < '0' || text[1] > '9')) {
      return InvalidArgument(fmt::format("{}: {} reads as a flag", key, text));
    }
    result.args.push_back(text);
  }
  return Status();
}

Result<ConfigArguments> Convert(const FlagTable& table,
                                const std::string& text,
                                const std::string& path) {
  const YAML::Node root = YAML::Load(text);
  if (!root.IsMap()) return InvalidArgument(path + ": expected keys and values at the top");
  ConfigArguments result;
  Budget budget;
  for (const auto& entry : root) {
    if (!entry.first.IsScalar()) return InvalidArgument(path + ": a key is not a word");
    const std::string key = entry.first.Scalar();
    if (key.empty() || key.find('=') != std::string::npos || key.front() == '-') {
      return InvalidArgument(fmt::format("{}: '{}' is not the name of a flag", path, key));
    }
    const Status added = AddEntry(table, key, entry.second, budget, result);
    if (!added.ok()) return InvalidArgument(fmt::format("{}: {}", path, added.message()));
  }
  return result;
}

}  // namespace

Result<ConfigArguments> ParseConfigText(const FlagTable& table,
                                        const std::string& text,
                                        const std::string& path) {
  try {  // yaml-cpp reports by exceptions
    return Convert(table, text, path);
  } catch (const YAML::Exception& error) {
    return InvalidArgument(path + ": " + error.what());
  }
}

Result<ConfigArguments> ReadConfigFile(const FlagTable& table, const std::string& path) {
  if (!path.ends_with(".yaml") && !path.ends_with(".yml")) {
    return InvalidArgument("Config file must be of a yaml/yml type. " + path + " was given");
  }
  BT_ASSIGN_OR_RETURN(const std::string text, ReadFile(path, kFileBytesMax, "--config"));
  return ParseConfigText(table, text, path);
}

}  // namespace baltoro
