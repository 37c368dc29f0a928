#pragma once

// A picture encoder on a GPU (ops/vision.h). Everything is queued; grids go to the device through
// OpContext::staging.

#include "ops/vision.h"

namespace baltoro::cuda {

const VisionOps& CudaVisionOps();

}  // namespace baltoro::cuda
