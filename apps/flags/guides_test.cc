// Every command of the five deployment guides (tests/guides/), split into words by the C library as
// a shell would, and what this version makes of it. A feature that arrives moves lines here from
// "stops" to "accepted".

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <wordexp.h>

#include <cstdlib>
#include <filesystem>
#include <map>
#include <set>

#include "base/file.h"
#include "flags/command_line.h"

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

struct Expectation {
  const char* command;
  int exit_code;  // -1: accepted
  Args lines;     // beginnings of the notices, or of the refusals, in order
};

const Args kAscendSplit = {"--data-parallel-size 2 is not", "--data-parallel-rank 1 is not",
                           "--speculative-config is not", "--kv-transfer-config is not"};
const Args kTp8Pp2 = {"--tokenizer-mode auto has no effect here",
                      "--trust-remote-code has no effect here",
                      "--disable-log-requests is ignored"};
const Args kDp16Node0 = {"--data-parallel-size 16 is not", "--data-parallel-size-local 8 is not"};
const Args kDp16Node1 = {"--data-parallel-size 16 is not", "--data-parallel-size-local 8 is not",
                         "--data-parallel-start-rank 8 is not"};
const Args kBench = {"--trust-remote-code has no effect here", "no --temperature:"};

const Expectation kExpectations[] = {
    {"k25_h200/baseline",
     -1,
     {"--trust-remote-code has no effect here", "--mm-encoder-tp-mode data has no effect here"}},
    {"k25_h200/optimised", 1, {"--enable-eplb is not", "--speculative-config is not"}},
    {"k25_h200/bench", -1, kBench},
    {"k25_ascend/single_node",
     1,
     {"--data-parallel-size 4 is not", "--speculative-config is not",
      "--allowed-local-media-path / is not"}},
    {"k25_ascend/data_parallel_node_0",
     1,
     {"--data-parallel-size 4 is not", "--data-parallel-size-local 2 is not",
      "--speculative-config is not", "--allowed-local-media-path / is not"}},
    {"k25_ascend/data_parallel_node_1",
     1,
     {"--data-parallel-size 4 is not", "--data-parallel-size-local 2 is not",
      "--data-parallel-start-rank 2 is not", "--speculative-config is not",
      "--allowed-local-media-path / is not"}},
    {"k25_ascend/prefill_node_0", 1, kAscendSplit},
    {"k25_ascend/prefill_node_1", 1, kAscendSplit},
    {"k25_ascend/decode_node_0", 1, kAscendSplit},
    {"k25_ascend/decode_node_1", 1, kAscendSplit},
    {"k25_ascend/bench", -1, {"random prompts:", "no --temperature:"}},
    {"k2_fp8/tp8_pp2", -1, kTp8Pp2},
    {"k2_fp8/dp16_node_0", 1, kDp16Node0},
    {"k2_fp8/dp16_node_1", 1, kDp16Node1},
    {"k2_fp8/bench_h800", -1, kBench},
    {"k2_fp8/bench_h200", -1, kBench},
    {"k2_fp8_zh/tp8_pp2", -1, kTp8Pp2},
    {"k2_fp8_zh/dp16_node_0", 1, kDp16Node0},
    {"k2_fp8_zh/dp16_node_1", 1, kDp16Node1},
    {"k2_fp8_zh/bench_h800", -1, kBench},
    {"k2_fp8_zh/bench_h200", -1, kBench},
    {"k2_thinking_h100/launch_script",
     -1,
     {"--gpu-memory-utilization 0.95 has no effect here",
      "--load-format compressed-tensors is taken as auto"}},
    {"k2_thinking_h100/working_configuration",
     -1,
     {"--enforce-eager has no effect here", "--gpu-memory-utilization 0.95 has no effect here"}},
};

// Lines of an error output, without the program's name in front.
Args ErrorLines(const Ending& ending) {
  Args lines;
  size_t begin = 0;
  for (size_t end; (end = ending.err.find('\n', begin)) != std::string::npos; begin = end + 1) {
    std::string line = ending.err.substr(begin, end - begin);
    for (const std::string_view prefix : {"baltoro serve: ", "baltoro "}) {
      if (line.starts_with(prefix)) line = line.substr(prefix.size());
    }
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

TEST(GuidesTest, EveryCommandDoesWhatTheTableSays) {
  const std::map<std::string, std::string> commands = ReadGuides();
  std::set<std::string> seen;
  for (const Expectation& expected : kExpectations) {
    SCOPED_TRACE(expected.command);
    ASSERT_TRUE(commands.contains(expected.command));
    seen.insert(expected.command);
    Args args = SplitAsAShell(commands.at(expected.command));
    ASSERT_FALSE(args.empty());
    ASSERT_EQ(args.front(), "baltoro");
    args.erase(args.begin());
    const Command command = ParseCommandLine(args, {});
    if (const Ending* ending = std::get_if<Ending>(&command)) {
      EXPECT_EQ(ending->exit_code, expected.exit_code) << ending->err;
      ExpectLines(ErrorLines(*ending), expected.lines);
    } else if (const auto* bench = std::get_if<BenchServeCommand>(&command)) {
      EXPECT_EQ(expected.exit_code, -1);
      ExpectLines(bench->notices, expected.lines);
    } else {
      EXPECT_EQ(expected.exit_code, -1);
      const auto& options = std::get<ServeOptions>(command);
      Args lines = JudgeRun(options.open_flags, {.tensor = options.tensor_parallel_size,
                                                 .pipeline = options.pipeline_parallel_size})
                       .notices;
      lines.insert(lines.end(), options.notices.begin(), options.notices.end());
      ExpectLines(lines, expected.lines);
    }
  }
  for (const auto& [name, text] : commands) EXPECT_TRUE(seen.contains(name)) << name;
}

// The optimised job of the K2.5 guide without what is not there yet: the rest reaches the options.
TEST(GuidesTest, WhatIsThereReachesTheOptions) {
  std::string text = ReadGuides().at("k25_h200/optimised");
  Replace(text, "--tensor-parallel-size 8", "");
  Replace(text, "--enable-eplb", "");
  text.erase(text.find("--speculative-config"), text.rfind("--trust") - text.find("--speculative"));
  Args args = SplitAsAShell(text);
  args.erase(args.begin(), args.begin() + 2);
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
               "--enable-ep-weight-filter has no effect here", "--eplb-config has no effect here",
               "--mm-encoder-tp-mode data has no effect here", "--swap-space 32 is ignored"});
  const Args on_one_rank = JudgeRun(options.open_flags, {.gpu = true}).notices;
  ExpectLines(on_one_rank, {"--enable-expert-parallel has no effect here"});
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
