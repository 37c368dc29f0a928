#pragma once

// The launch that may start while the kernel ahead ends.

#include <cuda_runtime_api.h>

#include <string>

#include "base/status.h"
#include "ops/cuda/launch/placed_launch.h"

namespace baltoro::cuda {

// Launches `kernel`, in clusters of `cluster` blocks, so that it may start while the kernel before
// it in the stream ends.
template <typename... Params, typename... Given>
Status LaunchOverlapped(const LaunchNote& note,
                        void (*kernel)(Params...),
                        dim3 grid,
                        dim3 block,
                        size_t shared_bytes,
                        const LaunchStream& stream,
                        unsigned cluster,
                        Given&&... given) {
  const cudaError_t error =
      LaunchPlaced(note, kernel, grid, block, shared_bytes, stream, cluster, given...);
  if (error == cudaSuccess) return Status();
  return Status(Code::kInternal, std::string(note.kernel) + ": " + cudaGetErrorString(error));
}

}  // namespace baltoro::cuda
