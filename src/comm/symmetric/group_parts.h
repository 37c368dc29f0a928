#pragma once

// Parts of an ExpertExchange's sums that a rank sends and has received whole.

#include <cuda_runtime_api.h>

#include <cstdint>

#include "ops/cuda/launch/launch_stream.h"
#include "tensor/tensor_view.h"

namespace baltoro::cuda {

// to [count] bf16 = from, which is f32 or bf16, contiguous.
void LaunchRoundPart(const LaunchStream& stream, uint16_t* to, const TensorView& from);
// own [T, n] += parts of all ranks in their order, each rounded to bf16: that of rank r [T, n] bf16
// lies at parts + r * stride elements; instead of the one of `self`, `part` [T, n], f32 or bf16.
void LaunchAddParts(const LaunchStream& stream,
                    const TensorView& own,
                    const TensorView& part,
                    const uint16_t* parts,
                    int64_t stride,
                    int self,
                    int ranks);

}  // namespace baltoro::cuda
