#pragma once

// Replicas that share experts, where their ranks reach each other's memory.

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "comm/symmetric/group_exchange.h"
#include "comm/symmetric/peer_world.h"
#include "ops/expert_exchange.h"
#include "ops/gpu_exchange.h"

namespace baltoro::cuda {

enum class ExchangeForm { kPackets, kChunks };

// Queues kernels, which can be recorded in a graph: `rows` are fixed then. A failure is the
// world's.
class PeerExchange final : public ExpertExchange {
 public:
  // `ranks` of the world form the group, in the order of their replicas. `world` must outlive this.
  static Result<std::unique_ptr<PeerExchange>> Create(const PeerWorld* world,
                                                      const MemoryPlan& plan,
                                                      const std::vector<int32_t>& ranks,
                                                      int32_t self,  // of the world
                                                      int64_t patience_ms);

  void Gather(const OpContext& ctx,
              std::span<const Gathered> tensors,
              std::span<const int64_t> rows) override;
  void AddBack(const OpContext& ctx,
               TensorView own,
               TensorView all,
               std::span<const int64_t> rows) override;

  // For measurements. Empty: by the number of rows again.
  void Choose(std::optional<ExchangeForm> form) { choice_ = form; }

 private:
  PeerExchange() = default;
  bool InPackets(int64_t rows_max) const;

  GroupPackets packets_;
  GroupChunks chunks_;
  PeerWatch watch_;
  std::optional<ExchangeForm> choice_;
};

}  // namespace baltoro::cuda
