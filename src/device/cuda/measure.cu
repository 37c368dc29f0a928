#include "device/cuda/measure.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "device/cuda/cuda_status.h"
#include "device/cuda/device_buffer.h"
#include "device/cuda/device_info.h"
#include "device/cuda/graph.h"

namespace baltoro {
namespace {

template <int kLoads>
__global__ void Read(const uint4* data, size_t count, uint32_t* sink) {
  const size_t step = size_t{gridDim.x} * blockDim.x;
  uint32_t sum = 0;
  size_t i = size_t{blockIdx.x} * blockDim.x + threadIdx.x;
  for (; i + (kLoads - 1) * step < count; i += kLoads * step) {
    uint4 loaded[kLoads];
#pragma unroll
    for (int n = 0; n < kLoads; ++n) loaded[n] = __ldcs(data + i + n * step);
#pragma unroll
    for (int n = 0; n < kLoads; ++n) sum ^= loaded[n].x ^ loaded[n].y ^ loaded[n].z ^ loaded[n].w;
  }
  if (sum == 0x12345678) *sink = sum;  // keeps the loads
}

}  // namespace

Result<double> ReadBandwidth(const void* data, size_t bytes, const Stream& stream) {
  Result<DeviceInfo> info = CurrentDeviceInfo();
  BT_RETURN_IF_ERROR(info.status());
  Result<DeviceBuffer> sink = DeviceBuffer::Create(256, "read sink");
  BT_RETURN_IF_ERROR(sink.status());
  double best = 0;
  for (const int blocks : {2, 4, 8}) {
    for (const int threads : {256, 512}) {
      if (blocks * threads > 2048) continue;
      Result<double> seconds = MedianSeconds(stream, 1, 9, [&] {
        Read<8><<<blocks * info.value().multiprocessors, threads, 0, stream.get()>>>(
            static_cast<const uint4*>(data), bytes / 16, sink.value().as<uint32_t>());
        return CudaLaunchStatus("read");
      });
      BT_RETURN_IF_ERROR(seconds.status());
      best = std::max(best, static_cast<double>(bytes) / seconds.value());
    }
  }
  return best;
}

Result<double> MedianSeconds(const Stream& stream,
                             int copies,
                             int runs,
                             const std::function<Status()>& record) {
  Result<Graph> graph = Graph::Capture(stream, record);
  BT_RETURN_IF_ERROR(graph.status());
  Result<Event> first = Event::Create(true), second = Event::Create(true);
  BT_RETURN_IF_ERROR(first.status());
  BT_RETURN_IF_ERROR(second.status());
  std::vector<double> seconds;
  for (int run = -3; run < runs; ++run) {
    BT_RETURN_IF_ERROR(first.value().Record(stream));
    BT_RETURN_IF_ERROR(graph.value().Launch(stream));
    BT_RETURN_IF_ERROR(second.value().Record(stream));
    BT_RETURN_IF_ERROR(second.value().Synchronize());
    Result<float> elapsed = Event::MillisecondsBetween(first.value(), second.value());
    BT_RETURN_IF_ERROR(elapsed.status());
    if (run >= 0) seconds.push_back(elapsed.value() * 1e-3 / copies);
  }
  std::nth_element(seconds.begin(), seconds.begin() + runs / 2, seconds.end());
  return seconds[runs / 2];
}

}  // namespace baltoro
