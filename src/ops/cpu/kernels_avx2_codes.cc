// Groups of codes by rows of f32, on AVX2.

#include <immintrin.h>

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "ops/cpu/coded_product.h"

#define BT_VECTOR_BYTES 32

namespace baltoro::cpu {
namespace {

#include "ops/cpu/simd_vectors.inc"

#include "ops/cpu/simd_groups.inc"

}  // namespace

void MultiplyGroupsAvx2(const CodedProduct& p) {
  if (p.form == WeightForm::kInt4Group) {
    GroupProduct<WideInt4>::Multiply(p);
    return;
  }
  // Each product with a subnormal number makes Intel's processors wait for some 150 cycles.
  static const bool slow_subnormals = __builtin_cpu_is("intel") != 0;
  if (slow_subnormals) {
    GroupProduct<WideFp8<false>>::Multiply(p);
  } else {
    GroupProduct<WideFp8<true>>::Multiply(p);
  }
}

}  // namespace baltoro::cpu
