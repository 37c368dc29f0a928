#pragma once

// Kernels of a few instructions, whose results are compared with plain arithmetic of the host: the
// same program says whether the emulator, or whoever wrote the arithmetic, has understood a card.

#include <cuda_runtime.h>

#include <bit>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "device/cuda/device_info.h"
#include "support/gpu_test.h"

namespace baltoro::instructions {

inline void Must(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  std::printf("%s: %s\n", what, cudaGetErrorString(error));
  std::exit(1);
}

using Words = std::vector<uint32_t>;

constexpr uint32_t kNotWritten = 0xDEADBEEFu;

// Words on the device.
class DeviceWords {
 public:
  explicit DeviceWords(const Words& words) : count_(words.size()) {
    Must(cudaMalloc(&data_, bytes() + 4), "cudaMalloc");
    Must(cudaMemcpy(data_, words.data(), bytes(), cudaMemcpyHostToDevice), "cudaMemcpy");
  }
  ~DeviceWords() { static_cast<void>(cudaFree(data_)); }
  DeviceWords(const DeviceWords&) = delete;
  DeviceWords& operator=(const DeviceWords&) = delete;

  uint32_t* data() const { return static_cast<uint32_t*>(data_); }
  Words Read() const {
    Words words(count_);
    Must(cudaDeviceSynchronize(), "the kernel");
    Must(cudaMemcpy(words.data(), data_, bytes(), cudaMemcpyDeviceToHost), "cudaMemcpy");
    return words;
  }

 private:
  size_t bytes() const { return count_ * sizeof(uint32_t); }
  size_t count_;
  void* data_ = nullptr;
};

// What `kernel` makes of `in`, as `count` words.
template <typename... More>
Words Run(void (*kernel)(const uint32_t*, uint32_t*, More...),
          dim3 grid,
          dim3 block,
          const Words& in,
          size_t count,
          const More&... more) {
  const DeviceWords from(in), to(Words(count, kNotWritten));
  kernel<<<grid, block>>>(from.data(), to.data(), more...);
  Must(cudaGetLastError(), "the launch");
  return to.Read();
}

// Any NaN is like any other.
inline bool SameFloat(uint32_t a, uint32_t b) {
  const auto is_nan = [](uint32_t bits) { return (bits & 0x7FFFFFFFu) > 0x7F800000u; };
  return a == b || (is_nan(a) && is_nan(b));
}

using Same = bool (*)(uint32_t, uint32_t);
inline bool SameWord(uint32_t a, uint32_t b) {
  return a == b;
}

// Word by word; says where the first differs, and how many do.
inline void ExpectWords(const std::string& what,
                        const Words& got,
                        const Words& want,
                        Same same = SameWord,
                        const std::function<std::string(size_t)>& at = nullptr) {
  size_t first = got.size(), wrong = 0;
  for (size_t n = 0; n < got.size() && n < want.size(); ++n) {
    if (same(got[n], want[n])) continue;
    if (wrong++ == 0) first = n;
  }
  GPU_EXPECT_EQ(got.size(), want.size());
  if (wrong == 0) return;
  char text[160];
  std::snprintf(text, sizeof(text), ": %zu of %zu differ, the first at %zu: 0x%08x, want 0x%08x",
                wrong, got.size(), first, got[first], want[first]);
  std::string said = what;
  said.append(text);
  if (at) said.append(" ").append(at(first));
  testing::ReportFailure(__FILE__, __LINE__, said);
}

// Words of all kinds: any bits, small ones, and those at the edges.
inline Words SomeWords(size_t count, uint32_t seed) {
  constexpr uint32_t kEdges[] = {0, 1, 2, 7, 31, 32, 33, 0x7FFFFFFFu, 0x80000000u, 0xFFFFFFFFu};
  std::mt19937 random(seed);
  Words words(count);
  for (uint32_t& word : words) {
    const uint32_t kind = random() % 4;
    word = kind == 0 ? kEdges[random() % std::size(kEdges)] : kind == 1 ? random() % 100 : random();
  }
  return words;
}

inline float Float(uint32_t bits) {
  return std::bit_cast<float>(bits);
}
inline uint32_t Bits(float value) {
  return std::bit_cast<uint32_t>(value);
}

}  // namespace baltoro::instructions

#define INSTRUCTION_TEST_MAIN()                                                     \
  int main(int argc, char** argv) {                                                 \
    return baltoro::testing::RunGpuCases(argc, argv, baltoro::UsableDeviceCount()); \
  }
