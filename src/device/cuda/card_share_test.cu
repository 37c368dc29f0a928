// Shares of a card: each has multiprocessors of its own, and kernels of several run side by side,
// launched plainly and from graphs.

#include <barrier>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "device/cuda/card_share.h"
#include "device/cuda/cuda_status.h"
#include "device/cuda/device_buffer.h"
#include "device/cuda/device_info.h"
#include "device/cuda/graph.h"
#include "device/cuda/stream.h"
#include "support/card_shares.h"
#include "support/gpu_test.h"

namespace baltoro {
namespace {

constexpr int kShares = 4;
constexpr int kBlocks = 256;

__global__ void WhereKernel(unsigned* multiprocessor) {
  unsigned id;
  asm volatile("mov.u32 %0, %%smid;" : "=r"(id));
  multiprocessor[blockIdx.x] = id;
  __nanosleep(20'000);
}

// Says that share `self` has come to `round`, and waits for all others; at most two seconds.
__global__ void MeetKernel(volatile unsigned* rounds, int self, unsigned* late) {
  const unsigned round = rounds[self] + 1;
  rounds[self] = round;
  unsigned long long begin, now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin));
  for (int other = 0; other < kShares; ++other) {
    while (static_cast<int>(rounds[other] - round) < 0) {
      asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
      if (now - begin > 2'000'000'000ull) {
        *late = 1;
        return;
      }
    }
  }
}

Status Launched(const char* kernel) {
  return CudaLaunchStatus(kernel);
}

// One of several shares at work, on a thread of its own; `rounds` [kShares + 1], the last `late`.
Status Work(const CardShare& share,
            int self,
            unsigned* rounds,
            std::set<unsigned>* multiprocessors,
            std::barrier<>& all) {
  BT_RETURN_IF_ERROR(share.Take());
  BT_ASSIGN_OR_RETURN(const Stream stream, Stream::Create());
  BT_ASSIGN_OR_RETURN(const DeviceBuffer where,
                      DeviceBuffer::Create(kBlocks * sizeof(unsigned), "test"));
  WhereKernel<<<kBlocks, 32, 0, stream.get()>>>(where.as<unsigned>());
  BT_RETURN_IF_ERROR(Launched("where"));
  BT_RETURN_IF_ERROR(stream.Synchronize());
  std::vector<unsigned> ids(kBlocks);
  BT_CUDA_RETURN_IF_ERROR(
      cudaMemcpy(ids.data(), where.data(), where.bytes(), cudaMemcpyDeviceToHost));
  multiprocessors->insert(ids.begin(), ids.end());
  const auto meet = [&]() -> Status {
    for (int i = 0; i < 20; ++i) {
      MeetKernel<<<1, 1, 0, stream.get()>>>(rounds, self, rounds + kShares);
    }
    return Launched("meet");
  };
  BT_ASSIGN_OR_RETURN(const Graph graph, Graph::Capture(stream, meet));
  all.arrive_and_wait();
  BT_RETURN_IF_ERROR(meet());
  BT_RETURN_IF_ERROR(stream.Synchronize());
  all.arrive_and_wait();
  for (int i = 0; i < 5; ++i) BT_RETURN_IF_ERROR(graph.Launch(stream));
  return stream.Synchronize();
}

GPU_TEST(CardShareTest, SharesAreDisjointAndRunSideBySide) {
  const Result<std::vector<CardShare>> shares = CardShare::Split(0, kShares);
  if (!shares.ok()) testing::SkipCase(shares.status().message());
  Result<DeviceBuffer> rounds = DeviceBuffer::Create((kShares + 1) * sizeof(unsigned), "test");
  GPU_ASSERT_OK(rounds.status());
  GPU_ASSERT_OK(CudaStatus(cudaMemset(rounds.value().data(), 0, rounds.value().bytes()), "memset"));
  std::vector<std::set<unsigned>> multiprocessors(kShares);
  std::vector<Status> ends(kShares);
  std::barrier<> all(kShares);
  std::vector<std::thread> threads;
  for (size_t i = 0; i < kShares; ++i) {
    threads.emplace_back([&, i] {
      Status end = Work(shares.value()[i], static_cast<int>(i), rounds.value().as<unsigned>(),
                        &multiprocessors[i], all);
      std::swap(ends[i], end);
      if (!ends[i].ok()) all.arrive_and_drop();
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const Status& end : ends) GPU_ASSERT_OK(end);
  std::set<unsigned> together;
  size_t sum = 0;
  for (size_t i = 0; i < kShares; ++i) {
    // One block in a few milliseconds: all of a share have some.
    const auto own = static_cast<size_t>(shares.value()[i].multiprocessors());
    GPU_EXPECT_EQ(multiprocessors[i].size(), own);
    together.insert(multiprocessors[i].begin(), multiprocessors[i].end());
    sum += own;
  }
  GPU_EXPECT_EQ(together.size(), sum);
  std::vector<unsigned> words(kShares + 1);
  GPU_ASSERT_OK(CudaStatus(cudaMemcpy(words.data(), rounds.value().data(), rounds.value().bytes(),
                                      cudaMemcpyDeviceToHost),
                           "memcpy"));
  GPU_EXPECT_EQ(words[0], 120u);
  GPU_EXPECT_EQ(words[kShares], 0u);
}

GPU_TEST(CardShareTest, TooManySharesAreRefused) {
  GPU_EXPECT(!CardShare::Split(0, 0).ok());
  GPU_EXPECT(!CardShare::Split(0, 1000).ok());
}

}  // namespace
}  // namespace baltoro

int main(int argc, char** argv) {
  baltoro::test::UseSharesOfOneCard();
  return baltoro::testing::RunGpuCases(argc, argv, baltoro::UsableDeviceCount());
}
