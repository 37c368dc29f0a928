#pragma once

#include <deque>
#include <string>
#include <utility>

#include "pull/download.h"

namespace baltoro {

// "1.20 of 3.40 GB (35 %), 812.0 MB/s, 3 min left, 3 of 9 files": the rate is that of the last ten
// seconds.
class PullProgress {
 public:
  // Of one moment, in seconds that only grow.
  std::string Line(const DownloadState& state, double now);

 private:
  std::deque<std::pair<double, int64_t>> seen_;  // one a second
};

// Writes to standard error. That nobody reads it any more, because a terminal has gone, is no
// reason to end a download: a failure is ignored.
void Say(const std::string& text);

// One line that is written over on a terminal, a line every ten seconds elsewhere; on standard
// error. One thread.
class ProgressPrinter {
 public:
  explicit ProgressPrinter(bool quiet);
  void Show(const DownloadState& state);
  // A line of its own above the progress.
  void Tell(const std::string& line);
  void End();

 private:
  const bool quiet_;
  const bool terminal_;
  PullProgress progress_;
  double shown_ = 0;
  bool open_ = false;  // a line without an end stands on the terminal
};

std::string BytesText(int64_t bytes);      // "1.20 GB"
std::string DurationText(double seconds);  // "45 s", "12 min", "3.5 h"

}  // namespace baltoro
