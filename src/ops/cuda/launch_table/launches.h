#pragma once

// The launches of an operation as a captured graph has them.

#include <cuda_runtime_api.h>

#include <functional>
#include <string>
#include <vector>

#include "ops/cuda/launch_table/table.h"

namespace baltoro::cuda::launch_table {

// `stream` is captured while `queue` runs; nothing is executed. In order of the capture; launches
// of the library that follow each other count as one.
std::vector<Launch> LaunchesOf(cudaStream_t stream, const std::function<void()>& queue);

// "bf16_rows16:Bf16Rows16Kernel<8, true>" from a mangled name of this module; empty if it is of
// others.
std::string KernelName(const char* mangled);

}  // namespace baltoro::cuda::launch_table
