#include "launch/rank_process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "base/child_process.h"

// The system's own.
extern char** environ;  // NOLINT(cppcoreguidelines-avoid-non-const-global-variables)

namespace baltoro {
namespace {

constexpr size_t kLineMax = 64 << 10;

Status SystemError(const std::string& what) {
  return Status(Code::kInternal, what + ": " + std::strerror(errno));
}

}  // namespace

void SayAsLauncher(const std::string& line) {
  std::fputs(("baltoro launch: " + line + "\n").c_str(), stderr);
}

Status RankProcess::Start(const std::vector<std::string>& args,
                          const std::string& devices,
                          const std::string& log) {
  int ends[2] = {-1, -1};
  if (log.empty()) {
    if (pipe2(ends, O_CLOEXEC) != 0) return SystemError("pipe");
  } else {
    // A FIFO that nobody reads is an error, and not waited for.
    ends[1] = open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NONBLOCK, 0644);
    if (ends[1] < 0) return SystemError("--log-dir: " + log);
  }
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_addopen(&files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&files, ends[1], STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&files, ends[1], STDERR_FILENO);
  std::vector<char*> environment;
  std::string variable = "CUDA_VISIBLE_DEVICES=";
  for (char** each = environ; *each != nullptr; ++each) {
    if (devices.empty() || !std::string_view(*each).starts_with(variable)) {
      environment.push_back(*each);
    }
  }
  variable += devices;
  if (!devices.empty()) environment.push_back(variable.data());
  environment.push_back(nullptr);
  const int error =
      SpawnWithDefaultSignals(group_, args, files, environment.data(), /*own_group=*/true);
  posix_spawn_file_actions_destroy(&files);
  close(ends[1]);
  output_ = ends[0];
  if (output_ >= 0) fcntl(output_, F_SETFL, O_NONBLOCK);
  if (error != 0) {
    group_ = -1;
    return Status(Code::kInternal, fmt::format("{}: {}", args[0], std::strerror(error)));
  }
  leader_runs_ = true;
  return {};
}

bool RankProcess::Runs() {
  if (group_ <= 0) return false;
  int status = 0;
  if (leader_runs_ && waitpid(group_, &status, WNOHANG) == group_) {
    leader_runs_ = false;
    exit_code_ = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    TakeOutput();
    SayAsLauncher(WIFEXITED(status)
                      ? fmt::format("rank {} ended with exit code {}", number_, exit_code_)
                      : fmt::format("rank {} ended by signal {} ({})", number_, WTERMSIG(status),
                                    strsignal(WTERMSIG(status))));
  }
  // What a script left in the background serves on.
  if (leader_runs_ || kill(-group_, 0) == 0) return true;
  group_ = -1;
  return false;
}

void RankProcess::Print(std::string_view line) const {
  fmt::print(stderr, "(dp {}) {}\n", number_, line);
}

void RankProcess::TakeOutput() {
  std::array<char, 1 << 14> bytes;
  while (output_ >= 0) {
    const ssize_t got = read(output_, bytes.data(), bytes.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return;  // nothing now
    line_.append(bytes.data(), static_cast<size_t>(got));
    size_t begin = 0;
    for (size_t end = 0; (end = line_.find('\n', begin)) != std::string::npos; begin = end + 1) {
      Print(std::string_view(line_).substr(begin, end - begin));
    }
    line_.erase(0, begin);
    const bool over = got == 0;
    if (!line_.empty() && (over || line_.size() > kLineMax)) Print(std::exchange(line_, {}));
    if (over) close(std::exchange(output_, -1));
  }
}

}  // namespace baltoro
