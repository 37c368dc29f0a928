// Every flag of `serve`, as the engine runs on a CPU and on a GPU, alone and among others: what is
// said of it is what it does. Either it changes what would be started, or a line says that it has
// no effect there, or it is refused.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <set>

#include "engine/engine_wire.h"
#include "engine_settings.h"
#include "flags/serve_flags.h"
#include "flags/value.h"
#include "host_plan.h"
#include "support/support.h"

namespace baltoro {
namespace {

using Args = std::vector<std::string>;

// What the door takes of the options.
std::string DoorOf(const ServeOptions& o) {
  const Json door = {o.host,
                     o.port,
                     o.uds,
                     o.root_path,
                     o.tls.certfile,
                     o.tls.keyfile,
                     o.tls.ca_certs,
                     o.tls.ciphers,
                     static_cast<int>(o.tls.client),
                     o.page ? *o.page ? "on" : "off" : "",
                     o.served_model_names,
                     o.model,
                     o.tokenizer,
                     o.skip_tokenizer_init,
                     o.seed,
                     o.generation_config,
                     o.override_generation_config,
                     o.max_logprobs,
                     o.api_keys,
                     o.api_key_file,
                     o.allowed_origins,
                     o.allowed_methods,
                     o.allowed_headers,
                     o.allow_credentials,
                     o.enable_request_id_headers,
                     o.enable_tokenizer_info_endpoint,
                     o.log_format == LogFormat::kJson,
                     o.enable_force_include_usage,
                     o.enable_log_requests,
                     o.disable_log_stats,
                     o.share_prefix_cache,
                     o.engine_in_process ? 0 : o.engine_restart_timeout,
                     o.stream_interval,
                     o.shutdown_timeout,
                     o.chat_template,
                     o.chat_template_content_format,
                     o.default_chat_template_kwargs,
                     o.tool_call_parser == "none",
                     o.reasoning_parser == "none",
                     o.normalise_tool_call_ids,
                     o.media.pictures_max,
                     o.media.folder,
                     o.media.hosts,
                     o.media.any_public_host,
                     o.engine_in_process,
                     o.headless,
                     o.replicas.total,
                     o.replicas.first,
                     o.replicas.here};
  return door.dump();
}

struct Attempt {
  std::string refusal = {};  // empty: it would be started
  std::string started = {};  // what, to the byte
  std::string notices = {};
};

Attempt Try(const Args& args, bool gpu) {
  const Outcome<ServeOptions> outcome = ParseServe(args, {});
  if (const Ending* ending = std::get_if<Ending>(&outcome)) return {.refusal = ending->err};
  const auto& options = std::get<ServeOptions>(outcome);
  Result<EngineConfig> config = MakeEngineConfig(options, "");
  if (!config.ok()) return {.refusal = config.status().message()};
  Result<std::string> key = FindClusterKey(options, config.value());
  if (!key.ok()) return {.refusal = key.status().message()};
  config.value().cluster_key = std::move(key).value();
  const Result<ModelDescription> model = DescribeModel("DeepSeek-V2-Lite");
  std::optional<DeviceSpec> device;
  if (gpu) device = FindDevice("h200-141g").value();
  const Result<HostPlan> plan =
      PlanRun(options, {.described = model.value()}, device, config.value());
  if (!plan.ok()) return {.refusal = plan.status().message()};
  WireWriter engine;
  Encode(engine, config.value());
  Attempt out{.started = std::move(engine).Take() + DoorOf(options)};
  // How much memory is free changes all the time.
  if (gpu) out.started += fmt::format(" {}", plan.value().memory->kv_tokens);
  for (const std::string& line : options.notices) out.notices += line + "\n";
  for (const std::string& line : plan.value().notices) out.notices += line + "\n";
  return out;
}

// A value that asks for something else than the default.
class Values {
 public:
  Values() {
    std::ofstream(dir_.path() + "/key") << std::string(64, 'k');
    std::filesystem::permissions(dir_.path() + "/key", std::filesystem::perms::owner_read);
    Json scales = Json::object();
    for (int layer = 0; layer < 27; ++layer) scales[std::to_string(layer)] = 0.5;
    Json ranks = Json::object();
    for (int rank = 0; rank < 2; ++rank) ranks[std::to_string(rank)] = scales;
    std::ofstream(dir_.path() + "/scales.json")
        << Json{{"kv_cache", {{"dtype", "float8_e4m3fn"}, {"scaling_factor", ranks}}}}.dump();
    given_["cluster-key-file"] = {dir_.path() + "/key"};
    given_["quantization-param-path"] = {dir_.path() + "/scales.json"};
  }

  Args Of(const FlagSpec& spec) const {
    const std::string name = "--" + std::string(spec.name);
    if (const auto given = given_.find(spec.name); given != given_.end()) {
      Args out = {name};
      out.insert(out.end(), given->second.begin(), given->second.end());
      return out;
    }
    switch (spec.kind) {
      case ValueKind::kBool:
        return {spec.initial == "true" ? "--no-" + std::string(spec.name) : name};
      case ValueKind::kSwitch:
        return {name};
      case ValueKind::kInt:
      case ValueKind::kCount:
      case ValueKind::kCountOrAuto:
        return {name, spec.initial == "0" || spec.min < 1 ? "1" : spec.initial == "2" ? "3" : "2"};
      case ValueKind::kFloat:
        return {name, spec.initial == "0" ? "1" : spec.max <= 1 ? "0.5" : "3"};
      case ValueKind::kInts:
        return {name, "1", "2"};
      case ValueKind::kString:
        for (const std::string_view choice : SplitText(spec.choices, '|')) {
          if (choice != spec.initial && !IsOneOf(spec.available, choice))
            return {name, std::string(choice)};
        }
        return {name, "/somewhere"};
      case ValueKind::kStrings:
      case ValueKind::kEach:
        return {name, "a"};
      case ValueKind::kJsonObject:
        return {name, R"({"a":1})"};
      case ValueKind::kJsonStrings:
        return {name, R"(["a"])"};
    }
    return {};
  }

 private:
  test::TempDir dir_;
  std::map<std::string, Args, std::less<>> given_ = {
      {"additional-config", {R"({"scheduler_config":{"enable_balance_scheduling":true}})"}},
      {"block-size", {"16"}},
      {"chat-template-content-format", {"string"}},
      {"compilation-config", {R"({"cudagraph_mode":"NONE"})"}},
      {"data-parallel-size-local", {"2"}},
      {"dtype", {"bfloat16"}},
      {"kv-cache-dtype", {"fp8_ds_mla"}},
      {"kv-cache-memory-bytes", {"3G"}},
      {"limit-mm-per-prompt", {R"({"image":2})"}},
      {"load-format", {"dummy"}},
      {"master-addr", {"127.0.0.3"}},
      {"master-port", {"7000"}},
      {"max-model-len", {"100"}},
      {"max-num-batched-tokens", {"512"}},
      {"nnodes", {"2", "--master-addr", "127.0.0.1"}},
      {"online-quantization", {"fp8"}},
      {"port", {"1"}},
      {"quantization", {"none"}},
      {"reasoning-parser", {"none"}},
      {"speculative-config", {R"({"method":"ngram","num_speculative_tokens":4})"}},
      {"tool-call-parser", {"none"}},
  };
};

struct Scene {
  const char* name;
  Args args;
};
const Scene kScenes[] = {
    {"one rank", {}},
    {"one rank, size of cache given", {"--kv-cache-memory-bytes", "2G"}},
    {"one rank, fp8 cache", {"--kv-cache-dtype", "fp8"}},
    {"engine in the door", {"--engine-in-process"}},
    {"two tensor ranks", {"-tp", "2"}},
    {"two tensor ranks, whole experts", {"-tp", "2", "-ep"}},
    {"two stages", {"-pp", "2"}},
    {"two stages, whole experts", {"-tp", "2", "-pp", "2", "-ep"}},
    {"replicas that share experts", {"-dp", "4", "-ep"}},
    {"head of two nodes", {"-pp", "2", "--nnodes", "2", "--master-addr", "127.0.0.1"}},
    {"second of two nodes",
     {"-pp", "2", "--nnodes", "2", "--node-rank", "1", "--master-addr", "127.0.0.1", "--headless"}},
};

// Of a flag that neither acts nor is refused.
bool SaysNoEffect(const std::string& notices, const FlagSpec& spec) {
  for (const std::string& name :
       {"--" + std::string(spec.name), "--no-" + std::string(spec.name)}) {
    for (size_t at = 0; (at = notices.find(name, at)) != std::string::npos; ++at) {
      const std::string line = notices.substr(at, notices.find('\n', at) - at);
      for (const char* words : {" has no effect here: ", " is ignored, ", " is taken as "}) {
        if (line.find(words) != std::string::npos) return true;
      }
    }
  }
  return false;
}

// Flags that make the scene, and what is read before flags are.
std::set<std::string_view> FlagsOf(const FlagTable& table, const Args& scene) {
  std::set<std::string_view> names = {"config"};
  for (const std::string& arg : scene) {
    if (arg.starts_with("-")) names.insert(table.Find(arg).value().spec->name);
  }
  return names;
}

// What is so anyway, however it is asked for.
bool IsSoAnyway(const FlagSpec& spec) {
  return spec.name == "enable-auto-tool-choice";
}

TEST(FlagEffectsTest, WhatIsSaidOfAFlagIsWhatItDoes) {
  const Values values;
  const FlagTable table = ServeFlags();
  int acts = 0, idle = 0, refused = 0;
  for (const bool gpu : {false, true}) {
    for (const Scene& scene : kScenes) {
      Args base = {"m", "--device", gpu ? "cuda" : "cpu"};
      base.insert(base.end(), scene.args.begin(), scene.args.end());
      const Attempt without = Try(base, gpu);
      ASSERT_EQ(without.refusal, "") << scene.name;
      const std::set<std::string_view> of_scene = FlagsOf(table, base);
      for (const FlagGroup& group : table.groups()) {
        for (const FlagSpec& spec : group.flags) {
          if (of_scene.contains(spec.name) || IsSoAnyway(spec)) continue;
          SCOPED_TRACE(fmt::format("--{} on a {}, {}", spec.name, gpu ? "GPU" : "CPU", scene.name));
          Args args = base;
          const Args given = values.Of(spec);
          args.insert(args.end(), given.begin(), given.end());
          const Attempt with = Try(args, gpu);
          if (!with.refusal.empty()) {
            ++refused;
            EXPECT_NE(with.refusal.find(spec.name), std::string::npos) << with.refusal;
            continue;
          }
          const bool changes = with.started != without.started;
          EXPECT_NE(changes, SaysNoEffect(with.notices, spec)) << with.notices;
          ++(changes ? acts : idle);
        }
      }
    }
  }
  EXPECT_GT(acts, 500);
  EXPECT_GT(idle, 500);
  EXPECT_GT(refused, 500);
}

TEST(FlagEffectsTest, WeightsBesideAGpuAreRefusedAndBesideNoneOfNoEffect) {
  const Args flag = {"m", "--device", "cpu", "--cpu-offload-gb", "4"};
  EXPECT_NE(Try(flag, false).notices.find("on a CPU all weights are in host memory"),
            std::string::npos);
  const Attempt on_gpu = Try({"m", "--cpu-offload-gb", "4"}, true);
  EXPECT_NE(on_gpu.refusal.find("--cpu-offload-gb 4 is not available yet"), std::string::npos);
  EXPECT_EQ(Try({"m", "--cpu-offload-gb", "0"}, true).refusal, "");
}

TEST(FlagEffectsTest, WhatTheRunDoesNotReadHasNoEffect) {
  const Args follower = {"m",
                         "--device",
                         "cpu",
                         "-pp",
                         "2",
                         "--nnodes",
                         "2",
                         "--node-rank",
                         "1",
                         "--master-addr",
                         "127.0.0.1",
                         "--headless",
                         "--target-step-ms",
                         "40"};
  EXPECT_NE(Try(follower, false).notices.find("--target-step-ms 40 has no effect here: what"),
            std::string::npos);
  const Args in_door = {"m", "--device", "cpu", "--engine-in-process", "--engine-restart-timeout",
                        "5"};
  EXPECT_NE(Try(in_door, false).notices.find("--engine-restart-timeout 5 has no effect here: the "),
            std::string::npos);
  for (const char* flag : {"--target-step-ms", "--engine-restart-timeout"}) {
    EXPECT_EQ(Try({"m", "--device", "cpu", flag, "5"}, false).notices, "") << flag;
  }
}

// A remark without a condition is printed everywhere, so it must not be about one device or layout.
TEST(FlagEffectsTest, RemarksWithoutAConditionNameNone) {
  const FlagTable table = ServeFlags();
  for (const FlagGroup& group : table.groups()) {
    for (const FlagSpec& spec : group.flags) {
      EXPECT_EQ(spec.idle == nullptr, spec.idle_reason.empty()) << spec.name;
      if (spec.idle != nullptr) continue;
      for (const char* words : {"a CPU", "one rank", "GPU kernels"}) {
        EXPECT_EQ(spec.reason.find(words), std::string_view::npos) << spec.name;
      }
    }
  }
}

}  // namespace
}  // namespace baltoro
