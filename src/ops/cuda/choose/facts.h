#pragma once

// What a choice may know of rows and matrices: types, sizes and alignments, never addresses.

#include <algorithm>
#include <cstdint>

#include "ops/ops.h"

namespace baltoro::cuda {

// Rows of a tensor [rows, width].
struct RowsFacts {
  DType type = DType::kBf16;
  int64_t rows = 0, width = 0;
  int64_t row_bytes = 0;  // from one row to the next; 0 where there is one row at most
  // Bytes, a power of two up to 256, that divide the address and, where there are several rows, the
  // way from one to the next.
  int32_t alignment = 256;

  bool aligned(int64_t bytes) const { return alignment % bytes == 0; }
  bool operator==(const RowsFacts&) const = default;
};

// One matrix [n, k], or `count` of them.
struct MatrixFacts {
  WeightForm form = WeightForm::kBf16;
  bool quantise_input = false;  // kFp8Block
  int64_t n = 0, k = 0, count = 1;
  int32_t alignment = 256;  // as above, of the address and of the way from one to the next

  bool aligned(int64_t bytes) const { return alignment % bytes == 0; }
  bool operator==(const MatrixFacts&) const = default;
};

inline int32_t AlignmentOf(const void* data, int64_t step_bytes = 0) {
  const uint64_t all = reinterpret_cast<uintptr_t>(data) | static_cast<uint64_t>(step_bytes) | 256;
  return static_cast<int32_t>(all & (~all + 1));
}

inline RowsFacts FactsOf(const TensorView& x) {
  RowsFacts facts{.type = x.dtype, .rows = x.dim(0), .width = 1};
  for (int i = 1; i < x.rank; ++i) facts.width *= x.dim(i);
  if (facts.rows > 1) facts.row_bytes = x.stride[0] * SizeOf(x.dtype);
  facts.alignment = AlignmentOf(x.data, facts.row_bytes);
  return facts;
}

inline MatrixFacts FactsOf(const PackedMatrix& w) {
  return {.form = w.form,
          .quantise_input = w.quantise_input,
          .n = w.n,
          .k = w.k,
          .count = w.count,
          .alignment = AlignmentOf(w.data, w.count > 1 ? w.stride_bytes : 0)};
}

}  // namespace baltoro::cuda
