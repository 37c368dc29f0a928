#pragma once

// How far a command is, on standard error: one line that is written over on a terminal, cut to its
// width; elsewhere a line every ten seconds. What takes less than a second shows nothing. Failures
// to write are ignored: that a terminal has gone is no reason to end a download. One thread at a
// time.

#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <utility>

#include "base/clock.h"

namespace baltoro {

class ProgressLine {
 public:
  explicit ProgressLine(bool quiet = false);
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;
  ~ProgressLine() { End(); }

  // Whether Show would write now: it may be called as often as one likes.
  bool due() const;
  void Show(std::string_view text);
  // Takes the line off a terminal, where what follows shall stand in its place.
  void End();

 private:
  const bool quiet_, terminal_;
  const MonotonicClock clock_;
  Seconds due_;
  bool open_ = false;  // a line without an end stands on the terminal
};

// As many of the first characters of `text` as fit into one line of `columns` without wrapping.
std::string_view CutToColumns(std::string_view text, size_t columns);

// "1.20 GB of 3.40 GB (35 %), 812.0 MB/s, 3 min left": the rate is that of the last ten seconds.
class ByteProgress {
 public:
  // Of one moment, in seconds that only grow.
  std::string Text(int64_t bytes, int64_t all, Seconds now);

 private:
  std::deque<std::pair<Seconds, int64_t>> seen_;  // one a second
};

std::string BytesText(int64_t bytes);      // "1.20 GB"
std::string DurationText(double seconds);  // "45 s", "12 min", "3.5 h"

}  // namespace baltoro
