#include "engine/draft_choice.h"

#include <fmt/format.h>

#include "engine/backend_choice.h"
#include "model/k2_model.h"
#include "model/weight_count.h"

namespace baltoro {

Result<std::optional<K2Config>> ChooseDraft(const EngineConfig& config,
                                            const K2Config& target,
                                            bool gpu) {
  if (config.speculation.method != DraftMethod::kEagle3) return std::optional<K2Config>();
  const auto draft = ReadDraftConfig(config.speculation.model, target);
  if (!draft.ok()) return OfDraft(draft.status());
  const Status taken = gpu ? CheckGpuTakesDraft(config, draft.value()) : Status();
  if (!taken.ok()) return OfDraft(taken);
  return std::optional(draft.value());
}

Result<int64_t> CountDraftWeights(const EngineConfig& config,
                                  const K2Config& draft,
                                  WeightSource& target,
                                  const OpsTable& ops) {
  const std::string& dir = config.speculation.model;
  const auto source = OpenDraftWeights(dir, draft, target);
  if (!source.ok()) return OfDraft(source.status());
  const auto bytes = CountWeights(draft, *source.value(), ops, {}, {});
  if (!bytes.ok()) return OfDraft(bytes.status());
  if (const auto tokens = ReadDraftTokens(dir, draft); !tokens.ok()) {
    return OfDraft(tokens.status());
  }
  return bytes.value()[0];
}

Status OfDraft(const Status& status) {
  return Status(status.code(),
                "--speculative-config: the draft model cannot be used: " + status.message() +
                    "; give another, or leave it out: answers are the same without");
}

int64_t DraftBytesPerToken(const K2Config& draft, DType act) {
  return KvBytesPerToken(draft, PlainKvForm(act), 1);
}

}  // namespace baltoro
