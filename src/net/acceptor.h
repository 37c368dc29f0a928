#pragma once

// Takes connections on a thread of its own and deals them out to the I/O threads in turn. A pause
// (too many connections, no descriptors left) is a sleep of that thread: it neither spins nor holds
// anybody up. Private to the room.

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "base/status.h"
#include "net/socket.h"

namespace baltoro {

class IoThread;

class Acceptor {
 public:
  // `threads` and `open_connections` outlive it; it counts each connection that it hands over.
  static Result<std::unique_ptr<Acceptor>> Start(UniqueFd listener,
                                                 size_t connections_max,
                                                 std::atomic<size_t>* open_connections,
                                                 std::vector<IoThread*> threads);
  ~Acceptor();  // stops, joins and closes the listener
  Acceptor(const Acceptor&) = delete;
  Acceptor& operator=(const Acceptor&) = delete;

 private:
  Acceptor() = default;
  void Run();
  bool AcceptAll();
  bool Wait(bool paused);

  UniqueFd listener_;
  UniqueFd stop_;  // an eventfd
  size_t connections_max_ = 0;
  std::atomic<size_t>* open_connections_ = nullptr;
  std::vector<IoThread*> threads_;
  size_t next_thread_ = 0;
  bool warned_ = false;
  std::thread thread_;
};

}  // namespace baltoro
