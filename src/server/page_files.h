#pragma once

// The files of the page at "/", which are in the program: src/server/page/, put there by CMake.

#include <string_view>

namespace baltoro {

struct PageFile {
  std::string_view name, content_type, text;
  bool always = false;  // served where the page is off, too: /docs needs it
};

// Null where there is no such file.
const PageFile* FindPageFile(std::string_view name);

}  // namespace baltoro
