#include "client/web.h"

#include <curl/curl.h>
#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "net/loopback.h"
#include "pull/http_session.h"

namespace baltoro {
namespace {

constexpr long kConnectSeconds = 10;

struct ListCloser {
  void operator()(curl_slist* list) const { curl_slist_free_all(list); }
};

bool OnThisMachine(std::string_view url) {
  const std::string_view rest = url.substr(url.find("://") + 3);
  return IsLoopback(HostOfAuthority(rest.substr(0, rest.find_first_of("/?#"))));
}

}  // namespace

struct WebClient::State {
  WebOptions options;
  CURL* curl = nullptr;
  std::unique_ptr<curl_slist, ListCloser> headers;
  char reason[CURL_ERROR_SIZE] = {};
  MonotonicClock clock;
  // Of the request under way.
  WebAnswer answer;
  const OnBody* on_body = nullptr;
  bool too_long = false;

  explicit State(WebOptions given) : options(std::move(given)) {}
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  ~State() {
    if (curl != nullptr) curl_easy_cleanup(curl);
  }

  bool Take(std::string_view bytes) {
    long status = 0;
    curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &status);
    if (status == 200 && *on_body) {
      (*on_body)(bytes, clock.Now());
      return true;
    }
    too_long = answer.body.size() + bytes.size() > options.body_bytes_max;
    if (!too_long) answer.body.append(bytes);
    return !too_long;
  }

  void TakeHeader(std::string_view line) {
    constexpr std::string_view kName = "retry-after:";
    if (line.size() < kName.size()) return;
    for (size_t i = 0; i < kName.size(); ++i) {
      const char c = line[i] >= 'A' && line[i] <= 'Z' ? static_cast<char>(line[i] + 32) : line[i];
      if (c != kName[i]) return;
    }
    line.remove_prefix(kName.size());
    line.remove_prefix(std::min(line.find_first_not_of(' '), line.size()));
    int seconds = 0;
    if (std::from_chars(line.data(), line.data() + line.size(), seconds).ec == std::errc()) {
      answer.retry_after = std::max(seconds, 0);
    }
  }

  static size_t BodyCallback(char* data, size_t size, size_t count, void* self) {
    return static_cast<State*>(self)->Take({data, size * count}) ? size * count : 0;
  }
  static size_t HeaderCallback(char* data, size_t size, size_t count, void* self) {
    static_cast<State*>(self)->TakeHeader({data, size * count});
    return size * count;
  }
  static int StopCallback(void* self, curl_off_t, curl_off_t, curl_off_t, curl_off_t) {
    const std::atomic<bool>* stop = static_cast<State*>(self)->options.stop;
    return stop != nullptr && stop->load() ? 1 : 0;
  }

  void SetUp() {
    curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(curl, CURLOPT_ERRORBUFFER, reason);
    curl_easy_setopt(curl, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(curl, CURLOPT_HTTP_VERSION, static_cast<long>(CURL_HTTP_VERSION_1_1));
    curl_easy_setopt(curl, CURLOPT_USERAGENT, options.user_agent.c_str());
    curl_easy_setopt(curl, CURLOPT_CONNECTTIMEOUT, kConnectSeconds);
    curl_easy_setopt(curl, CURLOPT_TIMEOUT_MS, static_cast<long>(options.timeout * 1000));
    curl_easy_setopt(curl, CURLOPT_NOPROGRESS, 0L);
    curl_easy_setopt(curl, CURLOPT_XFERINFOFUNCTION, &StopCallback);
    curl_easy_setopt(curl, CURLOPT_XFERINFODATA, this);
    curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, &BodyCallback);
    curl_easy_setopt(curl, CURLOPT_WRITEDATA, this);
    curl_easy_setopt(curl, CURLOPT_HEADERFUNCTION, &HeaderCallback);
    curl_easy_setopt(curl, CURLOPT_HEADERDATA, this);
    if (OnThisMachine(options.url)) curl_easy_setopt(curl, CURLOPT_PROXY, "");
    const std::string certificates = options.ca_file.empty() ? SystemCaFile() : options.ca_file;
    if (!certificates.empty()) curl_easy_setopt(curl, CURLOPT_CAINFO, certificates.c_str());
    headers.reset(curl_slist_append(nullptr, "Content-Type: application/json"));
    curl_slist_append(headers.get(), "Expect:");  // no pause before a long body
    if (!options.api_key.empty()) {
      curl_slist_append(headers.get(), ("Authorization: Bearer " + options.api_key).c_str());
    }
    for (const std::string& header : options.headers) {
      curl_slist_append(headers.get(), header.c_str());
    }
    curl_easy_setopt(curl, CURLOPT_HTTPHEADER, headers.get());
  }
};

WebClient::WebClient(std::unique_ptr<State> state) : state_(std::move(state)) {}
WebClient::WebClient(WebClient&&) noexcept = default;
WebClient& WebClient::operator=(WebClient&&) noexcept = default;
WebClient::~WebClient() = default;

Result<WebClient> WebClient::Create(WebOptions options) {
  auto state = std::make_unique<State>(std::move(options));
  state->curl = curl_easy_init();
  if (state->curl == nullptr) return Status(Code::kResourceExhausted, "no memory for a connection");
  state->SetUp();
  return WebClient(std::move(state));
}

Result<WebAnswer> WebClient::Send(const std::string& path,
                                  const std::string& body,
                                  const OnBody& on_body) {
  State& state = *state_;
  state.answer = {};
  state.on_body = &on_body;
  state.too_long = false;
  state.reason[0] = '\0';
  const std::string url = state.options.url + path;
  curl_easy_setopt(state.curl, CURLOPT_URL, url.c_str());
  if (body.empty()) {
    curl_easy_setopt(state.curl, CURLOPT_HTTPGET, 1L);
  } else {
    curl_easy_setopt(state.curl, CURLOPT_POST, 1L);
    curl_easy_setopt(state.curl, CURLOPT_POSTFIELDS, body.data());
    curl_easy_setopt(state.curl, CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(body.size()));
  }
  const CURLcode code = curl_easy_perform(state.curl);
  if (state.too_long) {
    return InvalidArgument(
        fmt::format("the answer is longer than {} bytes", state.options.body_bytes_max));
  }
  if (code == CURLE_ABORTED_BY_CALLBACK) return Status(Code::kUnavailable, "interrupted");
  if (code == CURLE_OPERATION_TIMEDOUT && state.options.timeout > 0) {
    return Status(Code::kUnavailable, fmt::format("no whole answer in {:g} s ({})",
                                                  state.options.timeout, state.reason));
  }
  if (code != CURLE_OK) {
    return Status(Code::kUnavailable,
                  state.reason[0] != '\0' ? state.reason : curl_easy_strerror(code));
  }
  long status = 0;
  curl_easy_getinfo(state.curl, CURLINFO_RESPONSE_CODE, &status);
  state.answer.status = static_cast<int>(status);
  return std::move(state.answer);
}

}  // namespace baltoro
