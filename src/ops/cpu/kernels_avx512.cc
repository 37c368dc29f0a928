#define BT_VECTOR_BYTES 64
#include "ops/cpu/simd_kernels.inc"

namespace baltoro::cpu {

constinit const Kernels kAvx512WideningBf16 = MakeKernels<false, true>();
constinit const Kernels kAvx512F32 = MakeKernels<false, false>();
constinit const Kernels kAvx512Bf16Tiles = MakeKernels<true, true>();

}  // namespace baltoro::cpu
