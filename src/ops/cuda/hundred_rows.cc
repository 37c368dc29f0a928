// Host side of products of hundreds of rows (hundred_rows.h): what is taken, in which form, and the
// descriptions that the kernel is launched with.

#include "ops/cuda/hundred_rows.h"

#include "base/check.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/hundred_rows_internal.h"
#include "ops/cuda/tensor_map.h"

namespace baltoro::cuda {
namespace {

constexpr int64_t kStep = kHundredRowsStep;
static_assert(kStep == 64);  // MakeRowsMap
constexpr int64_t kTile = kHundredRowsTile;
// Fewer rows are for tens_rows.h; of more cuBLASLt fills the card.
constexpr int64_t kQueryRowsMin = 65, kQueryRowsMax = 512;
constexpr int64_t kJoinedRowsMin = 129, kJoinedRowsMax = 1024;
constexpr int64_t kRouterRowsMin = 129, kRouterRowsMax = 512;  // of the router alone

int64_t Shares(int64_t of, int64_t size) {
  return (of + size - 1) / size;
}

HundredRowsMatrix MatrixOf(const TensorView& out, const PackedMatrix& w, int columns) {
  return {.out = out.data,
          .out_stride = out.stride[0],
          .n = static_cast<int>(w.n),
          .strips = static_cast<int>(Shares(w.n, columns)),
          .bf16 = out.dtype == DType::kBf16};
}

void Launch(const OpContext& ctx,
            const HundredRowsPlan& plan,
            const TensorView& out,
            const PackedMatrix& w,
            const TensorView* second_out,
            const PackedMatrix* second,
            const TensorView& x,
            const QueryRotation* rotation) {
  BT_CHECK(x.rank == 2 && out.rank == 2 && out.dim(0) == x.dim(0) && out.dim(1) == w.n);
  BT_CHECK(x.dim(1) == w.k);
  BT_CHECK(plan.columns == 64 || plan.columns == 96 || plan.columns == 128);
  BT_CHECK(plan.parts >= 1 && plan.tiles >= 1 && plan.tiles <= 2 &&
           plan.parts * plan.tiles <= kHundredRowsClusterMax);
  HundredRowsParams p = {};
  p.first = MatrixOf(out, w, plan.columns);
  p.rows = static_cast<int>(x.dim(0));
  p.steps = static_cast<int>(Shares(w.k, kStep));
  p.parts = plan.parts;
  p.tiles = plan.tiles;
  p.part_inverse = (65535 + plan.parts) / plan.parts;
  BT_CHECK(p.parts <= p.steps && p.steps * plan.parts < 65536 / kHundredRowsClusterMax);
  p.slice = static_cast<int>(Shares(kTile, plan.parts));
  p.stages = HundredRowsStages(plan.columns, static_cast<int>(Shares(p.steps, plan.parts)));
  p.once = p.rows <= kTile * plan.tiles;
  const int64_t box = plan.columns / plan.tiles;
  HundredRowsMaps maps;
  CheckOk(MakeRowsMap(w.data, w.n, w.k, w.k * 2, box, maps.first));
  maps.second = maps.first;
  CheckOk(MakeRowsMap(x.data, x.dim(0), w.k, x.stride[0] * 2, kTile, maps.x));
  if (second != nullptr) {
    BT_CHECK(second->k == w.k && second_out->dim(0) == x.dim(0) && second_out->dim(1) == second->n);
    p.second = MatrixOf(*second_out, *second, plan.columns);
    CheckOk(MakeRowsMap(second->data, second->n, w.k, w.k * 2, box, maps.second));
  }
  if (rotation != nullptr) p.rotation = *rotation;
  const Status launched = LaunchHundredRows(plan, p, maps, StreamOf(ctx));
  CheckLaunch("hundreds of rows");
  CheckOk(launched);
}

bool Aligned(const void* data, int64_t row_bytes, int64_t to) {
  return reinterpret_cast<uintptr_t>(data) % static_cast<uintptr_t>(to) == 0 && row_bytes % to == 0;
}

bool TakesMatrix(const TensorView& out, const PackedMatrix& w) {
  return w.form == WeightForm::kBf16 && w.count == 1 && w.n > 0 && w.n % 4 == 0 && w.k % 8 == 0 &&
         w.k >= kStep && Aligned(w.data, w.k * 2, 16) &&
         Aligned(out.data, out.stride[0] * SizeOf(out.dtype), 4 * SizeOf(out.dtype));
}

bool TakesRows(const TensorView& x) {
  return x.dtype == DType::kBf16 && x.dim(0) >= 1 && Aligned(x.data, x.stride[0] * 2, 16);
}

HundredRowsPlan PlanJoined(const PackedMatrix& w, const PackedMatrix& second, int64_t rows) {
  return PlanHundredRows({.rows = rows, .k = w.k, .n = w.n, .second_n = second.n});
}

HundredRowsPlan PlanRouter(const PackedMatrix& w, int64_t rows) {
  return PlanHundredRows({.rows = rows, .k = w.k, .n = w.n});
}

HundredRowsPlan PlanQuery(const AttentionInputArgs& args) {
  return PlanHundredRows({.rows = args.qkv_a.dim(0), .k = args.q_weight.k, .n = args.q_weight.n});
}

}  // namespace

// The most blocks that run at once, with parts of 12 steps or more (queries: two parts); of plans
// with as many the one with narrow strips up to 256 rows, with wide ones above. These were the best
// of all that were measured, or close to it (docs/kernels/products.md).
HundredRowsPlan PlanHundredRows(const HundredRowsShape& shape) {
  // Clusters of 2, 4 or 8 leave a few of the multiprocessors of a group empty, larger numbers in
  // between more of them.
  constexpr int64_t kBlocks = 128, kStepsMin = 12;
  const bool narrow = shape.rows <= 2 * kTile;
  const int64_t steps = Shares(shape.k, kStep), tiles = Shares(shape.rows, kTile);
  HundredRowsPlan best;
  int64_t most = 0;
  for (const int columns : {narrow ? 64 : 128, 96, narrow ? 128 : 64}) {
    HundredRowsPlan plan = {.columns = columns, .parts = 1, .tiles = 1};
    if (columns == 128 && !narrow && tiles % 2 == 0) plan.tiles = 2;
    const int64_t alone = tiles * (Shares(shape.n, columns) + Shares(shape.second_n, columns));
    if (alone > kBlocks / 2) continue;
    while (2 * plan.parts * plan.tiles <= kHundredRowsClusterMax &&
           2 * plan.parts * alone <= kBlocks && 2 * plan.parts * kStepsMin <= steps) {
      plan.parts *= 2;
    }
    if (plan.parts * alone <= most) continue;
    most = plan.parts * alone;
    best = plan;
  }
  return best;
}

bool HundredRowsTakes(const TensorView& out,
                      const PackedMatrix& w,
                      const TensorView& second_out,
                      const PackedMatrix& second,
                      const TensorView& x) {
  const int64_t rows = x.dim(0);
  return rows >= kJoinedRowsMin && rows <= kJoinedRowsMax && TakesRows(x) && TakesMatrix(out, w) &&
         TakesMatrix(second_out, second) && w.k == second.k &&
         PlanJoined(w, second, rows).columns > 0;
}

bool HundredRowsRouterTakes(const TensorView& logits, const PackedMatrix& w, const TensorView& x) {
  const int64_t rows = x.dim(0);
  return rows >= kRouterRowsMin && rows <= kRouterRowsMax && TakesRows(x) &&
         TakesMatrix(logits, w) && PlanRouter(w, rows).parts > 1;
}

void HundredRowsRouter(const OpContext& ctx,
                       TensorView logits,
                       const PackedMatrix& w,
                       TensorView x) {
  BT_CHECK(HundredRowsRouterTakes(logits, w, x));
  Launch(ctx, PlanRouter(w, x.dim(0)), logits, w, nullptr, nullptr, x, nullptr);
}

void HundredRowsProductBy(const OpContext& ctx,
                          const HundredRowsPlan& plan,
                          TensorView out,
                          TensorView x,
                          const PackedMatrix& w) {
  BT_CHECK(TakesRows(x) && TakesMatrix(out, w));
  Launch(ctx, plan, out, w, nullptr, nullptr, x, nullptr);
}

void HundredRowsProducts(const OpContext& ctx,
                         TensorView out,
                         const PackedMatrix& w,
                         TensorView second_out,
                         const PackedMatrix& second,
                         TensorView x) {
  BT_CHECK(TakesRows(x) && TakesMatrix(out, w) && TakesMatrix(second_out, second));
  Launch(ctx, PlanJoined(w, second, x.dim(0)), out, w, &second_out, &second, x, nullptr);
}

bool HundredRowsQueryTakes(const AttentionInputArgs& args) {
  if (args.q.rank != 3 || args.q.stride[1] != args.q.dim(2)) return false;
  const int64_t width = args.q.dim(2), dim = args.rope.dim, rows = args.qkv_a.dim(0);
  const TensorView x = args.qkv_a.columns(0, args.q_weight.k);
  return rows >= kQueryRowsMin && rows <= kQueryRowsMax && TakesRows(x) &&
         Aligned(args.rope.cos, 8, 8) && Aligned(args.rope.sin, 8, 8) &&
         args.q.dtype == DType::kBf16 && TakesMatrix(FlatQueries(args), args.q_weight) &&
         dim % 4 == 0 && width % 4 == 0 && args.q_weight.n == args.q.dim(1) * width &&
         PlanQuery(args).columns > 0;
}

void HundredRowsQuery(const OpContext& ctx, const AttentionInputArgs& args) {
  const QueryRotation rotation = QueryRotationOf(args);
  Launch(ctx, PlanQuery(args), FlatQueries(args), args.q_weight, nullptr, nullptr,
         args.qkv_a.columns(0, args.q_weight.k), &rotation);
}

}  // namespace baltoro::cuda
