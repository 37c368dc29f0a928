#include "client/api_client.h"

#include <fmt/format.h>

#include <charconv>

#include "terminal/safe_text.h"

namespace baltoro {
namespace {

// An answer may name every wrong field of a long request.
constexpr size_t kErrorBytesMax = 8192;

}  // namespace

std::string ErrorMessageOf(const HttpResponse& response, size_t bytes_max) {
  const Result<Json> body = ParseJson(response.body);
  if (body.ok() && body.value().is_object() && body.value().contains("error")) {
    const Json& error = body.value()["error"];
    if (error.is_object() && error.contains("message") && error["message"].is_string())
      return ForTerminal(error["message"].get<std::string>(), bytes_max);
    if (error.is_string()) return ForTerminal(error.get<std::string>(), bytes_max);
  }
  return ForTerminal(response.body, bytes_max);
}

Result<ApiClient> ApiClient::Connect(const std::string& url,
                                     const std::string& api_key,
                                     int stop_fd) {
  std::string_view rest = url;
  HttpClientOptions options = {.stop_fd = stop_fd};
  if (rest.starts_with("https://")) {
    rest.remove_prefix(8);
    options.port = 443;
    BT_ASSIGN_OR_RETURN(options.tls, TlsContext::ForClient());
  } else if (rest.starts_with("http://")) {
    rest.remove_prefix(7);
  }
  rest = rest.substr(0, rest.find('/'));
  const size_t colon = rest.rfind(':');
  const bool has_port =
      colon != std::string_view::npos && rest.find(']', colon) == std::string_view::npos;
  options.host = std::string(rest.substr(0, has_port ? colon : rest.size()));
  if (options.host.size() > 2 && options.host.front() == '[')
    options.host = options.host.substr(1, options.host.size() - 2);
  if (has_port) {
    const std::string_view digits = rest.substr(colon + 1);
    const auto [end, error] =
        std::from_chars(digits.data(), digits.data() + digits.size(), options.port);
    if (error != std::errc() || end != digits.data() + digits.size() || options.port < 1 ||
        options.port > 65535) {
      return InvalidArgument(url + ": not a port: " + std::string(digits));
    }
  }
  if (options.host.empty())
    return InvalidArgument("\"" + url + "\" is not a URL like http://127.0.0.1:8000");
  return ApiClient(std::move(options), api_key);
}

HttpHeaders ApiClient::Headers() const {
  if (api_key_.empty()) return {};
  return {{"authorization", "Bearer " + api_key_}};
}

Status ApiClient::Check(const Result<HttpResponse>& response) {
  http_status_ = response.ok() ? response.value().status : 0;
  if (!response.ok()) return response.status();
  if (http_status_ == 200) return {};
  const Code code =
      http_status_ == 503 || http_status_ == 429 ? Code::kUnavailable : Code::kInvalidArgument;
  return Status(
      code, fmt::format("{}: {}", http_status_, ErrorMessageOf(response.value(), kErrorBytesMax)));
}

Result<Json> ApiClient::Read(Result<HttpResponse> response) {
  BT_RETURN_IF_ERROR(Check(response));
  return ParseJson(response.value().body);
}

Result<Json> ApiClient::Get(const std::string& path) {
  return Read(client_.Send({.method = "GET", .target = path, .headers = Headers(), .body = ""}));
}

Result<Json> ApiClient::Post(const std::string& path, const Json& body) {
  return Read(
      client_.Send({.method = "POST", .target = path, .headers = Headers(), .body = body.dump()}));
}

Status ApiClient::Stream(const std::string& path,
                         const Json& body,
                         const std::function<bool(const Json&)>& on_chunk) {
  Status problem;
  const Result<HttpResponse> response = client_.Stream(
      {.method = "POST", .target = path, .headers = Headers(), .body = body.dump()},
      [&](const SseEvent& event) {
        if (event.data == "[DONE]") return true;
        const Result<Json> chunk = ParseJson(event.data);
        if (!chunk.ok()) {
          problem = InvalidArgument("the server sent a chunk that is no JSON");
          return false;
        }
        if (chunk.value().contains("error")) {
          const Json& error = chunk.value()["error"];
          const bool told = error.is_object() && error.contains("message");
          problem = Status(Code::kInternal, told ? error.value("message", "") : error.dump());
          return false;
        }
        return on_chunk(chunk.value());
      });
  const Status status = Check(response);
  return problem.ok() ? status : problem;
}

Result<std::string> ApiClient::ModelName(const std::string& model) {
  if (!model.empty()) return model;
  BT_ASSIGN_OR_RETURN(const Json models, Get("/v1/models"));
  if (!models.contains("data") || models["data"].empty())
    return InvalidArgument("the server names no model");
  return models["data"][0]["id"].get<std::string>();
}

}  // namespace baltoro
