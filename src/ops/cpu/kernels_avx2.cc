#define BT_VECTOR_BYTES 32
#include "ops/cpu/simd_kernels.inc"

namespace baltoro::cpu {

constinit const Kernels kAvx2Bf16 = MakeKernels<false, true>();
constinit const Kernels kAvx2F32 = MakeKernels<false, false>();

}  // namespace baltoro::cpu
