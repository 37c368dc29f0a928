#pragma once

// What `chat` and `eval` say to a running server.

#include <functional>
#include <string>

#include "base/json.h"
#include "base/status.h"
#include "net/http_client.h"

namespace baltoro {

// A text of others as one line for a terminal: at most 300 bytes, no control characters.
std::string ForTerminal(std::string_view text);
// What an answer of another status than 200 says, for a terminal.
std::string ErrorMessageOf(const HttpResponse& response);

class ApiClient {
 public:
  // `url` like http://127.0.0.1:8000, or https, of which the port is 443 where it names none.
  static Result<ApiClient> Connect(const std::string& url, const std::string& api_key);

  // A GET or POST whose answer is JSON; an error status becomes a Status with the server's message.
  Result<Json> Get(const std::string& path);
  Result<Json> Post(const std::string& path, const Json& body);
  // A streamed POST: each chunk as JSON until [DONE]; false from `on_chunk` stops.
  Status Stream(const std::string& path,
                const Json& body,
                const std::function<bool(const Json&)>& on_chunk);
  // `model` if not empty, else the first that the server names.
  Result<std::string> ModelName(const std::string& model);

 private:
  ApiClient(HttpClientOptions options, std::string api_key)
      : client_(std::move(options)), api_key_(std::move(api_key)) {}
  HttpHeaders Headers() const;
  Result<Json> Read(Result<HttpResponse> response);

  HttpClient client_;
  std::string api_key_;
};

}  // namespace baltoro
