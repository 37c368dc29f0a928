#pragma once

// The streaming form's products by codes and digits (int4_digits.cuh) where more than one token may
// have an expert, and I = 256.

#include "ops/cuda/experts/bank_internal.h"
#include "ops/cuda/launch/launch_stream.h"

namespace baltoro::cuda {

// How the work is dealt out: sixteenths of it in the blocks' own shares, and the smallest pieces of
// the rest, of gate/up in strips, of down in units of eight strips. Measured, docs/kernels/moe.md.
inline constexpr int32_t kDigitOwnParts = 10, kDigitGateUpPiece = 1, kDigitDownPiece = 2;

// After the routing, whose tiles have kDigitTileRows at most. Two kernels: x as digits, where no
// preparation has made them, and the product.
Status LaunchMoeDigitsGateUp(const MoeShape& shape,
                             const MoeInt4Args& args,
                             const MoeWorkspace& space,
                             const ExpertsPlan& plan,
                             const LaunchStream& stream);
Status LaunchMoeDigitsDown(const MoeShape& shape,
                           const MoeInt4Args& args,
                           const MoeWorkspace& space,
                           const ExpertsPlan& plan,
                           const LaunchStream& stream);

}  // namespace baltoro::cuda
