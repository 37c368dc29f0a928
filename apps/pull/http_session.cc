#include "pull/http_session.h"

#include <curl/curl.h>
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <ctime>
#include <filesystem>

#include "base/file.h"
#include "base/trim.h"

namespace baltoro {
namespace {

constexpr int kRedirectsMax = 10;
constexpr size_t kErrorBodyMax = 4096;
constexpr size_t kHeaderValueMax = 2048;
constexpr long kConnectSeconds = 30;
constexpr long kSlowBytesPerSecond = 1024;
constexpr long kBufferBytes = 512 * 1024;

struct UrlCloser {
  void operator()(CURLU* url) const { curl_url_cleanup(url); }
};
using UrlHandle = std::unique_ptr<CURLU, UrlCloser>;

struct ListCloser {
  void operator()(curl_slist* list) const { curl_slist_free_all(list); }
};
using HeaderList = std::unique_ptr<curl_slist, ListCloser>;

std::string Lower(std::string_view text) {
  std::string out(text);
  for (char& c : out) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return out;
}

std::string PartOf(CURLU* url, CURLUPart part) {
  char* text = nullptr;
  if (curl_url_get(url, part, &text, CURLU_DEFAULT_PORT) != CURLUE_OK) return "";
  std::string out(text);
  curl_free(text);
  return out;
}

struct Origin {
  std::string scheme, host, port;
  bool operator==(const Origin&) const = default;
};

Origin OriginOf(const std::string& text) {
  const UrlHandle url(curl_url());
  if (url == nullptr || curl_url_set(url.get(), CURLUPART_URL, text.c_str(), 0) != CURLUE_OK) {
    return {};
  }
  return {Lower(PartOf(url.get(), CURLUPART_SCHEME)), Lower(PartOf(url.get(), CURLUPART_HOST)),
          PartOf(url.get(), CURLUPART_PORT)};
}

std::string Unquoted(std::string_view etag) {
  if (etag.starts_with("W/")) return "";
  if (etag.size() >= 2 && etag.front() == '"' && etag.back() == '"') {
    etag = etag.substr(1, etag.size() - 2);
  }
  return std::string(etag);
}

int64_t Natural(std::string_view text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() && value >= 0 ? value : -1;
}

// Seconds, or a date.
int64_t RetryAfter(const std::string& text) {
  if (const int64_t seconds = Natural(text); seconds >= 0) return seconds;
  const time_t when = curl_getdate(text.c_str(), nullptr);
  return when == -1 ? -1 : std::max<int64_t>(0, when - std::time(nullptr));
}

// Another attempt will not mend it.
bool IsFinal(CURLcode code) {
  switch (code) {
    case CURLE_UNSUPPORTED_PROTOCOL:
    case CURLE_URL_MALFORMAT:
    case CURLE_PEER_FAILED_VERIFICATION:
    case CURLE_SSL_CACERT_BADFILE:
    case CURLE_SSL_CERTPROBLEM:
    case CURLE_OUT_OF_MEMORY:
      return true;
    default:
      return false;
  }
}

}  // namespace

std::string SystemCaFile() {
  for (const char* place : {"/etc/ssl/certs/ca-certificates.crt",  // Debian, Ubuntu
                            "/etc/pki/tls/certs/ca-bundle.crt",    // Red Hat
                            "/etc/ssl/ca-bundle.pem",              // SUSE
                            "/etc/ssl/cert.pem"}) {                // Alpine
    std::error_code ignored;
    if (std::filesystem::exists(place, ignored)) return place;
  }
  return "";
}

struct HttpSession::State {
  HttpOptions options;
  CURL* curl = nullptr;
  char reason[CURL_ERROR_SIZE] = {};
  // Of the request under way.
  HttpEnd* end = nullptr;
  const Sink* sink = nullptr;

  explicit State(HttpOptions given) : options(std::move(given)) {}
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  ~State() {
    if (curl != nullptr) curl_easy_cleanup(curl);
  }

  void OnHeader(std::string_view line) {
    HttpHead& head = end->head;
    if (line.starts_with("HTTP/")) {  // of each answer: also a 100 before the real one
      head = HttpHead{.linked_etag = std::move(head.linked_etag),
                      .host = std::move(head.host),
                      .at_hub = head.at_hub};
      return;
    }
    const size_t colon = line.find(':');
    if (colon == line.npos) return;
    const std::string name = Lower(Trim(line.substr(0, colon)));
    const std::string value(Trim(line.substr(colon + 1)).substr(0, kHeaderValueMax));
    if (name == "etag") head.etag = Unquoted(value);
    if (name == "x-linked-etag") head.linked_etag = Unquoted(value);
    if (name == "content-range") head.content_range = value;
    if (name == "content-length") head.content_length = Natural(value);
    if (name == "retry-after") head.retry_after_s = RetryAfter(value);
    if (name == "x-error-code") head.error_code = value;
    if (name == "x-error-message") head.error_message = value;
  }

  bool OnBody(std::string_view bytes) {
    long status = 0;
    curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &status);
    end->head.status = static_cast<int>(status);
    if (status >= 200 && status < 300) {
      end->refused = !(*sink)(end->head, bytes);
      return !end->refused;
    }
    const size_t room = kErrorBodyMax - std::min(end->error_body.size(), kErrorBodyMax);
    end->error_body.append(bytes.substr(0, room));
    return room > 0;  // the rest of a long page is not wanted
  }

  static size_t HeaderCallback(char* data, size_t size, size_t count, void* self) {
    static_cast<State*>(self)->OnHeader({data, size * count});
    return size * count;
  }
  static size_t BodyCallback(char* data, size_t size, size_t count, void* self) {
    return static_cast<State*>(self)->OnBody({data, size * count}) ? size * count : 0;
  }
  static int StopCallback(void* self, curl_off_t, curl_off_t, curl_off_t, curl_off_t) {
    const std::atomic<bool>* stop = static_cast<State*>(self)->options.stop;
    return stop != nullptr && stop->load() ? 1 : 0;
  }

  void SetUp() {
    curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(curl, CURLOPT_ERRORBUFFER, reason);
    curl_easy_setopt(curl, CURLOPT_FOLLOWLOCATION, 0L);
    curl_easy_setopt(curl, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(curl, CURLOPT_HTTP_VERSION, static_cast<long>(CURL_HTTP_VERSION_1_1));
    curl_easy_setopt(curl, CURLOPT_USERAGENT, options.user_agent.c_str());
    curl_easy_setopt(curl, CURLOPT_BUFFERSIZE, kBufferBytes);
    curl_easy_setopt(curl, CURLOPT_CONNECTTIMEOUT, kConnectSeconds);
    curl_easy_setopt(curl, CURLOPT_LOW_SPEED_LIMIT, kSlowBytesPerSecond);
    curl_easy_setopt(curl, CURLOPT_LOW_SPEED_TIME, static_cast<long>(options.stall_s));
    curl_easy_setopt(curl, CURLOPT_SUPPRESS_CONNECT_HEADERS, 1L);
    curl_easy_setopt(curl, CURLOPT_HEADEROPT, static_cast<long>(CURLHEADER_SEPARATE));
    curl_easy_setopt(curl, CURLOPT_NOPROGRESS, 0L);
    curl_easy_setopt(curl, CURLOPT_XFERINFOFUNCTION, &StopCallback);
    curl_easy_setopt(curl, CURLOPT_XFERINFODATA, this);
    curl_easy_setopt(curl, CURLOPT_HEADERFUNCTION, &HeaderCallback);
    curl_easy_setopt(curl, CURLOPT_HEADERDATA, this);
    curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, &BodyCallback);
    curl_easy_setopt(curl, CURLOPT_WRITEDATA, this);
    if (options.ca_file.empty()) options.ca_file = SystemCaFile();
    if (!options.ca_file.empty()) {
      curl_easy_setopt(curl, CURLOPT_CAINFO, options.ca_file.c_str());
    }
  }

  HeaderList HeadersFor(const std::string& url) const {
    if (options.token.empty() || !IsSameOrigin(url, options.endpoint)) return nullptr;
    HeaderList list(curl_slist_append(nullptr, ("Authorization: Bearer " + options.token).c_str()));
    if (list != nullptr && options.token_as_cookie) {
      curl_slist_append(list.get(), ("Cookie: m_session_id=" + options.token).c_str());
    }
    return list;
  }

  // One request. The URL that it redirects to, or empty.
  std::string GetOnce(const std::string& url, const HttpRange& range) {
    const HeaderList headers = HeadersFor(url);
    const std::string bytes =
        range.end > range.begin ? fmt::format("{}-{}", range.begin, range.end - 1) : "";
    reason[0] = '\0';
    end->error_body.clear();
    end->head.host = OriginOf(url).host;
    end->head.at_hub = IsSameOrigin(url, options.endpoint);
    curl_easy_setopt(curl, CURLOPT_URL, url.c_str());
    curl_easy_setopt(curl, CURLOPT_HTTPHEADER, headers.get());
    curl_easy_setopt(curl, CURLOPT_RANGE, bytes.empty() ? nullptr : bytes.c_str());
    const CURLcode code = curl_easy_perform(curl);
    long status = 0;
    char* target = nullptr;
    curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &status);
    curl_easy_getinfo(curl, CURLINFO_REDIRECT_URL, &target);
    curl_easy_setopt(curl, CURLOPT_HTTPHEADER, nullptr);
    end->head.status = static_cast<int>(status);
    const bool told = status >= 300 && code == CURLE_WRITE_ERROR;  // a long error page, cut here
    if (code == CURLE_OK || told) return target == nullptr ? "" : target;
    if (!end->refused) {
      end->status =
          Status(IsFinal(code) ? Code::kInvalidArgument : Code::kUnavailable,
                 fmt::format("{}: {}{}", end->head.host,
                             reason[0] != '\0' ? reason : curl_easy_strerror(code),
                             code == CURLE_PEER_FAILED_VERIFICATION && options.ca_file.empty()
                                 ? "; this system has no certificates of authorities: "
                                   "install ca-certificates, or name a file in "
                                   "SSL_CERT_FILE"
                                 : ""));
    }
    return "";
  }
};

HttpSession::HttpSession(std::unique_ptr<State> state) : state_(std::move(state)) {}
HttpSession::HttpSession(HttpSession&&) noexcept = default;
HttpSession& HttpSession::operator=(HttpSession&&) noexcept = default;
HttpSession::~HttpSession() = default;

Result<HttpSession> HttpSession::Create(HttpOptions options) {
  auto state = std::make_unique<State>(std::move(options));
  state->curl = curl_easy_init();
  if (state->curl == nullptr) return Status(Code::kResourceExhausted, "no memory for a connection");
  state->SetUp();
  return HttpSession(std::move(state));
}

HttpEnd HttpSession::Get(const std::string& url, const HttpRange& range, const Sink& sink) {
  HttpEnd end;
  state_->end = &end;
  state_->sink = &sink;
  std::string at = url;
  for (int hops = 0;; ++hops) {
    std::string next = state_->GetOnce(at, range);
    if (next.empty() || !end.status.ok()) return end;
    if (hops == kRedirectsMax) {
      end.status = InvalidArgument(fmt::format("{}: more than {} redirects", end.head.host, hops));
      return end;
    }
    const Origin from = OriginOf(at), to = OriginOf(next);
    if (to.scheme != "https" && (to.scheme != "http" || from.scheme != "http")) {
      end.status = InvalidArgument(fmt::format("{} redirects from {} to {}, which is not followed",
                                               from.host, from.scheme,
                                               to.scheme.empty() ? "nowhere" : to.scheme));
      return end;
    }
    at = std::move(next);
  }
}

Status StartHttp() {
  if (curl_global_init(CURL_GLOBAL_DEFAULT) == CURLE_OK) return {};
  return Status(Code::kInternal, "libcurl cannot be started");
}

std::string UrlEncoded(std::string_view text, bool keep_slashes) {
  std::string out;
  for (const char c : text) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                       c == '-' || c == '.' || c == '_' || c == '~' || (c == '/' && keep_slashes);
    if (plain) {
      out += c;
    } else {
      out += fmt::format("%{:02X}", static_cast<unsigned char>(c));
    }
  }
  return out;
}

bool IsSameOrigin(const std::string& a, const std::string& b) {
  const Origin first = OriginOf(a);
  return !first.host.empty() && first == OriginOf(b);
}

}  // namespace baltoro
