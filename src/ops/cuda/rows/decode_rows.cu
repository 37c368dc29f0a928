// Floor: the bytes of codes and rows over the card's bandwidth.

#include <cuda_bf16.h>
#include <cuda_fp8.h>

#include "base/check.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/launch/overlapped_launch.h"
#include "ops/cuda/ptx/barriers.cuh"
#include "ops/cuda/rows/decode_rows.h"

namespace baltoro::cuda {
namespace {

constexpr int kThreads = 256, kColumns = 8;  // of a thread

// Four neighbouring columns of a word, whose codes lie as RoundWord puts them
// (fp8_round_device.cuh).
__device__ __forceinline__ uint2 DecodeWord(uint32_t codes, float scale) {
  const auto pair = [](uint32_t two) {
    return __half22float2(
        __half2(__nv_cvt_fp8x2_to_halfraw2(static_cast<__nv_fp8x2_storage_t>(two), __NV_E4M3)));
  };
  const float2 even = pair(codes & 0xffffu), odd = pair(codes >> 16);
  const __nv_bfloat162 first = __floats2bfloat162_rn(even.x * scale, odd.x * scale);
  const __nv_bfloat162 second = __floats2bfloat162_rn(even.y * scale, odd.y * scale);
  return make_uint2(reinterpret_cast<const uint32_t&>(first),
                    reinterpret_cast<const uint32_t&>(second));
}

__global__ void __launch_bounds__(kThreads)
    DecodeRowsKernel(uint4* out, const uint2* codes, const float* scales, int64_t count) {
  AllowNextKernel();
  WaitForEarlierKernels();
  const int64_t at = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (at >= count) return;
  const uint2 eight = __ldcg(codes + at);
  const float scale = __ldcg(scales + at / (128 / kColumns));
  const uint2 low = DecodeWord(eight.x, scale), high = DecodeWord(eight.y, scale);
  out[at] = make_uint4(low.x, low.y, high.x, high.y);
}

}  // namespace

void LaunchDecodeRows(const LaunchStream& stream,
                      void* out,
                      const void* codes,
                      const float* scales,
                      int64_t rows,
                      int64_t width) {
  BT_CHECK(width % 128 == 0);
  const int64_t count = rows * width / kColumns;
  if (count == 0) return;
  LaunchNote note = "rows from codes";
  note.reads = {Region{codes, rows * width}, RegionOf(scales, rows * (width / 128))};
  note.writes = {Region{out, rows * width * 2}};
  const Status launched = LaunchOverlapped(
      note, DecodeRowsKernel, dim3(static_cast<unsigned>((count + kThreads - 1) / kThreads)),
      dim3(kThreads), 0, stream, 1, static_cast<uint4*>(out), static_cast<const uint2*>(codes),
      scales, count);
  CheckLaunch(note.kernel);
  BT_CHECK(launched.ok());
}

}  // namespace baltoro::cuda
