#pragma once

// The launches of attention around MlaDecode. Elements are bf16 on the device; strides count
// elements. A launch that fails ends the process.

#include <cstdint>

#include "ops/cuda/attention/attention_plan.h"
#include "ops/cuda/attention/decode/mla_decode_internal.h"
#include "ops/cuda/launch/launch_stream.h"

namespace baltoro::cuda {

// For each row and head the product with a matrix of the head:
//   out[to(i), h, n] = sum_k x[from(i), h, k] * w[h, n, k]
// Floor: the matrices are read once for up to 64 rows; 1 MB for 8 heads.
struct HeadProductArgs {
  void* out = nullptr;
  int64_t out_row_stride = 0, out_head_stride = 0;
  const void* x = nullptr;  // rows of heads 16-byte aligned
  int64_t x_row_stride = 0, x_head_stride = 0;
  const void* w = nullptr;  // [n, k] of head 0, contiguous
  int64_t w_head_stride = 0;
  int64_t count = 0;  // i < count
  int32_t heads = 0;
  const int32_t* rows = nullptr;  // [count] row of q or out of i; -1: none
  // LaunchValueHeads, optional: lse_out[rows[i], h] = lse[i, h].
  const float* lse = nullptr;  // [count, heads]
  float* lse_out = nullptr;
  int64_t lse_out_stride = 0;
};

// q_nope [.., h, 128] by uk_t [h, 512, 128], and the rotated part beside it: out [count, h, 576] of
// x[rows[i]]; zeros for -1.
void LaunchAbsorbQueries(const HeadProductPlan& plan,
                         const HeadProductArgs& args,
                         const LaunchStream& stream);
// The latents [count, h, 512] by the value rows [h, 128, 512]: out[rows[i], h, 128].
void LaunchValueHeads(const HeadProductPlan& plan,
                      const HeadProductArgs& args,
                      const LaunchStream& stream);
// Pieces added up and multiplied with the value rows, in one launch or two.
Status LaunchMergedValueHeads(const AbsorbedPlan& plan,
                              const MlaKernelArgs& mla,
                              const HeadProductArgs& values,
                              const LaunchStream& stream);
// MergeWay::kWithValuesRow1; values.x is not read.
Status LaunchMergeValues(const MergePlan& plan,
                         const MlaKernelArgs& mla,
                         const HeadProductArgs& values,
                         const LaunchStream& stream);
// MergeWay::kWithValuesRows2 .. 16; likewise.
Status LaunchMergeRows(const MergePlan& plan,
                       const MlaKernelArgs& mla,
                       const HeadProductArgs& values,
                       const LaunchStream& stream);

// out [blocks * 64, 576]: the tokens of the cache's blocks as bf16; zeros beyond the valid ones.
void LaunchGatherLatents(void* out,
                         const KvLayerView& cache,
                         const int32_t* sources,
                         const int32_t* valid,
                         int64_t blocks,
                         const LaunchStream& stream);

struct PrefillArgs {
  void* out = nullptr;  // [T, h * 128]
  int64_t out_row_stride = 0;
  float* lse = nullptr;  // optional, [T, h]
  int64_t lse_row_stride = 0;
  const void* q = nullptr;  // [T, h, 192]
  int64_t q_row_stride = 0, q_head_stride = 0;
  const void* latents = nullptr;   // [rows, 576]: the rotated keys are its last 64 columns
  const void* expanded = nullptr;  // [rows, h, 256]: key, then value
  int64_t rows = 0;
  const int32_t* block_positions = nullptr;  // [rows / 64]
  const PrefillTile* tiles = nullptr;
  int64_t tile_count = 0;
  float* partial_out = nullptr;  // [partial rows, h, 128], results of the passes before
  float* partial_lse = nullptr;  // [partial rows, h], in log2
  const PrefillMerge* merges = nullptr;
  int64_t merge_count = 0;
  int32_t heads = 0;
  int32_t head_group = 0;  // heads that are computed side by side
  float scale = 0;
};

// Floor: 2 * 320 FLOPs for each pair of a query token and a key that it sees, and head, at the
// matrix rate; keys and values of a head are read from the L2.
void LaunchPrefill(const PrefillPlan& plan, const PrefillArgs& args, const LaunchStream& stream);
// Adds up the tiles of `merges`, after LaunchPrefill.
void LaunchPrefillMerge(const PrefillPlan& plan,
                        const PrefillArgs& args,
                        const LaunchStream& stream);

}  // namespace baltoro::cuda
