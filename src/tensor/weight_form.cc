#include "tensor/weight_form.h"

namespace baltoro {
namespace {

int64_t CeilDiv(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

}  // namespace

const char* WeightFormName(WeightForm form) {
  switch (form) {
    case WeightForm::kF32:
      return "f32";
    case WeightForm::kBf16:
      return "bf16";
    case WeightForm::kFp8Block:
      return "fp8, blocks of 128x128";
    case WeightForm::kInt4Group:
      return "int4, groups of 32";
    case WeightForm::kInt8Static:
      return "int8, static activations";
    case WeightForm::kInt8:
      return "int8, dynamic activations";
    case WeightForm::kInt4:
      return "int4 per channel, int8 activations";
  }
  return "";
}

int64_t MatrixBytes(WeightForm form, int64_t outputs, int64_t inputs) {
  const int64_t elements = outputs * inputs;
  switch (form) {
    case WeightForm::kF32:
      return elements * 4;
    case WeightForm::kBf16:
      return elements * 2;
    case WeightForm::kFp8Block:
      return elements + 4 * CeilDiv(outputs, 128) * CeilDiv(inputs, 128);
    case WeightForm::kInt4Group:
      return outputs * (CeilDiv(inputs, 2) + 2 * CeilDiv(inputs, 32));
    case WeightForm::kInt8Static:
      return elements + outputs * 8 + 8;
    case WeightForm::kInt8:
      return elements + outputs * 4;
    case WeightForm::kInt4:
      return outputs * (CeilDiv(inputs, 2) + 4);
  }
  return 0;
}

}  // namespace baltoro
