// A block takes a lane of a message, piece after piece. All blocks of a launch run at once, and
// none lets the next kernel start before it has ended. Floor: bytes over the links.

#include <algorithm>
#include <span>
#include <tuple>

#include "comm/symmetric/peer_device.cuh"
#include "comm/symmetric/trade.h"
#include "device/cuda/cuda_status.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/ptx/hopper.cuh"

namespace baltoro::cuda {
namespace {

constexpr int kThreads = 512;
constexpr int kAhead = 4;  // loads under way of a thread
constexpr int64_t kStep = int64_t{kThreads} * kPacketBytes;

template <typename Load>
__device__ void CopyPiece(char* to, const char* from, int64_t bytes, const Load& load) {
  for (int64_t at = int64_t{threadIdx.x} * kPacketBytes; at < bytes; at += kAhead * kStep) {
    uint4 packets[kAhead];
#pragma unroll
    for (int j = 0; j < kAhead; ++j) {
      if (at + j * kStep < bytes) {
        packets[j] = load(reinterpret_cast<const uint4*>(from + at + j * kStep));
      }
    }
#pragma unroll
    for (int j = 0; j < kAhead; ++j) {
      if (at + j * kStep < bytes) *reinterpret_cast<uint4*>(to + at + j * kStep) = packets[j];
    }
  }
}

__global__ void __launch_bounds__(kThreads) TradeKernel(const __grid_constant__ TradeParams p) {
  const int lane = static_cast<int>(blockIdx.x), self = p.watch.rank;
  const TradeMessage& message = p.messages[blockIdx.y];
  const int other = message.other;
  const bool first = threadIdx.x == 0;
  bool alive = __syncthreads_and(!first || Healthy(p.watch)) != 0;
  const int theirs = other * kTradeLanes + lane, ours = self * kTradeLanes + lane;
  volatile uint32_t* const counter = (message.sends ? p.sent_uses : p.received_uses) + theirs;
  uint32_t use = *counter;
  for (int64_t at = lane * kTradePieceBytes; alive && at < message.bytes;
       at += gridDim.x * kTradePieceBytes, ++use) {
    const int64_t bytes = min(kTradePieceBytes, message.bytes - at);
    const int64_t place = use % kTradePlaces;
    if (message.sends) {
      // What the place held before has been taken.
      if (first) {
        alive = AwaitFlag(p.taken[self] + theirs, use + 1 - kTradePlaces, p.watch, other);
      }
      alive = __syncthreads_and(alive) != 0;
      if (!alive) break;
      char* const to = p.places[other] + (ours * kTradePlaces + place) * kTradePieceBytes;
      CopyPiece(to, message.data + at, bytes, [](const uint4* from) { return __ldcs(from); });
      __syncthreads();
      if (first) {
        __threadfence_system();
        StoreWordRelease(p.arrived[other] + ours, use + 1);
      }
    } else {
      if (first) alive = AwaitFlag(p.arrived[self] + theirs, use + 1, p.watch, other);
      alive = __syncthreads_and(alive) != 0;
      if (!alive) break;
      const char* const from = p.places[self] + (theirs * kTradePlaces + place) * kTradePieceBytes;
      CopyPiece(message.data + at, from, bytes, [](const uint4* at) { return LoadPacket(at); });
      __syncthreads();
      if (first) {
        __threadfence_system();
        StoreWordRelease(p.taken[other] + ours, use + 1);
      }
    }
  }
  if (first) *counter = use;
}

}  // namespace

cudaError_t TradeBlocks(int multiprocessors, int64_t* blocks) {
  int of_one = 0;
  const cudaError_t error =
      cudaOccupancyMaxActiveBlocksPerMultiprocessor(&of_one, TradeKernel, kThreads, 0);
  *blocks = int64_t{of_one} * multiprocessors;
  return error;
}

void LaunchTrade(const LaunchStream& stream, const TradeParams& params, int64_t blocks) {
  BT_CHECK(params.lanes >= 1 && params.lanes <= kTradeLanes && params.lanes <= blocks);
  const int self = params.watch.rank;
  TradeParams part = params;
  const std::span<TradeMessage> messages(part.messages, static_cast<size_t>(params.count));
  for (const TradeMessage& message : messages) {
    BT_CHECK(reinterpret_cast<uintptr_t>(message.data) % kPacketBytes == 0);
    BT_CHECK(message.bytes % kPacketBytes == 0 && message.other != self);
  }
  std::sort(messages.begin(), messages.end(), [&](const TradeMessage& a, const TradeMessage& b) {
    const auto place = [&](const TradeMessage& one) {
      return one.sends ? std::tuple(self, one.other) : std::tuple(one.other, self);
    };
    return place(a) < place(b);
  });
  const TradeParams sorted = part;
  const int at_once = static_cast<int>(std::min<int64_t>(blocks / params.lanes, 2 * kPeersMax));
  for (int begin = 0; begin < params.count; begin += at_once) {
    part.count = std::min(at_once, params.count - begin);
    std::copy_n(sorted.messages + begin, part.count, part.messages);
    TradeKernel<<<dim3(static_cast<unsigned>(params.lanes), static_cast<unsigned>(part.count)),
                  kThreads, 0, stream>>>(part);
    CheckLaunch("slabs of ranks");
    stream.order->AddPlain("slabs of ranks");
  }
}

}  // namespace baltoro::cuda
