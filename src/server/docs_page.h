#pragma once

// The page about the API: every route that the server has, with what openapi.inc says of it and a
// command that asks it. Pure.

#include <string>
#include <string_view>
#include <vector>

namespace baltoro {

struct DocsRoute {
  std::string_view method, path;
  bool needs_key = false;
};

struct DocsOptions {
  std::string_view version;
  std::string_view address;  // "http://host:port", or https
  bool keys = false;         // the server asks for them
  std::vector<DocsRoute> routes = {};
};

// HTML, without scripts; its style is page/style.css.
std::string DocsPage(const DocsOptions& options);

}  // namespace baltoro
