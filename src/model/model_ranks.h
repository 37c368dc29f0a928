#pragma once

// One rank's way to the others of its model. All tensors lie in host memory. The first failure
// stays: from then on nothing moves, and what a step computes means nothing; whoever runs steps
// asks status() after each. One thread.

#include <memory>
#include <span>

#include "base/status.h"
#include "comm/communicator.h"
#include "comm/link.h"
#include "device/buffer.h"
#include "model/weight_slice.h"
#include "tensor/tensor_view.h"

namespace baltoro {

class ModelRanks {
 public:
  // The rank of `link`, whose world is that of the layout, takes its place. `link` must outlive
  // this. kInvalidArgument where world and layout differ in size.
  static Result<std::unique_ptr<ModelRanks>> Join(Link* link, const ParallelLayout& layout);

  const RankShare& share() const { return share_; }
  Status status() const { return status_; }

  // Tensor ranks: x [T, H] f32, contiguous, becomes the sum of all; the same bits on each.
  void Sum(TensorView x);
  // Tensor ranks: all [T, n] f32 becomes the columns of each beside one another, widths[r] of rank
  // r, own [T, widths[this]] among them.
  void GatherColumns(TensorView all, TensorView own, std::span<const int64_t> widths);

  // Context ranks: all [T, ranks * w] becomes the columns of each; own [T, w].
  void GatherHeads(TensorView all, TensorView own);
  // Context ranks: each has attended for all heads of the group to its part of the keys, with
  // results `partial` [T, ranks * h V] and lse [T, ranks * h] f32. `own` [T, h V] becomes what
  // attention to all keys gives for this rank's heads: results weighted by their share of the
  // softmax sum, summed in f32 in the order of the ranks.
  void MergeHeads(TensorView own, TensorView partial, TensorView lse);

  // Pipeline: x [T, H] f32, contiguous.
  void SendToNextStage(TensorView x);
  void ReceiveFromStageBefore(TensorView x);

 private:
  ModelRanks(const RankShare& share) : share_(share) {}
  void Note(Status status) {
    if (status_.ok()) status_ = std::move(status);
  }
  void Gather(Communicator& group, TensorView all, TensorView own, std::span<const int64_t> widths);

  const RankShare share_;
  std::unique_ptr<Communicator> tensor_, context_, pipeline_;
  Arena scratch_;  // taken back by every call
  Status status_;
};

}  // namespace baltoro
