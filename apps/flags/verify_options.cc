#include "flags/verify_options.h"

#include <fmt/format.h>

#include <optional>
#include <string_view>
#include <utility>

#include "flags/help.h"
#include "flags/hub_places.h"
#include "flags/parse.h"

namespace baltoro {
namespace {

using enum ValueKind;

constexpr const char* kAgainstKey = "BALTORO_AGAINST_API_KEY";

constexpr FlagSpec kVerifyFlags[] = {
    {.name = "url",
     .kind = kString,
     .initial = "http://127.0.0.1:8000",
     .help = "This server (\"ours\" in the report); http or https, with or without /v1."},
    {.name = "against",
     .kind = kString,
     .help = "The other server (\"theirs\"), which answers the OpenAI API. Required."},
    {.name = "model",
     .kind = kString,
     .initial = "a server's first",
     .help = "The model's name on both servers."},
    {.name = "against-model",
     .kind = kString,
     .initial = "--model",
     .help = "The model's name on the other server."},
    {.name = "api-key", .kind = kString, .help = "The key for this server; else VLLM_API_KEY."},
    {.name = "against-api-key",
     .kind = kString,
     .help = "The key for the other server; else BALTORO_AGAINST_API_KEY."},
    {.name = "prompts",
     .kind = kString,
     .initial = "those built in",
     .help = "File with the body of a chat completion on each line, or lines of OpenAI's batch "
             "format; it may be compressed with gzip."},
    {.name = "only",
     .kind = kStrings,
     .help = "Only prompts whose names in the report one of these patterns fits, like 'tool-*'."},
    {.name = "report",
     .kind = kString,
     .help = "Folder for report.md and report.json; it is made where there is none."},
    {.name = "json", .kind = kSwitch, .help = "Prints report.json instead of lines."},
    {.name = "concurrency",
     .kind = kInt,
     .initial = "1",
     .min = 1,
     .max = 64,
     .help = "Prompts at once; each goes to one server after the other."},
    {.name = "max-tokens",
     .kind = kInt,
     .initial = "512",
     .min = 1,
     .max = 1'000'000,
     .help = "Tokens of an answer at most, where a prompt does not ask for fewer."},
    {.name = "timeout",
     .kind = kFloat,
     .initial = "600",
     .min = 0.1,
     .max = 86'400,
     .help = "Seconds that one request may take."},
    {.name = "near-tie",
     .kind = kFloat,
     .initial = "0.5",
     .min = 0,
     .max = 100,
     .help = "Where answers part: how near the two tokens' log-probabilities must be on both "
             "servers for a near tie, in nats."},
    {.name = "tolerance",
     .kind = kFloat,
     .initial = "0.1",
     .min = 0,
     .max = 100,
     .help = "How far the log-probabilities of the same tokens may be apart in the mean, in "
             "nats."},
};

// The URL without what is added to it again, or why it is none.
Result<std::string> BaseOf(std::string_view flag, std::string url) {
  if (url.find("://") == std::string::npos) url.insert(0, "http://");
  const auto bad = [&](const std::string& why) {
    return InvalidArgument(fmt::format("argument --{}: {}", flag, why));
  };
  if (!url.starts_with("http://") && !url.starts_with("https://")) {
    return bad("not http:// or https://");
  }
  // What may hold a secret is not repeated.
  if (url.find('@') != std::string::npos) {
    return bad(
        "no user or password can be in the URL; a key goes into --api-key or "
        "--against-api-key");
  }
  if (url.find_first_of("?# \t\r\n") != std::string::npos) {
    return bad("a URL like https://host/v1, without ?, # and blanks, is needed");
  }
  const size_t host = url.find("://") + 3;
  if (host == url.size() || url[host] == '/') return bad("the URL names no host");
  while (url.ends_with('/')) url.pop_back();
  if (url.ends_with("/v1")) url.resize(url.size() - 3);
  while (url.ends_with('/')) url.pop_back();
  return url;
}

Status TakeKey(const ParsedFlags& flags,
               const Environment& environment,
               std::string_view flag,
               const char* variable,
               std::string& key) {
  const auto found = environment.find(variable);
  if (found != environment.end()) key = found->second;
  Get(flags, flag, key);
  if (key.find_first_of("\r\n") == std::string::npos) return {};
  return InvalidArgument(
      fmt::format("argument --{} (or {}): a key has no line break", flag, variable));
}

Status Fill(const ParsedFlags& flags, const Environment& environment, VerifyOptions& out) {
  if (!flags.positionals.empty()) {
    return InvalidArgument("unrecognized arguments: " + flags.positionals.front());
  }
  Get(flags, "url", out.ours.url);
  Get(flags, "against", out.theirs.url);
  if (out.theirs.url.empty()) {
    return InvalidArgument("the following arguments are required: --against");
  }
  BT_ASSIGN_OR_RETURN(out.ours.url, BaseOf("url", out.ours.url));
  BT_ASSIGN_OR_RETURN(out.theirs.url, BaseOf("against", out.theirs.url));
  Get(flags, "model", out.ours.model);
  out.theirs.model = out.ours.model;
  Get(flags, "against-model", out.theirs.model);
  BT_RETURN_IF_ERROR(TakeKey(flags, environment, "api-key", "VLLM_API_KEY", out.ours.api_key));
  BT_RETURN_IF_ERROR(
      TakeKey(flags, environment, "against-api-key", kAgainstKey, out.theirs.api_key));
  Get(flags, "prompts", out.prompts);
  Get(flags, "only", out.only);
  Get(flags, "report", out.report);
  Get(flags, "json", out.json);
  Get(flags, "concurrency", out.concurrency);
  Get(flags, "max-tokens", out.max_tokens);
  Get(flags, "timeout", out.timeout);
  Get(flags, "near-tie", out.near_tie);
  Get(flags, "tolerance", out.tolerance);
  out.ca_file = CaFileOf(environment);
  return {};
}

}  // namespace

FlagTable VerifyFlags() {
  return FlagTable("baltoro verify", "--against URL [options]",
                   {{"Options",
                     "Asks this server and another one the same and compares: tokens of prompts, "
                     "log-probabilities, answers, tool calls, structured output, times. Ends with "
                     "0 where they are the same (up to near ties), 1 where they differ, 3 where a "
                     "server does not answer.",
                     kVerifyFlags}});
}

Outcome<VerifyOptions> ParseVerify(std::span<const std::string> args,
                                   const Environment& environment) {
  const FlagTable table = VerifyFlags();
  if (std::optional<Ending> help = FindHelp(table, args)) return *std::move(help);
  const Result<ParsedFlags> flags = ParseFlags(table, args);
  if (!flags.ok()) return UsageError(table, flags.status().message());
  VerifyOptions options;
  if (const Status status = Fill(flags.value(), environment, options); !status.ok()) {
    return UsageError(table, status.message());
  }
  return options;
}

}  // namespace baltoro
