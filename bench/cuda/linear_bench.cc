// Products of a layer as one rank of eight has them: each with weights that are not in the L2, a
// graph of products one after the other, so that what a launch costs beyond its bytes is seen as a
// step sees it. Floor: the bytes of the matrix (of the experts chosen) over the read bandwidth of
// the same run; for many rows the card's bf16 rate.
//
//   cuda_linear_bench [linear|codes|bank] [FORM] [ROWS]    FORM bf16, fp8 (quantised input), int8,
//   int4
//   cuda_linear_bench plans    bf16 products of hundreds of rows in every plan (bf16_rows1024.h)
//
// codes: as linear, but for fp8 a norm before has written the codes of the rows.
// With ROWS products of so many only, and beside them (fp8) the rounding of their input alone.

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
#include "ops/cuda/layout/product_layout.h"
#include "ops/cuda/linear/bf16_rows1024.h"
#include "ops/cuda/linear/tiles/tiles.h"

namespace baltoro::bench {
namespace {

constexpr int64_t kRowsMax = 8192;
constexpr double kFlushBytes = 400e6;  // read by other products before the same weights come again

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

struct FormCase {
  const char* name;
  WeightForm form;
};
constexpr FormCase kForms[] = {{"bf16", WeightForm::kBf16},
                               {"fp8", WeightForm::kFp8Block},
                               {"int8", WeightForm::kInt8},
                               {"int4", WeightForm::kInt4}};

// `count` matrices of random codes; scales of e4m3 bytes as f32 are small numbers.
struct Matrices {
  PackedMatrix matrix;
  Buffer memory;

  Matrices(WeightForm form, int64_t count, int64_t n, int64_t k, const Stream& stream) {
    matrix = {.form = form, .n = n, .k = k, .count = count};
    matrix.quantise_input = form == WeightForm::kFp8Block;
    matrix.stride_bytes = cuda::PackedBytes(form, n, k);
    memory = Allocate(count * matrix.stride_bytes);
    matrix.data = memory.data();
    if (form == WeightForm::kBf16) {
      Must(FillRandomBf16(memory.data(), memory.bytes() / 2, 1, stream));
      return;
    }
    Must(FillRandomE4m3(memory.data(), memory.bytes(), 1, stream));
    const int64_t scales = cuda::LayoutOf(form, n, k).scales;
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
  int64_t only_rows = 0;
  bool coded = false;

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

  void Linear(const FormCase& form, int64_t n, int64_t k, DType out_type) {
    const double bytes = static_cast<double>(cuda::PackedBytes(form.form, n, k));
    const int copies = static_cast<int>(std::clamp(kFlushBytes / bytes, 2.0, 64.0));
    const Matrices w(form.form, copies, n, k, stream);
    const Buffer x = Allocate(kRowsMax * k * 2), out = Allocate(kRowsMax * n * 4);
    Must(FillRandomBf16(x.data(), static_cast<size_t>(kRowsMax * k), 2, stream));
    const Buffer codes = Allocate(kRowsMax * k), scales = Allocate(kRowsMax * (k / 32 + 4));
    Must(FillRandomE4m3(codes.data(), codes.bytes(), 5, stream));
    if (cudaMemsetAsync(scales.data(), 0x3c, scales.bytes(), stream.get()) != cudaSuccess) {
      std::exit(1);
    }
    cuda::RoundedRows rounded = {.codes = codes.data(),
                                 .scales = static_cast<float*>(scales.data()),
                                 .width = k,
                                 .of = x.data(),
                                 .stride = k};
    std::printf("%-5s [%5ld, %5ld]", form.name, static_cast<long>(n), static_cast<long>(k));
    const std::vector<int64_t> all_rows = {1, 4, 16, 32, 64, 128, 256, 512, 1024, 2048};
    for (const int64_t rows : only_rows > 0 ? std::vector{only_rows} : all_rows) {
      const double seconds = Seconds(copies, [&](int i) {
        OpContext context = Context();
        rounded.rows = rows;
        const cuda::Beside with{.rounded = &rounded};
        if (coded && form.form == WeightForm::kFp8Block) context.beside = &with;
        cuda::Linear(context, TensorView(out.data(), out_type, {rows, n}),
                     TensorView(x.data(), DType::kBf16, {rows, k}), w.matrix.at(i));
      });
      if (rows <= 64) {
        std::printf(" | %4ld %7.2f %5.0f %3.0f%%", static_cast<long>(rows), seconds * 1e6,
                    bytes / seconds / 1e9, 100 * bytes / seconds / bandwidth);
      } else {
        std::printf(" | %4ld %7.2f %4.0f TF", static_cast<long>(rows), seconds * 1e6,
                    2.0 * static_cast<double>(rows * n * k) / seconds / 1e12);
      }
      if (only_rows == 0 || !w.matrix.quantise_input) continue;
      const double rounding = Seconds(copies, [&](int i) {
        cuda::QuantiseRows(Context(), {.x = x.data(), .stride = k, .rows = rows, .k = k},
                           w.matrix.at(i));
      });
      std::printf(", rounding %.2f", rounding * 1e6);
    }
    std::printf("\n");
  }

  // Every plan of the kernel of hundreds of rows: the fastest, and the one that is chosen.
  void Plans(int64_t n, int64_t k) {
    const double bytes = static_cast<double>(n * k) * 2;
    const int copies = static_cast<int>(std::clamp(400e6 / bytes, 2.0, 64.0));
    const Matrices w(WeightForm::kBf16, copies, n, k, stream);
    const Buffer x = Allocate(1024 * k * 2), out = Allocate(1024 * n * 4);
    Must(FillRandomBf16(x.data(), static_cast<size_t>(1024 * k), 2, stream));
    for (const int64_t rows : {96, 128, 192, 256, 512, 1024}) {
      const cuda::Bf16Rows1024Plan chosen = cuda::PlanBf16Rows1024({.rows = rows, .k = k, .n = n});
      std::vector<std::pair<double, std::string>> times;
      for (const int columns : {64, 96, 128}) {
        for (int parts = 1; parts <= std::min<int64_t>(8, (k + 63) / 64); ++parts) {
          for (int tiles = 1; tiles <= 2 && tiles * parts <= 8; ++tiles) {
            if (tiles == 2 && rows <= 128) continue;
            const cuda::Bf16Rows1024Plan plan{.columns = columns, .parts = parts, .tiles = tiles};
            const double seconds = Seconds(copies, [&](int i) {
              cuda::Bf16Rows1024Product(
                  Context(), plan, TensorView(out.data(), DType::kBf16, {rows, n}),
                  TensorView(x.data(), DType::kBf16, {rows, k}), w.matrix.at(i));
            });
            const bool is_chosen =
                columns == chosen.columns && parts == chosen.parts && tiles == chosen.tiles;
            times.emplace_back(seconds * 1e6, std::to_string(columns) + "/" +
                                                  std::to_string(parts) + "/" +
                                                  std::to_string(tiles) + (is_chosen ? "*" : ""));
          }
        }
      }
      std::sort(times.begin(), times.end());
      std::printf("[%5ld, %5ld] rows %4ld:", static_cast<long>(n), static_cast<long>(k),
                  static_cast<long>(rows));
      for (size_t i = 0; i < times.size(); ++i) {
        if (i < 8 || times[i].second.back() == '*') {
          std::printf(" %s %.2f", times[i].second.c_str(), times[i].first);
        }
      }
      std::printf("\n");
    }
  }

  void Bank(const FormCase& form, int64_t intermediate) {
    constexpr int64_t kHidden = 7168, kExperts = 384, kTopK = 8;
    const Matrices gate_up(form.form, kExperts, 2 * intermediate, kHidden, stream);
    const Matrices down(form.form, kExperts, kHidden, intermediate, stream);
    const Buffer x = Allocate(kRowsMax * kHidden * 2), out = Allocate(kRowsMax * kHidden * 4);
    Must(FillRandomBf16(x.data(), static_cast<size_t>(kRowsMax * kHidden), 2, stream));
    std::vector<int32_t> slots(kExperts), order(kExperts);
    std::iota(slots.begin(), slots.end(), 0);
    std::iota(order.begin(), order.end(), 0);
    std::mt19937 random(1);
    for (const int64_t rows : {1, 4, 16, 64, 256, 1024, 4096}) {
      const int copies = rows <= 64 ? 8 : 2;
      std::vector<int32_t> ids;
      size_t experts = 0;
      for (int i = 0; i < copies; ++i) {
        std::set<int32_t> chosen;
        for (int64_t t = 0; t < rows; ++t) {
          std::shuffle(order.begin(), order.end(), random);
          ids.insert(ids.end(), order.begin(), order.begin() + kTopK);
          chosen.insert(order.begin(), order.begin() + kTopK);
        }
        experts += chosen.size();
      }
      const Buffer device_ids = Allocate(std::ssize(ids) * 4);
      Must(CudaMemory().CopyIn(device_ids.data(), ids.data(), ids.size() * 4));
      const std::vector<float> ones(static_cast<size_t>(rows * kTopK), 0.125f);
      const Buffer weights = Allocate(rows * kTopK * 4);
      Must(CudaMemory().CopyIn(weights.data(), ones.data(), ones.size() * 4));
      const double seconds = Seconds(copies, [&](int i) {
        int32_t* own = static_cast<int32_t*>(device_ids.data()) + i * rows * kTopK;
        cuda::ExpertBank(Context(),
                         {.out = TensorView(out.data(), DType::kF32, {rows, kHidden}),
                          .x = TensorView(x.data(), DType::kBf16, {rows, kHidden}),
                          .ids = TensorView(own, DType::kI32, {rows, kTopK}),
                          .weights = TensorView(weights.data(), DType::kF32, {rows, kTopK}),
                          .gate_up = gate_up.matrix,
                          .down = down.matrix,
                          .slot_of = slots});
      });
      const double bytes =
          static_cast<double>(experts) / copies *
          static_cast<double>(gate_up.matrix.stride_bytes + down.matrix.stride_bytes);
      const double flops = 6.0 * static_cast<double>(rows * kTopK * kHidden * intermediate);
      std::printf(
          "bank %-5s I %4ld T %5ld: %8.1f us, %5.1f experts, %5.0f GB/s %3.0f%%, %6.1f TF\n",
          form.name, static_cast<long>(intermediate), static_cast<long>(rows), seconds * 1e6,
          static_cast<double>(experts) / copies, bytes / seconds / 1e9,
          100 * bytes / seconds / bandwidth, flops / seconds / 1e12);
    }
  }
};

int Run(int argc, char** argv) {
  const std::string what = argc > 1 ? argv[1] : "", form_name = argc > 2 ? argv[2] : "";
  Result<DeviceInfo> info = CurrentDeviceInfo();
  Must(info.status());
  Bench bench;
  bench.only_rows = argc > 3 ? std::clamp<int64_t>(std::atoll(argv[3]), 0, kRowsMax) : 0;
  bench.coded = what == "codes";
  {
    const Buffer memory = Allocate(int64_t{4} << 30);
    Must(FillRandomBf16(memory.data(), memory.bytes() / 2, 1, bench.stream));
    Result<double> bandwidth = ReadBandwidth(memory.data(), memory.bytes(), bench.stream);
    Must(bandwidth.status());
    bench.bandwidth = bandwidth.value();
  }
  std::printf("%s, read bandwidth %.0f GB/s\n", info.value().name.c_str(), bench.bandwidth / 1e9);
  if (what == "plans") {
    for (const auto& [n, k] : {std::pair<int64_t, int64_t>{896, 7168}, {1536, 1536}}) {
      bench.Plans(n, k);
    }
    return 0;
  }
  for (const FormCase& form : kForms) {
    if (!form_name.empty() && form_name != form.name) continue;
    if (what != "bank") {
      std::printf("rows, us, GB/s, of read bandwidth (or TFLOP/s)\n");
      for (const auto& [n, k] : {std::pair<int64_t, int64_t>{2112, 7168},
                                 {1536, 1536},
                                 {7168, 1024},
                                 {512, 7168},
                                 {7168, 256},
                                 {20480, 7168},
                                 {384, 7168}}) {
        bench.Linear(form, n, k, n == 384 || n == 20480 ? DType::kF32 : DType::kBf16);
      }
    }
    if (what.empty() || what == "bank") bench.Bank(form, 256);
  }
  return 0;
}

}  // namespace
}  // namespace baltoro::bench

int main(int argc, char** argv) {
  return baltoro::bench::Run(argc, argv);
}
