#pragma once

// What need not wait for the choice of experts, in one launch beside it (shared_at_choice.cu): rows
// of x as digits, and the shared experts' SiLU * mul and second product into `out`. Right behind
// LaunchMoePrepare, which then makes neither digits nor SiLU, and ahead of LaunchMoeInt4.

#include "ops/cuda/experts/route/bank_prepare.h"
#include "ops/cuda/launch/launch_stream.h"

namespace baltoro::cuda {

// `gated`: x, x_stride and width, as of LaunchMoePrepare; width is kBesideWidth. shared_down: bf16
// [H, width], 16-byte aligned.
Status LaunchMoeSharedAtChoice(const MoeShape& shape,
                               const MoeInt4Args& args,
                               const ExpertsPlan& plan,
                               const MoeGated& gated,
                               const void* shared_down,
                               const LaunchStream& stream);

}  // namespace baltoro::cuda
