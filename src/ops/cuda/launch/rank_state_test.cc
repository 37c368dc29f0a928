// What a rank keeps between calls is its own: two of them on one card share nothing.

#include "ops/cuda/launch/rank_state.h"

#include <cstdint>
#include <vector>

#include "device/cuda/device_info.h"
#include "support/gpu_test.h"

namespace baltoro::cuda {
namespace {

std::vector<int32_t> OnHost(const int32_t* device, size_t count) {
  std::vector<int32_t> values(count);
  GPU_EXPECT(cudaMemcpy(values.data(), device, count * sizeof(int32_t), cudaMemcpyDeviceToHost) ==
             cudaSuccess);
  return values;
}

GPU_TEST(RankStateTest, TwoRanksHaveBoardsOfTheirOwnThatBeginWithZeros) {
  const auto first = RankState::Create().value(), second = RankState::Create().value();
  GPU_EXPECT(first->stream().get() != second->stream().get());
  for (int i = 0; i < kBoards; ++i) {
    const auto kernel = static_cast<BoardOf>(i);
    auto* const a = first->board<char>(kernel);
    auto* const b = second->board<char>(kernel);
    GPU_EXPECT(b + BoardBytes(kernel) <= a || a + BoardBytes(kernel) <= b);
    if (i > 0) {
      const auto before = static_cast<BoardOf>(i - 1);
      GPU_EXPECT(first->board<char>(before) + BoardBytes(before) <= a);
    }
    const auto words = static_cast<size_t>(BoardBytes(kernel)) / sizeof(int32_t);
    GPU_EXPECT(OnHost(reinterpret_cast<int32_t*>(a), words) == std::vector<int32_t>(words));
  }
}

GPU_TEST(RankStateTest, ATableOfSlotsIsBroughtToTheDeviceOnce) {
  const auto rank = RankState::Create().value();
  const std::vector<int32_t> same = {0, 1, 2, 3}, some = {-1, 0, -1, 1}, others = {0, -1, 1};
  GPU_EXPECT(rank->SlotsOnDevice(same) == nullptr);
  const int32_t* const table = rank->SlotsOnDevice(some);
  const int32_t* const other = rank->SlotsOnDevice(others);
  GPU_EXPECT(table != nullptr && other != nullptr && table != other);
  GPU_EXPECT(rank->SlotsOnDevice(std::vector<int32_t>(some)) == table);
  GPU_EXPECT(OnHost(table, some.size()) == some);
  GPU_EXPECT(OnHost(other, others.size()) == others);
}

GPU_TEST(RankStateTest, WhatAnotherRankQueuesIsNoneOfItsOrder) {
  const auto first = RankState::Create().value(), second = RankState::Create().value();
  const Region memory = {first.get(), 8};
  first->order().Complete();
  second->launches().order->Add("a kernel");
  GPU_EXPECT(first->launches().order->IsComplete(memory));
  GPU_EXPECT(!second->launches().order->IsComplete(memory));
}

}  // namespace
}  // namespace baltoro::cuda

int main(int argc, char** argv) {
  return baltoro::testing::RunGpuCases(argc, argv, baltoro::UsableDeviceCount());
}
