#include "ops/cpu/kv_rows.h"

#include <algorithm>
#include <cstring>

#include "ops/cpu/isa.h"
#include "tensor/kv_form.h"

namespace baltoro::cpu {
namespace {

template <typename Element>
void WidenEachGroup(Element* out, int64_t stride, const GroupedRows& rows) {
  for (int64_t t = 0; t < rows.tokens; ++t) {
    const uint8_t* codes = rows.in + t * rows.token_bytes;
    for (int64_t begin = 0; begin < rows.latent; begin += kKvGroup) {
      float scale = 0;
      std::memcpy(&scale, codes + rows.latent + begin / kKvGroup * 4, sizeof(scale));
      WidenE4M3Avx2(out + t * stride + begin, codes + begin, scale,
                    std::min(kKvGroup, rows.latent - begin));
    }
  }
}

}  // namespace

void WidenE4M3(Bf16* out, const uint8_t* in, float scale, int64_t n) {
  ActiveIsa() == Isa::kAvx2 ? WidenE4M3Avx2(out, in, scale, n) : WidenE4M3Avx512(out, in, scale, n);
}

void WidenE4M3(float* out, const uint8_t* in, float scale, int64_t n) {
  WidenE4M3Avx2(out, in, scale, n);
}

void WidenGroups(Bf16* out, int64_t stride, const GroupedRows& rows) {
  if (ActiveIsa() != Isa::kAvx2 && rows.latent % kKvGroup == 0) {
    WidenGroupsAvx512(out, stride, rows);
  } else {
    WidenEachGroup(out, stride, rows);
  }
}

void WidenGroups(float* out, int64_t stride, const GroupedRows& rows) {
  WidenEachGroup(out, stride, rows);
}

}  // namespace baltoro::cpu
