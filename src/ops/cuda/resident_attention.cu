// The attention half of a layer, resident (resident_attention.h). Blocks meet where a product needs
// all of the one before; in between a block multiplies its own strips of 8 rows, the columns shared
// by eight warps (few_rows.cu: weights are the 8 columns of the matrix instruction, tokens its
// rows).
//
//   inputs    132 blocks, 2 strips   the root of the norm, product
//   queries   128 blocks, 1 or 2 s.  root of the low-rank norm, product, rope
//             4 blocks               the cached token: norm, rope, write (with e4m3 weights a warp)
//   folded    128 blocks, 4 strips   a head's queries by its key matrix
//   decode    parts of the plan      pieces of keys
//   merge     128 blocks             32 latent columns of a head
//   values    128 blocks, 1 strip    a head's value matrix
//   out       128 blocks, 7 strips   product, sum with the residual, its squares
//
// Weights of the next product are in registers before its input is waited for. With e4m3 weights
// the same blocks, rows and meetings, of one token: resident_fp8_layout.cuh,
// resident_fp8_halves.cuh.

#include <atomic>

#include "ops/cuda/attention_plan.h"
#include "ops/cuda/few_rows.h"
#include "ops/cuda/mla_decode_internal.h"
#include "ops/cuda/product.h"
#include "ops/cuda/product_layout.h"
#include "ops/cuda/resident_attention.h"
#include "ops/cuda/resident_back.cuh"
#include "ops/cuda/resident_fp8_halves.cuh"
#include "ops/cuda/resident_front.cuh"
#include "ops/cuda/tensor_map.h"

namespace baltoro::cuda {
namespace {

using namespace resident;  // NOLINT: the parts of this kernel

// A third warpgroup, of which three warps copy, so that the others may have its registers.
constexpr int kThreads = kComputers + 128;
constexpr int kCopyRegisters = 56, kComputeRegisters = 224;

__device__ Board board;  // zeros at first: the tag of no launch

// Waits for the kernels ahead; the tag of this launch.
__device__ __forceinline__ uint32_t BeginLaunch() {
  hopper::WaitForPredecessors();
  hopper::LetDependentsLaunch();  // only now: see docs/kernels/decode-step.md
  const uint32_t tag = __ldcg(&board.launches[blockIdx.x]) + 1;
  return tag == 0 ? 1 : tag;
}

// What a block is made of. Weights and cache of bf16:
template <int kChunk>
struct Plain {
  using Place = Layout<kChunk>;
  using Front = FrontHalf<kChunk>;
  using Attention = Decoder;
  using Back = BackHalf<kChunk>;
  static __device__ __forceinline__ void Bring(const Params& p, uint32_t memory, int warp) {
    BringWeights<kChunk>(p, memory, warp);
  }
};
// Weights of e4m3, and the cache that `AttentionOf` reads.
template <class AttentionOf>
struct Coded {
  using Place = CodedLayout<typename AttentionOf::Keys>;
  using Front = CodedFront<typename AttentionOf::Keys>;
  using Attention = AttentionOf;
  using Back = CodedBack<typename AttentionOf::Keys>;
  static_assert(Place::kQueriesAt + Attention::kQueryBytes <= Place::kDecode);
  static_assert(Place::kDecode + static_cast<int>(sizeof(typename Attention::Shared)) <=
                Place::kMerged);
  static __device__ __forceinline__ void Bring(const Params& p, uint32_t memory, int warp) {
    BringCodes<Place>(p, memory, warp);
  }
};
template <class Parts>
using MapsOf = typename Parts::Attention::Keys::Maps;

template <class Parts>
__device__ __forceinline__ void Compute(const Params& p, char* raw) {
  using Place = typename Parts::Place;
  using Attention = typename Parts::Attention;
  const uint32_t memory = SharedAddress(raw);
  const KeyStage stage{memory, memory + Place::kKeysFull, memory + Place::kKeysEmpty};
  typename Parts::Front front(p, board, raw);
  typename Parts::Back back(p, board, raw);
  Attention decoder(p.mla, p.row_of, p.input.slots, p.rows, p.conduct, board, stage,
                    *reinterpret_cast<typename Attention::Shared*>(raw + Place::kDecode),
                    memory + Place::kQueriesAt, static_cast<int>(blockIdx.x));
  const uint32_t tag = BeginLaunch();
  front.Run(tag);
  decoder.Run(tag);
  back.Run(tag);
  if (threadIdx.x == 0) board.launches[blockIdx.x] = tag;
}

template <class Parts>
__global__ void __launch_bounds__(kThreads, 1)
    ResidentKernel(const __grid_constant__ Params p, const __grid_constant__ MapsOf<Parts> maps) {
  using Place = typename Parts::Place;
  using Keys = typename Parts::Attention::Keys;
  extern __shared__ __align__(1024) char memory[];
  const uint32_t shared = SharedAddress(memory);
  // Weights can be asked for once these are made.
  if (static_cast<int>(threadIdx.x) < Place::kStages) {
    hopper::InitBarrier(shared + Place::kFull + 8 * threadIdx.x, kWeightWarps);
    if (static_cast<int>(threadIdx.x) < Place::kSlots) {
      hopper::InitBarrier(shared + Place::kEmpty + 8 * threadIdx.x, p.conduct.givers);
    }
    hopper::FenceBarrierInit();
  } else if (threadIdx.x == 32) {
    if (shared % 1024 != 0) __trap();  // keys would lie in another swizzle
    for (const int at : {Place::kQueryFull, Place::kKeyFull, Place::kValueFull, Place::kOutFull}) {
      hopper::InitBarrier(shared + at, kWeightWarps);
    }
    for (int s = 0; s < Keys::kStages; ++s) {
      hopper::InitBarrier(shared + Place::kKeysFull + 8 * s, 1);
      hopper::InitBarrier(shared + Place::kKeysEmpty + 8 * s, kWarps * p.conduct.givers);
    }
    hopper::InitBarrier(shared + Place::kKeysAsked, 1);
    hopper::FenceBarrierInit();
    Keys::Prefetch(maps);
  }
  static_assert(Place::kStages <= 32);
  __syncthreads();
  if (threadIdx.x < kComputers) {
    hopper::RaiseRegisters<kComputeRegisters>();
    Compute<Parts>(p, memory);
  } else {
    hopper::LowerRegisters<kCopyRegisters>();
    const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x - kComputers) / 32, 0);
    if (warp < kWeightWarps) {
      Parts::Bring(p, shared, warp);
    } else if (warp == kWeightWarps) {
      BringKeys<Place, Keys>(p, maps, shared);
    }
  }
}

template <class Parts>
void Launch(const Params& p, const MapsOf<Parts>& maps, cudaStream_t stream) {
  constexpr int kBytes = Parts::Place::kBytes;
  const auto kernel = ResidentKernel<Parts>;
  CheckCuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes),
            "resident attention");
  const Status launched = LaunchOverlapped("resident attention", kernel, dim3(kBlocks),
                                           dim3(kThreads), kBytes, stream, 1, p, maps);
  CheckLaunch("resident attention");
  BT_CHECK(launched.ok());
}

bool Matrix(const PackedMatrix& w, int64_t n, int64_t k, int64_t count, bool coded = false) {
  return (coded ? w.form == WeightForm::kFp8Block && w.quantise_input
                : w.form == WeightForm::kBf16) &&
         w.n == n && w.k == k && w.count == count &&
         reinterpret_cast<uintptr_t>(w.data) % 16 == 0 && (count == 1 || w.stride_bytes % 16 == 0);
}

bool IsCoded(const AttentionLayerArgs& args) {
  return args.qkv_a.form == WeightForm::kFp8Block;
}
QuantisedRows CodesOf(const OpContext& ctx, const TensorView& x) {
  return KnownRows(ctx, x.data, x.stride[0], x.dim(0), x.dim(1));
}

bool Takes(const OpContext& ctx, const AttentionLayerArgs& args) {
  const MlaAttentionArgs& attention = args.attention;
  const AttentionInputArgs& inputs = args.inputs;
  const TensorView& x = args.before != nullptr ? args.before->rows : args.x;
  const int64_t rows = x.dim(0);
  if (rows < 1 || rows > kRows || x.dim(1) != kHidden || x.dtype != DType::kBf16 || !InVectors(x)) {
    return false;
  }
  // Their input is rounded, which needs the norm's root: rows come from a norm of their own. Of
  // several rows the launches of their own are faster, but for 8 rows of short contexts
  // (docs/kernels/decode-step.md).
  const bool coded = IsCoded(args);
  if (coded && (rows > 1 || args.before != nullptr || args.behind != nullptr ||
                CodesOf(ctx, x).x == nullptr)) {
    return false;
  }
  if (args.before != nullptr && !NormJoins(*args.before)) return false;
  if (args.behind != nullptr ? !NormJoins(*args.behind)
                             : args.out.dtype != DType::kF32 || !InVectors(args.out)) {
    return false;
  }
  const KvLayerView& cache = inputs.cache;
  const bool known_cache = cache.form == KvForm::kBf16 || (coded && cache.form == KvForm::kFp8);
  if (!known_cache || attention.cache.data != cache.data || cache.latent != kLatent ||
      cache.rope != kRope || attention.heads != kHeads || attention.lse ||
      attention.nope != kNope || attention.value != kValue || inputs.q_norm.dim(0) != kQLora) {
    return false;
  }
  if (!Matrix(args.qkv_a, kInputs, kHidden, 1, coded) ||
      !Matrix(inputs.q_weight, kHeads * kHead, kQLora, 1, coded) ||
      !Matrix(attention.uk_t, kLatent, kNope, kHeads) ||
      !Matrix(attention.kv_b, kHeads * (kNope + kValue), kLatent, 1) ||
      !Matrix(args.o, kHidden, kHeads * kValue, 1, coded)) {
    return false;
  }
  const InputParams input = InputParamsOf(inputs);
  if (!input.vectors || !input.cache.vectors) return false;
  const auto& plan = *static_cast<const AttentionPlan*>(attention.plan);
  const MlaDecodeLimits& limits = plan.limits;
  // All blocks wait for each other: one on each multiprocessor, or there is no room for them at
  // once.
  return plan.pass_count == 0 && plan.absorbed_rows == rows && limits.max_query_tokens == 1 &&
         limits.chunk_blocks == 0 && limits.multiprocessors == kBlocks;
}

std::atomic<bool> watched = false;

const char* ScalesOf(const PackedMatrix& w) {
  return static_cast<const char*>(w.data) + LayoutOf(w.form, w.n, w.k).scales;
}

Params ParamsOf(const OpContext& ctx, const AttentionLayerArgs& args) {
  const MlaAttentionArgs& attention = args.attention;
  const auto& plan = *static_cast<const AttentionPlan*>(attention.plan);
  const TensorView& x = args.before != nullptr ? args.before->rows : args.x;
  Params p = {};
  if (watched) p.conduct = {.tries_max = ~0u, .givers = 32};
  p.w_inputs = static_cast<const char*>(args.qkv_a.data);
  p.w_q = static_cast<const char*>(args.inputs.q_weight.data);
  p.w_key = static_cast<const char*>(attention.uk_t.data);
  p.key_head_bytes = attention.uk_t.stride_bytes;
  p.w_value = static_cast<const char*>(attention.kv_b.data) + kNope * kLatent * 2;
  p.value_head_bytes = (kNope + kValue) * kLatent * 2;
  p.w_out = static_cast<const char*>(args.o.data);
  p.x = static_cast<const char*>(x.data);
  p.x_row_bytes = x.dim(0) <= 1 ? 0 : x.stride[0] * 2;
  p.rows = static_cast<int>(x.dim(0));
  if (IsCoded(args)) {
    p.inputs_scales = ScalesOf(args.qkv_a);
    p.q_scales = ScalesOf(args.inputs.q_weight);
    p.out_scales = ScalesOf(args.o);
    const QuantisedRows known = CodesOf(ctx, x);
    p.codes = static_cast<const char*>(known.x);
    p.x_scales = known.x_scales;
  }
  if (args.before != nullptr) p.from = NormJoinOf(*args.before);
  if (args.behind != nullptr) {
    p.to = NormJoinOf(*args.behind);
  } else {
    p.out = args.out.as<float>();
    p.out_stride = args.out.stride[0];
  }
  p.input = InputParamsOf(args.inputs);
  p.row_of = plan.rows;
  MlaKernelArgs& mla = p.mla;
  mla.plan = CutMlaWorkspace(plan.limits, plan.workspace);
  mla.sequences = plan.sequences;
  mla.num_sequences = plan.limits.sequences;
  mla.heads = kHeads;
  const float cache_scale = attention.cache.form == KvForm::kFp8 ? attention.cache.scale : 1.0f;
  mla.scale_log2 = static_cast<float>(double{attention.scale} * cache_scale * 1.4426950408889634);
  mla.out_scale = cache_scale;
  mla.cache = attention.cache.data;
  return p;
}

void LaunchAll(const OpContext& ctx, const AttentionLayerArgs& args) {
  const Params p = ParamsOf(ctx, args);
  const KvLayerView& cache = args.attention.cache;
  if (cache.form == KvForm::kFp8) {
    Fp8Keys::Maps maps = {};
    CheckOk(MakeFp8KeyMaps(cache.data, cache.num_blocks, maps.latent, maps.rope));
    return Launch<Coded<Fp8Decoder>>(p, maps, StreamOf(ctx));
  }
  CUtensorMap map = {};
  const TensorMapShape shape = {
      CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
      CU_TENSOR_MAP_SWIZZLE_128B,
      {64, static_cast<cuuint64_t>(cache.num_blocks * kMlaBlockTokens), kMlaWidth / 64},
      {kMlaWidth * 2, 128},
      {64, kMlaBlockTokens, kMlaWidth / 64}};
  CheckOk(MakeTensorMap(shape, cache.data, map));
  if (IsCoded(args)) return Launch<Coded<Decoder>>(p, map, StreamOf(ctx));
  // Copies of twice the size are faster where nothing else is waited for.
  if (p.rows == 1) return Launch<Plain<896>>(p, map, StreamOf(ctx));
  Launch<Plain<448>>(p, map, StreamOf(ctx));
}

}  // namespace

void WatchAttentionLayer() {
  watched = true;
}

bool AttentionLayer(const OpContext& ctx, const AttentionLayerArgs& args) {
  if (!Takes(ctx, args)) return false;
  LaunchAll(ctx, args);
  return true;
}

}  // namespace baltoro::cuda
