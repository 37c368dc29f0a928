#include "pull.h"

#include <fmt/format.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdio>

#include "pull/pull_job.h"

namespace baltoro {
namespace {

std::atomic<bool> stop_asked{false};  // NOLINT: a signal handler reaches nothing else
static_assert(std::atomic<bool>::is_always_lock_free);

// The first one lets the download record how far it is; a second one ends it at once.
void OnSignal(int signal) {
  stop_asked = true;
  std::signal(signal, SIG_DFL);
}

}  // namespace

int RunPull(const PullCommand& command) {
  std::signal(SIGINT, OnSignal);
  std::signal(SIGTERM, OnSignal);
  std::signal(SIGXFSZ, SIG_IGN);  // `ulimit -f`: the write fails, with a reason
  for (const std::string& notice : command.notices) fmt::print(stderr, "{}\n", notice);
  const Result<std::string> dir = PullRepo(command, "baltoro/" BALTORO_VERSION, stop_asked);
  if (dir.ok()) {
    if (!command.dry_run) fmt::print("{}\n", dir.value());
    return 0;
  }
  if (stop_asked) {
    fmt::print(stderr, "baltoro pull: interrupted; the same command goes on where it was\n");
    return 130;
  }
  fmt::print(stderr, "baltoro pull: error: {}\n", dir.status().message());
  return 1;
}

}  // namespace baltoro
