// The bank of one token in one kernel: what int4_one_token.cu has in two, the same bits. Down's
// weights come right behind gate/up's, and the shared experts' were asked for before the choice;
// blocks hand each other the middle through words that tell that they are there
// (ptx/mail.cuh), which is sooner than the end of a kernel.
//
// A block, one a multiprocessor, has two strips of gate/up of one expert, eight warps each; then,
// of 112 blocks, 64 columns of the result, an expert a warp. There is room for all of its weights,
// but down's are asked for when some of gate/up's have come: what is asked for at once comes at
// once, all of it late. Floor: the bytes of the matrices.

#include "ops/cuda/experts/one_launch/int4_one_token_device.cuh"
#include "ops/cuda/ptx/hopper.cuh"
#include "ops/cuda/ptx/mail.cuh"

namespace baltoro::cuda {
namespace {

using namespace int4_one_launch;  // NOLINT: this kernel's parts

constexpr int kBlocks = kOneLaunchBlocks, kWarps = 8, kThreads = 2 * kWarps * 32;
constexpr int kHidden = kOneLaunchHidden, kTiles = kHidden / 128, kChunks = kTiles / kWarps;
constexpr int kDownBehind = 2;  // the chunk of gate/up behind which down's weights are asked for
constexpr int kStripBytes = kTiles * kTileBytes, kChunkBytes = kWarps * kTileBytes;
constexpr int kOfBlock = 2;  // strips of gate/up, 8 columns of the middle each
constexpr int kEnds = kHidden / (16 * kStrips);
constexpr int kGroups = kIntermediate / 32;  // of the shared experts' second matrix
static_assert(kBlocks * kOfBlock == kExperts * kIntermediate / 8 && kEnds <= kBlocks);

constexpr int kX = kOfBlock * kStripBytes, kDown = kX + kHidden * 2;
constexpr int kBytes = kDown + kExperts * kExpertBytes;

struct alignas(256) Board {
  uint64_t middle[kExperts][kIntermediate / 2];  // pairs of bf16
  uint32_t launches[kBlocks];                    // so far, counted by each block for itself
};

struct Params {
  Board* board;
  const int32_t* slot_of;
  int32_t experts, slots;
  const char *gate_up, *down;
  int64_t gate_up_bytes, down_bytes;  // of a slot
  const __nv_bfloat16* x;
  const __nv_bfloat16* shared;  // [512]
  const __nv_bfloat16* shared_down;
  float* out;
  MoeChoice choice;
};

struct Shared {
  float first[kOfBlock * kWarps][16];      // by row of a strip
  float sums[kExperts][kStrips * 16];      // likewise
  alignas(16) uint4 middle[kExperts][32];  // as products read it
  alignas(16) __nv_bfloat16 gated[kIntermediate];
  float weights[kExperts];
  int32_t slots[kExperts];
  ChoiceShared choice;
  uint64_t arrived[kChunks], x, down;
};

// By one warp.
__device__ __forceinline__ void AskForDown(const Params& p, Shared& shared, uint32_t memory) {
  const int lane = threadIdx.x % 32, slot = lane < kExperts ? shared.slots[lane] : -1;
  if (slot < 0 || blockIdx.x >= kEnds) return;
  CopyBulk(memory + kDown + lane * kExpertBytes,
           p.down + slot * p.down_bytes +
               static_cast<int64_t>(blockIdx.x) * (kStrips * kColumnTiles * kTileBytes),
           kExpertBytes, SharedAddress(&shared.down), ReadOncePolicy());
}

// By one warp: the experts are known, and the weights of gate/up asked for; where the block has
// none of these, those of down.
__device__ __forceinline__ void Begin(
    const Params& p, Shared& shared, uint32_t memory, int own, int strip) {
  const int lane = threadIdx.x % 32;
  const int slot = lane < kExperts ? SlotOf(p, shared.choice.ids[lane]) : -1;
  if (lane < kExperts) shared.slots[lane] = slot;
  const int first = __shfl_sync(~0u, slot, own);
  const uint32_t held = __ballot_sync(~0u, slot >= 0);
  const uint32_t down = SharedAddress(&shared.down);
  if (lane == 0) {
    if (first >= 0) {
      const char* const from = p.gate_up + first * p.gate_up_bytes + strip * kStripBytes;
      const uint32_t arrived = SharedAddress(shared.arrived);
#pragma unroll 1
      for (int c = 0; c < kChunks; ++c) {
        BarrierExpectBytes(arrived + 8 * c, kOfBlock * kChunkBytes);
#pragma unroll
        for (int s = 0; s < kOfBlock; ++s) {
          const int at = s * kStripBytes + c * kChunkBytes;
          CopyBulk(memory + at, from + at, kChunkBytes, arrived + 8 * c, ReadOncePolicy());
        }
      }
    }
    BarrierExpectBytes(down, __popc(held) * kExpertBytes);
  }
  __syncwarp();
  if (first < 0) AskForDown(p, shared, memory);
}

// By the same warp, once the weights are on their way.
__device__ __forceinline__ void Weigh(const Params& p, Shared& shared) {
  const int lane = threadIdx.x % 32;
  const float weight = ChoiceWeight(p.choice, shared.choice);
  if (lane < kExperts) {
    shared.weights[lane] = weight;
    if (blockIdx.x == 0) {
      p.choice.ids[lane] = shared.choice.ids[lane];
      p.choice.weights[lane] = weight;
    }
  }
}

// A warp's tiles of its strip of gate/up: shared.first.
__device__ __forceinline__ void MultiplyFirst(const Params& p, Shared& shared, uint32_t memory) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  float acc[1][1][4] = {};
  BarrierWait(SharedAddress(&shared.x), 0);
#pragma unroll 1
  for (int c = 0; c < kChunks; ++c) {
    const int tile = c * kWarps + warp % kWarps;
    // The token is the first column of the matrix instruction; the others are empty.
    uint4 x[1][4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      x[0][j] = make_uint4(0, 0, 0, 0);
      if (lane < 4) x[0][j] = LoadShared4(memory + kX + tile * 256 + j * 64 + lane * 16);
    }
    BarrierWait(SharedAddress(&shared.arrived[c]), 0);
    if (warp == 0 && c == kDownBehind) AskForDown(p, shared, memory);
    const uint32_t at[1] = {memory + warp / kWarps * kStripBytes + tile * kTileBytes};
    MultiplyTiles<1, 1, 0, 4>(acc, at, x, lane);
  }
  if (lane % 4 != 0) return;
  shared.first[warp][lane / 4] = acc[0][0][0];
  shared.first[warp][8 + lane / 4] = acc[0][0][2];
}

// By the first 16 lanes of a warp: the block's columns of the middle, told to all blocks.
__device__ __forceinline__ void TellMiddle(
    const Shared& shared, Board& board, int own, int strip, uint32_t tag) {
  const int lane = threadIdx.x % 16, s = lane / 8, row = lane % 8;
  float gate = 0, up = 0;
#pragma unroll
  for (int i = 0; i < kWarps; ++i) {
    gate += shared.first[s * kWarps + i][row];
    up += shared.first[s * kWarps + i][8 + row];
  }
  const float value = SiluTimes(gate * kWidenUndo, up * kWidenUndo);
  const float next = __shfl_down_sync(0xFFFFu, value, 1);
  if (lane % 2 != 0) return;
  resident::Post(&board.middle[own][(strip * 8 + lane) / 2], hopper::PackBf16(value, next), tag);
}

// An expert's columns of the result: shared.sums.
__device__ __forceinline__ void MultiplySecond(Shared& shared,
                                               const Board& board,
                                               uint32_t memory,
                                               uint32_t tag) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  resident::Mail<2> mail;
  mail.Await(resident::Patience(resident::Conduct{}), tag, true,
             [&](int i) { return &board.middle[warp][lane * 4 + 2 * i]; });
  shared.middle[warp][lane] = mail.eight(0);
  __syncwarp();
  uint4 x[kColumnTiles][1][4];
#pragma unroll
  for (int c = 0; c < kColumnTiles; ++c) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      x[c][0][j] = lane < 4 ? shared.middle[warp][c * 16 + j * 4 + lane] : make_uint4(0, 0, 0, 0);
    }
  }
  BarrierWait(SharedAddress(&shared.down), 0);
  float acc[kStrips][1][4] = {};
  const uint32_t own = memory + kDown + warp * kExpertBytes;
#pragma unroll
  for (int c = 0; c < kColumnTiles; ++c) {
    uint32_t at[kStrips];
#pragma unroll
    for (int s = 0; s < kStrips; ++s) at[s] = own + (s * kColumnTiles + c) * kTileBytes;
    MultiplyTiles<kStrips, 1, 0, 4>(acc, at, x[c], lane);
  }
  const float factor = shared.weights[warp] * kWidenUndo;
  if (lane % 4 != 0) return;
#pragma unroll
  for (int s = 0; s < kStrips; ++s) {
    // Rounded as shares are that go through memory.
    shared.sums[warp][s * 16 + lane / 4] =
        __bfloat162float(__float2bfloat16_rn(acc[s][0][0] * factor));
    shared.sums[warp][s * 16 + 8 + lane / 4] =
        __bfloat162float(__float2bfloat16_rn(acc[s][0][2] * factor));
  }
}

// By the last eight warps.
__device__ __forceinline__ void GateShared(const Params& p, Shared& shared) {
  const int i = threadIdx.x % kIntermediate;
  const float gate = __bfloat162float(__ldcg(p.shared + i));
  const float up = __bfloat162float(__ldcg(p.shared + kIntermediate + i));
  shared.gated[i] = __float2bfloat16_rn(SiluTimes(gate, up));
  hopper::NamedSync(1, kIntermediate);
}

__global__ void __launch_bounds__(kThreads, 1) SingleKernel(const __grid_constant__ Params p) {
  extern __shared__ __align__(128) char raw[];
  __shared__ Shared shared;
  const uint32_t memory = SharedAddress(raw);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int own = static_cast<int>(blockIdx.x) * kOfBlock * 8 / kIntermediate;
  const int strip = static_cast<int>(blockIdx.x) * kOfBlock % (kIntermediate / 8);
  const bool ends = blockIdx.x < kEnds, of_shared = warp >= kWarps;
  if (threadIdx.x < kChunks + 2) BarrierInit(SharedAddress(shared.arrived) + 8 * threadIdx.x, 1);
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  // A warp of the last eight has eight rows of the shared experts' matrix.
  const int row = (static_cast<int>(blockIdx.x) * kStrips + warp % kStrips) * 8 +
                  (warp % kWarps < kStrips ? 0 : kHidden / 2);
  uint4 w[kGroups];
  float4 bias[3];
  if (ends && of_shared) {
#pragma unroll
    for (int i = 0; i < kGroups; ++i) {
      w[i] = LoadOnce(p.shared_down + static_cast<int64_t>(row + lane / 4) * kIntermediate +
                      i * 32 + lane % 4 * 8);
    }
  }
  if (warp == 0) LoadChoiceBias(p.choice, bias);
  __syncthreads();
  WaitForEarlierKernels();
  if (warp == 0) Choose(p.choice, bias, shared.choice);
  AllowNextKernel();
  Board& board = *p.board;
  const uint32_t before = __ldcg(&board.launches[blockIdx.x]);
  if (threadIdx.x == 32) {
    const uint32_t x = SharedAddress(&shared.x);
    BarrierExpectBytes(x, kHidden * 2);
    CopyPlain(memory + kX, p.x, kHidden * 2, x);
  }
  float sums[2][4] = {};
  if (ends && of_shared) {
    GateShared(p, shared);
#pragma unroll
    for (int i = 0; i < kGroups; ++i) {
      uint4 v = make_uint4(0, 0, 0, 0);
      if (lane < 4) v = *reinterpret_cast<const uint4*>(&shared.gated[i * 32 + lane * 8]);
      MultiplyAdd(sums[0], v.x, 0, v.y, 0, w[i].x, w[i].y);
      MultiplyAdd(sums[1], v.z, 0, v.w, 0, w[i].z, w[i].w);
    }
  }
  if (warp == 0) Begin(p, shared, memory, own, strip);
  __syncthreads();
  const uint32_t tag = before + 1 == 0 ? 1 : before + 1;
  const bool mine = shared.slots[own] >= 0;
  if (warp == 0) Weigh(p, shared);
  if (mine) {
    MultiplyFirst(p, shared, memory);
  } else {
    BarrierWait(SharedAddress(&shared.x), 0);
  }
  __syncthreads();
  if (mine && threadIdx.x < 16) TellMiddle(shared, board, own, strip, tag);
  if (threadIdx.x == 0) board.launches[blockIdx.x] = tag;
  if (!ends) return;
  if (!of_shared && shared.slots[warp] >= 0) MultiplySecond(shared, board, memory, tag);
  __syncthreads();
  if (!of_shared || lane >= 4) return;
  const int in_block = warp % kStrips * 16 + (warp % kWarps < kStrips ? 0 : 8) + 2 * lane;
  float2 routed = make_float2(0, 0);
#pragma unroll
  for (int j = 0; j < kExperts; ++j) {
    if (shared.slots[j] < 0) continue;
    routed.x += shared.sums[j][in_block];
    routed.y += shared.sums[j][in_block + 1];
  }
  *reinterpret_cast<float2*>(p.out + row + 2 * lane) =
      make_float2(sums[0][0] + sums[1][0] + routed.x, sums[0][1] + sums[1][1] + routed.y);
}

}  // namespace

Status LaunchMoeOneLaunch1(const MoeShape& shape,
                           const MoeInt4Args& args,
                           const LaunchStream& stream) {
  static_assert(sizeof(Board) <= BoardBytes(BoardOf::kInt4OneLaunch1));
  const Params p = {.board = static_cast<Board*>(args.board),
                    .slot_of = args.slot_of,
                    .experts = args.experts,
                    .slots = shape.slots,
                    .gate_up = static_cast<const char*>(args.gate_up),
                    .down = static_cast<const char*>(args.down),
                    .gate_up_bytes = Int4PackedBytes(2 * shape.intermediate, shape.hidden),
                    .down_bytes = Int4PackedBytes(shape.hidden, shape.intermediate),
                    .x = args.x,
                    .shared = args.shared,
                    .shared_down = args.shared_down,
                    .out = args.out,
                    .choice = args.choice};
  const cudaError_t error =
      cudaFuncSetAttribute(SingleKernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  if (error != cudaSuccess) return Status(Code::kInternal, cudaGetErrorString(error));
  return LaunchOverlapped("MoE of one token", SingleKernel, dim3(kBlocks), dim3(kThreads), kBytes,
                          stream, 1, p);
}

}  // namespace baltoro::cuda
