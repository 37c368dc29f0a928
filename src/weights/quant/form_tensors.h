#pragma once

// The tensors that hold one matrix in each stored form, and rows of a matrix to and from them. The
// one place that knows how the codecs' arrays are called and shaped in files.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "tensor/dtype.h"
#include "tensor/weight_form.h"

namespace baltoro {

struct MatrixShape {
  int64_t outputs = 0, inputs = 0;
  int64_t slices = 1;  // into which scale_bias cuts the inputs (kInt4)
};

// Of a projection by its module's name: row-parallel ones have 16 slices.
MatrixShape ShapeOfProjection(std::string_view module, int64_t outputs, int64_t inputs);

struct FormTensor {
  std::string_view parameter;  // after the module's name: "weight_scale"
  DType dtype = DType::kBf16;
  std::vector<int64_t> shape;
  int64_t matrix_rows = 1;  // of each of its rows; 0: the tensor does not lie along rows
  bool optional = false;    // not needed to decode

  int64_t bytes() const;
  // Where the bytes of a matrix row begin, and how many bytes `rows` rows from there take.
  int64_t BytesBefore(int64_t row) const;
};

// The first one is the matrix itself. Empty for kF32: that is no form of a projection.
std::vector<FormTensor> TensorsOfForm(WeightForm form, const MatrixShape& shape);

// Why a matrix of this shape cannot be stored in a form.
Status CheckShape(WeightForm form, const MatrixShape& shape);

// The f32 scales of matrix rows [row, row + rows) in the bytes of a whole deq_scale: f32, or f32
// bits in the low half of i64 where the model was f16.
std::vector<char> ProductScales(const std::vector<char>& deq_scale,
                                int64_t outputs,
                                int64_t row,
                                int64_t rows);

// Encodes `rows` rows that start at a multiple of kEncodeRows. parts[i] becomes the bytes that they
// take in tensor i; `in` is bf16 and finite. Not for kInt8Static, which wants activations seen.
inline constexpr int64_t kEncodeRows = 128;
void EncodeRows(WeightForm form,
                const MatrixShape& shape,
                const Bf16* in,
                int64_t rows,
                std::vector<std::vector<char>>& parts);

// Decodes rows [row, row + rows) into `out` [rows, inputs]. parts[i] holds the rows of tensor i
// from the one with matrix row `row` on (whole tensors, for those that do not lie along rows);
// optional tensors may be empty.
void DecodeRows(WeightForm form,
                const MatrixShape& shape,
                const std::vector<std::vector<char>>& parts,
                int64_t row,
                int64_t rows,
                float* out);

}  // namespace baltoro
