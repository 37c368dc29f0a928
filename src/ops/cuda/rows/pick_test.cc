// The highest of a row, held to the operation for host memory.

#include <limits>
#include <string>

#include "device/cuda/device_info.h"
#include "ops/cuda/rows/rows_test_support.h"

namespace baltoro::cuda {
namespace {

using namespace rows_test;  // NOLINT

constexpr float kInfinity = std::numeric_limits<float>::infinity();

void ExpectPicked(Device& device,
                  Tensor& logits,
                  const TensorView& names_here,
                  const TensorView& names_there,
                  const std::string& what) {
  logits.ToDevice();
  const int64_t rows = logits.host().dim(0);
  Tensor tokens = Tensor::Vector(DType::kI32, rows);
  tokens.ToDevice();
  Pick(device.ctx(), tokens.device(), logits.device(), names_there);
  device.Wait();
  ReferenceOps().pick({}, tokens.host(), logits.host(), names_here);
  ExpectSameBytes(what, tokens.FromDevice(), tokens.bytes());
}

GPU_TEST(PickTest, IsThatOfTheReference) {
  Device device;
  std::mt19937_64 random(11);
  for (const int64_t width : {1, 7, 64, 1000, 2304, 20481}) {
    for (const int64_t stride : {width, width + 5}) {
      const int64_t rows = 9;
      Tensor logits(DType::kF32, rows, width, stride);
      logits.FillNormal(random, 3);
      const auto put = [&](int64_t row, int64_t at, float value) {
        logits.Set(row, at % width, value);
      };
      put(1, width - 1, 1000);                   // the last
      put(2, 0, 1000), put(2, width - 1, 1000);  // of equal ones the first
      put(3, width / 2, std::nanf("")), put(3, 0, 1000);
      put(4, width / 3, kInfinity);
      put(5, width - 1, -kInfinity);
      for (int64_t i = 0; i < width; ++i) put(6, i, -1000), put(7, i, i % 2 == 0 ? 0.0f : -0.0f);
      const std::string what = "pick of " + std::to_string(width) + " in " + std::to_string(stride);
      ExpectPicked(device, logits, {}, {}, what);

      Tensor names = Tensor::Vector(DType::kI32, width);
      for (int64_t i = 0; i < width; ++i) {
        names.host().as<int32_t>()[i] = static_cast<int32_t>(3 * i + 1);
      }
      names.ToDevice();
      ExpectPicked(device, logits, names.host(), names.device(), what + ", by name");
    }
  }
}

}  // namespace
}  // namespace baltoro::cuda

int main(int argc, char** argv) {
  return baltoro::testing::RunGpuCases(argc, argv, baltoro::UsableDeviceCount());
}
