#pragma once

// What replicas that share experts (an expert group) tell each other in a layer of experts. A
// replica brings the rows of its step and which experts they chose; each rank computes its own
// experts for the rows of all; what was found for a row goes back to its replica.
//
// The tensor ranks of a replica have the same rows, so a rank talks to those alone that are at its
// place in the other replicas: between them they hold, with the sum over tensor ranks that follows,
// every expert once.
//
// The rules are those of rank_ops.h. Every rank of the group takes part in every layer of experts
// of every step, also one whose replica has no rows.

#include <cstdint>
#include <span>

#include "ops/context.h"
#include "tensor/tensor_view.h"

namespace baltoro {

class ExpertExchange {
 public:
  virtual ~ExpertExchange() = default;

  struct Gathered {
    TensorView all;  // [G, n], G the sum of `rows`: becomes the rows of the replicas, one after
                     // the other
    TensorView own;  // [rows of this replica, n], of the same type; both contiguous
  };
  virtual void Gather(const OpContext&,
                      std::span<const Gathered> tensors,
                      std::span<const int64_t> rows) = 0;
  // own [rows of this replica, n] f32 += its part of `all` [G, n] f32, added up over the replicas
  // in their order; where a group lies on several hosts it may be over those of each, then over the
  // hosts (compose/two_level_exchange.h). Both contiguous. GPUs may send parts, and sums of a host,
  // rounded to bf16, all ranks alike; there each of the two may be bf16 as well.
  virtual void AddBack(const OpContext&,
                       TensorView own,
                       TensorView all,
                       std::span<const int64_t> rows) = 0;
};

}  // namespace baltoro
