// A layer of experts of one tensor rank of eight of Kimi K2 (bf16, INT4 experts) as a decode step
// runs it, from one residual to the next: all launches in a graph over layers of different weights.
// What an operation costs is the time of the layer less that of the layer without it: launches
// overlap, so the parts do not add up to the whole. Floor: the bytes of weights and keys over the
// read bandwidth of the same run. Nothing is exchanged between ranks. The bank's experts are drawn,
// for each layer anew: the router's choice is made and not followed.
//
//   cuda_layer_bench [--batch 1,4,16] [--context 1024] [--layers 8] [--parts 0|1] [--join 0|1]

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "card.h"
#include "device/buffer.h"
#include "device/cuda/cuda_memory.h"
#include "device/cuda/device_info.h"
#include "device/cuda/stream.h"
#include "ops/cuda/attention/attention_kernels.h"
#include "ops/cuda/attention/layer/resident_attention.h"
#include "ops/cuda/cuda_fused.h"
#include "ops/cuda/experts/bank_internal.h"
#include "ops/cuda/experts/streaming/int4_digits.h"
#include "ops/cuda/launch/card.h"
#include "ops/cuda/layout/int4_layout.h"
#include "ops/cuda/linear/bf16_rows1024.h"
#include "ops/cuda/linear/bf16_rows16.h"
#include "ops/cuda/norm_begun.h"
#include "tensor/kv_form.h"

namespace baltoro::bench {
namespace {

constexpr int64_t kHidden = 7168, kQLora = 1536, kLatent = 512, kRope = 64, kNope = 128,
                  kValue = 128, kHeads = 8, kShared = 256, kExperts = 384, kInner = 256, kTopK = 8;
constexpr int64_t kHead = kNope + kRope;
constexpr int64_t kPositions = 65536;

void Must(const Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", status.message().c_str());
  std::exit(1);
}
template <typename T>
T Must(Result<T> result) {
  Must(result.status());
  return std::move(result).value();
}

// Values of any form, and scales of about 0.0024 in the last 32 of a tile's 288 words.
__global__ void FillTiles(uint32_t* words, int64_t count, uint32_t seed) {
  for (int64_t i = blockIdx.x * 256 + threadIdx.x; i < count; i += gridDim.x * 256) {
    uint32_t z = static_cast<uint32_t>(i) * 2654435761u + seed;
    z = (z ^ (z >> 15)) * 0x85ebca6bu;
    z = (z ^ (z >> 13)) * 0xc2b2ae35u;
    z ^= z >> 16;
    words[i] = i % 288 < 256 ? z : 0x781f781fu ^ (z & 0x003f003fu);
  }
}

// A router's rows of ordinary random numbers give logits whose sigmoid is 1, and the first experts
// to every row; these give logits of a few units, and choices that differ.
__global__ void Shrink(__nv_bfloat16* values, int64_t count) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step) {
    values[i] = __float2bfloat16(__bfloat162float(values[i]) * 0x1p-5f);
  }
}

enum Part {
  kNorm1,
  kQkvA,
  kInputs,
  kAbsorb,
  kDecode,
  kValues,
  kOut,
  kNorm2,
  kMoeInputs,
  kRoute,
  kGateUp,
  kDown,
  kEnd,
  kParts,
};
constexpr const char* kPartNames[] = {"norm",
                                      "qkv_a",
                                      "inputs and q",
                                      "queries to latents",
                                      "MLA decode",
                                      "merge, value heads",
                                      "o",
                                      "norm",
                                      "shared gate/up, router",
                                      "route",
                                      "experts' gate/up",
                                      "experts' down",
                                      "sum, shared down"};
constexpr uint32_t kAttentionHalf = 63u << kQkvA, kAttention = 7u << kAbsorb,
                   kMoe = 3u << kMoeInputs, kBank = 7u << kGateUp;
constexpr uint32_t kExpertsHalf = kMoe | kBank;

struct Layer {
  PackedMatrix qkv_a, q, uk_t, kv_b, o, shared_gate_up, shared_down, router, gate_up, down;
};

class Bench {
 public:
  Bench(int layers, bool joins) : joins_(joins) {
    for (int i = 0; i < layers; ++i) {
      Layer layer;
      layer.qkv_a = Plain(kQLora + kLatent + kRope, kHidden);
      layer.q = Plain(kHeads * kHead, kQLora);
      layer.uk_t = Plain(kLatent, kNope, kHeads);
      layer.kv_b = Plain(kHeads * (kNope + kValue), kLatent);
      layer.o = Plain(kHidden, kHeads * kValue);
      layer.shared_gate_up = Plain(2 * kShared, kHidden);
      layer.shared_down = Plain(kHidden, kShared);
      layer.router = Plain(kExperts, kHidden);
      Shrink<<<512, 256, 0, stream_.get()>>>(static_cast<__nv_bfloat16*>(memory_.back().data()),
                                             int64_t{kExperts} * kHidden);
      Check(cudaGetLastError());
      layer.gate_up = Int4(2 * kInner, kHidden);
      layer.down = Int4(kHidden, kInner);
      layers_.push_back(layer);
    }
    norm_ = Ones(kHidden);
    short_norm_ = Ones(kQLora);
    bias_ = Allocate(kExperts * 4);
    Check(cudaMemset(bias_.data(), 0, bias_.bytes()));
    table_ = Allocate(2 * kPositions * kRope / 2 * 4);
    Check(cudaMemset(table_.data(), 0x3c, table_.bytes()));
    slots_of_.resize(kExperts);
    std::iota(slots_of_.begin(), slots_of_.end(), 0);
    Must(stream_.Synchronize());
    bandwidth_ = Must(ReadBandwidth(layers_[0].gate_up.data, size_t{1} << 29, stream_));
    std::printf("%s, reads %.0f GB/s, %d layers\n", Must(CurrentDeviceInfo()).name.c_str(),
                bandwidth_ / 1e9, layers);
  }

  void Run(int64_t batch, int64_t context, bool parts) {
    Prepare(batch, context);
    const double dense =
        2.0 * kHidden * (kQLora + kLatent + kRope + kHeads * kValue + 3 * kShared + kExperts) +
        2.0 * kHeads * kHead * kQLora + 2.0 * kHeads * kLatent * (kNope + kValue);
    const double experts =
        kExperts * (1 - std::pow(1 - static_cast<double>(kTopK) / kExperts, batch));
    const double bank = experts * static_cast<double>(layers_[0].gate_up.stride_bytes +
                                                      layers_[0].down.stride_bytes);
    const double keys = static_cast<double>(batch * context) * (kLatent + kRope) * 2;
    const double floor = (dense + bank + keys) / bandwidth_;
    const double whole = Time(~0u);
    std::printf("batch %2d context %5d: %6.2f us a layer, floor %6.2f, %3.0f %%\n",
                static_cast<int>(batch), static_cast<int>(context), whole * 1e6, floor * 1e6,
                100 * floor / whole);
    std::printf("  the experts' half: %6.2f us less without; alone %6.2f; %.1f experts\n",
                (whole - Time(~kExpertsHalf)) * 1e6, Time(kExpertsHalf) * 1e6, distinct_);
    for (int part = 0; parts && part < kParts; ++part) {
      std::printf("  without %-30s %6.2f us less; alone %6.2f\n", kPartNames[part],
                  (whole - Time(~0u & ~(1u << part))) * 1e6, Time(1u << part) * 1e6);
    }
    std::fflush(stdout);
    std::printf("  attention half alone %6.2f us\n", Time(kAttentionHalf) * 1e6);
  }

 private:
  static void Check(cudaError_t error) {
    if (error == cudaSuccess) return;
    std::fprintf(stderr, "%s\n", cudaGetErrorString(error));
    std::exit(1);
  }
  static Buffer Allocate(int64_t bytes) {
    return Must(Buffer::Create(static_cast<size_t>(bytes), "benchmark", CudaMemory()));
  }
  PackedMatrix Plain(int64_t n, int64_t k, int64_t count = 1) {
    memory_.push_back(Allocate(n * k * count * 2));
    Must(FillRandomBf16(memory_.back().data(), static_cast<size_t>(n * k * count),
                        static_cast<uint32_t>(memory_.size()), stream_));
    return {.data = memory_.back().data(),
            .form = WeightForm::kBf16,
            .n = n,
            .k = k,
            .count = count,
            .stride_bytes = n * k * 2};
  }
  PackedMatrix Int4(int64_t n, int64_t k) {
    const int64_t bytes = Int4PackedBytes(n, k);
    memory_.push_back(Allocate(bytes * kExperts));
    FillTiles<<<2048, 256, 0, stream_.get()>>>(static_cast<uint32_t*>(memory_.back().data()),
                                               bytes * kExperts / 4,
                                               static_cast<uint32_t>(memory_.size()));
    Check(cudaGetLastError());
    return {.data = memory_.back().data(),
            .form = WeightForm::kInt4Group,
            .n = n,
            .k = k,
            .count = kExperts,
            .stride_bytes = bytes};
  }
  Buffer Ones(int64_t count) {
    Buffer buffer = Allocate(count * 4);
    const std::vector<float> ones(static_cast<size_t>(count), 1.0f);
    Must(CudaMemory().CopyIn(buffer.data(), ones.data(), ones.size() * 4));
    return buffer;
  }
  template <typename T>
  TensorView Upload(const std::vector<T>& values, DType type) {
    kept_.push_back(Allocate(static_cast<int64_t>(values.size() * sizeof(T))));
    Must(CudaMemory().CopyIn(kept_.back().data(), values.data(), values.size() * sizeof(T)));
    return {kept_.back().data(), type, {static_cast<int64_t>(values.size())}};
  }
  TensorView Rows(DType type, int64_t width) {
    kept_.push_back(Allocate(batch_ * width * SizeOf(type)));
    Check(cudaMemset(kept_.back().data(), 0, kept_.back().bytes()));
    return {kept_.back().data(), type, {batch_, width}};
  }

  void Prepare(int64_t batch, int64_t context) {
    Must(stream_.Synchronize());
    kept_.clear();
    arena_.Reset();
    staging_.Reset();
    batch_ = batch;
    const int64_t each = (context + 63) / 64;
    blocks_ = batch * each;
    const int64_t cache_elements = blocks_ * 64 * (kLatent + kRope);
    for (size_t i = 0; i < layers_.size(); ++i) {
      kept_.push_back(Allocate(cache_elements * 2));
      caches_.resize(i + 1);
      caches_[i] = kept_.back().data();
      Must(FillRandomBf16(caches_[i], static_cast<size_t>(cache_elements), 5, stream_));
    }
    std::vector<int32_t> table(static_cast<size_t>(blocks_));
    std::iota(table.begin(), table.end(), 0);
    std::shuffle(table.begin(), table.end(), std::mt19937(1));
    std::vector<AttentionSequence> sequences;
    std::vector<int32_t> positions;
    std::vector<int64_t> slots;
    for (int64_t i = 0; i < batch; ++i) {
      const auto blocks = std::span<const int32_t>(table).subspan(i * each, each);
      sequences.push_back({.query_begin = static_cast<int32_t>(i),
                           .query_count = 1,
                           .first_position = static_cast<int32_t>(context - 1),
                           .absorbed_from = 0,
                           .blocks = blocks,
                           .block_positions = {},
                           .key_count = static_cast<int32_t>(context)});
      positions.push_back(static_cast<int32_t>(context - 1));
      slots.push_back(blocks.back() * int64_t{64} + (context - 1) % 64);
    }
    positions_ = Upload(positions, DType::kI32);
    slots_ = Upload(slots, DType::kI64);
    residual_ = Rows(DType::kF32, kHidden);
    delta_ = Rows(DType::kF32, kHidden);
    unscaled_ = Rows(DType::kBf16, kHidden);
    squares_ = Rows(DType::kF32, cuda::BegunNorm::kParts);
    normed_ = Rows(DType::kBf16, kHidden);
    qkv_a_ = Rows(DType::kBf16, kQLora + kLatent + kRope);
    q_ = Rows(DType::kBf16, kHeads * kHead);
    attention_ = Rows(DType::kBf16, kHeads * kValue);
    shared_ = Rows(DType::kBf16, 2 * kShared);
    logits_ = Rows(DType::kF32, kExperts);
    ids_ = Rows(DType::kI32, kTopK);
    weights_ = Rows(DType::kF32, kTopK);
    std::mt19937 random(3);
    std::vector<int32_t> drawn;
    distinct_ = 0;
    for (int64_t i = 0; i < batch * std::ssize(layers_); ++i) {
      std::vector<int32_t> all = slots_of_;
      std::shuffle(all.begin(), all.end(), random);
      drawn.insert(drawn.end(), all.begin(), all.begin() + kTopK);
      if ((i + 1) % batch != 0) continue;
      const std::set<int32_t> of_layer(drawn.end() - batch * kTopK, drawn.end());
      distinct_ += static_cast<double>(of_layer.size()) / static_cast<double>(layers_.size());
    }
    drawn_ = Upload(drawn, DType::kI32);
    // What is left out leaves rows of random numbers, where a norm is joined with a mean square of
    // about 1.
    Check(
        cudaMemset(squares_.data, 0x42, static_cast<size_t>(batch * cuda::BegunNorm::kParts * 4)));
    for (const TensorView& rows : {normed_, unscaled_, qkv_a_, q_, attention_, shared_}) {
      Must(FillRandomBf16(rows.data, static_cast<size_t>(rows.num_elements()), 9, stream_));
    }
    plan_ = cuda::PlanAttention(Context(), arena_,
                                {.sequences = sequences,
                                 .tokens = batch,
                                 .form = KvForm::kBf16,
                                 .heads = kHeads,
                                 .nope = kNope,
                                 .rope = kRope,
                                 .value = kValue,
                                 .latent = kLatent,
                                 .blocks_max = 1024});
    Must(stream_.Synchronize());
  }

  OpContext Context() {
    scratch_.Reset();
    return {.scratch = &scratch_, .staging = &staging_, .rank = rank_.get()};
  }

  double Time(uint32_t parts) {
    const int layers = static_cast<int>(layers_.size());
    const auto record = [&] {
      for (int i = 0; i < layers; ++i) Queue(i, parts);
      return Status();
    };
    Must(record());
    Must(stream_.Synchronize());
    return Must(MedianSeconds(stream_, layers, 31, record));
  }

  void Queue(int index, uint32_t parts) {
    const Layer& layer = layers_[static_cast<size_t>(index)];
    const auto has = [&](Part part) { return (parts >> part & 1) != 0; };
    const TensorView norm(norm_.data(), DType::kF32, {kHidden});
    const TensorView q_norm(short_norm_.data(), DType::kF32, {kQLora});
    const TensorView kv_norm(short_norm_.data(), DType::kF32, {kLatent});
    const RopeTable rope{.cos = static_cast<const float*>(table_.data()),
                         .sin = static_cast<const float*>(table_.data()) + kPositions * kRope / 2,
                         .positions = kPositions,
                         .dim = kRope};
    const KvLayerView cache{.data = caches_[static_cast<size_t>(index)],
                            .form = KvForm::kBf16,
                            .num_blocks = blocks_,
                            .latent = kLatent,
                            .rope = kRope};
    // As a model's step: norms are shared by the operations around them where those take that.
    const cuda::BegunNorm joined{.residual = residual_,
                                 .weight = norm,
                                 .rows = unscaled_,
                                 .squares = squares_,
                                 .eps = 1e-5f};
    const bool middle = joins_ && cuda::PlanToNorm(joined, attention_, layer.o).taken() &&
                        cuda::PlanFromNorm(shared_, joined, layer.shared_gate_up).taken() &&
                        cuda::PlanFromNorm(logits_, joined, layer.router).taken();
    const bool behind = middle && cuda::PlanFromNorm(qkv_a_, joined, layer.qkv_a).taken();
    if (has(kNorm1) && !behind) {
      cuda::AddRmsNorm(Context(), normed_, residual_, delta_, norm, 1e-5f);
    }
    if ((parts & kAttentionHalf) == kAttentionHalf &&
        QueueAttentionHalf(layer, cache, rope, q_norm, kv_norm, behind ? &joined : nullptr,
                           middle ? &joined : nullptr)) {
      parts &= ~kAttentionHalf;
    }
    if (has(kQkvA)) {
      if (behind) {
        cuda::LinearFromNorm(Context(), qkv_a_, joined, layer.qkv_a);
      } else {
        cuda::Linear(Context(), qkv_a_, normed_, layer.qkv_a);
      }
    }
    TensorView q(q_.data, DType::kBf16, {batch_, kHeads, kHead});
    if (has(kInputs)) {
      cuda::AttentionInputs(Context(), {.qkv_a = qkv_a_,
                                        .q_norm = q_norm,
                                        .kv_norm = kv_norm,
                                        .positions = positions_,
                                        .slots = slots_,
                                        .rope = rope,
                                        .cache = cache,
                                        .eps = 1e-6f,
                                        .q = q,
                                        .q_weight = layer.q});
    }
    if ((parts & kAttention) == kAttention) {
      cuda::MlaAttention(Context(), {.out = attention_,
                                     .q = q,
                                     .cache = cache,
                                     .sequences = {},
                                     .plan = plan_,
                                     .kv_b = layer.kv_b,
                                     .uk_t = layer.uk_t,
                                     .scale = 0.1f,
                                     .heads = kHeads,
                                     .nope = kNope,
                                     .rope = kRope,
                                     .value = kValue,
                                     .latent = kLatent,
                                     .lse = {}});
    } else if ((parts & kAttention) != 0) {
      QueueAttention(layer, cache, parts);
    }
    if (has(kOut)) {
      if (middle) {
        cuda::LinearToNorm(Context(), joined, attention_, layer.o);
      } else {
        cuda::Linear(Context(), delta_, attention_, layer.o);
      }
    }
    if (has(kNorm2) && !middle) {
      cuda::AddRmsNorm(Context(), normed_, residual_, delta_, norm, 1e-5f);
    }
    const TensorView bias(bias_.data(), DType::kF32, {kExperts});
    const RouterParams params{.experts = kExperts, .top_k = kTopK};
    if (has(kMoeInputs)) {
      cuda::MoeInputs(Context(), {.shared = shared_,
                                  .ids = ids_,
                                  .weights = weights_,
                                  .logits = logits_,
                                  .x = normed_,
                                  .shared_gate_up = layer.shared_gate_up,
                                  .router = layer.router,
                                  .bias = bias,
                                  .params = params,
                                  .norm = middle ? &joined : nullptr,
                                  .chooses = has(kRoute)});
    } else if (has(kRoute)) {
      cuda::Route(Context(), ids_, weights_, logits_, bias, params);
    }
    const TensorView drawn(drawn_.as<int32_t>() + index * batch_ * kTopK, DType::kI32,
                           {batch_, kTopK});
    if ((parts & kBank) == kBank) {
      cuda::ExpertBank(Context(), {.out = delta_,
                                   .x = normed_,
                                   .ids = drawn,
                                   .weights = weights_,
                                   .gate_up = layer.gate_up,
                                   .down = layer.down,
                                   .slot_of = slots_of_,
                                   .shared = shared_,
                                   .shared_down = layer.shared_down,
                                   .norm = behind ? &joined : nullptr});
    } else if ((parts & kBank) != 0) {
      QueueBank(layer, drawn, parts, behind ? &joined : nullptr);
    }
  }

  // All from qkv_a to o; false: launch by launch.
  bool QueueAttentionHalf(const Layer& layer,
                          const KvLayerView& cache,
                          const RopeTable& rope,
                          const TensorView& q_norm,
                          const TensorView& kv_norm,
                          const cuda::BegunNorm* before,
                          const cuda::BegunNorm* behind) {
    const TensorView q(q_.data, DType::kBf16, {batch_, kHeads, kHead});
    return cuda::AttentionLayer(Context(), {.x = normed_,
                                            .before = before,
                                            .qkv_a = layer.qkv_a,
                                            .inputs = {.qkv_a = qkv_a_,
                                                       .q_norm = q_norm,
                                                       .kv_norm = kv_norm,
                                                       .positions = positions_,
                                                       .slots = slots_,
                                                       .rope = rope,
                                                       .cache = cache,
                                                       .eps = 1e-6f,
                                                       .q = q,
                                                       .q_weight = layer.q},
                                            .attention = {.out = attention_,
                                                          .q = q,
                                                          .cache = cache,
                                                          .sequences = {},
                                                          .plan = plan_,
                                                          .kv_b = layer.kv_b,
                                                          .uk_t = layer.uk_t,
                                                          .scale = 0.1f,
                                                          .heads = kHeads,
                                                          .nope = kNope,
                                                          .rope = kRope,
                                                          .value = kValue,
                                                          .latent = kLatent,
                                                          .lse = {}},
                                            .o = layer.o,
                                            .out = delta_,
                                            .behind = behind});
  }

  // MlaAttention launch by launch.
  void QueueAttention(const Layer& layer, const KvLayerView& cache, uint32_t parts) {
    const auto& plan = *static_cast<const cuda::AttentionPlan*>(plan_);
    OpContext context = Context();
    void* const folded =
        context.scratch->Allocate(static_cast<size_t>(batch_ * kHeads * cuda::kMlaWidth * 2));
    void* const latents =
        context.scratch->Allocate(static_cast<size_t>(batch_ * kHeads * kLatent * 2));
    cuda::HeadProductArgs absorb;
    absorb.out = folded;
    absorb.out_row_stride = kHeads * cuda::kMlaWidth;
    absorb.out_head_stride = cuda::kMlaWidth;
    absorb.x = q_.data;
    absorb.x_row_stride = kHeads * kHead;
    absorb.x_head_stride = kHead;
    absorb.w = layer.uk_t.data;
    absorb.w_head_stride = kLatent * kNope;
    absorb.count = batch_;
    absorb.heads = kHeads;
    absorb.rows = plan.rows;
    const cuda::AbsorbedPlan chosen = cuda::ChooseAbsorbed({.limits = plan.limits, .rows = batch_});
    if (parts >> kAbsorb & 1) {
      cuda::LaunchAbsorbQueries(chosen.absorb, absorb, rank_->launches());
    }
    cuda::MlaDecodeArgs decode;
    decode.out = latents;
    decode.q = folded;
    decode.rows = batch_;
    decode.cache = cache.data;
    decode.num_blocks = cache.num_blocks;
    decode.scale = 0.1f;
    decode.sequences = plan.sequences;
    if (parts >> kDecode & 1) {
      mla_ = Must(cuda::MlaDecodePieces(chosen.decode, plan.limits, decode, plan.workspace,
                                        rank_->launches()));
    }
    cuda::HeadProductArgs values;
    values.out = attention_.data;
    values.out_row_stride = kHeads * kValue;
    values.out_head_stride = kValue;
    values.x = latents;
    values.x_row_stride = kHeads * kLatent;
    values.x_head_stride = kLatent;
    values.w = static_cast<const char*>(layer.kv_b.data) + kNope * kLatent * 2;
    values.w_head_stride = (kNope + kValue) * kLatent;
    values.count = batch_;
    values.heads = kHeads;
    values.rows = plan.rows;
    mla_.out = latents;
    if (parts >> kValues & 1) {
      Must(cuda::LaunchMergedValueHeads(chosen, mla_, values, rank_->launches()));
    }
  }

  // ExpertBank launch by launch.
  void QueueBank(const Layer& layer,
                 const TensorView& drawn,
                 uint32_t parts,
                 const cuda::BegunNorm* norm) {
    const cuda::MoeShape shape{.slots = kExperts,
                               .hidden = kHidden,
                               .intermediate = kInner,
                               .top_k = kTopK,
                               .max_tokens = static_cast<int32_t>(batch_)};
    cuda::MoeInt4Args args;
    args.x = static_cast<const __nv_bfloat16*>(normed_.data);
    args.x_stride = args.out_stride = kHidden;
    args.ids = drawn.as<int32_t>();
    args.weights = weights_.as<float>();
    args.experts = kExperts;
    args.tokens = static_cast<int32_t>(batch_);
    args.gate_up = layer.gate_up.data;
    args.down = layer.down.data;
    args.out = delta_.as<float>();
    args.shared = static_cast<const __nv_bfloat16*>(shared_.data);
    args.shared_stride = 2 * kShared;
    args.shared_down = static_cast<const __nv_bfloat16*>(layer.shared_down.data);
    args.shared_intermediate = kShared;
    if (norm != nullptr) args.norm = cuda::BegunNormArgsOf(*norm);
    const int64_t bytes = Must(cuda::MoeWorkspaceBytes(shape));
    const cuda::MoeWorkspace space =
        cuda::CutMoeWorkspace(shape, Context().scratch->Allocate(static_cast<size_t>(bytes)));
    const cuda::ExpertsPlan plan = cuda::ChooseExperts(BankQuestion(layer, norm != nullptr));
    if (plan.sort.blocks > 0)
      Must(cuda::LaunchMoeSort(shape, args, space, plan, rank_->launches()));
    if (plan.kernel == cuda::ExpertsKernel::kInt4OneToken) {
      if (parts >> kGateUp & 1) {
        Must(cuda::LaunchMoeOneTokenGateUp(shape, args, space, rank_->launches()));
      }
      if (parts >> kEnd & 1)
        Must(cuda::LaunchMoeOneTokenEnd(shape, args, space, rank_->launches()));
      return;
    }
    const bool digits = plan.kernel == cuda::ExpertsKernel::kInt4Digits;
    if (parts >> kGateUp & 1) {
      const auto gate_up = digits ? cuda::LaunchMoeDigitsGateUp : cuda::LaunchMoeStreamGateUp;
      Must(gate_up(shape, args, space, plan, rank_->launches()));
    }
    if (parts >> kDown & 1) {
      const auto down = digits ? cuda::LaunchMoeDigitsDown : cuda::LaunchMoeStreamDown;
      Must(down(shape, args, space, plan, rank_->launches()));
    }
    if (parts >> kEnd & 1) Must(cuda::LaunchMoeFinish(shape, args, space, rank_->launches()));
  }

  // Of up to 16 tokens, whose last kernel has the shared experts.
  cuda::ExpertsQuestion BankQuestion(const Layer& layer, bool norm) const {
    cuda::ExpertsQuestion q;
    q.card = cuda::ThisCard();
    q.x = cuda::FactsOf(normed_);
    q.out = cuda::FactsOf(delta_);
    q.top_k = kTopK;
    q.gate_up = cuda::FactsOf(layer.gate_up);
    q.down = cuda::FactsOf(layer.down);
    q.shared = cuda::FactsOf(shared_);
    q.shared_down = cuda::FactsOf(layer.shared_down);
    q.norm = norm;
    return q;
  }

  std::unique_ptr<cuda::RankState> rank_ = Must(cuda::RankState::Create());
  const Stream& stream_ = rank_->stream();
  Arena scratch_{CudaMemory()}, arena_{CudaMemory()}, staging_{PinnedMemory()};
  std::vector<Buffer> memory_, kept_;
  std::vector<Layer> layers_;
  std::vector<void*> caches_;
  std::vector<int32_t> slots_of_;
  Buffer norm_, short_norm_, bias_, table_;
  double bandwidth_ = 0;
  double distinct_ = 0;  // experts of a layer that are drawn, mean
  const bool joins_;
  int64_t batch_ = 0, blocks_ = 0;
  TensorView unscaled_, squares_, positions_, slots_, residual_, delta_, normed_, qkv_a_, q_,
      attention_, shared_, logits_, ids_, weights_, drawn_;
  const void* plan_ = nullptr;
  cuda::MlaKernelArgs mla_ = {};
};

std::vector<int> Numbers(const char* text) {
  std::vector<int> numbers;
  for (const char* at = text; *at != 0;) {
    char* end = nullptr;
    numbers.push_back(static_cast<int>(std::strtol(at, &end, 10)));
    if (end == at) break;
    at = *end == ',' ? end + 1 : end;
  }
  return numbers;
}

int Main(int argc, char** argv) {
  std::vector<int> batches = {1, 4, 16};
  int context = 1024, layers = 8, parts = 1, join = 1;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string flag = argv[i];
    if (flag == "--batch") batches = Numbers(argv[i + 1]);
    if (flag == "--context") context = std::atoi(argv[i + 1]);
    if (flag == "--layers") layers = std::atoi(argv[i + 1]);
    if (flag == "--parts") parts = std::atoi(argv[i + 1]);
    if (flag == "--join") join = std::atoi(argv[i + 1]);
  }
  Bench bench(layers, join != 0);
  for (const int batch : batches) bench.Run(batch, context, parts != 0);
  return 0;
}

}  // namespace
}  // namespace baltoro::bench

int main(int argc, char** argv) {
  return baltoro::bench::Main(argc, argv);
}
