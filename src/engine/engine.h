#pragma once

// One replica at work, or several that share experts, inside one process: requests in through a
// bounded queue, token events out through a sink. The door reaches it through this interface, in
// its own process (tests, small uses) or over a socket (engine_process.h).

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/log.h"
#include "base/process_use.h"
#include "base/status.h"
#include "engine/balance_config.h"
#include "engine/engine_health.h"
#include "engine/fixed_steps.h"
#include "engine/speculation.h"
#include "request/request.h"

namespace baltoro {

struct EngineConfig {
  std::string model_dir;             // of config.json, and of the weights unless they are dummies
  std::string load_format = "auto";  // auto, safetensors, dummy; stand-in: no model at all, see
                                     // stand_in.h
  std::string quantization;  // what the weights must be: open_weights.h; empty: as the files say
  std::string online_quantization;  // of what is stored in bf16: "fp8"; empty or "none": nothing
  std::string tokenizer_dir;    // of the vocabulary that constraints are about; empty: model_dir
  std::string dtype = "auto";   // auto, bfloat16, float32
  std::string device = "auto";  // auto: a GPU if there is one to use; cpu, cuda
  bool enforce_eager = false;   // a GPU records no steps
  std::vector<int32_t> graph_sizes;  // sequences of the decode steps that it records; empty: those
                                     // of graph_sizes.h
  // Ranks of the replica.
  int32_t tensor_parallel_size = 1, pipeline_parallel_size = 1, decode_context_parallel_size = 1;
  // Replicas that share experts: one engine, which steps them together (expert_group.h). Replicas
  // that share nothing are an engine each.
  int32_t data_parallel_size = 1;
  bool enable_expert_parallel = false;      // ranks hold whole experts
  std::string expert_placement = "linear";  // or round_robin
  BalanceConfig balance = {};               // of whole experts over several ranks
  // The nodes of the replica, each with as many of the ranks; node 0 has the requests.
  int32_t nodes = 1, node_rank = 0;
  std::string master_addr;  // of node 0, where it listens and the others come
  int32_t master_port = 29501;
  bool meets_as_replicas = false;  // they are --data-parallel-address and --data-parallel-rpc-port
  std::string host_ip;             // of this node; empty: from which node 0 is reached
  std::string cluster_key;         // that nodes prove to each other
  double join_timeout = 300;       // seconds in which the nodes must meet; 0: no limit
  double rejoin_timeout = 8;       // likewise, of an engine that is started again
  int64_t max_model_len = 0;       // 0: the model's; -1: the largest that the cache holds
  bool allow_long_max_model_len = false;  // longer than the model was made for
  int32_t max_num_seqs = 256;
  int32_t max_num_batched_tokens = 2048;
  int64_t max_queued_requests = 1024;
  int64_t kv_cache_bytes =
      0;  // of a rank; 0: VLLM_CPU_KVCACHE_SPACE or the default rule, resolved by the engine
  std::string kv_cache_dtype = "auto";  // auto, bfloat16, fp8, fp8_e4m3, fp8_ds_mla
  std::string kv_scale_file;            // scales of an fp8 cache; empty: those of the checkpoint
  bool calculate_kv_scales = false;     // of an fp8 cache: from the model, by a trial
  bool enable_prefix_caching = true;
  bool priority_scheduling = false;
  bool async_scheduling = false;
  bool fp8_dispatch = false;        // of replicas that share experts on GPUs: layout.h
  bool balance_scheduling = false;  // of replicas that share experts: group_steps.h
  SpeculationConfig speculation = {};
  // How long a step with prompts may take while others wait for tokens; 0: as long as it takes;
  // below: 250 on a CPU, 60 on a GPU, and 0 for a stand-in.
  double target_step_ms = -1;
  bool language_model_only = false;                // the picture encoder is left out
  int64_t picture_cache_bytes = int64_t{1} << 30;  // of rows that an encoder has made
  // Of tensor ranks: "weights", each has some heads and columns of the encoder; "data", each has it
  // whole, and encodes some of the pictures. Empty: weights, where heads can be divided.
  std::string mm_encoder_tp_mode;
  bool deterministic = false;     // what a request gets depends on nothing else that is computed
  int32_t threads = 0;            // 0: all
  uint64_t seed = 0;              // of dummy weights
  bool alike_layers = false;      // dummy weights are drawn once for all layers of a kind
  std::string modelled_exchange;  // added to each step of one rank: modelled_exchange.h
  // A table of kernels for a GPU, and a folder where one may be (tuned_table.h); empty: none.
  std::string tuned_config, tuned_config_folder;
  double stand_in_step_ms = 0;  // how long a step of a stand-in takes
};

inline const std::string& TokenizerDir(const EngineConfig& config) {
  return config.tokenizer_dir.empty() ? config.model_dir : config.tokenizer_dir;
}

// What the engine found once it was ready.
struct EngineInfo {
  std::string model_type;
  int64_t max_model_len = 0;
  int64_t vocab_size = 0;  // width of the logits
  int32_t replicas = 1;    // that share experts; each has the blocks below
  int64_t num_blocks = 0;  // of 64 tokens
  int64_t kv_cache_tokens = 0;
  int64_t kv_cache_bytes = 0;
  std::string kv_cache_dtype;  // what --kv-cache-dtype came to: bfloat16, fp8, ...
  double load_seconds = 0;
  double longest_step_seconds = 0;  // of a trial step of the largest size
  bool constraints = false;         // requests may carry a constraint
  // Tokens that one picture may take in a prompt; 0: the model, or this engine, takes none.
  int32_t picture_tokens_max = 0;
  std::string no_pictures = {};  // why a model that has an encoder takes none here
  // Of pictures: rows that are kept, layers of the encoder and its projector, patches that go
  // through it together, bytes of a patch.
  int32_t picture_rows = 0, picture_layers = 0;
  int64_t picture_patches_max = 0, picture_patch_bytes = 0;
  // Patches down and across that become a token; the most of a side; the most frames.
  int32_t picture_merge_rows = 0, picture_merge_columns = 0;
  int32_t picture_side_max = 0, picture_frames_max = 0;
  int32_t picture_ranks = 1;  // among which pictures are shared out
  // Reckoned: in one layer of the encoder, as so many tokens of a prompt.
  double picture_patch_tokens = 0, picture_pair_tokens = 0;
  FixedSteps fixed;  // of --deterministic, on a GPU
};

// A snapshot for /metrics and the periodic log line; counters only grow.
struct EngineStats {
  uint64_t step = 0;
  int32_t running = 0, waiting = 0;
  double kv_usage = 0;                           // 0..1
  uint64_t prefix_queries = 0, prefix_hits = 0;  // tokens
  uint64_t preemptions = 0;
  uint64_t prompt_tokens_computed = 0, generation_tokens = 0;
  DraftStats drafts = {};
  int32_t drafts_wanted = 0;  // of a sequence, by the last step
  BalanceStats balance = {};
  uint64_t step_tokens_last = 0;
  double step_seconds_last = 0, step_seconds = 0;  // of the last step; of all together
  double turn_seconds = 0;                         // that the present turn of its loop has lasted
  // What the steps that it waits for should take by those before them; below 0: nobody knows.
  double turn_expected_seconds = -1;
  double long_turn_seconds = 0;  // the most that each of two turns in a row took: turn_history.h
  uint64_t restarts = 0;         // of the engine's process
  // Of an engine process; one within the server's shares its log and its memory.
  LogDrops log_drops = {};
  ProcessUse process = {};

  // Of several engines together: sums, and of what is no sum the larger.
  EngineStats& operator+=(const EngineStats& other);
};

// What is so now, with the counters of processes before it.
EngineStats CountedSoFar(const EngineStats& past, const EngineStats& now);

// end() of a node whose head was stopped, not lost.
inline constexpr const char* kServerStopped = "the server was stopped";
inline bool IsServerStopped(const Status& status) {
  return status.message().ends_with(kServerStopped);
}

// What a client is told whose request ends with kLost.
inline constexpr const char* kEngineLost = "the engine stopped; the request can be sent again";

// Events, in order. Called on the engine's thread; must not block.
using EventSink = std::function<void(std::vector<TokenEvent> events)>;

// What POST /start_profile and /stop_profile ask for: base/profile.h.
struct ProfileAsk {
  bool start = false;
  std::string dir;  // where a recording that ends is written
  bool gzip = true;
  int64_t until_ns = 0;  // ProfileNow(), from which on a start is not wanted any more; 0: always is
};
// `said`: the path of the file, its events, and how many were left out; null after a start.
using ProfileDone = std::function<void(const Status& status, const Json& said)>;

class Engine {
 public:
  virtual ~Engine() = default;
  // Any thread. kResourceExhausted when the queue is full, kInvalidArgument when the request can
  // never run (longer than the model's length or than the whole cache), kUnavailable when the
  // engine is not there. On OK exactly one final event will come.
  virtual Status Submit(Request request) = 0;
  // Any thread. The request's final event (kAbort) comes within two steps; unknown or finished ids
  // are ignored.
  virtual void Abort(RequestId id) = 0;
  virtual EngineStats stats() const = 0;
  // Of one of EngineInfo::replicas; those of the process are the first one's.
  virtual EngineStats stats_of(int32_t replica) const {
    return replica == 0 ? stats() : EngineStats();
  }
  virtual const EngineInfo& info() const = 0;
  virtual EngineHealth health() const = 0;
  bool healthy() const { return health().ok(); }
  // OK while it works or may work again; else why it never will.
  virtual Status end() const { return {}; }
  // Any thread. `done` is called once, on any thread, before the engine is gone.
  virtual void Profile(const ProfileAsk& ask, const ProfileDone& done) {
    static_cast<void>(ask);
    done(Status(Code::kUnavailable, "this engine records no profile"), {});
  }
  // The engines that share the work, of which each has stats, health and info of its own; one that
  // is not a group of replicas is itself all of them.
  virtual std::vector<const Engine*> replicas() const { return {this}; }
  // The server stops: other nodes hear it and do not wait for this one to come back.
  virtual void Leave() {}
};

// Progress while loading: done and total bytes. Called from the loading thread.
using LoadProgress = std::function<void(int64_t done, int64_t total)>;

// Loads the model and starts the engine's thread. Without a maker of constraints, requests that
// carry one are refused.
Result<std::unique_ptr<Engine>> StartEngine(const EngineConfig& config,
                                            EventSink sink,
                                            const LoadProgress& progress,
                                            const ConstraintFactoryMaker& constraints = nullptr);

}  // namespace baltoro
