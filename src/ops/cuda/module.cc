// What the module gives to the program (ops/cuda_module.h).

#include "ops/cuda_module.h"

#include <array>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <string>

#include "base/last_words.h"
#include "device/cuda/card_share.h"
#include "device/cuda/cuda_memory.h"
#include "device/cuda/cuda_status.h"
#include "device/cuda/device_buffer.h"
#include "device/cuda/device_info.h"
#include "device/cuda/measure.h"
#include "device/cuda/stream.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/join_ranks.h"
#include "ops/cuda/launch/kernel_table.h"
#include "ops/cuda/launch/placed_launch.h"
#include "ops/cuda/layer/layer_state.h"
#include "ops/cuda/vision/vision.h"

namespace baltoro::cuda {
namespace {

// The operations of one GPU, and what its rank keeps.
struct Opened {
  std::unique_ptr<RankState> rank;
  OpsTable table;
};

OpsTable MakeTable(int device, RankState* rank) {
  OpsTable table;
  table.name = "cuda";
  table.act = DType::kBf16;
  table.memory = &CudaMemory(device);
  table.staging = &PinnedMemory();
  table.rank = rank;
  table.packed_bytes = PackedBytes;
  table.plain_by_rows = true;
  table.pack_rows = PackRows;
  table.upload = Upload;
  table.wait = Wait;
  table.fetch = Fetch;
  table.capture = Capture;
  table.plan_attention = PlanAttention;
  table.rows_alone = RowsAlone;
  table.begin = [](const OpContext& context, Arena& arena, const StepShape& shape) {
    return std::make_unique<LayerState>(context, arena, shape);
  };
  table.small = &CudaSmallOps();
  table.pick = Pick;
  table.sample = Sample;
  table.vision = &CudaVisionOps();
  return table;
}

Status NoGpu(int device, const std::string& why) {
  return Status(Code::kUnavailable, "GPU " + std::to_string(device) + ": " + why);
}

Result<GpuInfo> Describe(int device) {
  int devices = 0;
  const cudaError_t error = cudaGetDeviceCount(&devices);
  if (error != cudaSuccess) {
    std::string why = CudaStatus(error, "the driver").message();
    if (error == cudaErrorInsufficientDriver) {
      why += "; install one for CUDA " + std::to_string(CUDART_VERSION / 1000) + " or newer";
    }
    return NoGpu(device, why);
  }
  BT_ASSIGN_OR_RETURN(const int shares, SharesAsDevices());
  if (shares > 0) devices = shares;
  if (device < 0 || device >= devices) {
    return NoGpu(device, "there are " + std::to_string(devices) + " GPUs");
  }
  BT_ASSIGN_OR_RETURN(const int card, CardOf(device));
  BT_ASSIGN_OR_RETURN(const DeviceInfo info, DescribeDevice(card));
  BT_ASSIGN_OR_RETURN(const Overrides* const table, KernelTable());
  return GpuInfo{.name = info.name,
                 .is_share = shares > 0,
                 .memory_bytes = static_cast<int64_t>(info.memory_bytes),
                 .launches_overlap = LaunchesOverlap(),
                 .kernel_overrides = static_cast<int64_t>(table->size())};
}

const OpsTable* Table() {
  static const OpsTable table = MakeTable(0, nullptr);
  return &table;
}

Result<double> ReadRate() {
  constexpr size_t kBytes = size_t{4} << 30;
  BT_ASSIGN_OR_RETURN(const DeviceBuffer data, DeviceBuffer::Create(kBytes, "a read"));
  BT_ASSIGN_OR_RETURN(const Stream stream, Stream::Create());
  return ReadBandwidth(data.data(), kBytes, stream);
}

Result<const OpsTable*> Open(int device) {
  static std::mutex mutex;
  // Not given back at the end of the process: kernels may still run.
  static auto* const all = new std::array<std::unique_ptr<Opened>, kCudaDevicesMax>;
  const std::lock_guard lock(mutex);
  BT_ASSIGN_OR_RETURN(const GpuInfo info, Describe(device));
  if (device >= kCudaDevicesMax) return NoGpu(device, "no more than 16 are used");
  std::unique_ptr<Opened>& one = (*all)[static_cast<size_t>(device)];
  if (const Status taken = TakeDevice(device); !taken.ok()) {
    return NoGpu(device, info.name + ": " + taken.message());
  }
  if (one != nullptr) return &one->table;
  BT_ASSIGN_OR_RETURN(std::unique_ptr<RankState> rank, RankState::Create());
  const OpsTable table = MakeTable(device, rank.get());
  one = std::make_unique<Opened>(Opened{std::move(rank), table});
  return &one->table;
}

}  // namespace
}  // namespace baltoro::cuda

extern "C" __attribute__((visibility("default"))) const baltoro::CudaModule* BaltoroCudaModule() {
  // A kernel that is loaded when it is first launched may wait for the device, on which a kernel of
  // this rank may wait for another rank, which waits for the loading to end. Nothing of CUDA has
  // been called before this.
  setenv("CUDA_MODULE_LOADING", "EAGER", 0);
  static const baltoro::CudaModule module{.layout = baltoro::kCudaModuleLayout,
                                          .version = BALTORO_VERSION,
                                          .describe = baltoro::cuda::Describe,
                                          .table = baltoro::cuda::Table,
                                          .read_rate = baltoro::cuda::ReadRate,
                                          .open = baltoro::cuda::Open,
                                          .set_kernel_table = baltoro::cuda::SetKernelTable,
                                          .listen_to_choices = baltoro::cuda::ListenToChoices,
                                          .join_ranks = baltoro::cuda::JoinRanks,
                                          .set_last_line_writer = baltoro::SetLastLineWriter};
  return &module;
}
