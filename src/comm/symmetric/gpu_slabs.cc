#include "comm/symmetric/gpu_slabs.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "device/cuda/card_share.h"
#include "device/cuda/cuda_status.h"
#include "ops/cuda/cuda_ops.h"

namespace baltoro::cuda {
namespace {

// Counts go as rows of so many numbers, whatever the rows of replicas are.
constexpr int64_t kCountsOfRow = 16;
constexpr int64_t kCountsAtOnce = kCountBytesAtOnce / int64_t{sizeof(float)};

}  // namespace

Result<int64_t> GpuSlabs::Blocks(int most) {
  BT_ASSIGN_OR_RETURN(const int multiprocessors, MultiprocessorsInUse());
  int64_t blocks = 0;
  BT_CUDA_RETURN_IF_ERROR(TradeBlocks(multiprocessors, &blocks));
  if (blocks < 1) {
    return InvalidArgument(
        "--enable-eplb: the GPU cannot run one block of the kernel that moves experts");
  }
  return most > 0 ? std::min<int64_t>(most, blocks) : blocks;
}

Result<std::unique_ptr<GpuSlabs>> GpuSlabs::OverMemory(const Args& args,
                                                       const PeerWorld& world,
                                                       const MemoryPlan& plan,
                                                       const std::vector<int32_t>& ranks,
                                                       int32_t self,
                                                       int64_t blocks,
                                                       int64_t patience_ms) {
  BT_CHECK(std::ssize(ranks) == plan.trade.ranks);
  std::unique_ptr<GpuSlabs> made(new GpuSlabs(args));
  BT_RETURN_IF_ERROR(made->Prepare());
  const auto at = [&](int32_t rank, size_t offset) {
    return static_cast<char*>(world.memory(rank)) + offset;
  };
  const auto words = [&](int32_t rank, size_t offset) {
    return reinterpret_cast<uint32_t*>(at(rank, offset));
  };
  made->blocks_ = blocks;
  TradeParams& trade = made->trade_;
  trade.lanes = static_cast<int>(TradeLanes(blocks));
  for (size_t i = 0; i < ranks.size(); ++i) {
    // What this rank, the first of its group then, writes to an echo lies where it looks for what
    // the echo sends.
    const auto echo = ranks[i] == self && ranks.front() == self ? static_cast<int64_t>(i) : 0;
    trade.places[i] =
        at(ranks[i], plan.trade_places) + echo * kTradeLanes * kTradePlaces * kTradePieceBytes;
    trade.arrived[i] = words(ranks[i], plan.trade_arrived) + echo * kTradeLanes;
    trade.taken[i] = words(ranks[i], plan.trade_taken) + echo * kTradeLanes;
  }
  trade.sent_uses = words(self, plan.trade_sent);
  trade.received_uses = words(self, plan.trade_received);
  trade.watch = world.WatchOf(ranks, self, patience_ms);
  if (ranks.front() == self) trade.watch.rank = 0;
  return made;
}

Result<std::unique_ptr<GpuSlabs>> GpuSlabs::ByNccl(const Args& args,
                                                   std::unique_ptr<NcclGroup> group) {
  std::unique_ptr<GpuSlabs> made(new GpuSlabs(args));
  BT_RETURN_IF_ERROR(made->Prepare());
  made->group_ = std::move(group);
  return made;
}

Status GpuSlabs::Prepare() {
  if (args_.replica_count == 1) return {};
  const auto bytes = static_cast<size_t>((1 + args_.replica_count) * kCountsAtOnce) * sizeof(float);
  BT_ASSIGN_OR_RETURN(
      device_, Buffer::Create(bytes, "loads of experts (--enable-eplb)", *args_.ops->memory));
  BT_ASSIGN_OR_RETURN(
      host_, Buffer::Create(bytes, "loads of experts (--enable-eplb)", *args_.ops->staging));
  return {};
}

void GpuSlabs::AddUp(std::span<float> counts) {
  if (args_.replica_count == 1) return;
  const auto replicas = static_cast<size_t>(args_.replica_count);
  const OpContext context = Context();
  const LaunchStream stream = StreamOf(context);
  auto* const own = static_cast<float*>(host_.data());
  float* const all = own + kCountsAtOnce;
  auto* const own_there = static_cast<float*>(device_.data());
  for (size_t begin = 0; begin < counts.size(); begin += kCountsAtOnce) {
    const std::span<float> part =
        counts.subspan(begin, std::min<size_t>(kCountsAtOnce, counts.size() - begin));
    const int64_t rows = (std::ssize(part) + kCountsOfRow - 1) / kCountsOfRow;
    const auto each = static_cast<size_t>(rows * kCountsOfRow);
    std::fill_n(own, each, 0.0F);
    std::ranges::copy(part, own);
    CheckCuda(cudaMemcpyAsync(own_there, own, each * sizeof(float), cudaMemcpyHostToDevice, stream),
              "copy of loads");
    const TensorView there(own_there, DType::kF32, {rows, kCountsOfRow});
    const TensorView all_there(own_there + kCountsAtOnce, DType::kF32,
                               {rows * args_.replica_count, kCountsOfRow});
    const ExpertExchange::Gathered gathered[] = {{.all = all_there, .own = there}};
    args_.replicas->Gather(context, gathered, std::vector<int64_t>(replicas, rows));
    CheckCuda(cudaMemcpyAsync(all, all_there.data, replicas * each * sizeof(float),
                              cudaMemcpyDeviceToHost, stream),
              "copy of loads");
    CheckOk(Wait(context));
    // What comes behind a failure means nothing, but numbers of rows must be some.
    const bool well = args_.status().ok();
    for (size_t i = 0; i < part.size(); ++i) {
      part[i] = 0;
      for (size_t r = 0; well && r < replicas; ++r) part[i] += all[r * each + i];
    }
  }
}

void GpuSlabs::Trade(std::span<const Out> out, std::span<const In> in) {
  if (group_ != nullptr) return TradeByNccl(out, in);
  TradeParams params = trade_;
  BT_CHECK(out.size() < kPeersMax && in.size() < kPeersMax);
  for (const Out& one : out) {
    params.messages[params.count++] = {
        .data = const_cast<char*>(reinterpret_cast<const char*>(one.slab.data())),
        .bytes = static_cast<int64_t>(one.slab.size()),
        .other = one.rank,
        .sends = true};
  }
  for (const In& one : in) {
    params.messages[params.count++] = {.data = reinterpret_cast<char*>(one.slab.data()),
                                       .bytes = static_cast<int64_t>(one.slab.size()),
                                       .other = one.rank,
                                       .sends = false};
  }
  LaunchTrade(StreamOf(Context()), params, blocks_);
}

void GpuSlabs::TradeByNccl(std::span<const Out> out, std::span<const In> in) {
  if (out.empty() && in.empty()) return;
  const LaunchStream stream = StreamOf(Context());
  group_->Begin();
  for (const Out& one : out) group_->Send(one.slab.data(), one.slab.size(), one.rank, stream);
  for (const In& one : in) group_->Receive(one.slab.data(), one.slab.size(), one.rank, stream);
  group_->End();
  stream.order->AddPlain("slabs of ranks");
}

}  // namespace baltoro::cuda
