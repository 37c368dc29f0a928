#include "base/log_format.h"

#include <time.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>

#include "base/utf8.h"

namespace baltoro {
namespace {

constexpr LogLevel kLevels[] = {LogLevel::kDebug, LogLevel::kInfo, LogLevel::kWarning,
                                LogLevel::kError};

// Text into a buffer of a fixed size. What does not fit is left out, whole pieces of it.
class Buffer {
 public:
  Buffer(char* out, size_t room) : out_(out), room_(room) {}

  bool Put(std::string_view text) {
    if (text.size() > room_ - used_) return false;
    std::memcpy(out_ + used_, text.data(), text.size());
    used_ += text.size();
    return true;
  }
  void PutNumber(int number) {
    char digits[16];
    const int size = std::snprintf(digits, sizeof digits, "%d", number);
    Put(std::string_view(digits, static_cast<size_t>(size)));
  }
  // False when it was cut.
  bool PutEscaped(std::string_view text);

  void set_room(size_t room) { room_ = room; }
  size_t used() const { return used_; }

 private:
  char* out_;
  size_t room_, used_ = 0;
};

bool Buffer::PutEscaped(std::string_view text) {
  while (!text.empty()) {
    const auto byte = static_cast<unsigned char>(text.front());
    const size_t length = Utf8ValidLength(text);
    char escape[8];
    std::string_view piece = text.substr(0, length);
    if (length == 0) {
      piece = "\xef\xbf\xbd";
    } else if (byte == '"' || byte == '\\') {
      piece = byte == '"' ? "\\\"" : "\\\\";
    } else if (byte < 0x20 || byte == 0x7f) {
      std::snprintf(escape, sizeof escape, "\\u%04x", byte);
      piece = std::string_view(escape, 6);
    }
    if (!Put(piece)) return false;
    text.remove_prefix(length == 0 ? 1 : length);
  }
  return true;
}

void PutTime(Buffer& out) {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  std::tm parts{};
  gmtime_r(&now.tv_sec, &parts);
  char stamp[48];
  std::snprintf(stamp, sizeof stamp, "%04d-%02d-%02dT%02d:%02d:%02d.%03dZ", parts.tm_year + 1900,
                parts.tm_mon + 1, parts.tm_mday, parts.tm_hour, parts.tm_min, parts.tm_sec,
                static_cast<int>(now.tv_nsec / 1'000'000));
  out.Put(stamp);
}

}  // namespace

const char* LogLevelName(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return "DEBUG";
    case LogLevel::kInfo:
      return "INFO";
    case LogLevel::kWarning:
      return "WARNING";
    case LogLevel::kError:
      return "ERROR";
  }
  return "";
}

bool ParseLogLevel(std::string_view name, LogLevel& level) {
  for (const LogLevel one : kLevels) {
    if (name != LogLevelName(one)) continue;
    level = one;
    return true;
  }
  return false;
}

size_t PrintJsonLine(const LogLine& line, char* out) {
  constexpr std::string_view kEnd = "\"}\n", kCut = "...";
  Buffer buffer(out, kLogLineMax - kEnd.size() - kCut.size());
  buffer.Put("{\"time\":\"");
  PutTime(buffer);
  buffer.Put("\",\"level\":\"");
  buffer.Put(LogLevelName(line.level));
  buffer.Put("\",\"process\":\"");
  buffer.Put(line.process);
  buffer.Put("\",\"pid\":");
  buffer.PutNumber(getpid());
  if (!line.file.empty()) {
    buffer.Put(",\"source\":\"");
    buffer.Put(line.file);
    buffer.Put(":");
    buffer.PutNumber(line.line);
    buffer.Put("\"");
  }
  buffer.Put(",\"message\":\"");
  const bool whole = buffer.PutEscaped(line.message);
  buffer.set_room(kLogLineMax);
  if (!whole) buffer.Put(kCut);
  buffer.Put(kEnd);
  return buffer.used();
}

}  // namespace baltoro
