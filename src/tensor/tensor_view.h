#pragma once

// A TensorView owns nothing and is passed by value: where the elements are, of what type, and how
// they are laid out. The last dimension is always contiguous; outer strides are in elements.

#include <array>
#include <cstdint>
#include <initializer_list>

#include "base/check.h"
#include "tensor/dtype.h"

namespace baltoro {

struct TensorView {
  static constexpr int kRankMax = 4;

  void* data = nullptr;
  DType dtype = DType::kF32;
  int rank = 0;
  std::array<int64_t, kRankMax> shape{};
  std::array<int64_t, kRankMax> stride{};  // in elements; stride[rank - 1] == 1

  TensorView() = default;

  // Contiguous, row-major.
  TensorView(void* at, DType type, std::initializer_list<int64_t> dims) : data(at), dtype(type) {
    BT_CHECK(dims.size() <= kRankMax);
    for (const int64_t dim : dims) shape[rank++] = dim;
    int64_t step = 1;
    for (int i = rank - 1; i >= 0; --i) {
      stride[i] = step;
      step *= shape[i];
    }
  }

  int64_t dim(int i) const { return shape[i]; }
  int64_t num_elements() const {
    int64_t count = 1;
    for (int i = 0; i < rank; ++i) count *= shape[i];
    return count;
  }
  bool contiguous() const {
    int64_t step = 1;
    for (int i = rank - 1; i >= 0; --i) {
      if (shape[i] != 1 && stride[i] != step) return false;
      step *= shape[i];
    }
    return true;
  }
  explicit operator bool() const { return data != nullptr; }

  template <typename T>
  T* as() const {
    BT_CHECK(sizeof(T) == static_cast<size_t>(SizeOf(dtype)));
    return static_cast<T*>(data);
  }
  // Row `i` of the first dimension, as a pointer to its first element.
  template <typename T>
  T* row(int64_t i) const {
    return as<T>() + i * stride[0];
  }
  // Rows [begin, begin + count) of the first dimension.
  TensorView rows(int64_t begin, int64_t count) const {
    TensorView view = *this;
    view.data = static_cast<char*>(data) + begin * stride[0] * SizeOf(dtype);
    view.shape[0] = count;
    return view;
  }
  // Columns [begin, begin + count) of the last dimension.
  TensorView columns(int64_t begin, int64_t count) const {
    TensorView view = *this;
    view.data = static_cast<char*>(data) + begin * SizeOf(dtype);
    view.shape[rank - 1] = count;
    return view;
  }
};

}  // namespace baltoro
