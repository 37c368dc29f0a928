#include "device/cuda/stream.h"

#include "device/cuda/cuda_status.h"

namespace baltoro {

Result<Stream> Stream::Create() {
  cudaStream_t stream = nullptr;
  BT_CUDA_RETURN_IF_ERROR(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  return Stream(stream);
}

Stream::~Stream() {
  if (stream_ != nullptr) static_cast<void>(cudaStreamDestroy(stream_));
}

Status Stream::Synchronize() const {
  return CudaStatus(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
}

Status Stream::Wait(const Event& event) const {
  return CudaStatus(cudaStreamWaitEvent(stream_, event.get(), 0), "cudaStreamWaitEvent");
}

Result<Event> Event::Create(bool timed) {
  cudaEvent_t event = nullptr;
  BT_CUDA_RETURN_IF_ERROR(
      cudaEventCreateWithFlags(&event, timed ? cudaEventDefault : cudaEventDisableTiming));
  return Event(event);
}

Event::~Event() {
  if (event_ != nullptr) static_cast<void>(cudaEventDestroy(event_));
}

Status Event::Record(const Stream& stream) const {
  return CudaStatus(cudaEventRecord(event_, stream.get()), "cudaEventRecord");
}

Status Event::Synchronize() const {
  return CudaStatus(cudaEventSynchronize(event_), "cudaEventSynchronize");
}

Result<float> Event::MillisecondsBetween(const Event& first, const Event& second) {
  float milliseconds = 0;
  BT_CUDA_RETURN_IF_ERROR(cudaEventElapsedTime(&milliseconds, first.get(), second.get()));
  return milliseconds;
}

}  // namespace baltoro
