#pragma once

// The last part of RankOps::MergeHeads over what a rank has received whole.

#include <cuda_runtime_api.h>

#include <cstdint>

#include "ops/cuda/launch/launch_stream.h"

namespace baltoro::cuda {

struct MergePartsArgs {
  uint16_t* own = nullptr;  // [rows, heads * value] bf16
  int64_t own_stride = 0;
  // From each rank, message_bytes apart: [rows, heads * value] bf16, at sums_at [rows, heads] f32.
  const char* parts = nullptr;
  int64_t message_bytes = 0, sums_at = 0;
  int ranks = 0, rows = 0, heads = 0, value = 0;
};
void LaunchMergeParts(const LaunchStream& stream, const MergePartsArgs& args);

}  // namespace baltoro::cuda
