#include "ops/cpu/element_types.h"

namespace baltoro::cpu {

void Rope(const OpContext& ctx, TensorView x, TensorView positions, const RopeTable& table) {
  BT_CHECK(x.rank == 3 && positions.rank == 1 && positions.dtype == DType::kI32);
  BT_CHECK(positions.dim(0) == x.dim(0) && x.dim(2) == table.dim);
  const int64_t pairs = table.dim / 2;
  WithElement(x.dtype, [&](auto element) {
    ForRows(ctx, x.dim(0), x.dim(1) * x.dim(2), [&](int64_t t) {
      const int32_t position = positions.as<const int32_t>()[t];
      BT_CHECK(position >= 0 && position < table.positions);
      const float* cos = table.cos + position * pairs;
      const float* sin = table.sin + position * pairs;
      for (int64_t head = 0; head < x.dim(1); ++head) {
        auto* row = x.row<decltype(element)>(t) + head * x.stride[1];
        for (int64_t j = 0; j < pairs; ++j) {
          const float a = Widen(row[2 * j]);
          const float b = Widen(row[2 * j + 1]);
          Narrow(a * cos[j] - b * sin[j], row[2 * j]);
          Narrow(b * cos[j] + a * sin[j], row[2 * j + 1]);
        }
      }
    });
  });
}

}  // namespace baltoro::cpu
