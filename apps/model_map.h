#pragma once

// BALTORO_MODEL_MAP: which model is served under whose name, so that a command that names a model
// which is not here runs unchanged.

#include <map>
#include <string>

#include "base/status.h"

namespace baltoro {

inline constexpr const char* kModelMapVariable = "BALTORO_MODEL_MAP";
inline constexpr const char* kPocketName = "pocket";  // the model that comes along

using ModelMap = std::map<std::string, std::string>;  // the name on the command line, the model

// "NAME=MODEL,NAME=MODEL", or, where there is no '=', the path of a file with such a pair on each
// line and remarks behind '#'. A name is as the command gives it, but for slashes at its end. At
// most 64 KiB. The errors name the variable, the file and the line.
Result<ModelMap> ReadModelMap(const std::string& value);

// The target for `model`; nullptr where it has none.
const std::string* FindMapped(const ModelMap& map, const std::string& model);

}  // namespace baltoro
