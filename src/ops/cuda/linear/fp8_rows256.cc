// Host side of the FP8 products of 9 to 256 rows (fp8_rows256.h): the descriptions that the kernel
// is launched with.

#include "ops/cuda/linear/fp8_rows256.h"

#include "base/check.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/launch/regions.h"
#include "ops/cuda/launch/tensor_map.h"
#include "ops/cuda/layout/product_layout.h"
#include "ops/cuda/linear/fp8_rows256_internal.h"

namespace baltoro::cuda {
namespace {

constexpr int32_t kBf16Columns = kMiddleBf16Columns;

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

Fp8Rows256Matrix MatrixOf(const TensorView& out, const PackedMatrix& w, int32_t strip_rows) {
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
void Describe(Fp8Rows256Params& p,
              Fp8Rows256Maps& maps,
              const Fp8Rows256Plan& plan,
              const TensorView& out,
              const QuantisedRows& in,
              const PackedMatrix& w) {
  const int64_t rows = out.dim(0);
  BT_CHECK(plan.strip_rows > 0 && out.dim(1) == w.n);
  BT_CHECK(in.x_stride == w.k && in.x_scales_stride == w.k / 128);
  p.rows = static_cast<int32_t>(rows);
  p.tiles = plan.tiles;
  p.parts = plan.parts;
  p.slice = plan.slice;
  p.box_rows = plan.box_rows;
  p.first = MatrixOf(out, w, plan.strip_rows);
  p.x_scales = in.x_scales;
  maps.w = MapOf(w.form, w.data, w.k, w.n, plan.strip_rows);
  maps.x = MapOf(w.form, in.x, w.k, rows, p.box_rows);
  maps.second_w = maps.w;
  maps.second_x = maps.x;
}

// Codes and their scales.
Regions RowsOf(const QuantisedRows& in, int64_t rows) {
  return {RowsRegion(in.x, rows, in.x_stride, in.x_stride),
          RegionOf(in.x_scales, rows * in.x_scales_stride)};
}

void Launch(const OpContext& ctx,
            Fp8Rows256Form form,
            const Fp8Rows256Plan& plan,
            const Fp8Rows256Params& p,
            const Fp8Rows256Maps& maps,
            const LaunchNote& note) {
  const Status launched = LaunchFp8Rows256(form, plan, p, maps, note, StreamOf(ctx));
  CheckLaunch(note.kernel);
  CheckOk(launched);
}

}  // namespace

void Fp8Rows256Product(const OpContext& ctx,
                       const Fp8Rows256Plan& plan,
                       TensorView out,
                       const QuantisedRows& in,
                       const PackedMatrix& w) {
  Fp8Rows256Params p = {};
  Fp8Rows256Maps maps;
  Describe(p, maps, plan, out, in, w);
  const Regions rows = RowsOf(in, out.dim(0));
  LaunchNote note = WaitsFirst("fp8_rows256", RegionOf(out), rows);
  // Rows are read before the wait where they are complete.
  p.early_inputs = StreamOf(ctx).order->IsComplete(rows);
  if (p.early_inputs) note.early_reads = rows;
  Launch(ctx, Fp8Rows256Form::kPlain, plan, p, maps, note);
}

void Fp8Rows256Query(const OpContext& ctx,
                     const Fp8Rows256Plan& plan,
                     const AttentionInputArgs& args,
                     const QuantisedRows& in) {
  Fp8Rows256Params p = {};
  Fp8Rows256Maps maps;
  Describe(p, maps, plan, FlatQueries(args), in, args.q_weight);
  p.rotation = QueryRotationOf(args);
  Launch(ctx, Fp8Rows256Form::kRotates, plan, p, maps, "fp8_rows256, queries");
}

void Fp8Rows256Router(const OpContext& ctx,
                      const Fp8Rows256Plan& plan,
                      const MoeInputArgs& args,
                      const QuantisedRows& in) {
  Fp8Rows256Params p = {};
  Fp8Rows256Maps maps;
  Describe(p, maps, plan, args.shared, in, args.shared_gate_up);
  const PackedMatrix& w = args.router;
  p.second = MatrixOf(args.logits, w, plan.strip_rows);
  maps.second_w = MapOf(w.form, w.data, w.k * 2, w.n, plan.strip_rows);
  maps.second_x = MapOf(w.form, args.x.data, args.x.stride[0] * 2, args.x.dim(0), p.box_rows);
  Regions reads = RowsOf(in, args.x.dim(0));
  reads.Add(RegionOf(args.x));
  Launch(ctx, Fp8Rows256Form::kTwoMatrices, plan, p, maps,
         WaitsFirst("fp8_rows256, with the router", {RegionOf(args.shared), RegionOf(args.logits)},
                    reads));
}

}  // namespace baltoro::cuda
