// What the matrix units do with 4-bit weights as the first operand: cycles of one multiprocessor
// for 64 x 16 weights by N tokens, everything in registers and shared memory. The floor at N tokens
// is N / 2 cycles.
//
//   warpgroup instruction: `groups` warpgroups, each 16 instructions a turn; weights from registers
//   (plain: the same ones, 4 a group; long: 16 a group; widened: as the expert bank does) or from
//   shared memory (shared).
//   warp instruction: `warps` warps of `strips` strips of 16 rows; widened or not, tokens from
//   shared memory.

#include <cstdio>
#include <string>

#include "ops/cuda/experts/bank_device.cuh"
#include "ops/cuda/experts/bank_test_support.cuh"
#include "ops/cuda/ptx/group_multiply.cuh"

namespace baltoro::cuda::moe_test {
namespace {

constexpr int kTurns = 512;
constexpr int kBytes = 200 * 1024;

enum GroupForm { kPlain, kLong, kWidened, kShared, kLean };
const char* const kGroupForms[] = {"plain", "long", "widened", "shared", "lean"};

__device__ void FillShared(char* memory) {
  for (int i = threadIdx.x; i < kBytes / 4; i += blockDim.x) {
    uint32_t z = static_cast<uint32_t>(i) * 2654435761u;
    z ^= z >> 15;
    reinterpret_cast<uint32_t*>(memory)[i] = (z & 0x83ff83ffu) | 0x3c003c00u;
  }
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncthreads();
}

__device__ __forceinline__ void WidenTile(uint32_t (&a)[4][4], uint4 words, uint2 scales) {
  const uint32_t low[2] = {words.x, words.z}, high[2] = {words.y, words.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int jj = i / 2, step = i % 2;
    const uint32_t scale = jj == 0 ? scales.x : scales.y;
    const WidenScale scale_low = LoadScale(scale, false), scale_high = LoadScale(scale, true);
    a[i][0] = WidenPair(low[jj], 2 * step, scale_low);
    a[i][1] = WidenPair(high[jj], 2 * step, scale_high);
    a[i][2] = WidenPair(low[jj], 2 * step + 1, scale_low);
    a[i][3] = WidenPair(high[jj], 2 * step + 1, scale_high);
  }
}

template <int kN>
__device__ __forceinline__ void AddShared(float (&d)[kN / 2], uint64_t a, uint64_t b);
template <>
__device__ __forceinline__ void AddShared<32>(float (&d)[16], uint64_t a, uint64_t b) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, %16, %17, 1, 1, 1, "
      "0, 0;"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]),
        "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]),
        "+f"(d[14]), "+f"(d[15])
      : "l"(a), "l"(b));
}

// Registers of a thread decide how many warpgroups there can be.
constexpr int MostGroups(int n, GroupForm form) {
  return form == kPlain || form == kWidened || (form == kLean && n > 64) ? 3 : 4;
}

template <int kN, GroupForm kForm>
__global__ void __launch_bounds__(128 * MostGroups(kN, kForm), 1)
    GroupKernel(int64_t* cycles, float* sink) {
  extern __shared__ __align__(1024) char memory[];
  FillShared(memory);
  const uint32_t base = (SharedAddress(memory) + 1023) / 1024 * 1024;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  constexpr int kSets = kForm == kPlain || kForm == kWidened ? 2 : 1;
  float acc[kSets][kN / 2];
  uint32_t a[2][4][4];
#pragma unroll
  for (int s = 0; s < kSets; ++s) {
#pragma unroll
    for (int i = 0; i < kN / 2; ++i) acc[s][i] = 0;
  }
#pragma unroll
  for (int i = 0; i < 32; ++i) {
    a[i / 16][i / 4 % 4][i % 4] = LoadShared4(base + lane * 16 + i * 512).x;
  }
  __syncthreads();
  const int64_t begin = clock64();
  for (int turn = 0; turn < kTurns; ++turn) {
    const uint32_t operand = OperandAddress(base + 64 * 1024 + turn % 2 * 32768);
    const uint32_t packed = base + turn % 4 * 4096 + warp % 8 * 1152;
    const auto group = [&](int set, int buffer, uint32_t at) {
      GroupFence();
#pragma unroll
      for (uint32_t i = 0; i < 4; ++i) {
        GroupMultiply<kN>::Add(acc[set], a[buffer][i], OperandAt(at + 2 * i));
      }
      GroupCommit();
    };
    const auto widen = [&](int buffer, int part) {
      WidenTile(a[buffer], LoadShared4(packed + part * 512 + lane * 16),
                LoadShared2(packed + 1024 + lane / 4 * 16 + part % 2 * 8));
    };
    if constexpr (kForm == kPlain) {
#pragma unroll
      for (int g = 0; g < 4; ++g) {
        group(g % 2, g % 2, operand + g / 2 * kN * 8);
        GroupWait<1>();
      }
    } else if constexpr (kForm == kWidened) {
#pragma unroll
      for (int g = 0; g < 4; ++g) {
        widen(g % 2, g);
        group(g % 2, g % 2, operand + g / 2 * kN * 8);
        GroupWait<1>();
      }
    } else if constexpr (kForm == kLean) {
#pragma unroll
      for (int g = 0; g < 4; ++g) {
        widen(g % 2, g);
        group(0, g % 2, operand + g * kN * 8);
        GroupWait<1>();
      }
    } else if constexpr (kForm == kLong) {
      GroupFence();
#pragma unroll
      for (uint32_t i = 0; i < 16; ++i) {
        GroupMultiply<kN>::Add(acc[0], a[i / 4 % 2][i % 4],
                               OperandAt(operand + i / 4 * kN * 8 + i % 4 * 2));
      }
      GroupCommit();
      GroupWait<0>();
    } else {
      GroupFence();
#pragma unroll
      for (uint32_t i = 0; i < 16; ++i) {
        AddShared<32>(acc[0], OperandAt(OperandAddress(base) + i / 4 * 512 + i % 4 * 2),
                      OperandAt(operand + i / 4 * kN * 8 + i % 4 * 2));
      }
      GroupCommit();
      GroupWait<0>();
    }
  }
  GroupWait<0>();
  __syncthreads();
  if (threadIdx.x == 0) cycles[blockIdx.x] = clock64() - begin;
  float sum = 0;
#pragma unroll
  for (int s = 0; s < kSets; ++s) {
#pragma unroll
    for (int i = 0; i < kN / 2; ++i) sum += acc[s][i];
  }
  if (sum == 12345.678f) sink[0] = sum;
}

// kStrips strips a warp, kN * 8 tokens; a turn is 128 columns. kWiden 0: the same operands again
// and again; 1: weights widened, tokens the same; 2: tokens loaded too.
constexpr int MostWarps(int strips, int n) {
  return strips * n > 10 ? 8 : 16;
}

template <int kStrips, int kN, int kWiden>
__global__ void __launch_bounds__(32 * MostWarps(kStrips, kN), 1)
    WarpKernel(int64_t* cycles, float* sink) {
  extern __shared__ __align__(1024) char memory[];
  FillShared(memory);
  const uint32_t base = SharedAddress(memory);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  float acc[kStrips][kN][4] = {};
  uint4 kept[kN];
#pragma unroll
  for (int n = 0; n < kN; ++n) kept[n] = LoadShared4(base + n * 512 + lane * 16);
  __syncthreads();
  const int64_t begin = clock64();
  for (int turn = 0; turn < kTurns; ++turn) {
    if constexpr (kWiden == 0) {
#pragma unroll
      for (int k = 0; k < 8; ++k) {
#pragma unroll
        for (int n = 0; n < kN; ++n) {
#pragma unroll
          for (int s = 0; s < kStrips; ++s) {
            MultiplyAdd(acc[s][n], kept[0].x + s, kept[0].y + k, kept[0].z, kept[0].w, kept[n].x,
                        kept[n].y);
          }
        }
      }
    } else {
      const uint32_t tokens = base + 96 * 1024 + turn % 2 * 32768;
      const uint32_t tile = base + turn % 2 * 40960 + warp % 8 * 4 * 1152;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        uint4 words[kStrips];
        uint2 scales[kStrips];
#pragma unroll
        for (int s = 0; s < kStrips; ++s) {
          words[s] = LoadShared4(tile + s * 1152 + half * 512 + lane * 16);
          scales[s] = LoadShared2(tile + s * 1152 + 1024 + lane / 4 * 16 + half * 8);
        }
#pragma unroll
        for (int jj = 0; jj < 2; ++jj) {
          uint32_t a[kStrips][2][4];
#pragma unroll
          for (int s = 0; s < kStrips; ++s) {
            const uint32_t scale = jj == 0 ? scales[s].x : scales[s].y;
            const uint32_t low = jj == 0 ? words[s].x : words[s].z;
            const uint32_t high = jj == 0 ? words[s].y : words[s].w;
            const WidenScale scale_low = LoadScale(scale, false);
            const WidenScale scale_high = LoadScale(scale, true);
#pragma unroll
            for (int step = 0; step < 2; ++step) {
              a[s][step][0] = WidenPair(low, 2 * step, scale_low);
              a[s][step][1] = WidenPair(high, 2 * step, scale_high);
              a[s][step][2] = WidenPair(low, 2 * step + 1, scale_low);
              a[s][step][3] = WidenPair(high, 2 * step + 1, scale_high);
            }
          }
#pragma unroll
          for (int n = 0; n < kN; ++n) {
            uint4 x = kept[n];
            if constexpr (kWiden == 2) {
              const int chunk = (half * 2 + jj) * 4 + lane % 4, row = n * 8 + lane / 4;
              x = LoadShared4(tokens + row * 256 + ((chunk ^ (row & 1) << 2) << 4));
            }
#pragma unroll
            for (int s = 0; s < kStrips; ++s) {
              MultiplyAdd(acc[s][n], a[s][0][0], a[s][0][1], a[s][0][2], a[s][0][3], x.x, x.y);
            }
#pragma unroll
            for (int s = 0; s < kStrips; ++s) {
              MultiplyAdd(acc[s][n], a[s][1][0], a[s][1][1], a[s][1][2], a[s][1][3], x.z, x.w);
            }
          }
        }
      }
    }
  }
  __syncthreads();
  if (threadIdx.x == 0) cycles[blockIdx.x] = clock64() - begin;
  float sum = 0;
#pragma unroll
  for (int s = 0; s < kStrips; ++s) {
#pragma unroll
    for (int n = 0; n < kN; ++n) sum += acc[s][n][0] + acc[s][n][1] + acc[s][n][2] + acc[s][n][3];
  }
  if (sum == 12345.678f) sink[0] = sum;
}

// Prints cycles and nanoseconds of 64 x 16 weights.
void Measure(const std::string& what, void (*kernel)(int64_t*, float*), int threads, double units) {
  Memory<int64_t> cycles(132);
  Memory<float> sink(1);
  Must(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes + 1024),
       "shared memory");
  cudaEvent_t begin, end;
  Must(cudaEventCreate(&begin), "event");
  Must(cudaEventCreate(&end), "event");
  float ms = 0;
  for (int i = 0; i < 8; ++i) {
    Must(cudaEventRecord(begin), "record");
    kernel<<<132, threads, kBytes + 1024>>>(cycles.get(), sink.get());
    Must(cudaGetLastError(), what.c_str());
    Must(cudaEventRecord(end), "record");
    Must(cudaEventSynchronize(end), what.c_str());
    Must(cudaEventElapsedTime(&ms, begin, end), "elapsed");
  }
  const std::vector<int64_t> all = cycles.Download();
  std::printf("%-40s %7.1f cycles %7.1f ns\n", what.c_str(),
              static_cast<double>(all[0]) / (units * kTurns), ms * 1e6 / (units * kTurns));
  std::fflush(stdout);
}

template <int kN, GroupForm kForm>
void MeasureGroups(int groups) {
  Measure("warpgroup N " + std::to_string(kN) + " groups " + std::to_string(groups) + " " +
              kGroupForms[kForm],
          GroupKernel<kN, kForm>, 128 * groups, 16.0 * groups);
}

template <int kN>
void MeasureN() {
  for (const int groups : {1, 2, 3, 4}) MeasureGroups<kN, kLong>(groups);
  for (const int groups : {2, 3}) MeasureGroups<kN, kPlain>(groups);
  for (const int groups : {1, 2, 3}) MeasureGroups<kN, kWidened>(groups);
  for (const int groups : {2, 3, 4}) {
    if (groups <= MostGroups(kN, kLean)) MeasureGroups<kN, kLean>(groups);
  }
}

template <int kStrips, int kN, int kWiden>
void MeasureWarps() {
  for (const int warps : {4, 8, 16}) {
    if (warps > MostWarps(kStrips, kN)) continue;
    Measure("warp N " + std::to_string(8 * kN) + " strips " + std::to_string(kStrips) + " warps " +
                std::to_string(warps) +
                (kWiden == 0   ? " plain"
                 : kWiden == 1 ? " widened"
                               : " widened, tokens loaded"),
            WarpKernel<kStrips, kN, kWiden>, 32 * warps, 2.0 * kStrips * warps);
  }
}

}  // namespace
}  // namespace baltoro::cuda::moe_test

int main() {
  using namespace baltoro::cuda::moe_test;
  MeasureN<16>();
  MeasureN<32>();
  MeasureN<64>();
  MeasureN<96>();
  for (const int groups : {1, 2, 4}) MeasureGroups<32, kShared>(groups);
  MeasureWarps<2, 2, 0>();
  MeasureWarps<2, 2, 2>();
  MeasureWarps<2, 4, 0>();
  MeasureWarps<2, 4, 1>();
  MeasureWarps<2, 4, 2>();
  MeasureWarps<4, 4, 2>();
  MeasureWarps<2, 11, 2>();
  return 0;
}
