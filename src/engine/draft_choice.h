#pragma once

// From --speculative-config to a draft model: its shape and what it takes, for `plan` and `serve`
// alike.

#include <cstdint>
#include <optional>

#include "base/status.h"
#include "engine/engine.h"
#include "model/draft_config.h"
#include "ops/ops.h"
#include "parallel/layout.h"

namespace baltoro {

// The draft model of an engine, if it has one. What cannot be is refused, with the key or flag and
// what to do: a folder that is no draft of this model, one that a GPU, where `gpu`, does not take,
// or one that its ranks cannot share.
Result<std::optional<K2Config>> ChooseDraft(const EngineConfig& config,
                                            const K2Config& target,
                                            bool gpu);

// Bytes of its weights in memory, once all that it needs was found. `target` is the source of the
// model that it drafts for. Of ranks that share it: of the one that has most.
Result<int64_t> CountDraftWeights(const EngineConfig& config,
                                  const K2Config& draft,
                                  WeightSource& target,
                                  const OpsTable& ops);

// Ranks of the last stage that have a part of the draft model: all, or the one that samples.
ParallelLayout DraftLayout(const EngineConfig& config);

// An error that belongs to the draft model, saying so.
Status OfDraft(const Status& status);

// Its keys are kept as its activations are, whatever the form of the target's. On each rank that
// has a part of it.
int64_t DraftBytesPerToken(const EngineConfig& config, const K2Config& draft, DType act);

}  // namespace baltoro
