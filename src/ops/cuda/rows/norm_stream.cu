// Norms with a sum for many rows. A block a row (norm.cu) waits for its loads, then for its sum,
// then for room for its stores, and two of them on a multiprocessor do not fill the memory: here a
// block stays on its multiprocessor, and one warp keeps copies of the next rows going and sends
// back residuals as they are summed. All other warps hold one row at a time, eight elements a
// thread, and add in the order of norm.cu: the same bits. Floor: the bytes of the rows; 1,024 rows
// and fewer lie partly in the L2.

#include "ops/cuda/launch/placed_launch.h"
#include "ops/cuda/rows/norm_copies_device.cuh"
#include "ops/cuda/rows/norm_device.cuh"
#include "ops/cuda/rows/norm_stream.cuh"

namespace baltoro::cuda {
namespace {

constexpr int kRowBarrier = 1;  // of the warps that add

struct StreamParams {
  NormParams norm;
  int64_t rows;
  int stages;
};

__device__ __forceinline__ void LoadBulk(uint32_t to,
                                         const void* from,
                                         uint32_t bytes,
                                         uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(to),
      "l"(from), "r"(bytes), "r"(barrier)
      : "memory");
}

// As a group of its own.
__device__ __forceinline__ void StoreBulk(void* to, uint32_t from, uint32_t bytes) {
  asm volatile(
      "cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;\n"
      "cp.async.bulk.commit_group;" ::"l"(to),
      "r"(from), "r"(bytes)
      : "memory");
}

// LoadWhole and StoreWhole of a stage. Neighbours' halves of 16 bytes lie 32 apart, which is two
// ways to each bank: every other four lanes take their halves the other way round.
__device__ __forceinline__ bool TurnsHalves() {
  return (threadIdx.x & 4) != 0;
}
__device__ __forceinline__ void LoadStage(const float* from, float (&x)[kEight]) {
  const bool turns = TurnsHalves();
  const float4 a = reinterpret_cast<const float4*>(from)[turns ? 1 : 0];
  const float4 b = reinterpret_cast<const float4*>(from)[turns ? 0 : 1];
  x[0] = turns ? b.x : a.x, x[1] = turns ? b.y : a.y;
  x[2] = turns ? b.z : a.z, x[3] = turns ? b.w : a.w;
  x[4] = turns ? a.x : b.x, x[5] = turns ? a.y : b.y;
  x[6] = turns ? a.z : b.z, x[7] = turns ? a.w : b.w;
}
__device__ __forceinline__ void LoadStage(const __nv_bfloat16* from, float (&x)[kEight]) {
  LoadWhole(from, x);
}
// As instructions: the compiler would make each store two of half the lanes.
__device__ __forceinline__ void StoreHalf(uint32_t to, float a, float b, float c, float d) {
  asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(to), "f"(a), "f"(b), "f"(c), "f"(d)
               : "memory");
}
__device__ __forceinline__ void StoreStage(float* to, const float (&x)[kEight]) {
  const bool turns = TurnsHalves();
  const uint32_t at = hopper::SharedAddress(to);
  StoreHalf(at + (turns ? 16 : 0), turns ? x[4] : x[0], turns ? x[5] : x[1], turns ? x[6] : x[2],
            turns ? x[7] : x[3]);
  StoreHalf(at + (turns ? 0 : 16), turns ? x[0] : x[4], turns ? x[1] : x[5], turns ? x[2] : x[6],
            turns ? x[3] : x[7]);
}

struct Barriers {
  uint64_t full[kNormStagesMax];    // the row has come
  uint64_t summed[kNormStagesMax];  // the residual lies in the stage as it is to be written
};

// Rows of this block, one after the other, and the stage of each. The last rows come first: what
// the kernel ahead wrote last the L2 still has, and the one behind begins with the first rows.
class Walk {
 public:
  __device__ explicit Walk(const StreamParams& p) : p_(p), row_(blockIdx.x) {}
  __device__ bool Is() const { return row_ < p_.rows; }
  __device__ int64_t Row() const { return p_.rows - 1 - row_; }
  __device__ int stage() const { return stage_; }
  __device__ uint32_t parity() const { return parity_; }
  __device__ void Next() {
    row_ += gridDim.x;
    if (++stage_ == p_.stages) {
      stage_ = 0;
      parity_ ^= 1;
    }
  }

 private:
  const StreamParams& p_;
  int64_t row_;
  int stage_ = 0;
  uint32_t parity_ = 0;
};

// By one thread.
template <typename Delta>
__device__ void CopyRows(const StreamParams& p, char* ring, Barriers& barriers) {
  const NormParams& n = p.norm;
  const auto x_bytes = static_cast<uint32_t>(n.width) * 4;
  const auto delta_bytes = static_cast<uint32_t>(n.width) * static_cast<uint32_t>(sizeof(Delta));
  const uint32_t stages = hopper::SharedAddress(ring);
  const auto x_of = [&](int64_t row) { return static_cast<float*>(n.x) + row * n.x_stride; };
  const auto stage_of = [&](const Walk& walk) {
    return stages + static_cast<uint32_t>(walk.stage()) * (x_bytes + delta_bytes);
  };
  hopper::WaitForPredecessors();

  Walk ahead(p);
  const auto load = [&] {
    if (!ahead.Is()) return;
    const uint32_t to = stage_of(ahead);
    const uint32_t full = hopper::SharedAddress(&barriers.full[ahead.stage()]);
    hopper::ArriveExpecting(full, x_bytes + delta_bytes);
    LoadBulk(to, x_of(ahead.Row()), x_bytes, full);
    LoadBulk(to + x_bytes, static_cast<const Delta*>(n.delta) + ahead.Row() * n.delta_stride,
             delta_bytes, full);
    ahead.Next();
  };
  for (int i = 0; i < p.stages; ++i) load();
  for (Walk walk(p); walk.Is(); walk.Next()) {
    hopper::Wait(hopper::SharedAddress(&barriers.summed[walk.stage()]), walk.parity());
    StoreBulk(x_of(walk.Row()), stage_of(walk), x_bytes);
    if (ahead.Is()) {
      // The stage is read before it is filled again.
      asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
      load();
    }
  }
  asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

template <typename Delta, bool kQuantise, bool kOrder>
__global__ void __launch_bounds__(kNormThreadsMax, 1)
    StreamNormKernel(const __grid_constant__ StreamParams p) {
  extern __shared__ __align__(128) char ring[];
  __shared__ Barriers barriers;
  __shared__ float partial[2][32];  // of the row, and of the one before
  const NormParams& n = p.norm;
  const int threads = static_cast<int>(blockDim.x) - 32, warps = threads / 32;
  const int at = static_cast<int>(threadIdx.x) * kEight;
  hopper::LetDependentsLaunch();
  if (threadIdx.x == 0) {
    for (int i = 0; i < p.stages; ++i) {
      hopper::InitBarrier(hopper::SharedAddress(&barriers.full[i]), 1);
      hopper::InitBarrier(hopper::SharedAddress(&barriers.summed[i]), warps);
    }
    hopper::FenceBarrierInit();
  }
  __syncthreads();
  if (static_cast<int>(threadIdx.x) >= threads) {
    if (threadIdx.x % 32 == 0) CopyRows<Delta>(p, ring, barriers);
    return;
  }

  float weight[kEight];
  LoadEight(n.weight + at, n.width - at, true, weight);
  hopper::WaitForPredecessors();
  const bool exists = at < n.width;
  const int stage_bytes = n.width * static_cast<int>(4 + sizeof(Delta));
  int turn = 0;
  for (Walk walk(p); walk.Is(); walk.Next(), turn ^= 1) {
    float x[kEight] = {};
    hopper::Wait(hopper::SharedAddress(&barriers.full[walk.stage()]), walk.parity());
    if (exists) {
      char* const stage = ring + walk.stage() * stage_bytes;
      float* const sum = reinterpret_cast<float*>(stage) + at;
      float delta[kEight];
      LoadStage(sum, x);
      LoadStage(reinterpret_cast<const Delta*>(stage + n.width * 4) + at, delta);
#pragma unroll
      for (int i = 0; i < kEight; ++i) x[i] += delta[i];
      StoreStage(sum, x);
    }
    // The copy that sends the residual sees it, and the one that fills the stage again comes after
    // these loads.
    hopper::FenceAsyncProxy();
    __syncwarp();
    if (threadIdx.x % 32 == 0) {
      hopper::Arrive(hopper::SharedAddress(&barriers.summed[walk.stage()]));
    }
    const float squares = WarpSum(AddSquares(x, 0));
    if (threadIdx.x % 32 == 0) partial[turn][threadIdx.x / 32] = squares;
    hopper::NamedSync(kRowBarrier, threads);
    Normalise(x, ScaleOfSum(SumOfWarps(partial[turn], warps), n.width, n.eps), weight);
    const int64_t row = walk.Row();
    if (exists) StoreWhole(static_cast<__nv_bfloat16*>(n.out) + row * n.out_stride + at, x);
    if constexpr (kOrder) WriteOrdered(n.copies.ordered, row, n.width, at, exists, x);
    if constexpr (kQuantise) {
      WriteCodes(n.copies.codes, n.copies.scales, row, n.width, at, exists, x);
    }
  }
}

using Kernel = void (*)(StreamParams);

template <typename Delta>
Kernel KernelOf(NormCopy copy) {
  switch (copy) {
    case NormCopy::kCodes:
      return StreamNormKernel<Delta, true, false>;
    case NormCopy::kMatrixOrder:
      return StreamNormKernel<Delta, false, true>;
    case NormCopy::kNone:
      break;
  }
  return StreamNormKernel<Delta, false, false>;
}

}  // namespace

void LaunchStreamNorm(const OpContext& ctx,
                      const NormPlan& plan,
                      int64_t rows,
                      const NormParams& p,
                      bool rounded_delta) {
  const StreamParams params = {.norm = p, .rows = rows, .stages = plan.stages};
  const Kernel kernel =
      rounded_delta ? KernelOf<__nv_bfloat16>(plan.copy) : KernelOf<float>(plan.copy);
  // Not this launch's bytes: it is kept with the device, whoever launches there.
  CheckCuda(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kNormRingBytes),
      "norm of many rows");
  CheckCuda(LaunchPlaced("norm of many rows", kernel, dim3(static_cast<unsigned>(plan.blocks)),
                         dim3(static_cast<unsigned>(plan.threads)),
                         static_cast<size_t>(plan.shared_bytes), StreamOf(ctx), 0, params),
            "norm of many rows");
}

}  // namespace baltoro::cuda
