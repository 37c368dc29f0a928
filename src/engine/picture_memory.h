#pragma once

// A rank's picture encoder, and the rows that it has made of pictures: what PlannedEncode and
// PictureRows of a plan speak of. Where what lies is the scheduler's decision (picture_store.h).
//
// The thread that runs the rank's steps.

#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "base/status.h"
#include "device/buffer.h"
#include "ops/thread_pool.h"
#include "schedule/step_plan.h"
#include "vision/vision_encoder.h"

namespace baltoro {

class PictureMemory {
 public:
  // Takes memory for `rows` rows. `ops` and `pool` must outlive it.
  static Result<std::unique_ptr<PictureMemory>> Create(std::unique_ptr<VisionEncoder> encoder,
                                                       int32_t rows,
                                                       const OpsTable& ops,
                                                       ThreadPool* pool);

  // Those of one plan. An error: a picture that the encoder does not take, or a batch that was not
  // begun.
  Status Encode(std::span<const PlannedEncode> encodes);
  // [count, H] f32, in the operations' memory: rows as they lie.
  TensorView Rows(int32_t from, int32_t count) const;

  int64_t scratch_bytes() const;

 private:
  PictureMemory(std::unique_ptr<VisionEncoder> encoder,
                int32_t rows,
                const OpsTable& ops,
                ThreadPool* pool);
  Status Begin(const PlannedEncode& encode);

  const std::unique_ptr<VisionEncoder> encoder_;
  const int32_t rows_;
  const OpsTable& ops_;
  ThreadPool* const pool_;
  Arena scratch_, staging_;
  Buffer memory_;                     // [rows, H] f32
  std::optional<VisionBatch> batch_;  // on its way
};

}  // namespace baltoro
