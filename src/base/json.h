#pragma once

// JSON for cold paths (configuration, requests, tool schemas). Key order is kept, because the order
// of a tool's keys reaches the prompt. The hot path writes JSON by hand (AppendJsonString).

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "base/ordered_object.h"
#include "base/status.h"

namespace baltoro {

using Json = nlohmann::basic_json<OrderedObject>;

struct JsonLimits {
  int depth = 64;
  size_t nodes = 1'000'000;
  bool reject_duplicate_keys = true;
};

// Parses one JSON text (UTF-8). Refuses what is over a limit, duplicate keys, and anything after
// the value. The error message names the byte offset.
Result<Json> ParseJson(std::string_view text, const JsonLimits& limits = {});

// Reads and parses a file; the error message starts with the path.
Result<Json> ReadJsonFile(const std::string& path);

// Appends `text` as a JSON string with quotes. Invalid UTF-8 becomes U+FFFD, so the result is
// always valid JSON.
void AppendJsonString(std::string& out, std::string_view text);

}  // namespace baltoro
