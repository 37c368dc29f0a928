#include "engine/gpu_ranks.h"

#include <string>
#include <utility>
#include <vector>

#include "base/log.h"
#include "comm/link_communicator.h"
#include "ops/cuda_module.h"
#include "ops/rank_ops.h"

namespace baltoro {
namespace {

// Opening another process's memory, or NCCL, takes seconds; ranks that load models come late.
constexpr Seconds kMeetingTimeout = 600;

}  // namespace

Result<std::unique_ptr<ModelRanks>> JoinGpuRanks(Link* link,
                                                 const ParallelLayout& layout,
                                                 const K2Config& config,
                                                 const GpuRankOptions& options) {
  GroupOptions everyone{.name = "gpus", .ranks = {}, .call_timeout = kMeetingTimeout};
  for (int32_t rank = 0; rank < layout.ranks(); ++rank) everyone.ranks.push_back(rank);
  BT_ASSIGN_OR_RETURN(const std::unique_ptr<Communicator> all, JoinGroup(link, everyone));
  GpuRankArgs args = RankArgsOf(config, layout, link->rank(), options.tokens_max, options.ops->act);
  args.ops = options.ops;
  args.device = options.device;
  args.nccl_only = options.nccl_only;
  args.host = options.host;
  args.exchange = [&](std::span<const std::byte> own, std::span<std::byte> parts) {
    const std::vector<size_t> bytes(static_cast<size_t>(all->size()), own.size());
    return all->AllGather(own, bytes, parts);
  };
  BT_ASSIGN_OR_RETURN(const CudaModule* const module, FindCudaModule());
  BT_ASSIGN_OR_RETURN(std::unique_ptr<RankOps> ops, module->join_ranks(args));
  if (const std::string remark = ops->remark(); link->rank() == 0 && !remark.empty()) {
    BT_LOG(Info, "GPUs of this model: {}", remark);
  }
  return std::make_unique<ModelRanks>(RankShare{layout, PlaceOf(layout, link->rank())},
                                      std::move(ops));
}

}  // namespace baltoro
