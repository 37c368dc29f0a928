#include "ops/reference/element.h"
#include "ops/reference/reference_ops.h"

namespace baltoro::reference {

void Rope(const OpContext&, TensorView x, TensorView positions, const RopeTable& table) {
  BT_CHECK(x.rank == 3 && positions.rank == 1);
  BT_CHECK(positions.dim(0) == x.dim(0) && x.dim(2) == table.dim);
  const int64_t pairs = table.dim / 2;
  for (int64_t t = 0; t < x.dim(0); ++t) {
    const int32_t position = positions.as<int32_t>()[t];
    BT_CHECK(position >= 0 && position < table.positions);
    for (int64_t head = 0; head < x.dim(1); ++head) {
      const int64_t at = t * x.stride[0] + head * x.stride[1];
      for (int64_t j = 0; j < pairs; ++j) {
        const double cos = table.cos[position * pairs + j];
        const double sin = table.sin[position * pairs + j];
        const double a = Load(x.data, x.dtype, at + 2 * j);
        const double b = Load(x.data, x.dtype, at + 2 * j + 1);
        Store(x.data, x.dtype, at + 2 * j, a * cos - b * sin);
        Store(x.data, x.dtype, at + 2 * j + 1, b * cos + a * sin);
      }
    }
  }
}

}  // namespace baltoro::reference
