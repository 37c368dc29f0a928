#include "server/openapi.h"

#include "server/server_internal.h"

namespace baltoro {
namespace {

constexpr std::string_view kDocument =
#include "server/openapi.inc"
    ;

constexpr std::string_view kVersionMark = "@VERSION@";

// No script and nothing from elsewhere: it must work where there is no other network.
constexpr const char* kDocsPage = R"(<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>Baltoro: HTTP API</title></head>
<body><h1>Baltoro</h1>
<p>This server speaks the APIs of OpenAI and Anthropic. Every route, every field and every limit is
in <a href="openapi.json">openapi.json</a> (OpenAPI 3.1). Examples are in docs/api.md of the
sources.</p>
</body></html>
)";

}  // namespace

std::string OpenApiDocument(std::string_view version) {
  std::string out(kDocument);
  const size_t at = out.find(kVersionMark);
  if (at != std::string::npos) out.replace(at, kVersionMark.size(), version);
  return out;
}

void Server::OpenApi(HttpRequest /*request*/, Reply reply) {
  reply.SendJson(OpenApiDocument(config_.version));
}

void Server::Docs(HttpRequest /*request*/, Reply reply) {
  reply.Send({.status = 200,
              .headers = {},
              .body = kDocsPage,
              .content_type = "text/html; charset=utf-8"});
}

}  // namespace baltoro
