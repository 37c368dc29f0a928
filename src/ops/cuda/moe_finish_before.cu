// The end of a layer of experts for few tokens: the shared experts' SiLU * mul and second product,
// and the sum over a token's routed experts. A warp has 8 rows of the matrix, which it asks for
// before it waits for the kernel ahead. Floor: the matrix's bytes, most of them read before.

#include "ops/cuda/moe_device.cuh"
#include "ops/cuda/moe_internal.h"
#include "ops/cuda/norm_join_device.cuh"

namespace baltoro::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kGroups = 8;   // of 32 columns at most
constexpr int kTopK = 8;     // at most
constexpr int kTokens = 16;  // at most
constexpr int kPad = 32;     // elements between rows: they use all banks

struct Params {
  const int32_t* ids;
  const int32_t* slot_of;
  int32_t experts, slots, tokens, top_k, hidden, intermediate;
  const __nv_bfloat16* shares;  // [T k, H]
  const __nv_bfloat16* shared;
  int64_t shared_stride;
  const __nv_bfloat16* w;
  float* out;
  int64_t out_stride;
  NormJoin norm;  // instead of `out`
};

__device__ __forceinline__ uint4 LoadOnce(const void* from) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(from));
  return v;
}

// Which of a token's experts are held here, bit by bit. All its ids are asked for before the first
// is looked at: one after the other they are most of this kernel's time.
__device__ __forceinline__ uint32_t Held(const Params& p, int token) {
  int32_t slots[kTopK];
#pragma unroll
  for (int j = 0; j < kTopK; ++j) {
    const bool there = token < p.tokens && j < p.top_k;
    slots[j] = there ? __ldcg(p.ids + token * p.top_k + j) : -1;
  }
  if (p.slot_of != nullptr) {
#pragma unroll
    for (int j = 0; j < kTopK; ++j) {
      const bool known = slots[j] >= 0 && slots[j] < p.experts;
      slots[j] = known ? __ldg(p.slot_of + slots[j]) : -1;
    }
  }
  const int32_t end = p.slot_of != nullptr ? p.slots : min(p.slots, p.experts);
  uint32_t held = 0;
#pragma unroll
  for (int j = 0; j < kTopK; ++j) {
    held |= static_cast<uint32_t>(slots[j] >= 0 && slots[j] < end) << j;
  }
  return held;
}

// Of two columns.
__device__ __forceinline__ uint32_t Gated(uint32_t gate, uint32_t up) {
  const __nv_bfloat162 both = __floats2bfloat162_rn(
      SiluTimes(__uint_as_float(gate << 16), __uint_as_float(up << 16)),
      SiluTimes(__uint_as_float(gate & 0xffff0000u), __uint_as_float(up & 0xffff0000u)));
  return *reinterpret_cast<const uint32_t*>(&both);
}

// SiLU * mul of all tokens into `gated`, a warp a token and 8 columns a lane.
__device__ __forceinline__ void Gate(const Params& p,
                                     __nv_bfloat16 (&gated)[kTokens][kGroups * 32 + kPad]) {
  constexpr int kEach = kTokens / kWarps;
  static_assert(kGroups * 32 == 32 * 8 && kTokens % kWarps == 0);
  const int warp = threadIdx.x / 32, column = threadIdx.x % 32 * 8;
  uint4 gates[kEach], ups[kEach];
#pragma unroll
  for (int n = 0; n < kEach; ++n) {
    const int token = warp + n * kWarps;
    gates[n] = ups[n] = make_uint4(0, 0, 0, 0);
    if (token >= p.tokens || column >= p.intermediate) continue;
    const __nv_bfloat16* const from = p.shared + token * p.shared_stride + column;
    gates[n] = __ldcg(reinterpret_cast<const uint4*>(from));
    ups[n] = __ldcg(reinterpret_cast<const uint4*>(from + p.intermediate));
  }
#pragma unroll
  for (int n = 0; n < kEach; ++n) {
    const int token = warp + n * kWarps;
    if (token >= p.tokens || column >= p.intermediate) continue;
    *reinterpret_cast<uint4*>(&gated[token][column]) =
        make_uint4(Gated(gates[n].x, ups[n].x), Gated(gates[n].y, ups[n].y),
                   Gated(gates[n].z, ups[n].z), Gated(gates[n].w, ups[n].w));
  }
}

__global__ void __launch_bounds__(kThreads) FinishKernel(const __grid_constant__ Params p) {
  __shared__ __align__(16) __nv_bfloat16 gated[kTokens][kGroups * 32 + kPad];
  __shared__ float squares[kWarps][kTokens];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int first = (static_cast<int>(blockIdx.x) * kWarps + warp) * 8;  // row of the matrix
  const int groups = p.intermediate / 32;
  const __nv_bfloat16* const w =
      p.w + static_cast<int64_t>(first + lane / 4) * p.intermediate + lane % 4 * 8;
  uint4 weights[kGroups];
#pragma unroll
  for (int i = 0; i < kGroups; ++i) {
    weights[i] = i < groups ? LoadOnce(w + i * 32) : make_uint4(0, 0, 0, 0);
  }
  const int column = first + lane % 4 * 2;
  const bool adds = p.norm.residual != nullptr;
  float2 norm_weight = make_float2(0, 0);
  if (adds) norm_weight = __ldg(reinterpret_cast<const float2*>(p.norm.weight + column));
  WaitForEarlierKernels();
  AllowNextKernel();

  constexpr int kTiles = kTokens / 8;
  float2 residual[kTiles];
  uint32_t pairs[kTiles][kTopK];
  uint32_t held[kTiles];
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
    const int token = tile * 8 + lane / 4;
    residual[tile] = make_float2(0, 0);
    if (adds && token < p.tokens) {
      residual[tile] = __ldcg(reinterpret_cast<const float2*>(
          p.norm.residual + token * p.norm.residual_stride + column));
    }
    // Shares of experts that are not held were not written: loaded, and left out.
#pragma unroll
    for (int j = 0; j < kTopK; ++j) {
      pairs[tile][j] = 0;
      if (token >= p.tokens || j >= p.top_k) continue;
      const int64_t entry = token * p.top_k + j;
      pairs[tile][j] =
          __ldcg(reinterpret_cast<const uint32_t*>(p.shares + entry * p.hidden + column));
    }
    held[tile] = Held(p, token);
  }
  Gate(p, gated);
  __syncthreads();
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
    const int token = tile * 8 + lane / 4;
    if (tile * 8 >= p.tokens) break;
    float sums[2][4] = {};
#pragma unroll
    for (int i = 0; i < kGroups; ++i) {
      if (i >= groups) break;
      uint4 x = make_uint4(0, 0, 0, 0);
      if (token < p.tokens) {
        x = *reinterpret_cast<const uint4*>(&gated[token][i * 32 + lane % 4 * 8]);
      }
      MultiplyAdd(sums[0], x.x, 0, x.y, 0, weights[i].x, weights[i].y);
      MultiplyAdd(sums[1], x.z, 0, x.w, 0, weights[i].z, weights[i].w);
    }
    float2 routed = make_float2(0, 0);
#pragma unroll
    for (int j = 0; j < kTopK; ++j) {
      if ((held[tile] >> j & 1) == 0) continue;
      routed.x += __uint_as_float(pairs[tile][j] << 16);
      routed.y += __uint_as_float(pairs[tile][j] & 0xffff0000u);
    }
    const float2 sum =
        make_float2(sums[0][0] + sums[1][0] + routed.x, sums[0][1] + sums[1][1] + routed.y);
    float own = 0;
    if (token < p.tokens && !adds) {
      *reinterpret_cast<float2*>(p.out + token * p.out_stride + column) = sum;
    } else if (token < p.tokens) {
      own = AddToNorm(p.norm, token, column, residual[tile], sum, norm_weight);
    }
    own = SumOfFour(own);
    if (lane % 4 == 0) squares[warp][token] = own;
  }
  if (!adds) return;
  __syncthreads();
  if (static_cast<int>(threadIdx.x) >= p.tokens) return;
  float all = 0;
#pragma unroll
  for (int w_of = 0; w_of < kWarps; ++w_of) all += squares[w_of][threadIdx.x];
  WriteSquares(p.norm, static_cast<int>(threadIdx.x), static_cast<int>(blockIdx.x),
               static_cast<int>(gridDim.x), all);
}

}  // namespace

Status LaunchMoeFinishBefore(const MoeShape& shape,
                             const MoeInt4Args& args,
                             const MoePlan& plan,
                             cudaStream_t stream) {
  if (!MoeFinishTakes(shape, args.shared_intermediate, args.tokens) ||
      reinterpret_cast<uintptr_t>(args.shared_down) % 16 != 0 ||
      reinterpret_cast<uintptr_t>(args.shared) % 16 != 0 || args.shared_stride % 8 != 0) {
    return InvalidArgument("MoE: the shared experts are not for the end of few tokens");
  }
  const Params p = {.ids = args.ids,
                    .slot_of = args.slot_of,
                    .experts = args.experts,
                    .slots = shape.slots,
                    .tokens = args.tokens,
                    .top_k = shape.top_k,
                    .hidden = shape.hidden,
                    .intermediate = args.shared_intermediate,
                    .shares = plan.shares,
                    .shared = args.shared,
                    .shared_stride = args.shared_stride,
                    .w = args.shared_down,
                    .out = args.out,
                    .out_stride = args.out_stride,
                    .norm = args.norm};
  return LaunchOverlapped("MoE end", FinishKernel,
                          dim3(static_cast<unsigned>(shape.hidden / (8 * kWarps))), dim3(kThreads),
                          0, stream, 1, p);
}

}  // namespace baltoro::cuda
