#include "server/api_error.h"

#include "base/json.h"

namespace baltoro {

ApiError BadRequest(std::string_view param, std::string message) {
  ApiError error{.message = std::move(message), .param = std::nullopt};
  if (!param.empty()) error.param = std::string(param);
  return error;
}

ApiError NotFoundError(std::string_view param, std::string message) {
  ApiError error = BadRequest(param, std::move(message));
  error.status = 404;
  error.type = "NotFoundError";
  return error;
}

ApiError OverloadedError(std::string message) {
  return {.status = 429, .type = "RateLimitError", .message = std::move(message), .param = {}};
}

ApiError UnavailableError(std::string message) {
  return {
      .status = 503, .type = "ServiceUnavailableError", .message = std::move(message), .param = {}};
}

ApiError InternalError(std::string message) {
  return {.status = 500, .type = "InternalServerError", .message = std::move(message), .param = {}};
}

ApiError ShuttingDownError() {
  return UnavailableError("The server is shutting down.");
}

ApiError ClientGoneError() {
  return {.status = 499, .type = "ClientClosedRequest", .message = "", .param = {}};
}

ApiError FromStatus(const Status& status) {
  switch (status.code()) {
    case Code::kInvalidArgument:
      return BadRequest("", status.message());
    case Code::kNotFound:
      return NotFoundError("", status.message());
    case Code::kResourceExhausted:
      return OverloadedError(status.message());
    case Code::kUnavailable:
      return UnavailableError(status.message());
    case Code::kOk:
    case Code::kInternal:
      break;
  }
  return InternalError(status.message());
}

std::string ErrorBody(const ApiError& error) {
  std::string out = R"({"error":{"message":)";
  AppendJsonString(out, error.message);
  out += R"(,"type":)";
  AppendJsonString(out, error.type);
  out += R"(,"param":)";
  if (error.param) {
    AppendJsonString(out, *error.param);
  } else {
    out += "null";
  }
  out += R"(,"code":)" + std::to_string(error.status) + "}}";
  return out;
}

}  // namespace baltoro
