#include "ops/cuda/launch_table/launches.h"

#include <cxxabi.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <string_view>

#include "ops/cuda/cuda_ops.h"

namespace baltoro::cuda::launch_table {
namespace {

void Erase(std::string& text, std::string_view what) {
  for (size_t at = text.find(what); at != std::string::npos; at = text.find(what, at)) {
    text.erase(at, what.size());
  }
}

// nvcc writes the file of a kernel without external linkage into its name:
// _GLOBAL__N__<8 digits>_<length>_<name of the file>_cu_<8 digits>. Two files have kernels of one
// name, and the digits differ between builds.
std::string FileOf(std::string_view mangled) {
  constexpr std::string_view kMark = "_GLOBAL__N__", kEnd = "_cu";
  constexpr size_t kDigits = 8;
  const size_t mark = mangled.find(kMark);
  if (mark == std::string_view::npos) return {};
  size_t at = mark + kMark.size() + kDigits + 1, length = 0;
  for (; at < mangled.size() && std::isdigit(static_cast<unsigned char>(mangled[at])) != 0; ++at) {
    length = length * 10 + static_cast<size_t>(mangled[at] - '0');
  }
  if (at + 1 + length > mangled.size()) return {};
  std::string_view file = mangled.substr(at + 1, length);
  if (file.ends_with(kEnd)) file.remove_suffix(kEnd.size());
  return std::string(file);
}

// Nodes in an order in which each follows what it waits for, of several the first recorded. A
// launch that overlaps the one ahead hangs on an edge with data, which must be asked for.
std::vector<cudaGraphNode_t> InOrder(cudaGraph_t graph) {
  size_t count = 0, edges = 0;
  CheckCuda(cudaGraphGetNodes(graph, nullptr, &count), "cudaGraphGetNodes");
  std::vector<cudaGraphNode_t> nodes(count), ordered;
  if (count > 0) CheckCuda(cudaGraphGetNodes(graph, nodes.data(), &count), "cudaGraphGetNodes");
  CheckCuda(cudaGraphGetEdges(graph, nullptr, nullptr, nullptr, &edges), "cudaGraphGetEdges");
  std::vector<cudaGraphNode_t> from(edges), to(edges);
  std::vector<cudaGraphEdgeData> data(edges);
  if (edges > 0) {
    CheckCuda(cudaGraphGetEdges(graph, from.data(), to.data(), data.data(), &edges),
              "cudaGraphGetEdges");
  }
  const auto placed = [&](cudaGraphNode_t node) {
    return std::find(ordered.begin(), ordered.end(), node) != ordered.end();
  };
  const auto ready = [&](cudaGraphNode_t node) {
    for (size_t i = 0; i < edges; ++i) {
      if (to[i] == node && !placed(from[i])) return false;
    }
    return !placed(node);
  };
  while (ordered.size() < count) {
    const auto next = std::find_if(nodes.begin(), nodes.end(), ready);
    if (next == nodes.end()) EndProcess("a captured graph waits for itself");
    ordered.push_back(*next);
  }
  return ordered;
}

Launch KernelOf(cudaGraphNode_t node) {
  // Kernels that the library loaded itself may be unknown to this copy of the runtime.
  Launch launch{.name = "cuBLASLt"};
  cudaKernelNodeParams params = {};
  const char* mangled = nullptr;
  const bool known = cudaGraphKernelNodeGetParams(node, &params) == cudaSuccess &&
                     cudaFuncGetName(&mangled, params.func) == cudaSuccess;
  static_cast<void>(cudaGetLastError());
  std::string name = known ? KernelName(mangled) : std::string();
  if (name.empty()) return launch;
  launch = {.name = std::move(name),
            .grid = {params.gridDim.x, params.gridDim.y, params.gridDim.z},
            .block = {params.blockDim.x, params.blockDim.y, params.blockDim.z},
            .shared_bytes = params.sharedMemBytes};
  cudaLaunchAttributeValue value = {};
  CheckCuda(cudaGraphKernelNodeGetAttribute(node, cudaLaunchAttributeClusterDimension, &value),
            "cudaGraphKernelNodeGetAttribute");
  launch.cluster = value.clusterDim.x * value.clusterDim.y * value.clusterDim.z;
  return launch;
}

}  // namespace

std::string KernelName(const char* mangled) {
  if (std::string_view(mangled).find("7baltoro") == std::string_view::npos) return {};
  int status = 0;
  char* const plain = abi::__cxa_demangle(mangled, nullptr, nullptr, &status);
  std::string name = status == 0 ? plain : mangled;
  std::free(plain);
  Erase(name, "(anonymous namespace)::");
  Erase(name, "baltoro::cuda::");
  Erase(name, "baltoro::");
  if (name.starts_with("void ")) name.erase(0, 5);
  // The parameters are no part of it.
  int depth = 0;
  for (size_t at = 0; at < name.size(); ++at) {
    depth += name[at] == '<' ? 1 : name[at] == '>' ? -1 : 0;
    if (name[at] == '(' && depth == 0) name.resize(at);
  }
  const std::string file = FileOf(mangled);
  return file.empty() ? name : file + ":" + name;
}

std::vector<Launch> LaunchesOf(cudaStream_t stream, const std::function<void()>& queue) {
  // Relaxed: scratch may grow, and the library may load a kernel.
  CheckCuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed), "cudaStreamBeginCapture");
  queue();
  cudaGraph_t graph = nullptr;
  CheckCuda(cudaStreamEndCapture(stream, &graph), "cudaStreamEndCapture");
  std::vector<Launch> launches;
  for (const cudaGraphNode_t node : InOrder(graph)) {
    cudaGraphNodeType type = cudaGraphNodeTypeEmpty;
    CheckCuda(cudaGraphNodeGetType(node, &type), "cudaGraphNodeGetType");
    if (type == cudaGraphNodeTypeEmpty) continue;
    Launch launch{.name = "node of type " + std::to_string(type)};
    if (type == cudaGraphNodeTypeKernel) launch = KernelOf(node);
    if (type == cudaGraphNodeTypeMemset) launch.name = "memset";
    if (type == cudaGraphNodeTypeMemcpy) launch.name = "memcpy";
    // A product of the library may be two kernels, or a memset and a kernel.
    const bool again = launch.name == "cuBLASLt" && !launches.empty() &&
                       (launches.back().name == "cuBLASLt" || launches.back().name == "memset");
    if (again) launches.pop_back();
    launches.push_back(std::move(launch));
  }
  CheckCuda(cudaGraphDestroy(graph), "cudaGraphDestroy");
  return launches;
}

}  // namespace baltoro::cuda::launch_table
