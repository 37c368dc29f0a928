#include "engine/node_agreement.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <utility>

#include "base/file.h"
#include "comm/cluster_key.h"
#include "engine/layout_choice.h"
#include "parallel/nodes.h"
#include "weights/safetensors.h"

namespace baltoro {
namespace {

constexpr size_t kConfigBytesMax = 16 << 20, kVocabularyBytesMax = 64 << 20;

FingerprintEntry Entry(std::string name, const std::string& value) {
  return {.name = std::move(name), .value = value.substr(0, kFingerprintTextMax)};
}
FingerprintEntry Entry(std::string name, int64_t value) {
  return Entry(std::move(name), std::to_string(value));
}
FingerprintEntry Entry(std::string name, bool value) {
  return Entry(std::move(name), std::string(value ? "true" : "false"));
}

// The sizes of recorded steps: all ranks pad a step alike.
std::string Text(const std::vector<int32_t>& sizes) {
  return sizes.empty() ? std::string("the engine's own") : fmt::format("{}", fmt::join(sizes, " "));
}

// As far as ranks that do not sample have to do with it.
std::string Text(const SpeculationConfig& speculation) {
  const char* fixed = speculation.adaptive ? "" : ", adaptive false";
  switch (speculation.method) {
    case DraftMethod::kNone:
      break;
    case DraftMethod::kNgram:
      return fmt::format("ngram, {} tokens{}", speculation.drafts, fixed);
    case DraftMethod::kEagle3:
      return fmt::format("eagle3, {} tokens{}, draft_tensor_parallel_size {}", speculation.drafts,
                         fixed, speculation.draft_ranks);
  }
  return "none";
}

std::string Text(const BalanceConfig& balance) {
  if (!balance.enabled) return "not given";
  return fmt::format("{} redundant, window {}, interval {}, lines {}{}", balance.redundant_experts,
                     balance.window, balance.interval, balance.log_interval,
                     balance.gradual ? "" : ", at once");
}

std::string HashOf(const std::string& text) {
  const Digest digest = Sign(BytesOf("model"), {{BytesOf(text)}});
  std::string out;
  for (size_t i = 0; i < 16; ++i) out += fmt::format("{:02x}", static_cast<unsigned>(digest[i]));
  return out;
}

// What is compared of the files that a configuration names.
Status AddFiles(const EngineConfig& config, std::vector<FingerprintEntry>& fingerprint) {
  if (config.load_format == "stand-in") return {};  // there are none
  BT_ASSIGN_OR_RETURN(const std::string model, HashModel(config.model_dir));
  fingerprint.push_back(Entry("model (config.json, sizes of the weight files)", model));
  // How pixels become numbers.
  std::string rules = "none";
  if (const std::string file = config.model_dir + "/preprocessor_config.json"; FileExists(file)) {
    BT_ASSIGN_OR_RETURN(const std::string text, ReadFile(file, kConfigBytesMax));
    rules = HashOf(text);
  }
  fingerprint.push_back(Entry("preprocessor_config.json", rules));
  // What tokens mean: answers that keep to a form are checked where they are computed.
  std::string vocabulary;
  for (const char* const name : {"tiktoken.model", "tokenizer_config.json"}) {
    const std::string file = TokenizerDir(config) + "/" + name;
    if (!FileExists(file)) continue;
    BT_ASSIGN_OR_RETURN(const std::string text, ReadFile(file, kVocabularyBytesMax));
    vocabulary += HashOf(text);
  }
  fingerprint.push_back(Entry("tokenizer (tiktoken.model, tokenizer_config.json)",
                              vocabulary.empty() ? "none" : HashOf(vocabulary)));
  if (config.speculation.method == DraftMethod::kEagle3) {  // whose layers to tap all ranks follow
    BT_ASSIGN_OR_RETURN(const std::string draft, HashModel(config.speculation.model));
    fingerprint.push_back(Entry("draft model (config.json, sizes of the weight files)", draft));
  }
  if (!config.kv_scale_file.empty()) {
    BT_ASSIGN_OR_RETURN(const std::string scales, ReadFile(config.kv_scale_file, kConfigBytesMax,
                                                           "--quantization-param-path"));
    fingerprint.push_back(Entry("--quantization-param-path", HashOf(scales)));
  }
  return {};
}

std::string Own(const KvBudget& budget) {
  return fmt::format("{} tokens a request, {} blocks of KV cache", budget.max_model_len,
                     budget.num_blocks);
}

// Of a file whose header alone is here, since another node reads it: its name.
std::string WithoutHeaderSuffix(const std::string& name) {
  const std::string_view suffix = kHeaderSuffix;
  return name.ends_with(suffix) ? name.substr(0, name.size() - suffix.size()) : name;
}

}  // namespace

Result<std::string> HashModel(const std::string& model_dir) {
  BT_ASSIGN_OR_RETURN(std::string text, ReadFile(model_dir + "/config.json", kConfigBytesMax));
  std::map<std::string, uintmax_t> sizes;  // in the order of their names
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(model_dir, error)) {
    const std::string name = entry.path().filename().string();
    const std::string whole = WithoutHeaderSuffix(name);
    if (!whole.ends_with(".safetensors")) continue;
    if (whole == name) {
      sizes[name] = std::filesystem::file_size(entry.path(), error);
    } else if (!FileExists(model_dir + "/" + whole)) {
      BT_ASSIGN_OR_RETURN(sizes[whole], SizeByHeader(model_dir + "/" + whole));
    }
    if (error) break;
  }
  if (error) return Status(Code::kNotFound, model_dir + ": " + error.message());
  for (const auto& [name, size] : sizes) text += fmt::format("\n{} {}", name, size);
  return HashOf(text);
}

std::vector<FingerprintEntry> FingerprintOf(const EngineConfig& config,
                                            const std::string& operations) {
  return {
      Entry("version", std::string(BALTORO_VERSION)),
      Entry("operations", operations),
      Entry("--tensor-parallel-size", int64_t{config.tensor_parallel_size}),
      Entry("--pipeline-parallel-size", int64_t{config.pipeline_parallel_size}),
      Entry("--decode-context-parallel-size", int64_t{config.decode_context_parallel_size}),
      Entry("--data-parallel-size", int64_t{config.data_parallel_size}),
      Entry("--enable-expert-parallel", config.enable_expert_parallel),
      Entry("--expert-placement-strategy", config.expert_placement),
      Entry("--enable-eplb, --eplb-config", Text(config.balance)),
      Entry("--expert-dispatch-dtype", std::string(config.fp8_dispatch ? "fp8" : "auto")),
      Entry("--load-format", config.load_format),
      Entry("--quantization", config.quantization),
      Entry("--online-quantization", config.online_quantization),
      Entry("--dtype", config.dtype),
      Entry("--kv-cache-dtype",
            config.kv_cache_dtype == "fp8_e4m3" ? "fp8" : config.kv_cache_dtype),
      Entry("--calculate-kv-scales", config.calculate_kv_scales),
      Entry("--max-num-seqs", int64_t{config.max_num_seqs}),
      Entry("--max-num-batched-tokens", int64_t{config.max_num_batched_tokens}),
      Entry("--enforce-eager", config.enforce_eager),
      Entry("--deterministic", config.deterministic),
      Entry("--language-model-only", config.language_model_only),
      Entry("--mm-encoder-tp-mode", config.mm_encoder_tp_mode),
      Entry("--mm-processor-cache-gb", std::to_string(config.picture_cache_bytes) + " bytes"),
      Entry("--speculative-config", Text(config.speculation)),
      Entry("sizes of recorded steps (--compilation-config)", Text(config.graph_sizes)),
      Entry("--seed", std::to_string(config.seed)),
  };
}

Result<std::unique_ptr<NodeWorld>> JoinNodes(const EngineConfig& config,
                                             const std::string& operations) {
  NodeOptions options{.node = config.node_rank,
                      .nodes = config.nodes,
                      .master_host = config.master_addr,
                      .master_port = config.master_port,
                      .own_host = config.host_ip,
                      .cluster_key = config.cluster_key,
                      .fingerprint = FingerprintOf(config, operations),
                      .patience = config.join_timeout};
  for (int32_t node = 0; config.data_parallel_size > 1 && node < config.nodes; ++node) {
    const std::vector<int32_t> replicas = ReplicasOfNode(LayoutOf(config), config.nodes, node);
    options.holds.push_back(
        replicas.size() == 1 ? fmt::format("replica {}", replicas.front())
                             : fmt::format("replicas {} to {}", replicas.front(), replicas.back()));
  }
  if (config.meets_as_replicas) {
    options.host_flag = "--data-parallel-address";
    options.port_flag = "--data-parallel-rpc-port";
  }
  BT_RETURN_IF_ERROR(AddFiles(config, options.fingerprint));
  return NodeWorld::Join(options);
}

Result<std::vector<FingerprintEntry>> FingerprintOfReplica(const EngineConfig& config) {
  std::vector<FingerprintEntry> out = FingerprintOf(config, config.device);
  out.push_back(Entry("--max-model-len", config.max_model_len));
  out.push_back(Entry("--enable-prefix-caching", config.enable_prefix_caching));
  BT_RETURN_IF_ERROR(AddFiles(config, out));
  return out;
}

Result<KvBudget> AgreeOnCache(NodeWorld& world, const KvBudget& own, const KvQuestion& question) {
  BT_ASSIGN_OR_RETURN(const std::vector<std::string> offers,
                      world.Gather(std::to_string(own.bytes)));
  KvQuestion together = question;
  together.bytes_asked = own.bytes;
  for (const std::string& offer : offers) {
    together.bytes_asked = std::min<int64_t>(together.bytes_asked, std::atoll(offer.c_str()));
  }
  BT_ASSIGN_OR_RETURN(const KvBudget agreed, PlanKvCache(together));
  BT_ASSIGN_OR_RETURN(const std::vector<std::string> results, world.Gather(Own(agreed)));
  for (size_t node = 1; node < results.size(); ++node) {
    if (results[node] == results[0]) continue;
    return InvalidArgument(fmt::format("--max-model-len: node 0 comes to {}, node {} to {}",
                                       results[0], node, results[node]));
  }
  return agreed;
}

}  // namespace baltoro
