#pragma once

// A launch that may be placed before the kernel ahead of it in the stream has ended; the kernel
// waits for that itself (docs/kernels/decode-step.md, "The rule").

#include <cuda_runtime.h>

#include "base/check.h"
#include "ops/cuda/launch/launch_stream.h"

// An emulated card holds the kernel that is launched next to its note (tools/gpu_emulator); where
// there is none, this is null.
extern "C" __attribute__((weak)) void BaltoroHoldToNote(const baltoro::cuda::LaunchNote* note);

namespace baltoro::cuda {

// False where BALTORO_NO_OVERLAP is 1, for debugging: every kernel is then launched plainly and
// starts when the one ahead has ended, and its waits return at once. The bits are the same. Read
// once a process; any thread.
bool LaunchesOverlap();

// Grid, attributes and stream of one launch. `cluster` blocks form a cluster; 0: the launch says
// nothing of clusters. Not copied, as the configuration points to the attributes.
struct PlacedConfig {
  PlacedConfig(
      dim3 grid, dim3 block, size_t shared_bytes, cudaStream_t stream, unsigned cluster = 0) {
    if (LaunchesOverlap()) {
      cudaLaunchAttribute& placed = attributes[config.numAttrs++];
      placed.id = cudaLaunchAttributeProgrammaticStreamSerialization;
      placed.val.programmaticStreamSerializationAllowed = 1;
    }
    if (cluster > 0) {
      cudaLaunchAttribute& clustered = attributes[config.numAttrs++];
      clustered.id = cudaLaunchAttributeClusterDimension;
      clustered.val.clusterDim = {cluster, 1, 1};
    }
    config.gridDim = grid;
    config.blockDim = block;
    config.dynamicSmemBytes = shared_bytes;
    config.stream = stream;
    config.attrs = attributes;
  }
  PlacedConfig(const PlacedConfig&) = delete;
  PlacedConfig& operator=(const PlacedConfig&) = delete;

  cudaLaunchAttribute attributes[2] = {};
  cudaLaunchConfig_t config = {};
};

// Lets launches of `kernel` take so many bytes of shared memory, or more: the most that any thread
// has asked for. The limit is kept with the device, where ranks that lie on shares of it launch the
// same kernel with other bytes between one's asking and its launch.
cudaError_t AllowShared(const void* kernel, int bytes);
template <typename... Params>
cudaError_t AllowShared(void (*kernel)(Params...), int bytes) {
  return AllowShared(reinterpret_cast<const void*>(kernel), bytes);
}

// The one way to launch a kernel that waits by itself. Ends the process where the launch would
// come too early (LaunchOrder::Add).
template <typename... Params, typename... Given>
cudaError_t LaunchPlaced(const LaunchNote& note,
                         void (*kernel)(Params...),
                         dim3 grid,
                         dim3 block,
                         size_t shared_bytes,
                         const LaunchStream& stream,
                         unsigned cluster,
                         Given&&... given) {
  BT_CHECK(stream.order != nullptr);
  stream.order->Add(note);
  if (!LaunchesOverlap()) stream.order->Complete();
  if (BaltoroHoldToNote != nullptr) BaltoroHoldToNote(&note);
  const PlacedConfig placed(grid, block, shared_bytes, stream, cluster);
  return cudaLaunchKernelEx(&placed.config, kernel, Params(given)...);
}

}  // namespace baltoro::cuda
