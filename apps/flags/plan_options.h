#pragma once

// `baltoro plan`: the flags of `serve`, whether this version has them or not, and the machine.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "flags/ending.h"
#include "flags/flag_table.h"

namespace baltoro {

struct PlanCommand {
  std::string model;  // a directory or a known name
  std::string gpu;    // of --gpu
  double utilisation = 0.9;
  int64_t kv_cache_bytes = 0;
  int64_t max_model_len = 0;  // 0: the model's
  int32_t max_num_seqs = 0;   // of the line, else as `serve` chooses
  int64_t max_num_batched_tokens = 0;
  std::string kv_cache_dtype = "auto";
  std::string online_quantization = "none";
  bool graphs = true;
  bool deterministic = false;
  int32_t nodes = 1;
  int32_t tensor = 1, pipeline = 1, decode_context = 1, data = 1;
  bool whole_experts = false, experts_in_turn = false;
  int32_t redundant_experts = 0;
  std::vector<int64_t> lengths;  // for which concurrency is printed; empty: a few usual ones
  std::vector<std::string> notices;
};

FlagTable PlanFlags();
// Only the rows that `serve` does not have.
FlagTable PlanOwnFlags();

Outcome<PlanCommand> ParsePlan(std::span<const std::string> args);

}  // namespace baltoro
