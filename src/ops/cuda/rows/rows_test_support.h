#pragma once

// For tests and benchmarks of operations on rows: a stream with its memory, tensors that lie on the
// host and on the GPU, and comparisons that say where they failed.

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "device/buffer.h"
#include "device/cuda/cuda_memory.h"
#include "device/cuda/stream.h"
#include "ops/cuda/cuda_ops.h"
#include "support/gpu_test.h"

namespace baltoro::cuda::rows_test {

inline void Must(const Status& status) {
  if (status.ok()) return;
  std::printf("%s\n", status.message().c_str());
  std::fflush(stdout);
  std::abort();
}
template <typename T>
T Must(Result<T> result) {
  Must(result.status());
  return std::move(result).value();
}

class Device {
 public:
  Device() : rank_(Must(RankState::Create())), scratch_(CudaMemory()), staging_(PinnedMemory()) {}
  OpContext ctx() { return {.scratch = &scratch_, .staging = &staging_, .rank = rank_.get()}; }
  Arena& scratch() { return scratch_; }
  Arena& staging() { return staging_; }
  const Stream& stream() const { return rank_->stream(); }
  void Wait() {
    Must(stream().Synchronize());
    ::baltoro::testing::StepDone();
  }

 private:
  std::unique_ptr<RankState> rank_;
  Arena scratch_, staging_;
};

// [rows, width] (or [rows]) with `stride` elements from row to row, on both sides; what lies
// between rows is filled too, so that a write there is seen.
class Tensor {
 public:
  Tensor(DType type, int64_t rows, int64_t width, int64_t stride = 0)
      : host_(static_cast<size_t>(rows * std::max(stride, width) * SizeOf(type)), char{0x3A}) {
    view_ = TensorView(host_.data(), type, {rows, width});
    view_.stride[0] = std::max(stride, width);
    device_ = Must(Buffer::Create(std::max<size_t>(host_.size(), 256), "test", CudaMemory()));
  }
  static Tensor Vector(DType type, int64_t count) {
    Tensor tensor(type, 1, count);
    tensor.view_ = TensorView(tensor.host_.data(), type, {count});
    return tensor;
  }

  TensorView& host() { return view_; }
  TensorView device() const {
    TensorView view = view_;
    view.data = device_.data();
    return view;
  }
  std::vector<char>& bytes() { return host_; }
  void ToDevice() { Must(CudaMemory().CopyIn(device_.data(), host_.data(), host_.size())); }
  std::vector<char> FromDevice() const {
    std::vector<char> back(host_.size());
    Must(CudaMemory().CopyOut(back.data(), device_.data(), back.size()));
    return back;
  }

  void Set(int64_t row, int64_t column, float value) {
    const int64_t at = row * view_.stride[0] + column;
    if (view_.dtype == DType::kF32) {
      view_.as<float>()[at] = value;
    } else {
      view_.as<Bf16>()[at] = ToBf16(value);
    }
  }
  // Every element, those between rows too.
  void FillNormal(std::mt19937_64& random, float deviation) {
    std::normal_distribution<float> normal(0, deviation);
    const auto count = static_cast<int64_t>(host_.size()) / SizeOf(view_.dtype);
    for (int64_t i = 0; i < count; ++i) Set(0, i, normal(random));
    ToDevice();
  }

 private:
  std::vector<char> host_;
  TensorView view_;
  Buffer device_;
};

inline float ElementOf(const std::vector<char>& bytes, DType type, size_t i) {
  if (type == DType::kF32) {
    float value;
    std::memcpy(&value, bytes.data() + i * 4, 4);
    return value;
  }
  Bf16 value;
  std::memcpy(&value, bytes.data() + i * 2, 2);
  return ToFloat(value);
}

struct Limits {
  double relative = 0, absolute = 0;
  double share = 1;  // of elements that may differ at all
};

// One rounding to bf16 that falls the other way, in few elements; f32: a few roundings.
inline Limits LimitsOf(DType type) {
  return type == DType::kBf16 ? Limits{.relative = 0x1p-7, .absolute = 1e-37, .share = 0.005}
                              : Limits{.relative = 1e-6, .absolute = 1e-37, .share = 1};
}

// Elements of a whole buffer, those between rows included.
inline void ExpectNear(const std::string& what,
                       const std::vector<char>& got,
                       const std::vector<char>& want,
                       DType type,
                       const Limits& limits) {
  const size_t count = want.size() / static_cast<size_t>(SizeOf(type));
  size_t bad = 0, first = 0, different = 0;
  double worst = 0;
  for (size_t i = 0; i < count; ++i) {
    const double a = ElementOf(got, type, i), b = ElementOf(want, type, i);
    if (std::isnan(a) && std::isnan(b)) continue;
    const double error = std::fabs(a - b);
    if (a == b || error <= limits.absolute) continue;
    ++different;
    if (error <= limits.absolute + limits.relative * std::fabs(b)) {
      worst = std::max(worst, error);
      continue;
    }
    if (bad++ == 0) first = i;
  }
  const double share =
      static_cast<double>(different) / static_cast<double>(std::max<size_t>(count, 1));
  // Of a few elements one may always be another.
  if (bad == 0 && (share <= limits.share || different <= 1)) return;
  char text[256];
  std::snprintf(text, sizeof(text),
                "%s: %zu of %zu bad, first %zu got %.9g want %.9g; %zu differ, worst allowed %.3g",
                what.c_str(), bad, count, first, static_cast<double>(ElementOf(got, type, first)),
                static_cast<double>(ElementOf(want, type, first)), different, worst);
  testing::ReportFailure(__FILE__, __LINE__, text);
}

inline void ExpectSameBytes(const std::string& what,
                            const std::vector<char>& got,
                            const std::vector<char>& want) {
  size_t bad = 0, first = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    if (got[i] != want[i] && bad++ == 0) first = i;
  }
  if (bad == 0) return;
  char text[256];
  std::snprintf(text, sizeof(text), "%s: %zu of %zu bytes differ, first %zu got %02x want %02x",
                what.c_str(), bad, want.size(), first, static_cast<uint8_t>(got[first]),
                static_cast<uint8_t>(want[first]));
  testing::ReportFailure(__FILE__, __LINE__, text);
}

inline constexpr int64_t kRowCounts[] = {1, 3, 17, 129, 1000};

}  // namespace baltoro::cuda::rows_test
