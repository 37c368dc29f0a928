#pragma once

// Slabs of weights that ranks send each other (SlabExchange::Trade), over each other's memory: in
// pieces, each of which the sender writes to a place in the receiver's memory and says so, and the
// receiver takes from there and says so. Between two ranks a message travels in lanes, as many as
// the ranks agree on, each with kTradePlaces places, used in turn; flags count uses and are never
// cleared. Nobody takes part but the ranks of a message.
//
// The blocks of a launch wait for those of other ranks, so all of them must run at once. Where that
// is not so for all messages of a rank they go in several launches, in one order for all ranks: by
// who sends, then by who gets. Of the messages that have not ended, the first in that order is
// under way on both of its ranks, as all ahead of it have ended: so some message always gets on,
// however differently ranks divide theirs into launches.

#include <cuda_runtime_api.h>

#include <cstdint>

#include "comm/symmetric/peer_memory.h"
#include "ops/cuda/launch/launch_stream.h"

namespace baltoro::cuda {

struct TradeMessage {
  char* data = nullptr;  // at a multiple of 16 bytes
  int64_t bytes = 0;     // a multiple of 16
  int other = 0;         // rank of the group
  bool sends = false;
};

// By rank of the group; [lane of rank r] means r * kTradeLanes + lane, whatever `lanes` is.
struct TradeParams {
  TradeMessage messages[2 * kPeersMax];  // one each way for another rank at most
  int count = 0;
  int lanes = 0;                      // of a message: kTradeLanes at most, equal on all ranks
  char* places[kPeersMax] = {};       // of each rank, for what it receives: [lane of the sender]
  uint32_t* arrived[kPeersMax] = {};  // of each rank as a receiver: uses of [lane of the sender]
  uint32_t* taken[kPeersMax] = {};    // of each rank as a sender: uses of [lane of the receiver]
  uint32_t* sent_uses = nullptr;      // [lane of the receiver] so far, in own memory
  uint32_t* received_uses = nullptr;  // [lane of the sender]
  PeerWatch watch;
};

// How many blocks of a launch run at once on so many multiprocessors. Loads the kernel; why:
// LoadExchangeKernels.
cudaError_t TradeBlocks(int multiprocessors, int64_t* blocks);
// All messages, in launches of `blocks` blocks at most, which is params.lanes at least.
void LaunchTrade(const LaunchStream& stream, const TradeParams& params, int64_t blocks);

}  // namespace baltoro::cuda
