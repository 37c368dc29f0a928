#pragma once

// Ranks of the tiny model for tests of what runs them, and requests that want everything of them.

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "engine/balance_gauge.h"
#include "engine/local_ranks.h"
#include "engine/testing/model_engine.h"
#include "engine/worker.h"
#include "support/tiny_model.h"

namespace baltoro::test {

inline constexpr int32_t kTinyBlocks = 64, kTinySeqs = 8, kTinyTokens = 96;

// `drafts` 0: none.
inline SpeculationConfig TinyDrafts(int32_t drafts) {
  SpeculationConfig speculation;
  if (drafts > 0) speculation.method = DraftMethod::kNgram;
  speculation.drafts = drafts;
  speculation.lookup_min = 1;
  return speculation;
}

// Makes a worker of the tiny model; in float32, so that ranks choose what one rank chooses. `gauge`
// hears of experts that have moved.
inline Result<std::unique_ptr<Worker>> MakeTinyWorker(ModelRanks* ranks,
                                                      bool samples,
                                                      std::shared_ptr<ConstraintTable> table,
                                                      const FixedSteps& fixed = {},
                                                      const OpsTable& ops = CpuOps(DType::kF32),
                                                      int32_t drafts = 0,
                                                      BalanceGauge* gauge = nullptr,
                                                      int32_t heads = 4) {
  TinySource source(true);
  K2LoadOptions options;
  options.ranks = ranks;
  auto pool = std::make_unique<ThreadPool>(1);
  const K2Config config = SmallConfig(/*layers=*/2, heads);
  BT_ASSIGN_OR_RETURN(std::unique_ptr<K2Model> model,
                      K2Model::Load(config, source, ops, pool.get(), options));
  model->UseGraphs();  // of operations that have some
  BT_ASSIGN_OR_RETURN(
      KvStorage kv,
      KvStorage::Create({.layers = model->layers(),
                         .num_blocks = kTinyBlocks / model->share().layout.decode_context,
                         .latent = 512,
                         .rope = 64,
                         .form = KvForm::kF32}));
  std::optional<ExpertBalanceOptions> balance;  // an expert moves in almost every step
  if (model->share().layout.balanced_experts)
    balance = {.window = 4, .interval = 4, .step_bytes = 1};
  if (balance && gauge != nullptr) {
    balance->tells = true;
    balance->tell = [gauge](const BalanceNews& news) { gauge->Tell(news); };
  }
  return Worker::Create({.max_num_seqs = kTinySeqs,
                         .max_num_batched_tokens = kTinyTokens,
                         .logits_rows_max = kTinySeqs * (1 + drafts) + 64,
                         .constraints = samples ? table : nullptr,
                         .mask_threads = 1,
                         .fixed = fixed,
                         .samples = samples,
                         .speculation = TinyDrafts(drafts),
                         .balance = std::move(balance)},
                        std::move(pool), std::move(model), std::move(kv));
}

inline MakeRank TinyRanks(const ParallelLayout& layout,
                          const std::shared_ptr<ConstraintTable>& table = {},
                          const FixedSteps& fixed = {},
                          const OpsTable& ops = CpuOps(DType::kF32),
                          int32_t drafts = 0,
                          BalanceGauge* gauge = nullptr,  // of rank 0
                          int32_t heads = 4) {
  return [=, &ops](Link* link, bool samples) -> Result<RankParts> {
    RankParts parts;
    BT_ASSIGN_OR_RETURN(parts.ranks, ModelRanks::Join(link, layout));
    BT_ASSIGN_OR_RETURN(parts.worker,
                        MakeTinyWorker(parts.ranks.get(), samples, table, fixed, ops, drafts,
                                       link->rank() == 0 ? gauge : nullptr, heads));
    return parts;
  };
}

inline EngineConfig TinyConfig(int32_t drafts = 0) {
  EngineConfig config;
  config.max_num_seqs = kTinySeqs;
  config.max_num_batched_tokens = kTinyTokens;
  config.speculation = TinyDrafts(drafts);
  return config;
}

inline EngineInfo TinyInfo() {
  EngineInfo info;
  info.max_model_len = 512;
  info.vocab_size = kVocab;
  info.num_blocks = kTinyBlocks;
  info.kv_cache_tokens = kTinyBlocks * kBlockTokens;
  info.constraints = true;
  return info;
}

// Prompts of which some begin alike, in chunks, drawn with a seed.
inline std::vector<Request> MixedRequests() {
  constexpr int kRequests = 12;
  std::vector<Request> requests;
  for (int i = 1; i <= kRequests; ++i) {
    Request request = MakeRequest(static_cast<uint64_t>(i % 3 + 1), 30 + 23 * i, 6 + i % 5);
    request.id = RequestId{static_cast<uint64_t>(i)};
    request.sampling.temperature = i % 2 == 0 ? 0.8f : 0.0f;
    request.sampling.seed = static_cast<uint64_t>(i);
    requests.push_back(std::move(request));
  }
  return requests;
}

}  // namespace baltoro::test
