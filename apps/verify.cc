#include "verify.h"

#include <fmt/format.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>

#include "base/clock.h"
#include "pull/http_session.h"
#include "verify/report.h"
#include "verify/verification.h"

namespace baltoro {
namespace {

constexpr int kWrongUsage = 2, kNoServer = 3, kInterrupted = 130;

std::atomic<bool> stop_asked{false};  // NOLINT: a signal handler reaches nothing else
static_assert(std::atomic<bool>::is_always_lock_free);

// The first one ends the asking, and what was compared is told; a second one ends the program.
void OnSignal(int signal) {
  stop_asked = true;
  std::signal(signal, SIG_DFL);
}

// One line that is written over on a terminal, and a line every ten seconds elsewhere.
class ProgressLine {
 public:
  void Show(size_t done, size_t all) {
    const Seconds now = clock_.Now();
    if (!terminal_ && now - shown_ < kSecondsBetweenLines) return;
    shown_ = now;
    const std::string line = fmt::format("{} of {} prompts are compared", done, all);
    std::fputs((terminal_ ? "\r\x1b[K" + line : line + "\n").c_str(), stderr);
    std::fflush(stderr);
    open_ = terminal_;
  }
  void End() {
    if (open_) std::fputs("\r\x1b[K", stderr);
    open_ = false;
  }

 private:
  static constexpr Seconds kSecondsBetweenLines = 10;
  const bool terminal_ = isatty(STDERR_FILENO) == 1;
  const MonotonicClock clock_;
  Seconds shown_ = clock_.Now();
  bool open_ = false;
};

int Fail(int code, const std::string& why) {
  std::fputs(fmt::format("baltoro verify: error: {}\n", why).c_str(), stderr);
  return code;
}

std::string JsonText(const Json& json) {
  return json.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

Status WriteText(const std::filesystem::path& path, const std::string& text) {
  std::ofstream file(path);
  file << text;
  file.close();
  if (file.good()) return {};
  return Status(Code::kUnavailable, "--report " + path.string() + ": cannot be written");
}

// Before the servers are asked for an hour.
Status MakeFolder(const std::string& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (!std::filesystem::is_directory(folder)) {
    return InvalidArgument(
        fmt::format("--report {}: {}", folder, error ? error.message() : "not a folder"));
  }
  if (access(folder.c_str(), W_OK) == 0) return {};
  return InvalidArgument(fmt::format("--report {}: cannot be written to", folder));
}

}  // namespace

int RunVerify(const VerifyOptions& options) {
  Result<std::vector<VerifyPrompt>> prompts =
      options.prompts.empty() ? BuiltInPrompts() : ReadPrompts(options.prompts);
  if (prompts.ok()) prompts = ChoosePrompts(std::move(prompts).value(), options.only);
  if (!prompts.ok()) return Fail(kWrongUsage, prompts.status().message());
  if (!options.report.empty()) {
    if (const Status made = MakeFolder(options.report); !made.ok()) {
      return Fail(kWrongUsage, made.message());
    }
  }
  if (const Status started = StartHttp(); !started.ok()) return Fail(1, started.message());
  std::signal(SIGINT, OnSignal);
  std::signal(SIGTERM, OnSignal);
  ProgressLine progress;
  const Result<Verified> verified =
      RunVerification(options, prompts.value(), stop_asked,
                      [&](size_t done, size_t all) { progress.Show(done, all); });
  progress.End();
  if (!verified.ok() && stop_asked) return Fail(kInterrupted, "interrupted");
  if (!verified.ok()) return Fail(kNoServer, verified.status().message());
  const Conclusion conclusion = Conclude(verified.value());
  const std::string json = JsonText(ReportJson(verified.value(), conclusion));
  std::fputs(options.json ? json.c_str() : ReportLines(verified.value(), conclusion).c_str(),
             stdout);
  std::fflush(stdout);
  if (!options.report.empty()) {
    const std::filesystem::path folder(options.report);
    for (const auto& [name, text] :
         {std::pair("report.md", ReportMarkdown(verified.value(), conclusion)),
          std::pair("report.json", json)}) {
      if (const Status written = WriteText(folder / name, text); !written.ok()) {
        return Fail(1, written.message());
      }
    }
  }
  return stop_asked ? kInterrupted : ExitCodeOf(conclusion.sameness);
}

}  // namespace baltoro
