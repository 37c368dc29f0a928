#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>
#include <vector>

#include "device/buffer.h"
#include "doctor/gather.h"

namespace baltoro {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kBytesOfThread = size_t{64}
                                  << 20;  // beyond the caches of today, with its share of L3
constexpr size_t kBytesMax = size_t{8} << 30;
constexpr double kSeconds = 0.5;

// Eight sums, so that loads and not additions are waited for.
uint64_t Sum(const std::vector<uint64_t>& words) {
  const uint64_t* data = words.data();  // whose accesses are not checked, which would cost more
  const size_t count = words.size() / 8 * 8;
  uint64_t sums[8] = {};
  for (size_t i = 0; i < count; i += 8) {
    for (size_t k = 0; k < 8; ++k) sums[k] += data[i + k];
  }
  uint64_t all = 0;
  for (const uint64_t sum : sums) all += sum;
  return all;
}

}  // namespace

double MeasureReadRate(int threads) {
  const size_t bytes = std::min(kBytesOfThread, kBytesMax / static_cast<size_t>(threads));
  if (bytes * static_cast<size_t>(threads) > AvailableHostMemory() / 2) return -1;
  std::atomic<int> ready{0};
  std::atomic<uint64_t> read{0}, kept{0};
  std::atomic<bool> stop{false};
  double seconds = 0, came = 0;
  {
    std::vector<std::jthread> readers;
    for (int i = 0; i < threads; ++i) {
      readers.emplace_back([&] {
        const std::vector<uint64_t> words(bytes / sizeof(uint64_t), 1);
        ++ready;
        while (ready < threads) std::this_thread::yield();
        while (!stop) {
          kept += Sum(words);
          read += bytes;
        }
      });
    }
    while (ready < threads) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    const uint64_t before = read;
    const auto start = Clock::now();
    std::this_thread::sleep_for(std::chrono::duration<double>(kSeconds));
    seconds = std::chrono::duration<double>(Clock::now() - start).count();
    came = static_cast<double>(read - before);
    stop = true;
  }
  return came / 1e9 / seconds;
}

}  // namespace baltoro
