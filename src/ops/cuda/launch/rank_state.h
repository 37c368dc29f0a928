#pragma once

// What the operations of one rank keep from one call to the next. OpContext::rank points to it.

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/check.h"
#include "base/status.h"
#include "device/cuda/device_buffer.h"
#include "device/cuda/stream.h"
#include "ops/context.h"
#include "ops/cuda/choose/card.h"
#include "ops/cuda/launch/launch_stream.h"

namespace baltoro::cuda {

// The kernels whose blocks hand each other results through words in device memory, on a board of
// the rank's own for each (ptx/mail.cuh).
enum class BoardOf : uint8_t {
  kAttentionHalf,
  kInt4OneLaunch1,
  kInt4OneLaunch4,
  kFp8OneLaunch1,
  kFp8OneLaunch8,
};

// Bytes that each has; the kernels check that theirs is no larger.
constexpr int64_t BoardBytes(BoardOf kernel) {
  constexpr int64_t kKiB = 1024;
  switch (kernel) {
    case BoardOf::kAttentionHalf:
      return 9600 * kKiB;
    case BoardOf::kInt4OneLaunch1:
    case BoardOf::kFp8OneLaunch1:
      return 32 * kKiB;
    case BoardOf::kInt4OneLaunch4:
      return 64 * kKiB;
    case BoardOf::kFp8OneLaunch8:
      return 160 * kKiB;
  }
  return 0;
}
inline constexpr int kBoards = 5;

// The handle of cuBLASLt and the algorithms chosen so far (linear/blas.cc).
struct BlasLibrary;

// One thread at a time, whose current device is the one it was made on. It outlives all that was
// queued with it.
class RankState {
 public:
  // On the calling thread's current device: a stream, and memory for boards and tables.
  static Result<std::unique_ptr<RankState>> Create();
  RankState(const RankState&) = delete;
  RankState& operator=(const RankState&) = delete;

  const Stream& stream() const { return stream_; }
  LaunchStream launches() { return {stream_.get(), &order_}; }
  LaunchOrder& order() { return order_; }

  // The card as this rank may use it: of a share (device/cuda/card_share.h) it owns none. Banks and
  // the attention half ask here, the only ones with kernels whose blocks wait for each other; other
  // choices ask ThisCard().
  Card card;

  template <typename Board>
  Board* board(BoardOf kernel) const {
    return static_cast<Board*>(BoardAt(kernel));
  }

  // The table of slots (ExpertBankArgs::slot_of) in device memory; null where experts are slots. A
  // model has one, which must be known before a step is recorded. A failed check beyond kSlotTables
  // tables or kExpertsMax experts.
  const int32_t* SlotsOnDevice(std::span<const int32_t> slot_of);
  static constexpr int kSlotTables = 16, kExpertsMax = 1024;

  std::shared_ptr<BlasLibrary> blas;  // null until it is needed

  // For tests under racecheck: blocks of the attention half wait for each other without a bound, as
  // it makes the kernel a hundred times slower, and every lane gives back itself what it read, as
  // it knows no order within a warp (docs/measured/cuda-races.md).
  bool watched = false;

 private:
  RankState(Stream stream, DeviceBuffer boards, DeviceBuffer slots);
  void* BoardAt(BoardOf kernel) const;

  Stream stream_;
  LaunchOrder order_;
  DeviceBuffer boards_, slots_;
  std::vector<std::vector<int32_t>> slot_tables_;  // as they lie in slots_, one after the other
};

// A failed check where the context has none: OpsTable::rank was not handed on.
inline RankState& RankOf(const OpContext& ctx) {
  BT_CHECK(ctx.rank != nullptr);
  return *static_cast<RankState*>(ctx.rank);
}
inline LaunchStream StreamOf(const OpContext& ctx) {
  return RankOf(ctx).launches();
}

}  // namespace baltoro::cuda
