#pragma once

// A rank among others: each group by the way that its ranks have to each other.

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "comm/symmetric/gpu_slabs.h"
#include "comm/symmetric/nccl_exchange.h"
#include "comm/symmetric/nccl_ranks.h"
#include "comm/symmetric/peer_exchange.h"
#include "comm/symmetric/peer_ranks.h"
#include "device/cuda/device_buffer.h"
#include "device/cuda/stream.h"
#include "ops/compose/two_level_exchange.h"
#include "ops/rank_ops.h"

namespace baltoro::cuda {

class JoinedRanks final : public RankOps {
 public:
  static Result<std::unique_ptr<JoinedRanks>> Join(const GpuRankArgs& args);

  Status status() const override;
  bool recordable() const override { return true; }
  bool adds_in_order() const override { return tensor_ == nullptr || tensor_->adds_in_order(); }
  bool takes_rounded_parts() const override {
    return tensor_ == nullptr || tensor_->takes_rounded_parts();
  }
  void Abort() override;
  void Sum(const OpContext& ctx, TensorView x) override;
  bool SumAddRmsNorm(const OpContext& ctx,
                     TensorView out,
                     TensorView residual,
                     TensorView delta,
                     TensorView weight,
                     float eps) override;
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

  ExpertExchange* experts() override;
  std::string remark() const override { return remark_; }
  SlabExchange* slabs() override { return slabs_.get(); }

  // Of the tensor ranks, and of the replicas (in two levels, of those of a host), where they share
  // memory; else null. For measurements.
  PeerRanks* peers() const { return peers_; }
  PeerExchange* peer_exchange() const { return peer_exchange_.get(); }

 private:
  // The exchange by NCCL is there, of the ranks `across` hosts.
  Status JoinLevels(const GpuRankArgs& args,
                    const MemoryPlan& plan,
                    const std::vector<int32_t>& within,
                    const std::vector<int32_t>& across);
  JoinedRanks(PeerWorld world, Stream aside, const GpuRankArgs& args)
      : world_(std::move(world)),
        aside_(std::move(aside)),
        device_(args.device),
        rank_(args.rank) {}

  PeerWorld world_;
  Stream aside_;  // for Abort, which waits for no kernel
  int device_;
  int32_t rank_;
  std::unique_ptr<RankOps> tensor_, context_, pipeline_;  // null: a group of one
  PeerRanks* peers_ = nullptr;
  // Of the replicas; all null: one alone. Over memory, by NCCL, or in two levels, the upper of
  // which goes by NCCL.
  std::unique_ptr<PeerExchange> peer_exchange_;
  std::unique_ptr<NcclExchange> nccl_exchange_;
  DeviceBuffer room_between_hosts_;
  std::unique_ptr<TwoLevelExchange> two_levels_;
  std::string remark_;
  std::unique_ptr<GpuSlabs> slabs_;  // null: experts stay where they are
};

}  // namespace baltoro::cuda
