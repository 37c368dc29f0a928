// Block (t, 0) makes the cached token of row t, block (t, 1) its low-rank query. Of many rows a
// warp makes both.

#include "ops/cuda/choose/inputs.h"
#include "ops/cuda/cuda_fused.h"
#include "ops/cuda/launch/card.h"
#include "ops/cuda/launch/explain.h"
#include "ops/cuda/linear/bf16_rows1024.h"
#include "ops/cuda/linear/bf16_rows128.h"
#include "ops/cuda/linear/bf16_rows16.h"
#include "ops/cuda/linear/fp8_rows16.h"
#include "ops/cuda/linear/fp8_rows256.h"
#include "ops/cuda/linear/linear.h"
#include "ops/cuda/rows/fp8_round_device.cuh"
#include "ops/cuda/rows/kv_token_device.cuh"
#include "ops/cuda/rows/norm_copies_device.cuh"
#include "ops/cuda/rows/query_rotation.h"

namespace baltoro::cuda {
namespace {

constexpr int kThreadsMax = 1024;

__device__ void NormQuery(const InputParams& p, float* partial) {
  const int at = static_cast<int>(threadIdx.x) * kEight, count = p.q_lora - at;
  float x[kEight], weight[kEight];
  LoadEight(p.q_norm + at, count, p.vectors, weight);
  hopper::WaitForPredecessors();
  __nv_bfloat16* const to = p.x + blockIdx.x * p.stride + at;
  LoadEight(to, count, p.vectors, x);
  Normalise(x, NormScale(AddSquares(x, 0), p.q_lora, p.eps, partial), weight);
  StoreEight(to, count, p.vectors, x);
  if (p.codes != nullptr) {
    WriteCodes(p.codes, p.code_scales, blockIdx.x, p.q_lora, at, count > 0, x);
  }
}

__global__ void __launch_bounds__(kThreadsMax) InputKernel(InputParams p) {
  __shared__ float partial[32];
  hopper::LetDependentsLaunch();
  if (blockIdx.y == 0) {
    WriteToken(p, blockIdx.x, partial);
  } else {
    NormQuery(p, partial);
  }
}

// ---- Many rows of these widths, where latency is not all: a block a row has a way to memory, a
// barrier and as many ways back, with 3 KB or 1 KB under way. Here a warp asks for all of its row,
// and sums are made without a barrier, in the order of BlockSum.

constexpr int kRowWarps = kManyInputsWarps;
constexpr int kWarpColumns = 32 * kEight;
// Of kWarpColumns.
constexpr int kQueryParts = kManyInputsQuery / kWarpColumns;
constexpr int kLatentParts = kManyInputsLatent / kWarpColumns;
static_assert(kQueryParts == 6 && kLatentParts == 2);
constexpr int kRope = kManyInputsRope;

__device__ __forceinline__ uint4 LoadPacked(const __nv_bfloat16* from) {
  return *reinterpret_cast<const uint4*>(from);
}

// NormScale of a row whose part `i` is what warp i of a block would hold.
template <int kParts>
__device__ __forceinline__ float WarpNormScale(const uint4 (&row)[kParts], float eps) {
  float sums[8] = {};
  static_assert(kParts <= 8);
#pragma unroll
  for (int i = 0; i < kParts; ++i) {
    float x[kEight];
    WidenEight(row[i], x);
    sums[i] = AddSquares(x, 0);
#pragma unroll
    for (int step = 16; step > 0; step /= 2) sums[i] += __shfl_xor_sync(~0u, sums[i], step);
  }
#pragma unroll
  for (int step = 4; step > 0; step /= 2) {
#pragma unroll
    for (int i = 0; i < step; ++i) sums[i] += sums[i + step];
  }
  return 1.0f / sqrtf(sums[0] / static_cast<float>(kParts * kWarpColumns) + eps);
}

__global__ void __launch_bounds__(32 * kRowWarps) ManyInputsKernel(InputParams p, int rows) {
  const int lane = static_cast<int>(threadIdx.x) % 32, at = lane * kEight;
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kRowWarps + threadIdx.x / 32;
  hopper::LetDependentsLaunch();
  const bool exists = row < rows, of_key = exists && at < kRope;
  const int64_t position = exists ? p.positions[row] : -1;
  uint8_t* const token = TokenAt(p.cache, exists ? p.slots[row] : -1);
  const bool known = position >= 0 && position < p.table_positions;
  PairAngles angles;
  if (of_key && known) {
    const int64_t pair = position * (kRope / 2) + at / 2;
    LoadAngles(angles, kEight, p.cos + pair, p.sin + pair, true);
  }
  hopper::WaitForPredecessors();
  if (!exists) return;

  __nv_bfloat16* const query = p.x + row * p.stride + at;
  const __nv_bfloat16* const from = query + kQueryParts * kWarpColumns;
  uint4 queries[kQueryParts], latents[kLatentParts], key = {};
#pragma unroll
  for (int i = 0; i < kQueryParts; ++i) queries[i] = LoadPacked(query + i * kWarpColumns);
#pragma unroll
  for (int i = 0; i < kLatentParts; ++i) latents[i] = LoadPacked(from + i * kWarpColumns);
  if (of_key) key = LoadPacked(from + kLatentParts * kWarpColumns);

  float x[kEight], weight[kEight];
  const float latent_scale = WarpNormScale(latents, p.eps);
#pragma unroll
  for (int i = 0; i < kLatentParts; ++i) {
    WidenEight(latents[i], x);
    LoadWhole(p.kv_norm + i * kWarpColumns + at, weight);
    Normalise(x, latent_scale, weight);
    RoundToBf16(x);
    StoreLatents<true>(p.cache, token, i * kWarpColumns + at, x);
  }
  if (of_key) {
    WidenEight(key, x);
    if (known) {
      RotateEight(x, angles);
    } else {
      Spoil(x);
    }
    RoundToBf16(x);
    StoreKey<true>(p.cache, token, at, x);
  }
  const float query_scale = WarpNormScale(queries, p.eps);
#pragma unroll
  for (int i = 0; i < kQueryParts; ++i) {
    WidenEight(queries[i], x);
    LoadWhole(p.q_norm + i * kWarpColumns + at, weight);
    Normalise(x, query_scale, weight);
    StoreWhole(query + i * kWarpColumns, x);
    if (p.codes != nullptr) {
      WriteCodes(p.codes, p.code_scales, row, p.q_lora, i * kWarpColumns + at, true, x);
    }
  }
}

bool Aligned(const void* data, int64_t elements, int64_t size) {
  return reinterpret_cast<uintptr_t>(data) % 16 == 0 && elements * size % 16 == 0;
}

}  // namespace

InputParams InputParamsOf(const AttentionInputArgs& args) {
  const KvLayerView& cache = args.cache;
  const TensorView& x = args.qkv_a;
  BT_CHECK(x.rank == 2 && x.dtype == DType::kBf16);
  const int64_t q_lora = x.dim(1) - cache.latent - cache.rope;
  const int64_t rows = x.dim(0);
  BT_CHECK(q_lora >= 0 && args.kv_norm.dim(0) == cache.latent && cache.scale > 0);
  BT_CHECK(q_lora == 0 || args.q_norm.dim(0) == q_lora);
  BT_CHECK(args.positions.dim(0) == rows && args.slots.dim(0) == rows);
  BT_CHECK(args.rope.dim == cache.rope && cache.rope % 2 == 0);
  return {.x = static_cast<__nv_bfloat16*>(x.data),
          .stride = x.stride[0],
          .q_norm = q_lora > 0 ? args.q_norm.as<float>() : nullptr,
          .kv_norm = args.kv_norm.as<float>(),
          .positions = args.positions.as<int32_t>(),
          .slots = args.slots.as<int64_t>(),
          .cos = args.rope.cos,
          .sin = args.rope.sin,
          .table_positions = args.rope.positions,
          .cache = KvTarget::Of(cache),
          .q_lora = static_cast<int>(q_lora),
          .latent_threads = InputThreads(cache.latent),
          .eps = args.eps,
          .vectors = InVectors(x) && Aligned(args.q_norm.data, q_lora, 2) &&
                     Aligned(args.kv_norm.data, cache.latent, 2) &&
                     Aligned(args.rope.cos, cache.rope / 2, 4) && Aligned(args.rope.sin, 0, 4)};
}

namespace {

AttentionInputsQuestion InputsQuestion(const AttentionInputArgs& args, const InputParams& p) {
  AttentionInputsQuestion question{
      .qkv_a = FactsOf(args.qkv_a),
      .q_lora = p.q_lora,
      .latent = args.cache.latent,
      .rope = args.cache.rope,
      .vectors = p.vectors,
      .cache_vectors = p.cache.vectors,
      .norm_alignment = AlignmentOf(args.q_norm.data),
      .angle_alignment = std::min(AlignmentOf(args.rope.cos), AlignmentOf(args.rope.sin))};
  if (!args.q) return question;
  BT_CHECK(p.q_lora > 0 && args.q.rank == 3 && args.q.dim(2) > args.rope.dim);
  question.heads = args.q.dim(1);
  question.head_width = args.q.dim(2);
  question.heads_together = args.q.stride[1] == args.q.dim(2);
  question.q = FactsOf(FlatQueries(args));
  question.q_weight = FactsOf(args.q_weight);
  return question;
}

// The product of queries behind a norm of its own, and rope where that is not in it.
void Queries(const OpContext& ctx,
             const AttentionInputsPlan& plan,
             const AttentionInputArgs& args,
             const QuantisedRows& codes) {
  const PackedMatrix& w = args.q_weight;
  if (plan.rotates) {
    switch (plan.query.kernel) {
      case LinearKernel::kBf16Rows128:
        return Bf16Rows128Query(ctx, plan.query.as<Bf16Rows128Plan>(), args);
      case LinearKernel::kBf16Rows1024:
        return Bf16Rows1024Query(ctx, plan.query.as<Bf16Rows1024Plan>(), args);
      default:
        BT_CHECK(plan.query.kernel == LinearKernel::kFp8Rows256);
        return Fp8Rows256Query(ctx, plan.query.as<Fp8Rows256Plan>(), args, codes);
    }
  }
  const TensorView& q = args.q;
  BT_CHECK(q.stride[1] == q.dim(2));
  if (plan.writes_codes) {
    RunLinearOfCodes(ctx, plan.query, FlatQueries(args), codes, w);
  } else {
    RunLinear(ctx, plan.query, FlatQueries(args), args.qkv_a.columns(0, w.k), w);
  }
  Rope(ctx, q.columns(q.dim(2) - args.rope.dim, args.rope.dim), args.positions, args.rope);
}

}  // namespace

AttentionInputsQuestion QuestionOf(const AttentionInputArgs& args) {
  return InputsQuestion(args, InputParamsOf(args));
}

void AttentionInputs(const OpContext& ctx, const AttentionInputArgs& args) {
  InputParams p = InputParamsOf(args);
  const int64_t rows = args.qkv_a.dim(0);
  if (rows == 0) return;
  const AttentionInputsPlan plan = ChooseAttentionInputs(InputsQuestion(args, p), ThisCard());
  Explained(ctx, "attention inputs", plan);
  if (plan.kernel == AttentionInputsKernel::kWithQueries) {
    if (plan.query.kernel == LinearKernel::kBf16Rows16) {
      return QueryProduct(ctx, plan.query.as<Bf16Rows16Plan>(), args);
    }
    return Fp8QueryProduct(ctx, plan.query.as<Fp8Rows16Plan>(), args);
  }
  if (plan.writes_codes) {
    const auto elements = static_cast<size_t>(rows * p.q_lora);
    p.codes = ctx.scratch->AllocateArray<char>(elements);
    p.code_scales = ctx.scratch->AllocateArray<float>(elements / 128);
  }
  const dim3 grid(static_cast<unsigned>(plan.launch.x), static_cast<unsigned>(plan.launch.y));
  if (plan.kernel == AttentionInputsKernel::kManyRows) {
    LaunchAhead("attention inputs", StreamOf(ctx), ManyInputsKernel, grid, plan.launch.threads, p,
                static_cast<int>(rows));
  } else {
    BT_CHECK(plan.launch.threads <= kThreadsMax);
    LaunchAhead("attention inputs", StreamOf(ctx), InputKernel, grid, plan.launch.threads, p);
  }
  if (args.q) Queries(ctx, plan, args, {p.codes, p.q_lora, p.code_scales, p.q_lora / 128});
}

}  // namespace baltoro::cuda
