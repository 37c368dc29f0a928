#pragma once

// What replicas that share experts send each other (ops/expert_exchange.h), over each other's
// memory: in packets, which arrive soonest, or in chunks, which move more bytes in less time. All
// ranks of the group make the same launches in the same form. Every launch has word from each rank
// to each other, also from and to those without rows: nobody gets further ahead than places bear.

#include <cuda_runtime_api.h>

#include <cstdint>

#include "comm/symmetric/peer_memory.h"
#include "ops/cuda/launch/launch_stream.h"

namespace baltoro::cuda {

// Load all kernels; why: LoadExchangeKernels.
cudaError_t LoadGroupPacketKernels();
cudaError_t LoadGroupChunkKernels();

// By rank of the group.
struct GroupPackets {
  ExchangeRegion region;
  uint4* memory[kPeersMax] = {};
  uint32_t* counters = nullptr;  // [region.lanes] in own memory
};
struct GroupChunks {
  ChunkRegion region;
  char* memory[kPeersMax] = {};     // of the places
  uint32_t* flags[kPeersMax] = {};  // [region.flags()]: of chunk c from rank r at c * ranks + r
  uint32_t* counters = nullptr;     // [region.counters()] in own memory
};

// Each tensor's bytes of every rank come to `all` of every rank. Bits stay as they are.
struct GroupGatherParams {
  struct Tensor {
    const char* own = nullptr;
    char* all = nullptr;
    int64_t offset[kPeersMax] = {}, bytes[kPeersMax] = {};  // of each rank's part of `all`; even
  };
  Tensor tensors[kGatheredMax];
  int count = 0;  // of tensors; at least one byte of the first is somebody's
  PeerWatch watch;
};
// How many lanes that takes, at most the region's.
int64_t GroupGatherLanes(const GroupGatherParams& params);
void LaunchGroupGather(const LaunchStream& stream,
                       const GroupGatherParams& params,
                       const GroupPackets& packets);
// How many chunks that takes, likewise.
int64_t GroupGatherChunks(const GroupGatherParams& params);
void LaunchGroupGather(const LaunchStream& stream,
                       const GroupGatherParams& params,
                       const GroupChunks& chunks);

// own += what all ranks have for this one, in their order, each part rounded to bf16.
struct GroupAddParams {
  void* own = nullptr;                      // [elements[self]]
  const void* all = nullptr;                // part of each rank, this one's too
  bool own_bf16 = false, all_bf16 = false;  // else f32
  bool vectors = false;                     // all parts begin at multiples of 16 bytes
  int64_t offset[kPeersMax] = {}, elements[kPeersMax] = {};  // somebody has some
  PeerWatch watch;
};
int64_t GroupAddLanes(const GroupAddParams& params);
void LaunchGroupAdd(const LaunchStream& stream,
                    const GroupAddParams& params,
                    const GroupPackets& packets);
int64_t GroupAddChunks(const GroupAddParams& params);
void LaunchGroupAdd(const LaunchStream& stream,
                    const GroupAddParams& params,
                    const GroupChunks& chunks);

}  // namespace baltoro::cuda
