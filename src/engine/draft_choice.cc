#include "engine/draft_choice.h"

#include <fmt/format.h>

#include <algorithm>

#include "engine/backend_choice.h"
#include "model/k2_model.h"
#include "model/weight_count.h"
#include "model/weight_slice.h"

namespace baltoro {
namespace {

constexpr const char* kKeepWhole = "give draft_tensor_parallel_size 1, and one rank has it whole";

Status CheckShares(const ParallelLayout& layout, const K2Config& draft) {
  const LayoutShape shape = ShapeOf(draft);
  if (CheckLayout(layout, shape).ok()) return {};
  return InvalidArgument(fmt::format(
      "{} tensor ranks cannot share its {} heads{}, {} columns of the MLP and {} tokens: {}",
      layout.tensor, shape.heads,
      shape.key_heads > 0 ? fmt::format(" ({} of keys)", shape.key_heads) : "", shape.intermediate,
      shape.vocab, kKeepWhole));
}

}  // namespace

Result<std::optional<K2Config>> ChooseDraft(const EngineConfig& config,
                                            const K2Config& target,
                                            bool gpu) {
  if (config.speculation.method != DraftMethod::kEagle3) return std::optional<K2Config>();
  const auto draft = ReadDraftConfig(config.speculation.model, target);
  if (!draft.ok()) return OfDraft(draft.status());
  const Status taken = gpu ? CheckGpuTakesDraft(config, draft.value()) : Status();
  if (!taken.ok()) return OfDraft(taken);
  const Status shared = CheckShares(DraftLayout(config), draft.value());
  if (!shared.ok()) return OfDraft(shared);
  return std::optional(draft.value());
}

Result<int64_t> CountDraftWeights(const EngineConfig& config,
                                  const K2Config& draft,
                                  WeightSource& target,
                                  const OpsTable& ops) {
  const std::string& dir = config.speculation.model;
  const auto source = OpenDraftWeights(dir, draft, target);
  if (!source.ok()) return OfDraft(source.status());
  const ParallelLayout layout = DraftLayout(config);
  const auto bytes = CountWeights(draft, *source.value(), ops, {}, layout);
  if (!bytes.ok() && layout.tensor > 1) {
    // A block of a quantised matrix may be what stands in the way.
    return OfDraft(Status(bytes.status().code(), bytes.status().message() + "; or " + kKeepWhole));
  }
  if (!bytes.ok()) return OfDraft(bytes.status());
  if (const auto tokens = ReadDraftTokens(dir, draft); !tokens.ok()) {
    return OfDraft(tokens.status());
  }
  return *std::ranges::max_element(bytes.value());
}

Status OfDraft(const Status& status) {
  return Status(status.code(),
                "--speculative-config: the draft model cannot be used: " + status.message() +
                    "; give another, or leave it out: answers are the same without");
}

ParallelLayout DraftLayout(const EngineConfig& config) {
  return {.tensor = config.speculation.draft_ranks};
}

int64_t DraftBytesPerToken(const EngineConfig& config, const K2Config& draft, DType act) {
  const CacheWidths widths = RankShare{.layout = DraftLayout(config)}.cache_widths(draft);
  return KvTokenBytes(PlainKvForm(act), widths.latent, widths.rope);
}

}  // namespace baltoro
