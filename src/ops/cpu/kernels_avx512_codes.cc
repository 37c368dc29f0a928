// Groups of codes by rows of f32, on AVX-512.

#include <immintrin.h>

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "ops/cpu/coded_product.h"

#define BT_VECTOR_BYTES 64

namespace baltoro::cpu {
namespace {

#include "ops/cpu/simd_vectors.inc"

#include "ops/cpu/simd_groups.inc"

}  // namespace

void MultiplyGroupsAvx512(const CodedProduct& p) {
  if (p.form == WeightForm::kInt4Group) {
    GroupProduct<WideInt4>::Multiply(p);
  } else {
    // Most processors that come here are Intel's: on AMD's, pairs of bf16 are multiplied.
    GroupProduct<WideFp8<false>>::Multiply(p);
  }
}

}  // namespace baltoro::cpu
