#pragma once

// A GPU's memory, and pinned host memory, as Memory.

#include "device/memory.h"

namespace baltoro {

// Of the device that is current when they are called. Outlive every buffer.
const Memory& CudaMemory();
// Host memory that a GPU reads and writes while the host goes on.
const Memory& PinnedMemory();

}  // namespace baltoro
