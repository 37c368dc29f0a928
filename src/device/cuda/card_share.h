#pragma once

// A share of a GPU's multiprocessors, on which a rank computes as if it was a smaller GPU: for
// tests, where ranks that wait for each other's kernels lie on one card. Memory, copies and the
// rest of the card are in common, so times mean nothing. The driver does not promise that shares
// run at once; they do where the process has CUDA_DEVICE_MAX_CONNECTIONS=32 and
// CUDA_MODULE_LOADING=EAGER, and allocates, frees and loads nothing while ranks wait for each
// other. Whatever waits must end by a clock.

#include <cuda_runtime_api.h>

#include <memory>
#include <vector>

#include "base/status.h"

namespace baltoro {

class CardShare {
 public:
  // `shares` of equally many multiprocessors, the largest that there can be; some may be left over.
  // They are there until the process ends. kUnavailable: what the driver lacks, or that the card
  // has too few.
  static Result<std::vector<CardShare>> Split(int device, int shares);

  int multiprocessors() const;
  // For the calling thread, until it ends or takes another: streams and graphs that it makes belong
  // to the share from here on, and UseDevice means the share. One thread at a time.
  Status Take() const;
  cudaStream_t copies() const;  // a stream of it, for copies between memories
  // On the thread that has taken it: until all is done that was queued on it.
  Status Wait() const;

 private:
  struct State;
  explicit CardShare(std::shared_ptr<const State> state) : state_(std::move(state)) {}
  std::shared_ptr<const State> state_;
};

// Where BALTORO_TEST_CARD_SHARES is a number and there is one GPU, device numbers mean shares of
// it: for tests of engines, each of whose ranks has a device. Two numbers, as 2x4, mean shares of
// several GPUs, four of each: the first four devices are those of the first GPU. How many there
// are; 0: numbers mean GPUs. Decided when it is first asked; an error is that of Split.
Result<int> SharesAsDevices();
// The GPU that a device number means, or lies on.
Result<int> CardOf(int device);

// Makes the device the calling thread's; a share is taken.
Status TakeDevice(int device);
// Makes the device the calling thread's, or the share of it that the thread has taken.
Status UseDevice(int device);
// Until all is done that was queued on the calling thread's device, or on its share.
Status WaitForDevice();
// The calling thread's own, of its device or of its share.
cudaStream_t StreamForCopies();
// Of the calling thread's device, or share.
Result<int> MultiprocessorsInUse();
// Whether the calling thread has taken a share.
bool UsesShare();

}  // namespace baltoro
