#include "ops/reference/element.h"
#include "ops/reference/reference_ops.h"

namespace baltoro::reference {

void Embed(const OpContext&, TensorView out, TensorView table, TensorView ids, int64_t first) {
  BT_CHECK(out.rank == 2 && table.rank == 2 && ids.rank == 1);
  BT_CHECK(out.dim(0) == ids.dim(0) && out.dim(1) == table.dim(1));
  for (int64_t t = 0; t < ids.dim(0); ++t) {
    const int64_t row = ids.as<int32_t>()[t] - first;
    const bool own = row >= 0 && row < table.dim(0);
    for (int64_t d = 0; d < table.dim(1); ++d) Store(out, t, d, own ? Load(table, row, d) : 0);
  }
}

}  // namespace baltoro::reference
