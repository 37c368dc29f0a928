#pragma once

// What the launches of a stream guarantee to each other. A launch may be placed before those ahead
// of it have ended (placed_launch.h): what it reads or writes before it waits for them must not be
// written, or read, by any of these. Each launch says with a LaunchNote what it touches and when it
// lets the next one start; the LaunchOrder of its stream keeps what may still be running, answers
// whether memory is complete, and ends the process where a launch would come too early. On the
// host, while a step is queued or recorded; plain C++. The rule itself:
// docs/kernels/decode-step.md.

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace baltoro::cuda {

// Memory that a launch writes or reads.
struct Region {
  const void* data = nullptr;
  int64_t size = 0;

  bool Meets(const Region& other) const {
    const auto* const begin = static_cast<const char*>(data);
    const auto* const other_begin = static_cast<const char*>(other.data);
    return begin < other_begin + other.size && other_begin < begin + size;
  }
};

template <typename T>
Region RegionOf(const T* data, int64_t count) {
  return {data, data == nullptr ? 0 : count * static_cast<int64_t>(sizeof(T))};
}
// `rows` rows of `width` bytes, `stride` bytes from one to the next.
inline Region RowsRegion(const void* data, int64_t rows, int64_t stride, int64_t width) {
  return {data, data == nullptr || rows == 0 ? 0 : (rows - 1) * stride + width};
}

// A list of pieces of memory, or all of it.
class Regions {
 public:
  static constexpr int kMax = 24;

  static Regions Anything() {
    Regions all;
    all.anything_ = true;
    return all;
  }
  Regions() = default;
  // Not given: none. Pieces without bytes are left out.
  template <typename... More>
  Regions(const Region& first, const More&... more) {  // NOLINT: reads as a list
    Add(first);
    (Add(more), ...);
  }

  // A failed check beyond kMax.
  void Add(const Region& piece);
  void Add(const Regions& pieces);
  bool anything() const { return anything_; }
  std::span<const Region> pieces() const { return {pieces_.data(), static_cast<size_t>(count_)}; }
  bool empty() const { return !anything_ && count_ == 0; }
  bool Meets(const Region& piece) const;
  bool Meets(const Regions& other) const;

 private:
  bool anything_ = false;
  int count_ = 0;
  std::array<Region, kMax> pieces_ = {};
};

// When a launch lets the next one start.
enum class NextStarts : uint8_t {
  kAtOnce,     // maybe before its own wait: what is ahead of it may still be running then
  kAfterWait,  // once each of its blocks has waited: what is ahead of it is complete, it is not
};

// What a launch says of itself. Who says nothing but a name may touch anything, and lets the next
// one start at once. Weights, and what a step uploads before its first kernel, need not be named:
// no kernel of a step writes them.
struct LaunchNote {
  LaunchNote(const char* name) : kernel(name) {}  // NOLINT: a name is a note

  const char* kernel;
  NextStarts next = NextStarts::kAtOnce;
  Regions writes = Regions::Anything();
  Regions reads = Regions::Anything();
  // Of these, before its wait.
  Regions early_reads = {};
  Regions early_writes = {};
};

class LaunchOrder {
 public:
  // Whether no launch that may still run when the next one starts writes this memory, so that the
  // next one may read it before its wait.
  bool IsComplete(const Regions& regions) const;
  // Whether none of them reads or writes these, so that the next one may write there as early.
  bool IsLeftAlone(const Regions& regions) const;

  // The next launch. One that would come too early is told to `too_early`, with the names of both
  // kernels.
  void Add(const LaunchNote& note);
  // Ends the process; tests listen instead.
  void (*too_early)(const std::string& what) = EndsProcess;

  // Likewise a launch without a note that starts when all ahead have ended: a library's, or a plain
  // one. What it writes is seen behind a wait alone, so nothing is complete until the next one that
  // lets others start after its wait.
  void AddPlain(const char* name);

  // From here on nothing of before is known: at the start, and where a recording begins.
  void Forget();
  // All that was queued has ended when the next launch starts.
  void Complete() { running_ = 0; }

  [[noreturn]] static void EndsProcess(const std::string& what);

 private:
  static constexpr int kRunningMax = 8;

  // Those that may still run when the next one starts, the oldest first.
  std::array<LaunchNote, kRunningMax> notes_ = {
      "an operation queued before", "", "", "", "", "", "", ""};
  int running_ = 1;
};

}  // namespace baltoro::cuda
