#include "support/chosen_experts.h"

#include <vector>

#include "base/check.h"

namespace baltoro::test {
namespace {

struct Notes {
  std::vector<std::vector<int32_t>> calls;  // ids of each call of route
  size_t next = 0;
};

Notes& TheNotes() {
  static Notes notes;
  return notes;
}

void RouteAndNote(const OpContext& context,
                  TensorView ids,
                  TensorView weights,
                  TensorView logits,
                  TensorView bias,
                  const RouterParams& params) {
  CpuOps(DType::kF32).route(context, ids, weights, logits, bias, params);
  const auto* begin = ids.as<const int32_t>();
  TheNotes().calls.emplace_back(begin, begin + ids.num_elements());
}

// A bias far above every score leaves the router no choice.
void RouteAsNoted(const OpContext& context,
                  TensorView ids,
                  TensorView weights,
                  TensorView logits,
                  TensorView,
                  const RouterParams& params) {
  RouterParams ungrouped = params;
  ungrouped.groups = ungrouped.groups_used = 1;
  Notes& notes = TheNotes();
  BT_CHECK(notes.next < notes.calls.size());
  const std::vector<int32_t>& noted = notes.calls[notes.next++];
  BT_CHECK(static_cast<int64_t>(noted.size()) == ids.num_elements());
  for (int64_t t = 0; t < ids.dim(0); ++t) {
    std::vector<float> bias(static_cast<size_t>(params.experts), 0.0f);
    for (int64_t j = 0; j < params.top_k; ++j) bias[noted[t * params.top_k + j]] = 100;
    CpuOps(DType::kBf16)
        .route(context, ids.rows(t, 1), weights.rows(t, 1), logits.rows(t, 1),
               TensorView(bias.data(), DType::kF32, {params.experts}), ungrouped);
  }
}

}  // namespace

const OpsTable& NotingFloat32Ops() {
  static const OpsTable table = [] {
    OpsTable made = CpuOps(DType::kF32);
    made.route = RouteAndNote;
    return made;
  }();
  return table;
}

const OpsTable& FollowingBf16Ops() {
  static const OpsTable table = [] {
    OpsTable made = CpuOps(DType::kBf16);
    made.route = RouteAsNoted;
    return made;
  }();
  return table;
}

void ForgetExperts() {
  TheNotes() = {};
}

void RewindExperts() {
  TheNotes().next = 0;
}

}  // namespace baltoro::test
