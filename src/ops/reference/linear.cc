#include <vector>

#include "ops/reference/element.h"
#include "ops/reference/matrix_product.h"
#include "ops/reference/reference_ops.h"

namespace baltoro::reference {

void Linear(const OpContext&, TensorView out, TensorView x, const PackedMatrix& w) {
  BT_CHECK(x.rank == 2 && out.rank == 2);
  BT_CHECK(x.dim(1) == w.k && out.dim(1) == w.n && out.dim(0) == x.dim(0));
  for (int64_t t = 0; t < x.dim(0); ++t) {
    const std::vector<double> y = MatrixProduct(Widen(x.data, x.dtype, t * x.stride[0], w.k), w);
    for (int64_t o = 0; o < w.n; ++o) Store(out, t, o, y[o]);
  }
}

}  // namespace baltoro::reference
