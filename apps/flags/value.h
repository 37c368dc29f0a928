#pragma once

// The text of one flag's value to a typed value, by the rules of its row.

#include <span>
#include <string>
#include <string_view>

#include "base/json.h"
#include "base/status.h"
#include "flags/flag.h"

namespace baltoro {

// "131072", "25.6k" (25600, decimal suffixes k m g t), "1K" (1024, binary suffixes K M G T, whole
// numbers only). The errors do not name the flag.
Result<int64_t> ParseCount(std::string_view text);

// `words` are as many as the kind takes. The result is an integer, a float, a string, an array or
// an object, within the row's choices and bounds.
Result<Json> ParseValue(const FlagSpec& spec, std::span<const std::string> words);

// As a user would write it.
std::string ValueText(const Json& value);

// Whether `text` is one of the row's '|'-separated values.
bool IsOneOf(std::string_view list, std::string_view text);

// For --help and the document: what goes after the flag, empty for a flag without value.
std::string ValueShape(const FlagSpec& spec);

}  // namespace baltoro
