#include <cmath>
#include <vector>

#include "ops/reference/element.h"
#include "ops/reference/matrix_product.h"
#include "ops/reference/reference_ops.h"

namespace baltoro::reference {
void ExpertBank(const OpContext&, const ExpertBankArgs& args) {
  const int64_t hidden = args.x.dim(1);
  const int64_t inter = args.down.k;
  BT_CHECK(args.out.dim(0) == args.x.dim(0) && args.out.dim(1) == hidden);
  BT_CHECK(args.ids.dim(0) == args.x.dim(0) && args.weights.dim(0) == args.x.dim(0));
  BT_CHECK(args.ids.dim(1) == args.weights.dim(1));
  BT_CHECK(args.gate_up.n == 2 * inter && args.gate_up.k == hidden && args.down.n == hidden);
  for (int64_t t = 0; t < args.x.dim(0); ++t) {
    const std::vector<double> x = Widen(args.x.data, args.x.dtype, t * args.x.stride[0], hidden);
    for (int64_t j = 0; j < args.ids.dim(1); ++j) {
      const int32_t expert = args.ids.row<int32_t>(t)[j];
      BT_CHECK(expert >= 0 && expert < static_cast<int64_t>(args.slot_of.size()));
      const int32_t slot = args.slot_of[expert];
      if (slot < 0) continue;  // held elsewhere
      BT_CHECK(slot < args.gate_up.count && slot < args.down.count);
      const std::vector<double> gate_up = MatrixProduct(x, args.gate_up.at(slot));
      std::vector<double> middle(static_cast<size_t>(inter));
      for (int64_t i = 0; i < inter; ++i) {
        middle[i] = gate_up[i] / (1 + std::exp(-gate_up[i])) * gate_up[inter + i];
      }
      const std::vector<double> y = MatrixProduct(middle, args.down.at(slot));
      const double weight = args.weights.row<float>(t)[j];
      for (int64_t d = 0; d < hidden; ++d) {
        Store(args.out, t, d, Load(args.out, t, d) + weight * y[d]);
      }
    }
  }
}

}  // namespace baltoro::reference
