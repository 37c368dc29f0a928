#pragma once

// Ranks as threads of the test, each on a GPU of its own or on a share of the only one, and ways to
// disturb them.

#include <cuda_runtime_api.h>

#include <barrier>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "comm/symmetric/joined_ranks.h"
#include "device/cuda/card_share.h"
#include "device/cuda/device_info.h"
#include "ops/cuda/rows/rows_test_support.h"
#include "support/card_shares.h"
#include "support/gpu_test.h"
#include "tensor/float8.h"

namespace baltoro::cuda::ranks_test {

using rows_test::Device;
using rows_test::Must;
using rows_test::Tensor;

// Where there is one GPU, ranks lie on shares of it, which device numbers mean then.
inline bool SharesGpu() {
  const Result<int> shares = SharesAsDevices();
  return shares.ok() && shares.value() > 0;
}
inline int RanksPossible() {
  const Result<int> shares = SharesAsDevices();
  if (!shares.ok()) std::printf("%s\n", shares.status().message().c_str());
  return SharesGpu() ? shares.value() : UsableDeviceCount();
}

// The all-gather of ranks that are threads.
class ThreadExchange {
 public:
  explicit ThreadExchange(int ranks) : ranks_(ranks) {}

  Status operator()(int rank, std::span<const std::byte> own, std::span<std::byte> all) {
    std::unique_lock lock(mutex_);
    const auto well = [&](const auto& ready) {
      return changed_.wait_for(lock, std::chrono::seconds(60), ready);
    };
    if (!well([&] { return !leaving_; })) return Late();
    if (arrived_ == 0) gathered_.assign(all.size(), std::byte{0});
    std::copy(own.begin(), own.end(), gathered_.begin() + static_cast<int64_t>(own.size()) * rank);
    if (++arrived_ == ranks_) leaving_ = true, changed_.notify_all();
    if (!well([&] { return leaving_; })) return Late();
    std::copy(gathered_.begin(), gathered_.end(), all.begin());
    if (--arrived_ == 0) leaving_ = false, changed_.notify_all();
    return {};
  }

 private:
  static Status Late() { return Status(Code::kUnavailable, "a rank did not come to the meeting"); }
  const int ranks_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::byte> gathered_;
  int arrived_ = 0;
  bool leaving_ = false;
};

// A rank while its function runs, on its thread.
struct Rank {
  int rank = 0;
  Device device;
  std::unique_ptr<JoinedRanks> ops;
  std::barrier<>* all = nullptr;  // of the host threads

  OpContext ctx() { return device.ctx(); }
  void Wait() { device.Wait(); }
  // Until all ranks have come so far and their GPUs are idle.
  void Meet() {
    Wait();
    all->arrive_and_wait();
  }
};

// Memory of the GPU of the calling thread.
inline const Memory& OwnGpu() {
  int device = 0;
  CheckCuda(cudaGetDevice(&device), "cudaGetDevice");
  return CudaMemory(device);
}
// `edit` may change the arguments of a rank. `run` is not called on ranks that did not join; what
// they got instead is returned, by rank.
inline std::vector<Status> RunRanks(const GpuRankArgs& like,
                                    const std::function<void(Rank&)>& run,
                                    const std::function<void(int, GpuRankArgs&)>& edit = {}) {
  ThreadExchange exchange(like.ranks);
  std::barrier<> all(like.ranks);
  std::vector<Status> results(static_cast<size_t>(like.ranks));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < like.ranks; ++rank) {
    threads.emplace_back([&, rank] {
      Must(TakeDevice(rank));
      Rank self;
      self.rank = rank;
      self.all = &all;
      // What ranks read of it.
      OpsTable ops;
      ops.memory = &OwnGpu();
      ops.staging = &PinnedMemory();
      ops.rank = self.ctx().rank;
      GpuRankArgs args = like;
      args.ops = &ops;
      args.rank = rank;
      args.device = rank;
      args.exchange = [&exchange, rank](std::span<const std::byte> own, std::span<std::byte> to) {
        return exchange(rank, own, to);
      };
      if (edit) edit(rank, args);
      Result<std::unique_ptr<JoinedRanks>> joined = JoinedRanks::Join(args);
      Status result = joined.status();
      std::swap(results[static_cast<size_t>(rank)], result);
      if (!joined.ok()) return;
      self.ops = std::move(joined).value();
      run(self);
      self.Wait();
      all.arrive_and_drop();
    });
  }
  for (std::thread& thread : threads) thread.join();
  return results;
}

inline void MustJoin(const std::vector<Status>& results) {
  for (size_t rank = 0; rank < results.size(); ++rank) {
    if (results[rank].ok()) continue;
    testing::ReportFailure(__FILE__, __LINE__,
                           "rank " + std::to_string(rank) + ": " + results[rank].message());
  }
}

static __global__ void DelayKernel(uint64_t ns) {
  uint64_t begin, now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin));
  do {
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  } while (now - begin < ns);
}
inline void Delay(const OpContext& ctx, uint64_t ns) {
  DelayKernel<<<1, 1, 0, StreamOf(ctx)>>>(ns);
  CheckLaunch("delay");
}

// Zeroed.
inline Buffer OnDevice(size_t bytes) {
  return Must(Buffer::Create(std::max<size_t>(bytes, 256), "test", OwnGpu()));
}
template <typename T>
Buffer ToDevice(const std::vector<T>& host) {
  Buffer buffer = OnDevice(host.size() * sizeof(T));
  Must(OwnGpu().CopyIn(buffer.data(), host.data(), host.size() * sizeof(T)));
  return buffer;
}
template <typename T>
std::vector<T> FromDevice(const void* data, size_t count) {
  std::vector<T> host(count);
  Must(OwnGpu().CopyOut(host.data(), data, count * sizeof(T)));
  return host;
}
inline void CopyAsync(const OpContext& ctx, void* to, const void* from, size_t bytes) {
  CheckCuda(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, StreamOf(ctx)), "copy");
}

inline float Rounded(float x) {
  return ToFloat(ToBf16(x));
}

inline std::vector<float> Drawn(uint64_t seed, size_t count, float deviation = 1) {
  std::mt19937_64 random(seed);
  std::vector<float> values(count);
  // Sums of bytes: quick to draw, near enough to normal, of many exponents.
  for (float& value : values) {
    const uint64_t bits = random();
    const auto mantissa = static_cast<float>(static_cast<int64_t>(bits >> 40) - (1 << 23));
    value = deviation * mantissa * 0x1p-22f * ((bits & 15) == 0 ? 16 : 1);
  }
  return values;
}

// How many differ and the first, or nothing.
template <typename T>
std::string Difference(const T* got, const T* want, size_t count) {
  size_t bad = 0, first = 0;
  for (size_t i = 0; i < count; ++i) {
    if (std::memcmp(got + i, want + i, sizeof(T)) != 0 && bad++ == 0) first = i;
  }
  if (bad == 0) return {};
  char text[160];
  const auto bits = [](T x) {
    uint64_t word = 0;
    std::memcpy(&word, &x, sizeof(T));
    return word;
  };
  std::snprintf(text, sizeof(text), "%zu of %zu differ, first %zu got %llx want %llx", bad, count,
                first, static_cast<unsigned long long>(bits(got[first])),
                static_cast<unsigned long long>(bits(want[first])));
  return text;
}

// Failures of many threads, one line each; the first few are reported.
class Findings {
 public:
  void Add(const std::string& what) {
    const std::lock_guard lock(mutex_);
    if (++count_ <= 12) testing::ReportFailure(__FILE__, __LINE__, what);
  }
  void AddDifference(const Rank& self, const std::string& where, const std::string& difference) {
    if (difference.empty()) return;
    const std::string of = " rank " + std::to_string(self.rank) + ": ";
    Add(where + of + difference + "; " + self.ops->status().message());
  }
  void AddStatus(const Rank& self) {
    if (!self.ops->status().ok()) Add(self.ops->status().message());
  }
  // A rank that stops early is one that the others miss: for cases that end then.
  bool any() {
    const std::lock_guard lock(mutex_);
    return count_ > 0;
  }

 private:
  std::mutex mutex_;
  int count_ = 0;
};

// What a norm writes beside its rows: codes of 128 columns with a scale, in product_layout.h's
// order, or the order of matrix_order.cuh.
struct Copies {
  Copies(int rows, int64_t hidden)
      : width(hidden),
        codes(OnDevice(size_t(rows * hidden))),
        scales(OnDevice(size_t(rows * hidden / 128 + 1) * sizeof(float))),
        in_order(OnDevice(size_t(rows * hidden) * 2)),
        rounded{
            .codes = codes.data(), .scales = static_cast<float*>(scales.data()), .width = hidden},
        ordered{.data = in_order.data()} {}

  // How many columns of `norm` a copy has wrongly.
  size_t Wrong(const std::vector<Bf16>& norm, bool of_codes) const {
    size_t wrong = 0;
    const auto code = FromDevice<uint8_t>(codes.data(), norm.size());
    const auto scale = FromDevice<float>(scales.data(), norm.size() / 128);
    const auto moved = FromDevice<Bf16>(in_order.data(), norm.size());
    for (size_t i = 0; i < norm.size(); ++i) {
      const float want = ToFloat(norm[i]);
      if (of_codes) {
        constexpr size_t kPlaces[4] = {0, 2, 1, 3};
        const float got = FromE4M3(code[i / 4 * 4 + kPlaces[i % 4]]) * scale[i / 128];
        const float off = std::fabs(want) * 0x1p-4f + scale[i / 128] * 0x1p-10f;
        wrong += std::fabs(got - want) <= off * 1.001f ? 0 : 1;
      } else {
        const size_t in = i % 32, at = in % 8 / 2 * 8 + in / 8 * 2 + in % 2;
        wrong += ToFloat(moved[i - in + at]) == want ? 0 : 1;
      }
    }
    return wrong;
  }

  int64_t width;
  Buffer codes, scales, in_order;
  RoundedRows rounded;
  OrderedRows ordered;
};

// Rank 0 has queued since `begin` what rank 1 has no part in: both end soon, and say so.
inline void ExpectVainWait(Rank& self,
                           Findings& findings,
                           std::chrono::steady_clock::time_point begin) {
  self.Wait();
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begin;
  if (taken.count() > 5) findings.Add("ended late");
  self.all->arrive_and_wait();
  if (self.ops->status().message() != "ranks: rank 0 waited for rank 1 in vain") {
    findings.Add(self.ops->status().message());
  }
}

}  // namespace baltoro::cuda::ranks_test
