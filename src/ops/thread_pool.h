#pragma once

// A fixed set of threads that run one parallel loop at a time, started by one caller. Workers spin
// briefly, then sleep, so that a decode step's many small loops start in microseconds and an idle
// server uses no CPU.

#include <cstdint>
#include <functional>
#include <memory>

namespace baltoro {

class ThreadPool {
 public:
  // `threads` counts the caller: 1 means no extra thread. 0: as many as ThreadsByDefault says
  // of this process (base/cpu_topology.h).
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const;
  // Calls body(item, thread) once for each item in [0, items), in any order, on any of the threads,
  // and returns when all are done. `thread` is in [0, threads()). If a body throws, the rest of the
  // items may be left out, and the first exception comes out of here.
  void ParallelFor(int64_t items, const std::function<void(int64_t item, int thread)>& body);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace baltoro
