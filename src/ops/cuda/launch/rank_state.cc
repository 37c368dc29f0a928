#include "ops/cuda/launch/rank_state.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "device/cuda/card_share.h"
#include "device/cuda/cuda_status.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/launch/card.h"

namespace baltoro::cuda {
namespace {

constexpr int64_t BoardOffset(int board) {
  int64_t offset = 0;
  for (int i = 0; i < board; ++i) offset += BoardBytes(static_cast<BoardOf>(i));
  return offset;
}

constexpr size_t kTableBytes = size_t{RankState::kExpertsMax} * sizeof(int32_t);

}  // namespace

Result<std::unique_ptr<RankState>> RankState::Create() {
  BT_ASSIGN_OR_RETURN(Stream stream, Stream::Create());
  BT_ASSIGN_OR_RETURN(DeviceBuffer boards,
                      DeviceBuffer::Create(static_cast<size_t>(BoardOffset(kBoards)),
                                           "boards of resident kernels"));
  // Zeros: the tag of no launch.
  BT_CUDA_RETURN_IF_ERROR(cudaMemsetAsync(boards.data(), 0, boards.bytes(), stream.get()));
  BT_ASSIGN_OR_RETURN(DeviceBuffer slots,
                      DeviceBuffer::Create(kSlotTables * kTableBytes, "tables of expert slots"));
  BT_RETURN_IF_ERROR(stream.Synchronize());
  return std::unique_ptr<RankState>(
      new RankState(std::move(stream), std::move(boards), std::move(slots)));
}

RankState::RankState(Stream stream, DeviceBuffer boards, DeviceBuffer slots)
    : card(ThisCard()),
      stream_(std::move(stream)),
      boards_(std::move(boards)),
      slots_(std::move(slots)) {
  if (!UsesShare()) return;
  const Result<int> multiprocessors = MultiprocessorsInUse();
  CheckOk(multiprocessors.status());
  card.multiprocessors = multiprocessors.value();
  card.owned = false;
}

void* RankState::BoardAt(BoardOf kernel) const {
  return boards_.as<char>() + BoardOffset(static_cast<int>(kernel));
}

const int32_t* RankState::SlotsOnDevice(std::span<const int32_t> slot_of) {
  bool same = true;
  for (size_t e = 0; e < slot_of.size(); ++e) same = same && slot_of[e] == static_cast<int32_t>(e);
  if (same) return nullptr;
  const auto found = std::find_if(
      slot_tables_.begin(), slot_tables_.end(),
      [&](const std::vector<int32_t>& table) { return std::ranges::equal(table, slot_of); });
  int32_t* const device =
      slots_.as<int32_t>() + (found - slot_tables_.begin()) * std::ptrdiff_t{kExpertsMax};
  if (found != slot_tables_.end()) return device;
  BT_CHECK(slot_of.size() <= size_t{kExpertsMax} && slot_tables_.size() < size_t{kSlotTables});
  cudaStreamCaptureStatus capturing = cudaStreamCaptureStatusNone;
  CheckCuda(cudaStreamIsCapturing(stream_.get(), &capturing), "cudaStreamIsCapturing");
  BT_CHECK(capturing == cudaStreamCaptureStatusNone);  // the first step of a model is no graph
  CheckCuda(cudaMemcpyAsync(device, slot_of.data(), slot_of.size() * sizeof(int32_t),
                            cudaMemcpyHostToDevice, stream_.get()),
            "copy of a table of expert slots");
  CheckOk(stream_.Synchronize());
  slot_tables_.emplace_back(slot_of.begin(), slot_of.end());
  return device;
}

}  // namespace baltoro::cuda
