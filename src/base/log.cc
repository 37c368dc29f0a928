#include "base/log.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <spdlog/async_logger.h>
#include <spdlog/details/thread_pool.h>
#include <spdlog/sinks/base_sink.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <ctime>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/last_words.h"
#include "base/log_format.h"

namespace baltoro {
namespace {

constexpr size_t kQueueLines = 1024;
constexpr std::chrono::milliseconds kFlushMax(500);

// For a terminal alone, and not where NO_COLOR (no-color.org) says no.
bool WantsColour() {
  const char* const no = std::getenv("NO_COLOR");
  const char* const terminal = std::getenv("TERM");
  return isatty(STDERR_FILENO) == 1 && (no == nullptr || *no == 0) && terminal != nullptr &&
         std::string_view(terminal) != "dumb";
}

// The name of a level, and its colour before and behind it: information has none.
std::string Marked(LogLevel level, bool colour) {
  const char* const name = LogLevelName(level);
  if (!colour || level == LogLevel::kInfo) return name;
  const int number = level == LogLevel::kError ? 31 : level == LogLevel::kWarning ? 33 : 2;
  return fmt::format("\033[{}m{}\033[0m", number, name);
}

// `message` without control characters, in at most `bytes_max` bytes.
void AppendEscaped(std::string& out, std::string_view message, size_t bytes_max) {
  constexpr std::string_view kCut = "...";
  const size_t end = out.size() + bytes_max - kCut.size();
  for (const char c : message) {
    const auto byte = static_cast<unsigned char>(c);
    const bool plain = byte >= 0x20 && byte != 0x7F;
    if (out.size() + (plain ? 1 : 4) > end) {
      out += kCut;
      return;
    }
    if (plain) {
      out.push_back(c);
    } else {
      out += fmt::format("\\x{:02x}", byte);
    }
  }
}

// False when the line cannot be written. Blocks while nobody reads.
bool WriteWhole(std::string_view line) {
  while (!line.empty()) {
    const ssize_t written = write(STDERR_FILENO, line.data(), line.size());
    if (written >= 0) {
      line.remove_prefix(static_cast<size_t>(written));
    } else if (errno == EAGAIN) {
      pollfd room{.fd = STDERR_FILENO, .events = POLLOUT, .revents = 0};
      poll(&room, 1, -1);
    } else if (errno != EINTR) {
      return false;
    }
  }
  return true;
}

int64_t NowSecond() {
  return std::chrono::duration_cast<std::chrono::seconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// A process has one standard error, so its log is the one piece of state that is global here. It is
// never destroyed: a thread that stands in a write would have to be waited for.
class Log {
 public:
  Log() {
    // The log's thread takes no signal: the main thread waits for some, and a reader that went away
    // is an error of a write, not the end of the process.
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    pool_ = std::make_shared<spdlog::details::thread_pool>(kQueueLines, 1);
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    logger_ =
        std::make_shared<spdlog::async_logger>("baltoro", std::make_shared<Sink>(*this), pool_,
                                               spdlog::async_overflow_policy::overrun_oldest);
    logger_->set_level(spdlog::level::trace);
    std::atexit(FlushLog);
    SetFlushAtEnd(FlushLog);
  }

  void Init(std::string_view process, LogLevel level) {
    level_ = level;
    process_ = process;
    prefix_ = process.empty() ? "" : fmt::format("({} pid={}) ", process, getpid());
    colour_ = WantsColour();
  }

  void SetFormat(LogFormat format) { format_ = format; }
  LogFormat format() const { return format_; }
  const std::string& process() const { return process_; }

  LogLevel level() const { return level_.load(std::memory_order_relaxed); }

  void Post(LogLevel level, const char* file, int line, std::string_view message) {
    posted_ += 1;
    logger_->info(Line(level, file, line, message));
  }

  void Flush() {
    if (getpid() != owner_) return;  // a fork of a test has no thread that writes
    const auto deadline = std::chrono::steady_clock::now() + kFlushMax;
    // What is dropped is counted before what it makes room for is written, so this never ends
    // early.
    while (handled_ + pool_->overrun_counter() < posted_ &&
           std::chrono::steady_clock::now() < deadline) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }

  bool Admit(LogLimit& limit) {
    if (limit.Admit(NowSecond())) return true;
    limited_ += 1;
    const std::lock_guard lock(limits_mutex_);
    if (std::ranges::find(limits_, &limit) == limits_.end()) limits_.push_back(&limit);
    return false;
  }

  void TellLeftOut() {
    const int64_t second = NowSecond();
    if (told_second_.exchange(second) == second) return;
    const std::lock_guard lock(limits_mutex_);
    for (LogLimit* limit : limits_) {
      const uint64_t count = limit->TakeLeftOut(second);
      if (count == 0) continue;
      Post(LogLevel::kWarning, limit->file(), limit->line(),
           fmt::format("{} more lines from this place were left out: it may write {} a second",
                       count, LogLimit::kLinesPerSecond));
    }
  }

  LogDrops drops() const {
    return {.unread = pool_->overrun_counter() + unwritten_, .limited = limited_};
  }

 private:
  class Sink : public spdlog::sinks::base_sink<spdlog::details::null_mutex> {
   public:
    explicit Sink(Log& log) : log_(log) {}

   private:
    void sink_it_(const spdlog::details::log_msg& message) override {
      log_.WriteOut(std::string_view(message.payload.data(), message.payload.size()));
    }
    void flush_() override {}
    Log& log_;
  };

  // On the log's thread. What was dropped stood between the line before and this one.
  void WriteOut(std::string_view line) {
    const uint64_t dropped = pool_->overrun_counter() + unwritten_;
    if (dropped > said_ &&
        WriteWhole(Line(LogLevel::kWarning, __FILE__, __LINE__,
                        fmt::format("{} lines of the log were dropped here: nobody read standard "
                                    "error",
                                    dropped - said_)))) {
      said_ = dropped;
    }
    if (!WriteWhole(line)) unwritten_ += 1;
    handled_ += 1;
  }

  std::string Line(LogLevel level, const char* file, int line, std::string_view message) const {
    std::string_view name(file);
    name.remove_prefix(name.rfind('/') + 1);
    if (format_ == LogFormat::kJson) {
      char out[kLogLineMax];
      const size_t size = PrintJsonLine(
          {.level = level, .process = process_, .file = name, .line = line, .message = message},
          out);
      return std::string(out, size);
    }
    const std::time_t now = std::time(nullptr);
    std::tm parts{};
    localtime_r(&now, &parts);
    char stamp[32];
    std::strftime(stamp, sizeof stamp, "%m-%d %H:%M:%S", &parts);
    std::string out =
        fmt::format("{}{} {} [{}:{}] ", prefix_, Marked(level, colour_), stamp, name, line);
    AppendEscaped(out, message, kLogLineMax - 1 - out.size());
    out.push_back('\n');
    return out;
  }

  const pid_t owner_ = getpid();
  std::atomic<LogLevel> level_{LogLevel::kInfo};
  LogFormat format_ = LogFormat::kText;
  std::string process_, prefix_;
  bool colour_ = false;
  std::shared_ptr<spdlog::details::thread_pool> pool_;
  std::shared_ptr<spdlog::async_logger> logger_;
  std::atomic<uint64_t> posted_{0}, handled_{0}, unwritten_{0}, limited_{0};
  uint64_t said_ = 0;  // the log's thread's
  std::atomic<int64_t> told_second_{-1};
  std::mutex limits_mutex_;
  std::vector<LogLimit*> limits_;  // those that have left lines out
};

Log& TheLog() {
  static Log& log = *new Log;  // NOLINT: see Log
  return log;
}

}  // namespace

bool LogLimit::Admit(int64_t second) {
  const std::lock_guard lock(mutex_);
  if (second != second_) {
    second_ = second;
    admitted_ = 0;
  }
  if (admitted_ == kLinesPerSecond) {
    ++left_out_;
    return false;
  }
  ++admitted_;
  return true;
}

uint64_t LogLimit::TakeLeftOut(int64_t second) {
  const std::lock_guard lock(mutex_);
  if (second == second_) return 0;
  return std::exchange(left_out_, 0);
}

void InitLog(std::string_view process, LogLevel level) {
  TheLog().Init(process, level);
}

void SetLogFormat(LogFormat format) {
  TheLog().SetFormat(format);
  SetLastLineFormat(format != LogFormat::kJson ? nullptr : +[](const char* line, char* out) {
    std::string_view message(line);
    if (message.ends_with('\n')) message.remove_suffix(1);
    return PrintJsonLine(
        {.level = LogLevel::kError, .process = TheLog().process(), .message = message}, out);
  });
}

LogFormat CurrentLogFormat() {
  return TheLog().format();
}

LogLevel CurrentLogLevel() {
  return TheLog().level();
}

void WriteLog(LogLevel level, const char* file, int line, std::string_view message) {
  TheLog().TellLeftOut();
  TheLog().Post(level, file, line, message);
}

void FlushLog() {
  TheLog().Flush();
}

void ExitAtOnce(int code) {
  FlushLog();
  std::_Exit(code);
}

LogDrops LogDropsOfProcess() {
  return TheLog().drops();
}

bool AdmitLine(LogLimit& limit) {
  return TheLog().Admit(limit);
}

void TellLeftOut() {
  TheLog().TellLeftOut();
}

}  // namespace baltoro
