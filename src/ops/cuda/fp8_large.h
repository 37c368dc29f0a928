#pragma once

// Parts of the FP8 products (fp8_bank.h): the large form (fp8_pairs), for hundreds
// of rows of each matrix.

#include "ops/cuda/fp8_wide_device.cuh"

namespace baltoro::cuda {

// `p`: what the wide form would be launched with.
void LaunchFp8Large(const Fp8Product& product,
                    const Fp8TilesPlan& plan,
                    fp8_wide::WideParams p,
                    cudaStream_t stream);

}  // namespace baltoro::cuda
