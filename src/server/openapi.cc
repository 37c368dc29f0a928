#include "server/openapi.h"

#include "server/server_internal.h"

namespace baltoro {
namespace {

constexpr std::string_view kDocument =
#include "server/openapi.inc"
    ;

constexpr std::string_view kVersionMark = "@VERSION@";

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

}  // namespace baltoro
