#include "ops/cpu/kernels.h"

#include "base/check.h"
#include "ops/cpu/coded_product.h"

namespace baltoro::cpu {
namespace {

using Multiply = decltype(Kernels::multiply);

Kernels WithBf16Products(Multiply multiply) {
  Kernels kernels = kAvx512Bf16Tiles;
  kernels.multiply = multiply;
  return kernels;
}

}  // namespace

const Kernels& KernelsFor(DType act, DType stored) {
  static const Kernels avx512_bf16 = WithBf16Products(MultiplyAvx512Bf16);
  static const Kernels amx = WithBf16Products(MultiplyAmx);
  BT_CHECK(stored == DType::kBf16 || stored == DType::kF32);
  const Isa isa = ActiveIsa();
  if (stored == DType::kF32) return isa == Isa::kAvx2 ? kAvx2F32 : kAvx512F32;
  if (isa == Isa::kAvx2) return kAvx2Bf16;
  if (act == DType::kF32 || isa == Isa::kAvx512) return kAvx512WideningBf16;
  return isa == Isa::kAmx ? amx : avx512_bf16;
}

MultiplyCodes* MultiplyCodesFor(const Kernels& kernels, WeightForm form) {
  const Isa isa = ActiveIsa();
  const bool tiles = isa == Isa::kAmx;
  if (HasIntegerProducts(form)) {
    if (tiles) return MultiplyIntegersAmx;
    return HasVnni() ? MultiplyIntegersVnni : MultiplyIntegersAvx2;
  }
  if (kernels.tile == DType::kBf16) return tiles ? MultiplyGroupsAmx : MultiplyGroupsAvx512Bf16;
  return isa == Isa::kAvx2 ? MultiplyGroupsAvx2 : MultiplyGroupsAvx512;
}

}  // namespace baltoro::cpu
