#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <utility>

#include "base/clock.h"
#include "base/log.h"
#include "engine/backend_choice.h"
#include "engine/expert_group.h"
#include "engine/followed_constraints.h"
#include "engine/group_team.h"
#include "engine/layout_choice.h"
#include "engine/load_choice.h"
#include "engine/local_engine.h"
#include "engine/local_executor.h"
#include "engine/memory_choice.h"
#include "engine/modelled_exchange.h"
#include "engine/node_agreement.h"
#include "engine/node_follower.h"
#include "engine/rank_recipe.h"
#include "engine/rank_team.h"
#include "engine/stand_in.h"
#include "engine/start_args.h"
#include "engine/start_log.h"
#include "engine/tuned_table.h"
#include "ops/cpu/cpu_use.h"
#include "ops/cpu/isa.h"
#include "parallel/nodes.h"

namespace baltoro {

namespace {

// What a stream can stand still for while a prompt is computed; see docs/operating.md.
constexpr double kCpuStepMs = 250, kGpuStepMs = 60;
constexpr int32_t kRanksMax = 1024;  // in a row or beside one another

// What must be the same on all nodes, so that ranks compute the same bits of what they all compute.
std::string OperationsName(const OpsTable& ops, const BackendChoice& backend) {
  return fmt::format("{} on {}", ops.name,
                     backend.gpu ? backend.gpu->name : std::string(cpu::NameOf(cpu::ActiveIsa())));
}

// Behind attention and behind the experts.
int64_t SumsOfStep(const K2Config& model) {
  return 2 * model.layers;
}

// Nothing where none is asked for.
Result<ModelledExchange> ChooseExchange(const EngineConfig& config, int64_t sums) {
  BT_ASSIGN_OR_RETURN(ModelledExchange exchange, ModelledExchange::Parse(config.modelled_exchange));
  if (exchange.empty()) return exchange;
  const auto step = static_cast<double>(sums) * 1e6;
  BT_LOG(Warning,
         "MODELLED: each step waits for {} sums over tensor ranks that are not there: {:.0f} us "
         "for one row, {:.0f} us for 64",
         sums, step * exchange.SumOf(1), step * exchange.SumOf(64));
  return exchange;
}

// Whom the engine talks to.
struct Callers {
  EventSink sink;
  const LoadProgress& progress;
  const ConstraintFactoryMaker& constraints;
};

// Of the requests' constraints; both null where none can be made.
struct Constraints {
  std::shared_ptr<ConstraintFactory> factory;
  std::shared_ptr<ConstraintTable> table;
};

Constraints MakeConstraints(const StartArgs& args, const ConstraintFactoryMaker& maker) {
  Constraints made;
  bool samples = args.config.node_rank == 0;
  for (int32_t i = 0; args.layout.data > 1 && i < args.layout.data; ++i) {
    const int32_t node = NodeThatSamples(args.layout, args.config.nodes, i);
    samples = samples || node == args.config.node_rank;
  }
  if (maker && samples) {
    made.factory = maker(TokenizerDir(args.config), static_cast<int32_t>(args.model.vocab));
  }
  if (made.factory != nullptr) made.table = std::make_shared<ConstraintTable>();
  return made;
}

WeightOptions WeightOptionsOf(const StartArgs& args) {
  WeightOptions options;
  options.quantise_fp8_inputs = args.gpu();
  options.alike_layers = args.config.alike_layers;
  return options;
}

K2LoadOptions LoadOptionsOf(const StartArgs& args,
                            const MemoryChoice& memory,
                            const LoadProgress& progress) {
  K2LoadOptions load;
  load.weights = WeightOptionsOf(args);
  load.positions_max = memory.budget.max_model_len;
  load.read_kv_scales = memory.kv.form == KvForm::kFp8 && memory.kv.scales.empty() &&
                        !memory.kv.measure && args.weights.format != LoadFormat::kDummy;
  load.progress = progress;
  return load;
}

// What runs the plans of this node.
struct Executors {
  std::vector<std::unique_ptr<Executor>> of_replicas;
  std::unique_ptr<LocalRanks> followers;  // of a node that is not the head, instead
};

Result<Executors> StartExecutors(const RankRecipe& recipe,
                                 WeightSource& source,
                                 ModelledExchange exchange,
                                 std::unique_ptr<NodeWorld>& nodes,
                                 RankStart& start) {
  const EngineConfig& config = recipe.args.config;
  const ParallelLayout& layout = recipe.args.layout;
  Executors out;
  if (layout.ranks() == 1) {
    BT_ASSIGN_OR_RETURN(std::unique_ptr<Worker> worker, MakeOnlyRank(recipe, source, start));
    out.of_replicas.push_back(std::make_unique<LocalExecutor>(
        WithExchanges(std::move(worker), std::move(exchange), SumsOfStep(recipe.args.model)),
        config.async_scheduling ? 2 : 1));
    return out;
  }
  BT_LOG(Info, "{} of {} ranks in this process: tensor {}, pipeline {}, decode context {}{}",
         recipe.held.size(), layout.ranks(), layout.tensor, layout.pipeline, layout.decode_context,
         layout.data > 1 ? fmt::format(", {} replicas that share experts", layout.data) : "");
  if (layout.balanced_experts) {
    BT_LOG(Info, "Experts move and are doubled by their load: {} redundant ones, every {} steps",
           layout.redundant_experts, config.balance.interval);
  }
  const MakeRank make = RankMaker(recipe, start);
  if (config.node_rank > 0) {
    BT_ASSIGN_OR_RETURN(out.followers, StartRanksOfNode(*nodes, layout, make));
  } else if (layout.data > 1) {
    BT_ASSIGN_OR_RETURN(
        const std::shared_ptr<GroupTeam> team,
        GroupTeam::Start(layout, make, std::move(nodes), config.balance_scheduling));
    out.of_replicas = GroupTeam::Members(team);
  } else {
    BT_ASSIGN_OR_RETURN(std::unique_ptr<Executor> team,
                        RankTeam::Start(layout, make, std::move(nodes), config.async_scheduling));
    out.of_replicas.push_back(std::move(team));
  }
  return out;
}

EngineInfo InfoOf(const RankRecipe& recipe, bool constraints, double load, double step) {
  const StartArgs& args = recipe.args;
  const ParallelLayout& layout = args.layout;
  const KvBudget& budget = recipe.memory.budget;
  EngineInfo info{.model_type = args.model.model_type,
                  .max_model_len = budget.max_model_len,
                  .vocab_size = args.model.vocab,
                  .replicas = layout.data,
                  .num_blocks = budget.num_blocks,
                  .kv_cache_tokens = budget.num_blocks * kBlockTokens,
                  .kv_cache_bytes = budget.bytes,
                  .kv_cache_dtype = KvFormName(recipe.memory.kv.form),
                  .load_seconds = load,
                  .longest_step_seconds = 0,
                  .constraints = constraints,
                  .picture_tokens_max = 0,
                  .fixed = recipe.fixed};
  const PictureAnswer& pictures = recipe.memory.pictures;
  info.no_pictures = pictures.why_not;
  if (pictures.choice) pictures.choice->Tell(info);
  // The step that was tried is of one layer of each kind.
  info.longest_step_seconds = step * static_cast<double>(args.model.layers) *
                              PassesMax(recipe.fixed, args.config.max_num_batched_tokens);
  return info;
}

// The engine of a node that is not the head: it runs what the head sends.
std::unique_ptr<Engine> MakeFollower(const StartArgs& args,
                                     const EngineInfo& info,
                                     const Constraints& constraints,
                                     std::unique_ptr<NodeWorld> nodes,
                                     std::unique_ptr<LocalRanks> ranks) {
  const StepPlanLimits limits{.max_num_seqs = args.config.max_num_seqs,
                              .num_blocks = static_cast<int32_t>(info.num_blocks),
                              .vocab = args.model.vocab,
                              .picture_rows = info.picture_rows};
  return std::make_unique<NodeFollower>(info, limits, args.layout,
                                        FollowedConstraints(constraints.factory, constraints.table),
                                        std::move(nodes), std::move(ranks));
}

// The engine of a replica, or of those that share experts.
std::unique_ptr<Engine> MakeReplicas(const StartArgs& args,
                                     const EngineInfo& info,
                                     std::vector<std::unique_ptr<Executor>> executors,
                                     const EventSink& sink,
                                     const Constraints& constraints,
                                     const std::shared_ptr<const BalanceGauge>& balance) {
  const bool group = args.layout.data > 1;
  EngineConfig timed = args.config;
  if (timed.target_step_ms < 0) timed.target_step_ms = args.gpu() ? kGpuStepMs : kCpuStepMs;
  // How long a step of a group takes does not follow from what one replica plans.
  if (group) timed.target_step_ms = 0;
  if (timed.target_step_ms > 0 && !timed.deterministic) {
    BT_LOG(Info, "Prompts are cut for steps of {} ms while others wait for tokens.",
           timed.target_step_ms);
  }
  std::vector<std::unique_ptr<LocalEngine>> replicas;
  for (size_t i = 0; i < executors.size(); ++i) {
    const EventSink own = group ? ExpertGroup::SinkOf(static_cast<int32_t>(i), sink) : sink;
    replicas.push_back(std::make_unique<LocalEngine>(timed, info, std::move(executors[i]), own,
                                                     constraints.factory, constraints.table,
                                                     i == 0 ? balance : nullptr));
  }
  if (!group) return std::move(replicas.front());
  return std::make_unique<ExpertGroup>(std::move(replicas));
}

// With the other nodes of the replica, if there are any; after an error they are not needed.
Result<std::unique_ptr<Engine>> StartRanks(const StartArgs& args,
                                           const Callers& callers,
                                           std::unique_ptr<NodeWorld>& nodes) {
  const EngineConfig& config = args.config;
  const MonotonicClock clock;
  const Seconds begun = clock.Now();
  const std::vector<int32_t> held = RanksOfNode(args.layout, config.nodes, config.node_rank);
  if (args.gpu()) BT_RETURN_IF_ERROR(CheckGpus(static_cast<int32_t>(held.size())));
  BT_ASSIGN_OR_RETURN(ModelledExchange exchange, ChooseExchange(config, SumsOfStep(args.model)));
  // Before weights are read: what cannot work should not take minutes to say so.
  BT_ASSIGN_OR_RETURN(const std::unique_ptr<WeightSource> source,
                      OpenWeights(config.model_dir, args.weights));
  BT_ASSIGN_OR_RETURN(const MemoryChoice memory,
                      ChooseMemory(args, WeightOptionsOf(args), *source, held, nodes.get()));
  const Constraints constraints = MakeConstraints(args, callers.constraints);
  const cpu::CpuUse use = cpu::FindCpuUse(config.threads, static_cast<int>(held.size()));
  LogOperations(args, use);
  RankRecipe recipe{
      .args = args,
      .memory = memory,
      .load = LoadOptionsOf(args, memory, callers.progress),
      .threads = use.threads,
      .held = held,
      .constraints = constraints.table,
      .balance = args.layout.balanced_experts ? std::make_shared<BalanceGauge>() : nullptr};
  if (config.deterministic && args.gpu()) {
    recipe.fixed = ChooseFixedSteps(config.max_num_batched_tokens, memory.budget.max_model_len);
  }
  if (config.deterministic) LogDeterministic(config, recipe.fixed);
  RankStart start{.loaded = begun};
  BT_ASSIGN_OR_RETURN(Executors executors,
                      StartExecutors(recipe, *source, std::move(exchange), nodes, start));
  LogCache(args, memory.budget, memory.kv.form);
  const EngineInfo info =
      InfoOf(recipe, constraints.factory != nullptr, start.loaded - begun, start.step_seconds);
  BT_LOG(Info, "init engine (profile, create kv cache, warmup model) took {:.2f} seconds",
         clock.Now() - start.loaded);
  if (executors.followers != nullptr) {
    return MakeFollower(args, info, constraints, std::move(nodes), std::move(executors.followers));
  }
  return MakeReplicas(args, info, std::move(executors.of_replicas), callers.sink, constraints,
                      recipe.balance);
}

}  // namespace

Result<std::unique_ptr<Engine>> StartEngine(const EngineConfig& config,
                                            EventSink sink,
                                            const LoadProgress& progress,
                                            const ConstraintFactoryMaker& constraints) {
  if (config.max_num_seqs < 1 || config.max_num_batched_tokens < 1 ||
      config.max_queued_requests < 1) {
    return InvalidArgument(
        "--max-num-seqs, --max-num-batched-tokens and the queue's limit must be at least 1");
  }
  if (config.load_format == "stand-in") {
    BT_RETURN_IF_ERROR(CheckStandIn(config));
    return StartStandInEngine(config, std::move(sink), constraints);
  }
  BT_ASSIGN_OR_RETURN(const WeightChoice choice, ChooseWeights(config));
  ChooseKernelLoading(LayoutOf(config).ranks());
  BT_ASSIGN_OR_RETURN(const BackendChoice backend, ChooseBackend(config));
  const ParallelLayout layout = LayoutOf(config);
  if (std::max(layout.tensor, layout.pipeline) > kRanksMax) {
    return InvalidArgument(fmt::format(
        "--tensor-parallel-size and --pipeline-parallel-size are at most {}", kRanksMax));
  }
  BT_ASSIGN_OR_RETURN(const K2Config model, K2Config::Read(config.model_dir));
  BT_RETURN_IF_ERROR(UseTunedTables(config.tuned_config, config.tuned_config_folder,
                                    config.model_dir, layout.tensor, backend));
  BT_ASSIGN_OR_RETURN(const OpsTable* const ops, OpenBackend(backend));
  if (backend.gpu) BT_RETURN_IF_ERROR(CheckGpuTakes(config, model));
  BT_RETURN_IF_ERROR(CheckLayout(layout, ShapeOf(model)));
  BT_RETURN_IF_ERROR(CheckExpertGroup(layout));
  BT_RETURN_IF_ERROR(CheckExpertBalance(layout, config.deterministic));
  BT_RETURN_IF_ERROR(CheckNodes(layout, config.nodes));
  if (config.deterministic) {
    BT_RETURN_IF_ERROR(CheckFixedOrder(layout, config.nodes, backend.gpu.has_value()));
  }
  std::unique_ptr<NodeWorld> nodes;
  if (config.nodes > 1) {
    BT_ASSIGN_OR_RETURN(nodes, JoinNodes(config, OperationsName(*ops, backend)));
  }
  const StartArgs args{.config = config,
                       .backend = backend,
                       .ops = *ops,
                       .weights = choice,
                       .layout = layout,
                       .model = model};
  const Callers callers{.sink = std::move(sink), .progress = progress, .constraints = constraints};
  Result<std::unique_ptr<Engine>> engine = StartRanks(args, callers, nodes);
  // Those who wait for this node hear why they wait in vain.
  if (!engine.ok() && nodes != nullptr) nodes->Abort(engine.status().message());
  return engine;
}

}  // namespace baltoro
