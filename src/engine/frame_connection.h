#pragma once

// Frames over a connected socket, in both directions.

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>

#include "base/status.h"
#include "request/shared_bytes.h"
#include "request/wire.h"

namespace baltoro {

class FrameConnection {
 public:
  // Owns `fd`.
  explicit FrameConnection(int fd);
  ~FrameConnection();
  FrameConnection(const FrameConnection&) = delete;
  FrameConnection& operator=(const FrameConnection&) = delete;

  // Any thread; never waits for the peer: what the socket does not take is sent by a thread of the
  // connection. False if the connection has ended, or ends because the peer left too much unread.
  bool Send(uint16_t type, std::string_view payload) { return Send(type, payload, {}); }
  // A frame whose payload is `head`, which is short, and `body`. What is large is not copied, costs
  // its caller no time, and never ends the connection, however much of it waits: its sender sees to
  // it that this is bounded, by unsent_bytes().
  bool Send(uint16_t type, std::string_view head, const SharedBytes& body);
  // What waits for the peer to read. Any thread.
  size_t unsent_bytes() const;

  // Reads frames and hands them to `handle` until the peer closes (OK), or until the stream or
  // `handle` says that it cannot go on. The connection is closed afterwards. One thread.
  Status ReadFrames(const std::function<Status(Frame)>& handle);

  // Any thread: ends reading and sending.
  void Shutdown();

 private:
  static constexpr size_t kUnsentMax = size_t{256} << 20;  // of bytes that were copied
  static constexpr size_t kLarge = size_t{64} << 10;       // such a body is not copied

  struct Piece {
    std::string bytes;
    SharedBytes body;  // after them
  };

  bool SendNow(std::string_view& bytes);
  bool SendAll(std::string_view bytes, const std::stop_token& stop);
  void SendLoop(const std::stop_token& stop);

  const int fd_;
  mutable std::mutex mutex_;
  std::condition_variable_any changed_;
  std::deque<Piece> unsent_;                      // under mutex_
  size_t unsent_copied_ = 0, unsent_shared_ = 0;  // under mutex_; with what the thread holds
  bool sending_ = false;                          // under mutex_: the thread holds earlier bytes
  bool broken_ = false;                           // under mutex_
  std::jthread sender_;                           // last: it uses all of the above
};

}  // namespace baltoro
