#include "flags/serve_options.h"

#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <tuple>

#include "flags/environment.h"
#include "flags/plan_options.h"
#include "flags/serve_checks.h"
#include "flags/serve_flags.h"
#include "support/support.h"

namespace baltoro {
namespace {

using Args = std::vector<std::string>;

ServeOptions Accept(const Args& args, const Environment& environment = {}) {
  Outcome<ServeOptions> outcome = ParseServe(args, environment);
  if (const Ending* ending = std::get_if<Ending>(&outcome)) {
    ADD_FAILURE() << ending->err;
    return {};
  }
  return std::get<ServeOptions>(outcome);
}

Ending End(const Args& args, const Environment& environment = {}) {
  Outcome<ServeOptions> outcome = ParseServe(args, environment);
  if (const Ending* ending = std::get_if<Ending>(&outcome)) return *ending;
  ADD_FAILURE() << "accepted";
  return {};
}

bool HasLine(const std::vector<std::string>& lines, std::string_view part) {
  for (const std::string& line : lines) {
    if (line.find(part) != std::string::npos) return true;
  }
  return false;
}

TEST(ServeOptionsTest, AnEmptyLineGivesTheDefaults) {
  const ServeOptions options = Accept({});
  EXPECT_EQ(options.model, "");
  EXPECT_EQ(options.port, 8000);
  EXPECT_EQ(options.max_model_len, 0);
  EXPECT_EQ(options.max_logprobs, 20);
  EXPECT_TRUE(options.enable_prefix_caching);
  EXPECT_TRUE(options.notices.empty());
}

TEST(ServeOptionsTest, EveryWorkingFlagReachesItsField) {
  const ServeOptions options = Accept({"/m",
                                       "--host=::1",
                                       "--port=0",
                                       "--served-model-name=a",
                                       "--api-key=k1",
                                       "--api-key-file=/keys",
                                       "--allowed-origins=[\"o\"]",
                                       "--allowed-methods=[\"GET\"]",
                                       "--allowed-headers=[\"h\"]",
                                       "--allow-credentials",
                                       "--chat-template=/t",
                                       "--chat-template-content-format=openai",
                                       "--default-chat-template-kwargs.thinking=false",
                                       "--tool-call-parser=kimi_k2",
                                       "--reasoning-parser=kimi_k2",
                                       "--enable-auto-tool-choice",
                                       "--enable-force-include-usage",
                                       "--enable-request-id-headers",
                                       "--enable-tokenizer-info-endpoint",
                                       "--ssl-certfile=/cert",
                                       "--ssl-keyfile=/key",
                                       "--ssl-ca-certs=/ca",
                                       "--ssl-cert-reqs=2",
                                       "--ssl-ciphers=HIGH",
                                       "--log-format=json",
                                       "--enable-log-requests",
                                       "--dtype=float",
                                       "--max-model-len=4k",
                                       "--seed=18446744073",
                                       "--online-quantization=fp8",
                                       "--load-format=dummy",
                                       "--generation-config=vllm",
                                       "--override-generation-config={\"temperature\":0.5}",
                                       "--max-logprobs=-1",
                                       "--kv-cache-dtype=fp8",
                                       "--quantization-param-path=/scales.json",
                                       "--calculate-kv-scales",
                                       "--kv-cache-memory-bytes=1G",
                                       "--no-enable-prefix-caching",
                                       "--max-num-batched-tokens=1K",
                                       "--max-num-seqs=33",
                                       "--scheduling-policy=priority",
                                       "--stream-interval=4",
                                       "--shutdown-timeout=30",
                                       "--disable-log-stats",
                                       "--root-path=/r",
                                       "--device=cuda",
                                       "--gpu-memory-utilization=0.8",
                                       "--enforce-eager",
                                       "--deterministic",
                                       "--cpu-threads=2",
                                       "--engine-in-process",
                                       "--max-queued-requests=5",
                                       "--tokenizer=/tok"});
  EXPECT_EQ(options.model, "/m");
  EXPECT_EQ(options.host, "::1");
  EXPECT_EQ(options.port, 0);
  EXPECT_EQ(options.served_model_names, Args({"a"}));
  EXPECT_EQ(options.api_keys, Args({"k1"}));
  EXPECT_EQ(options.api_key_file, "/keys");
  EXPECT_EQ(options.allowed_origins, Json({"o"}));
  EXPECT_EQ(options.allowed_methods, Json({"GET"}));
  EXPECT_EQ(options.allowed_headers, Json({"h"}));
  EXPECT_TRUE(options.allow_credentials);
  EXPECT_EQ(options.chat_template, "/t");
  EXPECT_EQ(options.chat_template_content_format, "openai");
  EXPECT_EQ(options.default_chat_template_kwargs, Json::parse(R"({"thinking":false})"));
  EXPECT_EQ(options.tool_call_parser, "kimi_k2");
  EXPECT_EQ(options.reasoning_parser, "kimi_k2");
  EXPECT_TRUE(options.enable_auto_tool_choice);
  EXPECT_TRUE(options.enable_force_include_usage);
  EXPECT_TRUE(options.enable_request_id_headers);
  EXPECT_TRUE(options.enable_tokenizer_info_endpoint);
  EXPECT_EQ(options.tls.certfile, "/cert");
  EXPECT_EQ(options.tls.keyfile, "/key");
  EXPECT_EQ(options.tls.ca_certs, "/ca");
  EXPECT_EQ(options.tls.client, ClientCertificate::kRequired);
  EXPECT_EQ(options.tls.ciphers, "HIGH");
  EXPECT_EQ(options.log_format, LogFormat::kJson);
  EXPECT_TRUE(options.enable_log_requests);
  EXPECT_EQ(options.dtype, "float32");
  EXPECT_EQ(options.max_model_len, 4000);
  EXPECT_EQ(options.seed, 18446744073u);
  EXPECT_EQ(options.online_quantization, "fp8");
  EXPECT_EQ(options.load_format, "dummy");
  EXPECT_EQ(options.generation_config, "vllm");
  EXPECT_EQ(options.override_generation_config, Json::parse(R"({"temperature":0.5})"));
  EXPECT_EQ(options.max_logprobs, -1);
  EXPECT_EQ(options.kv_cache_dtype, "fp8");
  EXPECT_EQ(options.quantization_param_path, "/scales.json");
  EXPECT_TRUE(options.calculate_kv_scales);
  EXPECT_EQ(options.kv_cache_memory_bytes, int64_t{1} << 30);
  EXPECT_FALSE(options.enable_prefix_caching);
  EXPECT_EQ(options.max_num_batched_tokens, 1024);
  EXPECT_EQ(options.max_num_seqs, 33);
  EXPECT_EQ(options.scheduling_policy, "priority");
  EXPECT_EQ(options.stream_interval, 4);
  EXPECT_EQ(options.shutdown_timeout, 30);
  EXPECT_TRUE(options.disable_log_stats);
  EXPECT_EQ(options.root_path, "/r");
  EXPECT_EQ(options.device, "cuda");
  EXPECT_EQ(options.gpu_memory_utilization, 0.8);
  EXPECT_TRUE(options.enforce_eager);
  EXPECT_TRUE(options.deterministic);
  EXPECT_EQ(options.cpu_threads, 2);
  EXPECT_TRUE(options.engine_in_process);
  EXPECT_EQ(options.max_queued_requests, 5);
  EXPECT_EQ(options.tokenizer, "/tok");
  EXPECT_TRUE(options.notices.empty());
}

TEST(ServeOptionsTest, ATargetForStepsIsTheDevicesUnlessItIsGiven) {
  EXPECT_LT(Accept({"/m"}).target_step_ms, 0);
  EXPECT_EQ(Accept({"/m", "--target-step-ms", "40.5"}).target_step_ms, 40.5);
  EXPECT_EQ(Accept({"/m", "--target-step-ms=0"}).target_step_ms, 0);
  EXPECT_EQ(End({"/m", "--target-step-ms=-1"}).exit_code, 2);
  EXPECT_TRUE(
      HasLine(Accept({"--deterministic", "--target-step-ms=40"}).notices, "--target-step-ms"));
  EXPECT_TRUE(Accept({"--deterministic", "--target-step-ms=0"}).notices.empty());
}

TEST(ServeOptionsTest, TheModelStandsInFrontOrBehindItsFlag) {
  EXPECT_EQ(Accept({"/m", "--port", "1"}).served_model_names, Args({"/m"}));
  EXPECT_EQ(Accept({"--port", "1", "/m"}).model, "/m");
  const ServeOptions named = Accept({"--model", "/m"});
  EXPECT_EQ(named.model, "/m");
  EXPECT_TRUE(HasLine(named.notices, "--model"));
  EXPECT_EQ(Accept({"/m", "--model", "/m"}).model, "/m");
  EXPECT_EQ(End({"/m", "--model", "/n"}).exit_code, 2);
  const Ending two = End({"/m", "/n"});
  EXPECT_EQ(two.exit_code, 2);
  EXPECT_NE(two.err.find("unrecognized arguments: /n"), std::string::npos);
}

TEST(ServeOptionsTest, UsageErrorsPrintTheUsageAndEndWithTwo) {
  const Ending ending = End({"--nope"});
  EXPECT_EQ(ending.exit_code, 2);
  EXPECT_EQ(ending.out, "");
  EXPECT_TRUE(ending.err.starts_with("usage: baltoro serve [MODEL] [options]\n"));
  EXPECT_NE(ending.err.find("baltoro serve: error: unrecognized arguments: --nope"),
            std::string::npos);
}

TEST(ServeOptionsTest, WhatIsNotThereStopsTheStartWithASentenceForEach) {
  const Ending ending = End({"/m", "-pcp", "8", "--kv-transfer-config", R"({"kv_role":"both"})"});
  EXPECT_EQ(ending.exit_code, 1);
  EXPECT_EQ(ending.err,
            "baltoro serve: --prefill-context-parallel-size 8 is not available yet in this "
            "version: prefill-context parallelism; leave it out, or give 1\n"
            "baltoro serve: --kv-transfer-config is not available yet in this version: prefill and "
            "decode on different servers; leave it out: every server computes prompts and "
            "answers\n");
}

TEST(ServeOptionsTest, SpeculationIsReadAndAWrongKeyStopsTheStart) {
  const ServeOptions options = Accept(
      {"/m", "-sc", R"({"method":"ngram","num_speculative_tokens":3,"prompt_lookup_max":4})"});
  EXPECT_EQ(options.speculation.method, DraftMethod::kNgram);
  EXPECT_EQ(options.speculation.drafts, 3);
  EXPECT_EQ(options.speculation.lookup_max, 4);
  const ServeOptions eagle = Accept({"/m", "--speculative-config", R"({"method":"eagle3"})"});
  EXPECT_EQ(eagle.speculation.method, DraftMethod::kEagle3);
  EXPECT_EQ(eagle.speculation.drafts, 3);
  const Ending wrong = End({"/m", "--speculative-config", R"({"method":"ngram","k":4})"});
  EXPECT_EQ(wrong.exit_code, 2);
  EXPECT_NE(wrong.err.find("--speculative-config: k: no such key"), std::string::npos);
}

TEST(ServeOptionsTest, ValuesThatAskForNothingPass) {
  const ServeOptions options = Accept(
      {"-tp=1", "-pp", "1", "-dp", "1", "-dcp", "1", "--nnodes", "1", "--enable-chunked-prefill",
       "--no-enable-eplb", "--kv-offloading-size", "0", "--speculative-config", "{}",
       "--limit-mm-per-prompt", "{\"image\": 0}", "--response-role", "assistant"});
  EXPECT_TRUE(options.notices.empty());
}

TEST(ServeOptionsTest, AFlagThatWorksForSomeValuesStopsAtTheOthers) {
  for (const Args& args :
       {Args{"--dtype", "float16"}, Args{"--kv-cache-dtype", "fp8_e5m2"},
        Args{"--load-format", "gguf"}, Args{"--no-enable-chunked-prefill"}, Args{"-q", "awq"}}) {
    const Ending ending = End(args);
    EXPECT_EQ(ending.exit_code, 1) << args.back();
    EXPECT_NE(ending.err.find("is not available yet in this version"), std::string::npos);
  }
}

TEST(ServeOptionsTest, PythonPluginsAreRefusedClearly) {
  const Ending ending = End({"--middleware", "my.Class"});
  EXPECT_EQ(ending.exit_code, 1);
  EXPECT_NE(ending.err.find("--middleware my.Class cannot be served"), std::string::npos);
}

TEST(ServeOptionsTest, WhatHasNoEffectOrWasRemovedSaysSoInOneLine) {
  const ServeOptions options =
      Accept({"--gpu-memory-utilization", "0.95", "--trust-remote-code", "--enforce-eager",
              "--no-async-scheduling", "--swap-space", "32", "--disable-log-requests",
              "--skip-non-local-expert-weights", "--api-server-count", "4",
              "--distributed-executor-backend", "mp", "--load-format", "compressed-tensors",
              "--block-size", "16"});
  const Args expected = {"--trust-remote-code has no effect here",
                         "--swap-space 32 is ignored",
                         "--disable-log-requests is ignored",
                         "--skip-non-local-expert-weights is taken as --enable-ep-weight-filter",
                         "--enable-ep-weight-filter has no effect here",
                         "--api-server-count 4 has no effect here",
                         "--distributed-executor-backend mp has no effect here",
                         "--load-format compressed-tensors is taken as auto",
                         "--block-size 16 is taken as 64"};
  for (const std::string& line : expected) EXPECT_TRUE(HasLine(options.notices, line)) << line;
  EXPECT_EQ(options.notices.size(), expected.size());
  const Args on_cpu = {"--gpu-memory-utilization 0.95 has no effect here",
                       "--no-async-scheduling has no effect here",
                       "--enforce-eager has no effect here"};
  const Args said = JudgeRun(options.open_flags, {.gpu = false}).notices;
  for (const std::string& line : on_cpu) EXPECT_TRUE(HasLine(said, line)) << line;
  EXPECT_EQ(said.size(), on_cpu.size());
  EXPECT_TRUE(JudgeRun(options.open_flags, {.gpu = true}).notices.empty());
  EXPECT_EQ(options.load_format, "auto");
  EXPECT_EQ(options.block_size, 64);
}

TEST(ServeOptionsTest, SecretsStayOutOfTheNotices) {
  const ServeOptions options =
      Accept({"--hf-token", "hf_abc", "--api-key", "k1", "--api-key", "k2"});
  EXPECT_EQ(options.notices.size(), 2u);
  EXPECT_FALSE(HasLine(options.notices, "hf_abc"));
  EXPECT_FALSE(HasLine(options.notices, "k2"));
}

TEST(ServeOptionsTest, AStandInTakesTheTimeOfItsSteps) {
  const ServeOptions options = Accept({"--load-format=stand-in", "--stand-in-step-ms=2.5"});
  EXPECT_EQ(options.load_format, "stand-in");
  EXPECT_EQ(options.stand_in_step_ms, 2.5);
}

TEST(ServeOptionsTest, FlagsThatNeedOthersAreChecked) {
  EXPECT_EQ(End({"--enable-auto-tool-choice"}).err,
            "Error: --enable-auto-tool-choice requires --tool-call-parser\n");
  EXPECT_EQ(End({"--enable-log-outputs"}).err,
            "Error: --enable-log-outputs requires --enable-log-requests\n");
  for (const Args& args :
       {Args{"--enable-auto-tool-choice"}, Args{"--enable-log-outputs"},
        Args{"--max-num-batched-tokens", "8", "--max-num-seqs", "9"},
        Args{"--max-num-batched-tokens", "3000000000"}, Args{"--max-num-seqs", "3000000000"},
        Args{"--max-num-seqs", "1048577"}, Args{"-dp", "4", "-dpn", "1", "-dpr", "1"},
        Args{"-dp", "2", "-dpl", "3"}, Args{"-dp", "4", "-dpn", "1", "-dpl", "2"},
        Args{"-tp", "8", "-dcp", "3"}, Args{"-tp", "8", "-dcp", "8", "--deterministic"},
        Args{"--enable-eplb", "-ep"}, Args{"-tp", "8", "--nnodes", "3", "--master-addr", "a"},
        Args{"--enable-eplb", "-tp", "8"}, Args{"--headless", "--api-server-count", "2"},
        Args{"--stand-in-step-ms", "5"}, Args{"--stand-in-step-ms", "5", "--load-format=dummy"}}) {
    EXPECT_EQ(End(args).exit_code, 2) << args.front();
    // A plan is not made of what would not be served.
    Args plan = args;
    plan.insert(plan.begin(), "Kimi-K2.5");
    const Outcome<PlanCommand> planned = ParsePlan(plan, {});
    ASSERT_TRUE(std::holds_alternative<Ending>(planned)) << args.front();
    EXPECT_EQ(std::get<Ending>(planned).exit_code, 2);
  }
}

TEST(ServeOptionsTest, StepSizesFollowOneAnother) {
  for (const auto& [args, seqs, tokens] :
       {std::tuple<Args, int, int>{{}, 256, 2048},
        {{"--max-num-seqs", "3000"}, 3000, 3000},
        {{"--max-num-batched-tokens", "64"}, 64, 64},
        {{"--max-num-seqs", "4", "--max-num-batched-tokens", "8k"}, 4, 8000}}) {
    const ServeOptions options = Accept(args);
    const StepSizes sizes = ChooseStepSizes(options.max_num_seqs, options.max_num_batched_tokens);
    EXPECT_EQ(sizes.max_num_seqs, seqs);
    EXPECT_EQ(sizes.max_num_batched_tokens, tokens);
  }
}

// Line by line of the table: a value that asks for something, and one that is none.
TEST(ServeOptionsTest, APlanRefusesWhatServeRefusesAndTakesWhatItTakes) {
  const FlagTable table = ServeFlags();
  int taken = 0, refused = 0;
  for (const FlagGroup& group : table.groups()) {
    for (const FlagSpec& spec : group.flags) {
      const std::string name = "--" + std::string(spec.name);
      const std::string choice(
          SplitText(spec.choices, '|').empty() ? "3" : SplitText(spec.choices, '|').back());
      for (const Args& args :
           {Args{name}, Args{name, "3"}, Args{name, choice}, Args{name, "nonsense"},
            Args{name, R"({"a":1})"}, Args{name + "=-7"}, Args{"-tp", "2", "-ep", name, "1"}}) {
        const Outcome<ServeOptions> served = ParseServe(args, {});
        const Outcome<PlanCommand> planned = ParsePlan(args, {});
        const Ending* refusal = std::get_if<Ending>(&served);
        ASSERT_EQ(refusal == nullptr, std::holds_alternative<PlanCommand>(planned)) << name;
        if (refusal == nullptr) {
          ++taken;
          EXPECT_EQ(std::get<PlanCommand>(planned).serve.notices,
                    std::get<ServeOptions>(served).notices);
          continue;
        }
        ++refused;
        std::string said = std::get<Ending>(planned).err;
        for (size_t at = 0; (at = said.find("baltoro plan")) != std::string::npos;) {
          said.replace(at, 12, "baltoro serve");
        }
        EXPECT_EQ(said, refusal->err);
        EXPECT_EQ(std::get<Ending>(planned).exit_code, refusal->exit_code);
      }
    }
  }
  EXPECT_GT(taken, 100);
  EXPECT_GT(refused, 100);
}

TEST(ServeOptionsTest, APlanHasFlagsOfItsOwn) {
  const auto plan = [](const Args& args) { return ParsePlan(args, {}); };
  const auto command = std::get<PlanCommand>(
      plan({"m", "--gpu", "h100-80g", "--lengths", "1", "2", "--json", "-tp", "8"}));
  EXPECT_EQ(command.serve.model, "m");
  EXPECT_EQ(command.serve.tensor_parallel_size, 8);
  EXPECT_EQ(command.gpu, "h100-80g");
  EXPECT_EQ(command.lengths, (std::vector<int64_t>{1, 2}));
  EXPECT_TRUE(command.json);
  EXPECT_EQ(std::get<Ending>(plan({"--gpu", "h100-80g", "--device", "cpu"})).exit_code, 2);
  const auto refused = std::get<Ending>(plan({"--json", "--enable-elastic-ep", "-tp", "2"}));
  EXPECT_EQ(refused.exit_code, 1);
  const Json told = ParseJson(refused.out).value();
  EXPECT_EQ(told["verdict"], "refused");
  EXPECT_TRUE(
      told["reason"].get<std::string>().starts_with("--enable-elastic-ep is not available"));
}

TEST(ServeOptionsTest, WhateverIsWrongWithAPlanIsToldInTheFormThatWasAskedFor) {
  const test::TempDir dir;
  std::ofstream(dir.path() + "/bad.yaml") << "no-such-flag: 1\n";
  const std::pair<Args, const char*> wrong[] = {
      {{"--max-model-length", "8"}, "unrecognized arguments: --max-model-length (did you mean"},
      {{"--max-num-seqs", "many"}, "argument --max-num-seqs: "},
      {{"--max-num-seqs"}, "argument --max-num-seqs: expected one argument"},
      {{"--max-num-seqs", "0"}, "argument --max-num-seqs: "},
      {{"--gpu", "h100-80g", "--device", "cpu"}, "--gpu names a GPU, and --device cpu wants none"},
      {{"--config", dir.path() + "/bad.yaml"}, ""}};
  for (const auto& [args, sentence] : wrong) {
    const Ending text = std::get<Ending>(ParsePlan(args, {}));
    EXPECT_EQ(text.out, "");
    for (const bool before : {true, false}) {
      Args asks = args;
      asks.insert(before ? asks.begin() : asks.end(), "--json");
      const Ending ending = std::get<Ending>(ParsePlan(asks, {}));
      EXPECT_EQ(ending.exit_code, text.exit_code);
      EXPECT_EQ(ending.err, text.err);
      const Result<Json> told = ParseJson(ending.out);
      ASSERT_TRUE(told.ok()) << ending.out << ending.err;
      EXPECT_EQ(told.value()["verdict"], "refused");
      const auto reason = told.value()["reason"].get<std::string>();
      EXPECT_TRUE(reason.starts_with(sentence)) << reason;
      EXPECT_NE(reason, "");
      EXPECT_EQ(reason.find("usage: "), std::string::npos) << reason;
    }
  }
}

std::string WriteFile(const test::TempDir& dir, const std::string& name, const std::string& text) {
  const std::string path = dir.path() + "/" + name;
  std::ofstream(path) << text;
  return path;
}

TEST(ServeOptionsTest, TheCommandLineGoesBeforeTheFileAndTheFileBeforeDefaults) {
  const test::TempDir dir;
  const std::string path = WriteFile(dir, "a.yaml",
                                     "model: /file\nport: 81\nmax_num_seqs: 8\n"
                                     "enforce-eager: true\nserved-model-name: [x, y]\n"
                                     "default-chat-template-kwargs: {thinking: true, k: 1}\n");
  const ServeOptions options = Accept(
      {"--port", "82", "--config", path, "--default-chat-template-kwargs.thinking", "false"});
  EXPECT_EQ(options.model, "/file");
  EXPECT_EQ(options.port, 82);
  EXPECT_EQ(options.max_num_seqs, 8);
  EXPECT_EQ(options.served_model_names, Args({"x", "y"}));
  EXPECT_EQ(options.default_chat_template_kwargs, Json::parse(R"({"thinking":false,"k":1})"));
  EXPECT_TRUE(options.notices.empty());  // precedence is no duplicate
  EXPECT_TRUE(options.enforce_eager);
  EXPECT_EQ(Accept({"/line", "--config=" + path}).model, "/line");
  EXPECT_EQ(Accept({"--model", "/line", "--config=" + path}).model, "/line");
}

TEST(ServeOptionsTest, TlsWantsACertificateAndAuthoritiesForWhomItAsks) {
  for (const char* flag : {"--ssl-keyfile=/k", "--ssl-ca-certs=/a", "--ssl-ciphers=HIGH"}) {
    const std::string name(flag, std::string(flag).find('='));
    EXPECT_NE(End({flag}).err.find(name + " needs --ssl-certfile"), std::string::npos);
  }
  EXPECT_NE(End({"--ssl-certfile=/c", "--ssl-cert-reqs=1"}).err.find("needs --ssl-ca-certs"),
            std::string::npos);
  EXPECT_NE(End({"--ssl-certfile=/c", "--ssl-cert-reqs=3"}).err.find("--ssl-cert-reqs"),
            std::string::npos);
  EXPECT_TRUE(Accept({"--ssl-certfile=/c", "--enable-ssl-refresh"}).ssl_refresh);
  EXPECT_NE(End({"--enable-ssl-refresh"}).err.find("--enable-ssl-refresh needs --ssl-certfile"),
            std::string::npos);
  EXPECT_EQ(Accept({"--ssl-cert-reqs=0"}).tls.certfile, "");
  const ServeOptions idle = Accept({"--ssl-certfile=/c", "--ssl-ca-certs=/a"});
  ASSERT_EQ(idle.notices.size(), 1u);
  EXPECT_NE(idle.notices[0].find("--ssl-ca-certs has no effect here"), std::string::npos);
}

TEST(ServeOptionsTest, AWrongFileIsAUsageErrorThatNamesIt) {
  const test::TempDir dir;
  const std::string good = WriteFile(dir, "good.yaml", "port: 1\n");
  const std::string unknown = WriteFile(dir, "unknown.yaml", "prot: 1\n");
  const std::string many = WriteFile(dir, "many.yaml", "port: [1, 2]\n");
  const std::string nested = WriteFile(dir, "nested.yaml", "config: " + good + "\n");
  for (const std::string& path : {unknown, many, nested}) {
    const Ending ending = End({"--config", path});
    EXPECT_EQ(ending.exit_code, 2);
    EXPECT_NE(ending.err.find(path + ": "), std::string::npos) << ending.err;
  }
  EXPECT_NE(End({"--config", good, "--config", good}).err.find("More than one config file"),
            std::string::npos);
  EXPECT_EQ(End({"--config", "/x.json"}).exit_code, 2);
}

TEST(ServeOptionsTest, TheEnvironmentFillsWhatTheLineLeavesOpen) {
  const Environment environment = {{"VLLM_API_KEY", "env"},
                                   {"VLLM_CPU_KVCACHE_SPACE", "2"},
                                   {"VLLM_LOGGING_LEVEL", "debug"},
                                   {"VLLM_LOG_STATS_INTERVAL", "2.5"},
                                   {"VLLM_ALLOW_LONG_MAX_MODEL_LEN", "1"},
                                   {"VLLM_SERVER_DEV_MODE", "1"},
                                   {"HOME", "/root"}};
  const ServeOptions options = Accept({}, environment);
  EXPECT_EQ(options.api_keys, Args({"env"}));
  EXPECT_EQ(options.kv_cache_memory_bytes, int64_t{2} << 30);
  EXPECT_EQ(options.log_level, LogLevel::kDebug);
  EXPECT_EQ(options.log_stats_interval_s, 2.5);
  EXPECT_TRUE(options.dev_mode);
  EXPECT_TRUE(options.allow_long_max_model_len);
  EXPECT_TRUE(options.notices.empty());
  const ServeOptions line =
      Accept({"--api-key", "a", "b", "--kv-cache-memory-bytes", "5"}, environment);
  EXPECT_EQ(line.api_keys, Args({"a", "b"}));
  EXPECT_EQ(line.kv_cache_memory_bytes, 5);
}

TEST(ServeOptionsTest, AWrongVariableIsAUsageErrorThatNamesIt) {
  for (const auto& [name, value] :
       {std::pair("VLLM_CPU_KVCACHE_SPACE", "4GB"), std::pair("VLLM_CPU_KVCACHE_SPACE", "-1"),
        std::pair("VLLM_CPU_KVCACHE_SPACE", "1e300"), std::pair("VLLM_LOGGING_LEVEL", "LOUD"),
        std::pair("VLLM_LOG_STATS_INTERVAL", "0"), std::pair("BALTORO_NO_OVERLAP", "yes")}) {
    const Ending ending = End({}, {{name, value}});
    EXPECT_EQ(ending.exit_code, 2);
    EXPECT_NE(ending.err.find(name), std::string::npos);
  }
}

TEST(ServeOptionsTest, ALauncherForAscendDealsOutGpus) {
  const Environment dealt = {{"ASCEND_RT_VISIBLE_DEVICES", "4,5"}};
  EXPECT_EQ(VisibleDevices(dealt), "4,5");
  EXPECT_EQ(Accept({}, dealt).notices,
            Args({"environment: ASCEND_RT_VISIBLE_DEVICES=4,5 is taken as CUDA_VISIBLE_DEVICES"}));
  EXPECT_EQ(VisibleDevices({{"ASCEND_RT_VISIBLE_DEVICES", ""}}), "");
  const Environment both = {{"ASCEND_RT_VISIBLE_DEVICES", "4"}, {"CUDA_VISIBLE_DEVICES", "0"}};
  EXPECT_EQ(VisibleDevices(both), std::nullopt);
  EXPECT_TRUE(HasLine(Accept({}, both).notices, "no effect beside CUDA_VISIBLE_DEVICES=0"));
  for (const char* wrong : {"0,", ",0", "0,0", "zero", "0 1", "-1", "99999"}) {
    const Environment odd = {{"ASCEND_RT_VISIBLE_DEVICES", wrong}};
    EXPECT_EQ(VisibleDevices(odd), std::nullopt);
    EXPECT_NE(End({}, odd).err.find("ASCEND_RT_VISIBLE_DEVICES"), std::string::npos) << wrong;
  }
}

TEST(ServeOptionsTest, TheFirstVariableThatNamesAnInterfaceCounts) {
  const Environment environment = {{"NCCL_SOCKET_IFNAME", "eth"}, {"GLOO_SOCKET_IFNAME", "ib0"}};
  const ServeOptions alone = Accept({}, environment);
  EXPECT_TRUE(alone.own_address.variable.empty());
  EXPECT_EQ(alone.notices,
            Args({"environment: GLOO_SOCKET_IFNAME, NCCL_SOCKET_IFNAME: no effect: there is no "
                  "other node"}));
  const Args two = {"-tp", "2", "--nnodes", "2", "--master-addr", "10.0.0.1"};
  const ServeOptions many = Accept(two, environment);
  EXPECT_EQ(many.own_address.variable, "GLOO_SOCKET_IFNAME");
  EXPECT_EQ(many.own_address.value, "ib0");
  EXPECT_TRUE(HasLine(many.notices, "NCCL_SOCKET_IFNAME: no effect: GLOO_SOCKET_IFNAME says"));
  const ServeOptions address = Accept(two, {{"HCCL_IF_IP", "10.0.0.7"}});
  EXPECT_EQ(address.own_address.variable, "HCCL_IF_IP");
  EXPECT_TRUE(address.own_address.kind == NodeAddress::Kind::kAddress);
}

TEST(ServeOptionsTest, BalanceIsAskedForInThreeWays) {
  const Args group = {"-dp", "4", "-ep"};
  const auto with = [&](const Args& more) {
    Args args = group;
    args.insert(args.end(), more.begin(), more.end());
    return args;
  };
  const Environment on = {{"VLLM_ASCEND_BALANCE_SCHEDULING", "1"}};
  const std::string nested = R"({"scheduler_config":{"enable_balance_scheduling":true}})";
  EXPECT_FALSE(Accept(group).balance_scheduling.has_value());
  EXPECT_EQ(Accept(with({"--balance-scheduling"})).balance_scheduling, true);
  EXPECT_EQ(Accept(group, on).balance_scheduling, true);
  EXPECT_EQ(Accept(group, {{"VLLM_ASCEND_BALANCE_SCHEDULING", "0"}}).balance_scheduling, false);
  EXPECT_EQ(Accept(with({"--no-balance-scheduling"}), on).balance_scheduling, false);
  EXPECT_EQ(Accept(with({"--additional-config", nested})).balance_scheduling, true);
  EXPECT_EQ(Accept(with({"--additional-config", R"({"enable_balance_scheduling":false})"}), on)
                .balance_scheduling,
            false);
  EXPECT_TRUE(Accept(group, on).notices.empty());
  EXPECT_TRUE(Accept(with({"--additional-config", nested})).notices.empty());

  const char* none = "scheduler_config.enable_balance_scheduling has no effect here";
  EXPECT_TRUE(HasLine(Accept({"--additional-config", nested}).notices, none));
  EXPECT_TRUE(HasLine(
      Accept(with({"--additional-config", R"({"a":1,"scheduler_config":{"b":2}})"})).notices,
      "--additional-config a, scheduler_config.b has no effect here"));
  EXPECT_TRUE(HasLine(Accept({"-dp", "4"}, on).notices,
                      "VLLM_ASCEND_BALANCE_SCHEDULING: no effect: there are no replicas that"));
  EXPECT_NE(End(with({"--additional-config", R"({"enable_balance_scheduling":1})"}))
                .err.find("enable_balance_scheduling: expected true or false"),
            std::string::npos);
}

TEST(ServeOptionsTest, OtherVariablesAreNamedOnceForEachKind) {
  const ServeOptions options = Accept({}, {{"HCCL_BUFFSIZE", "800"},
                                           {"VLLM_ASCEND_ENABLE_MLAPO", "1"},
                                           {"TASK_QUEUE_ENABLE", "1"},
                                           {"VLLM_RPC_TIMEOUT", "1"},
                                           {"VLLM_SOMETHING_NEW", "1"},
                                           {"OMP_NUM_THREADS", "1"}});
  EXPECT_EQ(
      options.notices,
      Args({"environment: VLLM_RPC_TIMEOUT: no effect: nothing waits by it, as in vLLM's present "
            "engine",
            "environment: HCCL_BUFFSIZE, TASK_QUEUE_ENABLE, VLLM_ASCEND_ENABLE_MLAPO: settings "
            "of other devices, not used here",
            "environment: VLLM_SOMETHING_NEW: not known, no effect"}));
}

TEST(ServeOptionsTest, AnOlderFlagOfExpertsIsNamedWhereItIsWrong) {
  EXPECT_NE(
      End({"--eplb-step-interval", "1", "-tp", "2", "-ep", "--enable-eplb"})
          .err.find(
              "give 64 at most (--eplb-step-interval is taken as --eplb-config.step_interval)"),
      std::string::npos);
  const ServeOptions options =
      Accept({"--num_redundant_experts", "4", "-tp", "2", "-ep", "--enable-eplb"});
  EXPECT_EQ(options.balance.redundant_experts, 4);
  EXPECT_TRUE(HasLine(options.notices, "it is taken as --eplb-config.num_redundant_experts"));
}

// In vLLM they lay out replicas where no flag does.
TEST(ServeOptionsTest, VariablesOfReplicasNameTheirFlags) {
  const ServeOptions options = Accept({}, {{"VLLM_DP_SIZE", "2"},
                                           {"VLLM_DP_RANK", "1"},
                                           {"VLLM_DP_MASTER_IP", "10.0.0.1"},
                                           {"VLLM_DP_MASTER_PORT", "29500"},
                                           {"VLLM_ALL2ALL_BACKEND", "deepep_low_latency"}});
  EXPECT_EQ(options.replicas.total, 1);
  for (const char* line :
       {"VLLM_DP_SIZE: no effect: the number of replicas is --data-parallel-size",
        "VLLM_DP_RANK: no effect: the replica of a server is --data-parallel-rank",
        "VLLM_DP_MASTER_IP: no effect: nodes of replicas meet at --data-parallel-address",
        "VLLM_DP_MASTER_PORT: no effect: nodes of replicas meet at --data-parallel-rpc-port",
        "VLLM_ALL2ALL_BACKEND: no effect: rows reach the experts"}) {
    EXPECT_TRUE(HasLine(options.notices, line)) << line;
  }
}

TEST(ServeOptionsTest, WithoutPicturesAndVideosNoEncoderIsLoaded) {
  EXPECT_TRUE(Accept({"--limit-mm-per-prompt", R"({"image":0,"video":0})"}).language_model_only);
  EXPECT_FALSE(Accept({"--limit-mm-per-prompt", R"({"image":0})"}).language_model_only);
  EXPECT_FALSE(Accept({}).language_model_only);
}

TEST(ServeOptionsTest, WhatRequestsMayNameIsClosedUntilItIsOpened) {
  const MediaOptions closed = Accept({}).media;
  EXPECT_TRUE(closed.hosts.empty() && closed.folder.empty());
  EXPECT_FALSE(closed.any_public_host || closed.private_hosts);
  EXPECT_TRUE(closed.redirects);
  EXPECT_EQ(closed.fetch_seconds_max, 5);
  const MediaOptions open =
      Accept({"--allowed-media-domains", "a.example", "*", "--allowed-local-media-path", "/m"},
             {{"VLLM_MEDIA_EGRESS_BLOCK_PRIVATE", "0"},
              {"VLLM_MEDIA_URL_ALLOW_REDIRECTS", "0"},
              {"VLLM_IMAGE_FETCH_TIMEOUT", "2.5"}})
          .media;
  EXPECT_EQ(open.hosts, std::vector<std::string>{"a.example"});
  EXPECT_EQ(open.folder, "/m");
  EXPECT_TRUE(open.any_public_host && open.private_hosts);
  EXPECT_FALSE(open.redirects);
  EXPECT_EQ(open.fetch_seconds_max, 2.5);
  for (const auto& [name, value] :
       std::map<std::string, std::string>{{"VLLM_MEDIA_EGRESS_BLOCK_PRIVATE", "no"},
                                          {"VLLM_MEDIA_URL_ALLOW_REDIRECTS", "2"},
                                          {"VLLM_IMAGE_FETCH_TIMEOUT", "0"}}) {
    EXPECT_NE(End({}, {{name, value}}).err.find(name), std::string::npos);
  }
}

}  // namespace
}  // namespace baltoro
