#include "model/model_ranks.h"

#include <algorithm>

#include "model/host_ranks.h"

namespace baltoro {

GpuRankArgs RankArgsOf(const K2Config& config,
                       const ParallelLayout& layout,
                       int32_t rank,
                       int64_t tokens_max,
                       DType act) {
  const RankShare share{layout, PlaceOf(layout, rank)};
  const auto group_heads = static_cast<int64_t>(share.group_heads(config).size());
  GpuRankArgs args;
  args.rank = rank;
  args.ranks = layout.ranks();
  args.tensor = layout.tensor;
  args.decode_context = layout.decode_context;
  args.data = layout.data;
  args.balances = layout.balanced_experts;
  args.rows_max = tokens_max;
  args.hidden = config.hidden;
  args.vocab = config.vocab;
  args.head_bytes = group_heads * std::max(config.head_dim(), config.value) * SizeOf(act);
  // Rows of the norm, and the experts that they chose with their weights.
  args.expert_row_bytes = config.hidden * SizeOf(act) +
                          config.router.top_k * (SizeOf(DType::kI32) + SizeOf(DType::kF32));
  return args;
}

std::unique_ptr<ModelRanks> ModelRanks::Beside(ModelRanks& stage) {
  const RankShare share{.layout = {.tensor = stage.share().layout.tensor},
                        .place = {.tensor = stage.share().place.tensor}};
  return std::unique_ptr<ModelRanks>(new ModelRanks(share, stage.ops()));
}

Result<std::unique_ptr<ModelRanks>> ModelRanks::Join(Link* link, const ParallelLayout& layout) {
  BT_ASSIGN_OR_RETURN(std::unique_ptr<HostRanks> ops, HostRanks::Join(link, layout));
  return std::make_unique<ModelRanks>(RankShare{layout, PlaceOf(layout, link->rank())},
                                      std::move(ops));
}

}  // namespace baltoro
