#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "device/buffer.h"
#include "doctor/gather.h"

namespace baltoro {
namespace {

using Clock = std::chrono::steady_clock;

// Beyond the caches of today, also beyond a core's share of the last one.
constexpr size_t kBytesOfThread = size_t{64} << 20;
constexpr size_t kBytesMax = size_t{8} << 30;
constexpr double kSeconds = 0.5;
constexpr int kWindows = 5;
// 1 MiB, of which a thread's memory is a multiple.
constexpr size_t kWordsOfChunk = size_t{1} << 17;

// Eight sums, so that loads and not additions are waited for. Pointers, whose accesses are not
// checked, which would cost more than the loads.
uint64_t Sum(const uint64_t* words, size_t count) {
  uint64_t sums[8] = {};
  for (size_t i = 0; i + 8 <= count; i += 8) {
    for (size_t k = 0; k < 8; ++k) sums[k] += words[i + k];
  }
  uint64_t all = 0;
  for (const uint64_t sum : sums) all += sum;
  return all;
}

}  // namespace

double MeasureReadRate(int threads) {
  const size_t chunk = kWordsOfChunk * sizeof(uint64_t);
  const size_t most = std::min(kBytesOfThread, kBytesMax / static_cast<size_t>(threads));
  const size_t bytes = std::max(chunk, most / chunk * chunk);
  if (bytes * static_cast<size_t>(threads) > AvailableHostMemory() / 2) return -1;
  std::atomic<int> ready{0};
  std::atomic<uint64_t> read{0}, kept{0};
  std::atomic<bool> stop{false};
  double best = 0;
  {
    std::vector<std::jthread> readers;
    for (int i = 0; i < threads; ++i) {
      readers.emplace_back([&] {
        const std::vector<uint64_t> words(bytes / sizeof(uint64_t), 1);
        ++ready;
        while (ready < threads) std::this_thread::yield();
        for (size_t at = 0; !stop; at = (at + kWordsOfChunk) % words.size()) {
          kept += Sum(words.data() + at, kWordsOfChunk);
          read += kWordsOfChunk * sizeof(uint64_t);
        }
      });
    }
    while (ready < threads) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    // The best of some moments: other programs come and go.
    for (int i = 0; i < kWindows; ++i) {
      const uint64_t before = read;
      const auto start = Clock::now();
      std::this_thread::sleep_for(std::chrono::duration<double>(kSeconds / kWindows));
      const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
      best = std::max(best, static_cast<double>(read - before) / 1e9 / seconds);
    }
    stop = true;
  }
  return best;
}

}  // namespace baltoro
