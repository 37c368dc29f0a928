#include "fetch/web_fetch.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <mutex>
#include <thread>

#include "pull/http_session.h"

namespace baltoro {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr uint64_t kMax = 1 << 20;
const std::function<bool()> kWanted = [] { return false; };

// Answers one connection after the other on 127.0.0.1, and counts them.
class WebHost {
 public:
  using Answer = std::function<void(int fd, const std::string& request)>;

  explicit WebHost(Answer answer, uint32_t at = INADDR_LOOPBACK) : answer_(std::move(answer)) {
    listener_ = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(at);
    socklen_t size = sizeof(address);
    EXPECT_EQ(bind(listener_, reinterpret_cast<sockaddr*>(&address), size), 0);
    EXPECT_EQ(listen(listener_, 16), 0);
    getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size);
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this] { Run(); });
  }
  ~WebHost() {
    shutdown(listener_, SHUT_RDWR);
    thread_.join();
    close(listener_);
  }

  int port() const { return port_; }
  int connections() const { return connections_; }
  std::string requests() {
    const std::lock_guard lock(mutex_);
    return requests_;
  }
  std::string url(const std::string& path = "/x.png") const {
    return "http://127.0.0.1:" + std::to_string(port_) + path;
  }
  WebPolicy policy() const { return {.hosts = {"127.0.0.1"}, .private_hosts = true}; }

 private:
  void Run() {
    for (;;) {
      const int fd = accept(listener_, nullptr, nullptr);
      if (fd < 0) return;
      ++connections_;
      std::string request;
      char bytes[4096];
      while (request.find("\r\n\r\n") == request.npos && !request.starts_with('\x16')) {
        const ssize_t got = recv(fd, bytes, sizeof(bytes), 0);
        if (got <= 0) break;
        request.append(bytes, static_cast<size_t>(got));
      }
      {
        const std::lock_guard lock(mutex_);
        requests_ += request;
      }
      answer_(fd, request);
      close(fd);
    }
  }

  const Answer answer_;
  int listener_ = -1, port_ = 0;
  std::atomic<int> connections_{0};
  std::mutex mutex_;
  std::string requests_;
  std::thread thread_;
};

bool Send(int fd, const std::string& text) {
  return send(fd, text.data(), text.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(text.size());
}

WebHost::Answer Says(const std::string& text) {
  return [text](int fd, const std::string&) { Send(fd, text); };
}

std::string Ok(const std::string& body) {
  return "HTTP/1.1 200 OK\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
}

std::string Redirect(const std::string& to, int status = 302) {
  return "HTTP/1.1 " + std::to_string(status) + " Moved\r\nLocation: " + to +
         "\r\nContent-Length: 0\r\n\r\n";
}

Result<std::string> Fetch(const WebPolicy& policy,
                          const std::string& url,
                          const std::function<bool()>& unwanted = kWanted,
                          Seconds seconds = 20) {
  return FetchFromWeb(policy, url,
                      {.bytes_max = kMax, .seconds_max = seconds, .unwanted = unwanted});
}

std::string WhyNot(const WebPolicy& policy, const std::string& url) {
  const Result<std::string> got = Fetch(policy, url);
  EXPECT_FALSE(got.ok()) << url;
  EXPECT_EQ(got.status().code(), Code::kInvalidArgument) << url;
  const std::string why(got.status().message());
  EXPECT_THAT(why, Not(HasSubstr("127."))) << url;
  EXPECT_THAT(why, Not(HasSubstr("curl"))) << url;
  return why;
}

class WebFetchTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { ASSERT_TRUE(StartHttp().ok()); }
};

TEST_F(WebFetchTest, ANamedHostIsFetchedFrom) {
  WebHost host(Says(Ok("picture")));
  EXPECT_EQ(Fetch(host.policy(), host.url("/a%20b.png?c=d#e")).value(), "picture");
  EXPECT_THAT(host.requests(), HasSubstr("GET /a%20b.png?c=d HTTP/1.1\r\n"));
}

// Nothing is told but what the request is, and no proxy of the environment hears of it.
TEST_F(WebFetchTest, NothingElseIsSent) {
  WebHost host(Says("HTTP/1.1 200 OK\r\nSet-Cookie: a=b\r\nContent-Length: 2\r\n\r\nok"));
  for (const char* name : {"http_proxy", "all_proxy", "ALL_PROXY"}) {
    setenv(name, "http://127.0.0.1:1", 1);
  }
  EXPECT_EQ(Fetch(host.policy(), host.url()).value(), "ok");
  EXPECT_EQ(Fetch(host.policy(), host.url()).value(), "ok");
  for (const char* name : {"http_proxy", "all_proxy", "ALL_PROXY"}) unsetenv(name);
  for (const char* header : {"Cookie", "Authorization", "Accept-Encoding", "Referer", "Proxy"}) {
    EXPECT_THAT(host.requests(), Not(HasSubstr(header)));
  }
}

TEST_F(WebFetchTest, HostsThatAreNotNamedAreNotAsked) {
  WebHost host(Says(Ok("secret")));
  EXPECT_THAT(WhyNot({.hosts = {"a.example"}}, host.url()), HasSubstr("--allowed-media-domains"));
  EXPECT_THAT(WhyNot({.any_public = true}, host.url()), HasSubstr("another port"));
  EXPECT_THAT(WhyNot({.hosts = {"a.example"}, .any_public = true, .private_hosts = true},
                     "http://127.0.0.1/"),
              HasSubstr("private, local or reserved"));
  EXPECT_THAT(WhyNot({.hosts = {"127.0.0.1"}}, host.url()),
              HasSubstr("private, local or reserved"));
  EXPECT_EQ(host.connections(), 0);
}

// What a name means is judged when it is connected to.
TEST_F(WebFetchTest, ANameWithAPrivateAddressIsNotConnectedTo) {
  WebHost host(Says(Ok("secret")));
  const std::string port = std::to_string(host.port());
  for (const char* address :
       {"127.0.0.1", "[::ffff:127.0.0.1]", "[64:ff9b::7f00:1]", "[2002:7f00:1::]", "0.0.0.0",
        "[::]", "[::1]", "169.254.169.254", "10.0.0.1", "100.64.0.1", "[fd00::1]", "[fe80::1]",
        "192.168.1.1", "172.16.0.1", "224.0.0.1", "255.255.255.255"}) {
    const WebPolicy policy{.hosts = {"rebound.example"},
                           .resolve = {"rebound.example:" + port + ":" + address}};
    EXPECT_THAT(WhyNot(policy, "http://rebound.example:" + port + "/"),
                HasSubstr("private, local or reserved"))
        << address;
  }
  // Also where an operator lets it be private: metadata never.
  const WebPolicy metadata{.hosts = {"rebound.example"},
                           .private_hosts = true,
                           .resolve = {"rebound.example:" + port + ":169.254.169.254"}};
  EXPECT_THAT(WhyNot(metadata, "http://rebound.example:" + port + "/"), HasSubstr("reserved"));
  EXPECT_EQ(host.connections(), 0);
  const WebPolicy opened{.hosts = {"own.example"},
                         .private_hosts = true,
                         .resolve = {"own.example:" + port + ":127.0.0.1"}};
  EXPECT_EQ(Fetch(opened, "http://own.example:" + port + "/").value(), "secret");
}

// One that has an allowed address beside another is not believed.
TEST_F(WebFetchTest, AMixedAnswerIsRefused) {
  WebHost host(Says(Ok("secret")));
  const std::string port = std::to_string(host.port());
  const WebPolicy policy{.hosts = {"mixed.example"},
                         .private_hosts = true,
                         .resolve = {"mixed.example:" + port + ":169.254.169.254,127.0.0.1"}};
  EXPECT_THAT(WhyNot(policy, "http://mixed.example:" + port + "/"), HasSubstr("reserved"));
  EXPECT_EQ(host.connections(), 0);
}

TEST_F(WebFetchTest, RedirectsAreJudgedLikeTheFirstUrl) {
  WebHost secret(Says(Ok("secret")), INADDR_LOOPBACK + 1);
  const std::string port = std::to_string(secret.port());
  std::string target;
  int status = 302;
  WebHost host([&](int fd, const std::string&) { Send(fd, Redirect(target, status)); });
  WebPolicy policy = host.policy();
  policy.resolve = {"other.example:" + port + ":127.0.0.2"};
  for (const int each : {301, 302, 303, 307, 308}) {
    status = each;
    for (const std::string& to :
         {"http://other.example:" + port + "/", "//other.example:" + port + "/",
          "http://127.0.0.2:" + port + "/", "http://2130706434:" + port + "/",
          "http://127.2:" + port + "/", "http://u@127.0.0.2:" + port + "/",
          "http://127.0.0.1@127.0.0.2:" + port + "/", "http://[::ffff:127.0.0.2]:" + port + "/",
          std::string("ftp://127.0.0.1/"), std::string("file:///etc/passwd"),
          std::string("gopher://127.0.0.1/"), std::string("dict://127.0.0.1/")}) {
      target = to;
      EXPECT_THAT(WhyNot(policy, host.url()), ::testing::AnyOf(HasSubstr("where the URL redirects"),
                                                               HasSubstr("in place of 200")))
          << to;
    }
  }
  EXPECT_EQ(secret.connections(), 0);
}

TEST_F(WebFetchTest, RedirectsAreFollowedAFewTimes) {
  int asked = 0;
  WebHost host([&](int fd, const std::string& request) {
    ++asked;
    Send(fd, request.starts_with("GET /end") ? Ok("picture") : Redirect("end"));
  });
  EXPECT_EQ(Fetch(host.policy(), host.url()).value(), "picture");
  WebPolicy none = host.policy();
  none.redirects = false;
  EXPECT_THAT(WhyNot(none, host.url()), HasSubstr("not followed"));
  WebHost round([&](int fd, const std::string&) { Send(fd, Redirect("again")); });
  EXPECT_THAT(WhyNot(round.policy(), round.url()), HasSubstr("more than 3 times"));
  EXPECT_EQ(round.connections(), 4);
}

TEST_F(WebFetchTest, WhatIsTooMuchIsNotTaken) {
  WebHost told(Says("HTTP/1.1 200 OK\r\nContent-Length: 1048577\r\n\r\n"));
  EXPECT_THAT(WhyNot(told.policy(), told.url()), HasSubstr("more than 1048576 bytes"));
  std::atomic<uint64_t> sent{0};
  WebHost endless([&](int fd, const std::string&) {
    const std::string block(1 << 16, 'x');
    Send(fd, "HTTP/1.1 200 OK\r\n\r\n");
    for (sent = 0; sent < 64 * kMax && Send(fd, block);) sent += block.size();
  });
  EXPECT_THAT(WhyNot(endless.policy(), endless.url()), HasSubstr("more than 1048576 bytes"));
  EXPECT_LT(sent, 16 * kMax);  // what buffers of sockets take
  WebHost headers([&](int fd, const std::string&) {
    Send(fd, "HTTP/1.1 200 OK\r\n");
    for (int i = 0; i < 20'000 && Send(fd, "X-Header: " + std::string(90, 'x') + "\r\n"); ++i) {
    }
  });
  EXPECT_THAT(WhyNot(headers.policy(), headers.url()), HasSubstr("too many headers"));
  WebHost error([&](int fd, const std::string&) {
    Send(fd, "HTTP/1.1 404 Not Found\r\n\r\n");
    const std::string block(1 << 16, 'x');
    for (int i = 0; i < 1000 && Send(fd, block); ++i) {
    }
  });
  EXPECT_THAT(WhyNot(error.policy(), error.url()), HasSubstr("answers 404"));
}

TEST_F(WebFetchTest, WhoIsSlowIsLeft) {
  std::atomic<bool> stop{false};
  WebHost slow([&](int fd, const std::string&) {
    Send(fd, "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n");
    while (!stop && Send(fd, "x")) std::this_thread::sleep_for(std::chrono::milliseconds(50));
  });
  WebPolicy policy = slow.policy();
  policy.seconds_max = 0.5;
  const auto start = std::chrono::steady_clock::now();
  EXPECT_THAT(WhyNot(policy, slow.url()), HasSubstr("in time"));
  const Result<std::string> less = Fetch(slow.policy(), slow.url(), kWanted, 0.3);
  EXPECT_THAT(less.status().message(), HasSubstr("in time"));
  // Whoever asked may leave before.
  const auto gone = Fetch(slow.policy(), slow.url(), [&] {
    return std::chrono::steady_clock::now() - start > std::chrono::seconds(1);
  });
  EXPECT_EQ(gone.status().code(), Code::kUnavailable);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(5));
  stop = true;
}

TEST_F(WebFetchTest, WhatAnswersNothingUsefulIsNamed) {
  WebHost silent([](int, const std::string&) {});
  EXPECT_THAT(WhyNot(silent.policy(), silent.url()), HasSubstr("broke off"));
  WebHost cut(Says("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf"));
  EXPECT_THAT(WhyNot(cut.policy(), cut.url()), HasSubstr("broke off"));
  WebHost other(Says("SSH-2.0-OpenSSH_9.2\r\n"));
  EXPECT_THAT(WhyNot(other.policy(), other.url()), HasSubstr("HTTP"));
  EXPECT_THAT(WhyNot(other.policy(), "https" + other.url().substr(4)), HasSubstr("TLS"));
  EXPECT_THAT(WhyNot(other.policy(), "http://127.0.0.1:1/"), HasSubstr("take the connection"));
  const WebPolicy nobody{.hosts = {"nobody.invalid"}};
  EXPECT_THAT(WhyNot(nobody, "http://nobody.invalid/"), HasSubstr("not known"));
}

}  // namespace
}  // namespace baltoro
