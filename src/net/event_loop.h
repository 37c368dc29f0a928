#pragma once

// One thread's wait for sockets, for work posted by other threads and for time: epoll, an eventfd
// and a queue. Callbacks only; nothing here knows HTTP.
//
// Run, Add, Remove and SetTick belong to the loop's thread (before Run: to the one that will call
// it). Post and Stop may be called from anywhere.

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "net/socket.h"

namespace baltoro {

class EventLoop {
 public:
  class Watcher {
   public:
    virtual ~Watcher() = default;
    virtual void OnEvents(uint32_t epoll_events) = 0;
  };

  static Result<std::unique_ptr<EventLoop>> Create();

  void Run();
  // Ends Run after what was posted before. Functions posted later are dropped.
  void Stop();
  // Runs `work` on the loop's thread, in the order of posting. Wakes it once a batch.
  void Post(std::function<void()> work);

  // `watcher` must live until the iteration after Remove ends; see Connection's graveyard.
  Status Add(int fd, uint32_t epoll_events, Watcher* watcher);
  void Remove(int fd);

  // Calls `on_tick` about every `period`; 0 turns it off, and the loop then sleeps until an event.
  void SetTick(Seconds period) { tick_period_ = period; }
  void set_on_tick(std::function<void()> on_tick) { on_tick_ = std::move(on_tick); }
  // Called at the end of each iteration.
  void set_on_iteration_end(std::function<void()> f) { on_iteration_end_ = std::move(f); }

  Seconds Now() const { return clock_.Now(); }

 private:
  EventLoop(UniqueFd epoll, UniqueFd wake) : epoll_(std::move(epoll)), wake_(std::move(wake)) {}

  int WaitMilliseconds();
  void RunPosted();
  void RunTick();

  UniqueFd epoll_;
  UniqueFd wake_;
  MonotonicClock clock_;
  Seconds tick_period_ = 0;
  Seconds last_tick_ = 0;
  std::function<void()> on_tick_;
  std::function<void()> on_iteration_end_;
  std::vector<std::function<void()>> running_;  // swapped with posted_, to keep its memory

  std::mutex mutex_;
  std::vector<std::function<void()>> posted_;
  bool awake_ = true;  // false only while the loop may sleep; a poster then writes the eventfd
  bool stop_ = false;
};

}  // namespace baltoro
