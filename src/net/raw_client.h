#pragma once

// For this room's tests: a socket that says exactly what it is told to, and a server to say it to.

#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <chrono>
#include <string>
#include <string_view>
#include <thread>

#include "net/http_server.h"
#include "net/socket.h"

namespace baltoro::test {

class RawClient {
 public:
  // `from` is the client's own address: every one of 127.0.0.0/8 is this machine's.
  explicit RawClient(int port, int receive_buffer = 0, const char* from = "127.0.0.1")
      : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const sockaddr_in own = AddressOf(from, 0);
    EXPECT_EQ(bind(fd_.get(), reinterpret_cast<const sockaddr*>(&own), sizeof(own)), 0);
    const sockaddr_in server = AddressOf("127.0.0.1", port);
    EXPECT_EQ(connect(fd_.get(), reinterpret_cast<const sockaddr*>(&server), sizeof(server)), 0);
    fcntl(fd_.get(), F_SETFL, O_NONBLOCK);
    if (receive_buffer > 0) {
      setsockopt(fd_.get(), SOL_SOCKET, SO_RCVBUF, &receive_buffer, sizeof(receive_buffer));
    }
  }

  // False when the server has closed.
  bool Send(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t count = send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (count > 0) {
        bytes.remove_prefix(static_cast<size_t>(count));
      } else if (errno != EAGAIN || !Wait(POLLOUT, 5)) {
        return false;
      }
    }
    return true;
  }

  // Reads until `end` has been seen; what was read, up to and including it. On the server's close
  // or after `timeout` seconds: all there was.
  std::string ReadUntil(std::string_view end, double timeout = 5) {
    for (;;) {
      const size_t at = kept_.find(end);
      if (at != std::string::npos) {
        std::string text = kept_.substr(0, at + end.size());
        kept_.erase(0, at + end.size());
        return text;
      }
      if (!ReadMore(timeout)) return std::exchange(kept_, "");
    }
  }

  std::string ReadAll(double timeout = 5) {
    while (ReadMore(timeout)) {
    }
    return std::exchange(kept_, "");
  }

  bool closed_by_server() const { return closed_; }
  bool reset_by_server() const { return reset_; }
  void HalfClose() { shutdown(fd_.get(), SHUT_WR); }
  void Close() { fd_.Close(); }
  void CloseWithReset() {
    const linger at_once{.l_onoff = 1, .l_linger = 0};
    setsockopt(fd_.get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
    fd_.Close();
  }

 private:
  static sockaddr_in AddressOf(const char* host, int port) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    EXPECT_EQ(inet_pton(AF_INET, host, &address.sin_addr), 1);
    return address;
  }

  bool Wait(short events, double timeout) {
    pollfd wait{.fd = fd_.get(), .events = events, .revents = 0};
    return poll(&wait, 1, static_cast<int>(timeout * 1000)) > 0;
  }

  bool ReadMore(double timeout) {
    if (closed_ || !Wait(POLLIN, timeout)) return false;
    std::array<char, 65536> buffer;
    const ssize_t count = recv(fd_.get(), buffer.data(), buffer.size(), 0);
    if (count <= 0) {
      closed_ = true;
      reset_ = count < 0;
      return false;
    }
    kept_.append(buffer.data(), static_cast<size_t>(count));
    return true;
  }

  UniqueFd fd_;
  std::string kept_;
  bool closed_ = false;
  bool reset_ = false;
};

inline std::unique_ptr<HttpServer> StartServer(HttpServerOptions options,
                                               HttpServer::Handler handler) {
  options.port = 0;
  Result<std::unique_ptr<HttpServer>> server =
      HttpServer::Listen(std::move(options), std::move(handler));
  EXPECT_TRUE(server.ok()) << server.status().message();
  return server.ok() ? std::move(server).value() : nullptr;
}

// Answers with what it was asked: "METHOD PATH BODY".
inline void Echo(HttpRequest request, Responder responder) {
  responder.Send({.headers = {},
                  .body = request.method + " " + request.path + " " + request.body,
                  .content_type = "text/plain"});
}

// Waits until `condition` holds, at most `seconds`.
template <typename Condition>
bool Eventually(Condition condition, double seconds = 5) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

}  // namespace baltoro::test
