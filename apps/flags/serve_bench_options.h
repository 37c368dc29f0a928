#pragma once

// `baltoro bench serve`: load on a running server, with vLLM's flags.

#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/json.h"
#include "flags/ending.h"
#include "flags/flag_table.h"
#include "flags/picture_buckets.h"

namespace baltoro {

inline constexpr double kAllAtOnce = std::numeric_limits<double>::infinity();

// Where prompts come from. Lengths are in tokens.
struct DatasetOptions {
  std::string name = "random";
  std::string path;
  int64_t prompts = 1000;  // requests
  uint64_t seed = 0;
  std::string id_prefix;
  bool oversample = true, shuffle = true, chat_template = true;
  int64_t random_input = 1024, random_output = 128, random_prefix = 0;
  int64_t pictures_min = 0, pictures_max = 0;  // of a drawn prompt
  std::vector<PictureBucket> picture_sizes;    // none: prompts have no pictures
  double range_ratio = 0;                      // lengths are drawn from [(1 - r) len, (1 + r) len]
  std::optional<int64_t> sharegpt_output, hf_output;
  int64_t custom_output = 256;  // -1: each line's own
  int64_t prefix_len = 256, suffix_len = 256, prefixes = 10, prefix_output = 128;
  std::string hf_cache;             // the folder that holds "datasets--org--name"
  std::string hf_subset, hf_split;  // parts of the path of a file; empty: any
  int64_t agent_context_min = 10'000, agent_context_max = 100'000, agent_shared = 4'000;
  int64_t agent_turns = 10, agent_output = 256;
  double agent_think = 1;  // seconds between an answer and the next turn, on average
};

// When requests are sent.
struct LoadOptions {
  double rate = kAllAtOnce;  // requests a second
  double burstiness = 1;
  int64_t max_concurrency = 0;  // 0: no limit
  std::string ramp;             // "linear", "exponential"; empty: none
  int64_t ramp_start = 0, ramp_end = 0;
};

struct BenchServeCommand {
  bool chat = false;    // the backend is openai-chat
  std::string backend;  // as given
  std::string host;     // name or address
  int port = 8000;
  bool https = false, insecure = false;  // insecure: any certificate does
  std::string endpoint;                  // with what --base-url has behind the port
  std::string root;                      // that alone
  std::string model;                     // empty: the first that the server names
  std::string served_name;               // in requests; empty: the model
  std::vector<std::string> loras;
  bool loras_in_turn = false;
  std::string tokenizer;  // empty: the model's
  bool skip_tokenizer = false;
  std::vector<std::pair<std::string, std::string>> headers;
  Json body = Json::object();  // what every request has beside prompt and length
  DatasetOptions data;
  LoadOptions load;
  int64_t warm_ups = 0, ready_seconds = 0;
  bool profile = false, progress = true;
  std::vector<std::string> metrics = {"ttft", "tpot", "itl"};  // that are reported
  std::vector<double> percentiles = {99};
  std::map<std::string, double> goodput;  // milliseconds by "ttft", "tpot" or "e2el"
  bool save = false, append = false, detailed = false;
  std::string result_dir, result_file, label;
  std::vector<std::pair<std::string, std::string>> metadata;
  std::vector<int64_t> sweep_concurrency;
  int64_t sweep_prompts = 0;  // requests for each one under way at once; 0: data.prompts a run
  std::vector<double> sweep_rates;
  std::string sweep_svg;  // file; empty: none
  std::vector<std::string> notices;
};

// The table's rows: serve_bench_flags.cc.
FlagTable BenchServeFlags();
// `args` after `bench serve`. An API key comes from OPENAI_API_KEY, else VLLM_API_KEY.
Outcome<BenchServeCommand> ParseBenchServe(std::span<const std::string> args,
                                           const Environment& environment);

}  // namespace baltoro
