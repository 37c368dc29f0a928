#pragma once

// An HTTP/1.1 client for many answers at once, on the thread of an EventLoop: connections are kept
// and used again, streamed bodies are handed out as they come, with the time of their arrival. That
// is the kernel's (SO_TIMESTAMPNS), so that a thousand streams which have something at once do not
// wait for each other in it; where the kernel gives none, and over TLS, that of the read. All calls
// belong to the loop's thread.

#include <sys/socket.h>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "net/event_loop.h"
#include "net/http_client.h"

namespace baltoro {

class StreamClient {
 public:
  class Sink {
   public:
    virtual ~Sink() = default;
    // What came of the body of an answer of status 200, without its framing. `at` is when the last
    // of it arrived, by the loop's clock.
    virtual void OnBody(std::string_view bytes, Seconds at) = 0;
    // Once, and last. The body of an answer of another status is within. An error is one of the
    // connection or of the peer's HTTP.
    virtual void OnEnd(const Result<HttpResponse>& answer, Seconds at) = 0;
  };

  // Finds the server's address and makes a first connection, which may take the options'
  // connect_timeout. idle_timeout is for a whole exchange.
  static Result<std::unique_ptr<StreamClient>> Create(EventLoop* loop, HttpClientOptions options);
  ~StreamClient();

  // `sink` lives until its OnEnd, which never comes within this call.
  void Send(const HttpClientRequest& request, Sink* sink);
  // Ends exchanges that have taken longer than the idle_timeout.
  void Expire(Seconds now);
  // Ends what is under way, without a word to its sink.
  void Abandon();
  // Connections, used and idle.
  size_t connections() const { return channels_.size(); }

 private:
  class Channel;
  StreamClient(EventLoop* loop, HttpClientOptions options);
  Status Open(Channel& channel);
  void Begin(std::string bytes, Sink* sink);
  void Fail(Sink* sink, Status status);
  // Takes the channel out of use; it lives to the end of the loop's iteration.
  void Drop(Channel* channel);

  EventLoop* loop_;
  HttpClientOptions options_;
  sockaddr_storage address_ = {};
  socklen_t address_bytes_ = 0;
  std::vector<std::unique_ptr<Channel>> channels_, dropped_;
  std::vector<Channel*> idle_;
  std::vector<char> buffer_;  // of one read
};

}  // namespace baltoro
