#include "comm/symmetric/peer_world.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <mutex>
#include <random>
#include <sstream>
#include <string>
#include <utility>

#include "base/file.h"
#include "device/cuda/card_share.h"
#include "device/cuda/cuda_status.h"
#include "device/cuda/device_buffer.h"

namespace baltoro::cuda {

class ProcessShare {
 public:
  static Result<std::shared_ptr<ProcessShare>> Create() {
    auto share = std::make_shared<ProcessShare>();
    void* word = nullptr;
    BT_CUDA_RETURN_IF_ERROR(
        cudaHostAlloc(&word, sizeof(uint32_t), cudaHostAllocPortable | cudaHostAllocMapped));
    share->failure_word = static_cast<uint32_t*>(word);
    *share->failure_word = 0;
    return share;
  }
  ~ProcessShare() {
    if (failure_word != nullptr) static_cast<void>(cudaFreeHost(failure_word));
  }
  void Keep(std::shared_ptr<void> memory) {
    const std::lock_guard lock(mutex_);
    memory_.push_back(std::move(memory));
  }

  uint32_t* failure_word = nullptr;

 private:
  std::mutex mutex_;
  std::vector<std::shared_ptr<void>> memory_;
};

namespace {

constexpr int32_t kWorldMax = 1024;

struct Host {
  std::array<char, 40> id = {};
  int32_t part = 0;
};
// Who a rank of a host is.
struct Place {
  uint64_t process = 0;
  int32_t device = 0;
};
struct Offer {
  void* memory = nullptr;
  cudaIpcMemHandle_t handle = {};
  bool processes = false;                          // the memory can be given to other processes
  std::shared_ptr<ProcessShare>* share = nullptr;  // of the first rank of a process
};
struct Reach {
  std::array<uint8_t, kWorldMax / 8> bits = {};
};

// The same in all containers of a machine that has been started once.
Result<std::array<char, 40>> HostId() {
  std::array<char, 40> id = {};
  std::string text;
  BT_ASSIGN_OR_RETURN(const std::string line, ReadFile("/proc/sys/kernel/random/boot_id"));
  if (!(std::istringstream(line) >> text) || text.size() >= id.size()) {
    return Status(Code::kUnavailable, "/proc/sys/kernel/random/boot_id cannot be read");
  }
  std::copy(text.begin(), text.end(), id.begin());
  return id;
}

uint64_t ProcessId() {
  static const uint64_t id = [] {
    std::random_device random;
    return uint64_t{random()} << 32 ^ uint64_t { random() } ^ static_cast<uint64_t>(getpid());
  }();
  return id;
}

Result<bool> CanReach(int device, int other) {
  int can = device == other;
  if (can == 0) BT_CUDA_RETURN_IF_ERROR(cudaDeviceCanAccessPeer(&can, device, other));
  return can != 0;
}

// All memory of the other device, from this one.
Status EnablePeer(int device, int other) {
  if (device == other) return {};
  const cudaError_t error = cudaDeviceEnablePeerAccess(other, 0);
  if (error != cudaSuccess && error != cudaErrorPeerAccessAlreadyEnabled) {
    return CudaStatus(error, "cudaDeviceEnablePeerAccess");
  }
  static_cast<void>(cudaGetLastError());
  return {};
}

struct Pool {
  ~Pool() {
    if (data != nullptr) static_cast<void>(cudaFree(data));
    if (pool != nullptr) static_cast<void>(cudaMemPoolDestroy(pool));
  }
  cudaMemPool_t pool = nullptr;
  void* data = nullptr;
};

// Memory that these devices reach too, and nothing else of this one: where devices reach all of
// each other's memory, freeing any of it waits for the kernels of all of them, also for those that
// wait for what the freeing thread is about to launch.
Result<std::shared_ptr<void>> MemoryFor(int device, const std::vector<int>& others, size_t bytes) {
  auto made = std::make_shared<Pool>();
  cudaMemPoolProps properties = {};
  properties.allocType = cudaMemAllocationTypePinned;
  properties.location.type = cudaMemLocationTypeDevice;
  properties.location.id = device;
  BT_CUDA_RETURN_IF_ERROR(cudaMemPoolCreate(&made->pool, &properties));
  for (const int other : others) {
    cudaMemAccessDesc access = {};
    access.location.type = cudaMemLocationTypeDevice;
    access.location.id = other;
    access.flags = cudaMemAccessFlagsProtReadWrite;
    BT_CUDA_RETURN_IF_ERROR(cudaMemPoolSetAccess(made->pool, &access, 1));
  }
  const cudaError_t error = cudaMallocFromPoolAsync(&made->data, bytes, made->pool, nullptr);
  if (error != cudaSuccess) {
    static_cast<void>(cudaGetLastError());
    return CudaStatus(error, std::to_string(bytes) + " bytes that ranks exchange through");
  }
  return std::shared_ptr<void>(made, made->data);
}

// Memory that can be given to other processes.
Result<std::shared_ptr<void>> MemoryForProcesses(size_t bytes) {
  BT_ASSIGN_OR_RETURN(DeviceBuffer buffer,
                      DeviceBuffer::Create(bytes, "what ranks exchange through"));
  auto made = std::make_shared<DeviceBuffer>(std::move(buffer));
  return std::shared_ptr<void>(made, made->data());
}

Status Fill(void* memory, size_t bytes, size_t zeroed, int fill) {
  BT_CUDA_RETURN_IF_ERROR(cudaMemset(memory, 0, zeroed));
  BT_CUDA_RETURN_IF_ERROR(cudaMemset(static_cast<char*>(memory) + zeroed, fill, bytes - zeroed));
  return WaitForDevice();
}

}  // namespace

Result<std::vector<int32_t>> HostsOfRanks(const Meeting& meeting, int32_t part) {
  const Result<std::array<char, 40>> id = HostId();
  const Host own{.id = id.ok() ? id.value() : std::array<char, 40>{}, .part = part};
  BT_ASSIGN_OR_RETURN(const std::vector<Host> all, meeting.All(id.status(), own));
  std::vector<int32_t> hosts;
  for (const Host& host : all) {
    const auto first = std::ranges::find_if(
        all, [&](const Host& other) { return other.id == host.id && other.part == host.part; });
    hosts.push_back(static_cast<int32_t>(first - all.begin()));
  }
  return hosts;
}

Result<PeerWorld> PeerWorld::Meet(const Meeting& meeting,
                                  const std::vector<int32_t>& hosts,
                                  int device,
                                  size_t bytes,
                                  size_t zeroed,
                                  int fill,
                                  const std::vector<int32_t>& near,
                                  bool use_memory) {
  const auto self = static_cast<size_t>(meeting.rank()),
             ranks = static_cast<size_t>(meeting.ranks());
  Status well;
  if (meeting.ranks() > kWorldMax) {
    well = InvalidArgument("more than " + std::to_string(kWorldMax) + " ranks");
  }
  const Place own{.process = ProcessId(), .device = device};
  BT_ASSIGN_OR_RETURN(const std::vector<Place> places, meeting.All(well, own));
  const auto same_host = [&](size_t rank) { return hosts[rank] == hosts[self]; };
  const auto same_process = [&](size_t rank) {
    return places[rank].process == places[self].process && same_host(rank);
  };

  // Which of the near ranks are in this process, and whether some are in others of this host.
  std::vector<int> devices;
  bool processes = false;
  well = {};
  for (const int32_t rank : near) {
    const auto other = static_cast<size_t>(rank);
    if (!use_memory || other == self || !same_host(other)) continue;
    if (!same_process(other)) {
      processes = true;
      continue;
    }
    const Result<bool> can = CanReach(device, places[other].device);
    if (!can.ok()) {
      well = can.status();
    } else if (can.value() && places[other].device != device) {
      devices.push_back(places[other].device);
    }
  }

  // Each has memory; the first rank of a process makes what its ranks share.
  PeerWorld world;
  size_t first = 0;
  while (!same_process(first)) ++first;
  Offer offer;
  std::shared_ptr<void> memory;
  if (well.ok()) {
    Result<std::shared_ptr<void>> made =
        processes ? MemoryForProcesses(bytes) : MemoryFor(device, devices, bytes);
    well = made.ok() ? Fill(made.value().get(), bytes, zeroed, fill) : made.status();
    if (made.ok()) memory = std::move(made).value();
    offer.memory = memory.get();
    offer.processes = processes;
  }
  if (well.ok() && processes && cudaIpcGetMemHandle(&offer.handle, offer.memory) != cudaSuccess) {
    static_cast<void>(cudaGetLastError());  // other processes will not reach it
  }
  if (well.ok() && first == self) {
    Result<std::shared_ptr<ProcessShare>> share = ProcessShare::Create();
    well = share.status();
    if (well.ok()) world.share_ = std::move(share).value();
    // Others read it until the next meeting; where that fails it stays, since they may be late.
    offer.share = new std::shared_ptr<ProcessShare>(world.share_);
  }
  BT_ASSIGN_OR_RETURN(const std::vector<Offer> offers, meeting.All(well, offer));
  if (first != self) world.share_ = *offers[first].share;
  world.share_->Keep(std::move(memory));

  world.memory_.assign(ranks, nullptr);
  world.memory_[self] = offer.memory;
  Reach reach;
  for (const int32_t rank : near) {
    const auto other = static_cast<size_t>(rank);
    bool reached = other == self;
    if (!reached && use_memory && same_process(other)) {
      const Result<bool> can = CanReach(device, places[other].device);
      reached = can.ok() && can.value();
      if (!can.ok()) well = can.status();
      if (reached && offers[other].processes) well = EnablePeer(device, places[other].device);
      if (reached) world.memory_[other] = offers[other].memory;
    } else if (!reached && use_memory && same_host(other)) {
      void* opened = nullptr;
      reached = cudaIpcOpenMemHandle(&opened, offers[other].handle,
                                     cudaIpcMemLazyEnablePeerAccess) == cudaSuccess;
      if (reached) {
        world.memory_[other] = opened;
        world.mapped_.push_back(rank);
      } else {
        static_cast<void>(cudaGetLastError());
      }
    }
    if (reached) reach.bits[other / 8] |= static_cast<uint8_t>(1u << other % 8);
  }
  // From here on every rank of a process has its own hold of the share.
  BT_ASSIGN_OR_RETURN(const std::vector<Reach> reaches, meeting.All(well, reach));
  delete offer.share;
  for (const Reach& one : reaches) {
    std::vector<uint8_t> bits(ranks);
    for (size_t rank = 0; rank < ranks; ++rank) bits[rank] = one.bits[rank / 8] >> rank % 8 & 1;
    world.reach_.push_back(std::move(bits));
  }
  return world;
}

PeerWorld::~PeerWorld() {
  for (const int32_t rank : mapped_) {
    static_cast<void>(cudaIpcCloseMemHandle(memory_[static_cast<size_t>(rank)]));
  }
}

bool PeerWorld::reaches(int32_t from, int32_t to) const {
  return reach_[static_cast<size_t>(from)][static_cast<size_t>(to)] != 0;
}

bool PeerWorld::ReachEachOther(const std::vector<int32_t>& ranks) const {
  return std::all_of(ranks.begin(), ranks.end(), [&](int32_t from) {
    return std::all_of(ranks.begin(), ranks.end(),
                       [&](int32_t to) { return from == to || reaches(from, to); });
  });
}

// The failure word lies at the beginning of each rank's memory.
PeerWatch PeerWorld::WatchOf(const std::vector<int32_t>& ranks,
                             int32_t self,
                             int64_t patience_ms) const {
  PeerWatch watch;
  watch.failure = static_cast<uint32_t*>(memory(self));
  watch.failure_of_process = failure_word();
  watch.patience_ns = static_cast<uint64_t>(patience_ms) * 1'000'000;
  watch.ranks = static_cast<int>(ranks.size());
  for (size_t i = 0; i < ranks.size(); ++i) {
    watch.world_ranks[i] = static_cast<uint32_t>(ranks[i]);
    watch.failure_of[i] = static_cast<uint32_t*>(memory(ranks[i]));
    if (ranks[i] == self) watch.rank = static_cast<int>(i);
  }
  return watch;
}

uint32_t* PeerWorld::failure_word() const {
  return share_->failure_word;
}

}  // namespace baltoro::cuda
