#include "comm/symmetric/memory_plan.h"

#include <algorithm>

namespace baltoro::cuda {
namespace {

// More rows than these are sent in several goes.
constexpr int64_t kRowsOneShot = 64, kRowsOneShotOfTwo = 512, kRowsTwoShot = 1024;
constexpr int64_t kExchangeLanes = 4096;

int64_t Quotient(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

int64_t ExchangeLanes(int64_t lanes_of_row, int64_t rows_max) {
  return std::max(lanes_of_row, std::min(kExchangeLanes, lanes_of_row * rows_max));
}

}  // namespace

MemoryPlan PlanMemory(const GpuRankArgs& args) {
  MemoryPlan plan;
  const bool shares_memory = args.tensor > 1 && args.tensor <= kPeersMax && !args.nccl_only;
  if (shares_memory) {
    SumRegion& sum = plan.sum;
    sum.ranks = args.tensor;
    sum.packets = Quotient(args.hidden, kHalvesOfPacket);
    sum.slice = Quotient(sum.packets, sum.ranks);
    sum.rows_one_shot = std::min(args.rows_max, sum.ranks == 2 ? kRowsOneShotOfTwo : kRowsOneShot);
    sum.rows_two_shot = std::min(args.rows_max, kRowsTwoShot);
    plan.columns = {
        .lanes = ExchangeLanes(Quotient(args.vocab, int64_t{kLanePackets} * kFloatsOfPacket),
                               args.rows_max),
        .ranks = args.tensor};
  }
  if (shares_memory && args.decode_context > 1) {
    // A head of a few elements takes a lane too.
    const int64_t lanes = Quotient(args.head_bytes / args.decode_context, kPacketBytes);
    plan.heads = {.lanes = ExchangeLanes(lanes, args.rows_max), .ranks = args.decode_context};
  }
  const bool stages = args.ranks > args.tensor && !args.nccl_only;

  size_t at = 256;  // after the failure word
  const auto take = [&at](int64_t bytes) {
    const size_t begin = at;
    at += static_cast<size_t>(Quotient(bytes, 256) * 256);
    return begin;
  };
  plan.sum_counters = take(plan.sum.counters() * 4);
  plan.columns_counters = take(plan.columns.counters() * 4);
  plan.heads_counters = take(plan.heads.counters() * 4);
  plan.sent_counters = take(stages ? kPipeLanes * 4 : 0);
  plan.received_counters = take(stages ? kPipeLanes * 4 : 0);
  plan.pipe_done = take(stages ? kPipeLanes * 4 : 0);
  plan.packets = at;
  plan.sum_packets = take(plan.sum.bytes());
  plan.columns_packets = take(plan.columns.bytes());
  plan.heads_packets = take(plan.heads.bytes());
  plan.pipe_packets = take(stages ? kPipeBytes : 0);
  plan.bytes = at;
  return plan;
}

}  // namespace baltoro::cuda
