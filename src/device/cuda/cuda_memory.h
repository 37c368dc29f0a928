#pragma once

// A GPU's memory, and pinned host memory, as Memory.

#include "device/memory.h"

namespace baltoro {

// Of one device, whichever is current: a call makes it the calling thread's. Outlive every buffer.
const Memory& CudaMemory(int device = 0);
inline constexpr int kCudaDevicesMax = 16;
// Host memory that GPUs read and write while the host goes on.
const Memory& PinnedMemory();

}  // namespace baltoro
