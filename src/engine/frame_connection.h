#pragma once

// Frames over a connected socket, in both directions.

#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>

#include "base/status.h"
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
  bool Send(uint16_t type, std::string_view payload);

  // Reads frames and hands them to `handle` until the peer closes (OK), or until the stream or
  // `handle` says that it cannot go on. The connection is closed afterwards. One thread.
  Status ReadFrames(const std::function<Status(Frame)>& handle);

  // Any thread: ends reading and sending.
  void Shutdown();

 private:
  static constexpr size_t kUnsentMax = size_t{256} << 20;

  bool SendNow(std::string_view& bytes);
  void SendLoop(const std::stop_token& stop);

  const int fd_;
  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::string unsent_;    // under mutex_
  bool sending_ = false;  // under mutex_: the thread holds earlier bytes
  bool broken_ = false;   // under mutex_
  std::jthread sender_;   // last: it uses all of the above
};

}  // namespace baltoro
