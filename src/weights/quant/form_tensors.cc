#include "weights/quant/form_tensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "weights/quant/matrix_codec.h"

namespace baltoro {
namespace {

constexpr int64_t kSlicesOfRowParallel = 16;

int64_t CeilDiv(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

template <typename T>
T* As(std::vector<char>& bytes) {
  return reinterpret_cast<T*>(bytes.data());
}
template <typename T>
const T* As(const std::vector<char>& bytes) {
  return reinterpret_cast<const T*>(bytes.data());
}

}  // namespace

MatrixShape ShapeOfProjection(std::string_view module, int64_t outputs, int64_t inputs) {
  const bool row_parallel = module.ends_with("down_proj") || module.ends_with("o_proj");
  return {.outputs = outputs, .inputs = inputs, .slices = row_parallel ? kSlicesOfRowParallel : 1};
}

int64_t FormTensor::bytes() const {
  int64_t count = SizeOf(dtype);
  for (const int64_t dim : shape) count *= dim;
  return count;
}

int64_t FormTensor::BytesBefore(int64_t row) const {
  if (matrix_rows == 0) return 0;
  const int64_t row_bytes = shape.empty() || shape[0] == 0 ? 0 : bytes() / shape[0];
  return row / matrix_rows * row_bytes;
}

std::vector<FormTensor> TensorsOfForm(WeightForm form, const MatrixShape& shape) {
  const int64_t out = shape.outputs, in = shape.inputs;
  switch (form) {
    case WeightForm::kF32:
      return {};
    case WeightForm::kBf16:
      return {{"weight", DType::kBf16, {out, in}}};
    case WeightForm::kFp8Block:
      return {{"weight", DType::kF8E4M3, {out, in}},
              {"weight_scale_inv",
               DType::kF32,
               {CeilDiv(out, kFp8Block), CeilDiv(in, kFp8Block)},
               kFp8Block}};
    case WeightForm::kInt4Group:
      return {{"weight_packed", DType::kI32, {out, in / 8}},
              {"weight_scale", DType::kBf16, {out, in / kInt4Group}},
              {"weight_shape", DType::kI64, {2}, 0, true}};
    case WeightForm::kInt8Static:
      return {{"weight", DType::kI8, {out, in}},
              {"deq_scale", DType::kF32, {out}, 0},
              {"input_scale", DType::kF32, {1}, 0},
              {"input_offset", DType::kF32, {1}, 0},
              {"quant_bias", DType::kI32, {out}, 0}};
    case WeightForm::kInt8:
      return {{"weight", DType::kI8, {out, in}},
              {"weight_scale", DType::kF32, {out, 1}},
              {"weight_offset", DType::kF32, {out, 1}, 1, true}};
    case WeightForm::kInt4:
      return {{"weight", DType::kI8, {out / 2, in}, 2},
              {"weight_scale", DType::kF32, {out, 1}},
              {"weight_offset", DType::kF32, {out, 1}, 1, true},
              {"scale_bias", DType::kF32, {out, shape.slices}, 1, true}};
  }
  return {};
}

std::vector<char> ProductScales(const std::vector<char>& deq_scale,
                                int64_t outputs,
                                int64_t row,
                                int64_t rows) {
  const size_t each = outputs == 0 ? 0 : deq_scale.size() / static_cast<size_t>(outputs);
  std::vector<char> out(static_cast<size_t>(rows) * sizeof(float));
  for (int64_t i = 0; i < rows; ++i) {
    std::memcpy(out.data() + i * sizeof(float), deq_scale.data() + (row + i) * each, sizeof(float));
  }
  return out;
}

Status CheckShape(WeightForm form, const MatrixShape& shape) {
  if (form == WeightForm::kInt4Group && shape.inputs % kInt4Group != 0) {
    return InvalidArgument(fmt::format("{} inputs are not a multiple of {}, the size of a group",
                                       shape.inputs, kInt4Group));
  }
  if (form == WeightForm::kInt4 && shape.outputs % 2 != 0) {
    return InvalidArgument(
        fmt::format("{} outputs are an odd number, but two share each byte", shape.outputs));
  }
  if (form == WeightForm::kInt4 && shape.inputs % shape.slices != 0) {
    return InvalidArgument(fmt::format(
        "{} inputs cannot be cut into {} equal slices for scale_bias", shape.inputs, shape.slices));
  }
  return {};
}

void EncodeRows(WeightForm form,
                const MatrixShape& shape,
                const Bf16* in,
                int64_t rows,
                std::vector<std::vector<char>>& parts) {
  const std::vector<FormTensor> tensors = TensorsOfForm(form, shape);
  parts.resize(tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    const FormTensor& tensor = tensors[i];
    const int64_t bytes =
        tensor.matrix_rows == 0
            ? tensor.bytes()
            : tensor.BytesBefore(CeilDiv(rows, tensor.matrix_rows) * tensor.matrix_rows);
    parts[i].assign(static_cast<size_t>(bytes), 0);
  }
  switch (form) {
    case WeightForm::kBf16:
      std::memcpy(parts[0].data(), in, parts[0].size());
      break;
    case WeightForm::kFp8Block:
      EncodeFp8Block(in, rows, shape.inputs, As<uint8_t>(parts[0]), As<float>(parts[1]));
      break;
    case WeightForm::kInt4Group:
      EncodeInt4Group(in, rows, shape.inputs, As<uint32_t>(parts[0]), As<Bf16>(parts[1]));
      As<int64_t>(parts[2])[0] = shape.outputs;
      As<int64_t>(parts[2])[1] = shape.inputs;
      break;
    case WeightForm::kInt8:
      EncodeInt8(in, rows, shape.inputs, As<int8_t>(parts[0]), As<float>(parts[1]));
      break;
    case WeightForm::kInt4:
      EncodeInt4(in, rows, shape.inputs, shape.slices, As<uint8_t>(parts[0]), As<float>(parts[1]),
                 As<float>(parts[3]));
      break;
    case WeightForm::kF32:
    case WeightForm::kInt8Static:
      BT_CHECK(false);
  }
}

void DecodeRows(WeightForm form,
                const MatrixShape& shape,
                const std::vector<std::vector<char>>& parts,
                int64_t row,
                int64_t rows,
                float* out) {
  const int64_t inputs = shape.inputs;
  switch (form) {
    case WeightForm::kBf16:
      std::transform(As<Bf16>(parts[0]), As<Bf16>(parts[0]) + rows * inputs, out,
                     [](Bf16 x) { return ToFloat(x); });
      break;
    case WeightForm::kFp8Block:
      DecodeFp8Block(As<uint8_t>(parts[0]), As<float>(parts[1]), row, rows, inputs, out);
      break;
    case WeightForm::kInt4Group:
      DecodeInt4Group(As<uint32_t>(parts[0]), As<Bf16>(parts[1]), rows, inputs, out);
      break;
    case WeightForm::kInt8Static: {
      const std::vector<char> scales = ProductScales(parts[1], shape.outputs, row, rows);
      DecodeInt8Static(As<int8_t>(parts[0]), As<float>(scales), *As<float>(parts[2]), rows, inputs,
                       out);
      break;
    }
    case WeightForm::kInt8:
      DecodeInt8(As<int8_t>(parts[0]), As<float>(parts[1]), rows, inputs, out);
      break;
    case WeightForm::kInt4:
      DecodeInt4(As<uint8_t>(parts[0]), As<float>(parts[1]), row, rows, inputs, out);
      break;
    case WeightForm::kF32:
      BT_CHECK(false);
  }
}

}  // namespace baltoro
