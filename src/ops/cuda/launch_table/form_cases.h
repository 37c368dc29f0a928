#pragma once

// The forms of matrices that questions and tests go through. Without CUDA.

#include "tensor/weight_form.h"

namespace baltoro::cuda::product_test {

// What a matrix is made of: a WeightForm, and how its input is treated.
struct FormCase {
  const char* name;
  WeightForm form;
  bool quantise_input = false;
};
inline constexpr FormCase kForms[] = {
    {"bf16", WeightForm::kBf16},
    {"f32", WeightForm::kF32},
    {"fp8", WeightForm::kFp8Block},
    {"fp8 w8a8", WeightForm::kFp8Block, true},
    {"int4 group", WeightForm::kInt4Group},
    {"int8", WeightForm::kInt8},
    {"int4", WeightForm::kInt4},
    {"int8 static", WeightForm::kInt8Static},
};

}  // namespace baltoro::cuda::product_test
