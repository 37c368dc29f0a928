#include "ops/cuda/launch/card.h"

#include <mutex>

#include "base/check.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/launch/kernel_table.h"
#include "ops/cuda/linear/bf16_rows128_internal.h"
#include "ops/cuda/linear/fp8_rows256_internal.h"

namespace baltoro::cuda {
namespace {

constexpr int kDevicesMax = 64;

struct Known {
  std::once_flag asked;
  Card card;
};

ClusterRoom AskClusters() {
  ClusterRoom room;
  for (size_t groups = 0; groups < 3; ++groups) {
    for (size_t split = 0; split < 3; ++split) {
      for (size_t tile = 0; tile < 3; ++tile) {
        const Bf16Rows128Plan plan{
            .groups = static_cast<int>(groups) + 1, .tile = 32 << tile, .split = 2 << split};
        if (plan.groups == kBf16Rows128GroupsMax && plan.tile > 64) continue;
        room.bf16_rows128[groups][split][tile] =
            Bf16Rows128Clusters(plan, kBf16Rows128Whole + 1024);
      }
    }
  }
  for (size_t strip = 0; strip < 3; ++strip) {
    for (size_t part = 0; part < 8; ++part) {
      for (size_t eight = 0; eight < 8; ++eight) {
        const auto strip_rows = static_cast<int32_t>(32 * (strip + 1));
        const auto parts = static_cast<int32_t>(part + 1);
        const auto rows = static_cast<int32_t>(8 * (eight + 1));
        const int32_t bytes = Fp8Rows256SharedBytes(strip_rows, parts, (rows + parts - 1) / parts);
        room.fp8_rows256[strip][part][eight] = Fp8Rows256Clusters(strip_rows, parts, bytes);
      }
    }
  }
  return room;
}

}  // namespace

const Card& ThisCard() {
  static Known known[kDevicesMax];
  int device = 0;
  CheckCuda(cudaGetDevice(&device), "cudaGetDevice");
  BT_CHECK(device >= 0 && device < kDevicesMax);
  Known& one = known[device];
  std::call_once(one.asked, [&] {
    CheckCuda(
        cudaDeviceGetAttribute(&one.card.multiprocessors, cudaDevAttrMultiProcessorCount, device),
        "number of multiprocessors");
    one.card.clusters = AskClusters();
    const Result<Overrides*> table = KernelTable();
    CheckOk(table.status());
    one.card.overrides = table.value();
  });
  return one.card;
}

}  // namespace baltoro::cuda
