#pragma once

// What the ranks of one group tell each other, by kernels over each other's memory.

#include <array>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "comm/symmetric/peer_memory.h"
#include "comm/symmetric/peer_world.h"
#include "comm/symmetric/sum.h"
#include "ops/rank_ops.h"

namespace baltoro::cuda {

// How a sum is made, where it is not left to the table.
struct SumChoice {
  SumForm form = SumForm::kOneShot;
  int blocks_of_row = 4;
};

class PeerRanks final : public RankOps {
 public:
  // `ranks` of the world form the group, in its order: the tensor ranks of a stage, the context
  // ranks, or the stages of a tensor rank, of which neighbours alone matter. `world` must outlive
  // this.
  static Result<std::unique_ptr<PeerRanks>> Create(const PeerWorld* world,
                                                   const MemoryPlan& plan,
                                                   const std::vector<int32_t>& ranks,
                                                   int32_t self,  // of the world
                                                   int64_t patience_ms);

  Status status() const override { return {}; }  // the world has one for all its groups
  bool recordable() const override { return true; }
  bool adds_in_order() const override { return true; }
  bool takes_rounded_parts() const override { return true; }
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

  // For measurements. Empty: the table again.
  void Choose(std::optional<SumChoice> choice) { choice_ = choice; }

 private:
  PeerRanks(const PeerWorld* world, const MemoryPlan& plan) : world_(world), plan_(plan) {}
  char* Memory(int32_t rank, size_t offset) const;
  template <typename Params>
  void Fill(Params& params, const ExchangeRegion& region, size_t counters, size_t packets) const;
  void RunSum(const OpContext& ctx, SumParams params, int64_t rows);
  SumChoice ChoiceFor(int64_t rows) const;
  void Gather(const OpContext& ctx,
              const TensorView& all,
              const TensorView& own,
              std::span<const int64_t> widths,
              const ExchangeRegion& region,
              size_t counters,
              size_t packets);

  const PeerWorld* world_;
  const MemoryPlan plan_;
  std::vector<int32_t> ranks_;  // of the group
  int32_t self_ = 0;            // of the world
  int index_ = 0;               // of the group
  int64_t patience_ms_ = 0;
  PeerWatch watch_;                     // of the group, where it is no pipeline
  std::array<int, 9> blocks_max_ = {};  // of a sum's kernel, by blocks of a row
  std::optional<SumChoice> choice_;
};

}  // namespace baltoro::cuda
