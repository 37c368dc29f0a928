#pragma once

// `baltoro bench step`: the time of one step, or of one rank's share of it, beside its floor.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "flags/ending.h"
#include "flags/flag_table.h"

namespace baltoro {

struct BenchStepCommand {
  std::string model;  // a built-in name, or a directory
  std::string device = "auto";
  int32_t tensor = 1;             // the step is that of one of so many tensor ranks
  int32_t decode_context = 1;     // so many of them share the keys
  int32_t data = 1;               // it is that of one of so many replicas that share experts
  bool balance_experts = false;   // which lie by how often they are drawn
  int32_t redundant_experts = 0;  // copies of some of them, over all ranks
  std::string expert_dispatch_dtype = "auto";  // or fp8
  bool move_experts = false;                   // steps are timed with and without a round of moves
  int32_t ranks = 1;   // so many of them run, each on a GPU of its own, and exchange
  int32_t layers = 0;  // 0: the model's
  std::vector<int64_t> batches, contexts, prefills;
  int32_t drafts = 0;               // of each sequence; 0: plain steps
  double acceptance_length = 2.88;  // tokens of a cycle
  std::string kv_cache_dtype = "auto";
  std::string routing = "uniform";  // or "zipf"
  double zipf_exponent = 1;
  int32_t repeats = 30;
  bool enforce_eager = false;
  bool explain = false;
  std::string tuned_config;  // a file of `baltoro tune`; empty: none
  int32_t threads = 0;
  uint64_t seed = 0;
  std::string json, svg;  // files to write; empty: none
};

FlagTable BenchStepFlags();
// `args` after `bench step`.
Outcome<BenchStepCommand> ParseBenchStep(std::span<const std::string> args);

}  // namespace baltoro
