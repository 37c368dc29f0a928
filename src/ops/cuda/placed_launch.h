#pragma once

// A launch that may be placed before the kernel ahead of it in the stream has ended; the kernel
// waits for that itself (docs/kernels/decode-step.md, "The rule").

#include <cuda_runtime.h>

namespace baltoro::cuda {

// In clusters of `cluster` blocks; 0: the launch says nothing of clusters.
template <typename... Params, typename... Given>
cudaError_t LaunchPlaced(void (*kernel)(Params...),
                         dim3 grid,
                         dim3 block,
                         size_t shared_bytes,
                         cudaStream_t stream,
                         unsigned cluster,
                         Given&&... given) {
  cudaLaunchAttribute attributes[2] = {};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim = {cluster, 1, 1};
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = cluster > 0 ? 2 : 1;
  return cudaLaunchKernelEx(&config, kernel, Params(given)...);
}

}  // namespace baltoro::cuda
