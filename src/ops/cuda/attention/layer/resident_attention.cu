// The attention half of a layer, resident (resident_attention.h). Blocks meet where a product needs
// all of the one before; in between a block multiplies its own strips of 8 rows, the columns shared
// by eight warps (bf16_rows16.cu: weights are the 8 columns of the matrix instruction, tokens its
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

#include "ops/cuda/attention/attention_plan.h"
#include "ops/cuda/attention/decode/mla_decode_internal.h"
#include "ops/cuda/attention/layer/resident_attention.h"
#include "ops/cuda/attention/layer/resident_back.cuh"
#include "ops/cuda/attention/layer/resident_fp8_halves.cuh"
#include "ops/cuda/attention/layer/resident_front.cuh"
#include "ops/cuda/choose/attention_half.h"
#include "ops/cuda/launch/card.h"
#include "ops/cuda/launch/explain.h"
#include "ops/cuda/launch/overlapped_launch.h"
#include "ops/cuda/launch/tensor_map.h"
#include "ops/cuda/layout/product_layout.h"
#include "ops/cuda/linear/bf16_rows16.h"
#include "ops/cuda/linear/tiles/tiles.h"

namespace baltoro::cuda {
namespace {

using namespace resident;  // NOLINT: the parts of this kernel

// A third warpgroup, of which three warps copy, so that the others may have its registers.
constexpr int kThreads = kComputers + 128;
constexpr int kCopyRegisters = 56, kComputeRegisters = 224;

// Waits for the kernels ahead; the tag of this launch.
__device__ __forceinline__ uint32_t BeginLaunch(const Board& board) {
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
  Board& board = *p.board;
  typename Parts::Front front(p, board, raw);
  typename Parts::Back back(p, board, raw);
  Attention decoder(p.mla, p.row_of, p.input.slots, p.rows, p.conduct, board, stage,
                    *reinterpret_cast<typename Attention::Shared*>(raw + Place::kDecode),
                    memory + Place::kQueriesAt, static_cast<int>(blockIdx.x));
  const uint32_t tag = BeginLaunch(board);
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
void Launch(const AttentionHalfPlan& plan,
            const Params& p,
            const MapsOf<Parts>& maps,
            const LaunchStream& stream) {
  constexpr int kBytes = Parts::Place::kBytes;
  const auto kernel = ResidentKernel<Parts>;
  CheckCuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes),
            "resident attention");
  const Status launched =
      LaunchOverlapped("resident attention", kernel, dim3(static_cast<unsigned>(plan.blocks)),
                       dim3(kThreads), kBytes, stream, 1, p, maps);
  CheckLaunch("resident attention");
  BT_CHECK(launched.ok());
}

bool IsCoded(const AttentionLayerArgs& args) {
  return args.qkv_a.form == WeightForm::kFp8Block;
}
QuantisedRows CodesOf(const OpContext& ctx, const TensorView& x) {
  return KnownRows(ctx, x.data, x.stride[0], x.dim(0), x.dim(1));
}

const TensorView& RowsOf(const AttentionLayerArgs& args) {
  return args.before != nullptr ? args.before->rows : args.x;
}

AttentionHalfQuestion QuestionOf(const OpContext& ctx, const AttentionLayerArgs& args) {
  const MlaAttentionArgs& attention = args.attention;
  const AttentionInputArgs& inputs = args.inputs;
  const KvLayerView& cache = inputs.cache;
  const TensorView& x = RowsOf(args);
  const InputParams input = InputParamsOf(inputs);
  const auto& plan = *static_cast<const AttentionPlan*>(attention.plan);
  return {.x = FactsOf(x),
          .out = FactsOf(args.out),
          .norm_ahead = args.before != nullptr,
          .norm_behind = args.behind != nullptr,
          .norms_join = (args.before == nullptr || NormIsInVectors(*args.before)) &&
                        (args.behind == nullptr || NormIsInVectors(*args.behind)),
          .x_coded = CodesOf(ctx, x).x != nullptr,
          .qkv_a = FactsOf(args.qkv_a),
          .q = FactsOf(inputs.q_weight),
          .uk_t = FactsOf(attention.uk_t),
          .kv_b = FactsOf(attention.kv_b),
          .o = FactsOf(args.o),
          .cache = cache.form,
          .same_cache = attention.cache.data == cache.data,
          .inputs_aligned = input.vectors && input.cache.vectors,
          .heads = attention.heads,
          .nope = attention.nope,
          .rope = static_cast<int32_t>(cache.rope),
          .value = attention.value,
          .latent = static_cast<int32_t>(cache.latent),
          .q_lora = inputs.q_norm.dim(0),
          .sums = static_cast<bool>(attention.lse),
          .absorbed = plan.pass_count == 0 && plan.absorbed_rows == x.dim(0),
          .limits = plan.limits,
          .card = RankOf(ctx).card};
}

const char* ScalesOf(const PackedMatrix& w) {
  return static_cast<const char*>(w.data) + LayoutOf(w.form, w.n, w.k).scales;
}

Params ParamsOf(const OpContext& ctx, const AttentionLayerArgs& args) {
  const MlaAttentionArgs& attention = args.attention;
  const auto& plan = *static_cast<const AttentionPlan*>(attention.plan);
  const TensorView& x = RowsOf(args);
  Params p = {};
  RankState& rank = RankOf(ctx);
  p.board = rank.board<Board>(BoardOf::kAttentionHalf);
  static_assert(sizeof(Board) <= BoardBytes(BoardOf::kAttentionHalf));
  if (rank.watched) p.conduct = {.tries_max = ~0u, .givers = 32};
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
  if (args.before != nullptr) p.from = BegunNormArgsOf(*args.before);
  if (args.behind != nullptr) {
    p.to = BegunNormArgsOf(*args.behind);
  } else {
    p.out = args.out.as<float>();
    p.out_stride = args.out.stride[0];
  }
  p.input = InputParamsOf(args.inputs);
  p.row_of = plan.rows;
  MlaKernelArgs& mla = p.mla;
  mla.plan = CutMlaWorkspace(ChooseDecode(plan.limits), plan.workspace);
  mla.sequences = plan.sequences;
  mla.num_sequences = plan.limits.sequences;
  mla.heads = kHeads;
  const float cache_scale = attention.cache.form == KvForm::kFp8 ? attention.cache.scale : 1.0f;
  mla.scale_log2 = static_cast<float>(double{attention.scale} * cache_scale * 1.4426950408889634);
  mla.out_scale = cache_scale;
  mla.cache = attention.cache.data;
  return p;
}

CUtensorMap MapOf(const KvLayerView& cache) {
  CUtensorMap map = {};
  const TensorMapShape shape = {
      CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
      CU_TENSOR_MAP_SWIZZLE_128B,
      {64, static_cast<cuuint64_t>(cache.num_blocks * kMlaBlockTokens), kMlaWidth / 64},
      {kMlaWidth * 2, 128},
      {64, kMlaBlockTokens, kMlaWidth / 64}};
  CheckOk(MakeTensorMap(shape, cache.data, map));
  return map;
}

Fp8Keys::Maps Fp8MapsOf(const KvLayerView& cache) {
  Fp8Keys::Maps maps = {};
  CheckOk(MakeFp8KeyMaps(cache.data, cache.num_blocks, maps.latent, maps.rope));
  return maps;
}

}  // namespace

bool AttentionLayer(const OpContext& ctx, const AttentionLayerArgs& args) {
  const AttentionHalfPlan plan = ChooseAttentionHalf(QuestionOf(ctx, args));
  Explained(ctx, "attention half", plan);
  if (plan.kernel == AttentionHalfWay::kApart) return false;
  const Params p = ParamsOf(ctx, args);
  const KvLayerView& cache = args.attention.cache;
  const LaunchStream stream = StreamOf(ctx);
  switch (plan.kernel) {
    case AttentionHalfWay::kBf16Rows1:
      Launch<Plain<896>>(plan, p, MapOf(cache), stream);
      break;
    case AttentionHalfWay::kBf16Rows8:
      Launch<Plain<448>>(plan, p, MapOf(cache), stream);
      break;
    case AttentionHalfWay::kFp8Rows1:
      Launch<Coded<Decoder>>(plan, p, MapOf(cache), stream);
      break;
    case AttentionHalfWay::kFp8Rows1CacheFp8:
      Launch<Coded<Fp8Decoder>>(plan, p, Fp8MapsOf(cache), stream);
      break;
    case AttentionHalfWay::kApart:
      break;
  }
  return true;
}

}  // namespace baltoro::cuda
