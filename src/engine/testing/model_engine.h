#pragma once

// A whole engine around a tiny model, with scripted constraints.

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "engine/local_engine.h"
#include "engine/local_executor.h"
#include "engine/testing/event_log.h"
#include "engine/testing/scripted_constraint.h"
#include "engine/worker.h"
#include "support/golden_draft.h"
#include "support/tiny_model.h"

namespace baltoro::test {

inline constexpr int32_t kVocab = 90;

inline std::unique_ptr<K2Model> LoadSmall(ThreadPool* pool,
                                          const OpsTable& ops = CpuOps(DType::kBf16),
                                          int32_t layers = 2) {
  TinySource source(true);
  return std::move(K2Model::Load(SmallConfig(layers, /*heads=*/2), source, ops, pool, {})).value();
}

struct Setting {
  int32_t threads = 2;
  int32_t num_blocks = 64;
  int32_t max_num_seqs = 16;
  int32_t max_num_batched_tokens = 512;
  int32_t max_model_len = 512;  // no more than the cache holds
  bool prefix_caching = false;
  bool async = false;
  KvForm kv = KvForm::kBf16;
  std::vector<float> kv_scales = {};  // one a layer; empty: all 1
  bool deterministic = false;
  FixedSteps fixed = {};
  SpeculationConfig speculation = {};
  const OpsTable* ops = &CpuOps(DType::kBf16);
  GoldenDraft* draft = nullptr;  // behind a model of eight layers
};

class ModelEngine {
 public:
  explicit ModelEngine(const Setting& setting) {
    auto pool = std::make_unique<ThreadPool>(setting.threads);
    auto model = LoadSmall(pool.get(), *setting.ops, setting.draft != nullptr ? 8 : 2);
    Start(setting, std::move(pool), std::move(model));
  }
  // Around another model, which uses the pool.
  ModelEngine(const Setting& setting,
              std::unique_ptr<ThreadPool> pool,
              std::unique_ptr<K2Model> model) {
    Start(setting, std::move(pool), std::move(model));
  }

  Status TrySubmit(const Request& request) { return engine_->Submit(request); }
  void Submit(const Request& request) {
    const Status status = TrySubmit(request);
    ASSERT_TRUE(status.ok()) << status.message();
  }
  Told Wait(uint64_t id) { return log_.WaitForEnd(id, 60); }
  Told Ask(const Request& request) {
    Submit(request);
    return Wait(static_cast<uint64_t>(request.id));
  }
  void Abort(uint64_t id) { engine_->Abort(RequestId{id}); }
  EventLog& log() { return log_; }
  EngineStats stats() const { return engine_->stats(); }
  const ScriptedCalls& constraints() const { return factory_->calls(); }

 private:
  void Start(const Setting& setting,
             std::unique_ptr<ThreadPool> pool,
             std::unique_ptr<K2Model> model) {
    const Memory& memory = *model->ops().memory;
    const int64_t vocab = model->config().vocab;
    KvLayout layout{.layers = model->layers(),
                    .num_blocks = setting.num_blocks,
                    .latent = static_cast<int32_t>(model->config().kv_lora),
                    .rope = static_cast<int32_t>(model->config().rope_dim),
                    .form = setting.kv};
    WorkerDraft draft;
    std::vector<int32_t> taps;
    if (setting.draft != nullptr && setting.speculation.enabled()) {
      draft = {.model = setting.draft->Load(*setting.ops), .tokens = setting.draft->Tokens()};
      taps = draft.model->config().draft->tap_layers;
      layout.draft_blocks = setting.num_blocks;
      layout.draft_latent = static_cast<int32_t>(draft.model->config().kv_lora);
      layout.draft_rope = static_cast<int32_t>(draft.model->config().rope_dim);
      layout.draft_form = PlainKvForm(setting.ops->act);
    }
    auto kv = KvStorage::Create(layout, memory);
    const auto table = std::make_shared<ConstraintTable>();
    auto worker = Worker::Create(
        {.max_num_seqs = setting.max_num_seqs,
         .max_num_batched_tokens = setting.max_num_batched_tokens,
         .logits_rows_max = std::max(setting.max_num_seqs * (1 + setting.speculation.drafts),
                                     setting.fixed.decode_rows) +
                            64,
         .constraints = table,
         .mask_threads = 1,
         .kv_scales = setting.kv_scales,
         .fixed = setting.fixed,
         .tap_layers = taps,
         .speculation = setting.speculation},
        std::move(pool), std::move(model), std::move(kv).value(), std::move(draft));
    EngineConfig config;
    config.max_num_seqs = setting.max_num_seqs;
    config.max_num_batched_tokens = setting.max_num_batched_tokens;
    config.enable_prefix_caching = setting.prefix_caching;
    config.async_scheduling = setting.async;
    config.deterministic = setting.deterministic;
    config.speculation = setting.speculation;
    EngineInfo info;
    info.max_model_len = std::min(setting.max_model_len, setting.num_blocks * kBlockTokens);
    info.vocab_size = vocab;
    info.num_blocks = setting.num_blocks;
    info.kv_cache_tokens = info.num_blocks * kBlockTokens;
    info.constraints = true;
    info.fixed = setting.fixed;
    engine_ = std::make_unique<LocalEngine>(
        config, info,
        std::make_unique<LocalExecutor>(std::move(worker).value(), setting.async ? 2 : 1),
        log_.sink(), factory_, table);
  }

  EventLog log_;
  std::shared_ptr<ScriptedFactory> factory_ = std::make_shared<ScriptedFactory>();
  std::unique_ptr<LocalEngine> engine_;
};

inline Request MakeRequest(uint64_t id, int prompt, int max_tokens) {
  Request request;
  request.id = RequestId{id};
  for (int i = 0; i < prompt; ++i) {
    request.prompt.push_back(static_cast<TokenId>((id * 31 + i * i * 7 + i) % kVocab));
  }
  request.sampling.temperature = 0;
  request.stop.max_tokens = max_tokens;
  return request;
}

}  // namespace baltoro::test
