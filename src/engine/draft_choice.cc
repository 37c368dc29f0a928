#include "engine/draft_choice.h"

#include <fmt/format.h>

#include "model/k2_model.h"
#include "model/weight_count.h"

namespace baltoro {

Result<std::optional<K2Config>> ChooseDraft(const EngineConfig& config, const K2Config& target) {
  if (config.speculation.method != DraftMethod::kEagle3) return std::optional<K2Config>();
  const auto draft = ReadDraftConfig(config.speculation.model, target);
  if (!draft.ok()) {
    return Status(draft.status().code(), "--speculative-config: " + draft.status().message());
  }
  return std::optional(draft.value());
}

Result<int64_t> CountDraftWeights(const EngineConfig& config,
                                  const K2Config& draft,
                                  WeightSource& target,
                                  const OpsTable& ops) {
  BT_ASSIGN_OR_RETURN(const std::unique_ptr<WeightSource> source,
                      OpenDraftWeights(config.speculation.model, draft, target));
  BT_ASSIGN_OR_RETURN(const std::vector<int64_t> bytes, CountWeights(draft, *source, ops, {}, {}));
  return bytes[0];
}

int64_t DraftBytesPerToken(const K2Config& draft, DType act) {
  return KvBytesPerToken(draft, PlainKvForm(act), 1);
}

}  // namespace baltoro
