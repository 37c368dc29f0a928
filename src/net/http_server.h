#pragma once

// An HTTP/1.1 server for many slow streams: a few I/O threads, each with one event loop, and no
// thread per connection. It moves bytes and knows no meaning; every limit is an option.
//
// The handler runs on an I/O thread and must not block. It answers through a Responder, at once or
// later, from any thread. A connection serves one exchange at a time; pipelined requests wait, and
// their answers leave in order.

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "net/byte_shares.h"
#include "net/http_message.h"
#include "net/http_parser.h"
#include "net/socket.h"
#include "net/tls.h"

namespace baltoro {

class Acceptor;
class Exchange;
class IoThread;

struct HttpServerOptions {
  std::string host = "127.0.0.1";  // name or address; empty: every interface
  int port = 8000;                 // 0: any free one, see HttpServer::port()
  std::string uds = {};            // path of a Unix socket; if set, host and port are not used
  std::shared_ptr<const TlsContext> tls = {};  // null: plain HTTP
  size_t threads = 1;
  HttpLimits limits = {};

  Seconds handshake_deadline = 5;           // of TLS, from connect; then the connection is closed
  Seconds header_deadline = 10;             // from connect or the request's first byte; then 408
  Seconds body_deadline = 120;              // from the end of the headers; then 408
  double body_bytes_per_second_min = 1024;  // after the grace; then 408
  Seconds body_rate_grace = 10;
  Seconds keep_alive_idle = 30;           // between requests; then the connection is closed
  size_t requests_per_connection = 1000;  // then it is closed
  size_t connections = 8192;              // of all threads; over: accepting pauses
  // Unsent bytes of one stream; over: aborted. A single write that is larger is let through and
  // raises the bound of its stream by its size.
  size_t stream_buffer_bytes = 1 << 20;
  // Of all unfinished requests, of which no client may hold more than it leaves to all others
  // (ByteShares); over: 503.
  size_t held_body_bytes = size_t{1} << 30;
  // Bytes of answers that clients have not taken yet: of one whole answer, and of all connections
  // together, of which no client may hold more than it leaves to all others (ByteShares). Over:
  // 503 instead of an answer, and a stream is aborted; neither happens to one that has no more than
  // held_answer_free waiting.
  size_t answer_bytes = size_t{256} << 20;
  size_t held_answer_bytes = size_t{512} << 20;
  size_t held_answer_free = 64 << 10;
  Seconds write_stall = 60;                  // a client that takes next to nothing; then aborted
  double write_bytes_per_second_min = 1024;  // what "next to nothing" is
  // Much that waits must be taken faster: at a rate that ends within this time.
  Seconds answer_deadline = 600;
  Seconds linger = 5;  // for the peer to read a last answer
  int backlog = 4096;
  int send_buffer_bytes = 256 << 10;  // the kernel's buffer per connection; 0: its choice

  // The JSON body of an answer that the server gives by itself: 400, 408, 413, 414, 417, 431, 500,
  // 503, 505. `reason` is one of a fixed set of sentences. Called on any thread. Empty: a plain
  // OpenAI error object. `path` is the request's, empty where its head was not read.
  std::function<std::string(int status, std::string_view reason, std::string_view path)>
      error_body = {};

  Status Validate() const;
};

// The one handle of one exchange. Movable, may be kept, and may be used from any thread, also after
// the server is gone. Either Send, or StartStream, then Write any number of times, then End (or
// Abort). Dropped before Send or StartStream it answers 500; dropped inside a stream it aborts.
class Responder {
 public:
  Responder() = default;
  explicit Responder(std::shared_ptr<Exchange> exchange);
  Responder(Responder&&) noexcept = default;
  Responder& operator=(Responder&& other) noexcept;
  ~Responder();

  // Takes room for a whole answer of that many bytes. False: clients hold too much; then only a
  // short answer can be sent.
  [[nodiscard]] bool Reserve(size_t bytes);
  // The whole answer. One for which there is no room becomes a 503.
  void Send(HttpResponse response);

  // A chunked answer (HTTP/1.0: one that ends with the connection). Without content-type among the
  // headers it is text/event-stream; without cache-control it is no-cache.
  void StartStream(int status, const HttpHeaders& headers = {});
  // Appends to the stream; what gathers before the I/O thread comes round leaves in one write.
  // False when the client is gone or its buffer is over the limit: the exchange is then over.
  bool Write(std::string_view bytes);
  void End();
  // Breaks the stream off, so that the client can tell.
  void Abort();

  // The client hung up or stalled, the stream was aborted, or the server stopped.
  bool client_gone() const;
  // Calls `on_gone` once, on the I/O thread, if the client goes before the answer is complete; at
  // once and here if it is gone already. A pipelined request does not count as going.
  void OnClientGone(std::function<void()> on_gone);

  size_t io_thread() const;  // for HttpServer::Post
  bool valid() const { return exchange_ != nullptr; }

 private:
  void Drop();

  // Shared with the connection: either side may end first.
  std::shared_ptr<Exchange> exchange_;
};

class HttpServer {
 public:
  using Handler = std::function<void(HttpRequest, Responder)>;

  // Binds and listens; connections wait for Start.
  static Result<std::unique_ptr<HttpServer>> Bind(HttpServerOptions options, Handler handler);
  // Starts the threads; when it returns, connections are taken.
  Status Start();
  // Both.
  static Result<std::unique_ptr<HttpServer>> Listen(HttpServerOptions options, Handler handler);
  ~HttpServer();  // Stop(0)
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  int port() const { return port_; }  // 0 for a Unix socket
  bool speaks_tls() const { return options_.tls != nullptr; }
  // Whether nobody but this machine itself reaches the address that it is bound to, whatever name
  // led to that. Not for a Unix socket.
  bool on_loopback() const { return on_loopback_; }
  size_t open_connections() const { return open_connections_; }
  size_t held_body_bytes() const { return bodies_.all(); }     // see HttpServerOptions
  size_t held_answer_bytes() const { return answers_.all(); }  // likewise
  size_t io_threads() const { return threads_.size(); }
  // Runs `work` on that I/O thread. A producer of many streams posts one function per thread and
  // step, and calls Responder::Write in it. Dropped after Stop.
  void Post(size_t io_thread, std::function<void()> work);

  // Refuses new connections; those open go on. Returns when the socket is closed.
  void StopAccepting();
  // Answers every request that has no answer yet by 503; what its handler says later is dropped.
  // Streams go on. Returns when that is done, though perhaps not sent, or after half a second of no
  // answer from an I/O thread; not from one of these.
  void RefuseUnanswered();
  // StopAccepting, close what is idle, wait up to `drain` for the exchanges under way, then break
  // the rest off. Not from an I/O thread. The second call does nothing.
  void Stop(Seconds drain);

 private:
  HttpServer(HttpServerOptions options, Handler handler);

  HttpServerOptions options_;
  Handler handler_;
  UniqueFd listener_;  // until Start
  int port_ = 0;
  bool on_loopback_ = false;
  std::atomic<size_t> open_connections_ = 0;
  ByteShares bodies_;
  ByteShares answers_;
  std::atomic<bool> draining_ = false;
  bool stopped_ = false;
  std::vector<std::unique_ptr<IoThread>> threads_;
  std::unique_ptr<Acceptor> acceptor_;  // ends before the threads that it feeds
};

}  // namespace baltoro
