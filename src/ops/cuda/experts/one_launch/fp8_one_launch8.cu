// The FP8 bank of two to eight tokens in one kernel: as that of one token (fp8_one_launch1.cu),
// the same bits, but the parts of all entries go through one ring, those of down behind those of
// gate/up, so that the memory has work from the first part to the last. Blocks wait for each
// other's middle only at the end, and then for the last token's.
//
// A block, one a multiprocessor, has 16 rows of gate and of up of one expert of each token, then 56
// columns of the result. Eight warps multiply, four ask. What is the shared experts' is done while
// the first parts come. Floor: the bytes of the matrices over the card's read bandwidth.

#include "base/check.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/experts/bank_internal.h"
#include "ops/cuda/experts/fp8_bank.h"
#include "ops/cuda/experts/one_launch/fp8_entries4_device.cuh"
#include "ops/cuda/layout/product_layout.h"
#include "ops/cuda/linear/tiles/tiles.h"
#include "ops/cuda/ptx/hopper.cuh"
#include "ops/cuda/ptx/mail.cuh"

namespace baltoro::cuda {
namespace {

using namespace fp8_one_launch;  // NOLINT: this kernel's parts

constexpr int kTokensMax = 8;
constexpr int kBlocks = kOneLaunchBlocks, kWarps = 8, kAskers = 4,
              kThreads = 32 * (kWarps + kAskers);
constexpr int kHidden = kOneLaunchHidden, kSteps = kHidden / 128, kMiddle = 256,
              kFp8Rows256Steps = kMiddle / 128;

// Gate and up.
constexpr int kRows = kMiddle * kExpertsMax / kBlocks;  // of each of the two
constexpr int kParts = kSteps / kWarps, kPartBytes = kWarps * 128;
constexpr int kPitch = kPartBytes + 64;  // so that rows use all banks
constexpr int kSlotBytes = 2 * kRows * kPitch;
constexpr int kStrips = 2 * kRows / 8;
constexpr int kScaleBytes = 2 * kSteps * 4;  // of two strips
static_assert(kSteps == kParts * kWarps && 2 * kRows == 32);

// Down: two experts' matrices in a slot, each read by a warp.
constexpr int kColumns = kHidden / kBlocks, kDownStrips = kColumns / 8;
constexpr int kDownBytes = kColumns * kMiddle, kDownParts = kExpertsMax / 2;
static_assert(2 * kDownBytes <= kSlotBytes);

struct alignas(256) Board {
  uint64_t middle[kTokensMax][kExpertsMax][kMiddle];
  uint32_t launches[kBlocks];  // so far, counted by each block for itself
};

struct OneLaunchParams {
  Board* board;
  SingleParams of;  // codes and so on of the first token
  int32_t tokens;
  int64_t shared_stride, out_stride;
};

template <int kTokens>
struct Shared {
  static constexpr int kSlots = kTokens > 4 ? 3 : 4;
  alignas(128) char ring[kSlots][kSlotBytes];
  char shared_down[kDownBytes];
  char x[kTokens][kHidden];
  alignas(16) float x_scales[kTokens][kSteps];
  alignas(16) float weights[2][kStrips][kSteps];  // scales of two tokens' experts
  float parts[2][kWarps][2 * kRows];
  float2 down_scales[kTokens][kExpertsMax][kDownStrips];
  alignas(16) char codes[kWarps][kMiddle];
  float scales[kWarps][kFp8Rows256Steps];
  float sums[kTokens][kExpertsMax + 1][kColumns];
  float route_weights[kTokens][kExpertsMax];
  int32_t slots[kTokens][kExpertsMax];
  ChoiceShared choice[kTokens];
  uint64_t full[kSlots], empty[kSlots], known, shared_full;
};

// The place of the n-th part in the ring.
template <int kSlots>
struct Place {
  int slot;
  uint32_t parity;
  __device__ __forceinline__ explicit Place(int n)
      : slot(n % kSlots), parity(static_cast<uint32_t>(n / kSlots) & 1) {}
};

// By the last warps, rows of each part each: all parts, each once there is room. A copy is an
// instruction of one lane, and one warp would take longer for a part than the memory.
template <int kTokens>
__device__ __forceinline__ void AskForAll(const OneLaunchParams& p,
                                          Shared<kTokens>& shared,
                                          int own,
                                          int first) {
  constexpr int kSlots = Shared<kTokens>::kSlots;
  constexpr int kOfAsker = 2 * kRows / kAskers;
  const int lane = threadIdx.x % 32, asker = static_cast<int>(threadIdx.x) / 32 - kWarps;
  const int gate_up = kParts * p.tokens, all = gate_up + kDownParts * p.tokens;
  const int in_part = asker * kOfAsker + lane;
  const int64_t row = first + in_part % kRows + in_part / kRows * kMiddle;
#pragma unroll 1
  for (int n = 0; n < all; ++n) {
    const Place<kSlots> at(n);
    if (n >= kSlots) BarrierWait(SharedAddress(&shared.empty[at.slot]), at.parity ^ 1);
    const uint32_t full = SharedAddress(&shared.full[at.slot]);
    const uint32_t to = SharedAddress(shared.ring[at.slot]);
    if (n < gate_up) {
      const int token = n / kParts, part = n - token * kParts;
      const int slot = shared.slots[token][own];
      const char* const w = p.of.w + slot * p.of.slot_bytes;
      const bool scales = part == 0 && asker < 2;
      if (lane == 0) {
        BarrierExpectBytes(full, slot < 0 ? 0 : kOfAsker * kPartBytes + (scales ? kScaleBytes : 0));
      }
      __syncwarp();
      if (slot < 0) continue;
      if (lane < kOfAsker) {
        CopyBulk(to + in_part * kPitch, w + row * kHidden + part * kPartBytes, kPartBytes, full,
                 ReadOncePolicy());
      } else if (scales && lane == kOfAsker) {
        const int strip = first / 8 + asker * kMiddle / 8;
        CopyPlain(SharedAddress(shared.weights[token % 2][2 * asker]),
                  w + p.of.scales + static_cast<int64_t>(strip) * kSteps * 4, kScaleBytes, full);
      }
      __syncwarp();
      continue;
    }
    const int token = (n - gate_up) / kDownParts, expert = (n - gate_up) % kDownParts * 2 + asker;
    const int slot = asker < 2 ? shared.slots[token][expert] : -1;
    if (lane == 0) {
      BarrierExpectBytes(full, slot < 0 ? 0 : kDownBytes);
      if (slot >= 0) {
        CopyBulk(to + asker * kDownBytes,
                 p.of.down.w + slot * p.of.down.slot_bytes +
                     static_cast<int64_t>(blockIdx.x) * kDownBytes,
                 kDownBytes, full, ReadOncePolicy());
      }
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

// By all warps but the last: the block's rows of a token's middle, told to all blocks.
template <int kTokens>
__device__ __forceinline__ void MultiplyFirst(
    Shared<kTokens>& shared, Board& board, int token, int own, int first, uint32_t tag) {
  constexpr int kSlots = Shared<kTokens>::kSlots;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const bool held = shared.slots[token][own] >= 0;
  const uint32_t codes = SharedAddress(shared.x[token]);
  float sums[kStrips][2] = {};
#pragma unroll 1
  for (int part = 0; part < kParts; ++part) {
    const Place<kSlots> at(token * kParts + part);
    const int step = part * kWarps + warp;
    // The token is the first row of the matrix instruction; weights are its columns.
    uint4 x[2];
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      x[j] = make_uint4(0, 0, 0, 0);
      if (lane < 4) x[j] = LoadShared4(codes + step * 128 + j * 64 + lane * 16);
    }
    BarrierWait(SharedAddress(&shared.full[at.slot]), at.parity);
    if (held) {
      const uint32_t from =
          SharedAddress(shared.ring[at.slot]) + lane / 4 * kPitch + warp * 128 + lane % 4 * 16;
#pragma unroll
      for (int s = 0; s < kStrips; ++s) {
        float products[2][4] = {};
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          MultiplyWords(products[j], x[j], LoadShared4(from + s * 8 * kPitch + j * 64));
        }
        const float scale = shared.weights[token % 2][s][step] * shared.x_scales[token][step];
        sums[s][0] += (products[0][0] + products[1][0]) * scale;
        sums[s][1] += (products[0][1] + products[1][1]) * scale;
      }
    }
    GiveBack(shared.empty[at.slot]);
  }
  auto& parts = shared.parts[token % 2];
  if (lane < 4) {
#pragma unroll
    for (int s = 0; s < kStrips; ++s) {
      parts[warp][s * 8 + 2 * lane] = sums[s][0];
      parts[warp][s * 8 + 2 * lane + 1] = sums[s][1];
    }
  }
  hopper::NamedSync(1, 32 * kWarps);
  if (threadIdx.x < kRows && held) {
    float gate = 0, up = 0;
#pragma unroll
    for (int i = 0; i < kWarps; ++i) {
      gate += parts[i][threadIdx.x];
      up += parts[i][kRows + threadIdx.x];
    }
    resident::Post(&board.middle[token][own][first + threadIdx.x],
                   __float_as_uint(SiluTimes(gate, up)), tag);
  }
  __syncwarp();
}

// The lane's eight columns of the input of the shared experts' second product.
__device__ __forceinline__ void LoadGated(const __nv_bfloat16* shared, float (&v)[8]) {
  const __nv_bfloat16* const from = shared + threadIdx.x % 32 * 8;
  float up[8];
  WidenEight(__ldcg(reinterpret_cast<const uint4*>(from)), v);
  WidenEight(__ldcg(reinterpret_cast<const uint4*>(from + kMiddle)), up);
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    v[i] = __bfloat162float(__float2bfloat16_rn(v[i] / (1.0f + expf(-v[i])) * up[i]));
  }
}

// A warp's row of the middle by 56 rows of weights in shared memory: `sums`. `barrier`: of these.
template <typename ScaleOf>
__device__ __forceinline__ void MultiplySecond(uint32_t weights,
                                               uint32_t barrier,
                                               uint32_t parity,
                                               const float (&v)[8],
                                               char* codes,
                                               float* scales,
                                               ScaleOf scale_of,
                                               float factor,
                                               bool rounds,
                                               float* sums) {
  const int lane = threadIdx.x % 32;
  float scale;
  const uint2 rounded = RoundEight(v, scale);
  __syncwarp();
  StoreShared2(SharedAddress(codes + lane * 8), rounded);
  if (lane % 16 == 0) scales[lane / 16] = scale;
  __syncwarp();
  BarrierWait(barrier, parity);
  // Rows without gaps, odd ones with their halves swapped: as the end of fp8_entries4.cu.
  const int swap = lane / 4 % 2;
  const uint32_t from = weights + lane / 4 * kMiddle + lane % 4 * 16;
  float acc[kDownStrips][2] = {};
#pragma unroll
  for (int step = 0; step < kFp8Rows256Steps; ++step) {
    const float x_scale = scales[step];
    uint4 a[2];
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      a[j] = make_uint4(0, 0, 0, 0);
      if (lane < 8) {
        a[j] = LoadShared4(SharedAddress(codes) + step * 128 + (j ^ swap) * 64 + lane % 4 * 16);
      }
    }
#pragma unroll
    for (int s = 0; s < kDownStrips; ++s) {
      float parts[2][4] = {};
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        MultiplyWords(parts[j], a[j],
                      LoadShared4(from + s * 8 * kMiddle + step * 128 + (j ^ swap) * 64));
      }
      const float2 both = scale_of(s);
      const float by = (step == 0 ? both.x : both.y) * x_scale;
      acc[s][0] += (parts[0][0] + parts[1][0]) * by;
      acc[s][1] += (parts[0][1] + parts[1][1]) * by;
    }
  }
  if (lane >= 8) return;
#pragma unroll
  for (int s = 0; s < kDownStrips; ++s) {
    // Row 0 has the even columns, row 1 the odd ones.
    float sum = (swap ? acc[s][1] : acc[s][0]) * factor;
    // Rounded as shares are that go through memory.
    if (rounds) sum = __bfloat162float(__float2bfloat16_rn(sum));
    sums[s * 8 + lane % 4 * 2 + swap] = sum;
  }
}

// By the first warps, one a token: its experts.
template <int kTokens>
__device__ __forceinline__ void ChooseOf(const OneLaunchParams& p,
                                         const float4 (&bias)[3],
                                         Shared<kTokens>& shared) {
  const int token = threadIdx.x / 32, lane = threadIdx.x % 32;
  MoeChoice choice = p.of.choice;
  choice.logits += token * choice.logits_stride;
  ChoiceShared& made = shared.choice[token];
  Choose(choice, bias, made);
  if (lane < kExpertsMax) shared.slots[token][lane] = p.of.experts.SlotOf(made.ids[lane]);
}

// By the same warps, while the first weights come.
template <int kTokens>
__device__ __forceinline__ void WeighOf(const OneLaunchParams& p, Shared<kTokens>& shared) {
  const int token = threadIdx.x / 32, lane = threadIdx.x % 32;
  MoeChoice choice = p.of.choice;
  choice.logits += token * choice.logits_stride;
  const ChoiceShared& made = shared.choice[token];
  const float weight = ChoiceWeight(choice, made);
  if (lane >= kExpertsMax) return;
  shared.route_weights[token][lane] = weight;
  if (blockIdx.x != 0) return;
  choice.ids[token * kExpertsMax + lane] = made.ids[lane];
  choice.weights[token * kExpertsMax + lane] = weight;
}

template <int kTokens>
__global__ void __launch_bounds__(kThreads, 1)
    OneLaunchKernel(const __grid_constant__ OneLaunchParams p) {
  extern __shared__ __align__(128) char raw[];
  auto& shared = *reinterpret_cast<Shared<kTokens>*>(raw);
  constexpr int kSlots = Shared<kTokens>::kSlots;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const bool asks = warp >= kWarps;
  const int own = static_cast<int>(blockIdx.x) * kRows / kMiddle;
  const int first = static_cast<int>(blockIdx.x) * kRows % kMiddle;
  const uint32_t known = SharedAddress(&shared.known);
  const uint32_t shared_full = SharedAddress(&shared.shared_full);
  if (threadIdx.x < kSlots) {
    BarrierInit(SharedAddress(&shared.full[threadIdx.x]), kAskers);
    BarrierInit(SharedAddress(&shared.empty[threadIdx.x]), kWarps);
  } else if (threadIdx.x == kSlots) {
    BarrierInit(known, 1);
    BarrierInit(shared_full, 1);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    BarrierExpectBytes(known, p.tokens * (kHidden + kSteps * 4));
    BarrierExpectBytes(shared_full, kDownBytes);
    CopyBulk(SharedAddress(shared.shared_down),
             p.of.shared_down.w + static_cast<int64_t>(blockIdx.x) * kDownBytes, kDownBytes,
             shared_full, ReadOncePolicy());
  }
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  float4 bias[3];
  float2 shared_scales = make_float2(0, 0);
  if (warp < p.tokens) {
    LoadChoiceBias(p.of.choice, bias);
    if (lane < kDownStrips) {
      const char* const from = p.of.shared_down.w + p.of.shared_down.scales;
      shared_scales =
          __ldg(reinterpret_cast<const float2*>(from) + blockIdx.x * kDownStrips + lane);
    }
  }
  __syncthreads();
  WaitForEarlierKernels();
  AllowNextKernel();
  Board& board = *p.board;
  const uint32_t before = __ldcg(&board.launches[blockIdx.x]);
  if (warp == kWarps && lane == 0) {
    CopyPlain(SharedAddress(shared.x), p.of.codes, p.tokens * kHidden, known);
    CopyPlain(SharedAddress(shared.x_scales), p.of.x_scales, p.tokens * kSteps * 4, known);
  }
  if (warp < p.tokens) ChooseOf(p, bias, shared);
  __syncthreads();
  const uint32_t tag = before + 1 == 0 ? 1 : before + 1;

  if (asks) {
    AskForAll(p, shared, own, first);
  } else {
    for (int token = 0; token < p.tokens; ++token) {
      const int slot = shared.slots[token][warp];
      if (slot < 0 || lane >= kDownStrips) continue;
      const char* const from = p.of.down.w + slot * p.of.down.slot_bytes + p.of.down.scales;
      shared.down_scales[token][warp][lane] =
          __ldg(reinterpret_cast<const float2*>(from) + blockIdx.x * kDownStrips + lane);
    }
    float v[8];
    if (warp < p.tokens) {
      LoadGated(p.of.shared + warp * p.shared_stride, v);
      WeighOf(p, shared);
      const auto scale_of = [&](int s) {
        return make_float2(__shfl_sync(~0u, shared_scales.x, s),
                           __shfl_sync(~0u, shared_scales.y, s));
      };
      MultiplySecond(SharedAddress(shared.shared_down), shared_full, 0, v, shared.codes[warp],
                     shared.scales[warp], scale_of, 1, false, shared.sums[warp][kExpertsMax]);
    }
    BarrierWait(known, 0);
#pragma unroll 1
    for (int token = 0; token < p.tokens; ++token)
      MultiplyFirst(shared, board, token, own, first, tag);
    __syncwarp();
#pragma unroll 1
    for (int n = p.tokens * kParts; n < p.tokens * (kParts + kDownParts); ++n) {
      const Place<kSlots> at(n);
      const int token = (n - p.tokens * kParts) / kDownParts;
      if ((n - p.tokens * kParts) % kDownParts != warp / 2 || shared.slots[token][warp] < 0) {
        BarrierWait(SharedAddress(&shared.full[at.slot]), at.parity);
      } else {
        resident::Mail<4> mail;
        mail.Await(resident::Patience(resident::Conduct{}), tag, true,
                   [&](int i) { return &board.middle[token][warp][lane * 8 + 2 * i]; });
#pragma unroll
        for (int i = 0; i < 8; ++i) v[i] = mail.number(i / 2, i % 2);
        MultiplySecond(
            SharedAddress(shared.ring[at.slot]) + warp % 2 * kDownBytes,
            SharedAddress(&shared.full[at.slot]), at.parity, v, shared.codes[warp],
            shared.scales[warp], [&](int s) { return shared.down_scales[token][warp][s]; },
            shared.route_weights[token][warp], true, shared.sums[token][warp]);
      }
      GiveBack(shared.empty[at.slot]);
    }
  }
  __syncthreads();
  if (threadIdx.x == 0) board.launches[blockIdx.x] = tag;
  for (int i = threadIdx.x; i < p.tokens * kColumns; i += kThreads) {
    const int token = i / kColumns, column = i - token * kColumns;
    float sum = 0;
#pragma unroll
    for (int e = 0; e <= kExpertsMax; ++e) {
      const bool held = e == kExpertsMax || shared.slots[token][e] >= 0;
      sum += held ? shared.sums[token][e][column] : 0;
    }
    p.of.out[token * p.out_stride + blockIdx.x * kColumns + column] = sum;
  }
}

template <int kTokens>
void Launch(const OneLaunchParams& p, const LaunchStream& stream) {
  constexpr int kBytes = static_cast<int>(sizeof(Shared<kTokens>));
  static_assert(kBytes <= 227 * 1024);
  const auto kernel = OneLaunchKernel<kTokens>;
  CheckCuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes),
            "FP8 bank of several tokens");
  const Status launched = LaunchOverlapped("FP8 bank of several tokens", kernel, dim3(kBlocks),
                                           dim3(kThreads), kBytes, stream, 1, p);
  CheckLaunch("FP8 bank of several tokens");
  BT_CHECK(launched.ok());
}

}  // namespace

void Fp8OneLaunch8(const OpContext& ctx,
                   const ExpertBankArgs& args,
                   const ExpertsPlan& plan,
                   const int32_t* slot_of,
                   const MoeChoice& choice) {
  const ProductLayout layout = LayoutOf(args.gate_up.form, args.gate_up.n, args.gate_up.k);
  const QuantisedRows x = Fp8BankInput(ctx, args);
  BT_CHECK(reinterpret_cast<uintptr_t>(x.x) % 16 == 0 && x.x_stride == kHidden &&
           reinterpret_cast<uintptr_t>(x.x_scales) % 16 == 0);
  static_assert(sizeof(Board) <= BoardBytes(BoardOf::kFp8OneLaunch8));
  const OneLaunchParams p = {
      .board = RankOf(ctx).board<Board>(BoardOf::kFp8OneLaunch8),
      .of = {.experts = {.ids = nullptr,
                         .slot_of = slot_of,
                         .experts = static_cast<int32_t>(args.slot_of.size()),
                         .slots = static_cast<int32_t>(args.gate_up.count),
                         .top_k = kExpertsMax},
             .w = static_cast<const char*>(args.gate_up.data),
             .slot_bytes = args.gate_up.stride_bytes,
             .scales = layout.scales,
             .codes = static_cast<const char*>(x.x),
             .x_scales = x.x_scales,
             .down = Down(args.down),
             .shared_down = Down(args.shared_down),
             .shared = static_cast<const __nv_bfloat16*>(args.shared.data),
             .out = static_cast<float*>(args.out.data),
             .choice = choice},
      .tokens = static_cast<int32_t>(args.x.dim(0)),
      .shared_stride = args.shared.stride[0],
      .out_stride = args.out.stride[0]};
  const bool few = plan.kernel == ExpertsKernel::kFp8OneLaunch4;
  BT_CHECK(p.tokens <= (few ? 4 : kTokensMax) && choice.logits != nullptr);
  if (few) return Launch<4>(p, StreamOf(ctx));
  Launch<8>(p, StreamOf(ctx));
}

}  // namespace baltoro::cuda
