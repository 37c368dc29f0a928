#include "terminal/progress_line.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

namespace baltoro {
namespace {

constexpr Seconds kWindow = 10;
constexpr Seconds kUntilPromise = 3;
constexpr Seconds kUntilFirst = 1;
constexpr Seconds kBetweenDrawings = 0.1;  // on a terminal
constexpr Seconds kBetweenLines = 10;      // elsewhere
constexpr size_t kColumnsUntold = 80;
constexpr char kEraseLine[] = "\r\x1b[K";

void Write(const std::string& text) {
  std::fputs(text.c_str(), stderr);
  std::fflush(stderr);
}

size_t Columns() {
  winsize size{};
  return ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col
                                                                         : kColumnsUntold;
}

}  // namespace

ProgressLine::ProgressLine(bool quiet)
    : quiet_(quiet),
      terminal_(isatty(STDERR_FILENO) == 1),
      due_(clock_.Now() + (terminal_ ? kUntilFirst : kBetweenLines)) {}

bool ProgressLine::due() const {
  return !quiet_ && clock_.Now() >= due_;
}

void ProgressLine::Show(std::string_view text) {
  if (!due()) return;
  due_ = clock_.Now() + (terminal_ ? kBetweenDrawings : kBetweenLines);
  // The last column stays free: a character there makes some terminals wrap.
  Write(terminal_ ? kEraseLine + std::string(CutToColumns(text, Columns() - 1))
                  : std::string(text) + "\n");
  open_ = terminal_;
}

void ProgressLine::End() {
  if (open_) Write(kEraseLine);
  open_ = false;
}

std::string_view CutToColumns(std::string_view text, size_t columns) {
  size_t end = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool begins = (static_cast<unsigned char>(text[i]) & 0xc0) != 0x80;
    if (begins && columns-- == 0) break;
    end = i + 1;
  }
  return text.substr(0, end);
}

std::string ByteProgress::Text(int64_t bytes, int64_t all, Seconds now) {
  if (seen_.empty() || now - seen_.back().first >= 1) seen_.emplace_back(now, bytes);
  while (seen_.size() > 1 && now - seen_.front().first > kWindow) seen_.pop_front();
  // A file that began anew takes bytes back.
  const int64_t came = std::max<int64_t>(0, bytes - seen_.front().second);
  const double seconds = now - seen_.front().first;
  const double rate = seconds > 0 ? static_cast<double>(came) / seconds : 0;
  std::string text =
      fmt::format("{} of {} ({:.0f} %), {}/s", BytesText(bytes), BytesText(all),
                  all > 0 ? 100 * static_cast<double>(bytes) / static_cast<double>(all) : 100,
                  BytesText(static_cast<int64_t>(rate)));
  // The first moments tell little.
  if (all > bytes && rate > 0 && seconds >= kUntilPromise)
    text += ", " + DurationText(static_cast<double>(all - bytes) / rate) + " left";
  return text;
}

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

}  // namespace baltoro
