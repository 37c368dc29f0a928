// Host side of products of hundreds of rows (hundred_rows.h): what is taken, in which form, and the
// descriptions that the kernel is launched with.

#include "ops/cuda/hundred_rows.h"

#include <algorithm>
#include <atomic>

#include "base/check.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/h5_switch.h"
#include "ops/cuda/hundred_rows_internal.h"
#include "ops/cuda/tensor_map.h"

namespace baltoro::cuda {
namespace {

constexpr int64_t kStep = kHundredRowsStep;
constexpr int64_t kTile = kHundredRowsTile;
constexpr int kColumns[] = {144, 128, 96, 64};
constexpr int64_t kRowsMax = 512;
constexpr int64_t kJoinedRowsMax = 1024;
// cuBLASLt reads the vocabulary at 83 % of the bandwidth.
constexpr int64_t kWeightBytesMax = int64_t{80} << 20;

int64_t Shares(int64_t of, int64_t size) {
  return (of + size - 1) / size;
}

// Blocks that run at once, one a multiprocessor: clusters do not fill the groups of 16 to 18
// multiprocessors that they lie in.
int RoomOf(int columns, int blocks) {
  static std::atomic<int> known[4][kHundredRowsClusterMax + 1];
  const auto at = std::find(std::begin(kColumns), std::end(kColumns), columns);
  std::atomic<int>& room = known[at - std::begin(kColumns)][blocks];
  if (room == 0) room = std::max(1, HundredRowsClusters(columns, blocks)) * blocks;
  return room;
}

// What a plan should take, in clocks.
int64_t CostOf(const HundredRowsShape& shape, const HundredRowsPlan& plan) {
  // A launch with what comes before the first product and behind the last; a meeting with sums that
  // change hands.
  constexpr int64_t kLaunch = 2000, kMeeting = 1800;
  // Bytes a clock: of a multiprocessor's shared memory, of the L2.
  constexpr int64_t kSharedRate = 128, kCacheRate = 4500;
  const int64_t columns = plan.columns, steps = Shares(Shares(shape.k, kStep), plan.parts);
  const int64_t strips = Shares(shape.n, columns) + Shares(shape.second_n, columns);
  const int64_t tiles = Shares(Shares(shape.rows, kTile), plan.tiles) * plan.tiles;
  const int64_t blocks = strips * tiles * plan.parts;
  const int64_t room = RoomOf(plan.columns, plan.parts * plan.tiles);
  // Of a step, 128 bytes of each row: four products of each of two warpgroups, which read 64 rows
  // of x and all of the weights; what was written to shared memory before.
  const int64_t products = 4 * columns;
  const int64_t written = (kTile + columns) * 128, read = 2 * (64 + columns) * 128;
  const int64_t fetched = (kTile + columns / plan.tiles) * 128 * std::min(blocks, room);
  const int64_t step = std::max({products, (written + read) / kSharedRate, fetched / kCacheRate});
  return Shares(blocks, room) * (steps * step + (plan.parts > 1 ? kMeeting : 0)) + kLaunch;
}

// What cuBLASLt should take of one matrix, likewise (docs/measured/cuda-linear.md: its launch
// begins behind the end of the kernel ahead).
int64_t BlasCostOf(int64_t rows, int64_t n, int64_t k) {
  constexpr int64_t kLaunch = 7900, kBytes = 2170, kProducts = 186'000;
  return n == 0 ? 0 : kLaunch + std::max(2 * n * k / kBytes, rows * n * k / kProducts);
}

bool Pays(const HundredRowsShape& shape) {
  if ((SwitchH5() & kH5More) != 0) return true;
  const HundredRowsPlan plan = PlanHundredRows(shape);
  return plan.columns > 0 &&
         CostOf(shape, plan) < BlasCostOf(shape.rows, shape.n, shape.k) +
                                   BlasCostOf(shape.rows, shape.second_n, shape.k);
}

CUtensorMap MapOf(const void* data, int64_t rows, int64_t k, int64_t row_bytes, int64_t box_rows) {
  CUtensorMap map;
  const auto bytes = static_cast<cuuint64_t>(row_bytes);
  CheckOk(MakeTensorMap(
      TensorMapShape{.type = CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
                     .swizzle = CU_TENSOR_MAP_SWIZZLE_128B,
                     .sizes = {static_cast<cuuint64_t>(k), static_cast<cuuint64_t>(rows), 1},
                     .strides = {bytes, bytes * static_cast<cuuint64_t>(rows)},
                     .box = {kHundredRowsStep, static_cast<cuuint32_t>(box_rows), 1}},
      data, map));
  return map;
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
  BT_CHECK(x.dim(1) == w.k && plan.columns > 0);
  BT_CHECK(plan.parts >= 1 && plan.tiles >= 1 && plan.tiles <= 2 &&
           plan.parts * plan.tiles <= kHundredRowsClusterMax);
  HundredRowsParams p = {};
  p.first = MatrixOf(out, w, plan.columns);
  p.rows = static_cast<int>(x.dim(0));
  p.steps = static_cast<int>(Shares(w.k, kStep));
  p.parts = plan.parts;
  p.tiles = plan.tiles;
  BT_CHECK(p.parts <= p.steps);
  p.slice = static_cast<int>(Shares(kTile, plan.parts));
  p.stages = HundredRowsStages(plan.columns, static_cast<int>(Shares(p.steps, plan.parts)));
  p.once = p.rows <= kTile * plan.tiles;
  const int64_t box = plan.columns / plan.tiles;
  HundredRowsMaps maps;
  maps.first = MapOf(w.data, w.n, w.k, w.k * 2, box);
  maps.second = maps.first;
  maps.x = MapOf(x.data, x.dim(0), w.k, x.stride[0] * 2, kTile);
  if (second != nullptr) {
    BT_CHECK(second->k == w.k && second_out->dim(0) == x.dim(0) && second_out->dim(1) == second->n);
    p.second = MatrixOf(*second_out, *second, plan.columns);
    maps.second = MapOf(second->data, second->n, w.k, w.k * 2, box);
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
         w.k >= kStep && w.n * w.k * 2 <= kWeightBytesMax && Aligned(w.data, w.k * 2, 16) &&
         Aligned(out.data, out.stride[0] * SizeOf(out.dtype), 4 * SizeOf(out.dtype));
}

bool TakesRows(const TensorView& x) {
  return x.dtype == DType::kBf16 && x.dim(0) >= 1 && Aligned(x.data, x.stride[0] * 2, 16);
}

bool Suits(int64_t rows, int64_t max) {
  return rows >= kHundredRowsMin && rows <= max;
}

HundredRowsPlan PlanQuery(const AttentionInputArgs& args) {
  return PlanHundredRows({.rows = args.qkv_a.dim(0), .k = args.q_weight.k, .n = args.q_weight.n});
}

}  // namespace

HundredRowsPlan PlanHundredRows(const HundredRowsShape& shape) {
  HundredRowsPlan best;
  int64_t least = INT64_MAX;
  const int64_t steps = Shares(shape.k, kStep);
  for (const int columns : kColumns) {
    for (int parts = 1; parts <= std::min<int64_t>(kHundredRowsClusterMax, steps); ++parts) {
      for (int tiles = 1; tiles <= 2; ++tiles) {
        if (parts * tiles > kHundredRowsClusterMax) continue;
        if (tiles == 2 && Shares(shape.rows, kTile) % 2 != 0) continue;
        const HundredRowsPlan plan{.columns = columns, .parts = parts, .tiles = tiles};
        const int64_t cost = CostOf(shape, plan);
        if (cost >= least) continue;
        least = cost;
        best = plan;
      }
    }
  }
  return best;
}

bool HundredRowsTakes(const TensorView& out, const TensorView& x, const PackedMatrix& w) {
  const int64_t most = (SwitchH5() & kH5More) != 0 ? kJoinedRowsMax : kRowsMax;
  return Suits(x.dim(0), most) && TakesRows(x) && TakesMatrix(out, w) &&
         (SwitchH5() & (w.k >= 4096 ? kH5Deep : kH5Shallow)) != 0 &&
         Pays({.rows = x.dim(0), .k = w.k, .n = w.n});
}

bool HundredRowsTakes(const TensorView& out,
                      const PackedMatrix& w,
                      const TensorView& second_out,
                      const PackedMatrix& second,
                      const TensorView& x) {
  return Suits(x.dim(0), kJoinedRowsMax) && TakesRows(x) && TakesMatrix(out, w) &&
         TakesMatrix(second_out, second) && w.k == second.k &&
         (SwitchH5() & (x.dim(0) > 128 ? kH5Joined : kH5JoinedFew)) != 0 &&
         Pays({.rows = x.dim(0), .k = w.k, .n = w.n, .second_n = second.n});
}

void HundredRowsProductBy(const OpContext& ctx,
                          const HundredRowsPlan& plan,
                          TensorView out,
                          TensorView x,
                          const PackedMatrix& w) {
  BT_CHECK(TakesRows(x) && TakesMatrix(out, w));
  Launch(ctx, plan, out, w, nullptr, nullptr, x, nullptr);
}

void HundredRowsProduct(const OpContext& ctx, TensorView out, TensorView x, const PackedMatrix& w) {
  HundredRowsProductBy(ctx, PlanHundredRows({.rows = x.dim(0), .k = w.k, .n = w.n}), out, x, w);
}

void HundredRowsProducts(const OpContext& ctx,
                         TensorView out,
                         const PackedMatrix& w,
                         TensorView second_out,
                         const PackedMatrix& second,
                         TensorView x) {
  BT_CHECK(TakesRows(x) && TakesMatrix(out, w) && TakesMatrix(second_out, second));
  const HundredRowsPlan plan =
      PlanHundredRows({.rows = x.dim(0), .k = w.k, .n = w.n, .second_n = second.n});
  Launch(ctx, plan, out, w, &second_out, &second, x, nullptr);
}

bool HundredRowsQueryTakes(const AttentionInputArgs& args) {
  if (args.q.rank != 3 || args.q.stride[1] != args.q.dim(2)) return false;
  const int64_t width = args.q.dim(2), dim = args.rope.dim, rows = args.qkv_a.dim(0);
  const TensorView x = args.qkv_a.columns(0, args.q_weight.k);
  return (SwitchH5() & kH5Queries) != 0 && Suits(rows, kRowsMax) && TakesRows(x) &&
         args.q.dtype == DType::kBf16 && TakesMatrix(FlatQueries(args), args.q_weight) &&
         dim % 4 == 0 && width % 4 == 0 && args.q_weight.n == args.q.dim(1) * width;
}

void HundredRowsQuery(const OpContext& ctx, const AttentionInputArgs& args) {
  const QueryRotation rotation = QueryRotationOf(args);
  Launch(ctx, PlanQuery(args), FlatQueries(args), args.q_weight, nullptr, nullptr,
         args.qkv_a.columns(0, args.q_weight.k), &rotation);
}

}  // namespace baltoro::cuda
