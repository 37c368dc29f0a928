#include "pull/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "base/clock.h"

namespace baltoro {
namespace {

constexpr double kWindowSeconds = 10;
constexpr double kSecondsOfPromise = 3;
constexpr double kSecondsBetweenLines = 10;

}  // namespace

std::string BytesText(int64_t bytes) {
  const auto value = static_cast<double>(bytes);
  if (bytes < 1'000) return fmt::format("{} bytes", bytes);
  if (bytes < 1'000'000) return fmt::format("{:.1f} kB", value / 1e3);
  if (bytes < 1'000'000'000) return fmt::format("{:.1f} MB", value / 1e6);
  return fmt::format("{:.2f} GB", value / 1e9);
}

std::string DurationText(double seconds) {
  if (seconds < 100) return fmt::format("{:.0f} s", seconds);
  if (seconds < 6000) return fmt::format("{:.0f} min", seconds / 60);
  return fmt::format("{:.1f} h", seconds / 3600);
}

std::string PullProgress::Line(const DownloadState& state, double now) {
  if (seen_.empty() || now - seen_.back().first >= 1) seen_.emplace_back(now, state.bytes);
  while (seen_.size() > 1 && now - seen_.front().first > kWindowSeconds) seen_.pop_front();
  // A file that began anew takes bytes back.
  const int64_t came = std::max<int64_t>(0, state.bytes - seen_.front().second);
  const double seconds = now - seen_.front().first;
  const double rate = seconds > 0 ? static_cast<double>(came) / seconds : 0;
  const int64_t left = state.bytes_all - state.bytes;
  std::string text = fmt::format(
      "{} of {} ({:.0f} %), {}/s", BytesText(state.bytes), BytesText(state.bytes_all),
      state.bytes_all > 0
          ? 100 * static_cast<double>(state.bytes) / static_cast<double>(state.bytes_all)
          : 100,
      BytesText(static_cast<int64_t>(rate)));
  // The first moments tell little.
  if (left > 0 && rate > 0 && seconds >= kSecondsOfPromise)
    text += ", " + DurationText(static_cast<double>(left) / rate) + " left";
  text += fmt::format(", {} of {} files", state.files, state.files_all);
  if (state.checking > 0) text += fmt::format(", checking {}", state.checking);
  return text;
}

void Say(const std::string& text) {
  std::fputs(text.c_str(), stderr);
  std::fflush(stderr);
}

ProgressPrinter::ProgressPrinter(bool quiet)
    : quiet_(quiet), terminal_(isatty(STDERR_FILENO) == 1), shown_(MonotonicClock().Now()) {}

void ProgressPrinter::Show(const DownloadState& state) {
  if (quiet_) return;
  const double now = MonotonicClock().Now();
  const std::string line = progress_.Line(state, now);
  if (!terminal_ && now - shown_ < kSecondsBetweenLines) return;
  shown_ = now;
  Say(terminal_ ? "\r\x1b[K" + line : line + "\n");
  open_ = terminal_;
}

void ProgressPrinter::Tell(const std::string& line) {
  if (quiet_) return;
  End();
  Say(line + "\n");
}

void ProgressPrinter::End() {
  if (open_) Say("\n");
  open_ = false;
}

}  // namespace baltoro
