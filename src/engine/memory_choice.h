#pragma once

// What a rank keeps in memory beside its weights: how much KV cache of which form, a draft model,
// pictures. All is decided before weights are read, so that what cannot work says so at once.

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "cache/kv_storage.h"
#include "engine/kv_budget.h"
#include "engine/node_world.h"
#include "engine/picture_choice.h"
#include "engine/start_args.h"
#include "model/k2_model.h"

namespace baltoro {

// The form of the KV cache and, where a file gives them, its scales.
struct KvChoice {
  KvForm form = KvForm::kBf16;
  std::vector<float> scales;  // one a layer; empty: those of the checkpoint, else 1
  bool measure = false;       // --calculate-kv-scales
};

struct MemoryChoice {
  KvChoice kv;
  std::optional<K2Config> draft;
  PictureAnswer pictures;
  KvBudget budget;  // of all nodes
};

// `held`: the ranks of this node; `nodes`: the others, null where there are none.
Result<MemoryChoice> ChooseMemory(const StartArgs& args,
                                  const WeightOptions& weights,
                                  WeightSource& source,
                                  std::span<const int32_t> held,
                                  NodeWorld* nodes);

// The scales of an fp8 cache, one a layer of this rank, and, unless `quiet`, a line that says where
// they are from. Empty: all are 1. `meet`: as of MeasureKvScales.
Result<std::vector<float>> FindKvScales(const EngineConfig& config,
                                        const KvChoice& kv,
                                        const std::function<Status()>& meet,
                                        bool quiet,
                                        K2Model& model);

}  // namespace baltoro
