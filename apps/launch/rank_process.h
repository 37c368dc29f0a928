#pragma once

// One server that `baltoro launch` has started, with all that its script starts.

#include <signal.h>
#include <sys/types.h>
#include <unistd.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"

namespace baltoro {

// A line of the launcher's own, on standard error.
void SayAsLauncher(const std::string& line);

// A process group of its own, so that a signal reaches whatever the first process has started.
class RankProcess {
 public:
  explicit RankProcess(int32_t number) : number_(number) {}
  ~RankProcess() {
    if (output_ >= 0) close(output_);
  }
  RankProcess(RankProcess&& other) noexcept
      : number_(other.number_),
        group_(std::exchange(other.group_, -1)),
        output_(std::exchange(other.output_, -1)),
        line_(std::move(other.line_)),
        leader_runs_(other.leader_runs_),
        exit_code_(other.exit_code_) {}
  RankProcess& operator=(RankProcess&&) = delete;

  // Runs `args`, the program looked for as a shell does, with `devices` as CUDA_VISIBLE_DEVICES
  // (empty: as it is here). What it prints is added to the file `log`; empty: TakeOutput prints it.
  Status Start(const std::vector<std::string>& args,
               const std::string& devices,
               const std::string& log);

  // Whether anything of it runs; says so where its first process has just ended.
  bool Runs();
  void Signal(int number) const {
    if (group_ > 0) kill(-group_, number);
  }
  // Prints the lines that have come.
  void TakeOutput();
  int output() const { return output_; }
  int exit_code() const { return exit_code_; }
  bool leader_runs() const { return leader_runs_; }
  int32_t number() const { return number_; }

 private:
  void Print(std::string_view line) const;

  int32_t number_;
  pid_t group_ = -1;
  int output_ = -1;
  std::string line_;  // its beginning
  bool leader_runs_ = false;
  int exit_code_ = 0;
};

}  // namespace baltoro
