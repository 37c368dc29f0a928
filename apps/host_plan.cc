#include "host_plan.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "base/log.h"
#include "cache/block_id.h"
#include "device/buffer.h"
#include "engine/backend_choice.h"
#include "engine/draft_choice.h"
#include "engine/fixed_steps.h"
#include "engine/layout_choice.h"
#include "engine/load_choice.h"
#include "engine/picture_choice.h"
#include "engine/stand_in.h"
#include "engine_settings.h"
#include "model/weight_count.h"
#include "model/weight_slice.h"
#include "parallel/nodes.h"
#include "plan/memory_plan.h"
#include "schedule/scheduler.h"

namespace baltoro {
namespace {

// What loading takes, of the fullest rank of each stage.
Result<std::vector<int64_t>> FullestOfStages(const EngineConfig& config,
                                             const K2Config& model,
                                             const ParallelLayout& layout,
                                             const BackendChoice& backend) {
  BT_ASSIGN_OR_RETURN(WeightChoice choice, ChooseWeights(config));
  choice.quiet = true;
  BT_ASSIGN_OR_RETURN(const std::unique_ptr<WeightSource> source,
                      OpenWeights(config.model_dir, choice));
  WeightOptions options;
  options.quantise_fp8_inputs = backend.gpu.has_value();
  BT_ASSIGN_OR_RETURN(const std::vector<int64_t> bytes,
                      CountWeights(model, *source, *backend.ops, options, layout));
  std::vector<int64_t> fullest(static_cast<size_t>(layout.pipeline));
  for (size_t rank = 0; rank < bytes.size(); ++rank) {
    const int32_t stage = PlaceOf(layout, static_cast<int32_t>(rank)).stage;
    int64_t& most = fullest[static_cast<size_t>(stage)];
    most = std::max(most, bytes[rank]);
  }
  return fullest;
}

// What the engine's steps want beside what their flags say; `options` has these and the length.
void CountSteps(const K2Config& model, bool deterministic, PlanOptions& options) {
  options.prompt_logprob_rows = SchedulerConfig{}.prompt_logprob_rows_max;
  options.deterministic = deterministic;
  if (!deterministic || !options.device.gpu) return;
  const int64_t length = options.max_model_len > 0 ? options.max_model_len : model.positions_max;
  const FixedSteps fixed =
      ChooseFixedSteps(static_cast<int32_t>(options.max_num_batched_tokens), length);
  options.fixed_rows = fixed.decode_rows;
  options.key_parts = KeyPartsMax(fixed, length);
}

// Weights as they will be loaded, of what lies here; as the model's forms come to, for GPUs that
// need not be here.
Status CountWeightsOf(const PlannedModel& planned,
                      const EngineConfig& config,
                      const BackendChoice& backend,
                      bool here,
                      ModelDescription& model,
                      PlanOptions& options) {
  if (planned.described) {
    BT_RETURN_IF_ERROR(CheckQuantization(config.quantization, MethodOf(model), model.name));
    if (config.online_quantization == "fp8") QuantiseOnline(model);
    return {};
  }
  // Also asked for a GPU that is not here, since it refuses what cannot be loaded or cut.
  BT_ASSIGN_OR_RETURN(options.weight_bytes,
                      FullestOfStages(config, model.config, options.layout, backend));
  if (here) return {};
  options.weight_bytes.clear();
  BT_ASSIGN_OR_RETURN(model, DescribeModel(planned.dir));
  if (config.online_quantization == "fp8") QuantiseOnline(model);
  return {};
}

// A draft model, which must lie here.
Status CountDraft(const EngineConfig& config,
                  const K2Config& model,
                  const BackendChoice& backend,
                  PlanOptions& options) {
  const OpsTable& ops = *backend.ops;
  BT_ASSIGN_OR_RETURN(options.draft, ChooseDraft(config, model, backend.gpu.has_value()));
  if (!options.draft) return {};
  BT_ASSIGN_OR_RETURN(WeightChoice choice, ChooseWeights(config));
  choice.quiet = true;
  BT_ASSIGN_OR_RETURN(const std::unique_ptr<WeightSource> source,
                      OpenWeights(config.model_dir, choice));
  BT_ASSIGN_OR_RETURN(options.draft_bytes, CountDraftWeights(config, *options.draft, *source, ops));
  options.draft_token_bytes = DraftBytesPerToken(config, *options.draft, ops.act);
  options.draft_layout = DraftLayout(config);
  return {};
}

// A picture encoder, of which no more need be here than config.json.
Status CountPictures(const PlannedModel& planned,
                     const EngineConfig& config,
                     const K2Config& model,
                     const BackendChoice& backend,
                     PlanOptions& options) {
  BT_ASSIGN_OR_RETURN(const PictureAnswer pictures,
                      ChoosePictures({.config = config,
                                      .model_dir = planned.dir,
                                      .model = model,
                                      .ops = *backend.ops,
                                      .gpu = backend.gpu.has_value(),
                                      .ranks_here = options.layout.ranks() / config.nodes}));
  if (!pictures.choice) return {};
  options.pictures = pictures.choice->bytes;
  if (const std::string& why = pictures.choice->note; !why.empty()) {
    options.pictures.note = "whole: " + why;
  }
  return {};
}

// What is planned: a copy of it stays with the plan, which asks for other layouts.
struct PlanInput {
  PlannedModel planned;
  EngineConfig config;
  BackendChoice backend;
  bool here = false;           // on a machine like this one
  int32_t apart = 1;           // engines of replicas that share nothing, on this node
  int32_t replicas = 1;        // such engines, of all nodes of the web server
  int32_t local_replicas = 0;  // that each node has by its flags, of either kind
  int32_t first_replica = 0;   // of this node, of these
  bool replicas_stay = false;  // other servers or nodes have some that are not planned here
};

// How the replicas lie.
void CountReplicas(const ServeOptions& options, PlanInput& in) {
  const ReplicaOptions& given = options.replicas;
  // A web server without replicas plans one, as other nodes have them.
  if (!given.share_experts) {
    in.apart = std::max(1, given.here);
    in.replicas = options.headless ? in.apart : std::max(1, given.served());
  }
  if (given.here > 0 && options.given_values.contains("data_parallel_size_local")) {
    in.local_replicas = given.share_experts ? given.total / given.nodes : given.here;
    in.first_replica = given.first;
  }
  in.replicas_stay =
      !given.share_experts && (in.replicas != given.total || given.here == 0 ||
                               (in.local_replicas > 0 && given.total % in.local_replicas != 0));
}

// What does not run is refused for what its numbers say.
Status CheckNumbers(const EngineConfig& config, const K2Config& model, bool gpu) {
  const ParallelLayout layout = LayoutOf(config);
  BT_RETURN_IF_ERROR(CheckLayout(layout, ShapeOf(model)));
  BT_RETURN_IF_ERROR(CheckNodes(layout, config.nodes));
  if (gpu) BT_RETURN_IF_ERROR(CheckGpuTakes(config, model));
  return config.deterministic ? CheckFixedOrder(layout, config.nodes, gpu) : Status();
}

// Beside the weights of the model.
Status CountFurther(const PlanInput& in,
                    const EngineConfig& config,
                    const K2Config& model,
                    PlanOptions& options) {
  if (!in.planned.described) {
    BT_RETURN_IF_ERROR(CountDraft(config, model, in.backend, options));
  }
  return CountPictures(in.planned, config, model, in.backend, options);
}

// Of another layout than the one that was asked for.
Status Settle(const PlanInput& in, const K2Config& model, PlanOptions& options) {
  const bool same_replicas =
      options.layout.data == LayoutOf(in.config).data && options.replicas == in.replicas;
  if (in.replicas_stay && !same_replicas) {
    return InvalidArgument("--data-parallel-size: other servers have replicas that stay");
  }
  EngineConfig config = in.config;
  config.tensor_parallel_size = options.layout.tensor;
  config.pipeline_parallel_size = options.layout.pipeline;
  config.data_parallel_size = options.layout.data;
  config.enable_expert_parallel = options.layout.whole_experts;
  config.nodes = options.nodes;
  BT_RETURN_IF_ERROR(CheckNumbers(config, model, in.backend.gpu.has_value()));
  if (!options.weight_bytes.empty()) {
    BT_ASSIGN_OR_RETURN(options.weight_bytes,
                        FullestOfStages(config, model, options.layout, in.backend));
  }
  return CountFurther(in, config, model, options);
}

Result<MemoryPlan> PlanHost(const PlanInput& in, double utilisation) {
  const EngineConfig& config = in.config;
  const BackendChoice& backend = in.backend;
  const DType act = backend.ops->act;
  ModelDescription model = in.planned.described.value_or(ModelDescription{.name = in.planned.dir});
  if (!in.planned.described) {
    BT_ASSIGN_OR_RETURN(model.config, K2Config::Read(in.planned.dir));
  }
  PlanOptions options;
  options.layout = LayoutOf(config);
  options.nodes = config.nodes;
  options.replicas = in.replicas;
  options.local_replicas = in.local_replicas;
  options.first_replica = in.first_replica;
  BT_RETURN_IF_ERROR(CheckNumbers(config, model.config, backend.gpu.has_value()));
  // Read where the cache is made; here what is wrong with them is told.
  BT_RETURN_IF_ERROR(ReadGivenKvScales(config, model.config).status());
  BT_RETURN_IF_ERROR(CountWeightsOf(in.planned, config, backend, in.here, model, options));
  BT_RETURN_IF_ERROR(CountFurther(in, config, model.config, options));
  model.plain = PlainForm(act);
  // The ranks of this node, and its replicas, share its memory, where it is a CPU.
  const auto host_bytes = static_cast<int64_t>(AvailableHostMemory());
  options.device = {.name = "this machine",
                    .memory_bytes = host_bytes / (options.layout.ranks() / config.nodes) / in.apart,
                    .gpu = false};
  if (backend.gpu) {
    options.device = {.name = backend.gpu->name, .memory_bytes = backend.gpu->memory_bytes};
    options.utilisation = utilisation;
    options.graphs = !config.enforce_eager;
  }
  options.kv_cache_bytes = config.kv_cache_bytes;
  options.max_model_len = config.max_model_len;
  options.allow_longer = config.allow_long_max_model_len;
  options.max_num_seqs = config.max_num_seqs;
  options.drafts = config.speculation.drafts;
  options.max_num_batched_tokens = config.max_num_batched_tokens;
  BT_ASSIGN_OR_RETURN(options.kv, ParseKvForm(config.kv_cache_dtype, act));
  CountSteps(model.config, config.deterministic, options);
  options.settle = [kept = std::make_shared<const PlanInput>(in), shape = model.config](
                       PlanOptions& other) { return Settle(*kept, shape, other); };
  BT_ASSIGN_OR_RETURN(MemoryPlan plan, PlanMemory(model, options));
  Advise(plan);
  return plan;
}

std::string Misfit(const MemoryPlan& plan, const std::string& device) {
  std::string text = MisfitText(plan);
  if (device == "auto" && plan.options.device.gpu) {
    text += ". To compute on the CPU nevertheless, give --device cpu";
  }
  return text;
}

}  // namespace

Result<HostPlan> PlanRun(const ServeOptions& options,
                         const PlannedModel& model,
                         const std::optional<DeviceSpec>& gpu,
                         EngineConfig& config) {
  if (config.load_format == "stand-in") {
    BT_RETURN_IF_ERROR(CheckStandIn(config));
    return HostPlan{
        .notices = JudgeRun(options.open_flags, FactsOf(options, config, DType::kBf16)).notices};
  }
  ChooseKernelLoading(LayoutOf(config).ranks());
  BT_ASSIGN_OR_RETURN(
      const BackendChoice backend,
      gpu ? ChooseDescribedGpu(config, {.name = gpu->name, .memory_bytes = gpu->memory_bytes})
          : ChooseBackend(config));
  config.device = backend.gpu ? "cuda" : "cpu";
  const RunFacts facts = FactsOf(options, config, backend.ops->act);
  const Availability judged = JudgeRun(options.open_flags, facts);
  if (!judged.refusals.empty()) {
    return InvalidArgument(fmt::format("{}", fmt::join(judged.refusals, "\n")));
  }
  HostPlan out{.notices = judged.notices};
  if (backend.gpu) {
    out.notices.insert(out.notices.end(), options.graphs.notices.begin(),
                       options.graphs.notices.end());
  }
  SettleForRun(facts, config);
  BT_RETURN_IF_ERROR(CheckExpertGroup(LayoutOf(config)));
  BT_RETURN_IF_ERROR(CheckExpertBalance(LayoutOf(config), config.deterministic));
  PlanInput input{.planned = model, .config = config, .backend = backend, .here = !gpu};
  CountReplicas(options, input);
  if (!gpu) BT_RETURN_IF_ERROR(CheckGpusOfNode(config, input.apart));
  BT_ASSIGN_OR_RETURN(out.memory, PlanHost(input, options.gpu_memory_utilization));
  if (const std::string& note = out.memory->options.pictures.note;
      !note.empty() && !config.mm_encoder_tp_mode.empty()) {
    out.notices.push_back(
        fmt::format("--mm-encoder-tp-mode {} has no effect here: the encoder is {}",
                    config.mm_encoder_tp_mode, note));
  }
  if (!Fits(*out.memory)) out.misfit = Misfit(*out.memory, gpu ? "cuda" : options.device);
  return out;
}

Status KeepTo(const HostPlan& plan, EngineConfig& config) {
  for (const std::string& notice : plan.notices) BT_LOG(Warning, "{}", notice);
  if (!plan.memory) return {};
  for (const std::string& line : ShortPlanText(*plan.memory)) BT_LOG(Info, "{}", line);
  if (!plan.misfit.empty()) return InvalidArgument(plan.misfit);
  // Ranks of all stages hold the same blocks; the engine divides by the largest.
  int64_t blocks = INT64_MAX, token_bytes = 0;
  const std::vector<RankPlan>& stages = plan.memory->stages;
  for (const RankPlan& rank : stages) {
    blocks = std::min(blocks, rank.kv_blocks);
    token_bytes = std::max(token_bytes, rank.kv_token_bytes);
  }
  config.kv_cache_bytes =
      stages.size() == 1 ? stages.front().kv_bytes : blocks * kBlockTokens * token_bytes;
  return {};
}

}  // namespace baltoro
