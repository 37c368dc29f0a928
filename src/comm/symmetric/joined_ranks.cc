#include "comm/symmetric/joined_ranks.h"

#include <algorithm>
#include <array>
#include <string>
#include <utility>
#include <vector>

#include "comm/nccl/nccl.h"
#include "comm/symmetric/meeting.h"
#include "comm/symmetric/replica_levels.h"
#include "device/cuda/card_share.h"
#include "device/cuda/cuda_status.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/join_ranks.h"

namespace baltoro::cuda {
namespace {

// The groups of a rank; ranks of the world in the order of the group.
struct Groups {
  std::vector<int32_t> tensor, context, pipeline, data;
  std::vector<int32_t> stage;  // of all replicas: those that share the experts
};

Groups GroupsOf(const GpuRankArgs& args) {
  Groups groups;
  const int32_t tensor = args.rank % args.tensor, first = args.rank - tensor;
  for (int32_t i = 0; i < args.tensor; ++i) groups.tensor.push_back(first + i);
  const int32_t neighbours = first + tensor / args.decode_context * args.decode_context;
  for (int32_t i = 0; i < args.decode_context; ++i) groups.context.push_back(neighbours + i);
  const int32_t of_replica = args.ranks / args.data;
  const int32_t place = args.rank % of_replica, replica = args.rank - place;
  for (int32_t i = tensor; i < of_replica; i += args.tensor) groups.pipeline.push_back(replica + i);
  for (int32_t i = place; i < args.ranks; i += of_replica) groups.data.push_back(i);
  for (int32_t i = place - tensor; i < args.ranks; i += of_replica) {
    for (int32_t j = 0; j < args.tensor; ++j) groups.stage.push_back(i + j);
  }
  groups.stage.insert(groups.stage.end(), static_cast<size_t>(args.slab_echoes), args.rank);
  return groups;
}

Status CheckArgs(const GpuRankArgs& args) {
  if (args.tensor < 1 || args.decode_context < 1 || args.tensor % args.decode_context != 0 ||
      args.data < 1 || args.ranks % (args.tensor * args.data) != 0 || args.rank < 0 ||
      args.rank >= args.ranks) {
    return InvalidArgument("ranks of GPUs: sizes of groups do not divide each other");
  }
  if (args.slab_echoes > 0 && (args.ranks > 1 || !args.balances)) {
    return InvalidArgument("ranks of GPUs: echoes of slabs are for a rank alone that balances");
  }
  if (args.rows_max < 1 || args.hidden < 1 || args.vocab < 1) {
    return InvalidArgument("ranks of GPUs: no rows, no columns or no vocabulary");
  }
  if (args.data > 1 && args.expert_row_bytes < 1) {
    return InvalidArgument(
        "ranks of GPUs: replicas share experts, but rows have no bytes for them");
  }
  return {};
}

// What must be equal on all ranks.
using Sizes = std::array<int64_t, 12>;

Sizes SizesOf(const GpuRankArgs& args) {
  return {args.ranks,       args.tensor,    args.decode_context, args.rows_max,
          args.balances,    args.hidden,    args.vocab,          args.head_bytes,
          args.patience_ms, args.nccl_only, args.data,           args.expert_row_bytes};
}

// Ranks of other groups with the same memory or id never meet: the members alone read them.
struct Ids {
  NcclId tensor, context, pipeline, data, stage;
};

bool NeighboursReach(const PeerWorld& world, const std::vector<int32_t>& ranks) {
  for (size_t i = 1; i < ranks.size(); ++i) {
    if (!world.ReachEachOther({ranks[i - 1], ranks[i]})) return false;
  }
  return true;
}

void CopyRows(const OpContext& ctx, const TensorView& to, const TensorView& from) {
  const auto element = static_cast<size_t>(SizeOf(to.dtype));
  if (to.num_elements() == 0) return;
  CheckCuda(
      cudaMemcpy2DAsync(to.data, static_cast<size_t>(to.stride[0]) * element, from.data,
                        static_cast<size_t>(from.stride[0]) * element,
                        static_cast<size_t>(to.dim(1)) * element, static_cast<size_t>(to.dim(0)),
                        cudaMemcpyDeviceToDevice, StreamOf(ctx)),
      "a copy of rows");
}

}  // namespace

Result<std::unique_ptr<JoinedRanks>> JoinedRanks::Join(const GpuRankArgs& args) {
  const Meeting meeting(args.exchange, args.rank, args.ranks);
  Status well = CheckArgs(args);
  if (well.ok()) well = UseDevice(args.device);
  const Result<int> card = CardOf(args.device);
  if (well.ok()) well = card.status();
  BT_ASSIGN_OR_RETURN(const std::vector<Sizes> sizes, meeting.All(well, SizesOf(args)));
  for (const Sizes& other : sizes) {
    if (other != sizes.front()) {
      return InvalidArgument("ranks of GPUs: ranks were started for different models or layouts");
    }
  }
  const Groups groups = GroupsOf(args);
  std::vector<int32_t> near = groups.tensor;
  for (const int32_t rank : groups.data) {
    if (rank != args.rank) near.push_back(rank);
  }
  for (const int32_t rank : groups.stage) {
    if (args.balances && !std::ranges::count(near, rank)) near.push_back(rank);
  }
  for (size_t i = 0; i < groups.pipeline.size(); ++i) {
    if (groups.pipeline[i] != args.rank) continue;
    if (i > 0) near.push_back(groups.pipeline[i - 1]);
    if (i + 1 < groups.pipeline.size()) near.push_back(groups.pipeline[i + 1]);
  }
  BT_ASSIGN_OR_RETURN(const std::vector<int32_t> hosts, HostsOfRanks(meeting, args.host));
  const int64_t replicas_of_host = ReplicasOfHost(args, hosts);
  const MemoryPlan plan = PlanMemory(args, replicas_of_host);
  BT_ASSIGN_OR_RETURN(PeerWorld world, PeerWorld::Meet(meeting, hosts, card.value(), plan.bytes,
                                                       plan.packets, 0xFF, near, !args.nccl_only));

  // Which groups need NCCL; the first rank of a group makes its id.
  const auto by_memory = [&](const std::vector<int32_t>& ranks) {
    return ranks.size() <= kPeersMax && plan.sum.ranks > 0 && world.ReachEachOther(ranks);
  };
  const bool tensor_memory = by_memory(groups.tensor);
  const bool context_memory = tensor_memory || by_memory(groups.context);
  const bool pipeline_memory = !args.nccl_only && NeighboursReach(world, groups.pipeline);
  const bool tensor_nccl = args.tensor > 1 && !tensor_memory;
  const bool context_nccl = args.decode_context > 1 && !context_memory;
  const bool pipeline_nccl = groups.pipeline.size() > 1 && !pipeline_memory;
  const bool data_memory = plan.group.ranks > 0 && world.ReachEachOther(groups.data);
  const bool data_nccl = args.data > 1 && !data_memory;
  ReplicaLevels levels;
  if (data_nccl && !args.nccl_only) {
    levels = ChooseLevels(world, groups.data, args.rank, replicas_of_host);
  }
  // Who exchanges by NCCL.
  const std::vector<int32_t>& data_ranks = levels.across.empty() ? groups.data : levels.across;
  const bool stage_memory = plan.trade.ranks > 0 && world.ReachEachOther(groups.stage);
  const bool stage_nccl = args.balances && !stage_memory;
  std::shared_ptr<const Nccl> nccl;
  Ids ids;
  well = {};
  const auto make_id = [&](bool needed, const std::vector<int32_t>& ranks, NcclId* id) {
    if (!needed || ranks.front() != args.rank || !well.ok()) return;
    Result<NcclId> made = nccl->MakeId();
    well = made.status();
    if (made.ok()) *id = made.value();
  };
  if (tensor_nccl || context_nccl || pipeline_nccl || data_nccl || stage_nccl) {
    Result<std::shared_ptr<const Nccl>> opened = Nccl::Open();
    well = opened.status();
    if (opened.ok()) nccl = std::move(opened).value();
    make_id(tensor_nccl, groups.tensor, &ids.tensor);
    make_id(context_nccl, groups.context, &ids.context);
    make_id(pipeline_nccl, groups.pipeline, &ids.pipeline);
    make_id(data_nccl, data_ranks, &ids.data);
    make_id(stage_nccl, groups.stage, &ids.stage);
  }
  BT_ASSIGN_OR_RETURN(const std::vector<Ids> all_ids, meeting.All(well, ids));

  Result<Stream> aside = Stream::Create();
  well = aside.status();
  std::unique_ptr<JoinedRanks> joined;
  if (well.ok()) {
    joined.reset(new JoinedRanks(std::move(world), std::move(aside).value(), args));
  }
  const auto join_nccl = [&](const std::vector<int32_t>& ranks,
                             NcclId Ids::*id) -> Result<std::unique_ptr<NcclGroup>> {
    int index = 0;
    while (ranks[static_cast<size_t>(index)] != args.rank) ++index;
    return NcclGroup::Join(nccl, all_ids[static_cast<size_t>(ranks.front())].*id, index,
                           static_cast<int>(ranks.size()));
  };
  const auto join = [&](const std::vector<int32_t>& ranks, bool by_nccl, NcclId Ids::*id,
                        int64_t row_bytes, std::unique_ptr<RankOps>* to) -> Status {
    if (ranks.size() == 1) return {};
    if (!by_nccl) {
      BT_ASSIGN_OR_RETURN(
          auto made, PeerRanks::Create(&joined->world_, plan, ranks, args.rank, args.patience_ms));
      if (to == &joined->tensor_) joined->peers_ = made.get();
      *to = std::move(made);
      return {};
    }
    BT_ASSIGN_OR_RETURN(auto group, join_nccl(ranks, id));
    BT_ASSIGN_OR_RETURN(*to, NcclRanks::Create(std::move(group), row_bytes, args.rows_max));
    return {};
  };
  const auto join_replicas = [&]() -> Status {
    if (data_memory) {
      BT_ASSIGN_OR_RETURN(
          joined->peer_exchange_,
          PeerExchange::Create(&joined->world_, plan, groups.data, args.rank, args.patience_ms));
    } else if (data_nccl) {
      BT_ASSIGN_OR_RETURN(auto group, join_nccl(data_ranks, &Ids::data));
      BT_ASSIGN_OR_RETURN(joined->nccl_exchange_,
                          NcclExchange::Create(std::move(group), args.hidden, args.rows_max));
    }
    if (!levels.across.empty()) {
      BT_RETURN_IF_ERROR(joined->JoinLevels(args, plan, levels.within, levels.across));
    }
    return {};
  };
  int64_t slab_blocks = 0;
  const auto join_stage = [&]() -> Status {
    if (!args.balances) return {};
    JoinedRanks* const self = joined.get();
    const GpuSlabs::Args of{
        .ops = args.ops, .replicas = self->experts(), .replica_count = args.data, .status = [self] {
          return self->status();
        }};
    if (stage_memory) {
      BT_ASSIGN_OR_RETURN(self->slabs_,
                          GpuSlabs::OverMemory(of, self->world_, plan, groups.stage, args.rank,
                                               slab_blocks, args.patience_ms));
      return {};
    }
    BT_ASSIGN_OR_RETURN(auto group, join_nccl(groups.stage, &Ids::stage));
    BT_ASSIGN_OR_RETURN(self->slabs_, GpuSlabs::ByNccl(of, std::move(group)));
    return {};
  };
  if (well.ok() && stage_memory) {
    const Result<int64_t> own = GpuSlabs::Blocks(args.slab_blocks_max);
    well = own.status();
    if (own.ok()) slab_blocks = own.value();
  }
  // All are well before any waits for others inside NCCL.
  BT_ASSIGN_OR_RETURN(const std::vector<int64_t> all_blocks, meeting.All(well, slab_blocks));
  for (const int32_t rank : groups.stage) {
    slab_blocks = std::min(slab_blocks, all_blocks[static_cast<size_t>(rank)]);
  }
  well = join(groups.tensor, tensor_nccl, &Ids::tensor, args.vocab * 4, &joined->tensor_);
  if (well.ok()) {
    well =
        join(groups.context, context_nccl, &Ids::context, args.head_bytes * 2, &joined->context_);
  }
  if (well.ok()) {
    well = join(groups.pipeline, pipeline_nccl, &Ids::pipeline, 0, &joined->pipeline_);
  }
  if (well.ok()) well = join_replicas();
  if (well.ok()) well = join_stage();
  BT_RETURN_IF_ERROR(meeting.All(well));
  joined->remark_ = levels.remark;
  return joined;
}

Status JoinedRanks::JoinLevels(const GpuRankArgs& args,
                               const MemoryPlan& plan,
                               const std::vector<int32_t>& within,
                               const std::vector<int32_t>& across) {
  BT_ASSIGN_OR_RETURN(peer_exchange_,
                      PeerExchange::Create(&world_, plan, within, args.rank, args.patience_ms));
  const auto hosts = std::ssize(across), of_host = std::ssize(within);
  const auto bytes = static_cast<size_t>(RoomBetweenHosts(args, hosts));
  BT_ASSIGN_OR_RETURN(room_between_hosts_, DeviceBuffer::Create(bytes, "rows between hosts"));
  two_levels_ = std::make_unique<TwoLevelExchange>(
      TwoLevelExchange::Levels{.across = nccl_exchange_.get(),
                               .within = peer_exchange_.get(),
                               .hosts = hosts,
                               .of_host = of_host,
                               .replica = args.rank / (args.ranks / args.data),
                               .sum_type = DType::kBf16,  // as they travel in any case
                               .room = {room_between_hosts_.as<std::byte>(), bytes},
                               .clear = Clear});
  return {};
}

Status JoinedRanks::status() const {
  const uint32_t word = __atomic_load_n(world_.failure_word(), __ATOMIC_RELAXED);
  const Failure failure = UnpackFailure(word);
  if (failure.kind == FailureKind::kAborted) {
    return Status(Code::kUnavailable, "ranks: aborted by rank " + std::to_string(failure.waiting));
  }
  if (failure.kind == FailureKind::kTimedOut) {
    return Status(Code::kUnavailable, "ranks: rank " + std::to_string(failure.waiting) +
                                          " waited for rank " + std::to_string(failure.missing) +
                                          " in vain");
  }
  for (const RankOps* group : {tensor_.get(), context_.get(), pipeline_.get()}) {
    if (group != nullptr) BT_RETURN_IF_ERROR(group->status());
  }
  if (nccl_exchange_ != nullptr) BT_RETURN_IF_ERROR(nccl_exchange_->status());
  return slabs_ == nullptr ? Status() : slabs_->status();
}

void JoinedRanks::Abort() {
  const uint32_t failure = PackFailure({FailureKind::kAborted, static_cast<uint32_t>(rank_), 0});
  uint32_t none = 0;
  __atomic_compare_exchange_n(world_.failure_word(), &none, failure, false, __ATOMIC_RELAXED,
                              __ATOMIC_RELAXED);
  // The kernels of this process look at that word; those of others at their own memory.
  int before = 0;
  static_cast<void>(cudaGetDevice(&before));
  static_cast<void>(UseDevice(device_));
  for (const int32_t rank : world_.mapped()) {
    static_cast<void>(cudaMemcpyAsync(world_.memory(rank), world_.failure_word(), sizeof(uint32_t),
                                      cudaMemcpyDefault, aside_.get()));
  }
  static_cast<void>(UseDevice(before));
  for (RankOps* group : {tensor_.get(), context_.get(), pipeline_.get()}) {
    if (group != nullptr) group->Abort();
  }
  if (nccl_exchange_ != nullptr) nccl_exchange_->Abort();
  if (slabs_ != nullptr) slabs_->Abort();
}

ExpertExchange* JoinedRanks::experts() {
  if (two_levels_ != nullptr) return two_levels_.get();
  if (peer_exchange_ != nullptr) return peer_exchange_.get();
  return nccl_exchange_.get();
}

void JoinedRanks::Sum(const OpContext& ctx, TensorView x) {
  if (tensor_ != nullptr) tensor_->Sum(ctx, x);
}

bool JoinedRanks::SumAddRmsNorm(const OpContext& ctx,
                                TensorView out,
                                TensorView residual,
                                TensorView delta,
                                TensorView weight,
                                float eps) {
  return tensor_ != nullptr && tensor_->SumAddRmsNorm(ctx, out, residual, delta, weight, eps);
}

void JoinedRanks::GatherColumns(const OpContext& ctx,
                                TensorView all,
                                TensorView own,
                                std::span<const int64_t> widths) {
  if (tensor_ == nullptr) return CopyRows(ctx, all, own);
  tensor_->GatherColumns(ctx, all, own, widths);
}

void JoinedRanks::GatherHeads(const OpContext& ctx, TensorView all, TensorView own) {
  if (context_ == nullptr) return CopyRows(ctx, all, own);
  context_->GatherHeads(ctx, all, own);
}

void JoinedRanks::MergeHeads(const OpContext& ctx,
                             TensorView own,
                             TensorView partial,
                             TensorView lse) {
  if (context_ == nullptr) return CopyRows(ctx, own, partial);
  context_->MergeHeads(ctx, own, partial, lse);
}

void JoinedRanks::SendToNextStage(const OpContext& ctx, TensorView x) {
  BT_CHECK(pipeline_ != nullptr);
  pipeline_->SendToNextStage(ctx, x);
}

void JoinedRanks::ReceiveFromStageBefore(const OpContext& ctx, TensorView x) {
  BT_CHECK(pipeline_ != nullptr);
  pipeline_->ReceiveFromStageBefore(ctx, x);
}

Result<std::unique_ptr<RankOps>> JoinRanks(const GpuRankArgs& args) {
  BT_ASSIGN_OR_RETURN(std::unique_ptr<JoinedRanks> joined, JoinedRanks::Join(args));
  return std::unique_ptr<RankOps>(std::move(joined));
}

}  // namespace baltoro::cuda
