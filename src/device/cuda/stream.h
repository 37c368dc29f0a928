#pragma once

// A stream and an event as owned objects. Move-only; one thread at a time.

#include <cuda_runtime_api.h>

#include <utility>

#include "base/status.h"

namespace baltoro {

class Event;

// Does not synchronise with the legacy default stream.
class Stream {
 public:
  static Result<Stream> Create();
  Stream(Stream&& other) noexcept : stream_(std::exchange(other.stream_, nullptr)) {}
  Stream& operator=(Stream&& other) noexcept {
    std::swap(stream_, other.stream_);
    return *this;
  }
  ~Stream();

  cudaStream_t get() const { return stream_; }
  // Blocks the calling thread until everything queued here is done, and returns its error.
  Status Synchronize() const;
  // Later work of this stream waits for `event`; the calling thread does not.
  Status Wait(const Event& event) const;

 private:
  explicit Stream(cudaStream_t stream) : stream_(stream) {}
  cudaStream_t stream_ = nullptr;
};

class Event {
 public:
  // `timed`: usable in MillisecondsBetween, and a little slower.
  static Result<Event> Create(bool timed);
  Event(Event&& other) noexcept : event_(std::exchange(other.event_, nullptr)) {}
  Event& operator=(Event&& other) noexcept {
    std::swap(event_, other.event_);
    return *this;
  }
  ~Event();

  cudaEvent_t get() const { return event_; }
  Status Record(const Stream& stream) const;
  Status Synchronize() const;
  // Both timed and complete.
  static Result<float> MillisecondsBetween(const Event& first, const Event& second);

 private:
  explicit Event(cudaEvent_t event) : event_(event) {}
  cudaEvent_t event_ = nullptr;
};

}  // namespace baltoro
