#pragma once

// Ranks on CPUs: what they tell each other goes through a Link (comm). Tensors lie in host memory,
// contexts are not read.

#include <memory>
#include <span>

#include "comm/communicator.h"
#include "comm/link.h"
#include "device/buffer.h"
#include "model/host_exchange.h"
#include "ops/rank_ops.h"
#include "parallel/layout.h"

namespace baltoro {

class HostRanks final : public RankOps {
 public:
  // The rank of `link`, whose world is that of the layout, takes its place. `link` must outlive
  // this. kInvalidArgument where world and layout differ in size.
  static Result<std::unique_ptr<HostRanks>> Join(Link* link, const ParallelLayout& layout);

  Status status() const override {
    if (!status_.ok()) return status_;
    if (exchange_ != nullptr) BT_RETURN_IF_ERROR(exchange_->status());
    return slabs_ == nullptr ? Status() : slabs_->status();
  }
  bool recordable() const override { return false; }
  bool adds_in_order() const override { return true; }
  ExpertExchange* experts() override { return exchange_.get(); }
  SlabExchange* slabs() override { return slabs_.get(); }
  void Sum(const OpContext&, TensorView x) override;
  void GatherColumns(const OpContext&,
                     TensorView all,
                     TensorView own,
                     std::span<const int64_t> widths) override;
  void GatherHeads(const OpContext&, TensorView all, TensorView own) override;
  void MergeHeads(const OpContext&, TensorView own, TensorView partial, TensorView lse) override;
  void SendToNextStage(const OpContext&, TensorView x) override;
  void ReceiveFromStageBefore(const OpContext&, TensorView x) override;

 private:
  void Note(Status status) {
    if (status_.ok()) status_ = std::move(status);
  }
  void Gather(Communicator& group, TensorView all, TensorView own, std::span<const int64_t> widths);

  std::unique_ptr<Communicator> tensor_, context_, pipeline_;
  std::unique_ptr<HostExchange> exchange_;  // null: one replica
  std::unique_ptr<HostSlabs> slabs_;        // null: experts stay where they are
  Arena scratch_;                           // taken back by every call
  Status status_;
};

}  // namespace baltoro
