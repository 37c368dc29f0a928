// What blocks of a cluster do with each other's shared memory.

#include "instruction_test.h"
#include "ops/cuda/ptx/hopper.cuh"

namespace baltoro::instructions {
namespace {

constexpr uint32_t kBlocks = 4, kThreads = 64;

__device__ uint32_t Rank() {
  uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

__device__ uint32_t There(uint32_t address, uint32_t rank) {
  uint32_t there;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
  return there;
}

__device__ void Meet() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// Each block reads its right neighbour's words and writes into its left one's.
__global__ void __cluster_dims__(kBlocks, 1, 1) NeighbourKernel(const uint32_t* in, uint32_t* out) {
  __shared__ uint32_t mine[kThreads], given[kThreads];
  const uint32_t rank = Rank(), t = threadIdx.x, at = blockIdx.x * kThreads + t;
  mine[t] = in[at];
  Meet();
  uint32_t read;
  asm volatile("ld.shared::cluster.u32 %0, [%1];"
               : "=r"(read)
               : "r"(There(hopper::SharedAddress(mine + t), (rank + 1) % kBlocks))
               : "memory");
  asm volatile("st.shared::cluster.u32 [%0], %1;" ::"r"(
                   There(hopper::SharedAddress(given + t), (rank + kBlocks - 1) % kBlocks)),
               "r"(in[at] + rank)
               : "memory");
  Meet();
  out[at * 2] = read;
  out[at * 2 + 1] = given[t];
}

GPU_TEST(ClusterTest, NeighboursReadAndWrite) {
  constexpr uint32_t kClusters = 3, kAll = kClusters * kBlocks * kThreads;
  const Words in = SomeWords(kAll, 60);
  Words want;
  for (uint32_t n = 0; n < kAll; ++n) {
    const uint32_t block = n / kThreads, rank = block % kBlocks;
    const uint32_t right = (block - rank + (rank + 1) % kBlocks) * kThreads + n % kThreads;
    want.push_back(in[right]);
    want.push_back(in[right] + (rank + 1) % kBlocks);
  }
  ExpectWords("neighbours",
              Run(NeighbourKernel, dim3(kClusters * kBlocks), dim3(kThreads), in, want.size()),
              want);
}

// All send to block 0: words that complete on its barrier, single, in pairs and in fours.
__global__ void __cluster_dims__(kBlocks, 1, 1) SendKernel(const uint32_t* in, uint32_t* out) {
  constexpr uint32_t kWords = 7;
  __shared__ alignas(16) uint32_t ones[kBlocks * kThreads], pairs[kBlocks * kThreads * 2],
      fours[kBlocks * kThreads * 4];
  __shared__ uint64_t barrier_word;
  const uint32_t rank = Rank(), t = threadIdx.x, barrier = hopper::SharedAddress(&barrier_word);
  if (rank == 0 && t == 0) {
    hopper::InitBarrier(barrier, 1);
    hopper::FenceBarrierInit();
    hopper::ArriveExpecting(barrier, kBlocks * kThreads * kWords * 4);
  }
  Meet();
  const uint32_t place = rank * kThreads + t;
  const uint32_t* const w = in + place * kWords;
  const uint32_t its_barrier = There(barrier, 0);
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::"r"(
          There(hopper::SharedAddress(ones + place), 0)),
      "r"(w[0]), "r"(its_barrier)
      : "memory");
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.b32 [%0], {%1, %2}, [%3];" ::
          "r"(There(hopper::SharedAddress(pairs + place * 2), 0)),
      "r"(w[1]), "r"(w[2]), "r"(its_barrier)
      : "memory");
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.b32"
      " [%0], {%1, %2, %3, %4}, [%5];" ::"r"(There(hopper::SharedAddress(fours + place * 4), 0)),
      "r"(w[3]), "r"(w[4]), "r"(w[5]), "r"(w[6]), "r"(its_barrier)
      : "memory");
  if (rank == 0) {
    hopper::Wait(barrier, 0);
    for (uint32_t n = t; n < kBlocks * kThreads; n += kThreads) {
      out[n * kWords] = ones[n];
      for (uint32_t i = 0; i < 2; ++i) out[n * kWords + 1 + i] = pairs[n * 2 + i];
      for (uint32_t i = 0; i < 4; ++i) out[n * kWords + 3 + i] = fours[n * 4 + i];
    }
  }
  Meet();
}

GPU_TEST(ClusterTest, WordsAreSentAndCompleteOnABarrier) {
  const Words in = SomeWords(kBlocks * kThreads * 7, 61);
  ExpectWords("words", Run(SendKernel, dim3(kBlocks), dim3(kThreads), in, in.size()), in);
}

// Blocks arrive at the barrier of block 0, and copy a piece of their shared memory there.
__global__ void __cluster_dims__(kBlocks, 1, 1) ArriveKernel(const uint32_t* in, uint32_t* out) {
  __shared__ alignas(128) uint32_t mine[kThreads], all[kBlocks * kThreads];
  __shared__ uint64_t arrivals_word, copies_word;
  const uint32_t rank = Rank(), t = threadIdx.x;
  const uint32_t arrivals = hopper::SharedAddress(&arrivals_word),
                 copies = hopper::SharedAddress(&copies_word);
  if (rank == 0 && t == 0) {
    hopper::InitBarrier(arrivals, kBlocks * kThreads);
    hopper::InitBarrier(copies, 1);
    hopper::FenceBarrierInit();
    hopper::ArriveExpecting(copies, kBlocks * kThreads * 4);
  }
  mine[t] = in[rank * kThreads + t];
  hopper::FenceAsyncProxy();
  __syncthreads();
  Meet();
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(There(arrivals, 0)) : "memory");
  if (t == 0) {
    asm volatile(
        "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes"
        " [%0], [%1], %2, [%3];" ::"r"(There(hopper::SharedAddress(all + rank * kThreads), 0)),
        "r"(hopper::SharedAddress(mine)), "r"(kThreads * 4), "r"(There(copies, 0))
        : "memory");
  }
  if (rank == 0) {
    hopper::Wait(arrivals, 0);
    hopper::Wait(copies, 0);
    for (uint32_t n = t; n < kBlocks * kThreads; n += kThreads) out[n] = all[n];
  }
  Meet();
}

GPU_TEST(ClusterTest, BlocksArriveAndCopy) {
  const Words in = SomeWords(kBlocks * kThreads, 62);
  ExpectWords("pieces", Run(ArriveKernel, dim3(kBlocks), dim3(kThreads), in, in.size()), in);
}

}  // namespace
}  // namespace baltoro::instructions

INSTRUCTION_TEST_MAIN()
