#include "ops/cpu/kv_rows.h"

#include "ops/cpu/isa.h"

namespace baltoro::cpu {

void WidenE4M3(Bf16* out, const uint8_t* in, float scale, int64_t n) {
  ActiveIsa() == Isa::kAvx2 ? WidenE4M3Avx2(out, in, scale, n) : WidenE4M3Avx512(out, in, scale, n);
}

void WidenE4M3(float* out, const uint8_t* in, float scale, int64_t n) {
  WidenE4M3Avx2(out, in, scale, n);
}

}  // namespace baltoro::cpu
