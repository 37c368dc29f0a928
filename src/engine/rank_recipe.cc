#include "engine/rank_recipe.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <string>
#include <utility>

#include "base/log.h"
#include "comm/link_communicator.h"
#include "engine/draft_choice.h"
#include "engine/gpu_ranks.h"
#include "schedule/scheduler.h"

namespace baltoro {
namespace {

constexpr double kGiB = 1 << 30;
constexpr int kMaskThreadsMax = 8;
constexpr Seconds kStartTimeout = 3600;  // ranks read weights at different rates

// A rank among others, or alone: without `ranks` and `link`.
struct Part {
  const OpsTable& ops;
  ModelRanks* ranks = nullptr;
  Link* link = nullptr;
  bool samples = true;
  bool tells = true;                  // of its start, in the log
  std::function<Status()> meet = {};  // returns when all ranks are there; empty: there is one
};

// The draft model, or this rank's part of it, if it has one.
Result<WorkerDraft> LoadDraft(const RankRecipe& recipe,
                              const Part& part,
                              WeightSource& target,
                              ThreadPool* pool) {
  const EngineConfig& config = recipe.args.config;
  const std::optional<K2Config>& shape = recipe.memory.draft;
  const std::string& dir = config.speculation.model;
  WorkerDraft draft;
  if (!shape) return draft;
  const bool shared = DraftLayout(config).tensor > 1;
  if (shared ? !part.ranks->share().last_stage() : !part.samples) return draft;
  BT_ASSIGN_OR_RETURN(const std::unique_ptr<WeightSource> source,
                      OpenDraftWeights(dir, *shape, target));
  K2LoadOptions options;
  options.positions_max = recipe.load.positions_max;
  options.quiet = true;
  if (shared) {
    BT_ASSIGN_OR_RETURN(draft.team, DraftTeam::Join(part.link, part.ranks));
    options.ranks = &draft.team->ranks();
  }
  BT_ASSIGN_OR_RETURN(draft.model, K2Model::Load(*shape, *source, part.ops, pool, options));
  if (!config.enforce_eager) draft.model->UseGraphs();
  BT_ASSIGN_OR_RETURN(draft.tokens, ReadDraftTokens(dir, *shape));
  // Of several replicas one tells.
  const ParallelLayout& layout = recipe.args.layout;
  const bool tells = part.link == nullptr || PlaceOf(layout, part.link->rank()).data ==
                                                 PlaceOf(layout, recipe.held.front()).data;
  if (!part.samples || !tells) return draft;
  BT_LOG(Info, "Draft model {}: {:.3f} GiB{}, up to {} drafts a step", dir,
         static_cast<double>(draft.model->weight_bytes()) / kGiB,
         shared ? fmt::format(" on each of {} ranks", config.speculation.draft_ranks) : "",
         config.speculation.drafts);
  return draft;
}

// Of the rank's layers, and of its draft model where it has one.
KvLayout CacheOf(const RankRecipe& recipe, const K2Model& model, const K2Model* draft) {
  const int64_t blocks = recipe.memory.budget.num_blocks;
  const int64_t ways = model.share().layout.decode_context;
  KvLayout cache{.layers = model.layers(),
                 .num_blocks = static_cast<int32_t>((blocks + ways - 1) / ways),
                 .latent = static_cast<int32_t>(model.config().kv_lora),
                 .rope = static_cast<int32_t>(model.config().rope_dim),
                 .form = recipe.memory.kv.form};
  if (draft == nullptr) return cache;
  cache.draft_blocks = static_cast<int32_t>(blocks);
  const CacheWidths widths = draft->cache_widths();
  cache.draft_latent = static_cast<int32_t>(widths.latent);
  cache.draft_rope = static_cast<int32_t>(widths.rope);
  cache.draft_form = PlainKvForm(model.ops().act);
  return cache;
}

// Of experts that a rank gets in a step: on GPUs two of K2 in INT4, a few hundred microseconds.
constexpr int64_t kHostStepBytes = int64_t{16} << 20, kGpuStepBytes = int64_t{48} << 20;

// Of a rank: one of each node tells.
std::optional<ExpertBalanceOptions> BalanceOf(const RankRecipe& recipe, bool tells) {
  if (recipe.balance == nullptr) return std::nullopt;
  const EngineConfig& config = recipe.args.config;
  return ExpertBalanceOptions{
      .window = config.balance.window,
      .interval = config.balance.interval,
      .gradual = config.balance.gradual,
      .log_interval = config.balance.log_interval,
      .measured = kBalanceSteps,
      .tells = tells,
      .model = config.model_dir,
      .tell = [gauge = recipe.balance](const BalanceNews& news) { gauge->Tell(news); },
      .step_bytes = recipe.args.gpu() ? kGpuStepBytes : kHostStepBytes};
}

WorkerConfig WorkerConfigOf(const RankRecipe& recipe, const Part& part, int threads) {
  const EngineConfig& config = recipe.args.config;
  const std::optional<K2Config>& draft = recipe.memory.draft;
  const int32_t sampled =
      SampledRowsMax(config.max_num_seqs, config.speculation.drafts, config.max_num_batched_tokens);
  return {.max_num_seqs = config.max_num_seqs,
          .max_num_batched_tokens = config.max_num_batched_tokens,
          .logits_rows_max = std::max(sampled, recipe.fixed.decode_rows) +
                             SchedulerConfig{}.prompt_logprob_rows_max,
          .constraints = part.samples ? recipe.constraints : nullptr,
          .mask_threads = std::clamp(threads / 4, 1, kMaskThreadsMax),
          .graph_sizes = config.graph_sizes,
          .fixed = recipe.fixed,
          .tap_layers = draft ? draft->draft->tap_layers : std::vector<int32_t>(),
          .samples = part.samples,
          .quiet = !part.tells,
          .speculation = config.speculation,
          .balance = BalanceOf(recipe, part.tells)};
}

Result<std::unique_ptr<Worker>> MakeWorker(const RankRecipe& recipe,
                                           WeightSource& source,
                                           const Part& part,
                                           RankStart& told) {
  const EngineConfig& config = recipe.args.config;
  const MonotonicClock clock;
  const Seconds start = clock.Now();
  auto pool = std::make_unique<ThreadPool>(recipe.threads);
  K2LoadOptions load = recipe.load;
  load.ranks = part.ranks;
  if (!part.tells) load.progress = nullptr;
  load.quiet = !part.tells;
  BT_ASSIGN_OR_RETURN(std::unique_ptr<K2Model> model,
                      K2Model::Load(recipe.args.model, source, part.ops, pool.get(), load));
  if (!config.enforce_eager) model->UseGraphs();
  if (part.tells) {
    told.loaded = clock.Now();
    BT_LOG(Info, "Loading weights took {:.2f} seconds", told.loaded - start);
    BT_LOG(Info, "Model loading took {:.4f} GiB memory and {:.6f} seconds",
           static_cast<double>(model->weight_bytes()) / kGiB, told.loaded - start);
  }
  BT_ASSIGN_OR_RETURN(WorkerDraft draft, LoadDraft(recipe, part, source, pool.get()));
  std::unique_ptr<PictureMemory> pictures;
  if (recipe.memory.pictures.choice && model->share().first_stage()) {
    BT_ASSIGN_OR_RETURN(pictures,
                        LoadPictures(*recipe.memory.pictures.choice, source, part.ops, pool.get(),
                                     model->share().place.tensor,
                                     load.ranks == nullptr ? nullptr : &load.ranks->ops()));
  }
  BT_ASSIGN_OR_RETURN(
      KvStorage storage,
      KvStorage::Create(CacheOf(recipe, *model, draft.model.get()), *part.ops.memory));
  WorkerConfig worker = WorkerConfigOf(recipe, part, pool->threads());
  BT_ASSIGN_OR_RETURN(worker.kv_scales,
                      FindKvScales(config, recipe.memory.kv, part.meet, load.quiet, *model));
  BT_ASSIGN_OR_RETURN(std::unique_ptr<Worker> made,
                      Worker::Create(worker, std::move(pool), std::move(model), std::move(storage),
                                     std::move(draft), std::move(pictures)));
  if (part.tells) told.step_seconds = made->largest_step_seconds();
  return made;
}

// Of a rank on GPU `device`.
Result<std::unique_ptr<ModelRanks>> JoinGpus(const RankRecipe& recipe,
                                             const OpsTable& ops,
                                             int device,
                                             Link* link) {
  const EngineConfig& config = recipe.args.config;
  const GpuRankOptions gpu{
      .ops = &ops,
      .device = device,
      .tokens_max = std::max(config.max_num_batched_tokens, recipe.fixed.decode_rows)};
  BT_ASSIGN_OR_RETURN(std::unique_ptr<ModelRanks> ranks,
                      JoinGpuRanks(link, recipe.args.layout, recipe.args.model, gpu));
  if (config.deterministic && !ranks->ops().adds_in_order()) {
    return InvalidArgument(
        "--deterministic: NCCL adds what the GPUs found in an order that depends on the batch, "
        "and these GPUs cannot read each other's memory");
  }
  return ranks;
}

Result<RankParts> MakeRankParts(const RankRecipe& recipe,
                                Link* link,
                                bool samples,
                                RankStart& start) {
  const ParallelLayout& layout = recipe.args.layout;
  WeightChoice quiet = recipe.args.weights;
  quiet.quiet = true;
  BT_ASSIGN_OR_RETURN(const std::unique_ptr<WeightSource> source,
                      OpenWeights(recipe.args.config.model_dir, quiet));
  RankParts parts;
  const OpsTable* ops = &recipe.args.ops;
  if (recipe.args.gpu()) {
    const auto at = std::ranges::find(recipe.held, link->rank());
    const auto device = static_cast<int>(at - recipe.held.begin());
    BT_ASSIGN_OR_RETURN(ops, OpenBackend(recipe.args.backend, device));
    BT_ASSIGN_OR_RETURN(parts.ranks, JoinGpus(recipe, *ops, device, link));
  } else {
    BT_ASSIGN_OR_RETURN(parts.ranks, ModelRanks::Join(link, layout));
  }
  GroupOptions everyone{.name = "start", .ranks = {}, .call_timeout = kStartTimeout};
  for (int32_t rank = 0; rank < layout.ranks(); ++rank) everyone.ranks.push_back(rank);
  BT_ASSIGN_OR_RETURN(const std::unique_ptr<Communicator> all, JoinGroup(link, everyone));
  const Part part{.ops = *ops,
                  .ranks = parts.ranks.get(),
                  .link = link,
                  .samples = samples,
                  .tells = link->rank() == recipe.held.front(),
                  .meet = [&all] { return all->Barrier(); }};
  BT_ASSIGN_OR_RETURN(parts.worker, MakeWorker(recipe, *source, part, start));
  return parts;
}

}  // namespace

Result<std::unique_ptr<Worker>> MakeOnlyRank(const RankRecipe& recipe,
                                             WeightSource& source,
                                             RankStart& start) {
  return MakeWorker(recipe, source, {.ops = recipe.args.ops}, start);
}

MakeRank RankMaker(const RankRecipe& recipe, RankStart& start) {
  return [&recipe, &start](Link* link, bool samples) {
    return MakeRankParts(recipe, link, samples, start);
  };
}

}  // namespace baltoro
