// Host side of products of tens of rows (bf16_rows128.h): the descriptions that the kernel is
// launched with.

#include "ops/cuda/linear/bf16_rows128.h"

#include <algorithm>

#include "base/check.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/launch/regions.h"
#include "ops/cuda/launch/tensor_map.h"
#include "ops/cuda/linear/bf16_rows128_internal.h"

namespace baltoro::cuda {
namespace {

static_assert(kBf16Rows128Step == 64);  // MakeRowsMap

Bf16Rows128Matrix MatrixOf(const TensorView& out,
                           const PackedMatrix& w,
                           const Bf16Rows128Plan& plan) {
  return {.out = out.data,
          .out_stride = out.stride[0],
          .n = static_cast<int>(w.n),
          .strips = plan.Strips(w.n),
          .bf16 = out.dtype == DType::kBf16};
}

void Launch(const OpContext& ctx,
            const Bf16Rows128Plan& plan,
            const TensorView& out,
            const PackedMatrix& w,
            const TensorView* second_out,
            const PackedMatrix* second,
            const TensorView& x,
            const QueryRotation* rotation) {
  BT_CHECK(x.rank == 2 && out.rank == 2 && out.dim(0) == x.dim(0) && out.dim(1) == w.n);
  BT_CHECK(x.dim(1) == w.k && plan.groups > 0 && plan.stages > 0 && plan.inputs > 0);
  BT_CHECK(Bf16Rows128Can(FactsOf(x), FactsOf(w), FactsOf(out)));
  const Bf16Rows128Shape shape{
      .rows = x.dim(0), .k = w.k, .n = w.n, .second_n = second != nullptr ? second->n : 0};
  Bf16Rows128Params p = {};
  p.first = MatrixOf(out, w, plan);
  p.rows = static_cast<int>(x.dim(0));
  p.strip_rows = plan.StripRows();
  p.input_rows = plan.InputRows(x.dim(0));
  BT_CHECK(p.strip_rows % 2 == 0 && p.strip_rows <= plan.groups * kBf16Rows128GroupRows);
  p.steps = static_cast<int>(SharesOf(w.k, kBf16Rows128Step));
  while (1 << p.log_split < plan.split) ++p.log_split;
  BT_CHECK(1 << p.log_split == plan.split && plan.split <= kBf16Rows128SplitMax);
  BT_CHECK(plan.split <= p.steps);
  BT_CHECK(SharesOf(p.steps, plan.split) == 1 || std::min(plan.stages, plan.inputs) > 1);
  const Bf16Rows128Places places(plan, x.dim(0));
  p.stages = plan.stages;
  p.inputs = plan.inputs;
  p.early = places.early;
  p.stage_bytes = places.stage_bytes;
  p.input_bytes = places.input_bytes;
  p.barriers_at = places.barriers_at;
  Bf16Rows128Maps maps;
  CheckOk(MakeRowsMap(w.data, w.n, w.k, w.k * 2, p.strip_rows, maps.first));
  maps.second = maps.first;
  CheckOk(MakeRowsMap(x.data, x.dim(0), w.k, x.stride[0] * 2, p.input_rows, maps.x));
  if (second != nullptr) {
    BT_CHECK(second->k == w.k && second_out->dim(0) == x.dim(0) && second_out->dim(1) == second->n);
    p.second = MatrixOf(*second_out, *second, plan);
    CheckOk(MakeRowsMap(second->data, second->n, w.k, w.k * 2, p.strip_rows, maps.second));
  }
  if (rotation != nullptr) {
    BT_CHECK(plan.tile <= 64 && plan.tile / 4 / plan.split <= kBf16Rows128Angles);
    p.rotation = *rotation;
  }
  Regions writes = RegionOf(out);
  if (second_out != nullptr) writes.Add(RegionOf(*second_out));
  const LaunchNote note = WaitsFirst("bf16_rows128", writes, RegionOf(x));
  const Status launched =
      LaunchBf16Rows128(plan, LaunchShapeOf(plan, shape), p, maps, note, StreamOf(ctx));
  CheckLaunch("bf16_rows128");
  CheckOk(launched);
}

}  // namespace

void Bf16Rows128Product(const OpContext& ctx,
                        const Bf16Rows128Plan& plan,
                        TensorView out,
                        TensorView x,
                        const PackedMatrix& w) {
  Launch(ctx, plan, out, w, nullptr, nullptr, x, nullptr);
}

void Bf16Rows128Products(const OpContext& ctx,
                         const Bf16Rows128Plan& plan,
                         TensorView out,
                         const PackedMatrix& w,
                         TensorView second_out,
                         const PackedMatrix& second,
                         TensorView x) {
  BT_CHECK(Bf16Rows128Can(FactsOf(x), FactsOf(second), FactsOf(second_out)));
  Launch(ctx, plan, out, w, &second_out, &second, x, nullptr);
}

void Bf16Rows128Query(const OpContext& ctx,
                      const Bf16Rows128Plan& plan,
                      const AttentionInputArgs& args) {
  const QueryRotation rotation = QueryRotationOf(args);
  Launch(ctx, plan, FlatQueries(args), args.q_weight, nullptr, nullptr,
         args.qkv_a.columns(0, args.q_weight.k), &rotation);
}

}  // namespace baltoro::cuda
