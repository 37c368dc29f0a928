#pragma once

// From --speculative-config to a draft model: its shape and what it takes, for `plan` and `serve`
// alike.

#include <cstdint>
#include <optional>

#include "base/status.h"
#include "engine/engine.h"
#include "model/draft_config.h"
#include "ops/ops.h"

namespace baltoro {

// The draft model of an engine, if it has one. What cannot be is refused, with the key or flag and
// what to do: a folder that is no draft of this model, or one that a GPU, where `gpu`, does not
// take.
Result<std::optional<K2Config>> ChooseDraft(const EngineConfig& config,
                                            const K2Config& target,
                                            bool gpu);

// Bytes of its weights in memory, once all that it needs was found. `target` is the source of the
// model that it drafts for.
Result<int64_t> CountDraftWeights(const EngineConfig& config,
                                  const K2Config& draft,
                                  WeightSource& target,
                                  const OpsTable& ops);

// An error that belongs to the draft model, saying so.
Status OfDraft(const Status& status);

// Its keys are kept as its activations are, whatever the form of the target's.
int64_t DraftBytesPerToken(const K2Config& draft, DType act);

}  // namespace baltoro
