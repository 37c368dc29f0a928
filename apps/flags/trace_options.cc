#include "flags/trace_options.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <string_view>

#include "base/percent.h"
#include "base/trim.h"

namespace baltoro {
namespace {

constexpr std::string_view kFlag = "--otlp-traces-endpoint";
constexpr const char* kTracesEndpoint = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT";
constexpr const char* kEndpoint = "OTEL_EXPORTER_OTLP_ENDPOINT";
constexpr std::string_view kExample = "http://HOST:4318/v1/traces";
// Those of OTEL_... that are read.
constexpr std::string_view kRead[] = {
    kTracesEndpoint,
    kEndpoint,
    "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL",
    "OTEL_EXPORTER_OTLP_PROTOCOL",
    "OTEL_EXPORTER_OTLP_TRACES_HEADERS",
    "OTEL_EXPORTER_OTLP_HEADERS",
    "OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE",
    "OTEL_EXPORTER_OTLP_CERTIFICATE",
    "OTEL_SERVICE_NAME",
    "OTEL_RESOURCE_ATTRIBUTES",
    "OTEL_SDK_DISABLED",
    "OTEL_TRACES_EXPORTER",
};

// The first of them that is set.
std::string Text(const Environment& environment, std::initializer_list<const char*> names) {
  for (const char* name : names) {
    const auto found = environment.find(name);
    if (found != environment.end() && !found->second.empty()) return found->second;
  }
  return "";
}

// "a=1,b=2", the values percent-encoded. What the values are is not told: they may be secret.
Result<std::vector<std::pair<std::string, std::string>>> ReadPairs(std::string_view name,
                                                                   std::string_view text) {
  std::vector<std::pair<std::string, std::string>> out;
  while (!text.empty()) {
    const size_t end = std::min(text.find(','), text.size());
    const std::string_view pair = Trim(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
    if (pair.empty()) continue;
    const size_t equals = pair.find('=');
    const std::string key(Trim(pair.substr(0, equals)));
    const auto value = PercentDecode(equals == pair.npos ? "" : Trim(pair.substr(equals + 1)));
    const auto control = [](char c) { return static_cast<unsigned char>(c) < ' '; };
    if (equals == pair.npos || key.empty() || !value ||
        std::ranges::any_of(key + *value, control)) {
      return InvalidArgument(fmt::format(
          "environment variable {}: expected key=value,key=value, with %25 for a %", name));
    }
    out.emplace_back(key, *value);
  }
  return out;
}

// Why no spans can be sent there; empty: they can.
std::string Trouble(const std::string& url, const std::string& protocol) {
  const size_t scheme_end = url.find("://");
  const std::string scheme = scheme_end == url.npos ? "" : url.substr(0, scheme_end);
  const std::string_view rest =
      scheme_end == url.npos ? std::string_view(url) : std::string_view(url).substr(scheme_end + 3);
  const std::string_view authority = rest.substr(0, rest.find_first_of("/?#"));
  const bool grpc =
      protocol == "grpc" || scheme == "grpc" || scheme == "grpcs" || authority.ends_with(":4317");
  if (grpc) {
    return fmt::format(
        "gRPC is not spoken; traces go by OTLP over HTTP, for which collectors listen at port "
        "4318: {}{}",
        kExample, protocol == "grpc" ? ", with OTEL_EXPORTER_OTLP_TRACES_PROTOCOL=http/json" : "");
  }
  if ((scheme != "http" && scheme != "https") || authority.empty()) {
    return fmt::format("expected a whole URL, as {}", kExample);
  }
  if (authority.find('@') != authority.npos) {
    return "a user does not belong in the URL; OTEL_EXPORTER_OTLP_HEADERS carries a password";
  }
  if (rest.find_first_of("?#") != rest.npos) {
    return "a query does not belong in the URL; OTEL_EXPORTER_OTLP_HEADERS carries a token";
  }
  if (authority.size() == rest.size()) {
    return fmt::format("expected the whole URL with its path, as {}", kExample);
  }
  const auto plain = [](char c) { return c > ' ' && c <= '~'; };
  return std::ranges::all_of(url, plain) ? "" : "the URL has characters that no URL has";
}

void NoteUnread(const Environment& environment, std::vector<std::string>& notices) {
  std::vector<std::string_view> unread;
  for (const auto& [name, value] : environment) {
    if (name.starts_with("OTEL_") && std::ranges::find(kRead, name) == std::end(kRead)) {
      unread.push_back(name);
    }
  }
  if (unread.empty()) return;
  notices.push_back(fmt::format("environment: {}: not read, no effect", fmt::join(unread, ", ")));
}

// Empty where the environment asks for traces or says nothing.
std::string SwitchedOff(const Environment& environment) {
  if (Text(environment, {"OTEL_SDK_DISABLED"}) == "true") return "OTEL_SDK_DISABLED=true";
  if (Text(environment, {"OTEL_TRACES_EXPORTER"}) == "none") return "OTEL_TRACES_EXPORTER=none";
  return "";
}

}  // namespace

Result<TraceOptions> FindTraceOptions(const std::string& given,
                                      const Environment& environment,
                                      std::vector<std::string>& notices) {
  TraceOptions out;
  std::string source(kFlag);
  out.endpoint = given;
  if (out.endpoint.empty()) {
    source = kTracesEndpoint;
    out.endpoint = Text(environment, {kTracesEndpoint});
  }
  if (out.endpoint.empty()) {
    source = kEndpoint;
    out.endpoint = Text(environment, {kEndpoint});
    if (!out.endpoint.empty())
      out.endpoint += out.endpoint.ends_with('/') ? "v1/traces" : "/v1/traces";
  }
  if (out.endpoint.empty()) return out;

  const std::string off = SwitchedOff(environment);
  const std::string protocol =
      Text(environment, {"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"});
  const std::string trouble = Trouble(out.endpoint, protocol);
  // Such a URL may hold a secret, and flags are printed at the start: it is refused even where no
  // traces are sent, and without its words.
  const bool secret = given.find_first_of("@?#") != given.npos;
  if (secret && !trouble.empty()) return InvalidArgument(fmt::format("{} URL: {}", kFlag, trouble));
  if (!off.empty()) {
    notices.push_back(fmt::format("{}: no traces: {}", source, off));
    return TraceOptions{};
  }
  if (!trouble.empty() && !given.empty()) {
    return InvalidArgument(fmt::format("{} {}: {}", kFlag, given, trouble));
  }
  if (!trouble.empty()) {
    notices.push_back(fmt::format("environment: {}: no traces: {}", source, trouble));
    return TraceOptions{};
  }
  if (protocol == "http/protobuf") {
    notices.push_back("traces are sent as http/json, which collectors of http/protobuf take too");
  }
  NoteUnread(environment, notices);

  const char* variable = "OTEL_EXPORTER_OTLP_TRACES_HEADERS";
  if (Text(environment, {variable}).empty()) variable = "OTEL_EXPORTER_OTLP_HEADERS";
  BT_ASSIGN_OR_RETURN(const auto pairs, ReadPairs(variable, Text(environment, {variable})));
  for (const auto& [name, value] : pairs) out.headers.push_back(name + ": " + value);
  out.ca_file = Text(environment,
                     {"OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE", "OTEL_EXPORTER_OTLP_CERTIFICATE"});
  BT_ASSIGN_OR_RETURN(auto attributes, ReadPairs("OTEL_RESOURCE_ATTRIBUTES",
                                                 Text(environment, {"OTEL_RESOURCE_ATTRIBUTES"})));
  std::string name = Text(environment, {"OTEL_SERVICE_NAME"});
  for (const auto& [key, value] : attributes) {
    if (key == "service.name" && name.empty()) name = value;
  }
  out.version = BALTORO_VERSION;
  out.resource = {{"service.name", name.empty() ? "baltoro" : name}};
  bool versioned = false;
  for (auto& attribute : attributes) {
    if (attribute.first == "service.name") continue;
    versioned = versioned || attribute.first == "service.version";
    out.resource.push_back(std::move(attribute));
  }
  if (!versioned) out.resource.emplace_back("service.version", out.version);
  return out;
}

}  // namespace baltoro
