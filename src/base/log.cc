#include "base/log.h"

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <atomic>
#include <ctime>
#include <memory>

namespace baltoro {
namespace {

constexpr size_t kLineBytesMax = 4096;

// A process has one standard error, so its log is the one piece of state that is global here.
struct LogState {
  std::atomic<LogLevel> level{LogLevel::kInfo};
  std::string prefix;
  std::shared_ptr<spdlog::logger> logger = [] {
    auto made = std::make_shared<spdlog::logger>("baltoro",
                                                 std::make_shared<spdlog::sinks::stderr_sink_mt>());
    made->set_pattern("%v");
    made->set_level(spdlog::level::trace);
    return made;
  }();
};

LogState& State() {
  static LogState state;  // NOLINT: see LogState
  return state;
}

const char* NameOf(LogLevel level) {
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

std::string Escaped(std::string_view message) {
  std::string out;
  out.reserve(message.size());
  for (const char c : message.substr(0, kLineBytesMax)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x20 && byte != 0x7F) {
      out.push_back(c);
    } else {
      out += fmt::format("\\x{:02x}", byte);
    }
  }
  if (message.size() > kLineBytesMax) out += "...";
  return out;
}

}  // namespace

void InitLog(std::string_view process, LogLevel level) {
  State().level = level;
  State().prefix = process.empty() ? "" : fmt::format("({} pid={}) ", process, getpid());
}

LogLevel log_level() {
  return State().level.load(std::memory_order_relaxed);
}

void WriteLog(LogLevel level, const char* file, int line, std::string_view message) {
  std::string_view name(file);
  if (const size_t slash = name.rfind('/'); slash != std::string_view::npos) {
    name.remove_prefix(slash + 1);
  }
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  localtime_r(&now, &parts);
  char stamp[32];
  std::strftime(stamp, sizeof stamp, "%m-%d %H:%M:%S", &parts);
  State().logger->info(fmt::format("{}{} {} [{}:{}] {}", State().prefix, NameOf(level), stamp, name,
                                   line, Escaped(message)));
}

}  // namespace baltoro
