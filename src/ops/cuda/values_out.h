#pragma once

#include "ops/cuda/attention_kernels.h"
#include "ops/cuda/norm_join.h"

namespace baltoro::cuda {

// LaunchMergeValues, which writes x, and then out = x o^T, or to `norm` as LinearToNorm, in one
// kernel. False, and nothing is launched, where it does not take these.
bool LaunchValuesOut(const MlaKernelArgs& mla,
                     const HeadProductArgs& values,
                     const TensorView& x,
                     const PackedMatrix& o,
                     const TensorView& out,
                     const JoinedNorm* norm,
                     cudaStream_t stream);

}  // namespace baltoro::cuda
