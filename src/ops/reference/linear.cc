#include <vector>

#include "ops/reference/element.h"
#include "ops/reference/reference_ops.h"

namespace baltoro::reference {

int64_t PackedBytes(DType stored, int64_t n, int64_t k) {
  return n * k * SizeOf(stored);
}

void PackRows(DType stored, void* dst, int64_t n, int64_t k, int64_t row_begin, TensorView src) {
  BT_CHECK(src.rank == 2 && src.dim(1) == k);
  BT_CHECK(row_begin >= 0 && row_begin + src.dim(0) <= n);
  for (int64_t row = 0; row < src.dim(0); ++row) {
    for (int64_t i = 0; i < k; ++i) {
      Store(dst, stored, (row_begin + row) * k + i, Load(src, row, i));
    }
  }
}

void Linear(const OpContext&, TensorView out, TensorView x, const PackedMatrix& w) {
  BT_CHECK(x.rank == 2 && out.rank == 2);
  BT_CHECK(x.dim(1) == w.k && out.dim(1) == w.n && out.dim(0) == x.dim(0));
  std::vector<std::vector<double>> rows;
  for (int64_t t = 0; t < x.dim(0); ++t) {
    rows.push_back(Widen(x.data, x.dtype, t * x.stride[0], w.k));
  }
  for (int64_t o = 0; o < w.n; ++o) {
    const std::vector<double> weights = Widen(w.data, w.dtype, o * w.k, w.k);
    for (int64_t t = 0; t < x.dim(0); ++t) {
      Store(out, t, o, Dot(rows[t].data(), weights.data(), w.k));
    }
  }
}

}  // namespace baltoro::reference
