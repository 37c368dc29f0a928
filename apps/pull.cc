#include "pull.h"

#include <fmt/format.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>

#include "pull/pull_job.h"

namespace baltoro {
namespace {

std::atomic<bool> stop_asked{false};  // NOLINT: a signal handler reaches nothing else
static_assert(std::atomic<bool>::is_always_lock_free);

void Say(const std::string& text) {
  std::fputs(text.c_str(), stderr);
  std::fflush(stderr);
}

// The first one lets the download record how far it is; a second one ends it at once.
void OnSignal(int signal) {
  stop_asked = true;
  std::signal(signal, SIG_DFL);
}

}  // namespace

int RunPull(const PullCommand& command) {
  std::signal(SIGINT, OnSignal);
  std::signal(SIGTERM, OnSignal);
  // A terminal that goes ends it in order; under `nohup` it goes on.
  if (std::signal(SIGHUP, OnSignal) == SIG_IGN) std::signal(SIGHUP, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);  // `ulimit -f`: the write fails, with a reason
  for (const std::string& notice : command.notices) Say(notice + "\n");
  const Result<std::string> dir = PullRepo(command, "baltoro/" BALTORO_VERSION, stop_asked);
  if (dir.ok()) {
    if (command.dry_run) return 0;
    const std::string line = dir.value() + "\n";
    if (std::fputs(line.c_str(), stdout) >= 0 && std::fflush(stdout) == 0) return 0;
    Say(fmt::format("baltoro pull: error: standard output: {}; all files are in {}\n",
                    std::strerror(errno), dir.value()));
    std::clearerr(stdout);  // told
    return 1;
  }
  if (stop_asked) {
    Say("baltoro pull: interrupted; the same command goes on where it was\n");
    return 130;
  }
  Say(fmt::format("baltoro pull: error: {}\n", dir.status().message()));
  return 1;
}

}  // namespace baltoro
