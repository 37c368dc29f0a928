#pragma once

// What the ranks of one model tell each other while they compute: operations like those of
// OpsTable, over tensors of the same memory, in the same stream. Every rank makes the same calls in
// the same order with the same sizes. Here lies the contract; ranks on CPUs and on GPUs implement
// it.
//
// The groups of a rank come from its layout: the tensor ranks of its stage; the decode-context
// ranks, neighbours among them; the stages before and after it.
//
// The first failure stays: from then on nothing moves, and what a step computes means nothing;
// whoever runs steps asks status() after each. One thread a rank.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "base/status.h"
#include "ops/expert_exchange.h"
#include "ops/ops.h"
#include "ops/slab_exchange.h"
#include "tensor/tensor_view.h"

namespace baltoro {

class RankOps {
 public:
  virtual ~RankOps() = default;

  // On a GPU: of all that was queued before the last OpsTable::wait.
  virtual Status status() const = 0;
  // Whether the operations below can be recorded in a graph (OpsTable::capture).
  virtual bool recordable() const = 0;
  // Whether a row's sums are added in the same order whatever rows are beside it.
  virtual bool adds_in_order() const = 0;
  // Whether the parts that Sum and SumAddRmsNorm add may be bf16 (hidden_state.h): where parts
  // travel so in any case.
  virtual bool takes_rounded_parts() const { return false; }
  // What an operator should know of how this rank reaches the others; empty: nothing.
  virtual std::string remark() const { return {}; }
  // Ends what waits, here and on the ranks that can be reached; status() says so from then on. Any
  // thread, while this lives.
  virtual void Abort() {}
  // With the replicas that share the experts. Null: this replica has all of them.
  virtual ExpertExchange* experts() { return nullptr; }
  // With the ranks that balance the experts of their layers. Null: none does.
  virtual SlabExchange* slabs() { return nullptr; }

  // Tensor ranks: x [T, H] part, contiguous, of one type on all ranks, becomes the sum of all,
  // added in f32 in the order of the ranks: the same bits on each. GPUs may send parts and sums
  // rounded to bf16, all ranks alike; where NCCL adds, the order is its own.
  virtual void Sum(const OpContext&, TensorView x) = 0;
  // Sum of delta, then add_rms_norm(out, residual, delta, weight, eps), in one, with the copies of
  // out that the context asks of a norm. False: not done, the caller does both. delta is
  // unspecified afterwards.
  virtual bool SumAddRmsNorm(const OpContext&,
                             TensorView out,
                             TensorView residual,
                             TensorView delta,
                             TensorView weight,
                             float eps) {
    static_cast<void>(out), static_cast<void>(residual), static_cast<void>(delta);
    static_cast<void>(weight), static_cast<void>(eps);
    return false;
  }
  // Tensor ranks: all [T, n] f32 becomes the columns of each beside one another, widths[r] of rank
  // r; own [T, widths[this]], contiguous.
  virtual void GatherColumns(const OpContext&,
                             TensorView all,
                             TensorView own,
                             std::span<const int64_t> widths) = 0;

  // Context ranks: all [T, ranks * w] act becomes the columns of each; own [T, w].
  virtual void GatherHeads(const OpContext&, TensorView all, TensorView own) = 0;
  // Context ranks: each has attended for all heads of the group to its part of the keys, with
  // results `partial` [T, ranks * h V] act and lse [T, ranks * h] f32. `own` [T, h V] act becomes
  // what attention to all keys gives for this rank's heads: results weighted by their share of the
  // softmax sum, summed in f32 in the order of the ranks. lse -inf: no keys; all -inf: zeros; NaN
  // stays in its row and head.
  virtual void MergeHeads(const OpContext&, TensorView own, TensorView partial, TensorView lse) = 0;

  // Pipeline: x [T, H] f32, contiguous.
  virtual void SendToNextStage(const OpContext&, TensorView x) = 0;
  virtual void ReceiveFromStageBefore(const OpContext&, TensorView x) = 0;
};

// A rank whose others are not there: takes no time and brings nothing. Of a trial, whose numbers
// nobody reads, and which must not wait for ranks that are not as far; and of benchmarks of one
// rank's share.
class NoRanks : public RankOps {
 public:
  Status status() const override { return {}; }
  bool recordable() const override { return true; }
  bool adds_in_order() const override { return true; }
  bool takes_rounded_parts() const override { return true; }
  void Sum(const OpContext&, TensorView) override {}
  void GatherColumns(const OpContext&, TensorView, TensorView, std::span<const int64_t>) override {}
  void GatherHeads(const OpContext&, TensorView, TensorView) override {}
  void MergeHeads(const OpContext&, TensorView, TensorView, TensorView) override {}
  void SendToNextStage(const OpContext&, TensorView) override {}
  void ReceiveFromStageBefore(const OpContext&, TensorView) override {}
};

// Where ranks of GPUs meet, before they have memory in common: bytes of equal size from each rank
// of the world, in the order of the ranks. Called by all at the same time.
using RankExchange =
    std::function<Status(std::span<const std::byte> own, std::span<std::byte> all)>;

// A GPU among others. Ranks of the world are numbered as in parallel/layout.h: rank = (data rank *
// stages + stage) * tensor + tensor rank.
struct GpuRankArgs {
  const OpsTable* ops = nullptr;  // of this rank's GPU
  int device = 0;
  int32_t rank = 0, ranks = 1;  // of the world
  int32_t tensor = 1, decode_context = 1;
  int32_t data = 1;        // replicas that share the experts
  bool balances = false;   // the ranks of a stage move experts (SlabExchange)
  int64_t rows_max = 0;    // T of the largest step of a replica
  int64_t hidden = 0;      // H
  int64_t vocab = 0;       // columns of GatherColumns
  int64_t head_bytes = 0;  // of one row of `all` in GatherHeads, or of `partial`: the larger
  // Of one row of all that ExpertExchange::Gather is given at a time; read where data > 1.
  int64_t expert_row_bytes = 0;
  RankExchange exchange;
  int64_t patience_ms = 10'000;  // how long an operation waits for another rank
  bool nccl_only = false;        // also where GPUs reach each other's memory
  // For tests: ranks of one machine that have different numbers count as on different hosts.
  int32_t host = 0;
  // For tests: slabs are moved as if this rank's GPU ran no more blocks at once. 0: as many as it
  // does. Ranks may differ.
  int slab_blocks_max = 0;
  // For measurements, of a rank that is alone and `balances`: it has so many neighbours to move
  // experts with, places 1 and on, of which each sends back what it gets, as a rank that has them
  // on its own GPU.
  int32_t slab_echoes = 0;
};

}  // namespace baltoro
