#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "base/log.h"
#include "engine/backend_choice.h"
#include "engine/kv_budget.h"
#include "engine/load_choice.h"
#include "engine/local_engine.h"
#include "engine/stand_in.h"
#include "engine/worker.h"
#include "model/kv_scales.h"
#include "ops/cpu/isa.h"

namespace baltoro {

namespace {

constexpr double kGiB = 1 << 30;
constexpr int kMaskThreadsMax = 8;

// The form of the KV cache and, where a file gives them, its scales.
struct KvChoice {
  KvForm form = KvForm::kBf16;
  std::vector<float> scales;  // one a layer; empty: those of the checkpoint, else 1
  bool measure = false;       // --calculate-kv-scales
};

Result<KvChoice> ChooseKv(const EngineConfig& config, const K2Config& model, DType act) {
  KvChoice choice;
  BT_ASSIGN_OR_RETURN(choice.form, ParseKvForm(config.kv_cache_dtype, act));
  const bool by_file = !config.kv_scale_file.empty();
  if (!by_file && !config.calculate_kv_scales) return choice;
  if (by_file && config.calculate_kv_scales) {
    return InvalidArgument(
        "--calculate-kv-scales and --quantization-param-path both say where scales come from: "
        "give one of them");
  }
  if (choice.form != KvForm::kFp8) {
    BT_LOG(Warning, "{} has no effect: a KV cache in {} has no scale a layer",
           by_file ? "--quantization-param-path" : "--calculate-kv-scales",
           KvFormName(choice.form));
    return choice;
  }
  choice.measure = !by_file;
  if (!by_file) return choice;
  BT_ASSIGN_OR_RETURN(choice.scales, ReadKvScaleFile(config.kv_scale_file, model, /*ranks=*/1));
  return choice;
}

// The scales of an fp8 cache, and a line that says where they are from.
Result<std::vector<float>> FindScales(const EngineConfig& config,
                                      const KvChoice& kv,
                                      K2Model& model) {
  if (kv.form != KvForm::kFp8) return std::vector<float>();
  std::vector<float> scales = kv.scales.empty() ? model.kv_scales() : kv.scales;
  std::string from = kv.scales.empty() ? "the checkpoint" : config.kv_scale_file;
  if (kv.measure) {
    BT_ASSIGN_OR_RETURN(scales, MeasureKvScales(model));
    from = "a trial of the model";
  }
  if (scales.empty()) {
    BT_LOG(Info, "The checkpoint has no scales of an fp8 KV cache: all are 1.0");
    return scales;
  }
  const auto [least, most] = std::minmax_element(scales.begin(), scales.end());
  BT_LOG(Info, "Scales of the fp8 KV cache are those of {}: {} to {}", from, *least, *most);
  return scales;
}

Result<std::unique_ptr<Worker>> MakeWorker(const EngineConfig& config,
                                           const KvBudget& budget,
                                           const KvChoice& kv,
                                           std::unique_ptr<ThreadPool> pool,
                                           std::unique_ptr<K2Model> model,
                                           std::shared_ptr<const ConstraintTable> constraints) {
  const K2Config& c = model->config();
  BT_ASSIGN_OR_RETURN(KvStorage storage,
                      KvStorage::Create({.layers = c.layers,
                                         .num_blocks = static_cast<int32_t>(budget.num_blocks),
                                         .latent = static_cast<int32_t>(c.kv_lora),
                                         .rope = static_cast<int32_t>(c.rope_dim),
                                         .form = kv.form},
                                        *model->ops().memory));
  BT_ASSIGN_OR_RETURN(std::vector<float> scales, FindScales(config, kv, *model));
  const WorkerConfig worker{
      .max_num_seqs = config.max_num_seqs,
      .max_num_batched_tokens = config.max_num_batched_tokens,
      .logits_rows_max = std::min(config.max_num_seqs, config.max_num_batched_tokens) +
                         SchedulerConfig{}.prompt_logprob_rows_max,
      .constraints = std::move(constraints),
      .mask_threads = std::clamp(pool->threads() / 4, 1, kMaskThreadsMax),
      .kv_scales = std::move(scales)};
  return Worker::Create(worker, std::move(pool), std::move(model), std::move(storage));
}

void LogCache(const EngineConfig& config, const KvBudget& budget, KvForm form, bool gpu) {
  const int64_t tokens = budget.num_blocks * kBlockTokens;
  BT_LOG(Info, "Available KV cache memory: {:.2f} GiB", static_cast<double>(budget.bytes) / kGiB);
  BT_LOG(Info, "GPU KV cache size: {} tokens ({}as {})", tokens, gpu ? "" : "in host memory, ",
         KvFormName(form));
  BT_LOG(Info, "Maximum concurrency for {} tokens per request: {:.2f}x", budget.max_model_len,
         static_cast<double>(tokens) / static_cast<double>(budget.max_model_len));
  BT_LOG(Info, "Chunked prefill is enabled with max_num_batched_tokens={}.",
         config.max_num_batched_tokens);
  if (config.async_scheduling) BT_LOG(Info, "Asynchronous scheduling is enabled.");
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
    return StartStandInEngine(config, std::move(sink), constraints);
  }
  BT_ASSIGN_OR_RETURN(const WeightChoice choice, ChooseWeights(config));
  BT_ASSIGN_OR_RETURN(const BackendChoice backend, ChooseBackend(config));
  BT_ASSIGN_OR_RETURN(const OpsTable* const opened, OpenBackend(backend));
  const OpsTable& ops = *opened;
  const MonotonicClock clock;
  const Seconds start = clock.Now();
  BT_ASSIGN_OR_RETURN(const K2Config model_config, K2Config::Read(config.model_dir));
  BT_ASSIGN_OR_RETURN(const KvChoice kv, ChooseKv(config, model_config, ops.act));
  K2LoadOptions load;
  load.weights.quantise_fp8_inputs = backend.gpu.has_value();
  // Before weights are read: what cannot work should not take minutes to say so.
  BT_ASSIGN_OR_RETURN(const std::unique_ptr<WeightSource> source,
                      OpenWeights(config.model_dir, choice));
  int64_t weight_bytes = config.weight_bytes;
  if (weight_bytes == 0) {
    BT_ASSIGN_OR_RETURN(const WeightPlan plan,
                        PlanWeights(model_config, *source, ops, load.weights));
    weight_bytes = WeightBytes(plan, ops);
  }
  const auto available = static_cast<int64_t>(ops.memory->Available());
  BT_ASSIGN_OR_RETURN(
      const KvBudget budget,
      PlanKvCache({.bytes_asked = config.kv_cache_bytes,
                   .bytes_available = std::max<int64_t>(available - weight_bytes, 0),
                   .bytes_per_token = KvBytesPerToken(model_config, kv.form, model_config.layers),
                   .model_len = model_config.positions_max,
                   .max_model_len = config.max_model_len,
                   .allow_longer = config.allow_long_max_model_len}));

  std::shared_ptr<ConstraintFactory> factory;
  std::shared_ptr<ConstraintTable> table;
  if (constraints)
    factory = constraints(TokenizerDir(config), static_cast<int32_t>(model_config.vocab));
  if (factory != nullptr) table = std::make_shared<ConstraintTable>();

  auto pool = std::make_unique<ThreadPool>(config.threads);
  if (backend.gpu) {
    BT_LOG(Info, "Operations: {} on {}", ops.name, backend.gpu->name);
  } else {
    BT_LOG(Info, "Operations: {} on {}, {} threads", ops.name, cpu::NameOf(cpu::ActiveIsa()),
           pool->threads());
  }
  load.positions_max = budget.max_model_len;
  load.read_kv_scales = kv.form == KvForm::kFp8 && kv.scales.empty() && !kv.measure &&
                        choice.format != LoadFormat::kDummy;
  load.progress = progress;
  BT_ASSIGN_OR_RETURN(std::unique_ptr<K2Model> model,
                      K2Model::Load(model_config, *source, ops, pool.get(), load));
  if (!config.enforce_eager) model->UseGraphs();
  const Seconds loaded = clock.Now();
  BT_LOG(Info, "Loading weights took {:.2f} seconds", loaded - start);
  BT_LOG(Info, "Model loading took {:.4f} GiB memory and {:.6f} seconds",
         static_cast<double>(model->weight_bytes()) / kGiB, loaded - start);
  LogCache(config, budget, kv.form, backend.gpu.has_value());

  EngineInfo info{.model_type = model_config.model_type,
                  .max_model_len = budget.max_model_len,
                  .vocab_size = model_config.vocab,
                  .num_blocks = budget.num_blocks,
                  .kv_cache_tokens = budget.num_blocks * kBlockTokens,
                  .kv_cache_bytes = budget.bytes,
                  .kv_cache_dtype = KvFormName(kv.form),
                  .load_seconds = loaded - start,
                  .longest_step_seconds = 0,
                  .constraints = factory != nullptr};
  BT_ASSIGN_OR_RETURN(std::unique_ptr<Worker> worker,
                      MakeWorker(config, budget, kv, std::move(pool), std::move(model), table));
  // The trial ran one layer of each kind.
  info.longest_step_seconds = worker->trial_seconds() * model_config.layers;
  BT_LOG(Info, "init engine (profile, create kv cache, warmup model) took {:.2f} seconds",
         clock.Now() - loaded);
  std::unique_ptr<Engine> engine = std::make_unique<LocalEngine>(
      config, info, std::move(worker), std::move(sink), std::move(factory), std::move(table));
  return engine;
}

}  // namespace baltoro
