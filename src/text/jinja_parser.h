#pragma once

// Parses the part of Jinja that chat templates use: output, set, if, for (with break and continue),
// macro, with, filter, raw, comments, and all expressions but star-arguments. Templates that
// include, import, extend or call are refused, as is whatever is unknown.

#include <string_view>

#include "base/status.h"
#include "text/jinja_ast.h"

namespace baltoro::jinja {

// Errors name the line. Sources over 1 MiB and trees deeper than 200 are refused.
Result<Template> ParseTemplate(std::string_view source);

}  // namespace baltoro::jinja
