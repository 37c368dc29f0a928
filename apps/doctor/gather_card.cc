// What NVIDIA's management library (NVML) and driver library say. Both are opened if they are
// there: the program is built without their headers, so the few functions and structs are declared
// here, as NVML's stable interface has them.

#include <dlfcn.h>
#include <fmt/format.h>

#include <array>
#include <cstdlib>
#include <memory>

#include "base/file.h"
#include "doctor/gather.h"
#include "engine/nvidia_card.h"
#include "engine/nvidia_driver.h"
#include "ops/cuda_module.h"

namespace baltoro {
namespace {

using Device = struct NvmlDevice*;

constexpr int kCardsMax = 64, kProcessesMax = 128, kLinksMax = 18;
constexpr int kP2pRead = 0, kComputeProhibited = 2;
constexpr int kErrorUncorrected = 1, kVolatileCounter = 0;

struct NvmlMemory {
  unsigned long long total, free, used;
};
struct NvmlProcess {
  unsigned pid;
  unsigned long long bytes;
  unsigned gpu_instance, compute_instance;
};
struct NvmlFabric {
  unsigned char cluster[16];
  int status;
  unsigned clique;
  unsigned char state;
};

struct LibraryCloser {
  void operator()(void* library) const { dlclose(library); }
};
using Library = std::unique_ptr<void, LibraryCloser>;

std::string LastError() {
  const char* why = dlerror();
  return why == nullptr ? "unknown" : why;
}

// Calls a function of the library if it has it; -1 if not.
template <typename... Args>
int Call(const Library& library, const char* name, Args... args) {
  const auto function = reinterpret_cast<int (*)(Args...)>(dlsym(library.get(), name));
  return function == nullptr ? -1 : function(args...);
}

std::string NvmlError(const Library& nvml, int code) {
  const auto function =
      reinterpret_cast<const char* (*)(int)>(dlsym(nvml.get(), "nvmlErrorString"));
  return function == nullptr ? fmt::format("NVML error {}", code) : function(code);
}

std::string NameOfProcess(unsigned pid) {
  const Result<std::string> text = ReadFile(fmt::format("/proc/{}/comm", pid), 256);
  return text.ok() ? text.value().substr(0, text.value().find('\n')) : "";
}

void AddProcesses(const Library& nvml, Device device, CardReport& card) {
  std::array<NvmlProcess, kProcessesMax> processes = {};
  unsigned count = kProcessesMax;
  if (Call(nvml, "nvmlDeviceGetComputeRunningProcesses_v3", device, &count, processes.data()) !=
      0) {
    return;
  }
  for (unsigned i = 0; i < std::min<unsigned>(count, kProcessesMax); ++i) {
    const bool known = processes[i].bytes != ~0ULL;
    card.processes.push_back({.pid = processes[i].pid,
                              .name = NameOfProcess(processes[i].pid),
                              .bytes = known ? static_cast<int64_t>(processes[i].bytes) : -1});
  }
}

void AddLinks(const Library& nvml, Device device, CardReport& card) {
  for (unsigned link = 0; link < kLinksMax; ++link) {
    unsigned state = 0;
    if (Call(nvml, "nvmlDeviceGetNvLinkState", device, link, &state) != 0) continue;
    card.links = std::max(card.links, 0) + 1;
    card.links_up = std::max(card.links_up, 0) + (state == 1 ? 1 : 0);
  }
  NvmlFabric fabric = {};
  if (Call(nvml, "nvmlDeviceGetGpuFabricInfo", device, &fabric) == 0) card.fabric = fabric.state;
}

CardReport ReadCard(const Library& nvml, Device device) {
  CardReport card;
  std::array<char, 96> name = {};
  if (Call(nvml, "nvmlDeviceGetName", device, name.data(), unsigned{name.size()}) == 0) {
    card.name = name.data();
  }
  Call(nvml, "nvmlDeviceGetCudaComputeCapability", device, &card.major, &card.minor);
  NvmlMemory memory = {};
  if (Call(nvml, "nvmlDeviceGetMemoryInfo", device, &memory) == 0) {
    card.memory_bytes = static_cast<int64_t>(memory.total);
    card.used_bytes = static_cast<int64_t>(memory.used);
  }
  unsigned current = 0, pending = 0;
  card.mig = Call(nvml, "nvmlDeviceGetMigMode", device, &current, &pending) == 0 && current == 1;
  int mode = 0;
  card.prohibited =
      Call(nvml, "nvmlDeviceGetComputeMode", device, &mode) == 0 && mode == kComputeProhibited;
  unsigned long long errors = 0;
  if (Call(nvml, "nvmlDeviceGetTotalEccErrors", device, kErrorUncorrected, kVolatileCounter,
           &errors) == 0) {
    card.uncorrected_errors = static_cast<int64_t>(errors);
  }
  AddProcesses(nvml, device, card);
  AddLinks(nvml, device, card);
  return card;
}

void ReadNvml(CardFactsOfNode& out) {
  const Library nvml(dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL));
  if (nvml == nullptr) {
    out.driver_problem = LastError();
    return;
  }
  if (const int code = Call(nvml, "nvmlInit_v2"); code != 0) {
    out.driver_problem = NvmlError(nvml, code);
    return;
  }
  std::array<char, 96> version = {};
  if (Call(nvml, "nvmlSystemGetDriverVersion", version.data(), unsigned{version.size()}) == 0) {
    out.kernel_driver = version.data();
  }
  unsigned count = 0;
  if (const int code = Call(nvml, "nvmlDeviceGetCount_v2", &count); code != 0) {
    out.driver_problem = NvmlError(nvml, code);
  }
  std::vector<Device> devices;
  for (unsigned i = 0; i < std::min<unsigned>(count, kCardsMax); ++i) {
    Device device = nullptr;
    if (const int code = Call(nvml, "nvmlDeviceGetHandleByIndex_v2", i, &device); code != 0) {
      out.driver_problem = fmt::format("GPU {}: {}", i, NvmlError(nvml, code));
      continue;
    }
    devices.push_back(device);
    out.cards.push_back(ReadCard(nvml, device));
  }
  for (size_t i = 0; i < devices.size(); ++i) {
    for (size_t j = i + 1; j < devices.size(); ++j) {
      int there = -1, back = -1;
      Call(nvml, "nvmlDeviceGetP2PStatus", devices[i], devices[j], kP2pRead, &there);
      Call(nvml, "nvmlDeviceGetP2PStatus", devices[j], devices[i], kP2pRead, &back);
      out.peers.push_back(there == 0 && back == 0);
    }
  }
  Call(nvml, "nvmlShutdown");
}

LibraryReport FindLibrary(const std::string& name, const char* of_version, bool returns_it) {
  LibraryReport out{.name = name, .version = {}, .reason = {}};
  const Library library(dlopen(name.c_str(), RTLD_LAZY | RTLD_LOCAL));
  if (library == nullptr) {
    out.reason = LastError();
    return out;
  }
  const void* function = dlsym(library.get(), of_version);
  if (function == nullptr) {
    out.reason = fmt::format("it has no {}", of_version);
    return out;
  }
  int version = 0;
  if (returns_it) {  // size_t cublasLtGetVersion(), 130100
    version = static_cast<int>(reinterpret_cast<size_t (*)()>(const_cast<void*>(function))());
  } else {  // int ncclGetVersion(int*), 22703
    Call(library, of_version, &version);
  }
  out.version = fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
  return out;
}

}  // namespace

CardFactsOfNode GatherCards() {
  CardFactsOfNode out;
  const CardFacts card = LookForCard("/", std::getenv("CUDA_VISIBLE_DEVICES"));
  out.device_file = card.device_file;
  out.pci = card.pci;
  out.unwanted = card.unwanted;
  ReadNvml(out);
  if (out.kernel_driver.empty()) return out;
  out.cuda_version = DriverCudaVersion();
  if (out.cards.empty()) return out;
  out.cublas = FindLibrary("libcublasLt.so.13", "cublasLtGetVersion", true);
  const char* nccl = std::getenv("BALTORO_NCCL");
  out.nccl = FindLibrary(nccl == nullptr ? "libnccl.so.2" : nccl, "ncclGetVersion", false);
  const auto module = FindCudaModule();
  if (!module.ok()) out.module_problem = module.status().message();
  out.rates = MeasureCards(out);
  return out;
}

}  // namespace baltoro
