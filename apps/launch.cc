#include "launch.h"

#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/file.h"
#include "launch/rank_process.h"
#include "replicas.h"

namespace baltoro {
namespace {

constexpr Seconds kStopSeconds = 30;  // between the signal and the end of who does not heed it
constexpr int kLookMs = 100;
constexpr const char* kDevices = "CUDA_VISIBLE_DEVICES";

class Launcher {
 public:
  Launcher(const LaunchCommand& command, std::string program)
      : command_(command), program_(std::move(program)) {}

  int Run() {
    // Waited for in between, so that nothing is interrupted by them.
    sigemptyset(&stops_);
    sigaddset(&stops_, SIGINT);
    sigaddset(&stops_, SIGTERM);
    sigprocmask(SIG_BLOCK, &stops_, nullptr);
    if (const Status started = StartAll(); !started.ok()) {
      SayAsLauncher("error: " + started.message());
      Stop(SIGTERM);
      while (AnyRuns()) Look();
      return 1;
    }
    while (AnyRuns()) Look();
    return stopping_ ? 0 : first_failure_;
  }

 private:
  Status StartAll() {
    if (!command_.template_file.empty() && !FileExists(command_.template_file)) {
      return Status(Code::kNotFound,
                    command_.template_file +
                        ": no such file; it is the script with the `serve` command of this node "
                        "(--template names another); or give the arguments of `baltoro serve` "
                        "behind --");
    }
    const char* const visible = std::getenv(kDevices);
    // No GPU at all: ranks of the CPU, whose number of devices nobody asks for.
    const bool none = visible != nullptr && *visible == '\0';
    BT_ASSIGN_OR_RETURN(const std::vector<std::string> devices,
                        DealDevices(none ? nullptr : visible, command_.first_device,
                                    command_.devices, command_.here));
    BT_RETURN_IF_ERROR(MakeLogDir());
    ranks_.reserve(devices.size());
    for (int32_t rank = 0; rank < command_.here; ++rank) {
      BT_RETURN_IF_ERROR(StartOne(rank, devices[static_cast<size_t>(rank)], none));
    }
    return {};
  }

  // Its last part alone: a longer path that is not there may be a mistake.
  Status MakeLogDir() const {
    if (command_.log_dir.empty() || mkdir(command_.log_dir.c_str(), 0755) == 0) return {};
    if (errno == EEXIST) return {};
    return Status(Code::kNotFound,
                  fmt::format("--log-dir {}: this folder is not there and cannot be made: {}",
                              command_.log_dir, std::strerror(errno)));
  }

  // `none`: it has no GPU, whatever `devices` says to its script.
  Status StartOne(int32_t rank, const std::string& devices, bool none) {
    std::vector<std::string> args;
    if (command_.template_file.empty()) {
      args = {program_};
      const std::vector<std::string> words = ServeArguments(command_, rank);
      args.insert(args.end(), words.begin(), words.end());
    } else {
      args = {"bash", command_.template_file};
      const std::vector<std::string> words = TemplateArguments(command_, rank, devices);
      args.insert(args.end(), words.begin(), words.end());
    }
    const int32_t number = command_.first + rank;
    const std::string log = command_.log_dir.empty()
                                ? std::string()
                                : fmt::format("{}/dp_rank_{}.log", command_.log_dir, number);
    const Status started =
        ranks_.emplace_back(number).Start(args, none ? std::string() : devices, log);
    if (started.ok()) {
      SayAsLauncher(fmt::format("rank {} of {}: port {}, devices {}", number, command_.ranks,
                                command_.first_port + rank, devices));
    }
    return started;
  }

  // For a tenth of a second: what servers print, and signals.
  void Look() {
    std::vector<pollfd> outputs;
    for (const RankProcess& rank : ranks_) {
      if (rank.output() >= 0) {
        outputs.push_back({.fd = rank.output(), .events = POLLIN, .revents = 0});
      }
    }
    poll(outputs.data(), outputs.size(), kLookMs);
    for (RankProcess& rank : ranks_) rank.TakeOutput();
    constexpr timespec kNow{.tv_sec = 0, .tv_nsec = 0};
    if (sigtimedwait(&stops_, nullptr, &kNow) > 0) Stop(stopping_ ? SIGKILL : SIGTERM);
    if (stopping_ && clock_.Now() > stop_by_) Stop(SIGKILL);
  }

  void Stop(int number) {
    if (!stopping_) SayAsLauncher("stopping all ranks");
    stopping_ = true;
    stop_by_ = clock_.Now() + kStopSeconds;
    for (const RankProcess& rank : ranks_) rank.Signal(number);
  }

  bool AnyRuns() {
    bool running = false, ended = false;
    int32_t others = 0;
    for (RankProcess& rank : ranks_) {
      const int before = rank.exit_code();
      if (rank.Runs()) running = true;
      if (rank.leader_runs()) ++others;
      if (before == 0 && rank.exit_code() != 0) {
        ended = true;
        if (first_failure_ == 0) first_failure_ = rank.exit_code();
      }
    }
    if (ended && others > 0 && !stopping_) {
      SayAsLauncher(fmt::format("the others go on: {} of {}", others, command_.here));
    }
    return running;
  }

  const LaunchCommand& command_;
  const std::string program_;
  const MonotonicClock clock_;
  sigset_t stops_{};
  std::vector<RankProcess> ranks_;
  bool stopping_ = false;
  Seconds stop_by_ = 0;
  int first_failure_ = 0;
};

}  // namespace

int RunLaunch(const LaunchCommand& command, const std::string& program) {
  return Launcher(command, program).Run();
}

}  // namespace baltoro
