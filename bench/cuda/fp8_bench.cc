// The expert bank in FP8 with inputs rounded to e4m3: whole banks as one tensor rank of eight has
// them, and grouped products alone: few large groups ("contiguous"), and few rows of each expert
// ("masked"), where the bytes of the weights are the floor.
//
//   cuda_fp8_bench [rank|contiguous|masked|parts] [TOKENS..]
//
// `rank`: K2's layer, I 256 of 2048, 384 experts, top 8, routing drawn anew for each of the banks
// of a replay. Floor: bytes of the chosen experts over the read bandwidth of the same run.

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "card.h"
#include "device/buffer.h"
#include "device/cuda/cuda_memory.h"
#include "device/cuda/device_info.h"
#include "device/cuda/stream.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/experts/fp8_bank.h"
#include "ops/cuda/launch/card.h"
#include "ops/cuda/layout/product_layout.h"
#include "ops/cuda/linear/tiles/tiles.h"

namespace baltoro::bench {
namespace {

constexpr int64_t kHidden = 7168;

void Must(const Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", status.message().c_str());
  std::exit(1);
}

Buffer Allocate(int64_t bytes) {
  Result<Buffer> buffer = Buffer::Create(static_cast<size_t>(bytes), "benchmark", CudaMemory());
  Must(buffer.status());
  return std::move(buffer).value();
}

template <typename T>
Buffer OnDevice(const std::vector<T>& values) {
  Buffer buffer = Allocate(std::ssize(values) * static_cast<int64_t>(sizeof(T)));
  Must(CudaMemory().CopyIn(buffer.data(), values.data(), values.size() * sizeof(T)));
  return buffer;
}

// `count` matrices of random codes; scales of e4m3 bytes as f32 are small numbers.
struct Matrices {
  PackedMatrix matrix;
  Buffer memory;

  Matrices(int64_t count, int64_t n, int64_t k, const Stream& stream) {
    matrix = {.form = WeightForm::kFp8Block, .n = n, .k = k, .count = count};
    matrix.quantise_input = true;
    matrix.stride_bytes = cuda::PackedBytes(matrix.form, n, k);
    memory = Allocate(count * matrix.stride_bytes);
    matrix.data = memory.data();
    Must(FillRandomE4m3(memory.data(), memory.bytes(), 1, stream));
    const int64_t scales = cuda::LayoutOf(matrix.form, n, k).scales;
    for (int64_t i = 0; i < count; ++i) {
      char* at = static_cast<char*>(memory.data()) + i * matrix.stride_bytes + scales;
      const auto bytes = static_cast<size_t>(matrix.stride_bytes - scales);
      if (cudaMemsetAsync(at, 0x3c, bytes, stream.get()) != cudaSuccess) std::exit(1);
    }
  }
};

struct Bench {
  std::unique_ptr<cuda::RankState> rank = std::move(cuda::RankState::Create()).value();
  const Stream& stream = rank->stream();
  Arena scratch{CudaMemory()};
  double bandwidth = 0;

  OpContext Context() {
    scratch.Reset();
    return {.scratch = &scratch, .rank = rank.get()};
  }

  double Seconds(int copies, const std::function<void(int)>& one) {
    const auto record = [&] {
      for (int i = 0; i < copies; ++i) one(i);
      return Status();
    };
    Must(record());  // first uses allocate
    Must(stream.Synchronize());
    Result<double> seconds = MedianSeconds(stream, copies, 21, record);
    Must(seconds.status());
    return seconds.value();
  }

  // `copies` steps of `tokens` rows, each with ids of its own.
  void Rank(int64_t experts, int64_t top_k, int64_t intermediate, std::vector<int64_t> steps) {
    const Matrices gate_up(experts, 2 * intermediate, kHidden, stream);
    const Matrices down(experts, kHidden, intermediate, stream);
    const int64_t most = *std::max_element(steps.begin(), steps.end());
    const Buffer x = Allocate(most * kHidden * 2), out = Allocate(most * kHidden * 4);
    // As a norm before leaves them, in what takes them.
    const Buffer codes = Allocate(most * kHidden), scales = Allocate(most * kHidden / 32);
    Must(FillRandomE4m3(codes.data(), codes.bytes(), 5, stream));
    if (cudaMemsetAsync(scales.data(), 0x3c, scales.bytes(), stream.get()) != cudaSuccess) {
      std::exit(1);
    }
    cuda::RoundedRows rounded = {.codes = codes.data(),
                                 .scales = static_cast<float*>(scales.data()),
                                 .width = kHidden,
                                 .of = x.data(),
                                 .stride = kHidden};
    Must(FillRandomBf16(x.data(), static_cast<size_t>(most * kHidden), 2, stream));
    std::vector<int32_t> slots(static_cast<size_t>(experts)), order = slots;
    std::iota(slots.begin(), slots.end(), 0);
    std::iota(order.begin(), order.end(), 0);
    std::mt19937 random(1);
    for (const int64_t rows : steps) {
      const int copies = rows <= 64 ? 8 : 2;
      std::vector<int32_t> ids;
      size_t chosen_experts = 0;
      for (int i = 0; i < copies; ++i) {
        std::set<int32_t> chosen;
        for (int64_t t = 0; t < rows; ++t) {
          for (int64_t j = 0; j < top_k; ++j) {  // of a shuffle as much as is needed
            const auto from = j + static_cast<int64_t>(random() % (experts - j));
            std::swap(order[static_cast<size_t>(j)], order[static_cast<size_t>(from)]);
          }
          ids.insert(ids.end(), order.begin(), order.begin() + top_k);
          chosen.insert(order.begin(), order.begin() + top_k);
        }
        chosen_experts += chosen.size();
      }
      const Buffer device_ids = OnDevice(ids);
      const Buffer weights =
          OnDevice(std::vector<float>(static_cast<size_t>(rows * top_k), 0.125f));
      const double seconds = Seconds(copies, [&](int i) {
        int32_t* own = static_cast<int32_t*>(device_ids.data()) + i * rows * top_k;
        cuda::ExpertBankArgs args;
        args.out = TensorView(out.data(), DType::kF32, {rows, kHidden});
        args.x = TensorView(x.data(), DType::kBf16, {rows, kHidden});
        args.ids = TensorView(own, DType::kI32, {rows, top_k});
        args.weights = TensorView(weights.data(), DType::kF32, {rows, top_k});
        args.gate_up = gate_up.matrix;
        args.down = down.matrix;
        args.slot_of = slots;
        OpContext context = Context();
        rounded.rows = rows;
        const cuda::Beside with{.rounded = &rounded};
        context.beside = &with;
        cuda::ExpertBank(context, args);
      });
      const double mean = static_cast<double>(chosen_experts) / copies;
      const double bytes =
          mean * static_cast<double>(gate_up.matrix.stride_bytes + down.matrix.stride_bytes);
      const double flops = 6.0 * static_cast<double>(rows * top_k * kHidden * intermediate);
      std::printf("bank I %4ld T %5ld: %8.1f us, %5.1f experts, %5.0f GB/s %3.0f%%, %6.1f TF\n",
                  static_cast<long>(intermediate), static_cast<long>(rows), seconds * 1e6, mean,
                  bytes / seconds / 1e9, 100 * bytes / seconds / bandwidth, flops / seconds / 1e12);
    }
  }

  // Both products of `groups` experts with `rows` rows each.
  void Grouped(const char* what, int64_t groups, int64_t rows, int64_t intermediate) {
    const int64_t entries = groups * rows;
    // So many sets of weights that the L2 holds none, where that is what counts.
    const double set = static_cast<double>(groups * 3 * intermediate * kHidden);
    const auto sets = static_cast<int64_t>(std::clamp(400e6 / set, 1.0, 8.0));
    const Matrices gate_up(groups * sets, 2 * intermediate, kHidden, stream);
    const Matrices down(groups * sets, kHidden, intermediate, stream);
    const Buffer x = Allocate(entries * kHidden), middle = Allocate(entries * intermediate);
    const Buffer out = Allocate(entries * kHidden * 2);
    Must(FillRandomE4m3(x.data(), x.bytes(), 3, stream));
    Must(FillRandomE4m3(middle.data(), middle.bytes(), 4, stream));
    const Buffer x_scales = Allocate(entries * kHidden / 32), scales = Allocate(entries * 64 * 4);
    if (cudaMemsetAsync(x_scales.data(), 0x3c, x_scales.bytes(), stream.get()) != cudaSuccess ||
        cudaMemsetAsync(scales.data(), 0x3c, scales.bytes(), stream.get()) != cudaSuccess) {
      std::exit(1);
    }
    std::vector<int32_t> ids;
    for (int64_t t = 0; t < entries; ++t) ids.push_back(static_cast<int32_t>(t % groups));
    const Buffer device_ids = OnDevice(ids);
    const Buffer weights = OnDevice(std::vector<float>(static_cast<size_t>(entries), 0.5f));
    const Buffer num_tiles = Allocate(256), order = Allocate(entries * 4),
                 ranks = Allocate(entries * 4), starts = Allocate(8192), counters = Allocate(256);
    const Buffer tiles = Allocate((groups + entries / 16) * 16);
    cuda::MoeRows route;
    route.ids = static_cast<const int32_t*>(device_ids.data());
    route.experts = route.slots = static_cast<int32_t>(groups);
    route.tokens = static_cast<int32_t>(entries);
    route.top_k = 1;
    route.tile_rows = cuda::kFp8TilesRows;
    route.num_tiles = static_cast<int32_t*>(num_tiles.data());
    route.tiles = static_cast<cuda::MoeTile*>(tiles.data());
    route.starts = static_cast<cuda::MoeStart*>(starts.data());
    route.order = static_cast<int32_t*>(order.data());
    route.ranks = static_cast<int32_t*>(ranks.data());
    route.sort = cuda::ChooseExpertsSort(entries, groups);
    Must(cuda::LaunchRowsByExpert(route, rank->launches()));
    Must(stream.Synchronize());
    const auto part = [&](const Matrices& all, int64_t i) {
      PackedMatrix w = all.matrix.at(i % sets * groups);
      w.count = groups;
      return w;
    };
    cuda::Fp8Product product{
        .w = {},
        .gated = true,
        .x = x.data(),
        .x_row_bytes = kHidden,
        .x_scales = static_cast<const float*>(x_scales.data()),
        .out = middle.data(),
        .out_scales = static_cast<float*>(scales.data()),
        .out_stride = intermediate,
        .rows = entries,
        .tiles = route.tiles,
        .num_tiles = route.num_tiles,
        .starts = route.starts,
        .tiles_max = static_cast<int32_t>(groups + entries / cuda::kFp8TilesRows),
        .order = route.order,
        .top_k = 1,
        .gather = false,
        .route_weights = static_cast<const float*>(weights.data())};
    const auto measure = [&](const char* how, const Matrices& all) {
      const double seconds = Seconds(static_cast<int>(std::max<int64_t>(2, sets)), [&](int copy) {
        product.w = part(all, copy);
        if (std::strcmp(how, "streaming") == 0) {
          // What a bank's routing does before each product.
          if (cudaMemsetAsync(counters.data(), 0, 4, stream.get()) != cudaSuccess) std::exit(1);
          cuda::LaunchFp8Stream(product, route.blocks, rank->launches());
        } else {
          cuda::LaunchFp8Tiles(product, rank->launches());
        }
      });
      const auto n = static_cast<double>(all.matrix.n), k = static_cast<double>(all.matrix.k);
      const double bytes = static_cast<double>(groups * all.matrix.stride_bytes);
      std::printf(
          "%s %s %2ld x %5ld rows, n %5.0f k %5.0f: %8.1f us, %5.0f GB/s %3.0f%%, %6.1f TF\n", what,
          how, static_cast<long>(groups), static_cast<long>(rows), n, k, seconds * 1e6,
          bytes / seconds / 1e9, 100 * bytes / seconds / bandwidth,
          2 * n * k * static_cast<double>(entries) / seconds / 1e12);
    };
    const bool few = rows <= 64;
    for (int i = 0; i < (few ? 4 : 2); ++i) {
      const bool gated = i % 2 == 0, streaming = i >= 2;
      if (i == 2) {
        route.tile_rows = cuda::kFp8StreamRows;
        route.blocks =
            std::min(cuda::kStreamingBlocks * cuda::ThisCard().multiprocessors, cuda::kMaxBlocks);
        route.own_parts = cuda::kFp8StreamDeal.own_parts;
        route.counters = static_cast<uint32_t*>(counters.data());
        product.taken = route.counters;
        Must(cuda::LaunchRowsByExpert(route, rank->launches()));
        product.gated = true;
        product.x = x.data();
        product.x_row_bytes = kHidden;
        product.x_scales = static_cast<const float*>(x_scales.data());
        product.out = out.data();  // f32
        product.out_stride = intermediate;
        product.scatter = false;
      }
      if (!gated) {
        product.gated = false;
        product.x = middle.data();
        product.x_row_bytes = intermediate;
        product.x_scales = static_cast<const float*>(scales.data());
        product.out = out.data();
        product.out_stride = kHidden;
        product.scatter = true;
      }
      measure(streaming ? "streaming" : "grouped", gated ? gate_up : down);
    }
    if (few) return;
    // The first product as it is.
    product.gated = product.scatter = false;
    product.route_weights = nullptr;
    product.x = x.data();
    product.x_row_bytes = kHidden;
    product.x_scales = static_cast<const float*>(x_scales.data());
    product.out = out.data();
    product.out_stride = 2 * intermediate;
    measure("plain", gate_up);
  }
};

int Run(int argc, char** argv) {
  const std::string what = argc > 1 ? argv[1] : "";
  std::vector<int64_t> tokens;
  for (int i = 2; i < argc; ++i) tokens.push_back(std::atoll(argv[i]));
  Result<DeviceInfo> info = CurrentDeviceInfo();
  Must(info.status());
  Bench bench;
  {
    const Buffer memory = Allocate(int64_t{4} << 30);
    Must(FillRandomBf16(memory.data(), memory.bytes() / 2, 1, bench.stream));
    Result<double> bandwidth = ReadBandwidth(memory.data(), memory.bytes(), bench.stream);
    Must(bandwidth.status());
    bench.bandwidth = bandwidth.value();
  }
  std::printf("%s, read bandwidth %.0f GB/s\n", info.value().name.c_str(), bench.bandwidth / 1e9);
  if (what.empty() || what == "contiguous") {
    int64_t left = tokens.empty() ? 4 : tokens[0];  // of the cases
    for (const auto& [groups, rows] :
         {std::pair<int64_t, int64_t>{4, 8192}, {8, 4096}, {32, 512}, {96, 85}}) {
      if (left-- > 0) bench.Grouped("contiguous", groups, rows, 2048);
    }
  }
  if (what.empty() || what == "parts") {
    bench.Grouped("rank", 384, 85, 256);  // the two products of a bank of 4,096 tokens
  }
  if (what.empty() || what == "masked") {
    for (const auto& [groups, rows] :
         {std::pair<int64_t, int64_t>{8, 16}, {16, 16}, {16, 32}, {16, 48}, {4, 256}, {1, 1024}}) {
      bench.Grouped("masked", groups, rows, 2048);
    }
  }
  if (what.empty() || what == "rank") {
    if (tokens.empty()) tokens = {1, 4, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192};
    bench.Rank(384, 8, 256, tokens);
  }
  return 0;
}

}  // namespace
}  // namespace baltoro::bench

int main(int argc, char** argv) {
  return baltoro::bench::Run(argc, argv);
}
