#pragma once

// What PlanAttention makes of a step and MlaAttention reads in every layer.

#include <cstdint>

#include "ops/cuda/attention/decode/mla_decode.h"
#include "ops/cuda/choose/attention_step.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/launch/launch_stream.h"
#include "ops/ops.h"

namespace baltoro::cuda {

// Lies in the staging memory of the step; its arrays are on the device unless said.
struct AttentionPlan {
  int64_t tokens = 0;
  KvForm form = KvForm::kBf16;
  int32_t heads = 0;

  // The absorbed rows are computed in a compact order.
  int64_t absorbed_rows = 0;
  const int32_t* rows = nullptr;  // [absorbed_rows] row of q and out; -1: padding
  MlaDecodeLimits limits;
  MlaDecodeSequences sequences;
  void* workspace = nullptr;

  const ExpandedPass* passes = nullptr;  // host memory
  int64_t pass_count = 0;
  int64_t pass_rows_max = 0;
  int64_t partial_rows = 0;
  const int32_t* block_sources = nullptr;    // physical block; -1: none, to be zeros
  const int32_t* block_valid = nullptr;      // valid tokens
  const int32_t* block_positions = nullptr;  // of the first token
  const PrefillTile* tiles = nullptr;
  const PrefillMerge* merges = nullptr;
};

// PlanAttention with smaller passes.
const AttentionPlan* PlanAttentionInPasses(const OpContext& ctx,
                                           Arena& arena,
                                           const AttentionPlanArgs& args,
                                           int64_t pass_bytes);

// A device array [rows, stride], in `arena`, of which the first `width` columns are written.
template <typename ValueOf>
const int32_t* UploadColumns(const OpContext& ctx,
                             Arena& arena,
                             int64_t rows,
                             int64_t width,
                             int64_t stride,
                             ValueOf value_of) {
  auto* const to = arena.AllocateArray<int32_t>(static_cast<size_t>(rows * stride));
  if (width == 0) return to;
  const auto bytes = static_cast<size_t>(width) * sizeof(int32_t);
  auto* const staged = static_cast<int32_t*>(ctx.staging->Allocate(rows * bytes));
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t b = 0; b < width; ++b) staged[i * width + b] = value_of(i, b);
  }
  CheckCuda(
      cudaMemcpy2DAsync(to, static_cast<size_t>(stride) * sizeof(int32_t), staged, bytes, bytes,
                        static_cast<size_t>(rows), cudaMemcpyHostToDevice, StreamOf(ctx)),
      "upload of block tables");
  return to;
}

// positions[s, b] = 64 b for b < width.  [sequences, stride]
void LaunchFillPositions(int32_t* positions,
                         int64_t sequences,
                         int64_t width,
                         int64_t stride,
                         const LaunchStream& stream);

}  // namespace baltoro::cuda
