#include "flags/client_options.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <optional>
#include <utility>

#include "base/utf8.h"
#include "flags/help.h"
#include "flags/parse.h"

namespace baltoro {
namespace {

using enum ValueKind;

constexpr FlagSpec kChatFlags[] = {
    {.name = "url", .kind = kString, .initial = "http://127.0.0.1:8000", .help = "The server."},
    {.name = "model", .kind = kString, .initial = "the server's first", .help = "Which model."},
    {.name = "api-key", .kind = kString, .help = "The key to show; else VLLM_API_KEY."},
    {.name = "thinking",
     .kind = kBool,
     .initial = "true",
     .help = "Lets the model think before it answers. Thinking is shown on a terminal alone."},
    {.name = "system", .kind = kString, .help = "The system prompt."},
    {.name = "image",
     .kind = kEach,
     .help = "Picture for the first question: a JPEG, PNG, WebP or GIF file. Once for each one."},
    {.name = "temperature",
     .kind = kFloat,
     .initial = "the model's",
     .min = 0,
     .help = "How freely tokens are drawn; 0 always takes the likeliest."},
    {.name = "max-tokens",
     .kind = kInt,
     .initial = "what the context leaves",
     .min = 1,
     .help = "Longest answer, thinking included."},
    {.name = "history",
     .kind = kBool,
     .initial = "true",
     .help = "Keeps the last 1,000 lines typed on a terminal, in "
             "$XDG_STATE_HOME/baltoro/chat_history (~/.local/state where that is not set)."},
};

constexpr FlagSpec kEvalFlags[] = {
    {.name = "url", .kind = kString, .initial = "http://127.0.0.1:8000", .help = "The server."},
    {.name = "model", .kind = kString, .initial = "the server's first", .help = "Which model."},
    {.name = "api-key", .kind = kString, .help = "The key to show; else VLLM_API_KEY."},
    {.name = "cases",
     .kind = kString,
     .initial = "the pocket model's",
     .help = "File with cases, one JSON object on each line; it may be compressed with gzip."},
    {.name = "loglik",
     .kind = kString,
     .help = "File with held-out texts, whose mean log-likelihood is measured."},
    {.name = "task", .kind = kString, .initial = "all", .help = "Only this task."},
    {.name = "limit",
     .kind = kInt,
     .initial = "0",
     .min = 0,
     .help = "Cases of each task; 0 is all."},
    {.name = "concurrency",
     .kind = kInt,
     .initial = "8",
     .min = 1,
     .max = 4096,
     .help = "Requests at once."},
    {.name = "compare-constraint",
     .kind = kBool,
     .initial = "false",
     .help = "Asks cases with tools a second time, with calls that are not held to the tools."},
    {.name = "output", .kind = kString, .help = "File for the result as JSON."},
};

void GetKey(const ParsedFlags& flags, const Environment& environment, std::string& target) {
  const auto variable = environment.find("VLLM_API_KEY");
  if (variable != environment.end()) target = variable->second;
  Get(flags, "api-key", target);
}

std::string Variable(const Environment& environment, const char* name) {
  const auto found = environment.find(name);
  return found == environment.end() ? "" : found->second;
}

// By the XDG base directories, which ignore a path that is not absolute. Empty: there is no place.
std::string HistoryPath(const Environment& environment) {
  std::string folder = Variable(environment, "XDG_STATE_HOME");
  if (!folder.starts_with('/')) {
    folder = Variable(environment, "HOME");
    if (!folder.starts_with('/')) return "";
    folder += "/.local/state";
  }
  return folder + "/baltoro/chat_history";
}

}  // namespace

FlagTable ChatFlags() {
  return FlagTable("baltoro chat", "[options] [PROMPT ...]",
                   {{"Options",
                     "Talks to a running server: on a terminal until Ctrl-D; with words, or "
                     "standard input as the question, it prints the answer alone and ends.",
                     kChatFlags}});
}

FlagTable EvalFlags() {
  return FlagTable("baltoro eval", "[options]",
                   {{"Options", "Measures the accuracy of a running server.", kEvalFlags}});
}

Outcome<ChatOptions> ParseChat(std::span<const std::string> args, const Environment& environment) {
  const FlagTable table = ChatFlags();
  if (std::optional<Ending> help = FindHelp(table, args)) return *std::move(help);
  const Result<ParsedFlags> flags = ParseFlags(table, args);
  if (!flags.ok()) return UsageError(table, flags.status().message());
  ChatOptions options;
  Get(flags.value(), "url", options.url);
  Get(flags.value(), "model", options.model);
  Get(flags.value(), "thinking", options.thinking);
  Get(flags.value(), "system", options.system);
  Get(flags.value(), "image", options.images);
  const auto given = [&](const char* name) { return flags.value().uses.contains(name); };
  if (given("temperature")) Get(flags.value(), "temperature", options.temperature.emplace());
  if (given("max-tokens")) Get(flags.value(), "max-tokens", options.max_tokens.emplace());
  bool history = true;
  Get(flags.value(), "history", history);
  if (history) options.history = HistoryPath(environment);
  options.plain =
      !Variable(environment, "NO_COLOR").empty() || Variable(environment, "TERM") == "dumb";
  GetKey(flags.value(), environment, options.api_key);
  options.prompt = fmt::format("{}", fmt::join(flags.value().positionals, " "));
  for (const std::string& text : {options.system, options.prompt, options.model}) {
    if (!IsValidUtf8(text)) return UsageError(table, "an argument is no UTF-8 text");
  }
  return options;
}

Outcome<EvalOptions> ParseEval(std::span<const std::string> args, const Environment& environment) {
  const FlagTable table = EvalFlags();
  if (std::optional<Ending> help = FindHelp(table, args)) return *std::move(help);
  const Result<ParsedFlags> flags = ParseFlags(table, args);
  if (!flags.ok()) return UsageError(table, flags.status().message());
  if (!flags.value().positionals.empty()) {
    return UsageError(table, "unrecognized arguments: " + flags.value().positionals.front());
  }
  EvalOptions options;
  Get(flags.value(), "url", options.url);
  Get(flags.value(), "model", options.model);
  GetKey(flags.value(), environment, options.api_key);
  Get(flags.value(), "cases", options.cases);
  Get(flags.value(), "loglik", options.loglik);
  Get(flags.value(), "task", options.task);
  Get(flags.value(), "limit", options.limit);
  Get(flags.value(), "concurrency", options.concurrency);
  Get(flags.value(), "compare-constraint", options.compare_constraint);
  Get(flags.value(), "output", options.output);
  return options;
}

}  // namespace baltoro
