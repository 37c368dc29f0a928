#pragma once

// What ranks on GPUs that balance the experts of their layers tell each other
// (ops/slab_exchange.h). Loads go the way of the replicas' rows; slabs over the ranks' memory
// (trade.h) where all ranks of the stage reach each other, else by NCCL.

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "comm/nccl/nccl.h"
#include "comm/symmetric/peer_world.h"
#include "comm/symmetric/trade.h"
#include "device/buffer.h"
#include "ops/expert_exchange.h"
#include "ops/rank_ops.h"

namespace baltoro::cuda {

// Slabs lie in the GPU's memory. Trade queues its work in the rank's stream and waits for nothing;
// AddUp waits for all that was queued.
class GpuSlabs final : public SlabExchange {
 public:
  struct Args {
    const OpsTable* ops = nullptr;
    ExpertExchange* replicas = nullptr;  // null: one
    int32_t replica_count = 1;
    std::function<Status()> status;  // of the rank
  };
  // How many blocks that move slabs the calling thread's GPU, or its share of one, runs at once;
  // `most` at most, unless 0. At least 1.
  static Result<int64_t> Blocks(int most);
  // `ranks` of the world form the group, in the order of their places. `blocks`: the least of
  // theirs. A rank alone may be named several times: the others of it are echoes (GpuRankArgs).
  // `world` must outlive this.
  static Result<std::unique_ptr<GpuSlabs>> OverMemory(const Args& args,
                                                      const PeerWorld& world,
                                                      const MemoryPlan& plan,
                                                      const std::vector<int32_t>& ranks,
                                                      int32_t self,  // of the world
                                                      int64_t blocks,
                                                      int64_t patience_ms);
  static Result<std::unique_ptr<GpuSlabs>> ByNccl(const Args& args,
                                                  std::unique_ptr<NcclGroup> group);

  Status status() const { return group_ == nullptr ? Status() : group_->status(); }
  void Abort() {
    if (group_ != nullptr) group_->Abort();
  }
  void AddUp(std::span<float> counts) override;
  void Trade(std::span<const Out> out, std::span<const In> in) override;

 private:
  explicit GpuSlabs(const Args& args) : args_(args) {}
  Status Prepare();
  OpContext Context() const { return {.rank = args_.ops->rank}; }
  void TradeByNccl(std::span<const Out> out, std::span<const In> in);

  const Args args_;
  Buffer device_, host_;  // this replica's counts, then those of all; of one AddUp at a time
  TradeParams trade_;     // without messages
  int64_t blocks_ = 0;    // that run at once on every rank
  std::unique_ptr<NcclGroup> group_;  // null: over memory
};

}  // namespace baltoro::cuda
