#include "device/cuda/card_share.h"

#include <cuda.h>
#include <cudaTypedefs.h>
#include <cuda_runtime_api.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <string>
#include <utility>

#include "device/cuda/cuda_status.h"

namespace baltoro {

struct CardShare::State {
  int multiprocessors = 0;
  CUcontext context = nullptr;
  CUgreenCtx green = nullptr;
  cudaEvent_t queued = nullptr;
  CUstream copies = nullptr;  // a share has no stream of each thread
};

namespace {

constexpr unsigned kSharesMost = 16;

// What the thread has taken.
thread_local std::optional<CardShare> share_of_thread;

Status DriverStatus(CUresult result, const char* what) {
  if (result == CUDA_SUCCESS) return {};
  return Status(Code::kUnavailable, std::string("shares of a GPU: ") + what + ": error " +
                                        std::to_string(static_cast<int>(result)));
}

// The driver is not linked: without one the program starts too.
template <typename F>
Status Find(const char* name, unsigned version, F* to) {
  void* entry = nullptr;
  cudaDriverEntryPointQueryResult found;
  BT_CUDA_RETURN_IF_ERROR(
      cudaGetDriverEntryPointByVersion(name, &entry, version, cudaEnableDefault, &found));
  if (found != cudaDriverEntryPointSuccess || entry == nullptr) {
    return Status(Code::kUnavailable, std::string("shares of a GPU: the driver has no ") + name);
  }
  *to = reinterpret_cast<F>(entry);
  return {};
}

struct Driver {
  PFN_cuCtxSetCurrent_v4000 set_current = nullptr;
  PFN_cuDeviceGetDevResource_v12040 resource_of = nullptr;
  PFN_cuDevSmResourceSplitByCount_v12040 split = nullptr;
  PFN_cuDevResourceGenerateDesc_v12040 describe = nullptr;
  PFN_cuGreenCtxCreate_v12040 create = nullptr;
  PFN_cuCtxFromGreenCtx_v12040 context_of = nullptr;
  PFN_cuGreenCtxStreamCreate_v12050 create_stream = nullptr;

  Status FindAll() {
    BT_RETURN_IF_ERROR(Find("cuCtxSetCurrent", 4000, &set_current));
    BT_RETURN_IF_ERROR(Find("cuDeviceGetDevResource", 12040, &resource_of));
    BT_RETURN_IF_ERROR(Find("cuDevSmResourceSplitByCount", 12040, &split));
    BT_RETURN_IF_ERROR(Find("cuDevResourceGenerateDesc", 12040, &describe));
    BT_RETURN_IF_ERROR(Find("cuGreenCtxCreate", 12040, &create));
    BT_RETURN_IF_ERROR(Find("cuGreenCtxStreamCreate", 12050, &create_stream));
    return Find("cuCtxFromGreenCtx", 12040, &context_of);
  }
};

Status Enter(CUcontext context) {
  PFN_cuCtxSetCurrent_v4000 set_current = nullptr;
  BT_RETURN_IF_ERROR(Find("cuCtxSetCurrent", 4000, &set_current));
  return DriverStatus(set_current(context), "cuCtxSetCurrent");
}

}  // namespace

Result<std::vector<CardShare>> CardShare::Split(int device, int shares) {
  // The primary context must be there before.
  BT_CUDA_RETURN_IF_ERROR(cudaSetDevice(device));
  BT_CUDA_RETURN_IF_ERROR(cudaFree(nullptr));
  Driver driver;
  BT_RETURN_IF_ERROR(driver.FindAll());
  const auto wanted = static_cast<unsigned>(shares);
  CUdevResource all = {};
  BT_RETURN_IF_ERROR(
      DriverStatus(driver.resource_of(device, &all, CU_DEV_RESOURCE_TYPE_SM), "multiprocessors"));
  const unsigned grain = all.sm.smCoscheduledAlignment == 0 ? 8 : all.sm.smCoscheduledAlignment;
  const unsigned each = wanted == 0 ? 0 : all.sm.smCount / wanted / grain * grain;
  if (wanted == 0 || wanted > kSharesMost || each < all.sm.minSmPartitionSize) {
    return Status(Code::kUnavailable, "shares of a GPU: " + std::to_string(all.sm.smCount) +
                                          " multiprocessors do not make " + std::to_string(shares));
  }
  std::array<CUdevResource, kSharesMost> parts = {};
  unsigned count = wanted;
  CUdevResource rest = {};
  BT_RETURN_IF_ERROR(
      DriverStatus(driver.split(parts.data(), &count, &all, &rest, 0, each), "a split"));
  if (count < wanted) {
    return Status(Code::kUnavailable, "shares of a GPU: " + std::to_string(count) + " of " +
                                          std::to_string(shares) + " were made");
  }
  std::vector<CardShare> made;
  for (unsigned i = 0; i < wanted; ++i) {
    State state{.multiprocessors = static_cast<int>(parts[i].sm.smCount)};
    CUdevResourceDesc description = nullptr;
    BT_RETURN_IF_ERROR(DriverStatus(driver.describe(&description, &parts[i], 1), "a description"));
    BT_RETURN_IF_ERROR(
        DriverStatus(driver.create(&state.green, description, device, CU_GREEN_CTX_DEFAULT_STREAM),
                     "a context"));
    BT_RETURN_IF_ERROR(DriverStatus(driver.context_of(&state.context, state.green), "a context"));
    BT_RETURN_IF_ERROR(DriverStatus(
        driver.create_stream(&state.copies, state.green, CU_STREAM_NON_BLOCKING, 0), "a stream"));
    BT_CUDA_RETURN_IF_ERROR(cudaEventCreateWithFlags(&state.queued, cudaEventDisableTiming));
    made.push_back(CardShare(std::make_shared<const State>(state)));
  }
  return made;
}

int CardShare::multiprocessors() const {
  return state_->multiprocessors;
}

cudaStream_t CardShare::copies() const {
  return state_->copies;
}

Status CardShare::Take() const {
  BT_RETURN_IF_ERROR(Enter(state_->context));
  share_of_thread = *this;
  return {};
}

namespace {

// Equally many of each card, those of the first card first.
struct Shares {
  std::vector<CardShare> all;
  int cards = 0;
};

const Result<Shares>& DeviceShares() {
  static const Result<Shares> shares = []() -> Result<Shares> {
    const char* const wish = std::getenv("BALTORO_TEST_CARD_SHARES");
    int there = 0;
    Shares made;
    if (wish == nullptr || cudaGetDeviceCount(&there) != cudaSuccess) return made;
    const char* const each = std::strchr(wish, 'x');
    const int cards = each == nullptr ? 1 : std::atoi(wish);
    if (each == nullptr ? there != 1 : cards > there) return made;
    for (int card = 0; card < cards; ++card) {
      BT_ASSIGN_OR_RETURN(const std::vector<CardShare> of_card,
                          CardShare::Split(card, std::atoi(each == nullptr ? wish : each + 1)));
      made.all.insert(made.all.end(), of_card.begin(), of_card.end());
    }
    made.cards = cards;
    return made;
  }();
  return shares;
}

}  // namespace

Result<int> SharesAsDevices() {
  BT_RETURN_IF_ERROR(DeviceShares().status());
  return static_cast<int>(DeviceShares().value().all.size());
}

Result<int> CardOf(int device) {
  BT_ASSIGN_OR_RETURN(const int shares, SharesAsDevices());
  return shares > 0 ? device / (shares / DeviceShares().value().cards) : device;
}

Status TakeDevice(int device) {
  BT_ASSIGN_OR_RETURN(const int shares, SharesAsDevices());
  if (shares == 0) return UseDevice(device);
  if (device < 0 || device >= shares) {
    return InvalidArgument("there are " + std::to_string(shares) +
                           " shares of a GPU, not a number " + std::to_string(device));
  }
  return DeviceShares().value().all[static_cast<size_t>(device)].Take();
}

Status UseDevice(int device) {
  if (share_of_thread) return share_of_thread->Take();
  BT_ASSIGN_OR_RETURN(const int card, CardOf(device));
  BT_CUDA_RETURN_IF_ERROR(cudaSetDevice(card));
  return {};
}

// A wait for the device would be one for all of its shares.
Status CardShare::Wait() const {
  PFN_cuGreenCtxRecordEvent_v12040 record = nullptr;
  BT_RETURN_IF_ERROR(Find("cuGreenCtxRecordEvent", 12040, &record));
  BT_RETURN_IF_ERROR(DriverStatus(record(state_->green, state_->queued), "cuGreenCtxRecordEvent"));
  BT_CUDA_RETURN_IF_ERROR(cudaEventSynchronize(state_->queued));
  return {};
}

Status WaitForDevice() {
  if (share_of_thread) return share_of_thread->Wait();
  BT_CUDA_RETURN_IF_ERROR(cudaDeviceSynchronize());
  return {};
}

cudaStream_t StreamForCopies() {
  return share_of_thread ? share_of_thread->copies() : cudaStreamPerThread;
}

Result<int> MultiprocessorsInUse() {
  if (share_of_thread) return share_of_thread->multiprocessors();
  int device = 0, count = 0;
  BT_CUDA_RETURN_IF_ERROR(cudaGetDevice(&device));
  BT_CUDA_RETURN_IF_ERROR(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device));
  return count;
}

bool UsesShare() {
  return share_of_thread.has_value();
}

}  // namespace baltoro
