#pragma once

// Replicas that share experts on several hosts (ops/expert_exchange.h), where the ranks of a host
// reach each other by a better way than those of others: each row, and each sum, crosses from one
// host to another once, whatever the ranks there. A rank exchanges with those that have its place
// on the other hosts, and what came with the others of its own.
//
// Replicas lie in blocks of equal size, one after the other: replica h * L + l is rank l of host h.
// Sums are added per host, then over the hosts, both in their order. They cross as `sum_type`: a
// host's sum is rounded to it.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "ops/expert_exchange.h"
#include "tensor/dtype.h"

namespace baltoro {

class TwoLevelExchange final : public ExpertExchange {
 public:
  struct Levels {
    // Both must outlive this; their failures are not looked at here.
    ExpertExchange* across = nullptr;  // the ranks at this place, in the order of their hosts
    ExpertExchange* within = nullptr;  // the ranks of this host, in the order of their places
    int64_t hosts = 1, of_host = 1;    // L
    int64_t replica = 0;               // this one
    DType sum_type = DType::kF32;      // or bf16, where both add to that
    // Of the exchanges' memory, 256-byte aligned: what crosses, before it is dealt out. Held while
    // a call is under way, in the stream of the calls.
    std::span<std::byte> room;
    // Zeros, as an operation of the same stream.
    std::function<void(const OpContext&, const TensorView&)> clear;
  };
  // Bytes of `room` for up to `rows_max` rows of a replica: of `row_bytes`, all tensors together,
  // that come back as sums of `sum_row_bytes`. Loads of experts (SlabExchange) have room in it too.
  static int64_t RoomBytes(int64_t hosts,
                           int64_t rows_max,
                           int64_t row_bytes,
                           int64_t sum_row_bytes);

  explicit TwoLevelExchange(Levels levels);

  void Gather(const OpContext& ctx,
              std::span<const Gathered> tensors,
              std::span<const int64_t> rows) override;
  void AddBack(const OpContext& ctx,
               TensorView own,
               TensorView all,
               std::span<const int64_t> rows) override;

 private:
  // The rows of the replicas of one host, in two places.
  struct HostRows {
    int64_t first = 0, count = 0;  // of the rows of all
    int64_t crossed = 0;           // of what crosses: where those of this rank's place begin
    int64_t of_place = 0;          // and how many there are
    std::span<const int64_t> rows;
  };
  std::vector<HostRows> RowsOfHosts(std::span<const int64_t> rows) const;

  const Levels levels_;
};

}  // namespace baltoro
