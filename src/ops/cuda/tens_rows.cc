// Host side of products of tens of rows (tens_rows.h): what is taken, in which form, and the
// descriptions that the kernel is launched with.

#include "ops/cuda/tens_rows.h"

#include <algorithm>

#include "base/check.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/tens_rows_internal.h"
#include "ops/cuda/tensor_map.h"

namespace baltoro::cuda {
namespace {

constexpr int64_t kStep = kTensRowsStep;
constexpr int kMultiprocessors = 132;
// Measured in a layer of a step, H200 (docs/measured/cuda-linear.md): of more rows than these
// cuBLASLt is faster, by 5 us for the queries of 96.
constexpr int64_t kRowsMax = 64;
constexpr int64_t kJoinedRowsMax = 128;
// cuBLASLt reads the vocabulary at 83 % of the bandwidth.
constexpr int64_t kWeightBytesMax = int64_t{80} << 20;

CUtensorMap MapOf(const void* data, int64_t rows, int64_t k, int64_t row_bytes, int box_rows) {
  CUtensorMap map;
  const auto bytes = static_cast<cuuint64_t>(row_bytes);
  CheckOk(MakeTensorMap(
      TensorMapShape{.type = CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
                     .swizzle = CU_TENSOR_MAP_SWIZZLE_128B,
                     .sizes = {static_cast<cuuint64_t>(k), static_cast<cuuint64_t>(rows), 1},
                     .strides = {bytes, bytes * static_cast<cuuint64_t>(rows)},
                     .box = {kTensRowsStep, static_cast<cuuint32_t>(box_rows), 1}},
      data, map));
  return map;
}

int Strips(int64_t n, int groups) {
  const int rows = groups * kTensRowsGroupRows;
  return static_cast<int>((n + rows - 1) / rows);
}

TensRowsMatrix MatrixOf(const TensorView& out, const PackedMatrix& w, int groups) {
  return {.out = out.data,
          .out_stride = out.stride[0],
          .n = static_cast<int>(w.n),
          .strips = Strips(w.n, groups),
          .bf16 = out.dtype == DType::kBf16};
}

void Launch(const OpContext& ctx,
            const TensRowsPlan& plan,
            const TensorView& out,
            const PackedMatrix& w,
            const TensorView* second_out,
            const PackedMatrix* second,
            const TensorView& x,
            const QueryRotation* rotation) {
  BT_CHECK(x.rank == 2 && out.rank == 2 && out.dim(0) == x.dim(0) && out.dim(1) == w.n);
  BT_CHECK(x.dim(1) == w.k && plan.groups > 0);
  const int box_rows = plan.groups * kTensRowsGroupRows;
  TensRowsParams p = {};
  p.first = MatrixOf(out, w, plan.groups);
  p.rows = static_cast<int>(x.dim(0));
  p.steps = static_cast<int>((w.k + kStep - 1) / kStep);
  while (1 << p.log_split < plan.split) ++p.log_split;
  BT_CHECK(1 << p.log_split == plan.split && plan.split <= kTensRowsSplitMax);
  BT_CHECK(plan.split <= p.steps);
  TensRowsMaps maps;
  maps.first = MapOf(w.data, w.n, w.k, w.k * 2, box_rows);
  maps.second = maps.first;
  maps.x = MapOf(x.data, x.dim(0), w.k, x.stride[0] * 2, plan.tile);
  if (second != nullptr) {
    BT_CHECK(second->k == w.k && second_out->dim(0) == x.dim(0) && second_out->dim(1) == second->n);
    p.second = MatrixOf(*second_out, *second, plan.groups);
    maps.second = MapOf(second->data, second->n, w.k, w.k * 2, box_rows);
  }
  if (rotation != nullptr) {
    BT_CHECK(plan.tile <= kRowsMax && plan.tile / 4 / plan.split <= kTensRowsAngles);
    p.rotation = *rotation;
  }
  const Status launched = LaunchTensRows(plan, p, maps, StreamOf(ctx));
  CheckLaunch("tens of rows");
  CheckOk(launched);
}

bool Aligned(const void* data, int64_t row_bytes, int64_t to) {
  return reinterpret_cast<uintptr_t>(data) % static_cast<uintptr_t>(to) == 0 && row_bytes % to == 0;
}

bool TakesMatrix(const TensorView& out, const PackedMatrix& w) {
  return w.form == WeightForm::kBf16 && w.count == 1 && w.n > 0 && w.n % 2 == 0 && w.k % 8 == 0 &&
         w.k >= kStep && w.n * w.k * 2 <= kWeightBytesMax && Aligned(w.data, w.k * 2, 16) &&
         Aligned(out.data, out.stride[0] * SizeOf(out.dtype), 2 * SizeOf(out.dtype));
}

bool TakesRows(const TensorView& x) {
  return x.dtype == DType::kBf16 && x.dim(0) >= 1 && Aligned(x.data, x.stride[0] * 2, 16);
}

bool Suits(int64_t rows, int64_t max) {
  return rows >= kTensRowsMin && rows <= max;
}

TensRowsPlan PlanQuery(const AttentionInputArgs& args) {
  return PlanTensRows(
      {.rows = args.qkv_a.dim(0), .k = args.q_weight.k, .n = args.q_weight.n, .rotates = true});
}

}  // namespace

TensRowsPlan PlanTensRows(const TensRowsShape& shape) {
  const int tile = shape.rows <= 32 ? 32 : shape.rows <= 64 ? 64 : 128;
  if (shape.rotates && tile > kRowsMax) return {};
  const int64_t tiles = (shape.rows + tile - 1) / tile;
  const int64_t steps = (shape.k + kStep - 1) / kStep;
  // Bytes that a multiprocessor reads, and what a meeting of blocks costs in them.
  constexpr int64_t kMeeting = 48 << 10;
  TensRowsPlan best;
  int64_t least = INT64_MAX;
  for (const int groups : {1, 2}) {
    for (int split = 1; split <= kTensRowsSplitMax; split *= 2) {
      if (split > steps || (shape.rotates && tile / 4 / split > kTensRowsAngles)) continue;
      const int64_t strips =
          Strips(shape.n, groups) + (shape.second_n > 0 ? Strips(shape.second_n, groups) : 0);
      const int64_t blocks = strips * split * tiles;
      const int64_t bytes =
          (groups * kTensRowsGroupRows + tile) * ((steps + split - 1) / split) * kStep * 2;
      const int64_t cost = std::max<int64_t>(blocks, kMultiprocessors) * bytes / kMultiprocessors +
                           (split > 1 ? kMeeting : 0);
      if (cost >= least) continue;
      least = cost;
      best = {.groups = groups, .tile = tile, .split = split};
    }
  }
  return best;
}

bool TensRowsTakes(const TensorView& out, const TensorView& x, const PackedMatrix& w) {
  return Suits(x.dim(0), kRowsMax) && TakesRows(x) && TakesMatrix(out, w);
}

bool TensRowsTakes(const TensorView& out,
                   const PackedMatrix& w,
                   const TensorView& second_out,
                   const PackedMatrix& second,
                   const TensorView& x) {
  return Suits(x.dim(0), kJoinedRowsMax) && TakesRows(x) && TakesMatrix(out, w) &&
         TakesMatrix(second_out, second) && w.k == second.k;
}

void TensRowsProductBy(const OpContext& ctx,
                       const TensRowsPlan& plan,
                       TensorView out,
                       TensorView x,
                       const PackedMatrix& w) {
  BT_CHECK(TakesRows(x) && TakesMatrix(out, w));
  Launch(ctx, plan, out, w, nullptr, nullptr, x, nullptr);
}

void TensRowsProduct(const OpContext& ctx, TensorView out, TensorView x, const PackedMatrix& w) {
  const TensRowsPlan plan = PlanTensRows({.rows = x.dim(0), .k = w.k, .n = w.n});
  TensRowsProductBy(ctx, plan, out, x, w);
}

void TensRowsProducts(const OpContext& ctx,
                      TensorView out,
                      const PackedMatrix& w,
                      TensorView second_out,
                      const PackedMatrix& second,
                      TensorView x) {
  BT_CHECK(TakesRows(x) && TakesMatrix(out, w) && TakesMatrix(second_out, second));
  const TensRowsPlan plan =
      PlanTensRows({.rows = x.dim(0), .k = w.k, .n = w.n, .second_n = second.n});
  Launch(ctx, plan, out, w, &second_out, &second, x, nullptr);
}

bool TensRowsQueryTakes(const AttentionInputArgs& args) {
  if (args.q.rank != 3 || args.q.stride[1] != args.q.dim(2)) return false;
  const int64_t width = args.q.dim(2), dim = args.rope.dim;
  const TensorView x = args.qkv_a.columns(0, args.q_weight.k);
  return Suits(x.dim(0), kRowsMax) && TakesRows(x) && args.q.dtype == DType::kBf16 &&
         TakesMatrix(FlatQueries(args), args.q_weight) && dim % 2 == 0 && width % 2 == 0 &&
         args.q_weight.n == args.q.dim(1) * width && PlanQuery(args).groups > 0;
}

void TensRowsQuery(const OpContext& ctx, const AttentionInputArgs& args) {
  const QueryRotation rotation = QueryRotationOf(args);
  Launch(ctx, PlanQuery(args), FlatQueries(args), args.q_weight, nullptr, nullptr,
         args.qkv_a.columns(0, args.q_weight.k), &rotation);
}

}  // namespace baltoro::cuda
