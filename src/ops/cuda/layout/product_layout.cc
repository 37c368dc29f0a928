#include "ops/cuda/layout/product_layout.h"

#include "base/check.h"
#include "ops/cuda/layout/int4_layout.h"
#include "tensor/dtype.h"

namespace baltoro::cuda {

ProductLayout LayoutOf(WeightForm form, int64_t n, int64_t k) {
  constexpr int64_t kAlign = 256;
  ProductLayout layout;
  layout.steps = (k + 127) / 128;
  switch (form) {
    case WeightForm::kF32:
    case WeightForm::kBf16:
      layout.bytes = RoundUp(n * k * SizeOf(PlainType(form)), kAlign);
      return layout;
    case WeightForm::kInt4Group:
      layout.bytes = RoundUp(Int4PackedBytes(n, k), kAlign);
      return layout;
    case WeightForm::kFp8Block:
    case WeightForm::kInt8:
    case WeightForm::kInt8Static:
    case WeightForm::kInt4:
      break;
  }
  layout.row_bytes = form == WeightForm::kInt4 ? layout.steps * 64 : layout.steps * 128;
  layout.scales = RoundUp(n * layout.row_bytes, kAlign);
  const int64_t scales =
      form == WeightForm::kFp8Block ? (n + kScaleRows - 1) / kScaleRows * layout.steps : n;
  layout.biases = layout.scales + RoundUp(scales * 4, kAlign);
  layout.bytes = layout.biases + (form == WeightForm::kInt8Static ? RoundUp(n * 4, kAlign) : 0);
  return layout;
}

}  // namespace baltoro::cuda
