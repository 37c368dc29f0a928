#include <algorithm>

#include "ops/cpu/element_types.h"

namespace baltoro::cpu {

void Embed(const OpContext& ctx, TensorView out, TensorView table, TensorView ids, int64_t first) {
  BT_CHECK(out.rank == 2 && table.rank == 2 && ids.rank == 1);
  BT_CHECK(out.dim(0) == ids.dim(0) && out.dim(1) == table.dim(1));
  BT_CHECK(out.dtype == DType::kF32 && ids.dtype == DType::kI32);
  const int64_t width = table.dim(1);
  WithElement(table.dtype, [&](auto element) {
    ForRows(ctx, ids.dim(0), width, [&](int64_t t) {
      const int64_t row = ids.as<const int32_t>()[t] - first;
      auto* to = out.row<float>(t);
      if (row < 0 || row >= table.dim(0)) {
        std::fill_n(to, width, 0.0f);
        return;
      }
      const auto* from = table.row<const decltype(element)>(row);
      for (int64_t d = 0; d < width; ++d) to[d] = Widen(from[d]);
    });
  });
}

}  // namespace baltoro::cpu
