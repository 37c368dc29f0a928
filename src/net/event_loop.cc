#include "net/event_loop.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstring>

namespace baltoro {

Result<std::unique_ptr<EventLoop>> EventLoop::Create() {
  UniqueFd epoll(epoll_create1(EPOLL_CLOEXEC));
  UniqueFd wake(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  if (!epoll.valid() || !wake.valid()) {
    return Status(Code::kResourceExhausted,
                  std::string("cannot create an event loop: ") + std::strerror(errno));
  }
  std::unique_ptr<EventLoop> loop(new EventLoop(std::move(epoll), std::move(wake)));
  BT_RETURN_IF_ERROR(loop->Add(loop->wake_.get(), EPOLLIN, nullptr));
  return loop;
}

Status EventLoop::Add(int fd, uint32_t epoll_events, Watcher* watcher) {
  epoll_event event{};
  event.events = epoll_events;
  event.data.ptr = watcher;
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) {
    return Status(Code::kResourceExhausted, std::string("epoll_ctl: ") + std::strerror(errno));
  }
  return {};
}

void EventLoop::Remove(int fd) {
  epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
}

void EventLoop::Post(std::function<void()> work) {
  const std::lock_guard lock(mutex_);
  if (stop_) return;
  posted_.push_back(std::move(work));
  if (awake_) return;
  awake_ = true;
  eventfd_write(wake_.get(), 1);
}

void EventLoop::Stop() {
  const std::lock_guard lock(mutex_);
  stop_ = true;
  if (awake_) return;
  awake_ = true;
  eventfd_write(wake_.get(), 1);
}

int EventLoop::WaitMilliseconds() {
  {
    const std::lock_guard lock(mutex_);
    if (stop_ || !posted_.empty()) return 0;
    awake_ = false;
  }
  if (tick_period_ <= 0) return -1;
  const Seconds left = last_tick_ + tick_period_ - Now();
  return std::clamp(static_cast<int>(std::ceil(left * 1000)), 0, 60'000);
}

void EventLoop::RunPosted() {
  {
    const std::lock_guard lock(mutex_);
    awake_ = true;
    running_.swap(posted_);
  }
  for (auto& work : running_) work();
  running_.clear();
}

void EventLoop::RunTick() {
  if (tick_period_ <= 0) return;
  const Seconds now = Now();
  if (now < last_tick_ + tick_period_) return;
  last_tick_ = now;
  on_tick_();
}

void EventLoop::Run() {
  std::array<epoll_event, 256> events;
  for (bool go_on = true; go_on;) {
    const int count = epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()),
                                 WaitMilliseconds());
    for (int i = 0; i < count; ++i) {
      if (events[i].data.ptr == nullptr) {
        eventfd_t ignored;
        eventfd_read(wake_.get(), &ignored);
      } else {
        static_cast<Watcher*>(events[i].data.ptr)->OnEvents(events[i].events);
      }
    }
    {
      // Read before the posted work is taken: what was posted before Stop still runs.
      const std::lock_guard lock(mutex_);
      go_on = !stop_;
    }
    RunPosted();
    RunTick();
    if (on_iteration_end_) on_iteration_end_();
  }
}

}  // namespace baltoro
