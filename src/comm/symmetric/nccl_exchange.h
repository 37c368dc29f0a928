#pragma once

// Replicas that share experts, by NCCL: where their ranks do not reach each other's memory. NCCL
// moves rows and rounded parts alone; each rank adds for itself, so that sums have the bits that
// they have over memory.

#include <memory>
#include <span>

#include "comm/nccl/nccl.h"
#include "device/cuda/device_buffer.h"
#include "ops/expert_exchange.h"

namespace baltoro::cuda {

class NcclExchange final : public ExpertExchange {
 public:
  // The group is that of the replicas. `columns` of a row that is added back; up to `rows_max` of a
  // replica's step.
  static Result<std::unique_ptr<NcclExchange>> Create(std::unique_ptr<NcclGroup> group,
                                                      int64_t columns,
                                                      int64_t rows_max);

  Status status() const { return group_->status(); }
  void Abort() { group_->Abort(); }
  // Can be recorded in a graph: `rows` are fixed then.
  void Gather(const OpContext& ctx,
              std::span<const Gathered> tensors,
              std::span<const int64_t> rows) override;
  void AddBack(const OpContext& ctx,
               TensorView own,
               TensorView all,
               std::span<const int64_t> rows) override;

 private:
  NcclExchange(std::unique_ptr<NcclGroup> group, DeviceBuffer staging)
      : group_(std::move(group)), staging_(std::move(staging)) {}

  std::unique_ptr<NcclGroup> group_;
  DeviceBuffer staging_;
};

}  // namespace baltoro::cuda
