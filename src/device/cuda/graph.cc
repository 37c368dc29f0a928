#include "device/cuda/graph.h"

#include "device/cuda/cuda_status.h"

namespace baltoro {

Result<Graph> Graph::Capture(const Stream& stream, const std::function<Status()>& record) {
  BT_CUDA_RETURN_IF_ERROR(cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeThreadLocal));
  const Status recorded = record();
  cudaGraph_t graph = nullptr;
  const cudaError_t ended = cudaStreamEndCapture(stream.get(), &graph);
  if (!recorded.ok() || ended != cudaSuccess) {
    if (graph != nullptr) static_cast<void>(cudaGraphDestroy(graph));
    cudaGetLastError();  // a capture that failed is no error of the next launch
    return recorded.ok() ? CudaStatus(ended, "cudaStreamEndCapture") : recorded;
  }
  cudaGraphExec_t executable = nullptr;
  const cudaError_t made = cudaGraphInstantiate(&executable, graph, 0);
  static_cast<void>(cudaGraphDestroy(graph));
  BT_RETURN_IF_ERROR(CudaStatus(made, "cudaGraphInstantiate"));
  return Graph(executable);
}

Graph::~Graph() {
  if (graph_ != nullptr) static_cast<void>(cudaGraphExecDestroy(graph_));
}

Status Graph::Launch(const Stream& stream) const {
  return CudaStatus(cudaGraphLaunch(graph_, stream.get()), "cudaGraphLaunch");
}

}  // namespace baltoro
