// Products: every matrix of a layer, in every form, as the layer reads and writes it.

#include "ops/cuda/launch_table/ask.h"
#include "ops/cuda/launch_table/questions_linear.h"
#include "ops/cuda/norm_begun.h"

namespace baltoro::cuda::launch_table {
namespace {

static_assert(kPartRows.least == kRoundedPartRowsMin);

bool Multiply(Step& s, const LinearCase& c) {
  const TensorView x = s.Rows(DType::kBf16, c.x_width).columns(0, c.k);
  if (c.norm_behind) {
    const BegunNorm norm = s.Norm(s.Rows(DType::kBf16, c.n));
    const PackedMatrix w = s.Matrix(c.form, c.n, c.k);
    if (!PlanToNorm(norm, x, w).taken()) return false;
    LinearToNorm(s.ctx, norm, x, w);
    return true;
  }
  if (c.norm_ahead) {
    const BegunNorm norm = s.Norm(x);
    const TensorView to = s.Rows(c.out, c.n);
    const PackedMatrix w = s.Matrix(c.form, c.n, c.k);
    if (!PlanFromNorm(to, norm, w).taken()) return false;
    LinearFromNorm(s.ctx, to, norm, w);
    return true;
  }
  const TensorView out = s.Rows(c.out, c.n);
  const PackedMatrix w = s.Matrix(c.form, c.n, c.k);
  if (c.coded) s.KnowCodes(x);
  Linear(s.ctx, out, x, w);
  return true;
}

}  // namespace

void AskLinear(Asker& asker) {
  for (const LinearCase& c : LinearCases()) {
    asker.Ask(c.question, c.range, [&](Step& s) { return Multiply(s, c); });
  }
}

}  // namespace baltoro::cuda::launch_table
