#pragma once

// `baltoro serve`: what its command line, file and environment come to.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/log_format.h"
#include "engine/balance_config.h"
#include "engine/speculation.h"
#include "flags/availability.h"
#include "flags/ending.h"
#include "flags/graph_options.h"
#include "flags/media_options.h"
#include "flags/node_options.h"
#include "flags/parse.h"
#include "flags/profiler_options.h"
#include "flags/replica_options.h"
#include "flags/trace_options.h"
#include "net/tls.h"

namespace baltoro {

struct ServeOptions {
  // The model. An empty path means the pocket model.
  std::string model;
  std::vector<std::string> served_model_names;  // never empty once `model` is known; see ParseServe
  std::string tokenizer;                        // directory; empty: the model's
  bool skip_tokenizer_init = false;             // no vocabulary, token ids only
  std::string dtype = "auto";                   // auto, bfloat16 or float32
  std::string quantization;                     // empty: what the checkpoint says
  std::string online_quantization = "none";     // none or fp8
  std::string load_format = "auto";             // auto, safetensors, dummy or stand-in
  bool alike_layers = false;                    // of dummy weights
  std::string modelled_exchange;
  std::string tuned_config;         // a file of `baltoro tune`; empty: none
  std::string tuned_config_folder;  // where one may be: VLLM_TUNED_CONFIG_FOLDER
  double stand_in_step_ms = 0;
  int64_t max_model_len = 0;              // tokens; 0: the model's, -1: the most that fits
  bool allow_long_max_model_len = false;  // above what the model was made for
  uint64_t seed = 0;
  std::string generation_config = "auto";  // auto, vllm, or a directory
  Json override_generation_config = Json::object();
  int max_logprobs = 20;  // -1: no limit

  // The door.
  std::string host;  // empty: all interfaces
  int port = 8000;   // 0: a free one
  std::string uds;   // path; not empty: instead of host and port
  std::string root_path;
  TlsOptions tls;                     // without a certfile: none
  bool ssl_refresh = false;           // reads its files again when they change
  std::optional<bool> page;           // not given: on a loopback address
  std::vector<std::string> api_keys;  // of the command line, else of VLLM_API_KEY
  std::string api_key_file;           // path; its keys are accepted too
  Json allowed_origins;               // null: not given
  Json allowed_methods = Json::array({"*"});
  Json allowed_headers = Json::array({"*"});
  bool allow_credentials = false;
  bool enable_request_id_headers = false;
  bool enable_tokenizer_info_endpoint = false;
  bool dev_mode = false;  // VLLM_SERVER_DEV_MODE=1
  bool enable_force_include_usage = false;
  bool enable_log_requests = false;
  bool share_prefix_cache = false;       // among API keys
  double engine_restart_timeout = 1200;  // seconds; 0: never
  bool disable_log_stats = false;
  double log_stats_interval_s = 10;
  LogLevel log_level = LogLevel::kInfo;
  LogFormat log_format = LogFormat::kText;
  int stream_interval = 1;   // tokens in a streamed piece
  int shutdown_timeout = 0;  // seconds of drain; 0: end running requests at once

  TraceOptions traces;
  ProfilerOptions profiler;
  MediaOptions media;

  // The chat format.
  std::string chat_template;  // a file, or the template itself (model_text.cc); empty: the model's
  std::string chat_template_content_format = "auto";
  Json default_chat_template_kwargs = Json::object();
  std::string tool_call_parser;
  std::string reasoning_parser;
  bool enable_auto_tool_choice = false;
  bool normalise_tool_call_ids = true;

  // The engine.
  std::string device = "auto";  // auto, cpu or cuda
  double gpu_memory_utilization = 0.9;
  bool enforce_eager = false;
  bool deterministic = false;
  bool language_model_only = false;
  double picture_cache_gib = 1;
  std::string mm_encoder_tp_mode;  // weights or data; empty: not given
  double target_step_ms = -1;      // below 0: by the device; 0: none
  int cpu_threads = 0;             // 0: one for each core
  bool engine_in_process = false;
  SpeculationConfig speculation;
  GraphOptions graphs;           // on a GPU
  bool async_scheduling = true;  // on a GPU
  int tensor_parallel_size = 1, pipeline_parallel_size = 1, decode_context_parallel_size = 1;
  ReplicaOptions replicas;
  NodeOptions nodes;
  bool headless = false;         // of every node but the head
  std::string cluster_key_file;  // of the command line or the environment
  std::string cluster_key;       // of the environment
  NodeAddress own_address;  // of this node, for the others; empty: from which the head is reached
  double head_timeout = 7;  // seconds
  bool enable_expert_parallel = false;
  std::string expert_placement_strategy = "linear";  // or round_robin
  std::string expert_dispatch_dtype = "auto";        // or fp8
  BalanceConfig balance;                             // --enable-eplb
  std::string kv_cache_dtype = "auto";               // auto, bfloat16, fp8, fp8_e4m3, fp8_ds_mla
  std::string quantization_param_path;               // empty: scales of the checkpoint
  bool calculate_kv_scales = false;
  int64_t kv_cache_memory_bytes =
      0;                // of each rank; 0: the smaller of 4 GiB and a quarter of free memory
  int block_size = 64;  // tokens; always 64
  bool enable_prefix_caching = true;
  bool enable_chunked_prefill = true;
  int64_t max_num_batched_tokens = 0;  // 0: 2048, at least max_num_seqs
  int max_num_seqs = 0;                // 0: 256, at most max_num_batched_tokens
  std::string scheduling_policy = "fcfs";
  std::optional<bool> balance_scheduling;  // empty: neither given nor in the environment
  int64_t max_queued_requests = 1024;

  // One line each, for the log at start.
  std::vector<std::string> notices;
  std::vector<std::string> given_flags;  // as they were given, without what is secret
  Json environment = Json::object();     // variables of vLLM's that are set, without secrets
  Json given_values = Json::object();    // the same by name: {"max_num_seqs": 8}
  std::vector<OpenFlag> open_flags;      // what is said of them depends on how the engine runs
};

// `args` are what follows "serve". Usage errors end with code 2; a flag whose feature is not there,
// with 1 and a line for each such flag. served_model_names is left empty when neither
// --served-model-name nor a model was given.
Outcome<ServeOptions> ParseServe(std::span<const std::string> args, const Environment& environment);
// The same from a command line that was parsed with `table`, in which are the flags of `serve`.
Outcome<ServeOptions> ReadServe(const FlagTable& table,
                                const ParsedFlags& flags,
                                const Environment& environment);

}  // namespace baltoro
