#include "comm/symmetric/peer_exchange.h"

#include <algorithm>

#include "base/check.h"
#include "device/cuda/cuda_status.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/group_rows.h"

namespace baltoro::cuda {
namespace {

// Rows of the replica that has most, times the other replicas, up to which packets arrive sooner
// than chunks: measured on two GPUs (docs/measured/cuda-collectives.md), guessed from the bytes for
// more.
constexpr int64_t kRowsInPackets = 256;

// Every row begins at a multiple of 16 bytes.
bool InVectors(const TensorView& x) {
  return reinterpret_cast<uintptr_t>(x.data) % kPacketBytes == 0 && RowBytes(x) % kPacketBytes == 0;
}

}  // namespace

Result<std::unique_ptr<PeerExchange>> PeerExchange::Create(const PeerWorld* world,
                                                           const MemoryPlan& plan,
                                                           const std::vector<int32_t>& ranks,
                                                           int32_t self,
                                                           int64_t patience_ms) {
  BT_CHECK(std::ssize(ranks) == plan.group.ranks);
  BT_CUDA_RETURN_IF_ERROR(LoadGroupPacketKernels());
  BT_CUDA_RETURN_IF_ERROR(LoadGroupChunkKernels());
  std::unique_ptr<PeerExchange> made(new PeerExchange);
  const auto at = [&](int32_t rank, size_t offset) {
    return static_cast<char*>(world->memory(rank)) + offset;
  };
  made->watch_ = world->WatchOf(ranks, self, patience_ms);
  made->packets_ = {.region = plan.group,
                    .counters = reinterpret_cast<uint32_t*>(at(self, plan.group_counters))};
  made->chunks_ = {.region = plan.chunks,
                   .counters = reinterpret_cast<uint32_t*>(at(self, plan.chunk_counters))};
  for (size_t i = 0; i < ranks.size(); ++i) {
    made->packets_.memory[i] = reinterpret_cast<uint4*>(at(ranks[i], plan.group_packets));
    made->chunks_.memory[i] = at(ranks[i], plan.chunk_places);
    made->chunks_.flags[i] = reinterpret_cast<uint32_t*>(at(ranks[i], plan.chunk_flags));
  }
  return made;
}

bool PeerExchange::InPackets(int64_t rows_max) const {
  return choice_ ? *choice_ == ExchangeForm::kPackets
                 : rows_max * (watch_.ranks - 1) <= kRowsInPackets;
}

void PeerExchange::Gather(const OpContext& ctx,
                          std::span<const Gathered> tensors,
                          std::span<const int64_t> rows) {
  BT_CHECK(std::ssize(rows) == watch_.ranks && std::ssize(tensors) <= kGatheredMax);
  const int64_t row_bytes = CheckGathered(tensors, rows, static_cast<size_t>(watch_.rank));
  const int64_t longest = *std::ranges::max_element(rows);
  const bool in_packets = InPackets(longest);
  const int64_t most = in_packets
                           ? (packets_.region.lanes - kGatheredMax) * kGuardedBytes / row_bytes
                           : (chunks_.region.chunks - kGatheredMax) * kGatherChunkBytes / row_bytes;
  BT_CHECK(most > 0);
  for (int64_t row = 0; row < longest; row += most) {
    const std::vector<RowRange> part = RowsOfPart(rows, row, most);
    GroupGatherParams params;
    params.count = static_cast<int>(tensors.size());
    params.watch = watch_;
    for (size_t i = 0; i < tensors.size(); ++i) {
      const int64_t width = RowBytes(tensors[i].all);
      params.tensors[i].own = static_cast<char*>(tensors[i].own.data) + row * width;
      params.tensors[i].all = static_cast<char*>(tensors[i].all.data);
      for (size_t rank = 0; rank < rows.size(); ++rank) {
        params.tensors[i].offset[rank] = part[rank].begin * width;
        params.tensors[i].bytes[rank] = part[rank].count * width;
      }
    }
    in_packets ? LaunchGroupGather(StreamOf(ctx), params, packets_)
               : LaunchGroupGather(StreamOf(ctx), params, chunks_);
  }
}

void PeerExchange::AddBack(const OpContext& ctx,
                           TensorView own,
                           TensorView all,
                           std::span<const int64_t> rows) {
  BT_CHECK(std::ssize(rows) == watch_.ranks);
  CheckAddedBack(own, all, rows, static_cast<size_t>(watch_.rank));
  const int64_t longest = *std::ranges::max_element(rows), width = all.dim(1);
  const bool in_packets = InPackets(longest);
  const int64_t most = in_packets ? packets_.region.lanes * kLanePackets * kHalvesOfPacket / width
                                  : chunks_.region.chunks * kPieceBytes / 2 / width;
  BT_CHECK(most > 0);
  for (int64_t row = 0; row < longest; row += most) {
    const std::vector<RowRange> part = RowsOfPart(rows, row, most);
    GroupAddParams params;
    params.own = static_cast<char*>(own.data) + row * RowBytes(own);
    params.all = all.data;
    params.own_bf16 = own.dtype == DType::kBf16;
    params.all_bf16 = all.dtype == DType::kBf16;
    params.vectors = InVectors(own) && InVectors(all);
    params.watch = watch_;
    for (size_t rank = 0; rank < rows.size(); ++rank) {
      params.offset[rank] = part[rank].begin * width;
      params.elements[rank] = part[rank].count * width;
    }
    in_packets ? LaunchGroupAdd(StreamOf(ctx), params, packets_)
               : LaunchGroupAdd(StreamOf(ctx), params, chunks_);
  }
}

}  // namespace baltoro::cuda
