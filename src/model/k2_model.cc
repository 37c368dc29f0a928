#include "model/k2_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <optional>
#include <string_view>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "model/kv_scales.h"
#include "ops/thread_pool.h"

namespace baltoro {
namespace {

// Disks answer faster when several reads are waiting.
constexpr int kLoadThreadsMin = 4;

// What a picture encoder reads, another time.
bool IsOfPictures(std::string_view kind) {
  return kind.starts_with("vision_tower.") || kind.starts_with("mm_projector.");
}

void LogUnused(const WeightSource& source, const K2Config& config) {
  for (const auto& [kind, count] : source.UnusedKinds(config.layers)) {
    if (config.multimodal && IsOfPictures(kind)) continue;
    BT_LOG(Warning, "{}: {} tensors {} are not used", source.description(), count, kind);
  }
}

}  // namespace

K2Model::K2Model(const K2Config& config, const OpsTable& ops, ThreadPool* pool, ModelRanks* ranks)
    : config_(config),
      ops_(ops),
      pool_(pool),
      ranks_(ranks),
      lonely_exchange_(ops),
      share_(ranks == nullptr ? RankShare() : ranks->share()),
      heads_(static_cast<int32_t>(share_.heads(config).size())),
      group_heads_(static_cast<int32_t>(share_.group_heads(config).size())),
      all_layers_(static_cast<size_t>(share_.layers(config).size())),
      expert_slots_(share_.expert_slots(config)),
      softmax_scale_(static_cast<float>(SoftmaxScale(config))),
      op_scratch_(*ops.memory),
      staging_(ops.staging == nullptr ? HostMemory() : *ops.staging) {
  std::iota(all_layers_.begin(), all_layers_.end(), 0);
}

Result<std::unique_ptr<K2Model>> K2Model::Load(const K2Config& config,
                                               const std::string& dir,
                                               const OpsTable& ops,
                                               ThreadPool* pool,
                                               const K2LoadOptions& options) {
  BT_ASSIGN_OR_RETURN(const std::unique_ptr<WeightSource> source, OpenWeights(dir, options.choice));
  return Load(config, *source, ops, pool, options);
}

Result<std::unique_ptr<K2Model>> K2Model::Load(const K2Config& config,
                                               WeightSource& source,
                                               const OpsTable& ops,
                                               ThreadPool* pool,
                                               const K2LoadOptions& options) {
  BT_RETURN_IF_ERROR(config.Validate());
  if (options.ranks != nullptr) {
    BT_RETURN_IF_ERROR(CheckLayout(options.ranks->share().layout, ShapeOf(config)));
  }
  std::unique_ptr<K2Model> model(new K2Model(config, ops, pool, options.ranks));
  model->parts_as_of_ranks_ = options.parts_as_of_ranks;
  const int threads = std::max(kLoadThreadsMin, pool == nullptr ? 1 : pool->threads());
  BT_ASSIGN_OR_RETURN(WeightPlan plan, PlanWeights(config, source, ops, options.weights));
  if (options.ranks != nullptr) {
    BT_ASSIGN_OR_RETURN(plan, SliceWeights(config, std::move(plan), model->share_));
  }
  if (options.read_kv_scales) {  // a few numbers: what is wrong with them is told at once
    BT_ASSIGN_OR_RETURN(std::vector<float> scales, ReadKvScales(source, config.layers));
    const IndexRange held = model->share_.layers(config);
    if (!scales.empty()) scales = {scales.begin() + held.begin, scales.begin() + held.end};
    model->kv_scales_ = std::move(scales);
  }
  BT_ASSIGN_OR_RETURN(model->weights_,
                      LoadWeights(plan, source, ops, threads, options.progress, options.quiet));
  if (model->share_.layout.balanced_experts) {
    BT_ASSIGN_OR_RETURN(model->balancer_, ExpertBalancer::Create(model->share_, config.experts,
                                                                 model->weights_, ops, pool));
  }
  if (!options.quiet) LogUnused(source, config);
  const int64_t positions =
      options.positions_max > 0 ? options.positions_max : config.positions_max;
  BT_RETURN_IF_ERROR(model->BuildRopeTable(positions));
  return model;
}

void K2Model::BalanceExperts(const ExpertBalanceOptions& options) {
  if (balancer_ == nullptr) return;
  BT_CHECK(ranks_ != nullptr && ranks_->ops().slabs() != nullptr);
  balancer_->Start(options, *ranks_->ops().slabs());
}

Status K2Model::BuildRopeTable(int64_t positions) {
  const std::vector<double> inverse = InverseFrequencies(config_.rope, config_.rotated());
  const auto pairs = static_cast<int64_t>(inverse.size());
  const double factor = RopeCosFactor(config_.rope);
  const int64_t entries = positions * pairs;
  const auto bytes = static_cast<size_t>(2 * entries) * sizeof(float);
  BT_ASSIGN_OR_RETURN(Buffer made, Buffer::Create(bytes, "the rotary table"));
  auto* cos = static_cast<float*>(made.data());
  float* sin = cos + entries;

  // Position kNear a + b turns by the angle of kNear a, then by that of b: two short tables instead
  // of a sine for each entry.
  constexpr int64_t kNear = 256;
  std::vector<double> near_cos, near_sin;
  for (int64_t b = 0; b < kNear; ++b) {
    for (const double turn : inverse) {
      near_cos.push_back(std::cos(static_cast<double>(b) * turn));
      near_sin.push_back(std::sin(static_cast<double>(b) * turn));
    }
  }
  for (int64_t begin = 0; begin < positions; begin += kNear) {
    const int64_t end = std::min(positions, begin + kNear);
    for (int64_t j = 0; j < pairs; ++j) {
      const double far_cos = factor * std::cos(static_cast<double>(begin) * inverse[j]);
      const double far_sin = factor * std::sin(static_cast<double>(begin) * inverse[j]);
      for (int64_t position = begin; position < end; ++position) {
        const int64_t near = (position - begin) * pairs + j;
        const int64_t at = position * pairs + j;
        cos[at] = static_cast<float>(far_cos * near_cos[near] - far_sin * near_sin[near]);
        sin[at] = static_cast<float>(far_sin * near_cos[near] + far_cos * near_sin[near]);
      }
    }
  }
  BT_ASSIGN_OR_RETURN(rope_memory_, MoveTo(*ops_.memory, std::move(made), "the rotary table"));
  const auto* table = static_cast<const float*>(rope_memory_.data());
  rope_table_ = {
      .cos = table, .sin = table + entries, .positions = positions, .dim = config_.rotated()};
  return {};
}

int64_t KvBytesPerToken(const K2Config& config, KvForm form, int64_t layers) {
  return layers * KvTokenBytes(form, config.kv_lora, config.rope_dim);
}

}  // namespace baltoro
