#pragma once

// The description of this server's HTTP API, as OpenAPI 3.1. It is data, kept in openapi.inc; a
// test holds it against what the server reads.

#include <string>
#include <string_view>

namespace baltoro {

// JSON. `version` is the program's.
std::string OpenApiDocument(std::string_view version);

}  // namespace baltoro
