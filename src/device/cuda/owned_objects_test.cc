#include <vector>

#include "device/cuda/cuda_status.h"
#include "device/cuda/device_buffer.h"
#include "device/cuda/device_info.h"
#include "device/cuda/graph.h"
#include "device/cuda/stream.h"
#include "support/gpu_test.h"

namespace baltoro {
namespace {

constexpr int kBytes = 1 << 20;

GPU_TEST(DeviceBufferTest, SaysWhatCouldNotBeAllocated) {
  const Result<DeviceBuffer> buffer = DeviceBuffer::Create(size_t{1} << 50, "the KV cache");
  GPU_EXPECT(!buffer.ok());
  GPU_EXPECT(buffer.status().code() == Code::kResourceExhausted);
  GPU_EXPECT(buffer.status().message().find("the KV cache") != std::string::npos);
  GPU_ASSERT_OK(CudaLaunchStatus("no error stays behind"));
}

GPU_TEST(GraphTest, ReplaysWhatWasCapturedAndRunsNothingAtCapture) {
  Result<Stream> stream = Stream::Create();
  GPU_ASSERT_OK(stream.status());
  Result<DeviceBuffer> buffer = DeviceBuffer::Create(kBytes, "test");
  GPU_ASSERT_OK(buffer.status());
  const cudaStream_t queue = stream.value().get();
  void* const data = buffer.value().data();
  GPU_ASSERT_OK(CudaStatus(cudaMemsetAsync(data, 1, kBytes, queue), "memset"));
  Result<Graph> graph = Graph::Capture(stream.value(), [&] {
    return CudaStatus(cudaMemsetAsync(data, 2, kBytes, queue), "memset");
  });
  GPU_ASSERT_OK(graph.status());
  std::vector<unsigned char> read(kBytes);
  for (const int expected : {1, 2}) {
    GPU_ASSERT_OK(CudaStatus(
        cudaMemcpyAsync(read.data(), data, kBytes, cudaMemcpyDeviceToHost, queue), "memcpy"));
    GPU_ASSERT_OK(stream.value().Synchronize());
    GPU_EXPECT_EQ(int{read.front()}, expected);
    GPU_EXPECT_EQ(int{read.back()}, expected);
    GPU_ASSERT_OK(graph.value().Launch(stream.value()));
  }
  GPU_ASSERT_OK(stream.value().Synchronize());
}

GPU_TEST(GraphTest, GivesTheRecordersErrorAndLeavesTheStreamUsable) {
  Result<Stream> stream = Stream::Create();
  GPU_ASSERT_OK(stream.status());
  const Result<Graph> graph =
      Graph::Capture(stream.value(), [] { return InvalidArgument("no such shape"); });
  GPU_EXPECT_EQ(graph.status().message(), std::string("no such shape"));
  GPU_ASSERT_OK(stream.value().Synchronize());
}

GPU_TEST(EventTest, MeasuresTimeBetweenTwoPointsOfAStream) {
  Result<Stream> stream = Stream::Create();
  Result<Event> first = Event::Create(true), second = Event::Create(true);
  Result<DeviceBuffer> buffer = DeviceBuffer::Create(kBytes, "test");
  GPU_ASSERT_OK(stream.status());
  GPU_ASSERT_OK(first.value().Record(stream.value()));
  for (int i = 0; i < 100; ++i) {
    GPU_ASSERT_OK(CudaStatus(
        cudaMemsetAsync(buffer.value().data(), i, kBytes, stream.value().get()), "memset"));
  }
  GPU_ASSERT_OK(second.value().Record(stream.value()));
  GPU_ASSERT_OK(second.value().Synchronize());
  const Result<float> elapsed = Event::MillisecondsBetween(first.value(), second.value());
  GPU_ASSERT_OK(elapsed.status());
  GPU_EXPECT(elapsed.value() > 0.01f);
  GPU_EXPECT_LE(elapsed.value(), 1000.0f);
}

}  // namespace
}  // namespace baltoro

int main(int argc, char** argv) {
  return baltoro::testing::RunGpuCases(argc, argv, baltoro::UsableDeviceCount());
}
