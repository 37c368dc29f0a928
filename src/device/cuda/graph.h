#pragma once

// A captured sequence of launches, replayed with one call.

#include <cuda_runtime_api.h>

#include <functional>
#include <utility>

#include "base/status.h"
#include "device/cuda/stream.h"

namespace baltoro {

class Graph {
 public:
  // Runs `record` once with `stream` capturing: what it queues there becomes the graph, nothing of
  // it is executed. Whatever `record` reads on the host is fixed then.
  static Result<Graph> Capture(const Stream& stream, const std::function<Status()>& record);
  Graph(Graph&& other) noexcept : graph_(std::exchange(other.graph_, nullptr)) {}
  Graph& operator=(Graph&& other) noexcept {
    std::swap(graph_, other.graph_);
    return *this;
  }
  ~Graph();

  Status Launch(const Stream& stream) const;

 private:
  explicit Graph(cudaGraphExec_t graph) : graph_(graph) {}
  cudaGraphExec_t graph_ = nullptr;
};

}  // namespace baltoro
