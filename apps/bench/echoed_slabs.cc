#include "bench/echoed_slabs.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "ops/cuda_module.h"
#include "parallel/expert_slots.h"

namespace baltoro {

Result<std::unique_ptr<EchoedSlabs>> EchoedSlabs::Create(const OpsTable& ops,
                                                         const K2Config& config) {
  std::unique_ptr<RankOps> ranks;
  if (ops.memory->kind() != DeviceKind::kCpu) {
    BT_ASSIGN_OR_RETURN(const CudaModule* const module, FindCudaModule());
    BT_ASSIGN_OR_RETURN(ranks, module->join_ranks({.ops = &ops,
                                                   .balances = true,
                                                   .rows_max = 1,
                                                   .hidden = config.hidden,
                                                   .vocab = config.vocab,
                                                   .exchange = {},
                                                   .slab_echoes = kExpertsOnTheirWay}));
  }
  return std::unique_ptr<EchoedSlabs>(new EchoedSlabs(std::move(ranks)));
}

void EchoedSlabs::Trade(std::span<const Out> out, std::span<const In> in) {
  const size_t count = std::max(out.size(), in.size());
  traded_ = std::max(traded_, static_cast<int64_t>(out.size() + in.size()));
  std::vector<Out> sent;
  std::vector<In> received;
  for (size_t i = 0; i < count; ++i) {
    const auto echo = static_cast<int32_t>(i) + 1;
    const std::span<std::byte> to =
        i < in.size() ? in[i].slab
                      : std::span(const_cast<std::byte*>(out[i].slab.data()), out[i].slab.size());
    const std::span<const std::byte> from = i < out.size() ? out[i].slab : in[i].slab;
    sent.push_back({.rank = echo, .slab = from});
    received.push_back({.rank = echo, .slab = to});
    if (ranks_ == nullptr && to.data() != from.data()) {
      std::memcpy(to.data(), from.data(), from.size());
    }
  }
  if (ranks_ != nullptr && count > 0) ranks_->slabs()->Trade(sent, received);
}

int64_t EchoedSlabs::TakeTraded() {
  return std::exchange(traded_, 0);
}

}  // namespace baltoro
