// What gate/up's launch waits for besides the sorted entries, and what it does not wait for but is
// due: rows of x as digits (int4_digits.cuh), and the shared experts' SiLU * mul and second
// product. None of it reads what the choice of experts makes, so this kernel runs while that one
// does (bank_prepare.cu), in blocks of their own: what lies between the router's product and
// gate/up is then the choice alone.
//
// Its inputs are older than the kernel just ahead, which waited before it let this one start, and
// so is whoever read the memory that is written here: no thread waits before it has written (the
// rule of docs/kernels/decode-step.md). All wait before they end, so that gate/up, which is behind,
// has waited for the choice too.
//
// A block has 64 tokens and, of the matrix, four strips of kN rows, a warpgroup each. It makes the
// SiLU of its tokens itself: as little as loading what another block has made, and nobody to wait
// for. A warpgroup has a row of x.
// Floor: the bytes of the matrix and of the results.

#include "ops/cuda/experts/bank_regions.h"
#include "ops/cuda/experts/route/shared_at_choice.h"
#include "ops/cuda/experts/streaming/int4_digits.cuh"
#include "ops/cuda/experts/streaming/int4_digits.h"
#include "ops/cuda/launch/tensor_map.h"
#include "ops/cuda/linear/tiles/tiles128_multiply.cuh"
#include "ops/cuda/ptx/group_multiply.cuh"
#include "ops/cuda/ptx/hopper.cuh"
#include "ops/cuda/rows/norm_device.cuh"

namespace baltoro::cuda {
namespace {

constexpr int kTokens = kBesideTokens;  // of a block
constexpr int kGroups = kBesideGroups, kThreads = 128 * kGroups;
constexpr int kWidth = kBesideWidth, kEights = kWidth / 8;
constexpr int kStep = 64,
              kStepBytes = 2 * kStep;  // columns that lie together, in a row of 128 bytes
constexpr int kSteps = kWidth / kStep;
constexpr int kRowsStepBytes = kTokens * kStepBytes;
constexpr int kHiddenMax = kBesideHiddenMax;
constexpr int kChunks = kHiddenMax / 8 / 128;  // of a row of x, eights of a thread

struct SharedAtChoiceParams {
  MoeGated gated;  // x
  void* out;
  int64_t out_stride;
  int32_t tokens, strips;
  bool bf16;
  DigitRows digits;
};

// The rows of x of the block's warpgroups.
__device__ __forceinline__ void MakeDigits(const DigitRows& p,
                                           int tokens,
                                           uint32_t (&largest_of)[4 * kGroups]) {
  const int group = static_cast<int>(threadIdx.x) / 128,
            thread = static_cast<int>(threadIdx.x) % 128;
  const int blocks = static_cast<int>(gridDim.x), chunks = p.hidden / 8;
  for (int row = group * blocks + static_cast<int>(blockIdx.x); row < tokens;
       row += kGroups * blocks) {
    const uint4* const from = reinterpret_cast<const uint4*>(p.x + row * p.x_stride);
    uint4 x[kChunks];
    uint32_t largest = 0;
#pragma unroll
    for (int i = 0; i < kChunks; ++i) {
      const int chunk = thread + 128 * i;
      x[i] = make_uint4(0, 0, 0, 0);
      if (chunk < chunks) x[i] = __ldcg(from + chunk);
    }
#pragma unroll
    for (int i = 0; i < kChunks; ++i) largest = max(largest, LargestBits(x[i]));
    largest = __reduce_max_sync(~0u, largest);
    if (thread % 32 == 0) largest_of[threadIdx.x / 32] = largest;
    hopper::NamedSync(1 + group, 128);
#pragma unroll
    for (int w = 0; w < 4; ++w) largest = max(largest, largest_of[4 * group + w]);
    const DigitScale scale = ScaleOfLargest(largest);
    char* const to = p.digits + static_cast<int64_t>(row) * 2 * p.hidden;
#pragma unroll
    for (int i = 0; i < kChunks; ++i) {
      const int chunk = thread + 128 * i;
      if (chunk >= chunks) continue;
      const Digits digits = SplitDigits(x[i], scale.inverse);
      const int place = DigitPlace(chunk);
      *reinterpret_cast<uint2*>(to + place) = digits.high;
      *reinterpret_cast<uint2*>(to + p.hidden + place) = digits.low;
    }
    if (thread == 0) p.row_scales[row] = scale.scale;
    hopper::NamedSync(1 + group, 128);  // the next row's largest may be written
  }
}

// SiLU * mul of the block's tokens to shared memory as the matrix instruction reads them, a warp a
// token; the bits of swiglu.cu.
__device__ __forceinline__ void Gate(const MoeGated& g, int tokens, int first, char* rows) {
  constexpr int kEach = kTokens * kEights / kThreads;
  const int eight = static_cast<int>(threadIdx.x) % kEights;
  const int in_tile = static_cast<int>(threadIdx.x) / kEights;
  uint4 gates[kEach], ups[kEach];
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int token = first + in_tile + i * (kThreads / kEights);
    gates[i] = ups[i] = make_uint4(0, 0, 0, 0);
    if (token >= tokens) continue;
    const __nv_bfloat16* const from = g.x + token * g.x_stride + eight * 8;
    gates[i] = __ldcg(reinterpret_cast<const uint4*>(from));
    ups[i] = __ldcg(reinterpret_cast<const uint4*>(from + kWidth));
  }
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const uint32_t gate[4] = {gates[i].x, gates[i].y, gates[i].z, gates[i].w};
    const uint32_t up[4] = {ups[i].x, ups[i].y, ups[i].z, ups[i].w};
    uint32_t made[4];
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      made[w] = hopper::PackBf16(
          GatedUp(__uint_as_float(gate[w] << 16), __uint_as_float(up[w] << 16)),
          GatedUp(__uint_as_float(gate[w] & 0xffff0000u), __uint_as_float(up[w] & 0xffff0000u)));
    }
    const int row = in_tile + i * (kThreads / kEights);
    char* const to = rows + eight / 8 * kRowsStepBytes + row * kStepBytes;
    *reinterpret_cast<uint4*>(to + (eight % 8 ^ row % 8) * 16) =
        make_uint4(made[0], made[1], made[2], made[3]);
  }
}

template <int kN>
constexpr int kWeightStepBytes = kGroups* kN* kStepBytes;
template <int kN>
constexpr int kSharedBytes = kSteps*(kWeightStepBytes<kN> + kRowsStepBytes);

template <int kN>
__global__ void __launch_bounds__(kThreads)
    SharedAtChoiceKernel(const __grid_constant__ SharedAtChoiceParams p,
                         const __grid_constant__ CUtensorMap map) {
  extern __shared__ __align__(1024) char memory[];
  __shared__ alignas(8) uint64_t arrived;
  __shared__ uint32_t largest_of[4 * kGroups];
  const uint32_t weights = SharedAddress(memory), full = SharedAddress(&arrived);
  char* const rows = memory + kSteps * kWeightStepBytes<kN>;
  const int strip = static_cast<int>(blockIdx.x) % p.strips;
  const int first = static_cast<int>(blockIdx.x) / p.strips * kTokens;
  if (threadIdx.x == 0) {
    BarrierInit(full, 1);
    hopper::FenceBarrierInit();
    BarrierExpectBytes(full, kSteps * kWeightStepBytes<kN>);
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      hopper::CopyBox(weights + s * kWeightStepBytes<kN>, &map, full, s * kStep,
                      strip * kGroups * kN, 0);
    }
  }
  // Gate/up's blocks have nothing to do before their wait, so they may come to stand early.
  AllowNextKernel();
  Gate(p.gated, p.tokens, first, rows);
  hopper::FenceAsyncProxy();
  MakeDigits(p.digits, p.tokens, largest_of);
  __syncthreads();

  const int group = static_cast<int>(threadIdx.x) / 128;
  float sums[kN / 2];
#pragma unroll
  for (int i = 0; i < kN / 2; ++i) sums[i] = 0;
  BarrierWait(full, 0);
  hopper::Pin(sums);
  GroupFence();
#pragma unroll
  for (int s = 0; s < kSteps; ++s) {
    const uint32_t a = OperandAddress(SharedAddress(rows) + s * kRowsStepBytes);
    const uint32_t b = OperandAddress(weights + s * kWeightStepBytes<kN> + group * kN * kStepBytes);
#pragma unroll
    for (int i = 0; i < kStep / 16; ++i) {
      GroupMultiplyShared<kN>::Bf16(sums, OperandAt(a + 2 * i), OperandAt(b + 2 * i), 1);
    }
  }
  GroupCommit();
  GroupWait<0>();
  hopper::Pin(sums);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int token = first + static_cast<int>(threadIdx.x) % 128 / 32 * 16 + lane / 4;
  const int64_t column = (strip * kGroups + group) * kN + lane % 4 * 2;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    if (token + 8 * h >= p.tokens) continue;
    const int64_t at = (token + 8 * h) * p.out_stride + column;
#pragma unroll
    for (int i = 0; i < kN / 8; ++i) {
      const float x = sums[4 * i + 2 * h], y = sums[4 * i + 2 * h + 1];
      if (p.bf16) {
        *reinterpret_cast<uint32_t*>(static_cast<__nv_bfloat16*>(p.out) + at + 8 * i) =
            hopper::PackBf16(x, y);
      } else {
        *reinterpret_cast<float2*>(static_cast<float*>(p.out) + at + 8 * i) = make_float2(x, y);
      }
    }
  }
  WaitForEarlierKernels();
}

template <int kN>
Status Launch(const SharedAtChoiceParams& p, const CUtensorMap& map, const LaunchStream& stream) {
  static_assert(kSharedBytes<64> <= 172 * 1024);
  const cudaError_t error = cudaFuncSetAttribute(
      SharedAtChoiceKernel<kN>, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes<kN>);
  if (error != cudaSuccess) return Status(Code::kInternal, cudaGetErrorString(error));
  const int tiles = (p.tokens + kTokens - 1) / kTokens;
  const int64_t size = p.bf16 ? 2 : 4, width = int64_t{p.strips} * kGroups * kN;
  LaunchNote note = "MoE beside the choice";
  note.early_reads = {InputOf(p.gated, p.tokens), InputOf(p.digits, p.tokens)};
  note.early_writes = RowsRegion(p.out, p.tokens, p.out_stride * size, width * size);
  note.early_writes.Add(MadeBy(p.digits, p.tokens));
  note.reads = note.early_reads;
  note.writes = note.early_writes;
  return LaunchOverlapped(note, SharedAtChoiceKernel<kN>,
                          dim3(static_cast<unsigned>(p.strips * tiles)), dim3(kThreads),
                          kSharedBytes<kN>, stream, 1, p, map);
}

}  // namespace

Status LaunchMoeSharedAtChoice(const MoeShape& shape,
                               const MoeInt4Args& args,
                               const ExpertsPlan& plan,
                               const MoeGated& gated,
                               const void* shared_down,
                               const LaunchStream& stream) {
  const int rows = plan.beside_rows;
  const bool bf16 = args.rounded_out != nullptr;
  const SharedAtChoiceParams p = {
      .gated = gated,
      .out = bf16 ? static_cast<void*>(args.rounded_out) : args.out,
      .out_stride = args.out_stride,
      .tokens = args.tokens,
      .strips = shape.hidden / (kGroups * rows),
      .bf16 = bf16,
      .digits = MoeDigitRows(shape, args, CutMoeWorkspace(shape, args.workspace))};
  CUtensorMap map;
  BT_RETURN_IF_ERROR(
      MakeRowsMap(shared_down, shape.hidden, kWidth, kWidth * 2, kGroups * rows, map));
  switch (rows) {
    case 16:
      return Launch<16>(p, map, stream);
    case 32:
      return Launch<32>(p, map, stream);
    case 64:
      return Launch<64>(p, map, stream);
    default:
      return InvalidArgument("MoE: no launch beside the choice is planned");
  }
}

}  // namespace baltoro::cuda
