#pragma once

// Parts of the FP8 products (fp8_bank.h): the large form (fp8_pairs), for hundreds
// of rows of each matrix.

#include "ops/cuda/launch/launch_stream.h"
#include "ops/cuda/linear/fp8_tiles_device.cuh"

namespace baltoro::cuda {

// `p`: what the kernel of single blocks (fp8_tiles.cu) would be launched with.
void LaunchFp8Pairs(const Fp8Product& product,
                    const Fp8TilesPlan& plan,
                    fp8_tiles::TileParams p,
                    const LaunchStream& stream);

}  // namespace baltoro::cuda
