#pragma once

// The contract of a picture encoder's operations (MoonViT-3D and its projector, model-family §8.3
// and §8.4). All pictures of a batch are computed together, whatever their sizes, without padding:
// their patches lie one after the other, those of a picture frame by frame, row by row. Nothing of
// a picture depends on the others, bit for bit on the CPU.
//
// Letters in shapes: N patches of the batch, H hidden, h heads, d head size, M tokens of the batch,
// I intermediate, G patches merged to one token, P inner width of the projector. Of a block h d is
// H, and of a part of one, which some heads and columns are, less.
//
// "act" is the activation type of the OpsTable. The residual stream x is f32, sums run in f32.
// Inputs of products, and queries, keys, values and probabilities in attention, are rounded to act;
// nothing else is. Weights are matrices in a plain form; norms, biases and tables are f32.
//
// As in ops.h: shapes are checked by the backend, tensors lie in its memory, spans are read from
// host memory before the call returns, one thread calls. An operation takes its memory from
// OpContext::scratch, which the caller resets between operations.

#include <cstdint>
#include <span>
#include <string>

#include "ops/context.h"
#include "ops/matrix.h"
#include "tensor/tensor_view.h"

namespace baltoro {

// A picture, or some frames of a video that are one item: its patches.
struct PictureGrid {
  int32_t frames = 1, rows = 0, columns = 0;
  int64_t patches() const { return int64_t{frames} * rows * columns; }
  bool operator==(const PictureGrid&) const = default;
};

struct LayerNormWeights {
  TensorView weight, bias;  // [width] f32
  float eps = 0;
};

// y = x W^T + bias
struct BiasedMatrix {
  PackedMatrix matrix;  // [n, k]
  TensorView bias;      // [n] f32
};

struct EmbedPatchesArgs {
  TensorView x;  // [N, H] f32, written
  // [N, 3 * patch * patch] u8: channel, y, x. A value v of channel c stands for v * scale[c] +
  // shift[c], rounded to act.
  TensorView pixels;
  float scale[3] = {}, shift[3] = {};
  BiasedMatrix projection;  // [H, 3 * patch * patch]
  // [rows, columns, H] f32: learned for a grid of this size, and for other grids interpolated as
  // PyTorch does it (bicubic, a = -0.75, corners not aligned, edges repeated).
  TensorView positions;
  TensorView times;  // [frames_max, H] f32: added to frame f of pictures of several frames
  std::span<const PictureGrid> grids;
};

struct VisionBlockArgs {
  TensorView x;  // [N, H] f32: x + o(attention(norm(x))), then x + down(gelu(up(norm(x))))
  LayerNormWeights attention_norm, mlp_norm;
  BiasedMatrix qkv;       // [3 h d, H]: rows of all queries, all keys, all values, head by head
  BiasedMatrix o;         // [H, h d]
  BiasedMatrix up, down;  // [I, H], [H, I]; GELU by tanh between them
  // [side, d / 4] f32: of the angles c * f_i, for columns and rows alike. Elements 4 i and 4 i + 1
  // of a head are rotated by the patch's column, 4 i + 2 and 4 i + 3 by its row.
  TensorView cos, sin;
  // Each patch sees all patches of its picture, those of other frames too.
  std::span<const PictureGrid> grids;
  int32_t heads = 0;
  // Of parts: what is computed takes the place of x instead of being added to it, so that the sum
  // over ranks, of which one adds, is what a whole block's half makes of x.
  bool replaces = false;
};

// Norm of x; mean over a picture's frames; merge_rows x merge_columns neighbours, each under the
// second norm, side by side, row by row; first, GELU by erf, second. Tokens of a picture follow
// each other row by row.
struct ProjectPicturesArgs {
  TensorView out;                     // [M, text hidden] f32, written
  TensorView x;                       // [N, H] f32
  LayerNormWeights norm, merge_norm;  // of H both
  BiasedMatrix first, second;         // [P, G H], [text hidden, P]
  int32_t merge_rows = 2, merge_columns = 2;
  std::span<const PictureGrid> grids;  // sides are multiples of merge_rows and merge_columns
};

// Widths from which scratch is reckoned.
struct VisionWidths {
  int64_t hidden = 0, intermediate = 0;
  int32_t heads = 0;
  int64_t pixels = 0;     // of a patch
  int64_t merged = 0;     // G H
  int64_t projector = 0;  // P
  int64_t text_hidden = 0;
};

struct VisionOps {
  void (*embed)(const OpContext&, const EmbedPatchesArgs&) = nullptr;
  void (*block)(const OpContext&, const VisionBlockArgs&) = nullptr;
  void (*project)(const OpContext&, const ProjectPicturesArgs&) = nullptr;
  // The halves of a block, up to `o` and behind it, of some heads and columns; the norms, and the
  // weights of the half alone, are read. Null: this backend has whole blocks alone.
  void (*attention_part)(const OpContext&, const VisionBlockArgs&) = nullptr;
  void (*mlp_part)(const OpContext&, const VisionBlockArgs&) = nullptr;
  // The most scratch that any of them takes, in bytes, for a batch of up to `patches` patches on
  // `threads` threads.
  int64_t (*scratch_bytes)(const VisionWidths&, int64_t patches, int threads) = nullptr;
  // What of an encoder of these widths the backend has no kernel for, with what it takes; empty:
  // nothing. Null: there is nothing that it does not take.
  std::string (*refuses)(const VisionWidths&) = nullptr;
};

// Why a backend, whose name and operations these are, computes no encoder of these widths; empty:
// it does. `vision` may be null.
inline std::string WhyNoPictures(const char* name,
                                 const VisionOps* vision,
                                 const VisionWidths& widths) {
  const std::string backend(name);
  if (vision == nullptr) return backend + " has no operations for pictures; a CPU has them";
  if (vision->refuses == nullptr) return {};
  const std::string what = vision->refuses(widths);
  return what.empty() ? what : backend + " has no operations for " + what + "; a CPU has them";
}

// Those of ReferenceOps() and CpuOps(act).
const VisionOps& ReferenceVisionOps();
const VisionOps& CpuVisionOps(DType act);

}  // namespace baltoro
