#include <cmath>

#include "ops/reference/element.h"
#include "ops/reference/reference_ops.h"

namespace baltoro::reference {

void Swiglu(const OpContext&, TensorView out, TensorView x) {
  BT_CHECK(x.rank == 2 && out.rank == 2);
  BT_CHECK(x.dim(0) == out.dim(0) && x.dim(1) == 2 * out.dim(1));
  const int64_t width = out.dim(1);
  for (int64_t t = 0; t < x.dim(0); ++t) {
    for (int64_t i = 0; i < width; ++i) {
      const double gate = Load(x, t, i);
      Store(out, t, i, gate / (1 + std::exp(-gate)) * double{Load(x, t, width + i)});
    }
  }
}

}  // namespace baltoro::reference
