// The end of a layer of experts for few tokens: the shared experts' SiLU * mul and second product,
// and the sum over a token's routed experts.
//
// A block has 64 columns of all tokens. Its part of the shared experts, which depends on nothing
// that the kernel ahead writes, is in shared memory before that has ended: a warp multiplies 8 rows
// of the matrix with all tokens. What is left then is a sum: a thread has four columns of a token
// and asks for the shares of all its experts at once.
// Floor: the matrix's bytes and the shares, most of them read before.

#include "ops/cuda/experts/bank_device.cuh"
#include "ops/cuda/experts/bank_internal.h"
#include "ops/cuda/experts/bank_regions.h"
#include "ops/cuda/rows/norm_begun_device.cuh"

namespace baltoro::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kGroups = 8;                       // of 32 columns at most
constexpr int kTopK = kFinishTopK;               // at most
constexpr int kTokens = kFinishTokens;           // at most
constexpr int kPad = 32;                         // elements between rows: they use all banks
constexpr int kColumns = 8 * kWarps;             // of a block
constexpr int kRowThreads = kThreads / kTokens;  // of a token in the sum, four columns each
static_assert(kColumns == 4 * kRowThreads && kRowThreads == 16);

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
  BegunNormArgs norm;  // instead of `out`
  bool early_inputs;   // all but the shares is read before the wait
};

__device__ __forceinline__ uint4 LoadOnce(const void* from) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(from));
  return v;
}

// Which of a token's experts are held here, bit by bit, in all kRowThreads lanes of the token.
__device__ __forceinline__ uint32_t Held(const Params& p, int token, int lane) {
  const int j = lane % kRowThreads;
  int32_t slot = -1;
  if (token < p.tokens && j < p.top_k) slot = __ldcg(p.ids + token * p.top_k + j);
  int32_t end = min(p.slots, p.experts);
  if (p.slot_of != nullptr) {
    slot = slot >= 0 && slot < p.experts ? __ldg(p.slot_of + slot) : -1;
    end = p.slots;
  }
  const uint32_t held = __ballot_sync(~0u, slot >= 0 && slot < end);
  return held >> (lane & kRowThreads) & ((1u << kTopK) - 1);
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

// The second product of all tokens by this warp's rows of the matrix, which lane l has: row l / 4,
// columns 8 (l % 4) .. + 8 of each 32.
__device__ __forceinline__ void Multiply(const Params& p,
                                         const __nv_bfloat16 (&gated)[kTokens][kGroups * 32 + kPad],
                                         const uint4 (&weights)[kGroups],
                                         float (&products)[kTokens][kColumns + 4]) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int token = lane / 4;
  float sums[2][4] = {};
#pragma unroll
  for (int i = 0; i < kGroups; ++i) {
    if (i * 32 >= p.intermediate) break;
    uint4 x[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      x[h] = make_uint4(0, 0, 0, 0);
      if (token + 8 * h >= p.tokens) continue;
      x[h] = *reinterpret_cast<const uint4*>(&gated[token + 8 * h][i * 32 + lane % 4 * 8]);
    }
    MultiplyAdd(sums[0], x[0].x, x[1].x, x[0].y, x[1].y, weights[i].x, weights[i].y);
    MultiplyAdd(sums[1], x[0].z, x[1].z, x[0].w, x[1].w, weights[i].z, weights[i].w);
  }
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    *reinterpret_cast<float2*>(&products[token + 8 * h][warp * 8 + lane % 4 * 2]) =
        make_float2(sums[0][2 * h] + sums[1][2 * h], sums[0][2 * h + 1] + sums[1][2 * h + 1]);
  }
}

__global__ void __launch_bounds__(kThreads) FinishKernel(const __grid_constant__ Params p) {
  __shared__ __align__(16) __nv_bfloat16 gated[kTokens][kGroups * 32 + kPad];
  __shared__ __align__(16) float products[kTokens][kColumns + 4];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int block_column = static_cast<int>(blockIdx.x) * kColumns;
  const __nv_bfloat16* const w =
      p.w + static_cast<int64_t>(block_column + warp * 8 + lane / 4) * p.intermediate +
      lane % 4 * 8;
  uint4 weights[kGroups];
#pragma unroll
  for (int i = 0; i < kGroups; ++i) {
    weights[i] = i * 32 < p.intermediate ? LoadOnce(w + i * 32) : make_uint4(0, 0, 0, 0);
  }
  if (!p.early_inputs) WaitForEarlierKernels();
  const int token = static_cast<int>(threadIdx.x) / kRowThreads;
  const int in_block = lane % kRowThreads * 4, column = block_column + in_block;
  const bool adds = p.norm.residual != nullptr;
  float4 residual = make_float4(0, 0, 0, 0), norm_weight = residual;
  if (adds && token < p.tokens) {
    norm_weight = __ldg(reinterpret_cast<const float4*>(p.norm.weight + column));
    residual = __ldcg(
        reinterpret_cast<const float4*>(p.norm.residual + token * p.norm.residual_stride + column));
  }
  const uint32_t held = Held(p, token, lane);
  Gate(p, gated);
  __syncthreads();
  Multiply(p, gated, weights, products);
  // By masks: a condition for each share would make its load wait for those before.
  const __nv_bfloat16* from[kTopK];
  uint32_t mask[kTopK];
#pragma unroll
  for (int j = 0; j < kTopK; ++j) {
    from[j] = p.shares + column +
              (static_cast<int64_t>(token) * p.top_k + (j < p.top_k ? j : 0)) * p.hidden;
    mask[j] = (held >> j & 1) != 0 ? ~0u : 0;
    asm volatile("" : "+l"(from[j]), "+r"(mask[j]));  // now
  }
  __syncthreads();
  const float4 own = *reinterpret_cast<const float4*>(&products[token][in_block]);
  // The other warps touch nothing. Without a branch the compiler moves addresses behind the wait.
  if (warp * 32 / kRowThreads < p.tokens) {
    WaitForEarlierKernels();
    AllowNextKernel();
  }
  const bool there = token < p.tokens;
  // Shares of experts that are not held were not written: loaded, and taken as zeros.
  uint2 parts[kTopK];
#pragma unroll
  for (int j = 0; j < kTopK; ++j) {
    parts[j] = make_uint2(0, 0);
    if (there) parts[j] = __ldcg(reinterpret_cast<const uint2*>(from[j]));
  }
  float4 routed = make_float4(0, 0, 0, 0);
#pragma unroll
  for (int j = 0; j < kTopK; ++j) {
    const uint32_t low = parts[j].x & mask[j], high = parts[j].y & mask[j];
    routed.x += __uint_as_float(low << 16);
    routed.y += __uint_as_float(low & 0xffff0000u);
    routed.z += __uint_as_float(high << 16);
    routed.w += __uint_as_float(high & 0xffff0000u);
  }
  const float4 sum =
      make_float4(own.x + routed.x, own.y + routed.y, own.z + routed.z, own.w + routed.w);
  if (!adds) {
    if (there) *reinterpret_cast<float4*>(p.out + token * p.out_stride + column) = sum;
    return;
  }
  float squares = 0;
  if (there) {
    const float first =
        AddToNorm(p.norm, token, column, make_float2(residual.x, residual.y),
                  make_float2(sum.x, sum.y), make_float2(norm_weight.x, norm_weight.y));
    const float second =
        AddToNorm(p.norm, token, column + 2, make_float2(residual.z, residual.w),
                  make_float2(sum.z, sum.w), make_float2(norm_weight.z, norm_weight.w));
    squares = first + second;
  }
  squares += __shfl_xor_sync(~0u, squares, 1);  // of 8 columns
  float all = 0;
#pragma unroll
  for (int eight = 0; eight < kWarps; ++eight) {
    all += __shfl_sync(~0u, squares, (lane & kRowThreads) + 2 * eight);
  }
  if (there && lane % kRowThreads == 0) {
    WriteSquares(p.norm, token, static_cast<int>(blockIdx.x), static_cast<int>(gridDim.x), all);
  }
}

}  // namespace

static_assert(kColumns == kFinishColumns && 32 * kGroups == kFinishWidthMax);

Status LaunchMoeFinish(const MoeShape& shape,
                       const MoeInt4Args& args,
                       const MoeWorkspace& space,
                       const LaunchStream& stream) {
  if (args.tokens > kTokens || shape.top_k > kTopK || shape.hidden % kColumns != 0 ||
      args.shared_intermediate > 32 * kGroups || args.shared_intermediate % 32 != 0 ||
      reinterpret_cast<uintptr_t>(args.shared_down) % 16 != 0 ||
      reinterpret_cast<uintptr_t>(args.shared) % 16 != 0 || args.shared_stride % 8 != 0) {
    return InvalidArgument("MoE: the shared experts are not for the end of few tokens");
  }
  const Int4BankRegions of{shape, args, space};
  Regions old = {of.ids(), of.shared()};
  if (args.norm.residual != nullptr) {
    old.Add(RowsRegion(args.norm.residual, args.tokens, args.norm.residual_stride * 4,
                       int64_t{shape.hidden} * 4));
  }
  LaunchNote note = "MoE end";
  const bool early_inputs = stream.order->IsComplete(old);
  if (early_inputs) note.early_reads = old;
  const Params p = {.ids = args.ids,
                    .slot_of = args.slot_of,
                    .experts = args.experts,
                    .slots = shape.slots,
                    .tokens = args.tokens,
                    .top_k = shape.top_k,
                    .hidden = shape.hidden,
                    .intermediate = args.shared_intermediate,
                    .shares = space.shares,
                    .shared = args.shared,
                    .shared_stride = args.shared_stride,
                    .w = args.shared_down,
                    .out = args.out,
                    .out_stride = args.out_stride,
                    .norm = args.norm,
                    .early_inputs = early_inputs};
  return LaunchOverlapped(note, FinishKernel, dim3(static_cast<unsigned>(shape.hidden / kColumns)),
                          dim3(kThreads), 0, stream, 1, p);
}

}  // namespace baltoro::cuda
