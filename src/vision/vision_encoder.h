#pragma once

// A picture encoder at work: patches of pictures in, rows for the text model out. It computes in
// steps of some layers, so that whoever runs it can do other things between them.
//
// The encoder owns its weights and the memory of one batch. All of it is taken by Create; what a
// call needs beside it comes from OpContext::scratch. One thread calls, the one that runs the
// backend's other operations.

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/status.h"
#include "device/buffer.h"
#include "ops/ops.h"
#include "ops/rank_ops.h"
#include "ops/thread_pool.h"
#include "ops/vision.h"
#include "vision/vision_config.h"
#include "vision/vision_weights.h"
#include "weights/weight_source.h"

namespace baltoro {

// A picture, or frames of a video that are one item.
struct Picture {
  PictureGrid grid;
  // [grid.patches(), 3, patch, patch] in host memory: patches frame by frame, row by row. Read by
  // Begin alone.
  std::span<const uint8_t> pixels;
};

// Bytes that an encoder for batches of `patches_max` patches takes.
struct VisionBytes {
  int64_t weights = 0;
  int64_t batch = 0;    // the residual stream and the pixels of a batch, and tables
  int64_t scratch = 0;  // of OpContext::scratch, on the threads that were named
};

class VisionBatch;

class VisionEncoder {
 public:
  // Loads the weights and takes the memory of a batch. Refuses operations that have none for
  // pictures (OpsTable::vision), or none for a part, and whatever VisionConfig and
  // LoadVisionWeights refuse. `ops` must outlive the encoder. `pool` loads; null: this thread.
  // Tensor ranks that have a part each make the same calls; `ranks`, which outlives the encoder,
  // adds up what they find.
  static Result<std::unique_ptr<VisionEncoder>> Create(const VisionConfig& config,
                                                       WeightSource& source,
                                                       const OpsTable& ops,
                                                       ThreadPool* pool,
                                                       int64_t patches_max,
                                                       const VisionPart& part = {},
                                                       RankOps* ranks = nullptr);
  // `ops` has operations for pictures. Of the first rank of those that have a part each.
  static VisionBytes PlanBytes(const VisionConfig& config,
                               const OpsTable& ops,
                               int64_t patches_max,
                               int threads,
                               const VisionPart& part = {});

  const VisionConfig& config() const { return config_; }
  int64_t patches_max() const { return patches_max_; }
  int64_t bytes() const;  // that it has taken: weights and batch of VisionBytes

  // Whether a picture could be of a batch; if not, why, as a sentence goes on behind "picture 3".
  Status Check(const Picture& picture) const;
  // Begins a batch of pictures, whose rows become `out` [tokens, text_hidden] f32, contiguous, in
  // the backend's memory, picture after picture; it must live until the batch is done. The batch
  // before it is over, done or not. Refuses pictures that the encoder cannot take, with the number
  // of the picture: too many patches, frames or patches along a side, sides that do not merge,
  // pixels of another size.
  Result<VisionBatch> Begin(std::span<const Picture> pictures, TensorView out);

 private:
  friend class VisionBatch;
  VisionEncoder(const VisionConfig& config,
                const OpsTable& ops,
                int64_t patches_max,
                const VisionPart& part,
                RankOps* ranks)
      : config_(config), ops_(ops), patches_max_(patches_max), part_(part), ranks_(ranks) {}
  Status MakeTables();

  const VisionConfig config_;
  const OpsTable& ops_;
  const int64_t patches_max_;
  const VisionPart part_;
  RankOps* const ranks_;  // null: the encoder is whole
  VisionWeights weights_;
  int64_t begun_ = 0;  // batches
  Buffer tables_memory_, stream_memory_, pixels_memory_;
  TensorView times_;      // [frames_max, H]
  TensorView cos_, sin_;  // [side_max, head size / 4]
};

// One batch on its way through the encoder, which must outlive it.
class VisionBatch {
 public:
  VisionBatch(VisionBatch&&) = default;
  VisionBatch& operator=(VisionBatch&&) = default;

  // Layers that are left, the projector counted as one; the patches are embedded with the first.
  int32_t layers_left() const { return config().layers + 1 - done_; }
  bool done() const { return layers_left() == 0; }
  // Queues up to `layers` more of them, at least 1; when none is left, `out` is complete as soon as
  // what was queued is (at once on a CPU). Resets context.scratch as it goes.
  void Advance(const OpContext& context, int32_t layers);

 private:
  friend class VisionEncoder;
  VisionBatch(const VisionEncoder& encoder, std::vector<PictureGrid> grids, TensorView out);
  const VisionConfig& config() const { return encoder_->config_; }
  void Embed(const OpContext& context) const;
  void RunBlock(const OpContext& context, const VisionBlockWeights& block) const;
  void Project(const OpContext& context) const;

  const VisionEncoder* encoder_;
  int64_t number_;  // of the encoder's batches: only its last one may go on
  std::vector<PictureGrid> grids_;
  TensorView x_;       // [N, H] f32
  TensorView pixels_;  // [N, 3 patch patch] u8
  TensorView out_;
  int32_t done_ = 0;  // of layers + 1
};

}  // namespace baltoro
