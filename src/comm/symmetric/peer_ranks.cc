#include "comm/symmetric/peer_ranks.h"

#include <algorithm>

#include "comm/symmetric/exchange.h"
#include "device/cuda/card_share.h"
#include "device/cuda/cuda_status.h"
#include "ops/cuda/cuda_ops.h"

namespace baltoro::cuda {
namespace {

bool InVectors(const TensorView& x) {
  const int64_t row_bytes = x.stride[0] * SizeOf(x.dtype);
  return reinterpret_cast<uintptr_t>(x.data) % kPacketBytes == 0 &&
         (x.dim(0) <= 1 || row_bytes % kPacketBytes == 0);
}

bool IsPart(const TensorView& x) {
  return x.dtype == DType::kF32 || x.dtype == DType::kBf16;
}

// Measured on two and four GPUs (docs/measured/cuda-collectives.md); more are guessed from the
// bytes.
SumChoice Faster(int64_t ranks, int64_t rows) {
  const bool one_shot = ranks <= 2 || rows <= (ranks <= 4 ? 12 : 4);
  if (one_shot) return {SumForm::kOneShot, 8};
  return {SumForm::kTwoShot, rows <= 32 ? 8 : 2};
}

}  // namespace

Result<std::unique_ptr<PeerRanks>> PeerRanks::Create(const PeerWorld* world,
                                                     const MemoryPlan& plan,
                                                     const std::vector<int32_t>& ranks,
                                                     int32_t self,
                                                     int64_t patience_ms) {
  std::unique_ptr<PeerRanks> made(new PeerRanks(world, plan));
  made->ranks_ = ranks;
  made->self_ = self;
  made->patience_ms_ = patience_ms;
  while (ranks[static_cast<size_t>(made->index_)] != self) ++made->index_;
  if (ranks.size() <= kPeersMax) made->watch_ = world->WatchOf(ranks, self, patience_ms);
  BT_CUDA_RETURN_IF_ERROR(LoadExchangeKernels());
  BT_ASSIGN_OR_RETURN(const int multiprocessors, MultiprocessorsInUse());
  for (int blocks = 1; plan.sum.ranks > 0 && blocks <= 8; blocks *= 2) {
    if (BlocksOfRow(plan.sum.packets, blocks) != blocks) continue;
    int* const most = &made->blocks_max_[static_cast<size_t>(blocks)];
    BT_CUDA_RETURN_IF_ERROR(SumBlocksMax(plan.sum, blocks, multiprocessors, most));
    *most = std::max(*most, blocks);
  }
  return made;
}

char* PeerRanks::Memory(int32_t rank, size_t offset) const {
  return static_cast<char*>(world_->memory(rank)) + offset;
}

template <typename Params>
void PeerRanks::Fill(Params& params,
                     const ExchangeRegion& region,
                     size_t counters,
                     size_t packets) const {
  params.region = region;
  params.watch = watch_;
  params.counters = reinterpret_cast<uint32_t*>(Memory(self_, counters));
  for (size_t i = 0; i < ranks_.size(); ++i) {
    params.memory[i] = reinterpret_cast<uint4*>(Memory(ranks_[i], packets));
  }
}

SumChoice PeerRanks::ChoiceFor(int64_t rows) const {
  if (choice_) return *choice_;
  return Faster(plan_.sum.ranks, rows);
}

void PeerRanks::RunSum(const OpContext& ctx, SumParams params, int64_t rows) {
  BT_CHECK((params.width + kHalvesOfPacket - 1) / kHalvesOfPacket == plan_.sum.packets);
  params.region = plan_.sum;
  params.watch = watch_;
  params.counters = reinterpret_cast<uint32_t*>(Memory(self_, plan_.sum_counters));
  for (size_t i = 0; i < ranks_.size(); ++i) {
    params.memory[i] = reinterpret_cast<uint4*>(Memory(ranks_[i], plan_.sum_packets));
  }
  const SumChoice choice = ChoiceFor(rows);
  const int blocks = BlocksOfRow(plan_.sum.packets, choice.blocks_of_row);
  const SumShape shape = {.blocks_of_row = blocks,
                          .blocks_max = blocks_max_[static_cast<size_t>(blocks)]};
  const int64_t most =
      choice.form == SumForm::kOneShot ? plan_.sum.rows_one_shot : plan_.sum.rows_two_shot;
  for (int64_t row = 0; row < rows; row += most) {
    SumParams part = params;
    part.rows = static_cast<int>(std::min(most, rows - row));
    part.x = static_cast<char*>(params.x) + row * params.x_stride * (params.x_bf16 ? 2 : 4);
    if (params.out != nullptr) {
      part.residual += row * params.residual_stride;
      part.out = static_cast<uint16_t*>(params.out) + row * params.out_stride;
      part.copies = RowsFrom(params.copies, row, params.width);
    }
    LaunchSum(StreamOf(ctx), choice.form, shape, part);
  }
}

void PeerRanks::Sum(const OpContext& ctx, TensorView x) {
  BT_CHECK(x.rank == 2 && IsPart(x) && x.contiguous());
  SumParams params;
  params.x = x.data;
  params.x_bf16 = x.dtype == DType::kBf16;
  params.x_stride = x.dim(1);
  params.width = static_cast<int>(x.dim(1));
  params.vectors = InVectors(x);
  RunSum(ctx, params, x.dim(0));
}

bool PeerRanks::SumAddRmsNorm(const OpContext& ctx,
                              TensorView out,
                              TensorView residual,
                              TensorView delta,
                              TensorView weight,
                              float eps) {
  BT_CHECK(out.rank == 2 && residual.rank == 2 && delta.rank == 2 && weight.rank == 1);
  BT_CHECK(residual.dtype == DType::kF32 && IsPart(delta) && weight.dtype == DType::kF32);
  const int64_t rows = residual.dim(0), width = residual.dim(1);
  BT_CHECK(out.dim(0) == rows && delta.dim(0) == rows);
  BT_CHECK(out.dim(1) == width && delta.dim(1) == width && weight.dim(0) == width);
  if (out.dtype != DType::kBf16) return false;
  SumParams params;
  params.x = delta.data;
  params.x_bf16 = delta.dtype == DType::kBf16;
  params.x_stride = delta.stride[0];
  params.out = out.data;
  params.out_stride = out.stride[0];
  params.residual = residual.as<float>();
  params.residual_stride = residual.stride[0];
  params.weight = weight.as<float>();
  params.eps = eps;
  params.width = static_cast<int>(width);
  params.vectors = InVectors(delta) && InVectors(out) && InVectors(residual) &&
                   reinterpret_cast<uintptr_t>(weight.data) % kPacketBytes == 0;
  NormQuestion question{.x = FactsOf(residual), .out = FactsOf(out), .part = FactsOf(delta)};
  AskForCopies(ctx, out, question);
  params.copies =
      TakeNormCopies(ctx, out, ChooseNormCopy(question, params.vectors, params.vectors));
  RunSum(ctx, params, rows);
  return true;
}

void PeerRanks::GatherColumns(const OpContext& ctx,
                              TensorView all,
                              TensorView own,
                              std::span<const int64_t> widths) {
  BT_CHECK(all.dtype == DType::kF32 && own.dtype == DType::kF32);
  Gather(ctx, all, own, widths, plan_.columns, plan_.columns_counters, plan_.columns_packets);
}

void PeerRanks::GatherHeads(const OpContext& ctx, TensorView all, TensorView own) {
  BT_CHECK(all.dtype == DType::kBf16 && own.dtype == DType::kBf16);
  const std::vector<int64_t> widths(ranks_.size(), own.dim(1));
  Gather(ctx, all, own, widths, plan_.heads, plan_.heads_counters, plan_.heads_packets);
}

void PeerRanks::Gather(const OpContext& ctx,
                       const TensorView& all,
                       const TensorView& own,
                       std::span<const int64_t> widths,
                       const ExchangeRegion& region,
                       size_t counters,
                       size_t packets) {
  BT_CHECK(all.rank == 2 && own.rank == 2 && widths.size() == ranks_.size());
  BT_CHECK(own.dim(0) == all.dim(0) && own.dim(1) == widths[static_cast<size_t>(index_)]);
  GatherParams params;
  Fill(params, region, counters, packets);
  params.element_bytes = static_cast<int>(SizeOf(all.dtype));
  params.all_stride = all.stride[0];
  params.own_stride = own.stride[0];
  params.own_in_vectors = InVectors(own);
  int64_t widest = 0, offset = 0;
  for (size_t i = 0; i < widths.size(); ++i) {
    // A rank without columns would be waited for by none, and so could fall behind unseen.
    BT_CHECK(widths[i] > 0);
    params.widths[i] = static_cast<int>(widths[i]);
    params.offsets[i] = static_cast<int>(offset);
    offset += widths[i];
    widest = std::max(widest, widths[i]);
  }
  BT_CHECK(all.dim(1) == offset);
  params.lanes_of_row = GatherLanesOfRow(widest, params.element_bytes);
  const int64_t most = region.lanes / params.lanes_of_row;
  BT_CHECK(most > 0);
  for (int64_t row = 0; row < all.dim(0); row += most) {
    params.rows = static_cast<int>(std::min(most, all.dim(0) - row));
    params.all = all.rows(row, params.rows).data;
    params.own = own.rows(row, params.rows).data;
    LaunchGather(StreamOf(ctx), params);
  }
}

void PeerRanks::MergeHeads(const OpContext& ctx,
                           TensorView own,
                           TensorView partial,
                           TensorView lse) {
  const auto ranks = static_cast<int64_t>(ranks_.size());
  BT_CHECK(own.rank == 2 && partial.rank == 2 && lse.rank == 2);
  BT_CHECK(own.dtype == DType::kBf16 && partial.dtype == DType::kBf16 && lse.dtype == DType::kF32);
  const int64_t rows = own.dim(0), heads = lse.dim(1) / ranks;
  BT_CHECK(lse.dim(1) == heads * ranks && partial.dim(1) == own.dim(1) * ranks);
  BT_CHECK(partial.dim(0) == rows && lse.dim(0) == rows);
  if (rows == 0 || heads == 0) return;
  BT_CHECK(own.dim(1) % heads == 0);
  MergeParams params;
  Fill(params, plan_.heads, plan_.heads_counters, plan_.heads_packets);
  params.heads = static_cast<int>(heads);
  params.value = static_cast<int>(own.dim(1) / heads);
  params.own_stride = own.stride[0];
  params.partial_stride = partial.stride[0];
  params.lse_stride = lse.stride[0];
  params.vectors = InVectors(own) && InVectors(partial) && params.value % kHalvesOfPacket == 0;
  const int64_t lanes_of_row = heads * MergeLanesOfHead(params.value);
  const int64_t most = plan_.heads.lanes / lanes_of_row;
  BT_CHECK(most > 0);
  for (int64_t row = 0; row < rows; row += most) {
    params.rows = static_cast<int>(std::min(most, rows - row));
    params.own = own.rows(row, params.rows).as<uint16_t>();
    params.partial = partial.rows(row, params.rows).as<uint16_t>();
    params.lse = lse.rows(row, params.rows).as<float>();
    LaunchMerge(StreamOf(ctx), params);
  }
}

void PeerRanks::SendToNextStage(const OpContext& ctx, TensorView x) {
  BT_CHECK(x.dtype == DType::kF32 && x.contiguous());
  const int32_t next = ranks_[static_cast<size_t>(index_) + 1];
  PipeParams params;
  params.x = x.as<float>();
  params.count = x.num_elements();
  params.packets = reinterpret_cast<uint4*>(Memory(next, plan_.pipe_packets));
  params.done = reinterpret_cast<uint32_t*>(Memory(self_, plan_.pipe_done));
  params.counters = reinterpret_cast<uint32_t*>(Memory(self_, plan_.sent_counters));
  params.other = 1;
  params.vectors = InVectors(x);
  params.watch = world_->WatchOf({self_, next}, self_, patience_ms_);
  LaunchSend(StreamOf(ctx), params);
}

void PeerRanks::ReceiveFromStageBefore(const OpContext& ctx, TensorView x) {
  BT_CHECK(x.dtype == DType::kF32 && x.contiguous() && index_ > 0);
  const int32_t before = ranks_[static_cast<size_t>(index_) - 1];
  PipeParams params;
  params.x = x.as<float>();
  params.count = x.num_elements();
  params.packets = reinterpret_cast<uint4*>(Memory(self_, plan_.pipe_packets));
  params.done = reinterpret_cast<uint32_t*>(Memory(before, plan_.pipe_done));
  params.counters = reinterpret_cast<uint32_t*>(Memory(self_, plan_.received_counters));
  params.other = 1;
  params.vectors = InVectors(x);
  params.watch = world_->WatchOf({self_, before}, self_, patience_ms_);
  LaunchReceive(StreamOf(ctx), params);
}

}  // namespace baltoro::cuda
