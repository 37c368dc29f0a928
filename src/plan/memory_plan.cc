#include "plan/memory_plan.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/check.h"
#include "model/expert_balancer.h"
#include "model/k2_model.h"
#include "model/model_ranks.h"
#include "model/weight_slice.h"
#include "ops/gpu_exchange.h"
#include "ops/group_rows.h"
#include "parallel/nodes.h"

namespace baltoro {
namespace {

constexpr int64_t kGib = int64_t{1} << 30;
constexpr int64_t kBlockTokens = KvLayerView::kBlockTokens;
constexpr int64_t kHostCacheMax = 4 * kGib;  // unless asked for

// Beyond weights, arenas and cache; rounded up from what processes of this kind are seen to hold.
constexpr int64_t kContextBytes = kGib * 55 / 100;  // driver context and loaded kernels
constexpr int64_t kGraphBytes = kGib / 4;           // captured graphs
constexpr int64_t kNcclBytes = kGib / 5;            // buffers of a group, and staging

// What a step's operations may want of a GPU at a time, as ops/cuda takes it.
constexpr int64_t kMib = int64_t{1} << 20;
constexpr int64_t kPassBytes = 256 * kMib;    // expanded keys and values (kAttentionPassBytes)
constexpr int64_t kProductBytes = 32 * kMib;  // of a product through cuBLASLt
constexpr int64_t kSampleBytes = 17 * kMib;   // what sampling is told and tells (WorkerConfig)
constexpr int64_t kHeadParts = 53 * kMib;     // of heads with keys of their own, of 128 columns
constexpr int64_t kKeyPieces = 2 * 132;       // of contexts, two a multiprocessor

// Tokens that an expert bank, and an expanded stretch of cached keys, work on at a time.
constexpr int64_t kExpertTokens = 2048;
constexpr int64_t kExpandedTokens = 8192;

// The groups of a rank that go by NCCL, as JoinedRanks (comm/symmetric) finds out when ranks meet:
// those that are too large to share memory, or lie on several nodes. Stages are taken to be apart.
int32_t NcclGroups(const ParallelLayout& layout, int32_t nodes) {
  const bool dealt = CheckNodes(layout, nodes).ok();
  bool tensor_apart = false, context_apart = false, data_apart = false, experts_apart = false;
  for (int32_t rank = 0; nodes > 1 && rank < layout.ranks(); ++rank) {
    const RankPlace place = PlaceOf(layout, rank);
    const int32_t first = rank - place.tensor;
    const int32_t neighbours = first + place.tensor / layout.decode_context * layout.decode_context;
    const int32_t of_first_replica = rank % (layout.ranks() / layout.data);
    const auto apart = [&](int32_t other) {
      return !dealt || NodeOfRank(layout, nodes, rank) != NodeOfRank(layout, nodes, other);
    };
    tensor_apart = tensor_apart || apart(first);
    context_apart = context_apart || apart(neighbours);
    data_apart = data_apart || apart(of_first_replica);
    experts_apart = experts_apart || apart(place.stage * layout.tensor);
  }
  const bool tensor = layout.tensor > 1 && (tensor_apart || layout.tensor > cuda::kPeersMax);
  const bool context =
      layout.decode_context > 1 && tensor && (context_apart || layout.tensor > cuda::kPeersMax);
  const bool data = layout.data > 1 && (data_apart || layout.data > cuda::kPeersMax);
  // Ranks among which experts move.
  const bool experts =
      layout.balanced_experts && (experts_apart || layout.expert_ranks() > cuda::kPeersMax);
  return (tensor ? 1 : 0) + (context ? 1 : 0) + (layout.pipeline > 1 ? 1 : 0) + (data ? 1 : 0) +
         (experts ? 1 : 0);
}

// Of a group of replicas, as JoinedRanks counts them; 0: not equally many.
int64_t CountReplicasOfNode(const GpuRankArgs& args, const ParallelLayout& layout, int32_t nodes) {
  if (!CheckNodes(layout, nodes).ok()) return 0;
  std::vector<int32_t> of_ranks;
  for (int32_t rank = 0; rank < layout.ranks(); ++rank) {
    of_ranks.push_back(NodeOfRank(layout, nodes, rank));
  }
  return cuda::ReplicasOfHost(args, of_ranks);
}

// What ranks bring so that others reach it, to the byte where each node is a machine of its own.
void AddExchange(const K2Config& config, const PlanOptions& o, std::vector<PlanItem>& out) {
  const ParallelLayout& layout = o.layout;
  if (layout.ranks() == 1) return;
  const GpuRankArgs args = RankArgsOf(config, layout, 0, o.max_num_batched_tokens, DType::kBf16);
  const int64_t of_node = CountReplicasOfNode(args, layout, o.nodes);
  out.push_back({"exchange of ranks", static_cast<int64_t>(cuda::PlanMemory(args, of_node).bytes),
                 "in all steps"});
  if (of_node > 1 && of_node < layout.data && of_node <= cuda::kPeersMax) {
    const int64_t nodes = layout.data / of_node;
    out.push_back(
        {"rows between nodes", cuda::RoomBetweenHosts(args, nodes),
         fmt::format("{} tokens of {} replicas", nodes * o.max_num_batched_tokens, nodes)});
  }
  if (const int32_t groups = NcclGroups(layout, o.nodes); groups > 0) {
    out.push_back({"NCCL", groups * kNcclBytes,
                   groups == 1 ? "assumed; between nodes"
                               : fmt::format("assumed; {} groups between nodes", groups)});
  }
}

// What attention takes for itself, of `rows` sequences and the heads that a rank attends for.
int64_t AttentionScratch(
    const K2Config& c, const PlanOptions& o, int64_t rows, int64_t heads, int64_t act) {
  const int64_t absorbed = rows * heads * (act * c.cache_width() + 4 * c.kv_lora);
  const int64_t key_bytes = heads * (c.head_dim() + c.value) * act;
  if (!o.device.gpu) return absorbed + kExpandedTokens * key_bytes;
  // Keys are made in passes; with several the results so far lie beside them.
  const int64_t keys = std::max(o.max_model_len, o.max_num_batched_tokens) * key_bytes;
  const int64_t between =
      keys > kPassBytes ? o.max_num_batched_tokens * heads * 4 * (c.value + 1) : 0;
  return absorbed + std::min(keys, kPassBytes) + between;
}

// Of the trial before the first step, which is given back: a cache of a layer, and logits.
int64_t TrialBytes(const K2Config& c, const PlanOptions& o, int64_t rows, int64_t logits_rows) {
  const int64_t blocks = std::max(rows, o.max_num_batched_tokens / kBlockTokens + 1);
  return blocks * kBlockTokens * KvBytesPerToken(c, o.kv, 1) + logits_rows * 4 * c.vocab;
}

// What only a GPU takes, beside activations and the workspace of operations.
void AddGpu(const K2Config& c,
            const PlanOptions& o,
            int64_t rows,
            int64_t logits_rows,
            std::vector<PlanItem>& out) {
  const int64_t heads = c.heads / o.layout.tensor * o.layout.decode_context;
  const int64_t pieces = o.key_parts > 0 ? o.key_parts : kKeyPieces;
  out.push_back({"parts of keys", pieces * heads * 4 * (c.kv_lora + 1),
                 o.key_parts > 0 ? "of --deterministic" : ""});
  // As ReserveScratch takes them: an eighth more than was needed in the trial, and a MiB, twice.
  out.push_back(
      {"room for other steps", TotalBytes(out) / 8 + 2 * kMib, "an eighth of the arenas above"});
  out.push_back({"sampling", kSampleBytes, ""});
  out.push_back({"driver and kernels", kContextBytes, "assumed"});
  const int64_t trial = TrialBytes(c, o, rows, logits_rows);
  if (o.graphs) {
    // They are recorded when the trial is over.
    out.push_back({"graphs", std::max(kGraphBytes, trial),
                   trial > kGraphBytes ? "as the trial before them; --enforce-eager saves some"
                                       : "assumed; --enforce-eager saves it"});
  } else {
    out.push_back({"trial of the largest steps", trial, "given back, but needed"});
  }
  AddExchange(c, o, out);
}

// What a draft model reads, and computes with.
PlanItem DraftSteps(const K2Config& d, const PlanOptions& o, int64_t act) {
  const auto taps = static_cast<int64_t>(d.draft->tap_layers.size());
  // The target's streams and its own; then as any model, with an input twice as wide.
  const int64_t streams = 4 * (taps + 1) * d.hidden;
  const RankShare share{.layout = o.draft_layout};  // of the first rank, which has most
  const int64_t heads = share.heads(d).size();
  const int64_t attention = d.has_heads()
                                ? (2 * heads + 2 * share.key_heads(d)) * d.draft->head_width
                                : d.q_lora + d.cache_width() + heads * (d.head_dim() + d.value);
  const int64_t columns = EvenShare(d.intermediate, o.draft_layout.tensor, 0).size();
  const int64_t own = (12 + act * (taps + 3)) * d.hidden + act * (attention + 3 * columns);
  const int64_t rows = std::min<int64_t>(o.max_num_seqs, o.max_num_batched_tokens);
  // All, and where ranks have parts of them its own.
  const int64_t part = o.draft_layout.tensor > 1 ? share.head_vocab(d).size() : 0;
  return {"steps of the draft model",
          o.max_num_batched_tokens * (streams + own) +
              rows * (8 * d.hidden + 4 * (d.head_vocab() + part)) +
              o.max_model_len * d.rotated() * 4,
          fmt::format("{} tokens", o.max_num_batched_tokens)};
}

// On a GPU a draft model has a workspace of operations of its own, of which it reserves more as
// its target does.
PlanItem DraftWorkspace(const K2Config& d, const PlanOptions& o, int64_t act) {
  const int64_t rows = std::min<int64_t>(o.max_num_seqs, o.max_num_batched_tokens);
  const RankShare share{.layout = o.draft_layout};
  const int64_t attention =
      d.has_heads() ? kHeadParts : AttentionScratch(d, o, rows, share.heads(d).size(), act);
  const int64_t bytes = std::max(attention, kProductBytes);
  return {"workspace of the draft model", bytes + bytes / 8 + 2 * kMib, ""};
}

std::vector<PlanItem> Arenas(const ModelDescription& model, const PlanOptions& o) {
  const K2Config& c = model.config;
  const int64_t tp = o.layout.tensor, heads = c.heads / tp;
  const int64_t gathered = heads * o.layout.decode_context;  // that a context rank attends for
  const auto up = [](int64_t total, int64_t parts) { return (total + parts - 1) / parts; };
  const int64_t columns = std::max(c.dense_layers > 0 ? up(c.intermediate, tp) : 0,
                                   up(c.moe_intermediate * c.shared_experts, tp));
  // As K2Model::Allocate takes them: two f32 streams, the rest of the activation type.
  const int64_t act = SizeOf(PlainType(model.plain));
  // Codes and scales that norms write for FP8 products.
  const bool coded = o.device.gpu && model.attention == WeightForm::kFp8Block;
  // The norm's rows in matrix order, beside the rows, for INT4 experts of many tokens.
  const bool ordered = o.device.gpu && !coded && model.experts == WeightForm::kInt4Group;
  const int64_t copies =
      (coded ? c.hidden + c.hidden / 32 : 0) + (ordered ? act * c.hidden : int64_t{0});
  const int64_t per_token = copies + (4 + 4 + act) * c.hidden + act * (c.q_lora + c.cache_width()) +
                            act * heads * (c.head_dim() + c.value) + act * 3 * columns +
                            4 * c.experts + 8 * c.router.top_k;
  const int64_t context =
      o.layout.decode_context > 1 ? gathered * (act * (c.head_dim() + c.value) + 4) : 0;
  const int64_t tokens = o.max_num_batched_tokens;
  const int64_t expert_columns =
      o.layout.whole_experts ? c.moe_intermediate : up(c.moe_intermediate, o.layout.expert_ranks());
  // Of all replicas that share the experts.
  const int64_t group_tokens = tokens * o.layout.data;
  // A group's are computed in parts, each no less than the rows of one replica.
  const int64_t expert_tokens = std::min(
      group_tokens, o.layout.data > 1 ? std::max(kGroupRowsAtOnce, tokens) : kExpertTokens);
  const int64_t pairs = expert_tokens * c.router.top_k;
  // A draft takes what a sequence of one token takes.
  const int64_t decode_rows = o.max_num_seqs * int64_t{1 + o.drafts};
  const int64_t rows = std::max<int64_t>(std::min(decode_rows, tokens), o.fixed_rows);
  const int64_t logits_rows = rows + o.prompt_logprob_rows;
  const int64_t of_experts =
      c.experts > 0 ? pairs * act * (c.hidden + 3 * expert_columns) : int64_t{0};
  const int64_t of_attention = AttentionScratch(c, o, rows, gathered, act);

  std::vector<PlanItem> out;
  if (o.layout.balanced_experts) {
    out.push_back({"where experts lie",
                   ExpertTableBytes(BalanceShapeOf(o.layout, c.experts), c.layers - c.dense_layers),
                   "--enable-eplb"});
  }
  out.push_back({"activations", tokens * (per_token + context), fmt::format("{} tokens", tokens)});
  if (o.layout.data > 1) {
    // As they are computed with, and on CPUs as they travel: there with what experts chose, back as
    // sums. GPUs have an exchange for that, whatever the step.
    const int64_t there = act * c.hidden + 8 * c.router.top_k, back = 4 * c.hidden;
    const int64_t travel = group_tokens * there + tokens * std::max(there, back);
    const int64_t codes = o.layout.fp8_dispatch ? c.hidden + c.hidden / 128 * 4 : 0;
    out.push_back({"rows of other replicas",
                   group_tokens * (there + back + codes) + (o.device.gpu ? 0 : travel),
                   fmt::format("{} tokens of {} replicas", group_tokens, o.layout.data)});
  }
  out.push_back({"rows of the last layer", logits_rows * 8 * c.hidden, ""});
  if (o.device.gpu) {
    // Operations take it one after the other.
    out.push_back({"workspace of operations", std::max({of_experts, of_attention, kProductBytes}),
                   of_experts > of_attention ? "of experts" : "of attention"});
    AddGpu(c, o, rows, logits_rows, out);
  } else {
    if (c.experts > 0) {
      out.push_back(
          {"expert workspace", of_experts, fmt::format("{} tokens at a time", expert_tokens)});
    }
    out.push_back({"attention workspace", of_attention, fmt::format("{} sequences", rows)});
  }
  out.push_back({"logits", logits_rows * 4 * c.vocab + rows * 4 * up(c.vocab, tp),
                 fmt::format("{} rows", logits_rows)});
  out.push_back({"rotary table", o.max_model_len * c.rope_dim * 4, ""});
  if (o.draft) out.push_back(DraftSteps(*o.draft, o, act));
  if (o.draft && o.device.gpu) out.push_back(DraftWorkspace(*o.draft, o, act));
  return out;
}

// Of the ranks of a stage the one with the most weights.
RankPlan FullestRank(const ModelDescription& model, const PlanOptions& o, int32_t stage) {
  RankPlan fullest;
  if (!o.weight_bytes.empty()) {
    fullest.place.stage = stage;
    fullest.weights = {
        {.name = "as they are loaded", .bytes = o.weight_bytes[static_cast<size_t>(stage)]}};
    return fullest;
  }
  int64_t most = -1;
  for (int32_t data = 0; data < o.layout.data; ++data) {
    for (int32_t tensor = 0; tensor < o.layout.tensor; ++tensor) {
      const RankPlace place{.data = data, .stage = stage, .tensor = tensor};
      std::vector<PlanItem> weights = WeightsOfRank(model, o.layout, place);
      const int64_t bytes = TotalBytes(weights);
      if (bytes <= most) continue;
      most = bytes;
      fullest.place = place;
      fullest.weights = std::move(weights);
    }
  }
  return fullest;
}

// To a rank of the first stage.
void AddPictures(const PictureBytes& pictures, RankPlan& rank) {
  if (pictures.total() == 0) return;
  rank.weights.push_back({"picture encoder", pictures.weights, pictures.note});
  rank.arenas.push_back({"pictures being encoded", pictures.workspace, ""});
  rank.arenas.push_back({"encoded pictures", pictures.rows, "--mm-processor-cache-gb"});
}

// Of `left`, beside weights and arenas, what the cache of a rank takes; negative: that is missing.
int64_t CacheBytes(const PlanOptions& o, int64_t left) {
  const int64_t asked = o.kv_cache_bytes;
  if (o.device.gpu) return asked > 0 ? asked : left;
  if (asked > 0) return left < asked ? left - asked : asked;
  return left < 0 ? left : std::min(kHostCacheMax, left / 4);
}

}  // namespace

std::vector<DeviceSpec> KnownDevices() {
  // Bytes that the driver reports as total, a little less than the name says.
  return {{.name = "h100-80g", .memory_bytes = kGib * 7910 / 100},
          {.name = "h800-80g", .memory_bytes = kGib * 7910 / 100},
          {.name = "h20-96g", .memory_bytes = kGib * 9500 / 100},
          {.name = "gh200-96g", .memory_bytes = kGib * 9450 / 100},
          {.name = "h200-141g", .memory_bytes = kGib * 13980 / 100},
          {.name = "h20-141g", .memory_bytes = kGib * 13980 / 100}};
}

Result<DeviceSpec> FindDevice(const std::string& name) {
  std::string wanted = name;
  for (char& c : wanted) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  std::vector<std::string> names;
  std::vector<DeviceSpec> begin_so;  // "h200" is enough, "h20" is not
  for (const DeviceSpec& device : KnownDevices()) {
    if (device.name == wanted) return device;
    if (device.name.starts_with(wanted + "-")) begin_so.push_back(device);
    names.push_back(device.name);
  }
  if (begin_so.size() == 1) return begin_so[0];
  return InvalidArgument(
      fmt::format("--gpu {}: not known; known are {}", name, fmt::join(names, ", ")));
}

bool MemoryPlan::Holds(int64_t length, int64_t requests) const {
  const int64_t unit = kBlockTokens * options.layout.decode_context;
  const int64_t each = (length + unit - 1) / unit * unit;
  return each > 0 && kv_tokens / each >= requests;
}

Result<MemoryPlan> PlanMemory(const ModelDescription& model, const PlanOptions& options) {
  BT_RETURN_IF_ERROR(CheckLayout(options.layout, ShapeOf(model.config)));
  BT_CHECK(options.weight_bytes.empty() ||
           std::ssize(options.weight_bytes) == options.layout.pipeline);
  MemoryPlan plan;
  plan.model = model;
  plan.options = options;
  const int64_t longest = model.config.positions_max;
  if (options.max_model_len > longest && !options.allow_longer) {
    return InvalidArgument(
        fmt::format("--max-model-len {} is greater than the {} tokens that the model was made for: "
                    "give --max-model-len {}, or set VLLM_ALLOW_LONG_MAX_MODEL_LEN=1 if you know "
                    "that the model can do it",
                    options.max_model_len, longest, longest));
  }
  if (plan.options.max_model_len <= 0) plan.options.max_model_len = longest;
  plan.replicas = int64_t{options.layout.data} * options.replicas;
  const std::vector<PlanItem> arenas = Arenas(model, plan.options);
  const auto budget = static_cast<int64_t>(static_cast<double>(options.device.memory_bytes) *
                                           (options.device.gpu ? options.utilisation : 1.0));
  int64_t blocks = INT64_MAX;
  for (int32_t stage = 0; stage < options.layout.pipeline; ++stage) {
    RankPlan rank = FullestRank(model, plan.options, stage);
    rank.arenas = arenas;
    if (stage == 0) AddPictures(options.pictures, rank);
    const bool drafts = options.draft && stage + 1 == options.layout.pipeline;
    if (drafts) rank.weights.push_back({"draft model", options.draft_bytes, ""});
    const int64_t left = budget - TotalBytes(rank.weights) - TotalBytes(rank.arenas);
    rank.kv_bytes = CacheBytes(options, left);
    rank.kv_token_bytes = KvBytesPerToken(
        model.config, options.kv, StageLayers(options.layout, model.config.layers, stage).size());
    // Those of all context ranks.
    if (drafts) rank.kv_token_bytes += options.draft_token_bytes * options.layout.decode_context;
    rank.kv_blocks = std::max<int64_t>(rank.kv_bytes, 0) / (rank.kv_token_bytes * kBlockTokens);
    blocks = std::min(blocks, rank.kv_blocks);
    plan.stages.push_back(std::move(rank));
  }
  plan.kv_tokens = blocks * kBlockTokens * options.layout.decode_context;
  if (options.max_model_len < 0) plan.options.max_model_len = std::min(longest, plan.kv_tokens);
  return plan;
}

}  // namespace baltoro
