#include "client/api_client.h"

#include <fmt/format.h>

#include <charconv>

namespace baltoro {
std::string ForTerminal(std::string_view text) {
  constexpr size_t kMost = 300;
  std::string out;
  for (size_t i = 0; i < text.size() && out.size() < kMost; ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    // C1 controls are C2 80 to C2 9F in UTF-8.
    const bool c1 =
        byte == 0xc2 && i + 1 < text.size() && static_cast<unsigned char>(text[i + 1]) < 0xa0;
    if (c1) ++i;
    out += c1 || byte < ' ' || byte == 0x7f ? ' ' : text[i];
  }
  if (text.size() <= kMost) return out;
  // Not within a character.
  while (!out.empty() && (static_cast<unsigned char>(out.back()) & 0xc0) == 0x80) out.pop_back();
  if (!out.empty() && static_cast<unsigned char>(out.back()) >= 0xc0) out.pop_back();
  return out + " ...";
}

std::string ErrorMessageOf(const HttpResponse& response) {
  const Result<Json> body = ParseJson(response.body);
  if (body.ok() && body.value().is_object() && body.value().contains("error")) {
    const Json& error = body.value()["error"];
    if (error.is_object() && error.contains("message") && error["message"].is_string())
      return ForTerminal(error["message"].get<std::string>());
    if (error.is_string()) return ForTerminal(error.get<std::string>());
  }
  return ForTerminal(response.body);
}

Result<ApiClient> ApiClient::Connect(const std::string& url, const std::string& api_key) {
  std::string_view rest = url;
  HttpClientOptions options;
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

Result<Json> ApiClient::Read(Result<HttpResponse> response) {
  if (!response.ok()) return response.status();
  const HttpResponse& answer = response.value();
  if (answer.status != 200) {
    const Code code =
        answer.status == 503 || answer.status == 429 ? Code::kUnavailable : Code::kInvalidArgument;
    return Status(code, fmt::format("{}: {}", answer.status, ErrorMessageOf(answer)));
  }
  return ParseJson(answer.body);
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
          problem = Status(Code::kInternal, chunk.value()["error"].value("message", "error"));
          return false;
        }
        return on_chunk(chunk.value());
      });
  if (!problem.ok()) return problem;
  if (!response.ok()) return response.status();
  if (response.value().status != 200) {
    return InvalidArgument(
        fmt::format("{}: {}", response.value().status, ErrorMessageOf(response.value())));
  }
  return {};
}

Result<std::string> ApiClient::ModelName(const std::string& model) {
  if (!model.empty()) return model;
  BT_ASSIGN_OR_RETURN(const Json models, Get("/v1/models"));
  if (!models.contains("data") || models["data"].empty())
    return InvalidArgument("the server names no model");
  return models["data"][0]["id"].get<std::string>();
}

}  // namespace baltoro
