#pragma once

// Tools as the TypeScript namespace that K2.5 and later were trained to read.

#include <string>

#include "base/json.h"
#include "base/status.h"

namespace baltoro {

// A copy with the keys of every object in ascending order, at any depth.
Json SortKeys(const Json& value);

// `tools` is the request's array; its keys must be sorted (SortKeys), because the order of $defs
// shows. Entries that are no functions are skipped; empty if none is left. An error means that a
// schema has no such form: the template then prints the JSON instead.
Result<std::string> ToolsTypescript(const Json& tools);

}  // namespace baltoro
