#pragma once

// The error catalogue of the API: what a client may be told. Bodies have the shape that vLLM's
// clients parse.

#include <optional>
#include <string>
#include <string_view>

#include "base/status.h"

namespace baltoro {

struct ApiError {
  int status = 400;
  std::string type = "BadRequestError";
  std::string message;
  std::optional<std::string> param;  // the request field at fault
};

ApiError BadRequest(std::string_view param, std::string message);
ApiError NotFoundError(std::string_view param, std::string message);
ApiError OverloadedError(std::string message);   // 429
ApiError UnavailableError(std::string message);  // 503
ApiError ShuttingDownError();                    // 503
ApiError ClientGoneError();                      // 499: for nobody to read
ApiError InternalError(std::string message);     // 500
// The engine's and the text rooms' Status as an answer.
ApiError FromStatus(const Status& status);

// {"error":{"message","type","param","code"}}
std::string ErrorBody(const ApiError& error);

}  // namespace baltoro
