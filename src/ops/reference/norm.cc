#include <cmath>

#include "ops/reference/element.h"
#include "ops/reference/reference_ops.h"

namespace baltoro::reference {

void RmsNorm(const OpContext&, TensorView out, TensorView x, TensorView weight, float eps) {
  BT_CHECK(x.rank == 2 && out.rank == 2 && weight.rank == 1);
  BT_CHECK(out.dim(0) == x.dim(0) && out.dim(1) == x.dim(1) && weight.dim(0) == x.dim(1));
  const int64_t width = x.dim(1);
  for (int64_t t = 0; t < x.dim(0); ++t) {
    double squares = 0;
    for (int64_t d = 0; d < width; ++d) squares += double{Load(x, t, d)} * double{Load(x, t, d)};
    const double scale = 1 / std::sqrt(squares / static_cast<double>(width) + double{eps});
    for (int64_t d = 0; d < width; ++d) {
      Store(out, t, d, double{Load(x, t, d)} * scale * double{weight.as<float>()[d]});
    }
  }
}

void AddRmsNorm(const OpContext& context,
                TensorView out,
                TensorView residual,
                TensorView delta,
                TensorView weight,
                float eps) {
  BT_CHECK(residual.rank == 2 && delta.rank == 2);
  BT_CHECK(delta.dim(0) == residual.dim(0) && delta.dim(1) == residual.dim(1));
  for (int64_t t = 0; t < residual.dim(0); ++t) {
    for (int64_t d = 0; d < residual.dim(1); ++d) {
      Store(residual, t, d, Load(residual, t, d) + Load(delta, t, d));
    }
  }
  RmsNorm(context, out, residual, weight, eps);
}

}  // namespace baltoro::reference
