#pragma once

// A rank's picture encoder, and the rows that it has made of pictures: what PlannedEncode and
// PictureRows of a plan speak of. Where what lies, and which rank encodes what, is the scheduler's
// decision.
//
// The thread that runs the rank's steps.

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/status.h"
#include "device/buffer.h"
#include "ops/rank_ops.h"
#include "ops/thread_pool.h"
#include "schedule/step_plan.h"
#include "vision/vision_encoder.h"

namespace baltoro {

// Tensor ranks of the first stage that share out pictures: each encodes its own, and all get the
// rows of all. One alone, or ranks that have parts of one encoder, do not.
struct PictureSharing {
  int32_t ranks = 1, rank = 0;
  RankOps* ops = nullptr;  // with several; outlives the memory
  int32_t rows_max = 256;  // that a rank sends at once
};

class PictureMemory {
 public:
  // Takes memory for `rows` rows. `ops` and `pool` must outlive it.
  static Result<std::unique_ptr<PictureMemory>> Create(std::unique_ptr<VisionEncoder> encoder,
                                                       int32_t rows,
                                                       const OpsTable& ops,
                                                       ThreadPool* pool,
                                                       const PictureSharing& sharing = {});
  // Bytes beside those of VisionEncoder, for batches of `patches_max` patches: of the rows that are
  // kept, and of those that are made.
  struct Bytes {
    int64_t kept = 0, made = 0;
  };
  static Bytes PlanBytes(const VisionConfig& encoder,
                         int32_t rows,
                         int64_t patches_max,
                         const PictureSharing& sharing);

  // Those of one plan. An error: a picture that the encoder does not take, or a batch that was not
  // begun; the same on all ranks, but for what the communication between them says itself.
  Status Encode(std::span<const PlannedEncode> encodes);
  // [count, H] f32, in the operations' memory: rows as they lie.
  TensorView Rows(int32_t from, int32_t count) const;

  int64_t bytes() const;  // of all that it has taken, the encoder too

 private:
  // Rows that a picture has got.
  struct Place {
    int32_t begin = 0, rows = 0;
  };

  PictureMemory(std::unique_ptr<VisionEncoder> encoder,
                int32_t rows,
                const OpsTable& ops,
                ThreadPool* pool,
                const PictureSharing& sharing);
  Status Begin(const PlannedEncode& encode);
  OpContext Context();
  Status PutOwn();
  Status PutAll();
  Status Put(const void* from, int32_t row, int64_t rows);

  const std::unique_ptr<VisionEncoder> encoder_;
  const int32_t rows_;
  const OpsTable& ops_;
  ThreadPool* const pool_;
  const PictureSharing sharing_;
  Arena scratch_, staging_;
  Buffer memory_;    // [rows, H] f32
  Buffer made_;      // [tokens of a batch, H] f32: of this rank's pictures, one after the other
  Buffer gathered_;  // [rows_max, ranks, H] f32, where pictures are shared out
  // A batch on its way: the layers that are left of it, where its rows go, by rank, and what of it
  // this rank encodes.
  int32_t layers_left_ = 0;
  std::vector<std::vector<Place>> places_;
  std::optional<VisionBatch> batch_;
};

}  // namespace baltoro
