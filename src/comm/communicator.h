#pragma once

// The ranks of one group moving tensors among them. A rank is in several groups at once: all tensor
// ranks of a stage, its decode-context ranks, its neighbours in the pipeline.
//
// Every rank of the group makes the same calls in the same order with the same sizes. A call
// returns when this rank's part is done. Any error is final: every later call on every rank of the
// world returns it, and its message names the rank that caused it. What the buffers hold after an
// error is unspecified.
//
// Threads: the calls of one rank, over all its groups, from one thread at a time; Abort from any.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "base/status.h"
#include "comm/link.h"

namespace baltoro {

class Communicator {
 public:
  virtual ~Communicator() = default;

  // This rank's place in the group, and the size of the group. All ranks below are such places.
  virtual int32_t rank() const = 0;
  virtual int32_t size() const = 0;

  // data[i] = data_0[i] + data_1[i] + ... in the order of the ranks, in f32: the same bits on every
  // rank and in every run.
  virtual Status AllReduceSum(std::span<float> data) = 0;

  // `in` is one part for each rank, in the order of the ranks, of counts[r] floats. `out` becomes
  // the sum of this rank's parts, in the order of the ranks. `out` may be this rank's part of `in`
  // and must not overlap it otherwise.
  virtual Status ReduceScatterSum(std::span<const float> in,
                                  std::span<const size_t> counts,
                                  std::span<float> out) = 0;

  // `out` becomes the parts of all ranks one after the other, bytes[r] from rank r. `in` may be
  // this rank's part of `out` and must not overlap it otherwise.
  virtual Status AllGather(std::span<const std::byte> in,
                           std::span<const size_t> bytes,
                           std::span<std::byte> out) = 0;

  virtual Status Broadcast(std::span<std::byte> data, int32_t root) = 0;

  // To and from one other rank of the group. Up to kEagerBytes (link.h) are sent without waiting
  // for the receiver, more may wait for it: two ranks that both send more first do not get further
  // than their deadline.
  virtual Status Send(std::span<const std::byte> data, int32_t to) = 0;
  virtual Status Receive(std::span<std::byte> data, int32_t from) = 0;

  // Sends and receives all of these at once: at most one each way for another rank of the group,
  // which makes the same call with its own.
  virtual Status Trade(std::span<const Outgoing> outgoing, std::span<const Incoming> incoming) = 0;

  // Returns when all ranks of the group have called it.
  virtual Status Barrier() = 0;

  // Ends the calls of all ranks of the world, in this group and others.
  virtual void Abort(const std::string& reason) = 0;
};

}  // namespace baltoro
