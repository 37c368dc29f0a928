// Host side of products of tens of rows (tens_rows.h): what is taken, in which form, and the
// descriptions that the kernel is launched with.

#include "ops/cuda/tens_rows.h"

#include <algorithm>
#include <atomic>

#include "base/check.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/tens_rows_internal.h"
#include "ops/cuda/tensor_map.h"

namespace baltoro::cuda {
namespace {

constexpr int64_t kStep = kTensRowsStep;
static_assert(kStep == 64);  // MakeRowsMap
constexpr int kMultiprocessors = 132;
// Measured in a layer of a step, H200 (docs/measured/cuda-linear.md): of more rows than these
// cuBLASLt is faster, by 5 us for the queries of 96.
constexpr int64_t kRowsMax = 64;
constexpr int64_t kJoinedRowsMax = 128;
// cuBLASLt reads the vocabulary at 83 % of the bandwidth.
constexpr int64_t kWeightBytesMax = int64_t{80} << 20;

// Of a block, without its barriers: of one that shares its multiprocessor with another of this
// kernel; of one that has it but for small blocks of the next kernel. From kManyRows rows of x on
// larger rings gain more than room for those.
constexpr int64_t kHalf = int64_t{108} << 10, kWhole = int64_t{170} << 10;
constexpr int64_t kWholeOfMany = int64_t{200} << 10, kManyRows = 33;
// For the sums of more rows of x three warpgroups have too few registers.
constexpr int kTallTile = 64;
// Of weights that a block asks for at once, at first: twice what comes in while the memory answers.
constexpr int kEarlyBytes = 72 << 10;

int StripRows(const TensRowsPlan& plan) {
  return plan.strip_rows > 0 ? plan.strip_rows : plan.groups * kTensRowsGroupRows;
}

int Strips(int64_t n, const TensRowsPlan& plan) {
  const int rows = StripRows(plan);
  return static_cast<int>((n + rows - 1) / rows);
}

int64_t Clusters(const TensRowsShape& shape, const TensRowsPlan& plan) {
  const int64_t tiles = (shape.rows + plan.tile - 1) / plan.tile;
  return tiles * (Strips(shape.n, plan) + (shape.second_n > 0 ? Strips(shape.second_n, plan) : 0));
}

int64_t StepsOfBlock(const TensRowsShape& shape, const TensRowsPlan& plan) {
  const int64_t steps = (shape.k + kStep - 1) / kStep;
  return (steps + plan.split - 1) / plan.split;
}

// Of x in a stage: of one tile no more than there are.
int InputRows(int64_t rows, const TensRowsPlan& plan) {
  return static_cast<int>(std::min<int64_t>(plan.tile, (rows + 7) / 8 * 8));
}

// Clusters that run at once where each block has a multiprocessor almost for itself.
int64_t RoomOf(const TensRowsPlan& plan) {
  if (plan.split == 1) return kMultiprocessors;
  constexpr int kTiles = 129;
  static std::atomic<int> known[kTensRowsGroupsMax + 1][kTensRowsSplitMax + 1][kTiles];
  std::atomic<int>& room = known[plan.groups][plan.split][plan.tile];
  if (room == 0) room = std::max(1, TensRowsClusters(plan, static_cast<int>(kWhole) + 1024));
  return room;
}

TensRowsMatrix MatrixOf(const TensorView& out, const PackedMatrix& w, const TensRowsPlan& plan) {
  return {.out = out.data,
          .out_stride = out.stride[0],
          .n = static_cast<int>(w.n),
          .strips = Strips(w.n, plan),
          .bf16 = out.dtype == DType::kBf16};
}

// Weights, x, barriers; sums go where weights and x were. Matrix instructions read whole groups of
// rows and whole tiles, beyond the rows that a stage has.
void PlaceRings(TensRowsParams& p, const TensRowsPlan& plan) {
  p.stages = plan.stages;
  p.inputs = plan.inputs;
  p.stage_bytes = TensRowsStageBytes(p.strip_rows);
  p.input_bytes = TensRowsStageBytes(p.input_rows);
  p.early = std::clamp(kEarlyBytes / p.stage_bytes, 1, p.stages);
  const int inputs_at = p.stages * p.stage_bytes, rings = inputs_at + p.inputs * p.input_bytes;
  const int sums = plan.split > 1 ? TensRowsSumsBytes(plan.groups, plan.tile) : 0;
  p.barriers_at = std::max(rings, sums);
  p.shared =
      std::max({p.barriers_at + 8 * (2 * p.stages + p.inputs + 1),
                inputs_at - p.stage_bytes + TensRowsStageBytes(plan.groups * kTensRowsGroupRows),
                rings - p.input_bytes + TensRowsStageBytes(plan.tile)});
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
  BT_CHECK(x.dim(1) == w.k && plan.groups > 0 && plan.stages > 0 && plan.inputs > 0);
  BT_CHECK(StepsOfBlock({.rows = 0, .k = w.k}, plan) == 1 ||
           std::min(plan.stages, plan.inputs) > 1);
  TensRowsParams p = {};
  p.first = MatrixOf(out, w, plan);
  p.rows = static_cast<int>(x.dim(0));
  p.strip_rows = StripRows(plan);
  p.input_rows = InputRows(x.dim(0), plan);
  BT_CHECK(p.strip_rows % 2 == 0 && p.strip_rows <= plan.groups * kTensRowsGroupRows);
  p.steps = static_cast<int>((w.k + kStep - 1) / kStep);
  while (1 << p.log_split < plan.split) ++p.log_split;
  BT_CHECK(1 << p.log_split == plan.split && plan.split <= kTensRowsSplitMax);
  BT_CHECK(plan.split <= p.steps);
  TensRowsMaps maps;
  CheckOk(MakeRowsMap(w.data, w.n, w.k, w.k * 2, p.strip_rows, maps.first));
  maps.second = maps.first;
  CheckOk(MakeRowsMap(x.data, x.dim(0), w.k, x.stride[0] * 2, p.input_rows, maps.x));
  if (second != nullptr) {
    BT_CHECK(second->k == w.k && second_out->dim(0) == x.dim(0) && second_out->dim(1) == second->n);
    p.second = MatrixOf(*second_out, *second, plan);
    CheckOk(MakeRowsMap(second->data, second->n, w.k, w.k * 2, p.strip_rows, maps.second));
  }
  PlaceRings(p, plan);
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

// Strips as tall as it takes for all clusters of eight to run at once, each block with a
// multiprocessor almost for itself: of [2112, 7168] 8 or 9 of a block's 14 steps of weights are
// asked for early, where of strips of 128 rows only 16 clusters of 17 run at once. groups 0: not.
TensRowsPlan TallPlan(const TensRowsShape& shape, int tile) {
  TensRowsPlan plan = {.groups = kTensRowsGroupsMax, .tile = tile, .split = kTensRowsSplitMax};
  if (tile > kTallTile || shape.rotates || shape.second_n > 0) return {};
  const int64_t room = std::min(RoomOf(plan), int64_t{kMultiprocessors} / plan.split);
  plan.strip_rows = static_cast<int>((shape.n + room - 1) / room + 1) / 2 * 2;
  if (plan.strip_rows > plan.groups * kTensRowsGroupRows) return {};
  return plan;
}

}  // namespace

TensRowsPlan PlanTensRows(const TensRowsShape& shape) {
  const int tile = shape.rows <= 32 ? 32 : shape.rows <= 64 ? 64 : 128;
  if (shape.rotates && tile > kRowsMax) return {};
  const int64_t steps = (shape.k + kStep - 1) / kStep;
  // Bytes that a multiprocessor reads, and what a meeting of blocks costs in them; blocks whose
  // weights would all be there early if there were room for these blocks beside others.
  constexpr int64_t kMeeting = 48 << 10, kLate = 64 << 10, kBeside = 170 << 10;
  TensRowsPlan best;
  int64_t least = INT64_MAX, best_blocks = 0;
  bool best_fits = false;
  for (const int groups : {1, 2}) {
    for (int split = 1; split <= kTensRowsSplitMax; split *= 2) {
      if (split > steps || (shape.rotates && tile / 4 / split > kTensRowsAngles)) continue;
      const TensRowsPlan plan = {.groups = groups, .tile = tile, .split = split};
      const int64_t each = StepsOfBlock(shape, plan);
      const int64_t blocks = Clusters(shape, plan) * split;
      const int64_t bytes = (groups * kTensRowsGroupRows + tile) * each * kStep * 2;
      const int64_t shared = each * (TensRowsStageBytes(StripRows(plan)) +
                                     TensRowsStageBytes(InputRows(shape.rows, plan)));
      const bool late = blocks > kMultiprocessors && shared <= kHalf &&
                        (blocks + kMultiprocessors - 1) / kMultiprocessors * shared > kBeside;
      const int64_t cost = std::max<int64_t>(blocks, kMultiprocessors) * bytes / kMultiprocessors +
                           (split > 1 ? kMeeting : 0) + (late ? kLate : 0);
      if (cost >= least) continue;
      least = cost;
      best = plan;
      best_blocks = blocks;
      best_fits = shared <= kHalf;
    }
  }
  if (best.groups == 0) return {};
  if (best_blocks > kMultiprocessors && !best_fits) {
    const TensRowsPlan tall = TallPlan(shape, tile);
    if (tall.groups > 0) best = tall;
  }
  FitTensRowsRings(shape, best);
  return best;
}

// In clocks of a multiprocessor, for what comes after the wait for the kernel ahead: the weights
// that did not fit, at the rate of the memory, or the rounds of x, whichever takes longer.
void FitTensRowsRings(const TensRowsShape& shape, TensRowsPlan& plan) {
  constexpr int64_t kBytesOfClock = 19;
  // A round's copies are done behind weights that were asked for before them.
  const int64_t round = shape.rows <= kRowsMax ? 2000 : 1300;
  const int64_t steps = StepsOfBlock(shape, plan);
  const int64_t stage = TensRowsStageBytes(StripRows(plan));
  const int64_t input = TensRowsStageBytes(InputRows(shape.rows, plan));
  const bool alone = Clusters(shape, plan) <= RoomOf(plan);
  const int64_t whole = shape.rows < kManyRows ? kWhole : kWholeOfMany;
  const int64_t room = alone ? whole : kHalf;
  int64_t least = INT64_MAX;
  for (int64_t inputs = steps; inputs >= std::min<int64_t>(2, steps); --inputs) {
    const int64_t stages = std::min(steps, (room - inputs * input) / stage);
    if (stages < std::min<int64_t>(2, steps)) continue;
    const int64_t cost = std::max((steps - stages) * stage / kBytesOfClock, steps * round / inputs);
    if (cost >= least) continue;
    least = cost;
    plan.stages = static_cast<int>(stages);
    plan.inputs = static_cast<int>(inputs);
  }
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
