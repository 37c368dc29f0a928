#include "fetch/web_fetch.h"

#include <curl/curl.h>
#include <fmt/format.h>
#include <sys/socket.h>

#include <algorithm>
#include <memory>
#include <string_view>

#include "fetch/address_kind.h"
#include "fetch/media_url.h"
#include "pull/http_session.h"

namespace baltoro {
namespace {

constexpr int kRedirectsMax = 3;
constexpr size_t kHeaderBytesMax = 64 << 10;
constexpr Seconds kConnectSeconds = 3;
constexpr long kSlowBytesPerSecond = 1024, kSlowSeconds = 5;

struct EasyCloser {
  void operator()(CURL* curl) const { curl_easy_cleanup(curl); }
};
struct ListCloser {
  void operator()(curl_slist* list) const { curl_slist_free_all(list); }
};
using List = std::unique_ptr<curl_slist, ListCloser>;

void Append(List& list, const std::string& line) {
  curl_slist* longer = curl_slist_append(list.get(), line.c_str());
  if (longer == nullptr) return;
  static_cast<void>(list.release());
  list.reset(longer);
}

// One request: no redirect is followed here.
class Transfer {
 public:
  Transfer(const WebPolicy& policy,
           const WebUrl& url,
           bool may_be_private,
           uint64_t bytes_max,
           const std::function<bool()>& unwanted,
           Seconds seconds)
      : may_be_private_(may_be_private),
        bytes_max_(bytes_max),
        unwanted_(unwanted),
        curl_(curl_easy_init()) {
    if (curl_ != nullptr) SetUp(policy, url, seconds);
  }
  Transfer(const Transfer&) = delete;
  Transfer& operator=(const Transfer&) = delete;

  // The status of the answer, whose body is then in body() where it is 200, and whose target in
  // target() where it redirects.
  Result<int> Run() {
    if (curl_ == nullptr) return Status(Code::kResourceExhausted, "no memory for a connection");
    const CURLcode code = curl_easy_perform(curl_.get());
    long status = 0;
    curl_easy_getinfo(curl_.get(), CURLINFO_RESPONSE_CODE, &status);
    if (refused_) {
      return InvalidArgument(
          "the URL's host has an address that this server does not connect to for a request: "
          "private, local or reserved");
    }
    if (too_long_ || code == CURLE_FILESIZE_EXCEEDED) {
      return InvalidArgument(fmt::format("the URL answers more than {} bytes", bytes_max_));
    }
    if (header_bytes_ > kHeaderBytesMax) {
      return InvalidArgument("the URL answers too many headers");
    }
    const bool body_left = status != 0 && status != 200 && code == CURLE_WRITE_ERROR;
    if (code != CURLE_OK && !body_left) return WhyNot(code);
    char* target = nullptr;
    curl_easy_getinfo(curl_.get(), CURLINFO_REDIRECT_URL, &target);
    if (target != nullptr) target_ = target;
    return static_cast<int>(status);
  }

  std::string& body() { return body_; }
  const std::string& target() const { return target_; }

 private:
  void SetUp(const WebPolicy& policy, const WebUrl& url, Seconds seconds) {
    CURL* const curl = curl_.get();
    Append(headers_, "Accept: image/png, image/jpeg, image/webp, image/gif");
    for (const std::string& entry : policy.resolve) Append(resolve_, entry);
    const auto milliseconds = [](Seconds time) {
      return std::max(1L, static_cast<long>(time * 1000));
    };
    curl_easy_setopt(curl, CURLOPT_CURLU, url.parsed.get());
    curl_easy_setopt(curl, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(curl, CURLOPT_HTTP_VERSION, static_cast<long>(CURL_HTTP_VERSION_1_1));
    curl_easy_setopt(curl, CURLOPT_FOLLOWLOCATION, 0L);
    curl_easy_setopt(curl, CURLOPT_PROXY, "");  // whatever the environment says
    curl_easy_setopt(curl, CURLOPT_NETRC, static_cast<long>(CURL_NETRC_IGNORED));
    curl_easy_setopt(curl, CURLOPT_HTTP_CONTENT_DECODING, 0L);
    curl_easy_setopt(curl, CURLOPT_FORBID_REUSE, 1L);
    curl_easy_setopt(curl, CURLOPT_USERAGENT, policy.user_agent.c_str());
    curl_easy_setopt(curl, CURLOPT_HTTPHEADER, headers_.get());
    curl_easy_setopt(curl, CURLOPT_RESOLVE, resolve_.get());
    curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
    // A name server that does not answer holds up nobody: its thread is left behind.
    curl_easy_setopt(curl, CURLOPT_QUICK_EXIT, 1L);
    curl_easy_setopt(curl, CURLOPT_TIMEOUT_MS, milliseconds(seconds));
    curl_easy_setopt(curl, CURLOPT_CONNECTTIMEOUT_MS,
                     milliseconds(std::min(seconds, kConnectSeconds)));
    curl_easy_setopt(curl, CURLOPT_LOW_SPEED_LIMIT, kSlowBytesPerSecond);
    curl_easy_setopt(curl, CURLOPT_LOW_SPEED_TIME, kSlowSeconds);
    curl_easy_setopt(curl, CURLOPT_MAXFILESIZE_LARGE, static_cast<curl_off_t>(bytes_max_));
    curl_easy_setopt(curl, CURLOPT_OPENSOCKETFUNCTION, &OpenSocket);
    curl_easy_setopt(curl, CURLOPT_OPENSOCKETDATA, this);
    curl_easy_setopt(curl, CURLOPT_HEADERFUNCTION, &TakeHeader);
    curl_easy_setopt(curl, CURLOPT_HEADERDATA, this);
    curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, &TakeBody);
    curl_easy_setopt(curl, CURLOPT_WRITEDATA, this);
    curl_easy_setopt(curl, CURLOPT_NOPROGRESS, 0L);
    curl_easy_setopt(curl, CURLOPT_XFERINFOFUNCTION, &AskWhetherToStop);
    curl_easy_setopt(curl, CURLOPT_XFERINFODATA, this);
    const std::string certificates = SystemCaFile();
    if (!certificates.empty()) curl_easy_setopt(curl, CURLOPT_CAINFO, certificates.c_str());
  }

  Status WhyNot(CURLcode code) const {
    switch (code) {
      case CURLE_ABORTED_BY_CALLBACK:
        return Status(Code::kUnavailable, "nobody waits for the picture any more");
      case CURLE_OUT_OF_MEMORY:
        return Status(Code::kResourceExhausted, "no memory for a connection");
      case CURLE_OPERATION_TIMEDOUT:
        return InvalidArgument("the URL did not answer the whole picture in time");
      case CURLE_COULDNT_RESOLVE_HOST:
        return InvalidArgument("the URL's host is not known");
      case CURLE_COULDNT_CONNECT:
        return InvalidArgument("the URL's host does not take the connection");
      case CURLE_PEER_FAILED_VERIFICATION:
        return InvalidArgument("the certificate of the URL's host is not valid here");
      case CURLE_SSL_CONNECT_ERROR:
        return InvalidArgument("the URL's host speaks no TLS that this server takes");
      default:
        return InvalidArgument("the URL's host broke off, or does not speak HTTP");
    }
  }

  // The address is the one that the connection will be made to.
  static curl_socket_t OpenSocket(void* self, curlsocktype purpose, curl_sockaddr* address) {
    auto& transfer = *static_cast<Transfer*>(self);
    const AddressKind kind = KindOfAddress(address->addr);
    const bool allowed = purpose == CURLSOCKTYPE_IPCXN &&
                         (kind == AddressKind::kPublic ||
                          (kind == AddressKind::kPrivate && transfer.may_be_private_));
    // A name with one such address is not to be trusted with its others.
    if (!allowed) transfer.refused_ = true;
    if (transfer.refused_) return CURL_SOCKET_BAD;
    return socket(address->family, address->socktype | SOCK_CLOEXEC, address->protocol);
  }

  static size_t TakeHeader(char*, size_t size, size_t count, void* self) {
    auto& transfer = *static_cast<Transfer*>(self);
    transfer.header_bytes_ += size * count;
    return transfer.header_bytes_ > kHeaderBytesMax ? 0 : size * count;
  }

  static size_t TakeBody(char* data, size_t size, size_t count, void* self) {
    auto& transfer = *static_cast<Transfer*>(self);
    long status = 0;
    curl_easy_getinfo(transfer.curl_.get(), CURLINFO_RESPONSE_CODE, &status);
    if (status != 200) return 0;  // the text of an error is of no use
    transfer.too_long_ = size * count > transfer.bytes_max_ - transfer.body_.size();
    if (transfer.too_long_) return 0;
    transfer.body_.append(data, size * count);
    return size * count;
  }

  static int AskWhetherToStop(void* self, curl_off_t, curl_off_t, curl_off_t, curl_off_t) {
    return static_cast<Transfer*>(self)->unwanted_() ? 1 : 0;
  }

  const bool may_be_private_;
  const uint64_t bytes_max_;
  const std::function<bool()>& unwanted_;
  bool refused_ = false, too_long_ = false;
  size_t header_bytes_ = 0;
  std::string body_, target_;
  List headers_, resolve_;
  std::unique_ptr<CURL, EasyCloser> curl_;  // last: it uses all of the above
};

bool IsNamed(const WebPolicy& policy, const WebUrl& url) {
  return std::find(policy.hosts.begin(), policy.hosts.end(), url.host) != policy.hosts.end();
}

Status CheckHost(const WebPolicy& policy, const WebUrl& url) {
  if (IsNamed(policy, url)) return {};
  if (!policy.any_public) {
    return InvalidArgument(
        "the URL's host is none of those that this server fetches from (--allowed-media-domains)");
  }
  if (url.port == 80 || url.port == 443) return {};
  return InvalidArgument("the URL has another port than 80 and 443");
}

// Of where the host sends us, which the client does not know.
Status Redirected(const Status& why) {
  return InvalidArgument("where the URL redirects to: " + std::string(why.message()));
}

}  // namespace

Result<std::string> FetchFromWeb(const WebPolicy& policy,
                                 const std::string& url,
                                 const MediaBounds& bounds) {
  const MonotonicClock clock;
  const Seconds end = clock.Now() + std::min(policy.seconds_max, bounds.seconds_max);
  std::string at = url;
  bool secure = false;
  for (int hop = 0;; ++hop) {
    Result<WebUrl> read = ReadWebUrl(at);
    Status allowed = read.ok() ? CheckHost(policy, read.value()) : read.status();
    if (allowed.ok() && secure && !read.value().https) {
      allowed = InvalidArgument("it leads from https to http");
    }
    if (!allowed.ok()) return hop == 0 ? allowed : Redirected(allowed);
    const WebUrl& target = read.value();
    secure = target.https;
    const Seconds left = end - clock.Now();
    if (left <= 0) return InvalidArgument("the URL did not answer the whole picture in time");
    Transfer transfer(policy, target, policy.private_hosts && IsNamed(policy, target),
                      bounds.bytes_max, bounds.unwanted, left);
    const Result<int> status = transfer.Run();
    if (!status.ok()) {
      const bool refusal = status.status().code() == Code::kInvalidArgument;
      return hop > 0 && refusal ? Redirected(status.status()) : status.status();
    }
    if (status.value() == 200) return std::move(transfer.body());
    if (transfer.target().empty()) {
      return InvalidArgument(fmt::format("the URL answers {} in place of 200", status.value()));
    }
    if (!policy.redirects) {
      return InvalidArgument("the URL redirects, which is not followed here");
    }
    if (hop == kRedirectsMax) {
      return InvalidArgument(fmt::format("the URL redirects more than {} times", kRedirectsMax));
    }
    at = transfer.target();
  }
}

}  // namespace baltoro
