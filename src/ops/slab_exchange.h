#pragma once

// What ranks that balance the experts of their layers tell each other: how many rows each expert
// had, and the weights of experts that move. Between the ranks of one stage, of all replicas that
// share its experts, which are named by their place among them (RankPlace::expert).
//
// The rules are those of rank_ops.h: every rank makes the same calls in the same order, the first
// failure stays and is RankOps::status().

#include <cstddef>
#include <cstdint>
#include <span>

namespace baltoro {

// Counts that travel as rows of an ExpertExchange go so many bytes at once, of each replica.
inline constexpr int64_t kCountBytesAtOnce = int64_t{64} << 10;

class SlabExchange {
 public:
  virtual ~SlabExchange() = default;

  // Becomes the sum over the replicas, added in their order: the same bits on every rank. The
  // tensor ranks of a replica bring the same.
  virtual void AddUp(std::span<float> counts) = 0;

  struct Out {
    int32_t rank = 0;
    std::span<const std::byte> slab;
  };
  struct In {
    int32_t rank = 0;
    std::span<std::byte> slab;
  };
  // Sends and receives all of these at once: at most one each way for another rank, which has its
  // counterpart. Ranks without any need not call it.
  virtual void Trade(std::span<const Out> out, std::span<const In> in) = 0;
};

}  // namespace baltoro
