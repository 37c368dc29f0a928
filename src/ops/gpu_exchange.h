#pragma once

// How the memory is laid out that ranks on GPUs exchange through (comm/symmetric), and how much it
// is: plain arithmetic, the same on every rank, and for plans without a GPU.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "ops/compose/two_level_exchange.h"
#include "ops/group_rows.h"
#include "ops/rank_ops.h"

namespace baltoro::cuda {

inline constexpr int kPeersMax = 8;  // ranks of a group that share memory
inline constexpr int kPacketBytes = 16;
inline constexpr int kLanePackets = 32;
inline constexpr int kPlaces = 3;
inline constexpr int kFloatsOfPacket = 4;
inline constexpr int kHalvesOfPacket = 8;

// Sums. One shot: each rank writes its row to all, all add. Two shots: each writes slices of a row
// to their owners, an owner adds and writes the sum to all.
struct SumRegion {
  int64_t packets = 0;  // of a row of parts in bf16
  int64_t slice = 0;    // packets of an owner
  int64_t rows_one_shot = 0, rows_two_shot = 0;
  int64_t ranks = 0;

  int64_t lanes() const { return (packets + kLanePackets - 1) / kLanePackets; }  // of a row
  int64_t one_shot_packets() const { return kPlaces * rows_one_shot * ranks * packets; }
  int64_t parts_packets() const { return kPlaces * rows_two_shot * ranks * slice; }
  int64_t sums_packets() const { return kPlaces * rows_two_shot * packets; }
  int64_t bytes() const {
    return (one_shot_packets() + parts_packets() + sums_packets()) * kPacketBytes;
  }
  int64_t counters() const { return (rows_one_shot + rows_two_shot) * lanes(); }
};

// Everything else within a group: lanes of packets from each rank.
struct ExchangeRegion {
  int64_t lanes = 0;
  int64_t ranks = 0;
  int64_t bytes() const { return kPlaces * lanes * ranks * kLanePackets * kPacketBytes; }
  int64_t counters() const { return lanes; }
};

// Replicas that share experts (expert_exchange.h). Few bytes travel as packets in lanes, of which a
// warp's last packet guards the others (group_packets.cu); many lie in chunks in the memory of who
// sends them, until the others have read them. Chunks have two places, used in turn.
inline constexpr int kGatheredMax = 4;  // tensors of one Gather
inline constexpr int kGuardedPackets = kLanePackets - 1;
inline constexpr int64_t kGuardedBytes = int64_t{kGuardedPackets} * kPacketBytes;
inline constexpr int64_t kPieceBytes = int64_t{16} << 10;        // of a chunk, for one rank
inline constexpr int64_t kGatherChunkBytes = int64_t{32} << 10;  // for all ranks alike
struct ChunkRegion {
  int64_t chunks = 0;  // of a launch
  int64_t ranks = 0;
  int64_t chunk_bytes() const { return ranks * kPieceBytes; }
  int64_t bytes() const { return 2 * chunks * chunk_bytes(); }
  int64_t counters() const { return chunks; }
  int64_t flags() const { return chunks * ranks; }
};

// Slabs of experts that move, between any two ranks of a stage (comm/symmetric/trade.h): places in
// the memory of who receives, of as many lanes as there may be.
inline constexpr int64_t kTradeLanes = 16, kTradePlaces = 2;
inline constexpr int64_t kTradePieceBytes = int64_t{32} << 10;
// A rank sends and gets two at most in a round of moves (RoundsBetween), so that four messages at
// once are what lanes are counted for; more of them go in several launches.
inline constexpr int64_t kTradeMessages = 4;
// Of a message, where each rank runs `blocks` blocks of a launch at once, at least one.
inline int64_t TradeLanes(int64_t blocks) {
  return std::clamp<int64_t>(blocks / kTradeMessages, 1, kTradeLanes);
}
struct TradeRegion {
  int64_t ranks = 0;  // of a stage, of all replicas
  int64_t words() const { return ranks * kTradeLanes; }
  int64_t bytes() const { return words() * kTradePlaces * kTradePieceBytes; }
};

// From one stage to the next: a lane has kPipeDepth places, and the reader says how many uses it is
// done with (a word for each lane in the writer's memory).
inline constexpr int64_t kPipeLanes = 1024;
inline constexpr int64_t kPipeDepth = 8;
inline constexpr int64_t kPipeBytes = kPipeLanes * kPipeDepth * kLanePackets * kPacketBytes;

struct MemoryPlan {
  SumRegion sum;
  ExchangeRegion columns, heads;  // of tensor ranks; of context ranks
  ExchangeRegion group;           // of replicas that share experts
  ChunkRegion chunks;
  TradeRegion trade;  // of the ranks of a stage that move experts

  // Offsets in bytes. The failure word lies at 0. Before `packets` all is zeros at first, from
  // there on ones.
  size_t sum_counters = 0, columns_counters = 0, heads_counters = 0;
  size_t group_counters = 0, chunk_counters = 0, chunk_flags = 0;
  size_t trade_sent = 0, trade_received = 0, trade_arrived = 0, trade_taken = 0;
  size_t sent_counters = 0, received_counters = 0, pipe_done = 0;
  size_t packets = 0;
  size_t sum_packets = 0, columns_packets = 0, heads_packets = 0, group_packets = 0;
  size_t chunk_places = 0, trade_places = 0, pipe_packets = 0;
  size_t bytes = 0;
};

// More rows than these are sent in several goes.
inline constexpr int64_t kRowsOneShot = 64, kRowsOneShotOfTwo = 512, kRowsTwoShot = 1024;
inline constexpr int64_t kExchangeLanes = 4096;
inline constexpr int64_t kGroupLanes = 4096;
inline constexpr int64_t kChunksMost = 512, kChunksLeast = 160;

inline int64_t Quotient(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

inline int64_t ExchangeLanes(int64_t lanes_of_row, int64_t rows_max) {
  return std::max(lanes_of_row, std::min(kExchangeLanes, lanes_of_row * rows_max));
}

// How many replicas of a group lie on each host, equally many in all groups of the world; 0: they
// do not. `hosts`: of each rank of the world.
inline int64_t ReplicasOfHost(const GpuRankArgs& args, const std::vector<int32_t>& hosts) {
  const int32_t of_replica = args.ranks / args.data;
  int64_t count = 0;
  for (int32_t place = 0; place < of_replica; ++place) {
    std::vector<int32_t> of_group;
    for (int32_t rank = place; rank < args.ranks; rank += of_replica) {
      of_group.push_back(hosts[static_cast<size_t>(rank)]);
    }
    const int64_t of_this = RanksOfHost(of_group);
    if (place > 0 && of_this != count) return 0;
    count = of_this;
  }
  return count;
}

// Of one row of all tensors that replicas gather, and of what comes back for it.
inline int64_t GroupRowBytes(const GpuRankArgs& args) {
  return std::max(args.expert_row_bytes, args.hidden * 2);
}

// What rows of replicas on `hosts` hosts lie in between their two ways (two_level_exchange.h).
inline int64_t RoomBetweenHosts(const GpuRankArgs& args, int64_t hosts) {
  return TwoLevelExchange::RoomBytes(hosts, args.rows_max, GroupRowBytes(args), args.hidden * 2);
}

// The memory that each rank of a world brings, equal on all; without what NCCL takes. `together`:
// how many replicas of a group exchange rows over it, where they do.
inline MemoryPlan PlanMemory(const GpuRankArgs& args, int64_t together) {
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
  if (together > 1 && together <= kPeersMax && !args.nccl_only) {
    const int64_t row_bytes = GroupRowBytes(args);
    const auto lanes = [&](int64_t rows) {
      return Quotient(rows * row_bytes, kGuardedBytes) + kGatheredMax;
    };
    plan.group = {.lanes = std::max(lanes(1), std::min(kGroupLanes, lanes(args.rows_max))),
                  .ranks = together};
    // A chunk of few rows is cut smaller, so that as many blocks as a GPU runs have one.
    const int64_t chunks = Quotient(args.rows_max * row_bytes, kPieceBytes) + kGatheredMax;
    plan.chunks = {.chunks = std::clamp(chunks, kChunksLeast, kChunksMost), .ranks = together};
  }
  const int32_t traders = args.tensor * args.data + args.slab_echoes;
  if (args.balances && traders <= kPeersMax && !args.nccl_only) plan.trade = {.ranks = traders};
  const bool stages = args.ranks > args.tensor * args.data && !args.nccl_only;

  size_t at = 256;  // after the failure word
  const auto take = [&at](int64_t bytes) {
    const size_t begin = at;
    at += static_cast<size_t>(Quotient(bytes, 256) * 256);
    return begin;
  };
  plan.sum_counters = take(plan.sum.counters() * 4);
  plan.columns_counters = take(plan.columns.counters() * 4);
  plan.heads_counters = take(plan.heads.counters() * 4);
  plan.group_counters = take(plan.group.counters() * 4);
  plan.chunk_counters = take(plan.chunks.counters() * 4);
  plan.chunk_flags = take(plan.chunks.flags() * 4);
  plan.trade_sent = take(plan.trade.words() * 4);
  plan.trade_received = take(plan.trade.words() * 4);
  plan.trade_arrived = take(plan.trade.words() * 4);
  plan.trade_taken = take(plan.trade.words() * 4);
  plan.sent_counters = take(stages ? kPipeLanes * 4 : 0);
  plan.received_counters = take(stages ? kPipeLanes * 4 : 0);
  plan.pipe_done = take(stages ? kPipeLanes * 4 : 0);
  plan.packets = at;
  plan.sum_packets = take(plan.sum.bytes());
  plan.columns_packets = take(plan.columns.bytes());
  plan.heads_packets = take(plan.heads.bytes());
  plan.group_packets = take(plan.group.bytes());
  plan.chunk_places = take(plan.chunks.bytes());
  plan.trade_places = take(plan.trade.bytes());
  plan.pipe_packets = take(stages ? kPipeBytes : 0);
  plan.bytes = at;
  return plan;
}

}  // namespace baltoro::cuda
