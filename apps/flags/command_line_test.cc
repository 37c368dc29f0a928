#include "flags/command_line.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>

#include "base/file.h"
#include "flags/environment.h"
#include "flags/serve_flags.h"

namespace baltoro {
namespace {

using Args = std::vector<std::string>;

Ending End(const Args& args) {
  Command command = ParseCommandLine(args, {});
  if (const Ending* ending = std::get_if<Ending>(&command)) return *ending;
  ADD_FAILURE() << "accepted";
  return {};
}

template <typename Options>
Options Accept(const Args& args, const Environment& environment = {}) {
  Command command = ParseCommandLine(args, environment);
  if (const Ending* ending = std::get_if<Ending>(&command)) ADD_FAILURE() << ending->err;
  return std::holds_alternative<Options>(command) ? std::get<Options>(command) : Options();
}

bool Contains(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

TEST(CommandLineTest, SubcommandsAreTold) {
  EXPECT_EQ(Accept<ServeOptions>({"serve", "/m"}).model, "/m");
  EXPECT_EQ(End({"route"}).err, "baltoro route is not available yet in this version\n");
  EXPECT_EQ(End({"route"}).exit_code, 1);
  const auto tune = Accept<TuneCommand>({"tune", "--model", "m", "--tp-size", "8", "--dtype",
                                         "bfloat16", "--tune", "--save-dir", "d"});
  EXPECT_EQ(tune.model, "m");
  EXPECT_EQ(tune.tensor, 8);
  EXPECT_TRUE(Contains(tune.notice, "--dtype has no effect: "));
  EXPECT_TRUE(Contains(tune.notice, "--tune has no effect: "));
  EXPECT_TRUE(Contains(End({"tune", "m"}).err, "give --save-dir FOLDER or --tuned-config FILE"));
  EXPECT_EQ(End({"tune", "m", "--save-dir", "d", "--enable-expert-parallel"}).exit_code, 2);
  EXPECT_EQ(Accept<BenchStepCommand>({"bench", "step", "m", "--batch", "2", "3"}).batches,
            (std::vector<int64_t>{2, 3}));
  EXPECT_TRUE(
      Accept<BenchStepCommand>({"bench", "step", "m", "-dp", "4", "--move-experts"}).move_experts);
  EXPECT_TRUE(Contains(End({"bench", "step", "m", "--move-experts"}).err, "--move-experts needs"));
  EXPECT_EQ(End({"bench"}).exit_code, 2);
  EXPECT_EQ(End({"bench", "walk"}).exit_code, 2);
  const auto latency = Accept<BenchEngineCommand>(
      {"bench", "latency", "m", "--batch-size", "2", "--num-iters", "3", "-tp", "4"});
  EXPECT_TRUE(latency.latency);
  EXPECT_EQ(latency.batch, 2);
  EXPECT_EQ(latency.repeats, 3);
  EXPECT_EQ(latency.serve.tensor_parallel_size, 4);
  EXPECT_FALSE(latency.serve.enable_prefix_caching);
  const auto throughput = Accept<BenchEngineCommand>(
      {"bench", "throughput", "--model", "m", "--num-prompts", "7", "--random-range-ratio", "0.5"});
  EXPECT_EQ(throughput.prompts, 7);
  EXPECT_EQ(throughput.input_len, 1024);
  EXPECT_EQ(throughput.range_ratio, 0.5);
  EXPECT_EQ(End({"bench", "throughput", "--dataset-name", "sharegpt"}).exit_code, 1);
  EXPECT_EQ(End({"bench", "latency", "--tensor-parallel-size", "2",
                 "--decode-context-parallel-size", "4"})
                .exit_code,
            2);
  EXPECT_EQ(End({"serv"}).exit_code, 2);
  EXPECT_EQ(End({}).exit_code, 2);
  EXPECT_EQ(End({"help"}).exit_code, 0);
  EXPECT_TRUE(End({"--version"}).out.starts_with("baltoro "));
}

TEST(CommandLineTest, ChatTakesItsPromptAsWords) {
  const ChatOptions options =
      Accept<ChatOptions>({"chat", "--url", "http://h:1", "--no-thinking", "what", "is", "2+2?"},
                          {{"VLLM_API_KEY", "env"}});
  EXPECT_EQ(options.url, "http://h:1");
  EXPECT_EQ(options.api_key, "env");
  EXPECT_FALSE(options.thinking);
  EXPECT_EQ(options.prompt, "what is 2+2?");
  EXPECT_EQ(Accept<ChatOptions>({"chat", "--api-key=k"}, {{"VLLM_API_KEY", "env"}}).api_key, "k");
  const auto looking = Accept<ChatOptions>(
      {"chat", "--image", "a.png", "what", "is", "--image=b c.jpg", "it?", "--image", "a.png"});
  EXPECT_EQ(looking.images, (std::vector<std::string>{"a.png", "b c.jpg", "a.png"}));
  EXPECT_EQ(looking.prompt, "what is it?");
  EXPECT_EQ(Accept<ChatOptions>({"chat", "--", "--no-thinking"}).prompt, "--no-thinking");
  EXPECT_TRUE(Contains(End({"chat", "--help"}).out, "--no-thinking"));
}

TEST(CommandLineTest, EvalReachesItsFields) {
  const EvalOptions options = Accept<EvalOptions>(
      {"eval", "--url=u", "--cases=c", "--loglik=l", "--task=t", "--limit=3", "--concurrency=4",
       "--output=o", "--model=m", "--api-key=k", "--compare-constraint"});
  EXPECT_EQ(options.url, "u");
  EXPECT_EQ(options.cases, "c");
  EXPECT_EQ(options.loglik, "l");
  EXPECT_EQ(options.task, "t");
  EXPECT_EQ(options.limit, 3);
  EXPECT_EQ(options.concurrency, 4);
  EXPECT_TRUE(options.compare_constraint);
  EXPECT_EQ(options.output, "o");
  EXPECT_EQ(options.model, "m");
  EXPECT_EQ(options.api_key, "k");
  EXPECT_EQ(End({"eval", "x"}).exit_code, 2);
}

TEST(CommandLineTest, CheckpointCommandsReachTheirFields) {
  const QuantizeCommand quantize =
      Accept<QuantizeCommand>({"quantize", "a", "b", "--format=int4", "--parts", "experts,dense",
                               "--shard-size=2G", "--threads=3"});
  EXPECT_EQ(quantize.source, "a");
  EXPECT_EQ(quantize.target, "b");
  EXPECT_EQ(quantize.format, "int4");
  EXPECT_EQ(quantize.parts, "experts,dense");
  EXPECT_EQ(quantize.shard_bytes, int64_t{2} << 30);
  EXPECT_EQ(quantize.threads, 3);
  EXPECT_EQ(Accept<QuantizeCommand>({"quantize", "a", "b", "--format=fp8"}).shard_bytes,
            5'000'000'000);
  EXPECT_EQ(End({"quantize", "a", "b"}).exit_code, 2);
  EXPECT_EQ(End({"quantize", "a", "--format=fp8"}).exit_code, 2);
  EXPECT_EQ(End({"quantize", "a", "b", "--format=fp4"}).exit_code, 2);

  EXPECT_TRUE(Accept<InspectCommand>({"inspect", "m", "--json"}).json);
  EXPECT_EQ(Accept<InspectCommand>({"inspect", "m"}).model, "m");
  EXPECT_EQ(End({"inspect"}).exit_code, 2);
  EXPECT_TRUE(Contains(End({"inspect", "--help"}).out, "--json"));
}

TEST(CommandLineTest, HelpComesWholeByGroupAndByPart) {
  const Ending overview = End({"serve", "--port", "1", "--help"});
  EXPECT_EQ(overview.exit_code, 0);
  EXPECT_EQ(overview.err, "");
  EXPECT_TRUE(Contains(overview.out, "CacheConfig"));

  const FlagTable table = ServeFlags();
  const std::string all = End({"serve", "--help=all"}).out;
  for (const FlagGroup& group : table.groups()) {
    for (const FlagSpec& spec : group.flags) {
      EXPECT_TRUE(Contains(all, "--" + std::string(spec.name))) << spec.name;
    }
  }
  const std::string cache = End({"serve", "--help=cacheconfig"}).out;
  EXPECT_TRUE(Contains(cache, "--block-size"));
  EXPECT_FALSE(Contains(cache, "--port"));

  const std::string part = End({"serve", "--help=max_num"}).out;
  EXPECT_TRUE(Contains(part, "--max-num-seqs"));
  EXPECT_FALSE(Contains(part, "--block-size"));

  EXPECT_TRUE(Contains(End({"serve", "--help=listgroup"}).out, "ParallelConfig"));
  EXPECT_EQ(End({"serve", "--help=xyzzy"}).exit_code, 1);
  EXPECT_EQ(End({"serve", "-h"}).out, overview.out);
  EXPECT_EQ(End({"help", "serve"}).out, overview.out);
}

TEST(CommandLineTest, EveryRowSaysWhatItNeeds) {
  const FlagTable table = ServeFlags();
  for (const FlagGroup& group : table.groups()) {
    for (const FlagSpec& spec : group.flags) {
      EXPECT_TRUE(spec.help.ends_with('.')) << spec.name;
      const bool plain = spec.state == FlagState::kWorks && spec.available.empty();
      EXPECT_TRUE(plain || !spec.reason.empty() || !spec.part_of.empty()) << spec.name;
    }
  }
}

TEST(CommandLineTest, HelpSaysNothingTwiceAndNothingUntrueOfADefault) {
  const std::string all = FlagsMarkdown();
  EXPECT_FALSE(Contains(all, "vllm, vllm"));
  EXPECT_FALSE(Contains(all, "random, random"));
  EXPECT_TRUE(Contains(all, "Always on; --no-enable-chunked-prefill is not available yet"));
  const FlagTable table = ServeFlags();
  for (const FlagGroup& group : table.groups()) {
    for (const FlagSpec& spec : group.flags) {
      for (const std::string_view value : SplitText(spec.available, '|')) {
        EXPECT_NE(value, spec.initial) << spec.name;
      }
    }
  }
}

TEST(CommandLineTest, CommandsThatTakeTheFlagsOfServeShowTheirOwnFirst) {
  for (const auto& [args, own] :
       {std::pair<Args, std::string>{{"bench", "throughput"}, "--num-prompts"},
        {{"bench", "latency"}, "--num-iters-warmup"},
        {{"plan"}, "--gpu"}}) {
    Args help = args;
    help.push_back("--help");
    const std::string text = End(help).out;
    const size_t at = text.find(own);
    ASSERT_NE(at, std::string::npos) << own;
    EXPECT_LT(at, text.find("  Frontend"));
    EXPECT_FALSE(Contains(text, "--allowed-origins"));
  }
}

TEST(CommandLineTest, ReadsTheEnvironmentOfAProcess) {
  const char* const variables[] = {"A=1", "B=", "C==x", "nonsense", nullptr};
  EXPECT_EQ(ReadEnvironment(variables), (Environment{{"A", "1"}, {"B", ""}, {"C", "=x"}}));
}

// The document is checked in; BT_UPDATE=1 in the environment of this test writes it anew.
TEST(CommandLineTest, DocumentEqualsTheTable) {
  const std::string path = "docs/flags.md";
  if (std::getenv("BT_UPDATE") != nullptr) std::ofstream(path) << FlagsMarkdown();
  const Result<std::string> document = ReadFile(path);
  ASSERT_TRUE(document.ok()) << document.status().message();
  EXPECT_EQ(document.value(), FlagsMarkdown())
      << "write it anew: baltoro help --markdown > " << path;
  EXPECT_EQ(End({"help", "--markdown"}).out, FlagsMarkdown());
}

}  // namespace
}  // namespace baltoro
