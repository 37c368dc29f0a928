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

namespace baltoro::cuda {
namespace {

constexpr int64_t kAlignment = 256;  // of an arena
constexpr int64_t kRowTile = 128;    // of a product
constexpr int64_t kRowStep = 8;  // elements: rows that the copy engine reads are 16-byte aligned

int64_t RoundUp(int64_t value, int64_t step) {
  return (value + step - 1) / step * step;
}

int64_t RowsBytes(int64_t rows, int64_t width) {
  return RoundUp(rows * RoundUp(width, kRowStep) * 2, kAlignment);
}

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
int64_t AlignedBytes(int64_t n, int64_t k) {
  return k % kRowStep == 0 ? 0 : RowsBytes(n, k);
}

int64_t PlacesBytes(int64_t patches) {
  return RoundUp(patches * int64_t{sizeof(uint32_t)}, kAlignment);
}

// Queries, keys and values of a block, [N, 2 H] and [H, N]; later what is between the two products
// of the MLP, for as many rows at once as have room there.
int64_t WideBytes(int64_t patches, int64_t hidden, int64_t intermediate) {
  return std::max(RowsBytes(patches, 2 * hidden) + RowsBytes(hidden, patches),
                  RowsBytes(std::min(patches, kRowTile), intermediate));
}
int64_t MiddleRows(int64_t patches, int64_t hidden, int64_t intermediate) {
  const int64_t fit =
      WideBytes(patches, hidden, intermediate) / (RoundUp(intermediate, kRowStep) * 2);
  return std::min(patches, std::max(fit / kRowTile, int64_t{1}) * kRowTile);
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

int64_t ScratchBytes(const VisionWidths& w, int64_t patches, int) {
  // Of a batch of pictures of one patch, the most that there can be.
  const int64_t places = RoundUp(patches * int64_t{sizeof(PicturePlace)}, kAlignment);
  const int64_t tiles = RoundUp(patches * int64_t{sizeof(AttentionTile)}, kAlignment);
  const int64_t embed = AlignedBytes(w.hidden, w.pixels) + RowsBytes(patches, w.pixels) + places;
  const int64_t block = RowsBytes(patches, w.hidden) +
                        WideBytes(patches, w.hidden, w.intermediate) + PlacesBytes(patches) +
                        places + tiles + AlignedBytes(3 * w.hidden, w.hidden) +
                        AlignedBytes(w.hidden, w.hidden) + AlignedBytes(w.intermediate, w.hidden) +
                        AlignedBytes(w.hidden, w.intermediate);
  const int64_t tokens = (patches * w.hidden + w.merged - 1) / w.merged;
  const int64_t project = RowsBytes(tokens, w.merged) + RowsBytes(tokens, w.projector) + places +
                          AlignedBytes(w.projector, w.merged) +
                          AlignedBytes(w.text_hidden, w.projector);
  return std::max({embed, block, project});
}

std::string Refuses(const VisionWidths& w) {
  const int64_t head = w.heads > 0 ? w.hidden / w.heads : 0;
  if (head % 8 != 0 || head > kPictureHeadMax) {
    return "heads of " + std::to_string(head) + " elements; a GPU takes multiples of 8 up to " +
           std::to_string(kPictureHeadMax);
  }
  if (w.hidden > kPictureWidthMax) {
    return "a hidden size of " + std::to_string(w.hidden) + "; a GPU takes " +
           std::to_string(kPictureWidthMax) + " at most";
  }
  return {};
}

}  // namespace

const VisionOps& CudaVisionOps() {
  static const VisionOps kOps = {.embed = EmbedPatches,
                                 .block = VisionBlock,
                                 .project = ProjectPictures,
                                 .scratch_bytes = ScratchBytes,
                                 .refuses = Refuses};
  return kOps;
}

}  // namespace baltoro::cuda
