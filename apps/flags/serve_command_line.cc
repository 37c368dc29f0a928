#include "flags/serve_command_line.h"

#include <fmt/format.h>

#include <utility>

#include "flags/config_file.h"

namespace baltoro {
namespace {

Result<ParsedFlags> ParseWithConfigFile(const FlagTable& table, std::span<const std::string> args) {
  BT_ASSIGN_OR_RETURN(ParsedFlags line, ParseFlags(table, args));
  const auto config = line.uses.find("config");
  if (config == line.uses.end()) return line;
  if (config->second.times > 1) return InvalidArgument("More than one config file specified!");
  const std::string path = config->second.value.get<std::string>();
  BT_ASSIGN_OR_RETURN(ConfigArguments file, ReadConfigFile(table, path));
  Result<ParsedFlags> below = ParseFlags(table, file.args);
  if (!below.ok()) return InvalidArgument(path + ": " + below.status().message());
  if (!below.value().positionals.empty()) {
    return InvalidArgument(
        path + ": more values than the flag takes: " + below.value().positionals.front());
  }
  if (below.value().uses.contains("config")) {
    return InvalidArgument(path + ": a config file cannot name another");
  }
  std::vector<std::string>& notices = below.value().notices;
  notices.insert(notices.begin(), file.notices.begin(), file.notices.end());
  return ParseFlags(table, args, std::move(below).value());
}

Status PlaceModel(ParsedFlags& flags) {
  const auto named = flags.uses.find("model");
  if (named != flags.uses.end() && named->second.times > 0) {
    flags.notices.push_back(
        "the model goes in front, without --model: `baltoro serve MODEL`; --model is accepted");
  }
  if (flags.positionals.size() > 1) {
    return InvalidArgument("unrecognized arguments: " + flags.positionals[1]);
  }
  if (flags.positionals.empty()) return Status();
  const std::string& model = flags.positionals.front();
  if (named != flags.uses.end() && named->second.times > 0 && named->second.value != Json(model)) {
    return InvalidArgument(fmt::format("two models: {} and --model {}", model,
                                       named->second.value.get<std::string>()));
  }
  flags.uses["model"].value = model;
  return Status();
}

}  // namespace

Result<ParsedFlags> ParseServeCommandLine(const FlagTable& table,
                                          std::span<const std::string> args) {
  BT_ASSIGN_OR_RETURN(ParsedFlags flags, ParseWithConfigFile(table, args));
  BT_RETURN_IF_ERROR(PlaceModel(flags));
  return flags;
}

}  // namespace baltoro
