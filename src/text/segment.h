#pragma once

#include <string>

namespace baltoro {

// A part of a prompt. The chat template's own words may name special tokens; what a user or a tool
// wrote never does.
struct TextSegment {
  std::string text;
  bool special_allowed = false;  // true: a literal of the template
};

}  // namespace baltoro
