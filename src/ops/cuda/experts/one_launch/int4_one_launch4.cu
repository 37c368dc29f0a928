// The bank of two to four tokens in one kernel: as that of one token (int4_one_launch1.cu), the
// same bits, but the parts of all entries go through one ring, those of down behind those of
// gate/up, so that the memory has work from the first part to the last. Blocks wait for each
// other's middle only at the end, and then for the last token's.
//
// A block, one a multiprocessor, has two strips of gate/up of one expert of each token, eight warps
// each; then, of 112 blocks, 64 columns of the result, two warps an expert. A warp more asks. What
// is the shared experts' is done while the first parts come. Floor: the bytes of the matrices.

#include "ops/cuda/experts/one_launch/int4_one_token_device.cuh"
#include "ops/cuda/ptx/hopper.cuh"
#include "ops/cuda/ptx/mail.cuh"

namespace baltoro::cuda {
namespace {

using namespace int4_one_launch;  // NOLINT: this kernel's parts

constexpr int kTokensMax = kInt4OneLaunchTokens;
constexpr int kBlocks = kOneLaunchBlocks, kHalf = 8, kWarps = 2 * kHalf,
              kThreads = 32 * (kWarps + 1);
constexpr int kHidden = kOneLaunchHidden, kTiles = kHidden / 128, kParts = kTiles / kHalf;
constexpr int kStripBytes = kTiles * kTileBytes, kPartBytes = kHalf * kTileBytes;
constexpr int kOfBlock = 2;  // strips of gate/up, 8 columns of the middle each
constexpr int kEnds = kHidden / (16 * kStrips);
constexpr int kGroups = kIntermediate / 32;  // of the shared experts' second matrix
constexpr int kDownParts = kExperts / 2;     // of a token: two experts' matrices
// A part's rows of weights, and the token's columns that they are multiplied by.
constexpr int kXBytes = kHalf * 256, kSlots = 7, kSlotBytes = 2 * kPartBytes + kXBytes;
static_assert(kBlocks * kOfBlock == kExperts * kIntermediate / 8 && kEnds <= kBlocks);
static_assert(2 * kExpertBytes <= kSlotBytes && kStrips % 2 == 0);

struct alignas(256) Board {
  uint64_t middle[kTokensMax][kExperts][kIntermediate / 2];  // pairs of bf16
  uint32_t launches[kBlocks];  // so far, counted by each block for itself
};

struct Params {
  Board* board;
  const int32_t* slot_of;
  int32_t experts, slots, tokens;
  const char *gate_up, *down;
  int64_t gate_up_bytes, down_bytes;  // of a slot
  const __nv_bfloat16* x;
  int64_t x_stride;
  const __nv_bfloat16* shared;  // [T, 512]
  int64_t shared_stride;
  const __nv_bfloat16* shared_down;
  float* out;
  int64_t out_stride;
  MoeChoice choice;
};

struct Shared {
  alignas(128) char ring[kSlots][kSlotBytes];
  float first[2][kWarps][16];                           // by row of a strip; of two tokens
  float sums[kTokensMax][kExperts][kStrips * 16];       // likewise
  alignas(16) uint4 middle[kWarps][kIntermediate / 8];  // as products read it
  alignas(16) __nv_bfloat16 gated[kTokensMax][kIntermediate];
  float weights[kTokensMax][kExperts];
  int32_t slots[kTokensMax][kExperts];
  ChoiceShared choice[kTokensMax];
  uint64_t full[kSlots], empty[kSlots];
};

// The place of the n-th part in the ring.
struct Place {
  int slot;
  uint32_t parity;
  __device__ __forceinline__ explicit Place(int n)
      : slot(n % kSlots), parity(static_cast<uint32_t>(n / kSlots) & 1) {}
};

// By the last warp: all parts, each once there is room.
__device__ __forceinline__ void AskForAll(const Params& p, Shared& shared, int own, int strip) {
  const int lane = threadIdx.x % 32, gate_up = kParts * p.tokens;
  const int all = gate_up + (blockIdx.x < kEnds ? kDownParts * p.tokens : 0);
#pragma unroll 1
  for (int n = 0; n < all; ++n) {
    const Place at(n);
    if (n >= kSlots) BarrierWait(SharedAddress(&shared.empty[at.slot]), at.parity ^ 1);
    const uint32_t full = SharedAddress(&shared.full[at.slot]);
    const uint32_t to = SharedAddress(shared.ring[at.slot]);
    if (n < gate_up) {
      const int token = n / kParts, part = n - token * kParts;
      const int slot = shared.slots[token][own];
      if (lane == 0) BarrierExpectBytes(full, slot < 0 ? 0 : kSlotBytes);
      __syncwarp();
      if (slot < 0) continue;
      if (lane < kOfBlock) {
        CopyBulk(
            to + lane * kPartBytes,
            p.gate_up + slot * p.gate_up_bytes + (strip + lane) * kStripBytes + part * kPartBytes,
            kPartBytes, full, ReadOncePolicy());
      } else if (lane == kOfBlock) {
        CopyPlain(to + kOfBlock * kPartBytes, p.x + token * p.x_stride + part * (kHalf * 128),
                  kXBytes, full);
      }
      __syncwarp();
      continue;
    }
    const int token = (n - gate_up) / kDownParts, expert = (n - gate_up) % kDownParts * 2 + lane;
    const int slot = lane < 2 ? shared.slots[token][expert] : -1;
    const uint32_t held = __ballot_sync(~0u, slot >= 0);
    if (lane == 0) BarrierExpectBytes(full, __popc(held) * kExpertBytes);
    __syncwarp();
    if (slot >= 0) {
      CopyBulk(to + lane * kExpertBytes,
               p.down + slot * p.down_bytes + static_cast<int64_t>(blockIdx.x) * kExpertBytes,
               kExpertBytes, full, ReadOncePolicy());
    }
    __syncwarp();
  }
}

// A warp has read a part. Each gives back all parts, also what is others', so that none is more
// than a turn of the ring ahead.
__device__ __forceinline__ void GiveBack(uint64_t& empty) {
  hopper::FinishLoads();
  __syncwarp();
  if (threadIdx.x % 32 == 0) BarrierArrive(SharedAddress(&empty));
}

// By all warps but the last: the block's columns of a token's middle, told to all blocks.
__device__ __forceinline__ void MultiplyFirst(
    Shared& shared, Board& board, int token, int own, int strip, uint32_t tag) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const bool held = shared.slots[token][own] >= 0;
  float acc[1][1][4] = {};
#pragma unroll 1
  for (int part = 0; part < kParts; ++part) {
    const Place at(token * kParts + part);
    const uint32_t from = SharedAddress(shared.ring[at.slot]);
    BarrierWait(SharedAddress(&shared.full[at.slot]), at.parity);
    if (held) {
      // The token is the first column of the matrix instruction; the others are empty.
      uint4 x[1][4];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        x[0][j] = make_uint4(0, 0, 0, 0);
        if (lane >= 4) continue;
        x[0][j] =
            LoadShared4(from + kOfBlock * kPartBytes + warp % kHalf * 256 + j * 64 + lane * 16);
      }
      const uint32_t tile[1] = {from + warp / kHalf * kPartBytes + warp % kHalf * kTileBytes};
      MultiplyTiles<1, 1, 0, 4>(acc, tile, x, lane);
    }
    GiveBack(shared.empty[at.slot]);
  }
  auto& first = shared.first[token % 2];
  if (lane % 4 == 0) {
    first[warp][lane / 4] = acc[0][0][0];
    first[warp][8 + lane / 4] = acc[0][0][2];
  }
  hopper::NamedSync(1, 32 * kWarps);
  if (threadIdx.x < 16 && held) {
    const int s = lane / 8, row = lane % 8;
    float gate = 0, up = 0;
#pragma unroll
    for (int i = 0; i < kHalf; ++i) {
      gate += first[s * kHalf + i][row];
      up += first[s * kHalf + i][8 + row];
    }
    const float value = SiluTimes(gate * kWidenUndo, up * kWidenUndo);
    const float next = __shfl_down_sync(0xFFFFu, value, 1);
    if (lane % 2 == 0) {
      resident::Post(&board.middle[token][own][(strip * 8 + lane) / 2],
                     hopper::PackBf16(value, next), tag);
    }
  }
  __syncwarp();
}

// Two of an expert's four strips of the result's columns for a token: shared.sums.
__device__ __forceinline__ void MultiplySecond(
    const Place& at, Shared& shared, const Board& board, int token, uint32_t tag) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, expert = warp % kHalf;
  resident::Mail<2> mail;
  mail.Await(resident::Patience(resident::Conduct{}), tag, true,
             [&](int i) { return &board.middle[token][expert][lane * 4 + 2 * i]; });
  __syncwarp();
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
  BarrierWait(SharedAddress(&shared.full[at.slot]), at.parity);
  constexpr int kOfWarp = kStrips / 2;
  const int first = warp / kHalf * kOfWarp;
  float acc[kOfWarp][1][4] = {};
  const uint32_t own = SharedAddress(shared.ring[at.slot]) + expert % 2 * kExpertBytes;
#pragma unroll
  for (int c = 0; c < kColumnTiles; ++c) {
    uint32_t tile[kOfWarp];
#pragma unroll
    for (int s = 0; s < kOfWarp; ++s) {
      tile[s] = own + ((first + s) * kColumnTiles + c) * kTileBytes;
    }
    MultiplyTiles<kOfWarp, 1, 0, 4>(acc, tile, x[c], lane);
  }
  const float factor = shared.weights[token][expert] * kWidenUndo;
  if (lane % 4 != 0) return;
  float* const sums = shared.sums[token][expert];
#pragma unroll
  for (int s = 0; s < kOfWarp; ++s) {
    // Rounded as shares are that go through memory.
    sums[(first + s) * 16 + lane / 4] =
        __bfloat162float(__float2bfloat16_rn(acc[s][0][0] * factor));
    sums[(first + s) * 16 + 8 + lane / 4] =
        __bfloat162float(__float2bfloat16_rn(acc[s][0][2] * factor));
  }
}

// By the first warps, one a token: its experts; then, while the first weights come, their weights.
__device__ __forceinline__ MoeChoice ChoiceOfToken(const Params& p) {
  MoeChoice choice = p.choice;
  choice.logits += static_cast<int>(threadIdx.x) / 32 * choice.logits_stride;
  return choice;
}
__device__ __forceinline__ void ChooseOf(const Params& p, const float4 (&bias)[3], Shared& shared) {
  const int token = threadIdx.x / 32, lane = threadIdx.x % 32;
  const MoeChoice choice = ChoiceOfToken(p);
  Choose(choice, bias, shared.choice[token]);
  if (lane < kExperts) shared.slots[token][lane] = SlotOf(p, shared.choice[token].ids[lane]);
}
__device__ __forceinline__ void WeighOf(const Params& p, Shared& shared) {
  const int token = threadIdx.x / 32, lane = threadIdx.x % 32;
  const MoeChoice choice = ChoiceOfToken(p);
  const float weight = ChoiceWeight(choice, shared.choice[token]);
  if (lane >= kExperts) return;
  shared.weights[token][lane] = weight;
  if (blockIdx.x != 0) return;
  choice.ids[token * kExperts + lane] = shared.choice[token].ids[lane];
  choice.weights[token * kExperts + lane] = weight;
}

// By the last eight warps that multiply.
__device__ __forceinline__ void GateShared(const Params& p, Shared& shared) {
  const int i = threadIdx.x % kIntermediate;
#pragma unroll 1
  for (int token = 0; token < kTokensMax; ++token) {
    float value = 0;
    if (token < p.tokens) {
      const __nv_bfloat16* const from = p.shared + token * p.shared_stride + i;
      value =
          SiluTimes(__bfloat162float(__ldcg(from)), __bfloat162float(__ldcg(from + kIntermediate)));
    }
    shared.gated[token][i] = __float2bfloat16_rn(value);
  }
  hopper::NamedSync(2, kIntermediate);
}

__global__ void __launch_bounds__(kThreads, 1) OneLaunchKernel(const __grid_constant__ Params p) {
  extern __shared__ __align__(128) char raw[];
  auto& shared = *reinterpret_cast<Shared*>(raw);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int own = static_cast<int>(blockIdx.x) * kOfBlock * 8 / kIntermediate;
  const int strip = static_cast<int>(blockIdx.x) * kOfBlock % (kIntermediate / 8);
  const bool ends = blockIdx.x < kEnds, asks = warp == kWarps;
  const bool of_shared = ends && warp >= kHalf && !asks;
  if (threadIdx.x < kSlots) {
    BarrierInit(SharedAddress(&shared.full[threadIdx.x]), 1);
    BarrierInit(SharedAddress(&shared.empty[threadIdx.x]), kWarps);
  }
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  // A warp of the second half has eight rows of the shared experts' matrix.
  const int row = (static_cast<int>(blockIdx.x) * kStrips + warp % kStrips) * 8 +
                  (warp % kHalf < kStrips ? 0 : kHidden / 2);
  uint4 w[kGroups];
  float4 bias[3];
  if (of_shared) {
#pragma unroll
    for (int i = 0; i < kGroups; ++i) {
      w[i] = LoadOnce(p.shared_down + static_cast<int64_t>(row + lane / 4) * kIntermediate +
                      i * 32 + lane % 4 * 8);
    }
  }
  if (warp < p.tokens) LoadChoiceBias(p.choice, bias);
  __syncthreads();
  WaitForEarlierKernels();
  AllowNextKernel();
  Board& board = *p.board;
  const uint32_t before = __ldcg(&board.launches[blockIdx.x]);
  float sums[2][4] = {};
  if (of_shared) {
    GateShared(p, shared);
    // Tokens are the rows of the matrix instruction.
#pragma unroll
    for (int i = 0; i < kGroups; ++i) {
      uint4 v = make_uint4(0, 0, 0, 0);
      if (lane / 4 < kTokensMax) {
        v = *reinterpret_cast<const uint4*>(&shared.gated[lane / 4][i * 32 + lane % 4 * 8]);
      }
      MultiplyAdd(sums[0], v.x, 0, v.y, 0, w[i].x, w[i].y);
      MultiplyAdd(sums[1], v.z, 0, v.w, 0, w[i].z, w[i].w);
    }
  }
  if (warp < p.tokens) ChooseOf(p, bias, shared);
  __syncthreads();
  const uint32_t tag = before + 1 == 0 ? 1 : before + 1;
  if (asks) {
    AskForAll(p, shared, own, strip);
  } else {
    if (warp < p.tokens) WeighOf(p, shared);
#pragma unroll 1
    for (int token = 0; token < p.tokens; ++token)
      MultiplyFirst(shared, board, token, own, strip, tag);
#pragma unroll 1
    for (int n = p.tokens * kParts; ends && n < p.tokens * (kParts + kDownParts); ++n) {
      const Place at(n);
      const int token = (n - p.tokens * kParts) / kDownParts, expert = warp % kHalf;
      if ((n - p.tokens * kParts) % kDownParts != expert / 2 || shared.slots[token][expert] < 0) {
        BarrierWait(SharedAddress(&shared.full[at.slot]), at.parity);
      } else {
        MultiplySecond(at, shared, board, token, tag);
      }
      GiveBack(shared.empty[at.slot]);
    }
  }
  __syncthreads();
  if (threadIdx.x == 0) board.launches[blockIdx.x] = tag;
  const int token = lane / 4;
  if (!of_shared || token >= p.tokens) return;
  const int in_block = warp % kStrips * 16 + (warp % kHalf < kStrips ? 0 : 8) + 2 * (lane % 4);
  float2 routed = make_float2(0, 0);
#pragma unroll
  for (int j = 0; j < kExperts; ++j) {
    if (shared.slots[token][j] < 0) continue;
    routed.x += shared.sums[token][j][in_block];
    routed.y += shared.sums[token][j][in_block + 1];
  }
  *reinterpret_cast<float2*>(p.out + token * p.out_stride + row + 2 * (lane % 4)) =
      make_float2(sums[0][0] + sums[1][0] + routed.x, sums[0][1] + sums[1][1] + routed.y);
}

}  // namespace

Status LaunchMoeOneLaunch4(const MoeShape& shape,
                           const MoeInt4Args& args,
                           const LaunchStream& stream) {
  static_assert(sizeof(Board) <= BoardBytes(BoardOf::kInt4OneLaunch4));
  const Params p = {.board = static_cast<Board*>(args.board),
                    .slot_of = args.slot_of,
                    .experts = args.experts,
                    .slots = shape.slots,
                    .tokens = args.tokens,
                    .gate_up = static_cast<const char*>(args.gate_up),
                    .down = static_cast<const char*>(args.down),
                    .gate_up_bytes = Int4PackedBytes(2 * shape.intermediate, shape.hidden),
                    .down_bytes = Int4PackedBytes(shape.hidden, shape.intermediate),
                    .x = args.x,
                    .x_stride = args.x_stride,
                    .shared = args.shared,
                    .shared_stride = args.shared_stride,
                    .shared_down = args.shared_down,
                    .out = args.out,
                    .out_stride = args.out_stride,
                    .choice = args.choice};
  constexpr int kBytes = static_cast<int>(sizeof(Shared));
  static_assert(kBytes <= 227 * 1024);
  const cudaError_t error =
      cudaFuncSetAttribute(OneLaunchKernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  if (error != cudaSuccess) return Status(Code::kInternal, cudaGetErrorString(error));
  return LaunchOverlapped("MoE of several tokens", OneLaunchKernel, dim3(kBlocks), dim3(kThreads),
                          kBytes, stream, 1, p);
}

}  // namespace baltoro::cuda
