// Launches with notes (ops/cuda/launch/order.h). Kernels that keep to theirs: the ways in which
// threads come behind a griddepcontrol.wait that others execute. And kernels with one mistake each,
// which the emulator has to name: a card would not say anything, so they run on the emulator alone.

#include <sys/wait.h>
#include <unistd.h>

#include "instruction_test.h"
#include "ops/cuda/launch/placed_launch.h"
#include "ops/cuda/launch/regions.h"
#include "ops/cuda/ptx/hopper.cuh"

namespace baltoro::instructions {
namespace {

using cuda::LaunchNote;
using cuda::RegionOf;
using cuda::WaitsFirst;

constexpr uint32_t kThreads = 64, kBlocks = 2, kAll = kBlocks * kThreads;

// In x and out of y, as the launches here have them.
struct Params {
  const uint32_t* x;
  uint32_t* y;
  uint32_t* more;  // a few words beside
};

__device__ void BulkCopy(uint32_t to, const uint32_t* from, uint32_t bytes, uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(to),
      "l"(from), "r"(bytes), "r"(barrier)
      : "memory");
}

struct Where {
  unsigned cluster = 1;
  cudaStream_t stream = nullptr;
};

template <typename Kernel>
void Launch(const LaunchNote& note, Kernel kernel, const Params& params, Where where = {}) {
  cudaLaunchAttribute attributes[2] = {};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim = {where.cluster, 1, 1};
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(kBlocks);
  config.blockDim = dim3(kThreads);
  config.attrs = attributes;
  config.numAttrs = where.cluster > 1 ? 2 : 1;
  config.stream = where.stream;
  if (BaltoroHoldToNote != nullptr) BaltoroHoldToNote(&note);
  Must(cudaLaunchKernelEx(&config, kernel, params), "the launch");
}

// Makes x: y[n] = x[n] + 1 of every thread, in the plainest way.
__global__ void AheadKernel(Params p) {
  hopper::WaitForPredecessors();
  hopper::LetDependentsLaunch();
  const uint32_t at = blockIdx.x * kThreads + threadIdx.x;
  p.y[at] = p.x[at] + 1;
}

// What the ways have in common behind the wait.
__device__ void AddOne(const Params& p) {
  const uint32_t at = blockIdx.x * kThreads + threadIdx.x;
  p.y[at] = p.x[at] + 1;
}

// ---- the ways to come behind a wait

__global__ void BlockBarrierKernel(Params p) {
  if (threadIdx.x == 40) hopper::WaitForPredecessors();
  __syncthreads();
  hopper::LetDependentsLaunch();
  AddOne(p);
}

__global__ void WarpBarrierKernel(Params p) {
  if (threadIdx.x % 32 == 3) hopper::WaitForPredecessors();
  __syncwarp();
  hopper::LetDependentsLaunch();
  AddOne(p);
}

// The first warp waits and goes on; the second waits for the first.
__global__ void NamedBarrierKernel(Params p) {
  if (threadIdx.x < 32) {
    hopper::WaitForPredecessors();
    asm volatile("bar.arrive 1, 64;" ::: "memory");
    hopper::LetDependentsLaunch();
  } else {
    hopper::NamedSync(1, 64);
  }
  AddOne(p);
}

__global__ void MbarrierKernel(Params p) {
  __shared__ uint64_t barrier;
  const uint32_t address = hopper::SharedAddress(&barrier);
  if (threadIdx.x == 0) {
    hopper::InitBarrier(address, 1);
    hopper::FenceBarrierInit();
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    hopper::WaitForPredecessors();
    hopper::Arrive(address);
  }
  hopper::Wait(address, 0);
  hopper::LetDependentsLaunch();
  AddOne(p);
}

// A copy that somebody behind the wait has asked for is there.
__global__ void BulkCopyKernel(Params p) {
  __shared__ alignas(16) uint32_t words[kThreads];
  __shared__ uint64_t barrier;
  const uint32_t address = hopper::SharedAddress(&barrier);
  if (threadIdx.x == 0) {
    hopper::InitBarrier(address, 1);
    hopper::FenceBarrierInit();
    hopper::ArriveExpecting(address, sizeof words);
  }
  __syncthreads();
  if (threadIdx.x == 32) {
    hopper::WaitForPredecessors();
    BulkCopy(hopper::SharedAddress(words), p.x + blockIdx.x * kThreads, sizeof words, address);
  }
  hopper::Wait(address, 0);
  hopper::LetDependentsLaunch();
  p.y[blockIdx.x * kThreads + threadIdx.x] = words[threadIdx.x] + 1;
}

// One block of a cluster waits for both.
__global__ void ClusterKernel(Params p) {
  if (blockIdx.x == 0) hopper::WaitForPredecessors();
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
  hopper::LetDependentsLaunch();
  AddOne(p);
}

// Reads what a kernel wrote, and counts, ahead of its wait: both are in its note.
__global__ void EarlyKernel(Params p) {
  const uint32_t at = blockIdx.x * kThreads + threadIdx.x;
  const uint32_t x = p.x[at];
  atomicAdd(p.more, 1);
  hopper::WaitForPredecessors();
  p.y[at] = x + 1;
}

struct Memory {
  DeviceWords first{Words(kAll, 5)}, x{Words(kAll, kNotWritten)}, y{Words(kAll, kNotWritten)},
      more{Words(4, 0)};

  Params ahead() const { return {first.data(), x.data(), more.data()}; }
  Params params() const { return {x.data(), y.data(), more.data()}; }
  LaunchNote note(const char* name) const {
    return WaitsFirst(name, RegionOf(y.data(), kAll), RegionOf(x.data(), kAll));
  }
  // Writes x.
  void LaunchAhead(cudaStream_t stream = nullptr) const {
    const LaunchNote note =
        WaitsFirst("ahead", RegionOf(x.data(), kAll), RegionOf(first.data(), kAll));
    Launch(note, AheadKernel, ahead(), {.stream = stream});
  }
};

void ExpectKept(const char* what, void (*kernel)(Params), Where where = {}) {
  const Memory memory;
  memory.LaunchAhead();
  Launch(memory.note(what), kernel, memory.params(), where);
  ExpectWords(what, memory.y.Read(), Words(kAll, 7));
}

GPU_TEST(NotesTest, OneThreadWaitsForOthers) {
  ExpectKept("barrier of the block", BlockBarrierKernel);
  ExpectKept("barrier of the warp", WarpBarrierKernel);
  ExpectKept("named barrier", NamedBarrierKernel);
  ExpectKept("mbarrier", MbarrierKernel);
  ExpectKept("bulk copy", BulkCopyKernel);
  ExpectKept("barrier of the cluster", ClusterKernel, {.cluster = kBlocks});
}

GPU_TEST(NotesTest, WhatIsNamedMayBeEarly) {
  const Memory memory;
  memory.LaunchAhead();
  // Between them one that waits: what the reader finds early is complete.
  const DeviceWords beside(Words(kAll, 0));
  Launch(WaitsFirst("between", RegionOf(beside.data(), kAll), RegionOf(memory.first.data(), kAll)),
         AheadKernel, {memory.first.data(), beside.data(), nullptr});
  LaunchNote note = "early";
  note.early_reads = RegionOf(memory.x.data(), kAll);
  note.early_writes = RegionOf(memory.more.data(), 1);
  Launch(note, EarlyKernel, memory.params());
  ExpectWords("early", memory.y.Read(), Words(kAll, 7));
  GPU_EXPECT_EQ(memory.more.Read()[0], kAll);
}

GPU_TEST(NotesTest, WhatTheHostWroteOrWaitedForMayBeReadEarly) {
  const Memory memory;
  memory.LaunchAhead();
  Must(cudaDeviceSynchronize(), "the kernel ahead");
  LaunchNote note = "early";
  note.early_writes = RegionOf(memory.more.data(), 1);
  Launch(note, EarlyKernel, memory.params());
  ExpectWords("waited for", memory.y.Read(), Words(kAll, 7));
  Must(cudaMemset(memory.x.data(), 0, kAll * sizeof(uint32_t)), "cudaMemset");
  Launch(note, EarlyKernel, memory.params());
  ExpectWords("cleared", memory.y.Read(), Words(kAll, 1));
}

// ---- mistakes

enum class Mistake {
  kNone,
  kReadsEarly,
  kReadsBesideTheOneThatWaited,  // another lane of its warp
  kReadsBehindOnlyArriving,      // at the barrier that makes others wait
  kCopiesEarly,
  kBulkCopiesEarly,
  kWritesEarly,
  kCountsEarly,
  kWritesElsewhere,
  kBulkStoresElsewhere,
  kReadsElsewhere,
  kLetsStartEarly,
  kSomeBlockNeverWaits,
  kNobodyWaits,
};

template <Mistake kMistake>
__global__ void MistakenKernel(Params p) {
  __shared__ alignas(16) uint32_t words[kThreads];
  __shared__ uint64_t barrier;
  const uint32_t t = threadIdx.x, at = blockIdx.x * kThreads + t;
  const uint32_t address = hopper::SharedAddress(&barrier);
  words[t] = t;
  if (t == 0) {
    hopper::InitBarrier(address, 1);
    hopper::FenceBarrierInit();
  }
  __syncthreads();
  const auto is = [](Mistake one) { return kMistake == one; };
  if (is(Mistake::kSomeBlockNeverWaits) && blockIdx.x == 1) return;
  if (is(Mistake::kNobodyWaits)) return;
  if (is(Mistake::kLetsStartEarly)) hopper::LetDependentsLaunch();
  uint32_t x = 0;
  if (is(Mistake::kReadsEarly)) x += *(const volatile uint32_t*)(p.x + at);
  if (is(Mistake::kReadsBesideTheOneThatWaited)) {
    if (t % 32 == 0) hopper::WaitForPredecessors();
    if (t % 32 == 1) x += *(const volatile uint32_t*)(p.x + at);
  }
  if (is(Mistake::kReadsBehindOnlyArriving)) {
    if (t < 32) {
      hopper::WaitForPredecessors();
      hopper::NamedSync(1, 64);
    } else {
      asm volatile("bar.arrive 1, 64;" ::: "memory");
      x += *(const volatile uint32_t*)(p.x + at);
    }
  }
  if (is(Mistake::kCopiesEarly)) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(hopper::SharedAddress(words + t)),
                 "l"(p.x + at)
                 : "memory");
    asm volatile("cp.async.wait_all;" ::: "memory");
  }
  if (is(Mistake::kBulkCopiesEarly)) {
    if (t == 0) {
      hopper::ArriveExpecting(address, sizeof words);
      BulkCopy(hopper::SharedAddress(words), p.x, sizeof words, address);
    }
    hopper::Wait(address, 0);
  }
  if (is(Mistake::kWritesEarly)) p.y[at] = 1;
  if (is(Mistake::kCountsEarly)) atomicAdd(p.y, 1);
  hopper::WaitForPredecessors();
  hopper::LetDependentsLaunch();
  if (is(Mistake::kWritesElsewhere)) p.more[1] = 1;
  if (is(Mistake::kBulkStoresElsewhere) && t == 0) {
    hopper::FenceAsyncProxy();
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], 16;" ::"l"(p.more),
                 "r"(hopper::SharedAddress(words))
                 : "memory");
    asm volatile("cp.async.bulk.commit_group;\ncp.async.bulk.wait_group 0;" ::: "memory");
  }
  p.y[at] = x + p.x[at] + words[t];
}

// Runs what ends the process in one of its own: the emulator says `want`, and ends it so.
void ExpectFound(const std::string& what, const std::string& want, void (*run)()) {
  constexpr int kFound = 3;  // the emulator's exit status
  std::fflush(nullptr);
  int ends[2];
  Must(pipe(ends) == 0 ? cudaSuccess : cudaErrorUnknown, "pipe");
  const pid_t child = fork();
  if (child == 0) {
    dup2(ends[1], STDERR_FILENO);
    close(ends[0]);
    run();
    std::_Exit(0);
  }
  close(ends[1]);
  std::string said;
  char text[1024];
  for (ssize_t n; (n = read(ends[0], text, sizeof text)) > 0;)
    said.append(text, static_cast<size_t>(n));
  close(ends[0]);
  int status = 0;
  waitpid(child, &status, 0);
  const bool found = WIFEXITED(status) && WEXITSTATUS(status) == kFound;
  if (!found || said.find(want) == std::string::npos)
    testing::ReportFailure(__FILE__, __LINE__,
                           what + ": expected \"" + want + "\", found: " + said);
}

template <Mistake kMistake>
void LaunchMistaken(const Memory& memory, cudaStream_t stream) {
  memory.LaunchAhead(stream);
  LaunchNote note = memory.note("mistaken");
  if (kMistake == Mistake::kNobodyWaits) note.next = cuda::NextStarts::kAtOnce;
  if (kMistake == Mistake::kReadsElsewhere) note.reads = RegionOf(memory.first.data(), kAll);
  Launch(note, MistakenKernel<kMistake>, memory.params(), {.stream = stream});
}

template <Mistake kMistake>
void Make() {
  LaunchMistaken<kMistake>(Memory(), nullptr);
}

// The note stays with the launch until the graph runs.
template <Mistake kMistake>
void MakeInGraph() {
  const Memory memory;
  cudaStream_t stream;
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  Must(cudaStreamCreate(&stream), "a stream");
  Must(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "a capture");
  LaunchMistaken<kMistake>(memory, stream);
  Must(cudaStreamEndCapture(stream, &graph), "the capture");
  Must(cudaGraphInstantiate(&exec, graph, 0), "the graph");
  std::fprintf(stderr, "captured\n");
  Must(cudaGraphLaunch(exec, stream), "the graph");
}

// Nothing has written x but the host.
void ReadNamedEarly() {
  const Memory memory;
  Launch(memory.note("mistaken"), MistakenKernel<Mistake::kReadsEarly>, memory.params());
}

GPU_TEST(NotesTest, MistakesAreFound) {
  if (BaltoroHoldToNote == nullptr) testing::SkipCase("a card holds nobody to a note");
  const char* const reads_early =
      "which a kernel wrote, before griddepcontrol.wait, outside of its early_reads (nothing)";
  const char* const writes_early =
      "before griddepcontrol.wait, outside of its early_writes (nothing)";
  Make<Mistake::kNone>();
  ExpectFound("a load", reads_early, Make<Mistake::kReadsEarly>);
  ExpectFound("a load of what is named",
              "which its reads name, before griddepcontrol.wait, outside of its early_reads",
              ReadNamedEarly);
  ExpectFound("a graph", "captured\nEMULATOR: the note of \"mistaken\" is broken",
              MakeInGraph<Mistake::kReadsEarly>);
  ExpectFound("a lane", reads_early, Make<Mistake::kReadsBesideTheOneThatWaited>);
  ExpectFound("arrival", reads_early, Make<Mistake::kReadsBehindOnlyArriving>);
  ExpectFound("cp.async", reads_early, Make<Mistake::kCopiesEarly>);
  ExpectFound("bulk copy", reads_early, Make<Mistake::kBulkCopiesEarly>);
  ExpectFound("a store", writes_early, Make<Mistake::kWritesEarly>);
  ExpectFound("an atomic", writes_early, Make<Mistake::kCountsEarly>);
  ExpectFound("another store", "outside of its writes", Make<Mistake::kWritesElsewhere>);
  ExpectFound("bulk store", "outside of its writes", Make<Mistake::kBulkStoresElsewhere>);
  ExpectFound("another load", "outside of its reads", Make<Mistake::kReadsElsewhere>);
  ExpectFound("launch_dependents", "and next is kAfterWait", Make<Mistake::kLetsStartEarly>);
  const char* const nobody = "none of its threads has executed griddepcontrol.wait";
  ExpectFound("a block's end", nobody, Make<Mistake::kSomeBlockNeverWaits>);
  ExpectFound("a launch's end", nobody, Make<Mistake::kNobodyWaits>);
}

}  // namespace
}  // namespace baltoro::instructions

INSTRUCTION_TEST_MAIN()
