// Every command of the five deployment guides (tests/guides/), split into words by the C library as
// a shell would, and what this version makes of it: what tests/guides/cases.json says. A feature
// that arrives takes its name out of that list.

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <wordexp.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <set>

#include "base/file.h"
#include "base/json.h"
#include "flags/command_line.h"
#include "flags/serve_flags.h"

namespace baltoro {
namespace {

using Args = std::vector<std::string>;

void Replace(std::string& text, const std::string& from, const std::string& to) {
  for (size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size()) {
    text.replace(at, from.size(), to);
  }
}

// What the guides leave to the reader or to a launcher ($1 to $7).
std::string Fill(std::string command) {
  const char* const parameters[] = {"0,1", "7100", "2", "1", "10.0.0.1", "12321", "8"};
  for (int i = 0; i < 7; ++i) Replace(command, fmt::format("${}", i + 1), parameters[i]);
  Replace(command, "\\\n", " ");
  while (command.ends_with('\n')) command.pop_back();
  return command;
}

Args SplitAsAShell(const std::string& command) {
  setenv("MODEL_PATH", "/models/kimi-k2.5", 1);
  setenv("EAGLE3_PATH", "/models/kimi-k2.5-eagle3-mla", 1);
  setenv("MODEL_DIR", "/models/kimi-k2.5", 1);
  setenv("TUNING_DIR", "/models/tuning", 1);
  setenv("SERVER_URL", "http://node1:8000", 1);
  setenv("MASTER_IP", "10.0.0.1", 1);
  setenv("PORT", "13345", 1);
  setenv("node0_ip", "10.0.0.1", 1);
  wordexp_t words = {};
  const int error = wordexp(Fill(command).c_str(), &words, WRDE_NOCMD | WRDE_UNDEF);
  EXPECT_EQ(error, 0) << command;
  Args args;
  if (error == 0) {
    args.assign(words.we_wordv, words.we_wordv + words.we_wordc);
    wordfree(&words);
  }
  return args;
}

// "file/id" to the command as printed.
std::map<std::string, std::string> ReadGuides() {
  std::map<std::string, std::string> commands;
  for (const auto& entry : std::filesystem::directory_iterator("tests/guides")) {
    if (entry.path().extension() != ".txt") continue;
    const Result<std::string> text = ReadFile(entry.path().string());
    EXPECT_TRUE(text.ok());
    size_t at = text.value().find("\n## ");
    while (at != std::string::npos) {
      const size_t line_end = text.value().find('\n', at + 1);
      const size_t next = text.value().find("\n## ", line_end);
      const std::string id = text.value().substr(at + 4, line_end - at - 4);
      commands[entry.path().stem().string() + "/" + id] =
          text.value().substr(line_end + 1, next - line_end - 1);
      at = next;
    }
  }
  return commands;
}

// An entry of tests/guides/cases.json.
struct Case {
  std::string name, kind, server, ours;
  std::set<std::string> waits;
  Args says;
};

std::string TextOf(const Json& entry, const char* key) {
  return entry.value(key, "");
}

struct CaseList {
  std::vector<Case> cases;
  std::map<std::string, std::set<std::string>> flags;  // of a name in "missing", without dashes
};

CaseList ReadCases() {
  CaseList list;
  const Result<std::string> text = ReadFile("tests/guides/cases.json");
  EXPECT_TRUE(text.ok());
  const Result<Json> json = ParseJson(text.value());
  EXPECT_TRUE(json.ok()) << json.status().message();
  if (!json.ok()) return list;
  for (const auto& [name, entry] : json.value()["missing"].items()) {
    list.flags[name] = entry["flags"].get<std::set<std::string>>();
  }
  for (const Json& guide : json.value()["guides"]) {
    const std::string folder = TextOf(guide, "file") + "/";
    for (const Json& entry : guide["cases"]) {
      Case read{.name = folder + TextOf(entry, "id"),
                .kind = TextOf(entry, "kind"),
                .server = TextOf(entry, "server"),
                .ours = TextOf(entry, "ours"),
                .waits = entry.value("waits", std::set<std::string>()),
                .says = entry.value("says", Args())};
      if (!read.server.empty()) read.server = folder + read.server;
      list.cases.push_back(std::move(read));
    }
  }
  return list;
}

// Lines of an error output, without who says them.
Args ErrorLines(const Ending& ending) {
  Args lines;
  size_t begin = 0;
  for (size_t end; (end = ending.err.find('\n', begin)) != std::string::npos; begin = end + 1) {
    std::string line = ending.err.substr(begin, end - begin);
    constexpr std::string_view kWho = "baltoro serve: ";
    if (line.starts_with(kWho)) line = line.substr(kWho.size());
    lines.push_back(line);
  }
  return lines;
}

void ExpectLines(const Args& got, const Args& want) {
  EXPECT_EQ(got.size(), want.size());
  for (size_t i = 0; i < std::min(got.size(), want.size()); ++i) {
    EXPECT_TRUE(got[i].starts_with(want[i])) << got[i] << "\n  instead of " << want[i];
  }
}

// Without the program's name: `vllm` in the guides.
Args ArgsOf(const std::string& command) {
  Args args = SplitAsAShell(command);
  EXPECT_FALSE(args.empty());
  if (args.empty()) return args;
  EXPECT_TRUE(args.front() == "vllm" || args.front() == "baltoro") << args.front();
  args.erase(args.begin());
  return args;
}

// The names in "missing" that the refused flags belong to. A flag in none of them is itself named.
std::set<std::string> WaitsOf(const Args& refusals, const CaseList& list) {
  std::set<std::string> waits;
  for (const std::string& line : refusals) {
    const std::string flag = line.substr(2, line.find(' ') - 2);
    std::string found = "--" + flag;
    for (const auto& [name, flags] : list.flags) {
      if (flags.contains(flag)) found = name;
    }
    waits.insert(found);
  }
  return waits;
}

void ExpectServe(const Case& each, const std::string& text, const CaseList& list) {
  const Command command = ParseCommandLine(ArgsOf(text), {});
  if (const Ending* ending = std::get_if<Ending>(&command)) {
    EXPECT_EQ(ending->exit_code, 1) << ending->err;
    const Args lines = ErrorLines(*ending);
    EXPECT_EQ(WaitsOf(lines, list), each.waits);
    // What is refused says what to do instead.
    for (const std::string& line : lines) EXPECT_NE(line.find("; "), line.npos) << line;
    return;
  }
  EXPECT_EQ(each.waits, std::set<std::string>()) << "nothing is refused any more";
  const auto& options = std::get<ServeOptions>(command);
  Args lines = JudgeRun(options.open_flags, {.tensor = options.tensor_parallel_size,
                                             .pipeline = options.pipeline_parallel_size,
                                             .nodes = options.nodes.nodes,
                                             .node = options.nodes.node,
                                             .replicas = options.replicas.total,
                                             .whole_experts = options.enable_expert_parallel})
                   .notices;
  lines.insert(lines.end(), options.notices.begin(), options.notices.end());
  // Another spelling is told of with the flag that it stands for.
  std::erase_if(lines,
                [](const std::string& line) { return line.find(" is taken as --") != line.npos; });
  ExpectLines(lines, each.says);
}

// Of a command without flags of `serve`. It may be understood already, and wait for something that
// flags of `serve` stand for, as a load of pictures does.
void ExpectRefusal(bool refused, const Case& each, const CaseList& list) {
  const FlagTable table = ServeFlags();
  if (each.waits.empty()) {
    EXPECT_FALSE(refused);
  }
  for (const std::string& name : each.waits) {
    const std::set<std::string>& flags = list.flags.at(name);
    const bool missing = std::ranges::any_of(flags, [&](const std::string& flag) {
      const FlagSpec* spec = table.Get(flag);
      return spec != nullptr && spec->state == FlagState::kNotYet;
    });
    EXPECT_TRUE(refused || missing) << name << " is there";
  }
}

// The list is that of the printed commands, each once.
TEST(GuidesTest, EveryCommandIsACase) {
  std::set<std::string> printed, listed;
  for (const auto& [name, text] : ReadGuides()) printed.insert(name);
  const CaseList list = ReadCases();
  for (const Case& each : list.cases) EXPECT_TRUE(listed.insert(each.name).second) << each.name;
  EXPECT_EQ(listed, printed);
  EXPECT_GE(listed.size(), 38u);
}

// What waits is refused today, and for what it is said to wait for: the list can only shrink.
TEST(GuidesTest, EveryCaseIsWhatItSays) {
  const std::map<std::string, std::string> commands = ReadGuides();
  const CaseList list = ReadCases();
  std::map<std::string, std::set<std::string>> waits;
  for (const Case& each : list.cases) waits[each.name] = each.waits;
  for (const Case& each : list.cases) {
    SCOPED_TRACE(each.name);
    ASSERT_TRUE(commands.contains(each.name));
    for (const std::string& name : each.waits) EXPECT_TRUE(list.flags.contains(name)) << name;
    if (each.kind == "serve") {
      ExpectServe(each, commands.at(each.name), list);
    } else if (!each.server.empty()) {
      // Sent to a server, or starting one: as far as that is.
      ASSERT_TRUE(waits.contains(each.server));
      EXPECT_EQ(each.waits, waits.at(each.server));
    } else {
      const bool is_ours = each.kind == "bench";
      ASSERT_NE(is_ours, !each.ours.empty());
      const Command command =
          ParseCommandLine(ArgsOf(is_ours ? commands.at(each.name) : each.ours), {});
      const Ending* ending = std::get_if<Ending>(&command);
      ExpectRefusal(ending != nullptr && ending->exit_code != 0, each, list);
    }
  }
}

// The optimised job of the K2.5 guide without what is not there yet: the rest reaches the options.
TEST(GuidesTest, WhatIsThereReachesTheOptions) {
  std::string text = ReadGuides().at("k25_h200/optimised");
  Replace(text, "--tensor-parallel-size 8", "");
  Replace(text, "--enable-eplb", "");
  text.erase(text.find("--speculative-config"), text.rfind("--trust") - text.find("--speculative"));
  Args args = ArgsOf(text);
  args.erase(args.begin());
  const Outcome<ServeOptions> outcome = ParseServe(args, {});
  const Ending* ending = std::get_if<Ending>(&outcome);
  ASSERT_EQ(ending, nullptr) << ending->err;
  const ServeOptions& options = std::get<ServeOptions>(outcome);
  EXPECT_EQ(options.model, "/models/kimi-k2.5");
  EXPECT_EQ(options.max_model_len, 65536);
  EXPECT_EQ(options.dtype, "bfloat16");
  EXPECT_EQ(options.kv_cache_dtype, "fp8");
  EXPECT_EQ(options.max_num_batched_tokens, 8192);
  EXPECT_EQ(options.tool_call_parser, "kimi_k2");
  EXPECT_EQ(options.reasoning_parser, "kimi_k2");
  EXPECT_TRUE(options.enable_auto_tool_choice);
  ExpectLines(options.notices,
              {"--trust-remote-code has no effect here",
               "--skip-non-local-expert-weights is taken as --enable-ep-weight-filter",
               "--enable-ep-weight-filter has no effect here", "--swap-space 32 is ignored",
               "--eplb-config has no effect here: --enable-eplb is not given"});
  const Args on_one_rank = JudgeRun(options.open_flags, {.gpu = true}).notices;
  ExpectLines(on_one_rank, {"--enable-expert-parallel has no effect here",
                            "--mm-encoder-tp-mode data has no effect here"});
}

// Flags that the guides print outside of a whole command.
TEST(GuidesTest, FlagsNamedInTheProseAreKnown) {
  for (const Args& args : {Args{"--max-model-len=65536"}, Args{"--gpu-memory-utilization=0.95"},
                           Args{"--no-async-scheduling"}, Args{"--enable-reasoning"},
                           Args{"--quantization-param-path", "/scales.json"},
                           Args{"--max-num-batched-tokens=32768"}, Args{"--max-num-seqs", "256"}}) {
    const Outcome<ServeOptions> outcome = ParseServe(args, {});
    EXPECT_TRUE(std::holds_alternative<ServeOptions>(outcome)) << args.front();
  }
}

}  // namespace
}  // namespace baltoro
