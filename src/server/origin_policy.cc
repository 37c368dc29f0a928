#include "server/origin_policy.h"

#include <algorithm>
#include <utility>

#include "net/loopback.h"

namespace baltoro {
namespace {

std::string Joined(const std::vector<std::string>& items) {
  std::string out;
  for (const std::string& item : items) out += (out.empty() ? "" : ", ") + item;
  return out;
}

bool Contains(const std::vector<std::string>& list, std::string_view item) {
  return std::find(list.begin(), list.end(), item) != list.end();
}

std::string Lower(std::string_view text) {
  std::string out(text);
  for (char& c : out) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return out;
}

// "https://a.example:8443" -> "a.example"; empty of what is no such thing, as "null".
std::string_view HostOfOrigin(std::string_view origin) {
  const size_t scheme = origin.find("://");
  if (scheme == std::string_view::npos) return "";
  const std::string_view authority = origin.substr(scheme + 3);
  return HostOfAuthority(authority.substr(0, authority.find('/')));
}

}  // namespace

OriginPolicy::OriginPolicy(CorsConfig cors, bool has_keys, std::string_view host, bool on_loopback)
    : cors_(std::move(cors)) {
  if (cors_.origins) {
    origins_ = *cors_.origins;
  } else if (has_keys) {
    origins_ = {"*"};
  }
  any_origin_ = Contains(origins_, "*");
  checks_ = !has_keys && on_loopback && !any_origin_;
  hosts_.push_back(Lower(host));
  for (const std::string& origin : origins_) {
    const std::string_view name = HostOfOrigin(origin);
    if (!name.empty()) hosts_.push_back(Lower(name));
  }
}

bool OriginPolicy::KnowsHost(std::string_view host) const {
  return IsLoopback(host) || Contains(hosts_, Lower(host));
}

std::optional<ApiError> OriginPolicy::Check(const HttpRequest& request) const {
  if (!checks_) return std::nullopt;
  const auto refused = [](const char* what) {
    return ApiError{.status = 403,
                    .type = "Forbidden",
                    .message = std::string(what) +
                               ": without --api-key this server takes requests from this machine "
                               "only, and from pages of --allowed-origins",
                    .param = {}};
  };
  // HTTP/1.0 has none, and no browser speaks it.
  const std::string_view host = request.Header("host");
  if (!host.empty() && !KnowsHost(HostOfAuthority(host))) {
    return refused("The Host of the request is no name of this machine");
  }
  const std::string_view origin = request.Header("origin");
  if (origin.empty() || Contains(origins_, origin) || IsLoopback(HostOfOrigin(origin))) {
    return std::nullopt;
  }
  return refused("The Origin of the request is a page of another machine");
}

HttpHeaders OriginPolicy::Headers(const HttpRequest& request) const {
  const std::string_view origin = request.Header("origin");
  if (origin.empty() || (!any_origin_ && !Contains(origins_, origin))) return {};
  HttpHeaders headers;
  // With credentials the star is not allowed by browsers, and echoing any origin would be worse
  // than no CORS.
  headers.emplace_back("access-control-allow-origin", any_origin_ ? "*" : std::string(origin));
  if (!any_origin_) headers.emplace_back("vary", "Origin");
  if (!any_origin_ && cors_.credentials) {
    headers.emplace_back("access-control-allow-credentials", "true");
  }
  if (request.method != "OPTIONS") return headers;
  headers.emplace_back("access-control-allow-methods", Joined(cors_.methods));
  // The star does not stand for Authorization, so what the browser asks for is named.
  const std::string_view asked = request.Header("access-control-request-headers");
  const bool any_header = Contains(cors_.headers, "*") && !asked.empty();
  headers.emplace_back("access-control-allow-headers",
                       any_header ? std::string(asked) : Joined(cors_.headers));
  headers.emplace_back("access-control-max-age", "600");
  return headers;
}

}  // namespace baltoro
