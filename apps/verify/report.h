#pragma once

// A verification as lines, as Markdown and as JSON.

#include <string>

#include "base/json.h"
#include "verify/verdict.h"

namespace baltoro {

std::string ReportLines(const Verified& verified, const Conclusion& conclusion);
std::string ReportMarkdown(const Verified& verified, const Conclusion& conclusion);
Json ReportJson(const Verified& verified, const Conclusion& conclusion);

}  // namespace baltoro
