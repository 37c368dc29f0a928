#pragma once

// The table of overrides of this process (choose/overrides.h).

#include <memory>
#include <string>

#include "base/status.h"
#include "ops/cuda/choose/overrides.h"

namespace baltoro::cuda {

// Of the file that BALTORO_KERNEL_TABLE names; null where it names none. Read once, whichever
// thread comes first, and kept to the end. What kernels do not take is told on standard error.
Result<const Overrides*> KernelTable();

// Of a file; errors begin with the variable's name.
Result<std::unique_ptr<const Overrides>> ReadKernelTable(const std::string& path);

}  // namespace baltoro::cuda
