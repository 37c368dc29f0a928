#pragma once

// Columns and heads that ranks exchange, and what goes from stage to stage.

#include <cuda_runtime_api.h>

#include <cstdint>

#include "comm/symmetric/peer_memory.h"
#include "ops/cuda/launch/launch_stream.h"

namespace baltoro::cuda {

// Loads all kernels of this file: one that is loaded when it is first launched may wait for the
// device, on which another already waits for it.
cudaError_t LoadExchangeKernels();

// Columns of f32 or bf16 (element_bytes 4 or 2): `all` becomes those of each rank beside one
// another.
struct GatherParams {
  void* all = nullptr;
  const void* own = nullptr;
  int64_t all_stride = 0, own_stride = 0;  // elements
  int rows = 0;
  int element_bytes = 4;
  int lanes_of_row = 0;  // GatherLanesOfRow of the widest rank
  bool own_in_vectors = false;
  int widths[kPeersMax] = {}, offsets[kPeersMax] = {};

  ExchangeRegion region;
  uint4* memory[kPeersMax] = {};
  uint32_t* counters = nullptr;
  PeerWatch watch;
};
int GatherLanesOfRow(int64_t width, int element_bytes);
// rows * lanes_of_row <= region.lanes
void LaunchGather(const LaunchStream& stream, const GatherParams& params);

// RankOps::MergeHeads. A lane carries up to kMergePackets packets of one head, and its lse.
inline constexpr int kMergePackets = 31;
struct MergeParams {
  uint16_t* own = nullptr;            // [rows, heads * value] bf16
  const uint16_t* partial = nullptr;  // [rows, ranks * heads * value]
  const float* lse = nullptr;         // [rows, ranks * heads]
  int64_t own_stride = 0, partial_stride = 0, lse_stride = 0;
  int rows = 0, heads = 0, value = 0;
  bool vectors = false;  // heads of partial and own begin at multiples of 16 bytes

  ExchangeRegion region;
  uint4* memory[kPeersMax] = {};
  uint32_t* counters = nullptr;
  PeerWatch watch;
};
int MergeLanesOfHead(int64_t value);
// rows * heads * MergeLanesOfHead <= region.lanes
void LaunchMerge(const LaunchStream& stream, const MergeParams& params);

// `count` f32 to or from another rank's lanes (peer_memory.h, kPipe...).
struct PipeParams {
  float* x = nullptr;
  int64_t count = 0;
  uint4* packets = nullptr;  // in the reader's memory
  uint32_t* done = nullptr;  // [kPipeLanes] in the writer's memory: uses the reader is done with
  uint32_t* counters = nullptr;  // [kPipeLanes] uses so far, in own memory
  int other = 0;                 // in the watch's group
  bool vectors = false;          // x begins at a multiple of 16 bytes
  PeerWatch watch;
};
void LaunchSend(const LaunchStream& stream, const PipeParams& params);
void LaunchReceive(const LaunchStream& stream, const PipeParams& params);

}  // namespace baltoro::cuda
