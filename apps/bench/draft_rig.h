#pragma once

// A draft model with drawn weights behind the model that `bench step` times: of MLA type, in the
// model's size, or one tensor rank's share of it, as StepSeat cuts the model.

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/status.h"
#include "bench/step_floor.h"
#include "engine/draft_model.h"
#include "model/k2_config.h"
#include "ops/ops.h"
#include "ops/thread_pool.h"

namespace baltoro {

// Its heads, MLP and vocabulary are as wide as the target's, or as its share of them.
K2Config DraftFor(const K2Config& target);

class DraftRig {
 public:
  struct Sizes {
    int32_t drafts = 0;
    int64_t sequences_max = 0;
    int64_t rows_max = 0;  // of a step of the target
    int64_t positions_max = 0;
    int64_t blocks = 0;  // of the target's cache
    bool graphs = true;
    uint64_t seed = 0;
  };
  static Result<std::unique_ptr<DraftRig>> Create(const K2Config& target,
                                                  const Sizes& sizes,
                                                  const OpsTable& ops,
                                                  ThreadPool* pool);

  std::span<const int32_t> tap_layers() const { return config_.draft->tap_layers; }
  // Where the target leaves what is read, for a step of so many rows.
  std::vector<TensorView> Taps(int64_t rows) const;
  DraftModel& model() { return *model_; }
  // Of all passes of a cycle of `batch` sequences that see `context` keys.
  StepNeeds Needs(int64_t batch, int64_t context) const;
  int64_t weight_bytes() const { return needs_.all_bytes; }

 private:
  DraftRig() = default;

  K2Config config_;
  int32_t drafts_ = 0;
  WeightNeeds needs_;
  Buffer keys_;
  std::vector<Buffer> taps_;
  std::unique_ptr<DraftModel> model_;
};

}  // namespace baltoro
