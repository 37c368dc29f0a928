#pragma once

// The product of one row with a matrix kept in any form (ops/matrix.h), in f64.

#include <vector>

#include "ops/ops.h"

namespace baltoro::reference {

// y[o] = sum_i x[i] * w[o, i]
std::vector<double> MatrixProduct(const std::vector<double>& x, const PackedMatrix& w);

}  // namespace baltoro::reference
