#include "flags/parse.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <limits>

#include "flags/config_file.h"
#include "flags/serve_flags.h"
#include "flags/value.h"

namespace baltoro {
namespace {

using Args = std::vector<std::string>;

ParsedFlags Parse(const Args& args) {
  Result<ParsedFlags> parsed = ParseFlags(ServeFlags(), args);
  EXPECT_TRUE(parsed.ok()) << parsed.status().message();
  return parsed.ok() ? parsed.value() : ParsedFlags();
}

Json Value(const Args& args, const std::string& name) {
  const ParsedFlags parsed = Parse(args);
  const auto found = parsed.uses.find(name);
  return found == parsed.uses.end() ? Json("absent") : found->second.value;
}

std::string Error(const Args& args) {
  const Result<ParsedFlags> parsed = ParseFlags(ServeFlags(), args);
  return parsed.ok() ? "accepted" : parsed.status().message();
}

TEST(ParseFlagsTest, ValueFollowsAfterASpaceOrAnEqualsSign) {
  EXPECT_EQ(Value({"--port", "81"}, "port"), Json(81));
  EXPECT_EQ(Value({"--port=81"}, "port"), Json(81));
  EXPECT_EQ(Value({"--chat-template=a=b"}, "chat-template"), Json("a=b"));
  EXPECT_EQ(Value({"--root-path="}, "root-path"), Json(""));
}

TEST(ParseFlagsTest, UnderscoresAreDashesUpToTheFirstDot) {
  EXPECT_EQ(Value({"--max_num_seqs", "7"}, "max-num-seqs"), Json(7));
  EXPECT_EQ(Value({"--max_num-seqs=7"}, "max-num-seqs"), Json(7));
  EXPECT_EQ(Value({"--compilation_config.cudagraph_mode", "FULL"}, "compilation-config"),
            Json::parse(R"({"cudagraph_mode":"FULL"})"));
  EXPECT_EQ(Value({"--served-model-name", "kimi_k2"}, "served-model-name"), Json({"kimi_k2"}));
}

TEST(ParseFlagsTest, AUniqueBeginningIsEnough) {
  EXPECT_EQ(Value({"--gpu-mem", "0.5"}, "gpu-memory-utilization"), Json(0.5));
  EXPECT_EQ(Value({"--no-async", "m"}, "async-scheduling"), Json(false));
  EXPECT_EQ(Value({"--quant", "fp8"}, "quantization"),
            Json("fp8"));  // not our --quantization-param-path
  EXPECT_EQ(Value({"-dc", "8"}, "decode-context-parallel-size"), Json(8));
}

TEST(ParseFlagsTest, AnExactNameGoesBeforeLongerOnes) {
  EXPECT_EQ(Value({"--api-key", "k"}, "api-key"), Json({"k"}));
  EXPECT_EQ(Value({"--data-parallel-size", "2"}, "data-parallel-size"), Json(2));
}

TEST(ParseFlagsTest, AnAmbiguousBeginningNamesItsMeanings) {
  const std::string error = Error({"--max-num", "4"});
  EXPECT_NE(error.find("ambiguous option: --max-num could match"), std::string::npos) << error;
  EXPECT_NE(error.find("--max-num-seqs"), std::string::npos) << error;
  EXPECT_NE(error.find("--max-num-batched-tokens"), std::string::npos) << error;
}

TEST(ParseFlagsTest, FlagsThatUpstreamLacksDoNotSpoilItsBeginnings) {
  // --enable-reasoning was removed; --device and --cpu-threads are ours.
  EXPECT_EQ(Value({"--cpu", "1"}, "cpu-offload-gb"), Json(1.0));
  EXPECT_EQ(Value({"--cpu-th", "3"}, "cpu-threads"), Json(3));
  EXPECT_EQ(Value({"--swap", "3"}, "swap-space"), Json(3.0));
}

TEST(ParseFlagsTest, AnUnknownFlagGetsTheNearestName) {
  EXPECT_EQ(Error({"--max-model-length", "4"}),
            "unrecognized arguments: --max-model-length (did you mean --max-model-len?)");
  EXPECT_EQ(Error({"--tensor-paralel-size=4"}),
            "unrecognized arguments: --tensor-paralel-size (did you mean --tensor-parallel-size?)");
  EXPECT_EQ(Error({"--qqqqqqqqqqqqqqqqqqqqqq"}),
            "unrecognized arguments: --qqqqqqqqqqqqqqqqqqqqqq");
}

TEST(ParseFlagsTest, BooleansOfTheConfigurationsComeInPairs) {
  EXPECT_EQ(Value({"--enable-prefix-caching"}, "enable-prefix-caching"), Json(true));
  EXPECT_EQ(Value({"--no-enable-prefix-caching"}, "enable-prefix-caching"), Json(false));
  EXPECT_EQ(Value({"--no_enable_prefix_caching"}, "enable-prefix-caching"), Json(false));
  EXPECT_NE(Error({"--no-headless"}), "accepted");           // plain store-true
  EXPECT_NE(Error({"--no-disable-log-stats"}), "accepted");  // likewise
  EXPECT_EQ(Error({"--enable-prefix-caching=true"}),
            "argument --enable-prefix-caching: ignored explicit argument 'true'");
}

TEST(ParseFlagsTest, SingleDashWordsAreAliases) {
  const std::pair<const char*, const char*> aliases[] = {{"-tp", "tensor-parallel-size"},
                                                         {"-pp", "pipeline-parallel-size"},
                                                         {"-dcp", "decode-context-parallel-size"},
                                                         {"-pcp", "prefill-context-parallel-size"},
                                                         {"-dp", "data-parallel-size"},
                                                         {"-dpn", "data-parallel-rank"},
                                                         {"-dpr", "data-parallel-start-rank"},
                                                         {"-dpl", "data-parallel-size-local"},
                                                         {"-dpp", "data-parallel-rpc-port"},
                                                         {"-n", "nnodes"},
                                                         {"-r", "node-rank"},
                                                         {"-asc", "api-server-count"}};
  for (const auto& [alias, name] : aliases) {
    EXPECT_EQ(Value({alias, "2"}, name), Json(2)) << alias;
    EXPECT_EQ(Value({std::string(alias) + "=2"}, name), Json(2)) << alias;
  }
  EXPECT_EQ(Value({"-dpa", "10.0.0.1"}, "data-parallel-address"), Json("10.0.0.1"));
  EXPECT_EQ(Value({"-dpb", "ray"}, "data-parallel-backend"), Json("ray"));
  EXPECT_EQ(Value({"-dph"}, "data-parallel-hybrid-lb"), Json(true));
  EXPECT_EQ(Value({"-dpe"}, "data-parallel-external-lb"), Json(true));
  EXPECT_EQ(Value({"-ep"}, "enable-expert-parallel"), Json(true));
  EXPECT_EQ(Value({"-q", "fp8"}, "quantization"), Json("fp8"));
  EXPECT_EQ(Value({"-n2"}, "nnodes"), Json(2));
  for (const char* json : {"-sc", "-cc", "-ac"}) {
    EXPECT_EQ(Parse({json, R"({"a":1})"}).uses.begin()->second.value, Json::parse(R"({"a":1})"));
  }
}

TEST(ParseFlagsTest, OptimizationLevelHasThreeForms) {
  EXPECT_EQ(Value({"-O3"}, "optimization-level"), Json(3));
  EXPECT_EQ(Value({"-O", "1"}, "optimization-level"), Json(1));
  EXPECT_EQ(Value({"-O=0"}, "optimization-level"), Json(0));
  EXPECT_NE(Error({"-O7"}), "accepted");
}

TEST(ParseFlagsTest, DottedPartsMergeIntoOneObject) {
  EXPECT_EQ(Value({"--compilation-config.mode", "3", "-cc.cudagraph_mode=FULL", "-cc.pass.a_b",
                   "true", "--compilation-config.sizes+", "1,2", "-cc.sizes+=3"},
                  "compilation-config"),
            Json::parse(R"({"mode":3,"cudagraph_mode":"FULL","pass":{"a_b":true},
                            "sizes":["1","2","3"]})"));
}

TEST(ParseFlagsTest, DottedPartsGoOverTheWholeValueAndDuplicatesAreNamed) {
  const ParsedFlags parsed =
      Parse({"-cc.mode", "1", "-cc", R"({"mode":3,"level":2})", "-sc.k", "1", "-sc.k", "2"});
  EXPECT_EQ(parsed.uses.at("compilation-config").value, Json::parse(R"({"mode":1,"level":2})"));
  EXPECT_EQ(parsed.uses.at("speculative-config").value, Json::parse(R"({"k":2})"));
  ASSERT_EQ(parsed.notices.size(), 1u);
  EXPECT_EQ(parsed.notices[0], "Found duplicate keys -sc.k, -cc.mode");
}

TEST(ParseFlagsTest, ADottedPartNeedsAJsonFlagAndNames) {
  EXPECT_NE(Error({"--max-num-seqs.x", "3"}).find("takes no JSON"), std::string::npos);
  EXPECT_NE(Error({"-cc.a..b", "3"}).find("between dots"), std::string::npos);
  EXPECT_NE(Error({"-cc.", "3"}).find("between dots"), std::string::npos);
  EXPECT_NE(Error({"-cc.a"}).find("expected one argument"), std::string::npos);
}

TEST(ParseFlagsTest, TheLastOfARepeatedFlagWinsWithANotice) {
  const ParsedFlags parsed = Parse({"--port", "1", "--port", "2", "--port", "3"});
  EXPECT_EQ(parsed.uses.at("port").value, Json(3));
  EXPECT_EQ(parsed.notices, Args({"Found duplicate keys --port"}));
}

TEST(ParseFlagsTest, ListsTakeWordsUpToTheNextFlag) {
  EXPECT_EQ(Value({"--served-model-name", "a", "b", "--port", "1"}, "served-model-name"),
            Json({"a", "b"}));
  EXPECT_EQ(Value({"--cudagraph-capture-sizes", "1", "2"}, "cudagraph-capture-sizes"),
            Json({1, 2}));
  EXPECT_EQ(Error({"--served-model-name", "--port", "1"}),
            "argument --served-model-name: expected at least one argument");
}

TEST(ParseFlagsTest, ANegativeNumberIsAValueAndAnOptionIsNot) {
  EXPECT_EQ(Value({"--max-logprobs", "-1"}, "max-logprobs"), Json(-1));
  EXPECT_EQ(Error({"--host", "--port", "1"}), "argument --host: expected one argument");
  EXPECT_EQ(Error({"--host"}), "argument --host: expected one argument");
  EXPECT_EQ(Value({"--chat-template", "- a b"}, "chat-template"), Json("- a b"));
}

TEST(ParseFlagsTest, WordsAfterADoubleDashArePositional) {
  EXPECT_EQ(Parse({"--port", "1", "--", "--model"}).positionals, Args({"--model"}));
}

TEST(ParseFlagsTest, CountsTakeSuffixes) {
  const std::pair<const char*, int64_t> counts[] = {
      {"131072", 131072},      {"1k", 1000},      {"1K", 1024},
      {"25.6k", 25600},        {"2m", 2'000'000}, {"2M", 2 << 20},
      {"1.5g", 1'500'000'000}, {"3G", 3LL << 30}, {"1T", 1LL << 40},
      {"0.0019k", 1}};
  for (const auto& [text, count] : counts) {
    EXPECT_EQ(Value({"--kv-cache-memory-bytes", text}, "kv-cache-memory-bytes"), Json(count))
        << text;
    if (count > std::numeric_limits<int32_t>::max()) continue;
    EXPECT_EQ(Value({"--max-num-batched-tokens", text}, "max-num-batched-tokens"), Json(count));
  }
  EXPECT_NE(
      Error({"--max-model-len", "1.5K"}).find("Decimals are not allowed with binary suffixes"),
      std::string::npos);
  for (const char* bad : {"", "k", "1.k", ".5k", "1kk", "0x10", "9999999999999999999", "99999999T",
                          "1e3", "-5", "0", "1 k"}) {
    EXPECT_NE(Error({"--max-model-len", bad}), "accepted") << bad;
  }
  EXPECT_NE(Error({"--max-num-seqs", "1k"}), "accepted");  // no suffix there, as upstream
}

TEST(ParseFlagsTest, MaxModelLenTakesAuto) {
  EXPECT_EQ(Value({"--max-model-len", "auto"}, "max-model-len"), Json(-1));
  EXPECT_EQ(Value({"--max-model-len", "-1"}, "max-model-len"), Json(-1));
  EXPECT_EQ(Value({"--max-model-len=-1"}, "max-model-len"), Json(-1));
}

TEST(ParseFlagsTest, ValuesAreCheckedAndTheMessageNamesTheFlag) {
  EXPECT_EQ(Error({"--port", "x"}), "argument --port: invalid int value: 'x'");
  EXPECT_EQ(Error({"-tp", "x"}), "argument -tp/--tensor-parallel-size: invalid int value: 'x'");
  EXPECT_EQ(Error({"--max-num-seqs", "4294967297"}),
            "argument --max-num-seqs: 4294967297 is more than 2147483647");
  EXPECT_EQ(Error({"--max-num-batched-tokens", "4G"}),
            "argument --max-num-batched-tokens: 4294967296 is not within 1 and 2147483647");
  EXPECT_EQ(Error({"-tp", "2147483647"}),
            "argument -tp/--tensor-parallel-size: 2147483647 is not within 1 and 1024");
  EXPECT_EQ(Error({"--seed", "4294967297"}), "accepted");
  EXPECT_EQ(Error({"--port", "70000"}), "argument --port: 70000 is not within 0 and 65535");
  EXPECT_EQ(Error({"--scheduling-policy", "lifo"}),
            "argument --scheduling-policy: invalid choice: 'lifo' (choose from fcfs, priority)");
  EXPECT_EQ(Error({"--scheduling-policy", "prior"}),
            "argument --scheduling-policy: invalid choice: 'prior' (did you mean priority? "
            "choose from fcfs, priority)");
  EXPECT_EQ(Error({"--scheduling-policy", "fcsf"}),
            "argument --scheduling-policy: invalid choice: 'fcsf' (did you mean fcfs? choose from "
            "fcfs, priority)");
  EXPECT_EQ(Value({"--load-format", "SafeTensors"}, "load-format"), Json("safetensors"));
  EXPECT_NE(Error({"--gpu-memory-utilization", "0"}), "accepted");
  EXPECT_NE(Error({"--gpu-memory-utilization", "1.1"}), "accepted");
  EXPECT_NE(Error({"--gpu-memory-utilization", "nan"}), "accepted");
  EXPECT_NE(Error({"--compilation-config", "{"}), "accepted");
  EXPECT_NE(Error({"--compilation-config", "[1]"}), "accepted");
  EXPECT_NE(Error({"--allowed-origins", R"({"a":1})"}), "accepted");
  EXPECT_NE(Error({"--allowed-origins", "[1]"}), "accepted");
  EXPECT_EQ(Value({"--allowed-origins", R"(["https://a"])"}, "allowed-origins"),
            Json({"https://a"}));
}

Args FromYaml(const std::string& text) {
  Result<ConfigArguments> parsed = ParseConfigText(ServeFlags(), text, "f.yaml");
  EXPECT_TRUE(parsed.ok()) << parsed.status().message();
  return parsed.ok() ? parsed.value().args : Args();
}

TEST(ConfigFileTest, EntriesBecomeArguments) {
  EXPECT_EQ(FromYaml("model: /m\nmax_num_seqs: 64\nenforce-eager: true\nquoted: 'true'\n"),
            Args({"--model=/m", "--max_num_seqs=64", "--enforce-eager", "--quoted=true"}));
  EXPECT_EQ(FromYaml("served-model-name: [a, b]\nallowed_origins: ['*']\n"),
            Args({"--served-model-name", "a", "b", "--allowed_origins=[\"*\"]"}));
  EXPECT_EQ(FromYaml("compilation-config:\n  mode: 3\n  name: x\n  on_: yes\n  list: [1, '2']\n"),
            Args({R"(--compilation-config={"mode":3,"name":"x","on_":true,"list":[1,"2"]})"}));
}

TEST(ConfigFileTest, FalseIsLeftOutWithANotice) {
  const Result<ConfigArguments> parsed =
      ParseConfigText(ServeFlags(), "enable-prefix-caching: false\n", "f.yaml");
  ASSERT_TRUE(parsed.ok());
  EXPECT_TRUE(parsed.value().args.empty());
  ASSERT_EQ(parsed.value().notices.size(), 1u);
  EXPECT_NE(parsed.value().notices[0].find("no-enable-prefix-caching: true"), std::string::npos);
}

TEST(ConfigFileTest, WhatIsNoMappingIsRefusedWithTheFilesName) {
  for (const char* bad :
       {"", "- a\n", "a: [", "a:\n", "? [1]\n: 2\n", "\"a=b\": 1\n", "lora-modules: [--port]\n"}) {
    const Result<ConfigArguments> parsed = ParseConfigText(ServeFlags(), bad, "f.yaml");
    ASSERT_FALSE(parsed.ok()) << bad;
    EXPECT_TRUE(parsed.status().message().starts_with("f.yaml: ")) << parsed.status().message();
  }
}

TEST(ConfigFileTest, NestedAliasesDoNotGrowWithoutBound) {
  std::string text = "a0: &a0 {x: 1}\n";
  for (int i = 1; i < 12; ++i) {
    text += fmt::format("a{0}: &a{0} {{p: *a{1} , q: *a{1} , r: *a{1} , s: *a{1} }}\n", i, i - 1);
  }
  const Result<ConfigArguments> parsed = ParseConfigText(ServeFlags(), text, "f.yaml");
  ASSERT_FALSE(parsed.ok());
  EXPECT_NE(parsed.status().message().find("too large"), std::string::npos);
}

TEST(ConfigFileTest, OnlyYamlFilesAreRead) {
  EXPECT_NE(ReadConfigFile(ServeFlags(), "a.json").status().message().find("yaml/yml"),
            std::string::npos);
  EXPECT_NE(ReadConfigFile(ServeFlags(), "/does/not/exist.yaml").status().message().find("exist"),
            std::string::npos);
}

TEST(ParseFlagsTest, OlderNamesArePartsOfTheFlagThatReplacedThem) {
  const ParsedFlags parsed =
      Parse({"--num-redundant-experts", "32", "--eplb_window_size=5", "--eplb-step-interval", "7",
             "--eplb-log-balancedness", "--eplb-config.use_async", "false"});
  EXPECT_EQ(parsed.uses.at("eplb-config").value,
            Json::parse(R"({"num_redundant_experts":32,"window_size":5,"step_interval":7,
                            "log_balancedness":true,"use_async":false})"));
  EXPECT_EQ(parsed.uses.size(), 1u);
  ASSERT_EQ(parsed.notices.size(), 4u);
  EXPECT_EQ(parsed.notices[1],
            "--eplb-window-size is of older versions of vLLM; it is taken as "
            "--eplb-config.window_size");
  EXPECT_NE(Error({"--num-redundant-experts", "many"}).find("--num-redundant-experts"),
            std::string::npos);
  // Both forms beside one another are told, as any key that is given twice.
  const ParsedFlags twice =
      Parse({"--eplb-config", R"({"window_size":9})", "--eplb-window-size", "5"});
  EXPECT_EQ(twice.uses.at("eplb-config").value, Json::parse(R"({"window_size":5})"));
  EXPECT_NE(fmt::format("{}", fmt::join(twice.notices, "\n")).find("duplicate keys"),
            std::string::npos);
}

}  // namespace
}  // namespace baltoro
