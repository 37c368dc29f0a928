// `baltoro`: one program, a subcommand per job.

#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <filesystem>
#include <new>
#include <optional>
#include <string>
#include <system_error>
#include <vector>

#include "base/check.h"
#include "base/file.h"
#include "bench/bench_engine.h"
#include "bench/bench_step.h"
#include "bench/serve/bench_serve.h"
#include "chat/chat.h"
#include "doctor.h"
#include "engine_main.h"
#include "eval.h"
#include "flags/command_line.h"
#include "flags/environment.h"
#include "inspect.h"
#include "launch.h"
#include "picture_main.h"
#include "plan.h"
#include "pull.h"
#include "quantize.h"
#include "serve.h"
#include "stop_signal.h"
#include "tune/tune.h"
#include "verify.h"

extern char** environ;

namespace {

std::string ProgramPath(const char* argv0) {
  std::error_code error;
  const auto self = std::filesystem::read_symlink("/proc/self/exe", error);
  return error ? std::string(argv0) : self.string();
}

// By the link that an installation has beside the program.
bool CalledVllm(const char* argv0) {
  return argv0 != nullptr && std::filesystem::path(argv0).filename() == "vllm";
}

// Nothing of ours throws. What the library throws and nobody catches is a want of memory or of
// threads: not a bug, but this machine, which the last line should say. No memory is taken for it.
[[noreturn]] void EndOfUncaught() {
  char line[512] = "baltoro: error: an exception that nobody caught: please report it\n";
  constexpr char kWay[] =
      "lower --max-num-batched-tokens, --max-num-seqs or --kv-cache-memory-bytes, or raise the "
      "limit of memory or threads (ulimit, container)";
  bool wanting = true;
  try {
    if (const std::exception_ptr held = std::current_exception()) std::rethrow_exception(held);
    wanting = false;
  } catch (const std::bad_alloc&) {
    std::snprintf(line, sizeof line, "baltoro: error: out of memory: %s\n", kWay);
  } catch (const std::system_error& error) {
    if (std::ferror(stdout) != 0 || std::ferror(stderr) != 0) {
      // By fmt::print.
      std::snprintf(line, sizeof line, "baltoro: error: the output cannot be written (%s)\n",
                    error.what());
      baltoro::WriteLastLine(line);
      std::_Exit(1);
    }
    std::snprintf(line, sizeof line,
                  "baltoro: error: no memory or no right for another thread (%s): %s\n",
                  error.what(), kWay);
  } catch (const std::exception& error) {
    wanting = false;
    std::snprintf(line, sizeof line, "baltoro: error: uncaught exception: %s\n", error.what());
  } catch (...) {
    wanting = false;
  }
  baltoro::WriteLastLine(line);
  if (wanting) std::_Exit(1);
  std::abort();
}

// What a full disk or a closed pipe did not take is a failure, however well all else went.
int Ended(int code) {
  errno = 0;
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return code;
  const int error = errno;
  std::fprintf(stderr, "baltoro: error: standard output: %s\n",
               error != 0 ? std::strerror(error) : "not all was written");
  return code == 0 ? 1 : code;
}

int Run(const baltoro::Command& command, const std::string& program) {
  using namespace baltoro;  // NOLINT: the program's own entry
  if (const auto* serve = std::get_if<ServeOptions>(&command)) {
    IgnoreStraySignals();
    return RunServe(*serve, program);
  }
  if (const auto* launch = std::get_if<LaunchCommand>(&command)) {
    IgnoreStraySignals();
    return RunLaunch(*launch, program);
  }
  if (const auto* chat = std::get_if<ChatOptions>(&command)) return RunChat(*chat);
  if (const auto* plan = std::get_if<PlanCommand>(&command)) return RunPlan(*plan, program);
  if (const auto* bench = std::get_if<BenchStepCommand>(&command)) return RunBenchStep(*bench);
  if (const auto* bench = std::get_if<BenchServeCommand>(&command)) {
    return RunBenchServe(*bench, program);
  }
  if (const auto* bench = std::get_if<BenchEngineCommand>(&command)) {
    return RunBenchEngine(*bench, program);
  }
  if (const auto* eval = std::get_if<EvalOptions>(&command)) return RunEval(*eval, program);
  if (const auto* verify = std::get_if<VerifyOptions>(&command)) return RunVerify(*verify);
  if (const auto* quantize = std::get_if<QuantizeCommand>(&command)) {
    return RunQuantize(*quantize, program);
  }
  if (const auto* inspect = std::get_if<InspectCommand>(&command)) {
    return RunInspect(*inspect, program);
  }
  if (const auto* doctor = std::get_if<DoctorCommand>(&command)) {
    return RunDoctor(*doctor, program);
  }
  if (const auto* pull = std::get_if<PullCommand>(&command)) return RunPull(*pull);
  if (const auto* tune = std::get_if<TuneCommand>(&command)) return RunTune(*tune);
  const auto& ending = std::get<Ending>(command);
  std::fputs(ending.out.c_str(), stdout);
  std::fputs(ending.err.c_str(), stderr);
  return ending.exit_code;
}

}  // namespace

int main(int argc, char** argv) {
  using namespace baltoro;  // NOLINT: the program's own entry
  HoldStandardFiles();
  std::signal(SIGPIPE, SIG_IGN);
  std::set_terminate(EndOfUncaught);
  const std::string program = ProgramPath(argv[0]);
  const std::vector<std::string> args(argv + 1, argv + argc);
  // The engine's side of `serve`; started by the door, never by a person.
  if (!args.empty() && args[0] == kEngineSubcommand) {
    IgnoreStraySignals();
    return RunEngineMain(args);
  }
  // Where `serve` decodes pictures; likewise.
  if (!args.empty() && args[0] == kPictureSubcommand) {
    IgnoreStraySignals();
    return RunPictureMain();
  }

  const Environment environment = ReadEnvironment(environ);
  // Before anything asks which GPUs there are; the engine's process inherits it.
  if (const std::optional<std::string> devices = VisibleDevices(environment)) {
    setenv("CUDA_VISIBLE_DEVICES", devices->c_str(), /*overwrite=*/0);
  }
  const Command command = ParseCommandLine(args, environment);
  const auto* const serve = std::get_if<ServeOptions>(&command);
  const bool json = serve != nullptr && serve->log_format == LogFormat::kJson;
  if (CalledVllm(argv[0]) && !json) {
    std::fputs(
        "vllm: this is Baltoro " BALTORO_VERSION
        ", which takes vLLM's commands; `vllm plan --flags` tells what becomes of each flag\n",
        stderr);
  }
  return Ended(Run(command, program));
}
