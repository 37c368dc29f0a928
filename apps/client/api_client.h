#pragma once

// What `chat` and `eval` say to a running server.

#include <functional>
#include <string>

#include "base/json.h"
#include "base/status.h"
#include "net/http_client.h"

namespace baltoro {

// What an answer of another status than 200 says, as one line for a terminal (ForTerminal).
std::string ErrorMessageOf(const HttpResponse& response, size_t bytes_max = 300);

class ApiClient {
 public:
  // `url` like http://127.0.0.1:8000, or https, of which the port is 443 where it names none. When
  // there is something to read from `stop_fd`, a request that waits ends with kInternal.
  static Result<ApiClient> Connect(const std::string& url,
                                   const std::string& api_key,
                                   int stop_fd = -1);

  // A GET or POST whose answer is JSON; an error status becomes a Status with the server's message.
  Result<Json> Get(const std::string& path);
  Result<Json> Post(const std::string& path, const Json& body);
  // A streamed POST: each chunk as JSON until [DONE]; false from `on_chunk` stops.
  Status Stream(const std::string& path,
                const Json& body,
                const std::function<bool(const Json&)>& on_chunk);
  // `model` if not empty, else the first that the server names.
  Result<std::string> ModelName(const std::string& model);

  // The status of the newest answer; 0: none came.
  int http_status() const { return http_status_; }

 private:
  ApiClient(HttpClientOptions options, std::string api_key)
      : client_(std::move(options)), api_key_(std::move(api_key)) {}
  HttpHeaders Headers() const;
  Result<Json> Read(Result<HttpResponse> response);
  Status Check(const Result<HttpResponse>& response);

  HttpClient client_;
  std::string api_key_;
  int http_status_ = 0;
};

}  // namespace baltoro
