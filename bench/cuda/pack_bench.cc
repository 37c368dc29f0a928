// How fast the host packs matrices into the GPU's layouts, GB of packed bytes a second, by one
// thread and by all at once: loading is to keep up with PCIe (about 50 GB/s). Needs no GPU.
//
//   cuda_pack_bench

#include <algorithm>
#include <barrier>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <thread>
#include <vector>

#include "ops/cuda/cuda_ops.h"

namespace baltoro::cuda {
namespace {

constexpr int64_t kRows = 2048, kColumns = 7168;  // an expert of Kimi K2
constexpr int kRepeats = 12;

// One thread's matrix, packed over and over in pieces of two megabytes or so. Gives the seconds.
double PackAll(WeightForm form, std::barrier<>& together) {
  std::vector<uint32_t> values(kRows * kColumns), scales(kRows * kColumns / 32);
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<uint32_t>(i) * 2654435761u & 0xBF7FBF7F;
  }
  std::fill(scales.begin(), scales.end(), 0x3C003C00u);
  std::vector<char> packed(static_cast<size_t>(PackedBytes(form, kRows, kColumns)));
  constexpr int64_t kPiece = 256;
  together.arrive_and_wait();
  const auto start = std::chrono::steady_clock::now();
  for (int repeat = 0; repeat < kRepeats; ++repeat) {
    for (int64_t row = 0; row < kRows; row += kPiece) {
      PackRows(form, packed.data(), kRows, kColumns, row,
               {.form = form,
                .rows = kPiece,
                .k = kColumns,
                .values = values.data(),
                .scales = scales.data(),
                .bias = nullptr});
    }
  }
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

double Rate(WeightForm form, unsigned threads) {
  std::barrier<> together(threads);
  std::vector<double> seconds(threads);
  std::vector<std::thread> all;
  for (unsigned i = 0; i < threads; ++i) {
    all.emplace_back([&, i] { seconds[i] = PackAll(form, together); });
  }
  for (std::thread& one : all) one.join();
  const double bytes = static_cast<double>(PackedBytes(form, kRows, kColumns)) * kRepeats * threads;
  return bytes / *std::max_element(seconds.begin(), seconds.end()) / 1e9;
}

}  // namespace
}  // namespace baltoro::cuda

int main() {
  using baltoro::WeightForm;
  const unsigned threads = std::max(1u, std::thread::hardware_concurrency());
  for (const auto& [name, form] :
       {std::pair{"bf16", WeightForm::kBf16}, std::pair{"fp8", WeightForm::kFp8Block},
        std::pair{"int4 groups", WeightForm::kInt4Group},
        std::pair{"int4 per output", WeightForm::kInt4}, std::pair{"int8", WeightForm::kInt8}}) {
    std::printf("%-16s 1 thread %6.2f GB/s, %u threads %7.2f GB/s\n", name,
                baltoro::cuda::Rate(form, 1), threads, baltoro::cuda::Rate(form, threads));
  }
}
