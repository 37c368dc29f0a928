// Host side of products of hundreds of rows (bf16_rows1024.h): the descriptions that the kernel is
// launched with.

#include "ops/cuda/linear/bf16_rows1024.h"

#include "base/check.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/launch/regions.h"
#include "ops/cuda/launch/tensor_map.h"
#include "ops/cuda/linear/bf16_rows1024_internal.h"

namespace baltoro::cuda {
namespace {

static_assert(kBf16Rows1024Step == 64);  // MakeRowsMap
constexpr int64_t kTile = kBf16Rows1024Tile;

Bf16Rows1024Matrix MatrixOf(const TensorView& out,
                            const PackedMatrix& w,
                            const Bf16Rows1024Plan& plan) {
  return {.out = out.data,
          .out_stride = out.stride[0],
          .n = static_cast<int>(w.n),
          .strips = plan.Strips(w.n),
          .bf16 = out.dtype == DType::kBf16};
}

void Launch(const OpContext& ctx,
            const Bf16Rows1024Plan& plan,
            const TensorView& out,
            const PackedMatrix& w,
            const TensorView* second_out,
            const PackedMatrix* second,
            const TensorView& x,
            const QueryRotation* rotation) {
  BT_CHECK(x.rank == 2 && out.rank == 2 && out.dim(0) == x.dim(0) && out.dim(1) == w.n);
  BT_CHECK(x.dim(1) == w.k && Bf16Rows1024Can(FactsOf(x), FactsOf(w), FactsOf(out)));
  BT_CHECK(plan.columns == 64 || plan.columns == 96 || plan.columns == 128);
  BT_CHECK(plan.parts >= 1 && plan.tiles >= 1 && plan.tiles <= 2 &&
           plan.parts * plan.tiles <= kBf16Rows1024ClusterMax);
  Bf16Rows1024Params p = {};
  p.first = MatrixOf(out, w, plan);
  p.rows = static_cast<int>(x.dim(0));
  p.steps = static_cast<int>(SharesOf(w.k, kBf16Rows1024Step));
  p.parts = plan.parts;
  p.tiles = plan.tiles;
  p.part_inverse = (65535 + plan.parts) / plan.parts;
  BT_CHECK(p.parts <= p.steps && p.steps * plan.parts < 65536 / kBf16Rows1024ClusterMax);
  p.slice = plan.Slice();
  p.stages = plan.Stages(w.k);
  p.once = p.rows <= kTile * plan.tiles;
  const int64_t box = plan.columns / plan.tiles;
  Bf16Rows1024Maps maps;
  CheckOk(MakeRowsMap(w.data, w.n, w.k, w.k * 2, box, maps.first));
  maps.second = maps.first;
  CheckOk(MakeRowsMap(x.data, x.dim(0), w.k, x.stride[0] * 2, kTile, maps.x));
  if (second != nullptr) {
    BT_CHECK(second->k == w.k && second_out->dim(0) == x.dim(0) && second_out->dim(1) == second->n);
    p.second = MatrixOf(*second_out, *second, plan);
    CheckOk(MakeRowsMap(second->data, second->n, w.k, w.k * 2, box, maps.second));
  }
  if (rotation != nullptr) p.rotation = *rotation;
  const Bf16Rows1024Shape shape{
      .rows = x.dim(0), .k = w.k, .n = w.n, .second_n = second != nullptr ? second->n : 0};
  Regions writes = RegionOf(out);
  if (second_out != nullptr) writes.Add(RegionOf(*second_out));
  const LaunchNote note = WaitsFirst("bf16_rows1024", writes, RegionOf(x));
  const Status launched =
      LaunchBf16Rows1024(plan, LaunchShapeOf(plan, shape), p, maps, note, StreamOf(ctx));
  CheckLaunch("bf16_rows1024");
  CheckOk(launched);
}

}  // namespace

void Bf16Rows1024Product(const OpContext& ctx,
                         const Bf16Rows1024Plan& plan,
                         TensorView out,
                         TensorView x,
                         const PackedMatrix& w) {
  Launch(ctx, plan, out, w, nullptr, nullptr, x, nullptr);
}

void Bf16Rows1024Products(const OpContext& ctx,
                          const Bf16Rows1024Plan& plan,
                          TensorView out,
                          const PackedMatrix& w,
                          TensorView second_out,
                          const PackedMatrix& second,
                          TensorView x) {
  BT_CHECK(Bf16Rows1024Can(FactsOf(x), FactsOf(second), FactsOf(second_out)));
  Launch(ctx, plan, out, w, &second_out, &second, x, nullptr);
}

void Bf16Rows1024Query(const OpContext& ctx,
                       const Bf16Rows1024Plan& plan,
                       const AttentionInputArgs& args) {
  const QueryRotation rotation = QueryRotationOf(args);
  Launch(ctx, plan, FlatQueries(args), args.q_weight, nullptr, nullptr,
         args.qkv_a.columns(0, args.q_weight.k), &rotation);
}

}  // namespace baltoro::cuda
