#pragma once

// The table of overrides of this process (choose/overrides.h).

#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "ops/cuda/choose/overrides.h"
#include "ops/cuda_module.h"

namespace baltoro::cuda {

// Of the file that BALTORO_KERNEL_TABLE names; without entries where it names none. Read once,
// whichever thread comes first, and kept to the end; only SetKernelTable puts others in their
// place. What kernels do not take is told on standard error.
Result<Overrides*> KernelTable();

// Entries in the place of those that the process has, kOverridesMax together. Nobody may choose
// meanwhile.
Status SetKernelTable(const std::vector<KernelEntries>& tables);
// Who is told of every question from now on (Overrides::Listen); likewise.
Status ListenToChoices(ChoiceListener listener);

// Of a file; errors begin with the variable's name.
Result<std::unique_ptr<Overrides>> ReadKernelTable(const std::string& path);

}  // namespace baltoro::cuda
