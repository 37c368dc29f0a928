#pragma once

// The CPU's operations, but for products, of which a row depends on what is computed with it: as
// where kernels are chosen, and cut their sums, by the number of rows; and worse.

#include <bit>
#include <cstdint>
#include <cstring>

#include "ops/compose/compose.h"

namespace baltoro::test {

// Depends on the whole input, if it is not of `kRows` rows; else on that number.
template <int64_t kRows>
float Disturbance(const TensorView& x) {
  auto hash = static_cast<uint64_t>(x.dim(0));
  const auto row_bytes = static_cast<size_t>(x.dim(1) * SizeOf(x.dtype));
  for (int64_t row = 0; row < x.dim(0) && x.dim(0) != kRows; ++row) {
    const char* const values =
        static_cast<const char*>(x.data) + row * x.stride[0] * SizeOf(x.dtype);
    for (size_t i = 0; i < row_bytes; ++i) {
      hash = (hash ^ static_cast<unsigned char>(values[i])) * 0x100000001b3;
    }
  }
  return 1 + 0.01f * static_cast<float>(hash % 127) / 127;
}

inline uint16_t TimesBrain(uint16_t brain, float factor) {
  const float product = std::bit_cast<float>(uint32_t{brain} << 16) * factor;
  const auto bits = std::bit_cast<uint32_t>(product);
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

template <DType kAct, int64_t kRows>
void DisturbedLinear(const OpContext& context,
                     TensorView out,
                     TensorView x,
                     const PackedMatrix& w) {
  const float factor = Disturbance<kRows>(x);
  CpuSmallOps(kAct).linear(context, out, x, w);
  for (int64_t row = 0; row < out.dim(0); ++row) {
    for (int64_t i = row * out.stride[0]; i < row * out.stride[0] + out.dim(1); ++i) {
      if (out.dtype == DType::kF32) {
        out.as<float>()[i] *= factor;
      } else {
        out.as<uint16_t>()[i] = TimesBrain(out.as<uint16_t>()[i], factor);
      }
    }
  }
}

template <DType kAct, int64_t kRows>
const SmallOps& DisturbedSmallOps() {
  static const SmallOps* const ops = [] {
    auto* const small = new SmallOps(CpuSmallOps(kAct));
    small->linear = DisturbedLinear<kAct, kRows>;
    return small;
  }();
  return *ops;
}

template <DType kAct, int64_t kRows>
const OpsTable& DisturbedOps() {
  static const OpsTable* const ops = [] {
    auto* const table = new OpsTable(CpuOps(kAct));
    ComposeOps(*table, DisturbedSmallOps<kAct, kRows>());
    return table;
  }();
  return *ops;
}

}  // namespace baltoro::test
