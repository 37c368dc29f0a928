// Host side of the FP8 products of 9 to 256 rows (fp8_middle.h): what is taken, how it is cut up,
// and the descriptions that the kernel is launched with.

#include "ops/cuda/fp8_middle.h"

#include <algorithm>
#include <atomic>

#include "base/check.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/fp8_middle_internal.h"
#include "ops/cuda/product_layout.h"
#include "ops/cuda/tensor_map.h"

namespace baltoro::cuda {
namespace {

constexpr int kRowsMin = 9, kRowsMax = 256;
constexpr int kMultiprocessors = 132;  // of the cards this is tuned for
constexpr int32_t kBf16Columns = 64;   // of a step of 128 bytes
constexpr int64_t kColumnsMin = 256;

// Rows of weights of a block and parts of the columns.
struct Cut {
  int32_t strip_rows = 0, parts = 0;
};

// What is cut: one matrix, or two whose blocks are of one kind. Steps are 128 bytes of a row.
struct Shape {
  int64_t rows = 0, n = 0, steps = 0;
  int64_t second_n = 0, second_steps = 0;

  int64_t Strips(int64_t strip_rows) const {
    return (n + strip_rows - 1) / strip_rows + (second_n + strip_rows - 1) / strip_rows;
  }
  int64_t StepsOfPart(int64_t parts) const {
    return (std::max(steps, second_steps) + parts - 1) / parts;
  }
};

// Rows that are fetched for a tile.
int32_t Padded(int64_t rows) {
  return static_cast<int32_t>(RoundUp(std::min<int64_t>(rows, kMiddleRowsMax), 8));
}

int64_t Tiles(int64_t rows) {
  return (rows + kMiddleRowsMax - 1) / kMiddleRowsMax;
}

// What depends on the rows and the cut.
void Furnish(MiddleParams& p, const Cut& cut, int64_t rows) {
  p.rows = static_cast<int32_t>(rows);
  p.tiles = static_cast<int32_t>(Tiles(rows));
  p.parts = cut.parts;
  p.slice = (Padded(rows) + cut.parts - 1) / cut.parts;
  p.box_rows = Padded(rows);
}

// Blocks that run at once: clusters do not fill the groups of 16 to 18 multiprocessors that they
// lie in.
int32_t RoomOf(const Cut& cut, const MiddleParams& p) {
  static std::atomic<int32_t> known[3][kMiddlePartsMax + 1][kMiddleRowsMax / 8 + 1];
  std::atomic<int32_t>& room = known[cut.strip_rows / 32 - 1][cut.parts][p.box_rows / 8];
  if (room == 0) {
    const int32_t bytes = MiddleSharedBytes(cut.strip_rows, p);
    room = std::max(1, MiddleClusters(cut.strip_rows, cut.parts, bytes) * cut.parts);
  }
  return room;
}

// Of the cuts whose blocks all run at once the one that should take the shortest time, in ns, by
// what a multiprocessor can read from the L2 while all do ([2112, 7168] by 64 rows: 7.2 us,
// measured 8.4). Clusters that come after others cost far more than that: their rings start empty.
// None: strip_rows 0.
Cut ChooseCut(const Shape& shape, int32_t strip_rows_max) {
  constexpr int64_t kBytesOfNs = 42, kSumCost = 1000;
  Cut best;
  int64_t least = INT64_MAX;
  for (const int32_t strip_rows : {96, 64, 32}) {
    if (strip_rows > strip_rows_max) continue;
    for (int32_t parts = 1; parts <= kMiddlePartsMax; ++parts) {
      const int64_t each = shape.StepsOfPart(parts);
      const bool too_short = shape.second_n > 0 && parts > shape.second_steps;
      if (each > kMiddleStepsMax || parts > shape.steps || too_short) continue;
      MiddleParams furnished = {};
      Furnish(furnished, {strip_rows, parts}, shape.rows);
      const int64_t blocks = shape.Strips(strip_rows) * parts * furnished.tiles;
      const int64_t room = RoomOf({strip_rows, parts}, furnished);
      if (blocks > room) continue;
      // Blocks of a multiprocessor share what it can read.
      const int64_t most = (room + kMultiprocessors - 1) / kMultiprocessors, usable = room / most;
      const int64_t beside = (blocks + usable - 1) / usable;
      const int64_t bytes = each * (strip_rows + Padded(shape.rows)) * 128;
      const int64_t cost = beside * bytes / kBytesOfNs + (parts > 1 ? kSumCost : 0);
      if (cost >= least) continue;
      least = cost;
      best = {strip_rows, parts};
    }
  }
  return best;
}

CUtensorMap MapOf(WeightForm form, const void* data, int64_t row_bytes, int64_t rows, int32_t box) {
  const bool bf16 = form == WeightForm::kBf16;
  CUtensorMap map;
  const Status mapped = MakeTensorMap(
      TensorMapShape{
          .type = bf16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_UINT8,
          .swizzle = CU_TENSOR_MAP_SWIZZLE_128B,
          .sizes = {static_cast<cuuint64_t>(bf16 ? row_bytes / 2 : row_bytes),
                    static_cast<cuuint64_t>(rows), 1},
          .strides = {static_cast<cuuint64_t>(row_bytes),
                      static_cast<cuuint64_t>(row_bytes * rows)},
          .box = {static_cast<cuuint32_t>(bf16 ? kBf16Columns : 128), static_cast<cuuint32_t>(box),
                  1}},
      data, map);
  BT_CHECK(mapped.ok());
  return map;
}

bool Aligned(const void* data, int64_t row_bytes, int64_t to) {
  return reinterpret_cast<uintptr_t>(data) % static_cast<uintptr_t>(to) == 0 && row_bytes % to == 0;
}

bool TakesOut(const TensorView& out) {
  const int64_t bytes = SizeOf(out.dtype);
  return Aligned(out.data, out.stride[0] * bytes, 4 * bytes);
}

// All but the choice.
bool TakesMatrix(const TensorView& out, const PackedMatrix& w) {
  const int64_t rows = out.dim(0);
  return w.form == WeightForm::kFp8Block && w.quantise_input && w.count == 1 && w.n > 0 &&
         w.n % 8 == 0 && w.k % 128 == 0 && w.k >= kColumnsMin && rows >= kRowsMin &&
         rows <= kRowsMax && Aligned(w.data, 0, 16) && TakesOut(out);
}

MiddleMatrix MatrixOf(const TensorView& out, const PackedMatrix& w, int32_t strip_rows) {
  const ProductLayout layout = LayoutOf(w.form, w.n, w.k);
  const bool coded = w.form == WeightForm::kFp8Block;
  const char* const scales = static_cast<const char*>(w.data) + layout.scales;
  return {.scales = coded ? reinterpret_cast<const float*>(scales) : nullptr,
          .n = static_cast<int32_t>(w.n),
          .steps = static_cast<int32_t>(coded ? w.k / 128 : w.k / kBf16Columns),
          .strips = static_cast<int32_t>((w.n + strip_rows - 1) / strip_rows),
          .out = out.data,
          .out_stride = out.stride[0],
          .bf16 = out.dtype == DType::kBf16};
}

// `p` and `maps` of the first matrix and its rows.
void Describe(MiddleParams& p,
              MiddleMaps& maps,
              const Cut& cut,
              const Shape& shape,
              const TensorView& out,
              const QuantisedRows& in,
              const PackedMatrix& w) {
  BT_CHECK(cut.strip_rows > 0 && out.dim(0) == shape.rows && out.dim(1) == w.n);
  BT_CHECK(in.x_stride == w.k && in.x_scales_stride == shape.steps);
  Furnish(p, cut, shape.rows);
  p.first = MatrixOf(out, w, cut.strip_rows);
  p.x_scales = in.x_scales;
  maps.w = MapOf(w.form, w.data, w.k, w.n, cut.strip_rows);
  maps.x = MapOf(w.form, in.x, w.k, shape.rows, p.box_rows);
  maps.second_w = maps.w;
  maps.second_x = maps.x;
}

void Launch(const OpContext& ctx,
            MiddleForm form,
            const Cut& cut,
            const MiddleParams& p,
            const MiddleMaps& maps) {
  const Status launched = LaunchMiddle(form, cut.strip_rows, p, maps, StreamOf(ctx));
  CheckLaunch("FP8 product of tens of rows");
  CheckOk(launched);
}

Shape ShapeOf(int64_t rows, const PackedMatrix& w) {
  return {.rows = rows, .n = w.n, .steps = w.k / 128};
}

Shape ShapeOf(const MoeInputArgs& args) {
  Shape shape = ShapeOf(args.x.dim(0), args.shared_gate_up);
  shape.second_n = args.router.n;
  shape.second_steps = args.router.k / kBf16Columns;
  return shape;
}

// Strips of the forms that do more than a product.
constexpr int32_t kFullStripRows = 96, kStripRows = 64;

}  // namespace

bool Fp8MiddleTakes(const TensorView& out, const PackedMatrix& w) {
  return TakesMatrix(out, w) && ChooseCut(ShapeOf(out.dim(0), w), kFullStripRows).strip_rows > 0;
}

void Fp8MiddleProduct(const OpContext& ctx,
                      TensorView out,
                      const QuantisedRows& in,
                      const PackedMatrix& w,
                      bool rows_before) {
  const Shape shape = ShapeOf(out.dim(0), w);
  const Cut cut = ChooseCut(shape, kFullStripRows);
  MiddleParams p = {};
  p.rows_before = rows_before;
  MiddleMaps maps;
  Describe(p, maps, cut, shape, out, in, w);
  Launch(ctx, MiddleForm::kPlain, cut, p, maps);
}

bool Fp8MiddleQueryTakes(const AttentionInputArgs& args) {
  if (args.q.rank != 3 || args.q.stride[1] != args.q.dim(2)) return false;
  const PackedMatrix& w = args.q_weight;
  const int64_t width = args.q.dim(2), dim = args.rope.dim;
  return Aligned(args.rope.cos, 8, 8) && Aligned(args.rope.sin, 8, 8) &&
         args.q.dtype == DType::kBf16 && dim % 4 == 0 && width % 4 == 0 &&
         w.n == args.q.dim(1) * width && TakesMatrix(FlatQueries(args), w) &&
         ChooseCut(ShapeOf(args.q.dim(0), w), kStripRows).strip_rows > 0;
}

void Fp8MiddleQuery(const OpContext& ctx, const AttentionInputArgs& args, const QuantisedRows& in) {
  const Shape shape = ShapeOf(args.qkv_a.dim(0), args.q_weight);
  const Cut cut = ChooseCut(shape, kStripRows);
  MiddleParams p = {};
  MiddleMaps maps;
  Describe(p, maps, cut, shape, FlatQueries(args), in, args.q_weight);
  p.rotation = QueryRotationOf(args);
  Launch(ctx, MiddleForm::kRotates, cut, p, maps);
}

bool Fp8MiddleRouterTakes(const MoeInputArgs& args) {
  const PackedMatrix &w = args.shared_gate_up, &router = args.router;
  return args.norm == nullptr && TakesMatrix(args.shared, w) && router.form == WeightForm::kBf16 &&
         router.count == 1 && router.k == w.k && router.n % 4 == 0 &&
         Aligned(router.data, router.k * 2, 16) && args.x.dtype == DType::kBf16 &&
         Aligned(args.x.data, args.x.stride[0] * 2, 16) && TakesOut(args.logits) &&
         ChooseCut(ShapeOf(args), kStripRows).strip_rows > 0;
}

void Fp8MiddleRouter(const OpContext& ctx, const MoeInputArgs& args, const QuantisedRows& in) {
  const Shape shape = ShapeOf(args);
  const Cut cut = ChooseCut(shape, kStripRows);
  MiddleParams p = {};
  MiddleMaps maps;
  Describe(p, maps, cut, shape, args.shared, in, args.shared_gate_up);
  const PackedMatrix& w = args.router;
  p.second = MatrixOf(args.logits, w, cut.strip_rows);
  maps.second_w = MapOf(w.form, w.data, w.k * 2, w.n, cut.strip_rows);
  maps.second_x = MapOf(w.form, args.x.data, args.x.stride[0] * 2, shape.rows, p.box_rows);
  Launch(ctx, MiddleForm::kJoined, cut, p, maps);
}

}  // namespace baltoro::cuda
