#pragma once

// The way back from the engine to the I/O threads: events of one step are sorted by thread and
// posted once to each, so that a token costs no lock and no wake-up of its own.

#include <atomic>
#include <functional>
#include <memory>
#include <unordered_map>
#include <vector>

#include "engine/engine.h"
#include "request/request.h"

namespace baltoro {

// What receives the events of a request, on the I/O thread that registered it.
class EventReceiver {
 public:
  virtual ~EventReceiver() = default;
  virtual void OnEvent(TokenEvent event, int choice) = 0;
  // After the last event of one step for this receiver: time to write.
  virtual void OnStepEnd() = 0;
  // The server stops: no event will come any more.
  virtual void OnServerStop() = 0;
};

class Dispatcher {
 public:
  using Post = std::function<void(size_t io_thread, std::function<void()>)>;

  // Before any Register. `post` runs a function on an I/O thread.
  void Start(size_t io_threads, Post post);

  // A new id whose events will come to `io_thread`.
  RequestId NewId(size_t io_thread);
  // On that I/O thread, before the request is submitted. Kept until its final event. The receiver
  // is shared because the client may go while the engine still speaks of the request.
  void Register(RequestId id, std::shared_ptr<EventReceiver> receiver, int choice);
  // On that I/O thread: the request was never accepted.
  void Forget(RequestId id);

  // Tells every receiver, on its own thread, that the server stops; their requests are forgotten.
  void Stop();

  // For the engine.
  void Deliver(std::vector<TokenEvent> events);

 private:
  struct Entry {
    std::shared_ptr<EventReceiver> receiver;
    int choice = 0;
  };
  using Table = std::unordered_map<uint64_t, Entry>;  // touched by its own I/O thread only

  static size_t ThreadOf(RequestId id) { return static_cast<uint64_t>(id) & 0xFF; }
  static void Run(Table& table, std::vector<TokenEvent> events);

  Post post_;
  std::atomic<uint64_t> next_{1};
  std::vector<std::unique_ptr<Table>> tables_;
};

}  // namespace baltoro
