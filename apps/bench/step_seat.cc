#include "bench/step_seat.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <utility>
#include <vector>

#include "comm/link_communicator.h"
#include "engine/gpu_ranks.h"

namespace baltoro {
namespace {

// A part of a model that is one of its own: fewer heads, narrower layers, a part of the vocabulary.
// The low-rank projections and the router are whole on each.
Status Cut(int32_t ways, K2Config& config) {
  const auto cut = [&](auto& size, const char* what) -> Status {
    if (size % ways != 0) {
      return InvalidArgument(
          fmt::format("--tensor-parallel-size: {} does not divide {} {}", ways, size, what));
    }
    size /= ways;
    return {};
  };
  BT_RETURN_IF_ERROR(cut(config.heads, "heads"));
  BT_RETURN_IF_ERROR(cut(config.intermediate, "columns of the dense layers"));
  BT_RETURN_IF_ERROR(cut(config.moe_intermediate, "columns of an expert"));
  return cut(config.vocab, "entries of the vocabulary");
}

}  // namespace

Result<ParallelLayout> LayoutOfSeat(const BenchStepCommand& command, K2Config& config) {
  if (command.tensor % command.ranks != 0) {
    return InvalidArgument(fmt::format("--ranks {} does not divide --tensor-parallel-size {}",
                                       command.ranks, command.tensor));
  }
  ParallelLayout layout{.tensor = command.ranks, .decode_context = command.decode_context};
  if (command.data > 1) {
    layout.data = command.data;
    layout.whole_experts = true;
    layout.fp8_dispatch = command.expert_dispatch_dtype == "fp8";
    layout.balanced_experts = command.move_experts;
    config.experts += config.experts > 0 ? command.redundant_experts : 0;
    config.router.experts = config.experts;
    if (config.experts % command.data != 0) {
      return InvalidArgument(fmt::format(
          "--data-parallel-size: {} experts and {} redundant ones do not divide evenly over {} "
          "ranks",
          config.experts - command.redundant_experts, command.redundant_experts, command.data));
    }
  } else if (command.ranks == 1 && command.decode_context > 1) {
    layout.tensor = command.tensor;
  } else {
    BT_RETURN_IF_ERROR(Cut(command.tensor / command.ranks, config));
  }
  BT_RETURN_IF_ERROR(CheckLayout(layout, ShapeOf(config)));
  return layout;
}

Result<std::unique_ptr<ModelRanks>> TakeSeat(const StepSeat& seat,
                                             const ParallelLayout& layout,
                                             const K2Config& config,
                                             const OpsTable& ops,
                                             int64_t tokens_max) {
  if (layout.ranks() == 1) return std::unique_ptr<ModelRanks>();
  if (seat.link == nullptr) {
    return std::make_unique<ModelRanks>(RankShare{layout, PlaceOf(layout, 0)},
                                        std::make_unique<NoRanks>());
  }
  if (ops.memory->kind() == DeviceKind::kCpu) return ModelRanks::Join(seat.link, layout);
  return JoinGpuRanks(seat.link, layout, config,
                      {.ops = &ops, .device = seat.rank(), .tokens_max = tokens_max});
}

Result<int64_t> LeastOfAll(const StepSeat& seat, int64_t own) {
  if (seat.link == nullptr) return own;
  GroupOptions everyone{.name = "bench", .ranks = {}};
  for (int32_t rank = 0; rank < seat.link->ranks(); ++rank) everyone.ranks.push_back(rank);
  BT_ASSIGN_OR_RETURN(const std::unique_ptr<Communicator> all, JoinGroup(seat.link, everyone));
  std::vector<int64_t> values(everyone.ranks.size());
  const std::vector<size_t> bytes(values.size(), sizeof(int64_t));
  BT_RETURN_IF_ERROR(all->AllGather(std::as_bytes(std::span(&own, 1)), bytes,
                                    std::as_writable_bytes(std::span(values))));
  return std::ranges::min(values);
}

}  // namespace baltoro
