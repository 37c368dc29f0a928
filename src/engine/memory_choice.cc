#include "engine/memory_choice.h"

#include <algorithm>
#include <string>

#include "base/log.h"
#include "engine/draft_choice.h"
#include "engine/load_choice.h"
#include "engine/node_agreement.h"
#include "engine/start_log.h"
#include "model/kv_scales.h"
#include "model/weight_count.h"

namespace baltoro {
namespace {

Result<KvChoice> ChooseKv(const EngineConfig& config, const K2Config& model, DType act) {
  KvChoice choice;
  BT_ASSIGN_OR_RETURN(choice.form, ParseKvForm(config.kv_cache_dtype, act));
  if (choice.form != KvForm::kFp8) return choice;  // without a scale a layer
  choice.measure = config.calculate_kv_scales;
  BT_ASSIGN_OR_RETURN(choice.scales, ReadGivenKvScales(config, model));
  return choice;
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
Result<int64_t> CacheRoom(const StartArgs& args,
                          const WeightOptions& weights,
                          WeightSource& source,
                          std::span<const int32_t> held) {
  if (args.config.kv_cache_bytes > 0) return 0;  // nobody asks
  BT_ASSIGN_OR_RETURN(const std::vector<int64_t> bytes,
                      CountWeights(args.model, source, args.ops, weights, args.layout));
  int64_t most = 0, together = 0;
  for (const int32_t rank : held) {
    most = std::max(most, bytes[static_cast<size_t>(rank)]);
    together += bytes[static_cast<size_t>(rank)];
  }
  const auto available = static_cast<int64_t>(args.ops.memory->Available());
  if (args.gpu()) return std::max<int64_t>(available - most, 0);
  return std::max<int64_t>(available - together, 0) / std::ssize(held);
}

}  // namespace

Result<MemoryChoice> ChooseMemory(const StartArgs& args,
                                  const WeightOptions& weights,
                                  WeightSource& source,
                                  std::span<const int32_t> held,
                                  NodeWorld* nodes) {
  const EngineConfig& config = args.config;
  MemoryChoice choice;
  BT_ASSIGN_OR_RETURN(choice.kv, ChooseKv(config, args.model, args.ops.act));
  BT_ASSIGN_OR_RETURN(int64_t available, CacheRoom(args, weights, source, held));
  int64_t token_bytes =
      KvBytesPerToken(args.model, choice.kv.form, LayersOfStage(args.layout, args.model));
  BT_ASSIGN_OR_RETURN(choice.draft, ChooseDraft(config, args.model, args.gpu()));
  if (choice.draft) {
    BT_ASSIGN_OR_RETURN(const int64_t bytes,
                        CountDraftWeights(config, *choice.draft, source, args.ops));
    available = std::max<int64_t>(available - bytes, 0);
    token_bytes +=
        DraftBytesPerToken(config, *choice.draft, args.ops.act) * args.layout.decode_context;
  }
  BT_ASSIGN_OR_RETURN(choice.pictures,
                      ChoosePictures({.config = config,
                                      .model_dir = config.model_dir,
                                      .model = args.model,
                                      .ops = args.ops,
                                      .gpu = args.gpu(),
                                      .ranks_here = static_cast<int32_t>(held.size())}));
  LogPictures(choice.pictures);
  if (choice.pictures.choice) {
    available = std::max<int64_t>(available - choice.pictures.choice->bytes.total(), 0);
  }
  const KvQuestion question{.bytes_asked = config.kv_cache_bytes,
                            .bytes_available = available,
                            .bytes_per_token = token_bytes,
                            .ways = args.layout.decode_context,
                            .model_len = args.model.positions_max,
                            .max_model_len = config.max_model_len,
                            .allow_longer = config.allow_long_max_model_len};
  BT_ASSIGN_OR_RETURN(choice.budget, PlanKvCache(question));
  if (nodes != nullptr) {
    BT_ASSIGN_OR_RETURN(choice.budget, AgreeOnCache(*nodes, choice.budget, question));
  }
  return choice;
}

Result<std::vector<float>> FindKvScales(const EngineConfig& config,
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

}  // namespace baltoro
