// Memory: atomics, vector accesses, asynchronous copies and what they complete on.

#include <cuda.h>
#include <cudaTypedefs.h>

#include <algorithm>

#include "instruction_test.h"
#include "ops/cuda/ptx/hopper.cuh"

namespace baltoro::instructions {
namespace {

constexpr uint32_t kThreads = 128;

// ---- atomics

constexpr uint32_t kBlocks = 6, kCells = 16;

// Cells: sum, largest, bits, and what each add saw before it.
__global__ void AtomicKernel(const uint32_t* in, uint32_t* out) {
  __shared__ uint32_t sum, bits;
  __shared__ int largest;
  const uint32_t thread = threadIdx.x, all = blockIdx.x * kThreads + thread;
  if (thread == 0) {
    sum = bits = 0;
    largest = INT_MIN;
  }
  __syncthreads();
  atomicAdd(&sum, in[all]);
  atomicMax(&largest, static_cast<int>(in[all]));
  atomicOr(&bits, 1u << in[all] % 32);
  const uint32_t seen = atomicAdd(out, 1);
  asm volatile("red.relaxed.gpu.global.add.u32 [%0], %1;" ::"l"(out + 1), "r"(in[all]) : "memory");
  asm volatile("red.release.gpu.global.add.u32 [%0], %1;" ::"l"(out + 2), "r"(1) : "memory");
  out[kCells + kBlocks * 3 + all] = seen;
  __syncthreads();
  if (thread == 0) {
    out[kCells + blockIdx.x * 3] = sum;
    out[kCells + blockIdx.x * 3 + 1] = static_cast<uint32_t>(largest);
    out[kCells + blockIdx.x * 3 + 2] = bits;
  }
}

__global__ void ClearKernel(uint32_t* out) {
  out[threadIdx.x] = 0;
}

GPU_TEST(MemoryTest, Atomics) {
  constexpr uint32_t kAll = kBlocks * kThreads;
  const Words in = SomeWords(kAll, 50);
  const DeviceWords from(in), to(Words(kCells + kBlocks * 3 + kAll, kNotWritten));
  ClearKernel<<<1, kCells>>>(to.data());
  AtomicKernel<<<kBlocks, kThreads>>>(from.data(), to.data());
  Words got = to.Read();
  uint32_t sum = 0;
  for (const uint32_t x : in) sum += x;
  GPU_EXPECT_EQ(got[0], kAll);
  GPU_EXPECT_EQ(got[1], sum);
  GPU_EXPECT_EQ(got[2], kAll);
  for (uint32_t block = 0; block < kBlocks; ++block) {
    uint32_t block_sum = 0, bits = 0;
    int largest = INT_MIN;
    for (uint32_t n = block * kThreads; n < (block + 1) * kThreads; ++n) {
      block_sum += in[n];
      bits |= 1u << in[n] % 32;
      largest = std::max(largest, static_cast<int>(in[n]));
    }
    GPU_EXPECT_EQ(got[kCells + block * 3], block_sum);
    GPU_EXPECT_EQ(got[kCells + block * 3 + 1], static_cast<uint32_t>(largest));
    GPU_EXPECT_EQ(got[kCells + block * 3 + 2], bits);
  }
  // Each count was seen once.
  std::sort(got.end() - kAll, got.end());
  for (uint32_t n = 0; n < kAll; ++n) GPU_EXPECT_EQ(got[got.size() - kAll + n], n);
}

// ---- widths

struct alignas(16) Mixed {
  int8_t small;
  uint8_t byte;
  int16_t medium;
  uint16_t half;
  int16_t pad;
  int64_t large;
};

__global__ void WidthKernel(const uint32_t* in, uint32_t* out) {
  const Mixed& from = reinterpret_cast<const Mixed*>(in)[threadIdx.x];
  uint32_t* const to = out + threadIdx.x * 8;
  to[0] = static_cast<uint32_t>(int{from.small});
  to[1] = from.byte;
  to[2] = static_cast<uint32_t>(int{from.medium});
  to[3] = from.half;
  *reinterpret_cast<int64_t*>(to + 4) = -from.large;
  reinterpret_cast<uint8_t*>(to + 6)[threadIdx.x % 4] = from.byte;
  reinterpret_cast<uint16_t*>(to + 7)[threadIdx.x % 2] = from.half;
}

GPU_TEST(MemoryTest, SmallAndLargeNumbers) {
  const Words in = SomeWords(kThreads * 4, 51);
  const auto* const rows = reinterpret_cast<const Mixed*>(in.data());
  Words want(kThreads * 8, kNotWritten);
  for (uint32_t n = 0; n < kThreads; ++n) {
    uint32_t* const to = &want[n * 8];
    to[0] = static_cast<uint32_t>(int{rows[n].small});
    to[1] = rows[n].byte;
    to[2] = static_cast<uint32_t>(int{rows[n].medium});
    to[3] = rows[n].half;
    const uint64_t negated = 0 - static_cast<uint64_t>(rows[n].large);
    to[4] = static_cast<uint32_t>(negated);
    to[5] = static_cast<uint32_t>(negated >> 32);
    to[6] = (to[6] & ~(255u << (8 * (n % 4)))) | static_cast<uint32_t>(rows[n].byte)
                                                     << (8 * (n % 4));
    to[7] = (to[7] & ~(0xFFFFu << (16 * (n % 2)))) | static_cast<uint32_t>(rows[n].half)
                                                         << (16 * (n % 2));
  }
  ExpectWords("numbers", Run(WidthKernel, dim3(1), dim3(kThreads), in, want.size()), want);
}

// ---- cp.async: two groups, the second one shorter than its place

__global__ void AsyncKernel(const uint32_t* in, uint32_t* out) {
  __shared__ alignas(16) uint32_t first[kThreads * 4], second[kThreads * 4], third[kThreads];
  const uint32_t t = threadIdx.x;
  asm volatile(
      "cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(hopper::SharedAddress(first + t * 4)),
      "l"(in + t * 4)
      : "memory");
  asm volatile("cp.async.commit_group;" ::: "memory");
  asm volatile(
      "cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(hopper::SharedAddress(second + t * 4)),
      "l"(in + t * 4), "r"(t % 5 * 4 % 20)
      : "memory");
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(hopper::SharedAddress(third + t)),
               "l"(in + t)
               : "memory");
  asm volatile("cp.async.commit_group;" ::: "memory");
  asm volatile("cp.async.wait_group 1;" ::: "memory");
  __syncthreads();
  const uint32_t other = kThreads - 1 - t;
  for (uint32_t n = 0; n < 4; ++n) out[t * 9 + n] = first[other * 4 + n];
  asm volatile("cp.async.wait_all;" ::: "memory");
  __syncthreads();
  for (uint32_t n = 0; n < 4; ++n) out[t * 9 + 4 + n] = second[other * 4 + n];
  out[t * 9 + 8] = third[other];
}

GPU_TEST(MemoryTest, CopiesOfThreads) {
  const Words in = SomeWords(kThreads * 4, 52);
  Words want;
  for (uint32_t t = 0; t < kThreads; ++t) {
    const uint32_t other = kThreads - 1 - t, words = other % 5;
    for (uint32_t n = 0; n < 4; ++n) want.push_back(in[other * 4 + n]);
    for (uint32_t n = 0; n < 4; ++n) want.push_back(n < words ? in[other * 4 + n] : 0);
    want.push_back(in[other]);
  }
  ExpectWords("cp.async", Run(AsyncKernel, dim3(1), dim3(kThreads), in, want.size()), want);
}

// ---- mbarriers

__device__ bool Complete(uint32_t barrier, uint32_t parity) {
  uint32_t complete;
  asm volatile(
      "{ .reg .pred p; mbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2;"
      " selp.u32 %0, 1, 0, p; }"
      : "=r"(complete)
      : "r"(barrier), "r"(parity)
      : "memory");
  return complete != 0;
}

// Phases of a barrier of two arrivals, the second one with 16 bytes that are still to come.
__global__ void PhaseKernel(const uint32_t* in, uint32_t* out) {
  __shared__ alignas(16) uint32_t data[4];
  __shared__ uint64_t barrier_word;
  const uint32_t barrier = hopper::SharedAddress(&barrier_word);
  hopper::InitBarrier(barrier, 2);
  hopper::FenceBarrierInit();
  uint32_t n = 0;
  out[n++] = Complete(barrier, 1);  // the phase before the first
  out[n++] = Complete(barrier, 0);
  hopper::Arrive(barrier);
  out[n++] = Complete(barrier, 0);
  hopper::Arrive(barrier);
  out[n++] = Complete(barrier, 0);
  out[n++] = Complete(barrier, 1);
  hopper::Arrive(barrier);
  hopper::ArriveExpecting(barrier, 16);
  out[n++] = Complete(barrier, 1);
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], 16, [%2];" ::
          "r"(hopper::SharedAddress(data)),
      "l"(in), "r"(barrier)
      : "memory");
  hopper::Wait(barrier, 1);
  out[n++] = Complete(barrier, 1);
  for (uint32_t i = 0; i < 4; ++i) out[n++] = data[i];
}

GPU_TEST(MemoryTest, PhasesOfABarrier) {
  const Words in = SomeWords(4, 53);
  const Words want = {1, 0, 0, 1, 0, 0, 1, in[0], in[1], in[2], in[3]};
  ExpectWords("phases", Run(PhaseKernel, dim3(1), dim3(1), in, want.size()), want);
}

// A warp's cp.async arrive at a barrier, each when its own copies are there.
__global__ void ArrivingKernel(const uint32_t* in, uint32_t* out) {
  __shared__ uint32_t data[32];
  __shared__ uint64_t barrier_word;
  const uint32_t barrier = hopper::SharedAddress(&barrier_word), t = threadIdx.x;
  if (t == 0) hopper::InitBarrier(barrier, 32);
  hopper::FenceBarrierInit();
  __syncthreads();
  if (t < 32) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(hopper::SharedAddress(data + t)),
                 "l"(in + t)
                 : "memory");
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
  } else {
    hopper::Wait(barrier, 0);
    out[t - 32] = data[31 - (t - 32)];
  }
}

GPU_TEST(MemoryTest, CopiesArriveAtABarrier) {
  const Words in = SomeWords(32, 54);
  ExpectWords("what was copied", Run(ArrivingKernel, dim3(1), dim3(64), in, 32),
              Words(in.rbegin(), in.rend()));
}

// ---- bulk copies: in, changed, and out again

__global__ void BulkKernel(const uint32_t* in, uint32_t* out) {
  constexpr uint32_t kBytes = kThreads * 16;
  __shared__ alignas(128) uint32_t data[kThreads * 4];
  __shared__ uint64_t barrier_word;
  const uint32_t barrier = hopper::SharedAddress(&barrier_word), at = hopper::SharedAddress(data);
  if (threadIdx.x == 0) {
    hopper::InitBarrier(barrier, 1);
    hopper::FenceBarrierInit();
    hopper::ArriveExpecting(barrier, kBytes);
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
            "r"(at),
        "l"(in), "r"(kBytes), "r"(barrier)
        : "memory");
  }
  __syncthreads();
  hopper::Wait(barrier, 0);
  for (uint32_t n = 0; n < 4; ++n) data[n * kThreads + threadIdx.x] ^= 0x55555555u;
  hopper::FenceAsyncProxy();
  __syncthreads();
  if (threadIdx.x == 0) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(out), "r"(at),
                 "r"(kBytes)
                 : "memory");
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
  }
}

GPU_TEST(MemoryTest, BulkCopies) {
  const Words in = SomeWords(kThreads * 4, 55);
  Words want = in;
  for (uint32_t& word : want) word ^= 0x55555555u;
  ExpectWords("bulk copies", Run(BulkKernel, dim3(1), dim3(kThreads), in, want.size()), want);
}

// ---- a box of a tensor of three dimensions, in the 128-byte swizzle, over its edges

constexpr uint32_t kWidth = 40, kHeight = 11, kPlanes = 3;  // words, rows, planes of the tensor
constexpr uint32_t kBoxWidth = 32, kBoxHeight = 8, kBox = kBoxWidth * kBoxHeight;

__global__ void BoxKernel(
    const uint32_t*, uint32_t* out, const __grid_constant__ CUtensorMap map, int x, int y, int z) {
  __shared__ alignas(1024) uint32_t data[kBox];
  __shared__ uint64_t barrier_word;
  const uint32_t barrier = hopper::SharedAddress(&barrier_word);
  if (threadIdx.x == 0) {
    hopper::InitBarrier(barrier, 1);
    hopper::FenceBarrierInit();
    hopper::PrefetchMap(&map);
    hopper::ArriveExpecting(barrier, kBox * 4);
    hopper::CopyBox(hopper::SharedAddress(data), &map, barrier, x, y, z);
  }
  __syncthreads();
  hopper::Wait(barrier, 0);
  for (uint32_t n = threadIdx.x; n < kBox; n += kThreads) out[n] = data[n];
}

GPU_TEST(MemoryTest, BoxesOfATensor) {
  const Words tensor = SomeWords(kWidth * kHeight * kPlanes, 56);
  const DeviceWords on_device(tensor);
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found;
  Must(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000,
                                        cudaEnableDefault, &found),
       "cuTensorMapEncodeTiled");
  CUtensorMap map;
  const cuuint64_t sizes[] = {kWidth, kHeight, kPlanes},
                   strides[] = {kWidth * 4, kWidth * kHeight * 4};
  const cuuint32_t box[] = {kBoxWidth, kBoxHeight, 1}, steps[] = {1, 1, 1};
  const CUresult encoded = reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(function)(
      &map, CU_TENSOR_MAP_DATA_TYPE_UINT32, 3, on_device.data(), sizes, strides, box, steps,
      CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_NONE,
      CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  GPU_EXPECT_EQ(encoded, CUDA_SUCCESS);
  struct At {
    int x, y, z;
  };
  for (const At at : {At{0, 0, 0}, At{8, 3, 2}, At{20, 7, 1}, At{-4, -2, 1}, At{0, 0, 3}}) {
    Words want(kBox);
    for (uint32_t row = 0; row < kBoxHeight; ++row) {
      for (uint32_t column = 0; column < kBoxWidth; ++column) {
        const int x = at.x + static_cast<int>(column), y = at.y + static_cast<int>(row);
        const bool inside = x >= 0 && x < static_cast<int>(kWidth) && y >= 0 &&
                            y < static_cast<int>(kHeight) && at.z < static_cast<int>(kPlanes);
        const uint32_t place = row * kBoxWidth + ((column / 4 ^ row % 8) * 4 + column % 4);
        want[place] =
            inside ? tensor[static_cast<size_t>(
                         (at.z * static_cast<int>(kHeight) + y) * static_cast<int>(kWidth) + x)]
                   : 0;
      }
    }
    ExpectWords("a box", Run(BoxKernel, dim3(1), dim3(kThreads), {}, kBox, map, at.x, at.y, at.z),
                want);
  }
}

}  // namespace
}  // namespace baltoro::instructions

INSTRUCTION_TEST_MAIN()
