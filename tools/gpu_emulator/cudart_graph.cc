// The CUDA runtime over the emulated machine: streams, events and graphs. Everything happens when
// it is asked for, in the order of the calls; what a stream is asked for while it is captured
// becomes a node and is neither checked against its kernel's text nor run until the graph is.

#include <cuda_runtime_api.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <utility>
#include <vector>

#include "cudart.h"

namespace emu {

StreamData& DefaultStream() {
  static StreamData stream;
  return stream;
}
StreamData& Of(cudaStream_t stream) {
  const auto value = reinterpret_cast<uint64_t>(stream);
  return value <= 2 ? DefaultStream() : *reinterpret_cast<StreamData*>(stream);
}

cudaError_t Do(cudaStream_t stream, Task task) {
  Capture& capture = Of(stream).capture;
  if (!capture.under_way()) return task.run();
  auto node = std::make_shared<Node>(Node{std::move(task), std::move(capture.last)});
  capture.last = {node.get()};
  capture.graph->nodes.push_back(std::move(node));
  return cudaSuccess;
}

namespace {

using Holder = std::shared_ptr<GraphData>;
GraphData& Graph(cudaGraph_t graph) {
  return **reinterpret_cast<Holder*>(graph);
}
Node& NodeOf(cudaGraphNode_t node) {
  return *reinterpret_cast<Node*>(node);
}

// A launch that may overlap does so with a kernel, not with a copy.
cudaGraphEdgeData EdgeOf(const Node& from, const Node& to) {
  cudaGraphEdgeData data = {};
  if (to.task.overlaps && from.task.function != nullptr) {
    data.from_port = cudaGraphKernelNodePortProgrammatic;
    data.type = cudaGraphDependencyTypeProgrammatic;
  }
  return data;
}

}  // namespace
}  // namespace emu

using namespace emu;

extern "C" {

// ---- streams

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  *stream = reinterpret_cast<cudaStream_t>(new StreamData);
  return cudaSuccess;
}
cudaError_t cudaStreamCreate(cudaStream_t* stream) {
  return cudaStreamCreateWithFlags(stream, 0);
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int) {
  return cudaStreamCreateWithFlags(stream, flags);
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  delete reinterpret_cast<StreamData*>(stream);
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t) {
  HostWaits();
  return cudaSuccess;
}
cudaError_t cudaStreamQuery(cudaStream_t) {
  HostWaits();
  return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  const Capture& of = reinterpret_cast<EventData*>(event)->capture;
  Capture& here = Of(stream).capture;
  if (!of.under_way()) return cudaSuccess;
  if (!here.under_way()) here = {.graph = of.graph, .last = {}};
  for (Node* node : of.last)
    if (std::find(here.last.begin(), here.last.end(), node) == here.last.end())
      here.last.push_back(node);
  return cudaSuccess;
}

// ---- graphs

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
  Of(stream).capture = {.graph = std::make_shared<GraphData>(), .last = {}};
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  *graph = nullptr;
  Capture capture = std::move(Of(stream).capture);
  if (!capture.under_way()) return Give(cudaErrorIllegalState);
  capture.graph->complete = true;
  *graph = reinterpret_cast<cudaGraph_t>(new Holder(std::move(capture.graph)));
  return cudaSuccess;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  *status =
      Of(stream).capture.under_way() ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode*) {
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* to, cudaGraph_t graph, unsigned long long) {
  *to = reinterpret_cast<cudaGraphExec_t>(new GraphData(Graph(graph)));  // nodes are shared
  return cudaSuccess;
}
cudaError_t cudaGraphUpload(cudaGraphExec_t, cudaStream_t) {
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t) {
  for (const auto& node : reinterpret_cast<GraphData*>(graph)->nodes) {
    const cudaError_t error = node->task.run();
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete reinterpret_cast<Holder*>(graph);
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph) {
  delete reinterpret_cast<GraphData*>(graph);
  return cudaSuccess;
}
cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t* to, size_t* count) {
  const auto& nodes = Graph(graph).nodes;
  const size_t room = *count;
  *count = nodes.size();
  if (to == nullptr) return cudaSuccess;
  *count = std::min(room, nodes.size());
  for (size_t n = 0; n < *count; ++n) to[n] = reinterpret_cast<cudaGraphNode_t>(nodes[n].get());
  return cudaSuccess;
}
cudaError_t cudaGraphGetEdges(cudaGraph_t graph,
                              cudaGraphNode_t* from,
                              cudaGraphNode_t* to,
                              cudaGraphEdgeData* data,
                              size_t* count) {
  const size_t room = *count;
  size_t n = 0;
  bool lost = false;
  for (const auto& node : Graph(graph).nodes) {
    for (Node* before : node->after) {
      const cudaGraphEdgeData edge = EdgeOf(*before, *node);
      if (from != nullptr && n < room) {
        from[n] = reinterpret_cast<cudaGraphNode_t>(before);
        to[n] = reinterpret_cast<cudaGraphNode_t>(node.get());
        if (data != nullptr) data[n] = edge;
        lost |= data == nullptr && edge.type != cudaGraphDependencyTypeDefault;
      }
      ++n;
    }
  }
  *count = from == nullptr ? n : std::min(n, room);
  return lost ? Give(cudaErrorLossyQuery) : cudaSuccess;
}
cudaError_t cudaGraphNodeGetType(cudaGraphNode_t node, cudaGraphNodeType* type) {
  *type = NodeOf(node).task.type;
  return cudaSuccess;
}
// A kernel of a library is not known to this runtime.
cudaError_t cudaGraphKernelNodeGetParams(cudaGraphNode_t node, cudaKernelNodeParams* to) {
  const Task& task = NodeOf(node).task;
  if (task.type != cudaGraphNodeTypeKernel) return Give(cudaErrorInvalidValue);
  if (task.function == nullptr) return Give(cudaErrorInvalidDeviceFunction);
  const LaunchShape& s = task.shape;
  *to = {};
  to->func = task.function;
  to->gridDim = dim3(s.grid[0], s.grid[1], s.grid[2]);
  to->blockDim = dim3(s.block[0], s.block[1], s.block[2]);
  to->sharedMemBytes = static_cast<unsigned>(s.dynamic_shared);
  return cudaSuccess;
}
cudaError_t cudaGraphKernelNodeGetAttribute(cudaGraphNode_t node,
                                            cudaLaunchAttributeID id,
                                            cudaLaunchAttributeValue* to) {
  const Task& task = NodeOf(node).task;
  if (task.function == nullptr) return Give(cudaErrorInvalidValue);
  *to = {};
  if (id == cudaLaunchAttributeClusterDimension) {
    if (!task.cluster_given) return cudaSuccess;
    to->clusterDim.x = task.shape.cluster[0];
    to->clusterDim.y = task.shape.cluster[1];
    to->clusterDim.z = task.shape.cluster[2];
  } else if (id == cudaLaunchAttributeProgrammaticStreamSerialization) {
    to->programmaticStreamSerializationAllowed = task.overlaps;
  } else {
    return Give(cudaErrorNotSupported);
  }
  return cudaSuccess;
}

// ---- events

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  *event = reinterpret_cast<cudaEvent_t>(new EventData);
  return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t* event) {
  return cudaEventCreateWithFlags(event, 0);
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete reinterpret_cast<EventData*>(event);
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  auto* e = reinterpret_cast<EventData*>(event);
  e->at = std::chrono::steady_clock::now();
  e->launches = launches;
  e->capture = Of(stream).capture;
  return cudaSuccess;
}
cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned) {
  return cudaEventRecord(event, stream);
}
// With launches behind the event, some of what kernels wrote may still be under way.
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  if (reinterpret_cast<EventData*>(event)->launches == launches) HostWaits();
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  return cudaEventSynchronize(event);
}
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t first, cudaEvent_t last) {
  const auto took =
      reinterpret_cast<EventData*>(last)->at - reinterpret_cast<EventData*>(first)->at;
  *milliseconds = std::max(1e-3f, std::chrono::duration<float, std::milli>(took).count());
  return cudaSuccess;
}

}  // extern "C"
