#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <initializer_list>
#include <string_view>
#include <utility>

#include "base/clock.h"
#include "base/log.h"
#include "comm/link_communicator.h"
#include "engine/backend_choice.h"
#include "engine/balance_gauge.h"
#include "engine/draft_choice.h"
#include "engine/expert_group.h"
#include "engine/gpu_ranks.h"
#include "engine/group_team.h"
#include "engine/kv_budget.h"
#include "engine/layout_choice.h"
#include "engine/load_choice.h"
#include "engine/local_engine.h"
#include "engine/local_executor.h"
#include "engine/modelled_exchange.h"
#include "engine/node_agreement.h"
#include "engine/node_follower.h"
#include "engine/picture_choice.h"
#include "engine/rank_team.h"
#include "engine/stand_in.h"
#include "engine/tuned_table.h"
#include "engine/worker.h"
#include "model/kv_scales.h"
#include "model/weight_count.h"
#include "ops/cpu/cpu_use.h"
#include "ops/cpu/isa.h"
#include "parallel/nodes.h"

namespace baltoro {

namespace {

constexpr double kGiB = 1 << 30;
constexpr int kMaskThreadsMax = 8;
// What a stream can stand still for while a prompt is computed; see docs/operating.md.
constexpr double kCpuStepMs = 250, kGpuStepMs = 60;
constexpr Seconds kStartTimeout = 3600;  // ranks read weights at different rates
constexpr int32_t kRanksMax = 1024;      // in a row or beside one another

// A line for each of these variables that is set, and not to 0.
void NoteUnused(std::initializer_list<const char*> names, const char* why) {
  for (const char* const name : names) {
    const char* const value = std::getenv(name);
    if (value == nullptr || *value == '\0' || std::string_view(value) == "0") continue;
    BT_LOG(Warning, "{}={} changes nothing: {}", name, value, why);
  }
}

// The form of the KV cache and, where a file gives them, its scales.
struct KvChoice {
  KvForm form = KvForm::kBf16;
  std::vector<float> scales;  // one a layer; empty: those of the checkpoint, else 1
  bool measure = false;       // --calculate-kv-scales
};

Result<KvChoice> ChooseKv(const EngineConfig& config, const K2Config& model, DType act) {
  KvChoice choice;
  BT_ASSIGN_OR_RETURN(choice.form, ParseKvForm(config.kv_cache_dtype, act));
  if (choice.form != KvForm::kFp8) return choice;  // without a scale a layer
  choice.measure = config.calculate_kv_scales;
  BT_ASSIGN_OR_RETURN(choice.scales, ReadGivenKvScales(config, model));
  return choice;
}

// The scales of an fp8 cache, and, unless `quiet`, a line that says where they are from.
Result<std::vector<float>> FindScales(const EngineConfig& config,
                                      const KvChoice& kv,
                                      const std::function<Status()>& meet,
                                      bool quiet,
                                      K2Model& model) {
  if (kv.form != KvForm::kFp8) return std::vector<float>();
  std::vector<float> scales = model.kv_scales();
  if (!kv.scales.empty()) {
    const IndexRange held = model.share().layers(model.config());
    scales = {kv.scales.begin() + held.begin, kv.scales.begin() + held.end};
  }
  std::string from = kv.scales.empty() ? "the checkpoint" : config.kv_scale_file;
  if (kv.measure) {
    BT_ASSIGN_OR_RETURN(scales, MeasureKvScales(model, meet));
    from = "a trial of the model";
  }
  if (quiet) return scales;
  if (scales.empty()) {
    BT_LOG(Info, "The checkpoint has no scales of an fp8 KV cache: all are 1.0");
    return scales;
  }
  const auto [least, most] = std::minmax_element(scales.begin(), scales.end());
  BT_LOG(Info, "Scales of the fp8 KV cache are those of {}: {} to {}", from, *least, *most);
  return scales;
}

// What all ranks of the replica are made from.
struct Recipe {
  const EngineConfig& config;
  const K2Config& model;
  const BackendChoice& backend;
  const OpsTable* ops = nullptr;
  const KvBudget& budget;
  const KvChoice& kv;
  const std::optional<K2Config>& draft;
  const PictureAnswer& pictures;
  K2LoadOptions load;
  FixedSteps fixed = {};
  int threads = 0;
  std::vector<int32_t> held = {};                   // ranks of this node, the n-th on GPU n
  std::shared_ptr<BalanceGauge> balance = nullptr;  // null: experts stay where they are
};

// A rank among others, or alone: without `ranks` and `link`.
struct Part {
  ModelRanks* ranks = nullptr;
  Link* link = nullptr;
  bool samples = true;
  std::function<Status()> meet = {};  // returns when all ranks are there; empty: there is one
};

// The draft model, or this rank's part of it, if it has one.
Result<WorkerDraft> LoadDraft(const Recipe& recipe,
                              const Part& part,
                              WeightSource& target,
                              ThreadPool* pool) {
  const std::string& dir = recipe.config.speculation.model;
  WorkerDraft draft;
  if (!recipe.draft) return draft;
  const bool shared = DraftLayout(recipe.config).tensor > 1;
  if (shared ? !part.ranks->share().last_stage() : !part.samples) return draft;
  BT_ASSIGN_OR_RETURN(const std::unique_ptr<WeightSource> source,
                      OpenDraftWeights(dir, *recipe.draft, target));
  K2LoadOptions options;
  options.positions_max = recipe.load.positions_max;
  options.quiet = true;
  if (shared) {
    BT_ASSIGN_OR_RETURN(draft.team, DraftTeam::Join(part.link, part.ranks));
    options.ranks = &draft.team->ranks();
  }
  BT_ASSIGN_OR_RETURN(draft.model,
                      K2Model::Load(*recipe.draft, *source, *recipe.ops, pool, options));
  if (!recipe.config.enforce_eager) draft.model->UseGraphs();
  BT_ASSIGN_OR_RETURN(draft.tokens, ReadDraftTokens(dir, *recipe.draft));
  if (!part.samples) return draft;
  BT_LOG(Info, "Draft model {}: {:.3f} GiB{}, up to {} drafts a step", dir,
         static_cast<double>(draft.model->weight_bytes()) / kGiB,
         shared ? fmt::format(" on each of {} ranks", recipe.config.speculation.draft_ranks) : "",
         recipe.config.speculation.drafts);
  return draft;
}

// Of a rank: `tells` is true for one of each node.
std::optional<ExpertBalanceOptions> BalanceOf(const Recipe& recipe, bool tells) {
  if (recipe.balance == nullptr) return std::nullopt;
  const BalanceConfig& config = recipe.config.balance;
  return ExpertBalanceOptions{
      .window = config.window,
      .interval = config.interval,
      .gradual = config.gradual,
      .log_interval = config.log_interval,
      .tells = tells,
      .model = recipe.config.model_dir,
      .tell = [gauge = recipe.balance](const BalanceNews& news) { gauge->Tell(news); }};
}

Result<std::unique_ptr<Worker>> MakeWorker(const Recipe& recipe,
                                           WeightSource& source,
                                           const Part& part,
                                           std::shared_ptr<const ConstraintTable> constraints,
                                           Seconds* loaded) {
  const EngineConfig& config = recipe.config;
  const MonotonicClock clock;
  const Seconds start = clock.Now();
  auto pool = std::make_unique<ThreadPool>(recipe.threads);
  K2LoadOptions load = recipe.load;
  load.ranks = part.ranks;
  BT_ASSIGN_OR_RETURN(std::unique_ptr<K2Model> model,
                      K2Model::Load(recipe.model, source, *recipe.ops, pool.get(), load));
  if (!config.enforce_eager) model->UseGraphs();
  if (loaded != nullptr) {
    *loaded = clock.Now();
    BT_LOG(Info, "Loading weights took {:.2f} seconds", *loaded - start);
    BT_LOG(Info, "Model loading took {:.4f} GiB memory and {:.6f} seconds",
           static_cast<double>(model->weight_bytes()) / kGiB, *loaded - start);
  }
  BT_ASSIGN_OR_RETURN(WorkerDraft draft, LoadDraft(recipe, part, source, pool.get()));
  std::unique_ptr<PictureMemory> pictures;
  if (recipe.pictures.choice && model->share().first_stage()) {
    BT_ASSIGN_OR_RETURN(pictures,
                        LoadPictures(*recipe.pictures.choice, source, *recipe.ops, pool.get(),
                                     model->share().place.tensor,
                                     part.ranks == nullptr ? nullptr : &part.ranks->ops()));
  }
  const int64_t ways = model->share().layout.decode_context;
  KvLayout cache{.layers = model->layers(),
                 .num_blocks = static_cast<int32_t>((recipe.budget.num_blocks + ways - 1) / ways),
                 .latent = static_cast<int32_t>(recipe.model.kv_lora),
                 .rope = static_cast<int32_t>(recipe.model.rope_dim),
                 .form = recipe.kv.form};
  if (draft.model != nullptr) {
    cache.draft_blocks = static_cast<int32_t>(recipe.budget.num_blocks);
    const CacheWidths widths = draft.model->cache_widths();
    cache.draft_latent = static_cast<int32_t>(widths.latent);
    cache.draft_rope = static_cast<int32_t>(widths.rope);
    cache.draft_form = PlainKvForm(recipe.ops->act);
  }
  BT_ASSIGN_OR_RETURN(KvStorage storage, KvStorage::Create(cache, *recipe.ops->memory));
  BT_ASSIGN_OR_RETURN(std::vector<float> scales,
                      FindScales(config, recipe.kv, part.meet, recipe.load.quiet, *model));
  const WorkerConfig worker{
      .max_num_seqs = config.max_num_seqs,
      .max_num_batched_tokens = config.max_num_batched_tokens,
      .logits_rows_max = std::max(SampledRowsMax(config.max_num_seqs, config.speculation.drafts,
                                                 config.max_num_batched_tokens),
                                  recipe.fixed.decode_rows) +
                         SchedulerConfig{}.prompt_logprob_rows_max,
      .constraints = part.samples ? std::move(constraints) : nullptr,
      .mask_threads = std::clamp(pool->threads() / 4, 1, kMaskThreadsMax),
      .kv_scales = std::move(scales),
      .graph_sizes = config.graph_sizes,
      .fixed = recipe.fixed,
      .tap_layers = recipe.draft ? recipe.draft->draft->tap_layers : std::vector<int32_t>(),
      .samples = part.samples,
      .speculation = config.speculation,
      .balance = BalanceOf(recipe, !recipe.load.quiet)};
  return Worker::Create(worker, std::move(pool), std::move(model), std::move(storage),
                        std::move(draft), std::move(pictures));
}

// Of the stage that has most.
int64_t LayersOfStage(const ParallelLayout& layout, const K2Config& model) {
  int64_t most = 0;
  for (int32_t stage = 0; stage < layout.pipeline; ++stage) {
    most = std::max(most, StageLayers(layout, model.layers, stage).size());
  }
  return most;
}

// What one rank of this node may have beside its weights. Ranks on a CPU share its memory; each of
// those on GPUs has its own, of which the first stands for all.
Result<int64_t> CacheRoom(const EngineConfig& config,
                          const BackendChoice& backend,
                          const OpsTable& ops,
                          WeightSource& source,
                          const K2Config& model,
                          const WeightOptions& weights,
                          const ParallelLayout& layout,
                          std::span<const int32_t> held) {
  if (config.kv_cache_bytes > 0) return 0;  // nobody asks
  BT_ASSIGN_OR_RETURN(const std::vector<int64_t> bytes,
                      CountWeights(model, source, ops, weights, layout));
  int64_t most = 0, together = 0;
  for (const int32_t rank : held) {
    most = std::max(most, bytes[static_cast<size_t>(rank)]);
    together += bytes[static_cast<size_t>(rank)];
  }
  const auto available = static_cast<int64_t>(ops.memory->Available());
  if (backend.gpu) return std::max<int64_t>(available - most, 0);
  return std::max<int64_t>(available - together, 0) / std::ssize(held);
}

// One rank a thread; each opens the weights itself. One of each node tells of its loading. What is
// borrowed must live until the ranks are ready.
MakeRank RankMaker(const ParallelLayout& layout,
                   const Recipe& recipe,
                   const WeightChoice& choice,
                   const std::shared_ptr<const ConstraintTable>& table,
                   int32_t telling_rank,
                   Seconds* loaded,
                   double* step_seconds) {
  return [&layout, &recipe, &choice, table, telling_rank, loaded, step_seconds](
             Link* link, bool samples) -> Result<RankParts> {
    const bool tells = link->rank() == telling_rank;
    WeightChoice quiet = choice;
    quiet.quiet = true;
    BT_ASSIGN_OR_RETURN(const std::unique_ptr<WeightSource> source,
                        OpenWeights(recipe.config.model_dir, quiet));
    Recipe of_rank = recipe;
    if (!tells) of_rank.load.progress = nullptr;
    of_rank.load.quiet = !tells;
    RankParts parts;
    if (recipe.backend.gpu) {
      const auto at = std::ranges::find(recipe.held, link->rank());
      const auto device = static_cast<int>(at - recipe.held.begin());
      BT_ASSIGN_OR_RETURN(of_rank.ops, OpenBackend(recipe.backend, device));
      const GpuRankOptions gpu{
          .ops = of_rank.ops,
          .device = device,
          .tokens_max = std::max(recipe.config.max_num_batched_tokens, recipe.fixed.decode_rows)};
      BT_ASSIGN_OR_RETURN(parts.ranks, JoinGpuRanks(link, layout, recipe.model, gpu));
      if (recipe.config.deterministic && !parts.ranks->ops().adds_in_order()) {
        return InvalidArgument(
            "--deterministic: NCCL adds what the GPUs found in an order that depends on the batch, "
            "and these GPUs cannot read each other's memory");
      }
    } else {
      BT_ASSIGN_OR_RETURN(parts.ranks, ModelRanks::Join(link, layout));
    }
    GroupOptions everyone{.name = "start", .ranks = {}, .call_timeout = kStartTimeout};
    for (int32_t rank = 0; rank < layout.ranks(); ++rank) everyone.ranks.push_back(rank);
    BT_ASSIGN_OR_RETURN(const std::unique_ptr<Communicator> all, JoinGroup(link, everyone));
    const Part part{.ranks = parts.ranks.get(), .link = link, .samples = samples, .meet = [&all] {
                      return all->Barrier();
                    }};
    BT_ASSIGN_OR_RETURN(std::unique_ptr<Worker> worker,
                        MakeWorker(of_rank, *source, part, table, tells ? loaded : nullptr));
    if (tells) *step_seconds = worker->largest_step_seconds();
    parts.worker = std::move(worker);
    return parts;
  };
}

void LogDeterministic(const EngineConfig& config, const FixedSteps& fixed) {
  if (fixed.prompt_chunk == 0) {
    BT_LOG(Info, "Deterministic: other requests find prompts in the prefix cache, never answers.");
    return;
  }
  BT_LOG(
      Info,
      "Deterministic: prompts in steps of {} tokens of one request, answers in steps of {} rows; "
      "the prefix cache has whole steps of prompts.",
      fixed.prompt_chunk, fixed.decode_rows);
  if (!config.graph_sizes.empty()) {
    BT_LOG(Info, "The sizes asked for to be recorded have no effect with --deterministic.");
  }
}

void LogPictures(const PictureAnswer& pictures) {
  if (!pictures.why_not.empty()) {
    BT_LOG(Info, "Pictures are not taken: {}", pictures.why_not);
  }
  if (!pictures.choice) return;
  const PictureChoice& choice = *pictures.choice;
  if (choice.ranks > 1) {
    BT_LOG(Info, "Pictures: each of {} tensor ranks has {} (--mm-encoder-tp-mode {}){}{}",
           choice.ranks,
           choice.shared_out ? "the whole encoder and some of the pictures"
                             : "some heads and columns of the encoder",
           choice.shared_out ? "data" : "weights", choice.note.empty() ? "" : ": ", choice.note);
  }
  BT_LOG(
      Info,
      "Pictures: an encoder of {} layers, {:.2f} GiB of weights and {:.2f} GiB of workspace, and "
      "{} rows of encoded pictures in {:.2f} GiB",
      choice.encoder.layers, static_cast<double>(choice.bytes.weights) / kGiB,
      static_cast<double>(choice.bytes.workspace) / kGiB, choice.rows,
      static_cast<double>(choice.bytes.rows) / kGiB);
}

void LogCache(const EngineConfig& config, const KvBudget& budget, KvForm form, bool gpu) {
  const int64_t tokens = budget.num_blocks * kBlockTokens;
  BT_LOG(Info, "Available KV cache memory: {:.2f} GiB", static_cast<double>(budget.bytes) / kGiB);
  BT_LOG(Info, "GPU KV cache size: {} tokens ({}as {})", tokens, gpu ? "" : "in host memory, ",
         KvFormName(form));
  BT_LOG(Info, "Maximum concurrency for {} tokens per request: {:.2f}x", budget.max_model_len,
         static_cast<double>(tokens) / static_cast<double>(budget.max_model_len));
  BT_LOG(Info, "Chunked prefill is enabled with max_num_batched_tokens={}. Prefix caching is {}.",
         config.max_num_batched_tokens, config.enable_prefix_caching ? "enabled" : "disabled");
  if (!config.async_scheduling) return;
  const ParallelLayout layout = LayoutOf(config);
  if (layout.ranks() == 1 || RankTeam::CanPlanAhead(layout, config.nodes)) {
    BT_LOG(Info, "Asynchronous scheduling is enabled.");
  } else if (gpu) {
    BT_LOG(Info, "No asynchronous scheduling: as many plans are under way as there are stages.");
  }
}

// What must be the same on all nodes, so that ranks compute the same bits of what they all compute.
std::string OperationsName(const OpsTable& ops, const BackendChoice& backend) {
  return fmt::format("{} on {}", ops.name,
                     backend.gpu ? backend.gpu->name : std::string(cpu::NameOf(cpu::ActiveIsa())));
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

// With the other nodes of the replica, if there are any; after an error they are not needed.
Result<std::unique_ptr<Engine>> StartRanks(const EngineConfig& config,
                                           const BackendChoice& backend,
                                           const OpsTable& ops,
                                           const WeightChoice& choice,
                                           const ParallelLayout& layout,
                                           const K2Config& model_config,
                                           EventSink sink,
                                           const LoadProgress& progress,
                                           const ConstraintFactoryMaker& constraints,
                                           std::unique_ptr<NodeWorld>& nodes) {
  const MonotonicClock clock;
  const Seconds start = clock.Now();
  const std::vector<int32_t> held = RanksOfNode(layout, config.nodes, config.node_rank);
  if (backend.gpu) BT_RETURN_IF_ERROR(CheckGpus(static_cast<int32_t>(held.size())));
  BT_ASSIGN_OR_RETURN(const KvChoice kv, ChooseKv(config, model_config, ops.act));
  const int64_t sums = 2 * model_config.layers;  // behind attention and behind the experts
  BT_ASSIGN_OR_RETURN(ModelledExchange exchange, ChooseExchange(config, sums));
  K2LoadOptions load;
  load.weights.quantise_fp8_inputs = backend.gpu.has_value();
  load.weights.alike_layers = config.alike_layers;
  // Before weights are read: what cannot work should not take minutes to say so.
  BT_ASSIGN_OR_RETURN(const std::unique_ptr<WeightSource> source,
                      OpenWeights(config.model_dir, choice));
  BT_ASSIGN_OR_RETURN(int64_t available, CacheRoom(config, backend, ops, *source, model_config,
                                                   load.weights, layout, held));
  int64_t token_bytes = KvBytesPerToken(model_config, kv.form, LayersOfStage(layout, model_config));
  BT_ASSIGN_OR_RETURN(const std::optional<K2Config> draft,
                      ChooseDraft(config, model_config, backend.gpu.has_value()));
  if (draft) {
    BT_ASSIGN_OR_RETURN(const int64_t bytes, CountDraftWeights(config, *draft, *source, ops));
    available = std::max<int64_t>(available - bytes, 0);
    token_bytes += DraftBytesPerToken(config, *draft, ops.act) * layout.decode_context;
  }
  BT_ASSIGN_OR_RETURN(const PictureAnswer pictures,
                      ChoosePictures({.config = config,
                                      .model_dir = config.model_dir,
                                      .model = model_config,
                                      .ops = ops,
                                      .gpu = backend.gpu.has_value(),
                                      .ranks_here = static_cast<int32_t>(held.size())}));
  LogPictures(pictures);
  if (pictures.choice) {
    available = std::max<int64_t>(available - pictures.choice->bytes.total(), 0);
  }
  const KvQuestion question{.bytes_asked = config.kv_cache_bytes,
                            .bytes_available = available,
                            .bytes_per_token = token_bytes,
                            .ways = layout.decode_context,
                            .model_len = model_config.positions_max,
                            .max_model_len = config.max_model_len,
                            .allow_longer = config.allow_long_max_model_len};
  BT_ASSIGN_OR_RETURN(KvBudget budget, PlanKvCache(question));
  if (nodes != nullptr) {
    BT_ASSIGN_OR_RETURN(budget, AgreeOnCache(*nodes, budget, question));
  }

  std::shared_ptr<ConstraintFactory> factory;
  std::shared_ptr<ConstraintTable> table;
  if (constraints && config.node_rank == 0)
    factory = constraints(TokenizerDir(config), static_cast<int32_t>(model_config.vocab));
  if (factory != nullptr) table = std::make_shared<ConstraintTable>();

  const cpu::CpuUse use = cpu::FindCpuUse(config.threads, static_cast<int>(held.size()));
  if (backend.gpu) {
    BT_LOG(Info, "Operations: {} on {}", ops.name, backend.gpu->name);
    NoteUnused({"BALTORO_CPU"}, "it is for operations on a CPU");
    if (!backend.gpu->launches_overlap) {
      BT_LOG(Warning, "BALTORO_NO_OVERLAP=1: kernels start one after the other, which takes time");
    }
    if (backend.gpu->kernel_overrides > 0) {
      BT_LOG(Warning, "BALTORO_KERNEL_TABLE: {} entries say which kernels compute what they name",
             backend.gpu->kernel_overrides);
    }
  } else {
    BT_LOG(Info, "Operations: {} on {}", ops.name,
           cpu::Describe(use, cpu::NameOf(cpu::ActiveIsa())));
    NoteUnused({"BALTORO_KERNEL_TABLE", "BALTORO_NO_OVERLAP"}, "it is for kernels on a GPU");
  }
  load.positions_max = budget.max_model_len;
  load.read_kv_scales = kv.form == KvForm::kFp8 && kv.scales.empty() && !kv.measure &&
                        choice.format != LoadFormat::kDummy;
  load.progress = progress;
  FixedSteps fixed;
  if (config.deterministic && backend.gpu) {
    fixed = ChooseFixedSteps(config.max_num_batched_tokens, budget.max_model_len);
  }
  if (config.deterministic) LogDeterministic(config, fixed);
  Recipe recipe{.config = config,
                .model = model_config,
                .backend = backend,
                .ops = &ops,
                .budget = budget,
                .kv = kv,
                .draft = draft,
                .pictures = pictures,
                .load = load,
                .fixed = fixed,
                .threads = use.threads,
                .held = held,
                .balance = layout.balanced_experts ? std::make_shared<BalanceGauge>() : nullptr};
  Seconds loaded = start;
  double step_seconds = 0;
  std::vector<std::unique_ptr<Executor>> executors(1);  // of each replica
  std::unique_ptr<LocalRanks> followers;
  if (layout.ranks() == 1) {
    BT_ASSIGN_OR_RETURN(std::unique_ptr<Worker> worker,
                        MakeWorker(recipe, *source, {}, table, &loaded));
    step_seconds = worker->largest_step_seconds();
    executors[0] =
        std::make_unique<LocalExecutor>(WithExchanges(std::move(worker), std::move(exchange), sums),
                                        config.async_scheduling ? 2 : 1);
  } else {
    BT_LOG(Info, "{} of {} ranks in this process: tensor {}, pipeline {}, decode context {}{}",
           held.size(), layout.ranks(), layout.tensor, layout.pipeline, layout.decode_context,
           layout.data > 1 ? fmt::format(", {} replicas that share experts", layout.data) : "");
    if (layout.balanced_experts) {
      BT_LOG(Info, "Experts move and are doubled by their load: {} redundant ones, every {} steps",
             layout.redundant_experts, config.balance.interval);
    }
    const MakeRank make =
        RankMaker(layout, recipe, choice, table, held.front(), &loaded, &step_seconds);
    if (config.node_rank > 0) {
      BT_ASSIGN_OR_RETURN(followers, StartRanksOfNode(*nodes, layout, make));
    } else if (layout.data > 1) {
      BT_ASSIGN_OR_RETURN(const std::shared_ptr<GroupTeam> team,
                          GroupTeam::Start(layout, make, std::move(nodes)));
      executors = GroupTeam::Members(team);
    } else {
      BT_ASSIGN_OR_RETURN(executors[0],
                          RankTeam::Start(layout, make, std::move(nodes), config.async_scheduling));
    }
  }
  LogCache(config, budget, kv.form, backend.gpu.has_value());

  EngineInfo info{.model_type = model_config.model_type,
                  .max_model_len = budget.max_model_len,
                  .vocab_size = model_config.vocab,
                  .replicas = layout.data,
                  .num_blocks = budget.num_blocks,
                  .kv_cache_tokens = budget.num_blocks * kBlockTokens,
                  .kv_cache_bytes = budget.bytes,
                  .kv_cache_dtype = KvFormName(kv.form),
                  .load_seconds = loaded - start,
                  .longest_step_seconds = 0,
                  .constraints = factory != nullptr,
                  .picture_tokens_max = 0,
                  .fixed = fixed};
  for (int32_t i = 1; layout.data > 1 && i < layout.data; ++i) {
    if (NodeThatSamples(layout, config.nodes, i) == 0) info.constraint_replicas = i + 1;
  }
  info.no_pictures = pictures.why_not;
  if (pictures.choice) pictures.choice->Tell(info);
  // That is of one layer of each kind.
  info.longest_step_seconds = step_seconds * static_cast<double>(model_config.layers) *
                              PassesMax(fixed, config.max_num_batched_tokens);
  BT_LOG(Info, "init engine (profile, create kv cache, warmup model) took {:.2f} seconds",
         clock.Now() - loaded);
  if (followers != nullptr) {
    const StepPlanLimits limits{.max_num_seqs = config.max_num_seqs,
                                .num_blocks = static_cast<int32_t>(budget.num_blocks),
                                .vocab = model_config.vocab,
                                .picture_rows = info.picture_rows};
    return std::unique_ptr<Engine>(std::make_unique<NodeFollower>(
        info, limits, layout, std::move(nodes), std::move(followers)));
  }
  EngineConfig timed = config;
  if (config.target_step_ms < 0) timed.target_step_ms = backend.gpu ? kGpuStepMs : kCpuStepMs;
  // How long a step of a group takes does not follow from what one replica plans.
  if (layout.data > 1) timed.target_step_ms = 0;
  if (timed.target_step_ms > 0 && !config.deterministic) {
    BT_LOG(Info, "Prompts are cut for steps of {} ms while others wait for tokens.",
           timed.target_step_ms);
  }
  std::vector<std::unique_ptr<LocalEngine>> replicas;
  for (size_t i = 0; i < executors.size(); ++i) {
    const EventSink own =
        layout.data > 1 ? ExpertGroup::SinkOf(static_cast<int32_t>(i), sink) : sink;
    replicas.push_back(std::make_unique<LocalEngine>(timed, info, std::move(executors[i]), own,
                                                     factory, table,
                                                     i == 0 ? recipe.balance : nullptr));
  }
  if (layout.data == 1) return std::unique_ptr<Engine>(std::move(replicas.front()));
  return std::unique_ptr<Engine>(std::make_unique<ExpertGroup>(std::move(replicas)));
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
  BT_ASSIGN_OR_RETURN(const K2Config model_config, K2Config::Read(config.model_dir));
  BT_RETURN_IF_ERROR(UseTunedTables(config.tuned_config, config.tuned_config_folder,
                                    config.model_dir, layout.tensor, backend));
  BT_ASSIGN_OR_RETURN(const OpsTable* const ops, OpenBackend(backend));
  if (backend.gpu) BT_RETURN_IF_ERROR(CheckGpuTakes(config, model_config));
  BT_RETURN_IF_ERROR(CheckLayout(layout, ShapeOf(model_config)));
  BT_RETURN_IF_ERROR(CheckExpertGroup(layout, backend.gpu.has_value()));
  BT_RETURN_IF_ERROR(CheckExpertBalance(layout, backend.gpu.has_value(), config.deterministic));
  BT_RETURN_IF_ERROR(CheckNodes(layout, config.nodes));
  if (config.deterministic) {
    BT_RETURN_IF_ERROR(CheckFixedOrder(layout, config.nodes, backend.gpu.has_value()));
  }
  std::unique_ptr<NodeWorld> nodes;
  if (config.nodes > 1) {
    BT_ASSIGN_OR_RETURN(nodes, JoinNodes(config, OperationsName(*ops, backend)));
  }
  Result<std::unique_ptr<Engine>> engine =
      StartRanks(config, backend, *ops, choice, layout, model_config, std::move(sink), progress,
                 constraints, nodes);
  // Those who wait for this node hear why they wait in vain.
  if (!engine.ok() && nodes != nullptr) nodes->Abort(engine.status().message());
  return engine;
}

}  // namespace baltoro
