#include "base/child_process.h"

#include <errno.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <thread>
#include <utility>

#include "base/last_words.h"

// The system's own.
extern char** environ;  // NOLINT(cppcoreguidelines-avoid-non-const-global-variables)

namespace baltoro {

namespace {

constexpr int kChildFd = 3, kChildLastWords = 4;

std::string Describe(int status) {
  if (WIFEXITED(status)) return fmt::format("exit code {}", WEXITSTATUS(status));
  if (WIFSIGNALED(status)) {
    return fmt::format("signal {} ({})", WTERMSIG(status), strsignal(WTERMSIG(status)));
  }
  return fmt::format("status {}", status);
}

}  // namespace

int SpawnWithDefaultSignals(pid_t& pid,
                            const std::vector<std::string>& args,
                            const posix_spawn_file_actions_t& actions,
                            char** environment,
                            bool own_group) {
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t none, all;
  sigemptyset(&none);
  sigfillset(&all);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setsigdefault(&attributes, &all);
  posix_spawnattr_setpgroup(&attributes, 0);
  posix_spawnattr_setflags(&attributes,
                           static_cast<short>(POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF |
                                              (own_group ? POSIX_SPAWN_SETPGROUP : 0)));
  std::vector<char*> argv;
  argv.reserve(args.size() + 1);
  for (const std::string& arg : args) argv.push_back(const_cast<char*>(arg.c_str()));
  argv.push_back(nullptr);
  const int error =
      posix_spawnp(&pid, args[0].c_str(), &actions, &attributes, argv.data(), environment);
  posix_spawnattr_destroy(&attributes);
  return error;
}

Result<ChildProcess> StartChild(const std::vector<std::string>& args) {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
    return Status(Code::kInternal, fmt::format("socketpair: {}", std::strerror(errno)));
  }
  int words[2];
  if (pipe2(words, O_CLOEXEC | O_NONBLOCK) != 0) {
    const int error = errno;
    for (const int end : ends) close(end);
    return Status(Code::kInternal, fmt::format("pipe: {}", std::strerror(error)));
  }
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  // The one that is moved first must not be where the other one lies.
  const int safe = fcntl(words[1], F_DUPFD_CLOEXEC, kChildLastWords + 1);
  posix_spawn_file_actions_adddup2(&actions, ends[1], kChildFd);
  posix_spawn_file_actions_adddup2(&actions, safe, kChildLastWords);
  ChildProcess child{.pid = -1, .fd = ends[0], .last_words = words[0]};
  const int error = SpawnWithDefaultSignals(child.pid, args, actions, environ);
  posix_spawn_file_actions_destroy(&actions);
  for (const int end : {ends[1], words[1], safe}) close(end);
  if (error != 0) {
    close(ends[0]);
    close(words[0]);
    return Status(Code::kInternal, fmt::format("{}: {}", args[0], std::strerror(error)));
  }
  return child;
}

void CloseDescriptorsFrom(int first) {
  std::vector<int> open;
  std::error_code ignored;
  for (std::filesystem::directory_iterator at("/proc/self/fd", ignored), end; at != end;
       at.increment(ignored)) {
    open.push_back(std::atoi(at->path().filename().c_str()));
  }
  for (const int fd : open) {
    if (fd >= first) close(fd);
  }
}

std::string TakeLastWords(ChildProcess& child) {
  char bytes[kLastWordsMax];
  const int fd = std::exchange(child.last_words, -1);
  const ssize_t got = read(fd, bytes, sizeof bytes);
  close(fd);
  const std::string_view text(bytes, got > 0 ? static_cast<size_t>(got) : 0);
  return std::string(text.substr(0, text.find('\n')));
}

std::string ReapChild(pid_t pid, double seconds) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  int status = 0;
  for (bool killed = false;;) {
    const pid_t ended = waitpid(pid, &status, WNOHANG);
    if (ended == pid) return Describe(status);
    if (ended < 0 && errno != EINTR) return "an unknown end";
    if (!killed && std::chrono::steady_clock::now() >= deadline) {
      kill(pid, SIGKILL);
      killed = true;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
}

}  // namespace baltoro
