#pragma once

// What the ranks of one group tell each other, by NCCL: where they do not reach each other's
// memory.

#include <memory>
#include <span>

#include "comm/nccl/nccl.h"
#include "device/cuda/device_buffer.h"
#include "ops/rank_ops.h"

namespace baltoro::cuda {

class NcclRanks final : public RankOps {
 public:
  // The group is that of the operations that will be called. `row_bytes`: of the widest row that
  // they gather or merge; kStagingRows of them are held.
  static Result<std::unique_ptr<NcclRanks>> Create(std::unique_ptr<NcclGroup> group,
                                                   int64_t row_bytes,
                                                   int64_t rows_max);

  Status status() const override { return group_->status(); }
  bool recordable() const override { return true; }
  bool adds_in_order() const override { return false; }
  // NCCL would round the sum again on its way from rank to rank.
  bool takes_rounded_parts() const override { return false; }
  void Abort() override { group_->Abort(); }
  void Sum(const OpContext& ctx, TensorView x) override;
  void GatherColumns(const OpContext& ctx,
                     TensorView all,
                     TensorView own,
                     std::span<const int64_t> widths) override;
  void GatherHeads(const OpContext& ctx, TensorView all, TensorView own) override;
  void MergeHeads(const OpContext& ctx,
                  TensorView own,
                  TensorView partial,
                  TensorView lse) override;
  void SendToNextStage(const OpContext& ctx, TensorView x) override;
  void ReceiveFromStageBefore(const OpContext& ctx, TensorView x) override;

 private:
  NcclRanks(std::unique_ptr<NcclGroup> group, DeviceBuffer staging)
      : group_(std::move(group)), staging_(std::move(staging)) {}
  void Gather(const OpContext& ctx,
              const TensorView& all,
              const TensorView& own,
              std::span<const int64_t> widths);

  std::unique_ptr<NcclGroup> group_;
  DeviceBuffer staging_;
};

}  // namespace baltoro::cuda
