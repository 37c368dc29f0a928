#pragma once

// Where the memory of a rank goes before anything is read: weights, arenas, KV cache. `baltoro
// plan` prints it, `serve` prints it and keeps to it.

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/status.h"
#include "plan/weight_plan.h"
#include "tensor/kv_form.h"

namespace baltoro {

struct DeviceSpec {
  std::string name;
  int64_t memory_bytes = 0;  // as the driver reports it
  bool gpu = true;
};
// h100-80g, h200-141g, ..., in any case, or their beginning where that says enough (h200);
// kInvalidArgument lists them.
Result<DeviceSpec> FindDevice(const std::string& name);
std::vector<DeviceSpec> KnownDevices();

// What a picture encoder takes of each rank of the first stage.
struct PictureBytes {
  int64_t weights = 0;
  int64_t workspace = 0;  // of what is being encoded
  int64_t rows = 0;       // of pictures that are encoded: --mm-processor-cache-gb
  // Why the weights are all of the encoder's, where tensor ranks would otherwise have parts of it.
  std::string note = {};
  int64_t total() const { return weights + workspace + rows; }
  bool operator==(const PictureBytes&) const = default;
};

struct PlanOptions {
  ParallelLayout layout;  // of an engine
  int32_t nodes = 1;      // that its ranks are dealt out to
  // Engines with a plan like this behind one web server: replicas that share nothing. Those that
  // share experts are the layout's data ranks.
  int32_t replicas = 1;
  // Of all replicas, those of each node; 0: --data-parallel-size-local does not say so.
  int32_t local_replicas = 0;
  int32_t first_replica = 0;  // of this node, of these
  DeviceSpec device;
  double utilisation = 0.9;    // of the device's memory; of no effect on a CPU
  int64_t kv_cache_bytes = 0;  // per rank; 0: what is left, on a CPU a quarter of it up to 4 GiB
  int64_t max_model_len = 0;   // tokens of one request, prompt and output; -1: as many as fit
  bool allow_longer = false;   // than the model was made for
  int32_t max_num_seqs = 1024;
  int32_t drafts = 0;  // that a step verifies of a sequence
  int64_t max_num_batched_tokens = 8192;
  KvForm kv = KvForm::kBf16;
  bool graphs = true;               // false: --enforce-eager
  int32_t prompt_logprob_rows = 0;  // of logits, beside one a sequence
  bool deterministic = false;       // --deterministic, with which DCP does not go
  // --deterministic on a GPU: rows of a step that computes answers, and parts of all their keys,
  // each with a result of its own. 0: as many as suit.
  int32_t fixed_rows = 0;
  int64_t key_parts = 0;
  // A draft model on the rank that samples, or over the tensor ranks of its stage; of a rank its
  // weights, and what its keys take for a token.
  std::optional<K2Config> draft = {};
  ParallelLayout draft_layout = {};
  int64_t draft_bytes = 0, draft_token_bytes = 0;
  PictureBytes pictures = {};
  // Of the fullest rank of each stage, where a loader has counted them; empty: what the model's
  // forms come to.
  std::vector<int64_t> weight_bytes = {};
  // Of options in which layout, nodes or replicas are others than the given ones: counts anew what
  // depends on them, and refuses what `serve` would refuse. Empty: nothing does.
  std::function<Status(PlanOptions&)> settle = {};
};

struct RankPlan {
  RankPlace place;
  std::vector<PlanItem> weights, arenas;
  int64_t kv_bytes = 0;        // for the cache; negative: that much is missing
  int64_t kv_token_bytes = 0;  // of one token that lies here, over the rank's layers
  int64_t kv_blocks = 0;       // of 64 tokens
};

// What would make requests fit.
struct Fitting {
  bool found = false;
  bool dealt_out = false;  // `changes` have other numbers of ranks or replicas
  PlanOptions options = {};
  std::vector<std::string> changes = {};  // flags with their values
};

// Whether a replica holds so many requests of the full length at once, and what would make it.
struct Demand {
  int64_t requests = 1;
  bool fits = false;
  int64_t needed_bytes = 0, present_bytes = 0;  // of cache, of a rank
  Fitting fitting = {};                         // on the same devices
  // Where that is not found: "with FLAGS" of a shorter length or fewer requests, "on N devices with
  // FLAGS".
  std::vector<std::string> ways = {};
};

struct MemoryPlan {
  ModelDescription model;
  PlanOptions options = {};
  std::vector<RankPlan> stages;  // the fullest rank of each stage
  int64_t kv_tokens = 0;         // of one replica: the least over stages, times DCP
  int64_t replicas = 1;          // each with its own cache, whether they share experts or nothing
  std::vector<Demand> demands = {};  // once Advise was asked

  // How many requests of `length` tokens fit at once in one replica.
  double Concurrency(int64_t length) const {
    return length > 0 ? static_cast<double>(kv_tokens) / static_cast<double>(length) : 0;
  }
  // Whether one replica does. A request holds whole blocks on each context rank.
  bool Holds(int64_t length, int64_t requests) const;
};

// kInvalidArgument when the layout cannot hold the model's shape; a plan that does not fit is a
// plan with negative kv_bytes.
Result<MemoryPlan> PlanMemory(const ModelDescription& model, const PlanOptions& options);

// GPUs, or shares of this machine, of all ranks of all replicas.
int32_t DevicesOf(const PlanOptions& options);

// The nearest options under which a replica holds `requests` of max_model_len tokens at once, on
// the same devices, changing as few flags as possible: DCP, fp8 cache, batched tokens, utilisation;
// on a CPU a larger cache. Empty changes: it fits as it is. Where none of these makes one request
// fit, GPUs are dealt out to other numbers of ranks and replicas, if need be with other flags as
// well. A utilisation above 0.97, which leaves next to nothing for what is not foreseen, is the
// last resort, where neither fewer requests nor a shorter length would do.
Fitting FindFitting(const ModelDescription& model, const PlanOptions& options, int64_t requests);

// The longest request that fits, where one of the full length does not, and flags for it. Of the
// utilisation that is given, unless that leaves hardly any. 0: none.
struct Shorter {
  int64_t tokens = 0;
  std::string flags = {};
};
Shorter FindShorter(const ModelDescription& model, const PlanOptions& options);
// Whether so many tokens are worth a word where the full length does not fit.
bool IsUseful(const ModelDescription& model, const PlanOptions& options, int64_t tokens);

// The fewest GPUs, twice as many or more, beside the other options as they are, on which each
// replica holds `requests` of max_model_len tokens at once; with several requests only the ranks of
// a replica are more. Nothing on a CPU, whose ranks share one memory, or of weights that are
// counted where they lie.
Fitting FindMoreDevices(const ModelDescription& model,
                        const PlanOptions& options,
                        int64_t requests);

// Fills `demands`: for one request of the full length, and for max_num_seqs of up to 64.
void Advise(MemoryPlan& plan);

// Whether one request of the full length fits.
bool Fits(const MemoryPlan& plan);
// "Fits: ..." in one line; of a plan that fits.
std::string FitText(const MemoryPlan& plan);

// The plan as text for people, with what to change where it does not fit; of a plan with advice, as
// are the two below.
std::string PlanText(const MemoryPlan& plan, const std::vector<int64_t>& lengths);

// The same for programs; docs/operating.md says what is in it.
Json PlanJson(const MemoryPlan& plan, const std::vector<int64_t>& lengths);

// The same in two lines, for the start of `serve`.
std::vector<std::string> ShortPlanText(const MemoryPlan& plan);
// Why one request of the full length does not fit, and what would make it.
std::string MisfitText(const MemoryPlan& plan);

// 1.50 GiB
std::string GibText(int64_t bytes);

}  // namespace baltoro
