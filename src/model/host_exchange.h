#pragma once

// ExpertExchange on CPUs: tensors lie in host memory, contexts are not read. And that of a rank
// whose others are not there, on CPUs and GPUs.

#include <cstdint>
#include <memory>
#include <span>

#include "comm/communicator.h"
#include "device/buffer.h"
#include "ops/expert_exchange.h"
#include "ops/ops.h"
#include "ops/slab_exchange.h"

namespace baltoro {

class HostExchange final : public ExpertExchange {
 public:
  // `peers`: the ranks at this place in each replica, in the order of the replicas.
  explicit HostExchange(std::unique_ptr<Communicator> peers) : peers_(std::move(peers)) {}

  // The first failure.
  Status status() const { return status_; }

  void Gather(const OpContext&,
              std::span<const Gathered> tensors,
              std::span<const int64_t> rows) override;
  void AddBack(const OpContext&,
               TensorView own,
               TensorView all,
               std::span<const int64_t> rows) override;

 private:
  const std::unique_ptr<Communicator> peers_;
  Arena scratch_;  // taken back by every call
  Status status_;
};

// SlabExchange on CPUs.
class HostSlabs final : public SlabExchange {
 public:
  // `experts`: the ranks of the stage in all replicas, in the order of their places; `replicas` are
  // as many. `counts`: whether this rank's counts stand for its replica.
  HostSlabs(std::unique_ptr<Communicator> experts, int32_t replicas, bool counts)
      : experts_(std::move(experts)), replicas_(replicas), counts_(counts) {}

  // The first failure.
  Status status() const { return status_; }

  void AddUp(std::span<float> counts) override;
  void Trade(std::span<const Out> out, std::span<const In> in) override;

 private:
  const std::unique_ptr<Communicator> experts_;
  const int32_t replicas_;
  const bool counts_;
  Status status_;
};

// Of a trial, which waits for nobody: the other replicas are taken to bring this one's rows, so
// that as many are computed as in a step in which all have the most.
class LonelyExchange final : public ExpertExchange {
 public:
  // Of these operations' memory; they must outlive it.
  explicit LonelyExchange(const OpsTable& ops) : ops_(ops) {}

  void Gather(const OpContext&,
              std::span<const Gathered> tensors,
              std::span<const int64_t> rows) override;
  void AddBack(const OpContext&,
               TensorView own,
               TensorView all,
               std::span<const int64_t> rows) override {
    static_cast<void>(own), static_cast<void>(all), static_cast<void>(rows);
  }

 private:
  const OpsTable& ops_;
};

}  // namespace baltoro
