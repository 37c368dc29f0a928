#pragma once

// What a picture encoder does row by row. Floor of each: the bytes of its rows.

#include "ops/context.h"
#include "ops/cuda/vision/picture_places.h"
#include "ops/gpu_vision.h"
#include "ops/vision.h"

namespace baltoro::cuda {

inline constexpr int64_t kPictureWidthMax = gpu_vision::kWidthMax;

// out [N, width] bf16 = norm of x [N, width] f32.
void PictureNorm(const OpContext& ctx, TensorView out, TensorView x, const LayerNormWeights& norm);

// place [N] of patches: row << 16 | column.
void PatchPlaces(const OpContext& ctx, uint32_t* place, int64_t patches, PlacesOnDevice pictures);

// x [N, H] f32 = the position of each patch, and its time.
void PatchPositions(const OpContext& ctx, const EmbedPatchesArgs& args, PlacesOnDevice pictures);

// out [N, pixels] bf16 = the values that pixels stand for.
void PatchValues(const OpContext& ctx, TensorView out, const EmbedPatchesArgs& args);

// out [n, k] bf16 = w [n, k] bf16, contiguous: for matrices whose rows are not aligned.
void CopyMatrix(const OpContext& ctx, TensorView out, const PackedMatrix& w);

// out [M, G H] bf16: what tokens are made of.
void MergePatches(const OpContext& ctx,
                  TensorView out,
                  const ProjectPicturesArgs& args,
                  PlacesOnDevice pictures);

}  // namespace baltoro::cuda
