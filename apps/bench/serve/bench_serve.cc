#include "bench/serve/bench_serve.h"

#include <fmt/format.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <memory>
#include <thread>

#include "base/file.h"
#include "bench/serve/arrivals.h"
#include "bench/serve/load.h"
#include "bench/serve/result.h"
#include "bench/serve/sweep.h"
#include "client/api_client.h"
#include "model_location.h"
#include "net/http_client.h"
#include "terminal/safe_text.h"
#include "text/python_text.h"

namespace baltoro {
namespace {

constexpr size_t kFailuresShown = 10;

std::atomic<bool> stop_asked{false};  // NOLINT: a signal handler reaches nothing else
static_assert(std::atomic<bool>::is_always_lock_free);

// The first one ends the run, whose result is told; a second one ends the program.
void OnSignal(int signal) {
  stop_asked = true;
  std::signal(signal, SIG_DFL);
}

void Say(std::string_view line) {
  std::fflush(stdout);  // what was said before stays before it
  // Nobody need listen: a closed pipe is no reason to lose a measurement.
  std::fputs(fmt::format("baltoro bench serve: {}\n", line).c_str(), stderr);
}

// What is asked of the server beside the load.
class Server {
 public:
  explicit Server(const BenchServeCommand& command)
      : command_(command),
        tls_(command.https ? TlsContext::ForClient(command.insecure) : Tls()),
        client_({.host = command.host,
                 .port = command.port,
                 .tls = tls_.ok() ? tls_.value() : nullptr,
                 // Answers of a moment, of a server that is asked whether it is there.
                 .idle_timeout = command.ready_seconds > 0
                                     ? static_cast<double>(command.ready_seconds)
                                     : HttpClientOptions().idle_timeout}) {}

  Result<HttpResponse> Ask(const char* method, const std::string& path) {
    BT_RETURN_IF_ERROR(tls_.status());
    return client_.Send({.method = method,
                         .target = command_.root + path,
                         .headers = command_.headers,
                         .body = ""});
  }

  Result<std::string> FirstModel() {
    BT_ASSIGN_OR_RETURN(const HttpResponse answer, Ask("GET", "/v1/models"));
    const Result<Json> body = ParseJson(answer.body);
    const auto wrong = [&](const std::string& what) {
      return Status(Code::kUnavailable, "/v1/models: " + what + "; --model names one");
    };
    if (answer.status != 200)
      return wrong(fmt::format("{}: {}", answer.status, ErrorMessageOf(answer)));
    if (!body.ok() || !body.value().is_object() || !body.value().contains("data") ||
        !body.value()["data"].is_array() || body.value()["data"].empty()) {
      return wrong("the server names no model");
    }
    const Json& first = body.value()["data"][0];
    if (!first.is_object() || !first.contains("id") || !first["id"].is_string()) {
      return wrong("the server names no model");
    }
    return first["id"].get<std::string>();
  }

  std::optional<Speculation> Counters() {
    const Result<HttpResponse> answer = Ask("GET", "/metrics");
    if (!answer.ok() || answer.value().status != 200) return std::nullopt;
    return ReadSpeculation(answer.value().body);
  }

  // Whether the server records from here on.
  bool StartProfile() {
    return Profile("/start_profile",
                   "; a server records only when it was started with --profiler-config")
        .has_value();
  }

  void StopProfile() {
    const auto said = Profile("/stop_profile", "");
    const Result<Json> body = ParseJson(said.value_or(""));
    // (Baltoro names the file; vLLM's answer is empty.)
    if (body.ok() && body.value().is_object() && body.value().contains("file") &&
        body.value()["file"].is_string()) {
      Say("Profile written by the server: " +
          ForTerminal(body.value()["file"].get<std::string>(), 1000));
    }
  }

 private:
  using Tls = std::shared_ptr<const TlsContext>;

  // Nothing, and a line that says why, where the server refuses; `if_missing` ends that of a 404.
  std::optional<std::string> Profile(const char* path, const char* if_missing) {
    const Result<HttpResponse> answer = Ask("POST", path);
    if (answer.ok() && answer.value().status == 200) return answer.value().body;
    std::string why =
        answer.ok() ? fmt::format("{}: {}", answer.value().status, ErrorMessageOf(answer.value()))
                    : answer.status().message();
    if (answer.ok() && answer.value().status == 404) why += if_missing;
    Say(fmt::format("--profile: {}: {}", path, why));
    return std::nullopt;
  }

  const BenchServeCommand& command_;
  const Result<Tls> tls_;  // null: plain HTTP
  HttpClient client_;
};

// The folder with the vocabulary.
Result<std::string> LocateTokenizer(const BenchServeCommand& command, const std::string& program) {
  const std::string source = command.tokenizer.empty() ? command.model : command.tokenizer;
  if (FileExists(source + "/tiktoken.model")) return source;
  // The name that a server of the pocket model gives it.
  if (command.tokenizer.empty() && source == "pocket" && !FileExists(source)) {
    BT_ASSIGN_OR_RETURN(const std::string pocket, PocketDir(program));
    return pocket + "/model";
  }
  const Result<std::string> model = LocateModel(source, program);
  if (model.ok() && FileExists(model.value() + "/tiktoken.model")) return model;
  return Status(Code::kNotFound,
                fmt::format("{}: no tokenizer is here under this name; give --tokenizer DIR, the "
                            "folder that holds the model's tiktoken.model",
                            source));
}

struct Texts {
  std::unique_ptr<Tokenizer> tokenizer;
  std::unique_ptr<ChatTemplate> chat_template;
};

Result<Texts> LoadTexts(BenchServeCommand& command, const std::string& program) {
  Texts out;
  if (command.skip_tokenizer) return out;
  Result<std::string> dir = LocateTokenizer(command, program);
  if (!dir.ok()) {
    const bool wanted =
        command.data.name != "hf" && (command.data.name != "custom" || !command.chat);
    if (wanted || !command.tokenizer.empty()) return dir.status();
    Say(dir.status().message() + "; the server counts the tokens");
    return out;
  }
  BT_ASSIGN_OR_RETURN(out.tokenizer, Tokenizer::Load(dir.value()));
  if (command.tokenizer.empty()) command.tokenizer = command.model;
  auto chat_template = ChatTemplate::LoadFromDir(dir.value());
  if (chat_template.ok()) out.chat_template = std::move(chat_template).value();
  return out;
}

// A data set of `count` times the first request.
Dataset FirstOf(const Dataset& data, int64_t count) {
  BenchSession session = data.sessions.front();
  session.turns.resize(1);
  return {.sessions = std::vector<BenchSession>(static_cast<size_t>(count), session),
          .tools = data.tools,
          .notices = {}};
}

Status AwaitServer(const BenchServeCommand& command, const Dataset& data) {
  const Dataset one = FirstOf(data, 1);
  const MonotonicClock clock;
  const Seconds end = clock.Now() + static_cast<double>(command.ready_seconds);
  for (;;) {
    // One try has the time that is left, or a second.
    const Result<LoadOutcome> out =
        RunLoad(command, one, {0}, false,
                {.request = std::max(end - clock.Now(), 1.0), .stop = &stop_asked});
    const bool answered = out.ok() && out.value().answers[0].success;
    if (answered) return {};
    const std::string why = out.ok() ? out.value().answers[0].error : out.status().message();
    if (clock.Now() >= end || stop_asked) {
      return Status(Code::kUnavailable,
                    fmt::format("no good answer within --ready-check-timeout-sec {}: {}",
                                command.ready_seconds, why));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
  }
}

constexpr double kWarmUpBytesMax = 0x1p32;

Status WarmUp(const BenchServeCommand& command, const Dataset& data, bool progress) {
  const double bytes = static_cast<double>(command.warm_ups) *
                       static_cast<double>(data.sessions.front().text.size());
  if (bytes > kWarmUpBytesMax) {
    return InvalidArgument(
        fmt::format("--num-warmups {}: their prompts would take {:.0f} GiB of "
                    "memory; fewer, please",
                    command.warm_ups, bytes / 0x1p30));
  }
  const Dataset many = FirstOf(data, command.warm_ups);
  BT_ASSIGN_OR_RETURN(const LoadOutcome out,
                      RunLoad(command, many, std::vector<double>(many.sessions.size()), progress,
                              {.stop = &stop_asked}));
  for (const Answer& answer : out.answers) {
    if (!answer.success) return Status(Code::kUnavailable, "a warm-up failed: " + answer.error);
  }
  return {};
}

std::string DateNow() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  localtime_r(&now, &parts);
  char text[32];
  return std::string(text, std::strftime(text, sizeof(text), "%Y%m%d-%H%M%S", &parts));
}

Status CannotWrite(const std::string& path) {
  return InvalidArgument(fmt::format("cannot write {}: {}", path, std::strerror(errno)));
}

Status CheckFolderOf(const std::string& path) {
  const std::string folder = std::filesystem::path(path).parent_path().string();
  return access(folder.empty() ? "." : folder.c_str(), W_OK | X_OK) == 0 ? Status()
                                                                         : CannotWrite(path);
}

// Before a load that may take an hour: whether files can be written where its result shall go.
Status CheckResultFolder(const BenchServeCommand& command) {
  if (!command.save && !command.append) return {};
  std::error_code error;
  if (!command.result_dir.empty()) {
    std::filesystem::create_directories(command.result_dir, error);
    if (error) {
      return InvalidArgument("--result-dir " + command.result_dir + ": " + error.message());
    }
  }
  return CheckFolderOf(ResultPath(command, DateNow()));
}

Status Save(const BenchServeCommand& command,
            const BenchResult& result,
            const std::vector<Answer>& answers) {
  if (!command.save && !command.append) return {};
  const std::string date = DateNow(), path = ResultPath(command, date);
  std::error_code error;
  const bool more = command.append && std::filesystem::exists(path, error) &&
                    std::filesystem::file_size(path, error) > 0;
  std::ofstream file(path, command.append ? std::ios::app : std::ios::trunc);
  file << (more ? "\n" : "")
       << ResultJson(result, answers, command, date)
              .dump(-1, ' ', false, Json::error_handler_t::replace);
  file.close();
  if (!file) return CannotWrite(path);
  Say("the result is in " + path);
  return {};
}

void TellFailures(const std::vector<Answer>& answers) {
  size_t shown = 0;
  for (size_t i = 0; i < answers.size() && shown < kFailuresShown; ++i) {
    if (answers[i].success) continue;
    if (shown++ == 0) Say(fmt::format("failed requests, {} of them at most:", kFailuresShown));
    Say(fmt::format("  request {}: {}", i, ForTerminal(answers[i].error)));
  }
}

class Bench {
 public:
  Bench(BenchServeCommand command, std::string program)
      : command_(std::move(command)), program_(std::move(program)), server_(command_) {}

  Status Run() {
    if (command_.model.empty()) {
      BT_ASSIGN_OR_RETURN(command_.model, FindModel());
    }
    BT_ASSIGN_OR_RETURN(texts_, LoadTexts(command_, program_));
    RaiseFileLimit();
    const std::vector<BenchServeCommand> runs = RunsOf(command_);
    std::vector<SweepPoint> points;
    if (!command_.sweep_svg.empty()) BT_RETURN_IF_ERROR(CheckFolderOf(command_.sweep_svg));
    for (const BenchServeCommand& run : runs) {
      BT_ASSIGN_OR_RETURN(BenchResult result, RunOnce(run, points.empty()));
      points.push_back({.load = run.load, .result = std::move(result)});
      if (stop_asked) break;
    }
    if (!command_.sweep_concurrency.empty() || !command_.sweep_rates.empty()) {
      const bool over_rate = !command_.sweep_rates.empty();
      fmt::print("{}", SweepTable(points, over_rate));
      BT_RETURN_IF_ERROR(WriteSvg(points));
    }
    for (const SweepPoint& point : points) {
      if (point.result.completed == 0) return Status(Code::kUnavailable, "no request succeeded");
    }
    return {};
  }

 private:
  // While --ready-check-timeout-sec lasts, a server that is not there yet is asked again.
  Result<std::string> FindModel() {
    const MonotonicClock clock;
    const Seconds end = clock.Now() + static_cast<double>(command_.ready_seconds);
    for (;;) {
      Result<std::string> model = server_.FirstModel();
      if (model.ok() || clock.Now() >= end || stop_asked) return model;
      std::this_thread::sleep_for(std::chrono::milliseconds(500));
    }
  }

  Result<BenchResult> RunOnce(const BenchServeCommand& run, bool first) {
    BT_ASSIGN_OR_RETURN(const Dataset data,
                        BuildDataset(run.data, run.chat,
                                     {.tokenizer = texts_.tokenizer.get(),
                                      .chat_template = texts_.chat_template.get()}));
    if (first) {
      for (const std::string& notice : data.notices) Say(notice);
      BT_RETURN_IF_ERROR(CheckResultFolder(run));
      if (run.ready_seconds > 0) BT_RETURN_IF_ERROR(AwaitServer(run, data));
    }
    if (run.warm_ups > 0) BT_RETURN_IF_ERROR(WarmUp(run, data, command_.progress));
    const LoadOptions& load = run.load;
    if (load.ramp.empty()) {
      fmt::print("Traffic request rate: {}\n", PythonFloat(load.rate));
    } else {
      fmt::print("Traffic ramp-up: {}, from {} to {} requests a second\n", load.ramp,
                 load.ramp_start, load.ramp_end);
    }
    fmt::print("Burstiness factor: {} ({})\nMaximum request concurrency: {}\n",
               PythonFloat(load.burstiness),
               load.burstiness == 1 ? "Poisson process" : "Gamma distribution",
               load.max_concurrency > 0 ? std::to_string(load.max_concurrency) : "None");
    std::fflush(stdout);
    const std::optional<Speculation> before = server_.Counters();
    const bool recording = run.profile && server_.StartProfile();
    Result<LoadOutcome> loaded =
        RunLoad(run, data, ArrivalTimes(load, data.sessions.size(), run.data.seed),
                command_.progress, {.stop = &stop_asked});
    if (recording) server_.StopProfile();
    BT_ASSIGN_OR_RETURN(LoadOutcome out, std::move(loaded));
    const std::optional<Speculation> after = server_.Counters();
    CountTokens(out.answers);
    BenchResult result = Summarise(out.answers, out.seconds, run);
    if (before && after) result.speculation = Between(*before, *after);
    TellFailures(out.answers);
    fmt::print("{}", ResultTable(result, run));
    std::fflush(stdout);
    BT_RETURN_IF_ERROR(Save(run, result, out.answers));
    return result;
  }

  // Of servers that do not say how many tokens an answer has.
  void CountTokens(std::vector<Answer>& answers) const {
    int64_t uncounted = 0;
    for (Answer& answer : answers) {
      if (!answer.success || answer.output_tokens > 0) continue;
      if (texts_.tokenizer == nullptr) {
        ++uncounted;
        continue;
      }
      answer.output_tokens = std::ssize(texts_.tokenizer->Encode(answer.text)) +
                             std::ssize(texts_.tokenizer->Encode(answer.thinking));
    }
    if (uncounted > 0) {
      Say(fmt::format(
          "{} answers came without usage and count as one token each: --tokenizer counts "
          "their text",
          uncounted));
    }
  }

  Status WriteSvg(const std::vector<SweepPoint>& points) const {
    if (command_.sweep_svg.empty()) return {};
    std::ofstream file(command_.sweep_svg);
    file << SweepSvg(command_, points);
    file.close();
    if (!file) return CannotWrite("--sweep-svg " + command_.sweep_svg);
    Say("the plots are in " + command_.sweep_svg);
    return {};
  }

  BenchServeCommand command_;
  std::string program_;
  Server server_;
  Texts texts_;
};

// Whatever it says.
bool AnythingAnswers(const BenchServeCommand& command) {
  HttpClient client({.host = command.host, .port = command.port, .idle_timeout = 2});
  return client.Send({.method = "GET", .target = "/health", .body = ""}).ok();
}

}  // namespace

int RunBenchServe(const BenchServeCommand& command, const std::string& program) {
  std::signal(SIGINT, OnSignal);
  std::signal(SIGTERM, OnSignal);
  for (const std::string& notice : command.notices) Say(notice);
  const Status status = Bench(command, program).Run();
  if (stop_asked) {
    Say("interrupted: what was not answered by then counts as failed");
    return 130;
  }
  if (status.ok()) return 0;
  Say("error: " + status.message());
  if (status.code() == Code::kUnavailable && !AnythingAnswers(command)) {
    Say(fmt::format("is a server running at http://{}:{}?", command.host, command.port));
  }
  return status.code() == Code::kInvalidArgument ? 2 : 1;
}

}  // namespace baltoro
