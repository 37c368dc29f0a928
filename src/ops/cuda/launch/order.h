#pragma once

// What the launches of a stream guarantee to each other. A launch may be placed before those ahead
// of it have ended (placed_launch.h); what it reads before it waits for them must not be written by
// any of these. Each launch says here what it writes, what it reads before its wait, and when it
// lets the next one start; from that follows what the next one may read early. Kept while a step is
// queued or recorded, on the host; plain C++. The rule itself: docs/kernels/decode-step.md.

#include <cstddef>
#include <string>
#include <vector>

namespace baltoro::cuda {

// Memory that a launch writes or reads.
struct Bytes {
  const void* data = nullptr;
  size_t size = 0;

  bool Meets(const Bytes& other) const {
    const auto* const begin = static_cast<const char*>(data);
    const auto* const other_begin = static_cast<const char*>(other.data);
    return begin < other_begin + other.size && other_begin < begin + size;
  }
};

// When a launch lets the next one start.
enum class NextStarts : unsigned char {
  kAtOnce,     // maybe before its own wait: what is ahead of it may still be written then
  kAfterWait,  // all its blocks have waited: what is ahead of it is complete, it itself is not
  kAfterEnd,   // complete: a launch without overlap, or of a library
};

struct LaunchNote {
  const char* kernel = "a launch";
  NextStarts next = NextStarts::kAtOnce;
  bool writes_known = false;  // false: it may write anything
  std::vector<Bytes> writes = {};
  std::vector<Bytes> reads_early = {};  // before its wait; not weights and what a step brings
};

class LaunchOrder {
 public:
  // Whether nothing that may still run when the next launch starts writes these bytes: so that it
  // may read them before its wait. Before the first launch: no.
  bool IsComplete(const Bytes& bytes) const { return WriterOf(bytes) == nullptr; }

  // The next launch. A failed check, with the names of both kernels, if it reads early what may
  // still be written.
  void Add(LaunchNote note);

 private:
  const LaunchNote* WriterOf(const Bytes& bytes) const;

  // Launches that may still run when the next one starts; at first whatever was queued before.
  std::vector<LaunchNote> running_ = {{.kernel = "what was queued before the step"}};
};

}  // namespace baltoro::cuda
