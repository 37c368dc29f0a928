// A picture encoder from four kinds of kernels: products with what follows them in registers,
// attention over packed pictures, norms, and what prepares patches.
//
// Floor of a block of N patches: its products and attention's (picture_attention.h). Beside them
// stand two norms, which read x and write half of it.

#include "ops/cuda/vision/vision.h"

#include <algorithm>
#include <string>

#include "ops/check_vision.h"
#include "ops/cuda/choose/facts.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/vision/picture_attention.h"
#include "ops/cuda/vision/picture_product.h"
#include "ops/cuda/vision/picture_rows.h"
#include "ops/gpu_vision.h"

namespace baltoro::cuda {
namespace {

using gpu_vision::kRowStep;
using gpu_vision::MiddleRows;
using gpu_vision::RoundUp;
using gpu_vision::RowsBytes;
using gpu_vision::WideBytes;

static_assert(sizeof(PicturePlace) == gpu_vision::kPlaceBytes);
static_assert(sizeof(AttentionTile) == gpu_vision::kTileBytes);

// [rows, width] bf16 at `data`.
TensorView RowsAt(void* data, int64_t rows, int64_t width) {
  TensorView view(data, DType::kBf16, {rows, width});
  view.stride[0] = RoundUp(width, kRowStep);
  return view;
}

TensorView Rows(const OpContext& ctx, int64_t rows, int64_t width) {
  return RowsAt(ctx.scratch->Allocate(static_cast<size_t>(RowsBytes(rows, width))), rows, width);
}

// The matrix as the copy engine takes it: itself, or where its rows are not aligned (patches of 3 x
// 14 x 14 elements) a copy in scratch.
TensorView Aligned(const OpContext& ctx, const PackedMatrix& w) {
  BT_CHECK(w.form == WeightForm::kBf16);
  if (w.k % kRowStep == 0) return {const_cast<void*>(w.data), DType::kBf16, {w.n, w.k}};
  const TensorView copy = Rows(ctx, w.n, w.k);
  CopyMatrix(ctx, copy, w);
  return copy;
}

void EmbedPatches(const OpContext& ctx, const EmbedPatchesArgs& args) {
  CheckEmbedPatches(args);
  const int64_t total = args.x.dim(0);
  if (total == 0) return;
  const TensorView w = Aligned(ctx, args.projection.matrix);
  const TensorView values = Rows(ctx, total, args.pixels.dim(1));
  PatchPositions(ctx, args, UploadPlaces(ctx, args.grids, 1));
  PatchValues(ctx, values, args);
  PictureProduct(
      ctx,
      {.out = args.x, .x = values, .w = w, .bias = args.projection.bias, .end = ProductEnd::kAdd});
}

// Into `out` [N, H] bf16, by way of `wide`.
void Attend(const OpContext& ctx, const VisionBlockArgs& args, const TensorView& out, char* wide) {
  const int64_t total = args.x.dim(0), hidden = args.x.dim(1);
  auto* const place = ctx.scratch->AllocateArray<uint32_t>(static_cast<size_t>(total));
  PatchPlaces(ctx, place, total, UploadPlaces(ctx, args.grids, 1));
  PictureNorm(ctx, out, args.x, args.attention_norm);
  const TensorView w = Aligned(ctx, args.qkv.matrix);
  const TensorView qk = RowsAt(wide, total, 2 * hidden);
  PictureProduct(ctx, {.out = qk,
                       .x = out,
                       .w = w.rows(0, 2 * hidden),
                       .bias = args.qkv.bias.rows(0, 2 * hidden),
                       .end = ProductEnd::kRotate,
                       .rotation = {.places = place,
                                    .cos = args.cos.as<const float>(),
                                    .sin = args.sin.as<const float>(),
                                    .head = static_cast<int32_t>(hidden / args.heads)}});
  // Turned, since attention sums over patches.
  const TensorView values = RowsAt(wide + RowsBytes(total, 2 * hidden), hidden, total);
  PictureProduct(ctx, {.out = values,
                       .x = w.rows(2 * hidden, hidden),
                       .w = out,
                       .bias = args.qkv.bias.rows(2 * hidden, hidden),
                       .end = ProductEnd::kTurned});
  PictureAttention(ctx, {.out = out,
                         .qk = qk,
                         .values = values,
                         .tiles = UploadTiles(ctx, args.grids),
                         .heads = args.heads});
}

void VisionBlock(const OpContext& ctx, const VisionBlockArgs& args) {
  CheckVisionBlock(args);
  const int64_t total = args.x.dim(0), hidden = args.x.dim(1), between = args.up.matrix.n;
  if (total == 0) return;
  const TensorView narrow = Rows(ctx, total, hidden);
  const int64_t wide_bytes = WideBytes(total, hidden, between);
  char* const wide = ctx.scratch->AllocateArray<char>(static_cast<size_t>(wide_bytes));
  Attend(ctx, args, narrow, wide);
  PictureProduct(ctx, {.out = args.x,
                       .x = narrow,
                       .w = Aligned(ctx, args.o.matrix),
                       .bias = args.o.bias,
                       .end = ProductEnd::kAdd});
  PictureNorm(ctx, narrow, args.x, args.mlp_norm);
  const TensorView up = Aligned(ctx, args.up.matrix), down = Aligned(ctx, args.down.matrix);
  const int64_t chunk = MiddleRows(total, hidden, between);
  for (int64_t first = 0; first < total; first += chunk) {
    const int64_t count = std::min(chunk, total - first);
    const TensorView middle = RowsAt(wide, count, between);
    PictureProduct(ctx, {.out = middle,
                         .x = narrow.rows(first, count),
                         .w = up,
                         .bias = args.up.bias,
                         .end = ProductEnd::kGeluTanh});
    PictureProduct(ctx, {.out = args.x.rows(first, count),
                         .x = middle,
                         .w = down,
                         .bias = args.down.bias,
                         .end = ProductEnd::kAdd});
  }
}

void ProjectPictures(const OpContext& ctx, const ProjectPicturesArgs& args) {
  CheckProjectPictures(args);
  const int64_t total = args.out.dim(0);
  if (total == 0) return;
  const TensorView merged = Rows(ctx, total, args.first.matrix.k);
  const TensorView middle = Rows(ctx, total, args.first.matrix.n);
  MergePatches(ctx, merged, args,
               UploadPlaces(ctx, args.grids, args.merge_rows * args.merge_columns));
  PictureProduct(ctx, {.out = middle,
                       .x = merged,
                       .w = Aligned(ctx, args.first.matrix),
                       .bias = args.first.bias,
                       .end = ProductEnd::kGeluErf});
  PictureProduct(ctx, {.out = args.out,
                       .x = middle,
                       .w = Aligned(ctx, args.second.matrix),
                       .bias = args.second.bias,
                       .end = ProductEnd::kStore});
}

}  // namespace

const VisionOps& CudaVisionOps() {
  static const VisionOps kOps = {.embed = EmbedPatches,
                                 .block = VisionBlock,
                                 .project = ProjectPictures,
                                 .scratch_bytes = gpu_vision::ScratchBytes,
                                 .refuses = gpu_vision::Refuses};
  return kOps;
}

}  // namespace baltoro::cuda
