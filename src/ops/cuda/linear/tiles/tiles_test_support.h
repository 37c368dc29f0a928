#pragma once

// For the tests of products: random matrices as a checkpoint stores them, packed for the GPU and
// for the reference, rows on the device, and a context.

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "device/buffer.h"
#include "device/cuda/cuda_memory.h"
#include "device/cuda/stream.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/launch_table/forms.h"
#include "support/gpu_test.h"
#include "tensor/dtype.h"

namespace baltoro::cuda::product_test {

inline constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

inline void Fail(const std::string& what) {
  ::baltoro::testing::ReportFailure(__FILE__, __LINE__, what);
}

template <typename T>
Buffer OnDevice(const std::vector<T>& values) {
  Result<Buffer> buffer = Buffer::Create(values.size() * sizeof(T) + 256, "test", CudaMemory());
  BT_CHECK(buffer.ok());
  BT_CHECK(cudaMemcpy(buffer.value().data(), values.data(), values.size() * sizeof(T),
                      cudaMemcpyHostToDevice) == cudaSuccess);
  // From pageable memory the call may return before the last bytes have arrived.
  BT_CHECK(cudaDeviceSynchronize() == cudaSuccess);
  return std::move(buffer).value();
}

template <typename T>
std::vector<T> FromDevice(const void* data, size_t count) {
  std::vector<T> values(count);
  BT_CHECK(cudaMemcpy(values.data(), data, count * sizeof(T), cudaMemcpyDeviceToHost) ==
           cudaSuccess);
  return values;
}

struct Context {
  // Time is short where a tool watches accesses.
  Context() { rank->watched = ::baltoro::testing::TimeIsShort(); }

  std::unique_ptr<RankState> rank = std::move(RankState::Create()).value();
  Arena scratch{CudaMemory()};
  OpContext get() {
    scratch.Reset();
    return {.scratch = &scratch, .rank = rank.get()};
  }
  void Wait() {
    const Status status = rank->stream().Synchronize();
    if (!status.ok()) Fail(status.message());
    BT_CHECK(status.ok());
    ::baltoro::testing::StepDone();
  }
};

// `count` random matrices [n, k], results of rows near 1 near 1. Packed in `parts` ranges of rows,
// the last first.
struct Weights {
  PackedMatrix device, reference;
  Buffer device_memory;
  std::vector<char> reference_memory;

  Weights(uint32_t seed,
          const FormCase& form,
          int64_t count,
          int64_t n,
          int64_t k,
          std::vector<int64_t> starts = {0}) {
    std::mt19937 random(seed);
    device = {.form = form.form, .n = n, .k = k, .count = count};
    device.quantise_input = form.quantise_input;
    if (form.form == WeightForm::kInt8Static) {
      device.input_scale = 0.031f;
      device.input_offset = -7;
    }
    reference = device;
    device.stride_bytes = PackedBytes(form.form, n, k);
    BT_CHECK(device.stride_bytes % 256 == 0);
    reference.stride_bytes = ReferenceOps().packed_bytes(form.form, n, k);
    // What is not written stays NaN, or codes that count.
    std::vector<char> packed(static_cast<size_t>(count * device.stride_bytes), '\x7f');
    reference_memory.resize(static_cast<size_t>(count * reference.stride_bytes));
    for (int64_t i = 0; i < count; ++i) {
      for (size_t s = starts.size(); s-- > 0;) {
        const int64_t begin = starts[s], end = s + 1 < starts.size() ? starts[s + 1] : n;
        PackPart(random, i, begin, end - begin, packed);
      }
    }
    device_memory = OnDevice(packed);
    device.data = device_memory.data();
    reference.data = reference_memory.data();
  }

 private:
  void PackPart(
      std::mt19937& random, int64_t i, int64_t begin, int64_t rows, std::vector<char>& packed) {
    const WeightForm form = device.form;
    const int64_t k = device.k;
    const auto even = [&] { return 0.5f + static_cast<float>(random() % 1024) / 1024; };
    const bool nibbles = form == WeightForm::kInt4Group || form == WeightForm::kInt4;
    StoredRows stored = {.form = form, .rows = rows, .k = k};
    std::vector<char> values(static_cast<size_t>(IsPlain(form) ? rows * k * SizeOf(PlainType(form))
                                                 : nibbles     ? (rows + 1) / 2 * k
                                                               : rows * k));
    std::vector<float> scales;
    std::vector<Bf16> small_scales;
    std::vector<int32_t> biases;
    const float size = 1 / std::sqrt(static_cast<float>(k));
    if (IsPlain(form)) {
      for (int64_t at = 0; at < rows * k; ++at) {
        const float value = (static_cast<float>(random() % 65536) / 32768 - 1) * 1.7f * size;
        if (form == WeightForm::kF32) {
          std::memcpy(&values[static_cast<size_t>(at * 4)], &value, 4);
        } else {
          const Bf16 bf16 = ToBf16(value);
          std::memcpy(&values[static_cast<size_t>(at * 2)], &bf16, 2);
        }
      }
    } else {
      for (char& value : values) {
        value = static_cast<char>(random());
        // Nothing of 2 or more, so that subnormal codes count.
        if (form == WeightForm::kFp8Block) value = static_cast<char>(value & 0xBF);
      }
    }
    const float scale = size / (form == WeightForm::kFp8Block ? 0.6f : nibbles ? 4.6f : 74.0f);
    if (form == WeightForm::kInt4Group) {
      for (int64_t at = 0; at < rows * ((k + 31) / 32); ++at) {
        small_scales.push_back(ToBf16(scale * even()));
      }
      stored.scales = small_scales.data();
    } else {
      const int64_t numbers =
          form == WeightForm::kFp8Block ? (rows + 127) / 128 * ((k + 127) / 128) : rows;
      for (int64_t at = 0; at < numbers; ++at) scales.push_back(scale * even());
      stored.scales = scales.data();
    }
    if (form == WeightForm::kInt8Static) {
      for (int64_t at = 0; at < rows; ++at) {
        biases.push_back(static_cast<int32_t>(random() % 20000) - 10000);
      }
      stored.bias = biases.data();
    }
    stored.values = values.data();
    PackRows(form, packed.data() + i * device.stride_bytes, device.n, k, begin, stored);
    ReferenceOps().pack_rows(form, reference_memory.data() + i * reference.stride_bytes, device.n,
                             k, begin, stored);
  }
};

// Rows [rows, columns] of bf16 with `gap` elements of NaN between them and a row of NaN behind.
struct Rows {
  std::vector<Bf16> host;
  Buffer memory;
  int64_t rows, columns, stride;

  Rows(uint32_t seed, int64_t rows_, int64_t columns_, int64_t gap, int64_t nan_row = -1)
      : rows(rows_), columns(columns_), stride(columns_ + gap) {
    std::mt19937 random(seed);
    host.assign(static_cast<size_t>((rows + 1) * stride), ToBf16(kNaN));
    for (int64_t t = 0; t < rows; ++t) {
      for (int64_t c = 0; c < columns; ++c) {
        // Rows of different sizes; a few large numbers.
        float value = (static_cast<float>(random() % 65536) / 32768 - 1) *
                      (1 + 0.25f * static_cast<float>(t % 4));
        if (random() % 61 == 0) value *= 6;
        host[static_cast<size_t>(t * stride + c)] = ToBf16(t == nan_row && c == 3 ? kNaN : value);
      }
    }
    memory = OnDevice(host);
  }
  TensorView View(void* data) const {
    TensorView view(data, DType::kBf16, {rows, columns});
    view.stride[0] = stride;
    return view;
  }
  TensorView device() const { return View(memory.data()); }
  TensorView reference() const { return View(const_cast<Bf16*>(host.data())); }
};

// Compares rows of two arrays [rows, columns]; `tolerance` counts root mean squares of the wanted
// row or of all numbers, whichever is more; `relative` magnitudes of each number. The root mean
// square of all errors is held to a fifth of that.
inline void ExpectNear(const std::string& what,
                       const std::vector<float>& got,
                       const std::vector<float>& want,
                       int64_t columns,
                       float tolerance,
                       float relative,
                       float typical_tolerance) {
  double worst = 0, all = 0, errors = 0;
  int64_t bad = 0, first = -1;
  for (const float value : want) all += std::isnan(value) ? 0 : double{value} * value;
  all /= static_cast<double>(std::max<size_t>(1, want.size()));
  for (int64_t begin = 0; begin < std::ssize(want); begin += columns) {
    double squares = 0;
    for (int64_t c = 0; c < columns; ++c) squares += double{want[begin + c]} * want[begin + c];
    const double size = std::sqrt(std::max(all, squares / static_cast<double>(columns)));
    for (int64_t at = begin; at < begin + columns; ++at) {
      if (std::isnan(want[at]) && std::isnan(got[at])) continue;
      const double error = std::abs(double{got[at]} - want[at]);
      const double allowed = tolerance * size + relative * std::abs(want[at]);
      worst = std::max(worst, error / size);
      errors += error * error;
      if (error <= allowed) continue;  // NaN is not
      if (bad++ == 0) first = at;
    }
  }
  const double typical = std::sqrt(errors / static_cast<double>(std::max<size_t>(1, want.size())));
  if (bad == 0 && !(typical <= (typical_tolerance + relative) * std::sqrt(all))) {
    Fail(what + ": errors of " + std::to_string(typical / std::sqrt(all)) +
         " on average, largest " + std::to_string(worst));
  }
  if (bad == 0) return;
  Fail(what + ": " + std::to_string(bad) + " of " + std::to_string(want.size()) +
       " differ, first at row " + std::to_string(first / columns) + " column " +
       std::to_string(first % columns) + ": got " + std::to_string(got[first]) + ", want " +
       std::to_string(want[first]) + "; largest error " + std::to_string(worst) + " of the row");
}

}  // namespace baltoro::cuda::product_test
