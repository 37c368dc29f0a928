#include "support/chosen_experts.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <list>

#include "base/check.h"
#include "ops/compose/small_ops.h"

namespace baltoro::test {
namespace {

struct Notes {
  std::vector<std::vector<int32_t>> calls;  // ids of each call of route
  size_t next = 0;
  TippedExperts tipped;
};

Notes& TheNotes() {
  static Notes notes;
  return notes;
}

const OpsTable* backend = nullptr;  // that follows

class NotingTap : public ExpertsTap {
 public:
  bool needs_ids() const override { return true; }
  void Look(const OpContext&, ChosenExperts& chosen) override {
    const auto* begin = chosen.ids.as<const int32_t>();
    TheNotes().calls.emplace_back(begin, begin + chosen.ids.num_elements());
  }
};

template <typename T>
std::vector<T> FromBackend(const TensorView& view) {
  BT_CHECK(view.contiguous());
  std::vector<T> out(static_cast<size_t>(view.num_elements()));
  const Status copied = backend->memory->CopyOut(out.data(), view.data, out.size() * sizeof(T));
  BT_CHECK(copied.ok());
  return out;
}

template <typename T>
void ToBackend(const TensorView& view, const std::vector<T>& from) {
  const Status copied = backend->memory->CopyIn(view.data, from.data(), from.size() * sizeof(T));
  BT_CHECK(copied.ok());
}

std::vector<float> ScoresOf(const float* logits, const RouterParams& params) {
  std::vector<float> scores(logits, logits + params.experts);
  if (params.score == RouterScore::kSigmoid) {
    for (float& score : scores) score = 1 / (1 + std::exp(-score));
    return scores;
  }
  const float largest = *std::ranges::max_element(scores);
  float sum = 0;
  for (float& score : scores) sum += score = std::exp(score - largest);
  for (float& score : scores) score /= sum;
  return scores;
}

// Whether the backend chose other experts for a row than were noted.
bool IsTipped(const int32_t* own,
              const int32_t* noted,
              const float* logits,
              const std::vector<float>& bias,
              const RouterParams& params) {
  TippedExperts& tipped = TheNotes().tipped;
  ++tipped.rows;
  const auto only_in = [&](const int32_t* some, const int32_t* others) {
    std::vector<int32_t> out;
    for (int32_t j = 0; j < params.top_k; ++j) {
      if (std::find(others, others + params.top_k, some[j]) == others + params.top_k) {
        out.push_back(some[j]);
      }
    }
    return out;
  };
  const std::vector<int32_t> wrong = only_in(own, noted), missed = only_in(noted, own);
  if (wrong.empty()) return false;
  ++tipped.tipped;
  if (params.groups > 1) return true;
  const std::vector<float> scores = ScoresOf(logits, params);
  const auto score = [&](int32_t expert) {
    return scores[expert] + (bias.empty() ? 0.0f : bias[expert]);
  };
  float gap = 0;
  for (const int32_t a : wrong) {
    for (const int32_t b : missed) gap = std::max(gap, score(a) - score(b));
  }
  // A gap that is no number stays.
  if (!(gap <= tipped.largest_gap)) tipped.largest_gap = gap;
  return true;
}

// After the backend's own routing: where it chose otherwise, the noted ids, and the weights that
// its logits give them.
void Follow(const OpContext& context,
            const TensorView& ids,
            const TensorView& weights,
            const TensorView& logits,
            const TensorView& bias,
            const RouterParams& params) {
  const Status waited = backend->wait(context);
  BT_CHECK(waited.ok());
  Notes& notes = TheNotes();
  BT_CHECK(notes.next < notes.calls.size());
  const std::vector<int32_t>& noted = notes.calls[notes.next++];
  BT_CHECK(static_cast<int64_t>(noted.size()) == ids.num_elements());
  auto own_ids = FromBackend<int32_t>(ids);
  auto own_weights = FromBackend<float>(weights);
  auto own_logits = FromBackend<float>(logits);
  const std::vector<float> own_bias = bias ? FromBackend<float>(bias) : std::vector<float>();

  // A bias far above every score leaves the router no choice.
  RouterParams ungrouped = params;
  ungrouped.groups = ungrouped.groups_used = 1;
  OpContext here;
  for (int64_t t = 0; t < ids.dim(0); ++t) {
    const int64_t at = t * params.top_k;
    float* const row = own_logits.data() + t * params.experts;
    if (!IsTipped(&own_ids[at], &noted[at], row, own_bias, params)) continue;
    std::vector<float> forced(static_cast<size_t>(params.experts), 0.0f);
    for (int64_t j = 0; j < params.top_k; ++j) forced[noted[at + j]] = 100;
    CpuSmallOps(DType::kBf16)
        .route(here, TensorView(&own_ids[at], DType::kI32, {1, params.top_k}),
               TensorView(&own_weights[at], DType::kF32, {1, params.top_k}),
               TensorView(row, DType::kF32, {1, params.experts}),
               TensorView(forced.data(), DType::kF32, {params.experts}), ungrouped);
  }
  ToBackend(ids, own_ids);
  ToBackend(weights, own_weights);
}

class FollowingTap : public ExpertsTap {
 public:
  bool needs_ids() const override { return true; }
  void Look(const OpContext& context, ChosenExperts& chosen) override {
    Follow(context, chosen.ids, chosen.weights, chosen.logits, chosen.bias, chosen.params);
  }
};

}  // namespace

const OpsTable& NotingFloat32Ops() {
  static const OpsTable table = [] {
    static NotingTap tap;
    OpsTable made = CpuOps(DType::kF32);
    made.tap = &tap;
    return made;
  }();
  return table;
}

const OpsTable& FollowingOps(const OpsTable& following) {
  static std::list<OpsTable> tables;  // models keep them
  backend = &following;
  OpsTable made = following;
  static FollowingTap tap;
  made.tap = &tap;
  return tables.emplace_back(made);
}

const std::vector<std::vector<int32_t>>& NotedCalls() {
  return TheNotes().calls;
}

void ForgetExperts() {
  TheNotes() = {};
}

void RewindExperts() {
  TheNotes().next = 0;
  TheNotes().tipped = {};
}

TippedExperts Tipped() {
  return TheNotes().tipped;
}

}  // namespace baltoro::test
