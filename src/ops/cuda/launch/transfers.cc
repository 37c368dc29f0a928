#include <cstring>
#include <utility>

#include "device/cuda/cuda_status.h"
#include "ops/cuda/cuda_ops.h"

namespace baltoro::cuda {
namespace {

class Graph final : public OpGraph {
 public:
  explicit Graph(cudaGraphExec_t graph) : graph_(graph) {}
  ~Graph() override { static_cast<void>(cudaGraphExecDestroy(graph_)); }
  void Launch(const OpContext& ctx) const override {
    CheckCuda(cudaGraphLaunch(graph_, StreamOf(ctx)), "cudaGraphLaunch");
    RankOf(ctx).order().Complete();  // before anything behind a graph starts
  }

 private:
  cudaGraphExec_t graph_;
};

}  // namespace

const void* Upload(const OpContext& ctx, Arena& arena, const void* host, size_t bytes) {
  void* to = arena.Allocate(bytes);
  if (bytes == 0) return to;
  void* staged = ctx.staging->Allocate(bytes);
  std::memcpy(staged, host, bytes);
  CheckCuda(cudaMemcpyAsync(to, staged, bytes, cudaMemcpyHostToDevice, StreamOf(ctx)), "upload");
  return to;
}

const void* Download(const OpContext& ctx, const void* device, size_t bytes) {
  void* staged = ctx.staging->Allocate(bytes);
  if (bytes == 0) return staged;
  CheckCuda(cudaMemcpyAsync(staged, device, bytes, cudaMemcpyDeviceToHost, StreamOf(ctx)),
            "download");
  return staged;
}

Status Wait(const OpContext& ctx) {
  const Status ended = CudaStatus(cudaStreamSynchronize(StreamOf(ctx)), "a step on the GPU");
  RankOf(ctx).order().Complete();
  return ended;
}

Status Fetch(const OpContext& ctx, void* host, const void* from, size_t bytes) {
  const void* const staged = Download(ctx, from, bytes);
  BT_RETURN_IF_ERROR(Wait(ctx));
  std::memcpy(host, staged, bytes);
  return {};
}

std::unique_ptr<OpGraph> Capture(const OpContext& ctx, const std::function<void()>& record) {
  CheckCuda(cudaStreamBeginCapture(StreamOf(ctx), cudaStreamCaptureModeThreadLocal),
            "cudaStreamBeginCapture");
  // What is recorded does not run now, and will run behind whatever is queued then.
  LaunchOrder& order = RankOf(ctx).order();
  const LaunchOrder outside = order;
  order.Forget();
  record();
  order = outside;
  cudaGraph_t recorded = nullptr;
  CheckCuda(cudaStreamEndCapture(StreamOf(ctx), &recorded), "cudaStreamEndCapture");
  cudaGraphExec_t graph = nullptr;
  CheckCuda(cudaGraphInstantiate(&graph, recorded, 0), "cudaGraphInstantiate");
  CheckCuda(cudaGraphDestroy(recorded), "cudaGraphDestroy");
  // The first launch would bring it to the GPU, with memory taken while others may wait for it.
  CheckCuda(cudaGraphUpload(graph, StreamOf(ctx)), "cudaGraphUpload");
  return std::make_unique<Graph>(graph);
}

}  // namespace baltoro::cuda
