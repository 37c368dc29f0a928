#pragma once

// For the test of the resident attention half: what a step gives to it and must get from it by the
// reference.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "ops/cuda/attention/layer/resident_attention_test_support.h"
#include "tensor/float8.h"

namespace baltoro::cuda::resident_test {

// What a step is given, and what must come out.
class Case {
 public:
  Case(const Layer& layer, const Step& step)
      : layer_(layer), step_(step), rows_(static_cast<int64_t>(step.keys.size())) {
    std::mt19937 random(11), content(11 + step.seed);
    x_ = Bits(Draw(12 + step.seed, rows_ * kHidden, -2, 2));
    residual_ = Draw(13 + step.seed, rows_ * kHidden, -3, 3);
    if (step.nan_row >= 0) x_[static_cast<size_t>(step.nan_row * kHidden + 77)] = ToBf16(kNaN);
    squares_.assign(static_cast<size_t>(rows_ * BegunNorm::kParts), 0);
    for (float& part : squares_) part = static_cast<float>(content() % 100) + 1;
    int64_t blocks = 1;
    for (const int32_t keys : step.keys) blocks += (keys + kBlock - 1) / kBlock;
    num_blocks_ = blocks = std::max(blocks, step.cache_blocks);
    std::vector<int32_t> physical(static_cast<size_t>(blocks));
    std::iota(physical.begin(), physical.end(), 0);
    std::shuffle(physical.begin(), physical.end(), random);
    cache_.resize(static_cast<size_t>(blocks * kBlock * (kLatent + kRope) * layer.element_bytes()));
    for (size_t i = 0; i < cache_.size() / layer.element_bytes(); ++i) PutCached(i, kNaN);
    tables_.resize(step.keys.size());
    size_t taken = 0;
    for (size_t i = 0; i < step.keys.size(); ++i) {
      const int32_t keys = step.keys[i];
      for (int64_t b = 0; b * kBlock < keys; ++b) tables_[i].push_back(physical[taken++]);
      const auto slot = [&](int64_t key) {
        return tables_[i][static_cast<size_t>(key / kBlock)] * kBlock + key % kBlock;
      };
      // All but the key of this step.
      for (int64_t key = 0; key + 1 < keys; ++key) {
        for (int64_t c = 0; c < kLatent + kRope; ++c) {
          PutCached(static_cast<size_t>(slot(key) * (kLatent + kRope) + c),
                    static_cast<float>(content() % 4096) / 1024 - 2);
        }
      }
      slots_.push_back(keys > 0 ? slot(keys - 1) : -1);
      positions_.push_back(std::max(keys - 1, 0));
      sequences_.push_back({.query_begin = static_cast<int32_t>(i),
                            .query_count = keys > 0 ? 1 : 0,
                            .first_position = positions_.back(),
                            .absorbed_from = 0,
                            .blocks = tables_[i],
                            .block_positions = {},
                            .key_count = keys});
    }
  }

  // Resident or as launches of their own; returns what was added to the residual.
  std::vector<float> Run(Context& context, Arena& staging, bool resident) {
    const LayerMemory memory(layer_, rows_, num_blocks_);
    Upload(memory);
    RoundedRows rounded = memory.rounded;
    if (layer_.coded()) RoundX(context, memory);
    const AttentionLayerArgs args = Args(memory, Plan(context, staging, plan_memory_, PlanArgs()));
    OpContext ctx = context.get();
    const Beside with{.rounded = &rounded};
    ctx.beside = &with;
    if (!resident) {
      Apart(context, args, &rounded);
    } else if (!AttentionLayer(ctx, args)) {
      Fail(std::string(step_.name) + ": not taken");
    }
    context.Wait();
    Made made = Read(memory);
    if (step_.behind) {
      made.delta = made.residual;
      for (size_t i = 0; i < made.delta.size(); ++i) made.delta[i] -= residual_[i];
    }
    Expect(made);
    return made.delta;
  }

  // Codes of x, as of the norm that wrote it.
  void RoundX(Context& context, const LayerMemory& memory) const {
    const QuantisedRows codes = QuantiseRows(
        context.get(), {.x = memory.x.data(), .stride = kHidden, .rows = rows_, .k = kHidden},
        layer_.qkv_a.device);
    context.Wait();
    Overwrite(memory.codes, FromDevice<char>(codes.x, static_cast<size_t>(rows_ * kHidden)));
    Overwrite(memory.code_scales,
              FromDevice<float>(codes.x_scales, static_cast<size_t>(rows_ * kHidden / 128)));
  }

  // Results are NaN.
  void Upload(const LayerMemory& memory) const {
    const std::vector<float> parts(squares_.size(), kNaN), wide(x_.size(), kNaN);
    const std::vector<Bf16> narrow(x_.size(), ToBf16(kNaN));
    const auto nothing = [&](const Buffer& to, int64_t width) {
      Overwrite(to, std::vector<Bf16>(static_cast<size_t>(rows_ * width), ToBf16(kNaN)));
    };
    Overwrite(memory.x, x_);
    Overwrite(memory.squares, squares_);
    Overwrite(memory.residual, residual_);
    Overwrite(memory.rows, narrow);
    Overwrite(memory.new_squares, parts);
    Overwrite(memory.delta, wide);
    nothing(memory.inputs, kQLora + kLatent + kRope);
    nothing(memory.q, kHeads * kHead);
    nothing(memory.attention, kHeads * kValue);
    Overwrite(memory.cache, cache_);
    Overwrite(memory.slots, slots_);
    Overwrite(memory.positions, positions_);
    BT_CHECK(cudaDeviceSynchronize() == cudaSuccess);
  }

  AttentionPlanArgs PlanArgs() const {
    return {.sequences = sequences_,
            .tokens = rows_,
            .form = layer_.cache,
            .heads = kHeads,
            .nope = kNope,
            .rope = kRope,
            .value = kValue,
            .latent = kLatent,
            .blocks_max = step_.blocks_max};
  }

  // Refers to the norms of `memory`.
  AttentionLayerArgs Args(const LayerMemory& memory, const AttentionPlan* plan) const {
    const KvLayerView view = layer_.Cache(memory.cache.data(), num_blocks_);
    AttentionLayerArgs args{
        .x = OnCard(memory.x, DType::kBf16, rows_, kHidden),
        .before = step_.before ? &memory.before : nullptr,
        .qkv_a = layer_.qkv_a.device,
        .inputs =
            Inputs(OnCard(memory.inputs, DType::kBf16, rows_, kQLora + kLatent + kRope), view),
        .attention = {},
        .o = layer_.o.device,
        .out = OnCard(memory.delta, DType::kF32, rows_, kHidden),
        .behind = step_.behind ? &memory.behind : nullptr};
    args.inputs.q_norm = TensorView(layer_.q_norm_memory.data(), DType::kF32, {kQLora});
    args.inputs.kv_norm = TensorView(layer_.kv_norm_memory.data(), DType::kF32, {kLatent});
    args.inputs.positions = TensorView(memory.positions.data(), DType::kI32, {rows_});
    args.inputs.slots = TensorView(memory.slots.data(), DType::kI64, {rows_});
    args.inputs.rope = layer_.Rope(static_cast<const float*>(layer_.table_memory.data()));
    args.inputs.q = TensorView(memory.q.data(), DType::kBf16, {rows_, kHeads, kHead});
    args.inputs.q_weight = layer_.q.device;
    args.attention = Attention(args.inputs.q, view);
    args.attention.out = OnCard(memory.attention, DType::kBf16, rows_, kHeads * kValue);
    args.attention.plan = plan;
    args.attention.kv_b = layer_.kv_b.device;
    args.attention.uk_t = layer_.KeysAt(layer_.keys_memory.data());
    return args;
  }

  Made Read(const LayerMemory& memory) const {
    return {.residual = FromDevice<float>(memory.residual.data(), x_.size()),
            .squares = FromDevice<float>(memory.new_squares.data(), squares_.size()),
            .delta = FromDevice<float>(memory.delta.data(), x_.size()),
            .rows = FromDevice<Bf16>(memory.rows.data(), x_.size()),
            .cache = FromDevice<char>(memory.cache.data(), cache_.size())};
  }

  // What the layer was given, where it was not what this case draws.
  void Give(const std::vector<Bf16>& x, const std::vector<float>& squares) {
    x_ = x;
    squares_ = squares;
    want_.clear();
  }

  // The norm behind and the cache; see Error for what was added.
  void Expect(const Made& made) {
    if (want_.empty()) MakeReference();
    if (step_.behind) ExpectNorm(made.residual, made.rows, made.squares);
    ExpectCache(made.cache);
  }

  bool Counts(int64_t row) const {
    return step_.keys[static_cast<size_t>(row)] != 0 && row != step_.nan_row;
  }
  int64_t rows() const { return rows_; }
  int64_t num_blocks() const { return num_blocks_; }
  const std::vector<AttentionSequence>& sequences() const { return sequences_; }
  const std::vector<float>& residual() const { return residual_; }

  // Root mean square of the error over that of the reference, of rows that count.
  double Error(const std::vector<float>& delta) const { return Difference(delta, want_); }
  double Difference(const std::vector<float>& delta, const std::vector<float>& wanted) const {
    double errors = 0, all = 0;
    for (int64_t t = 0; t < rows_; ++t) {
      if (!Counts(t)) continue;
      for (int64_t at = t * kHidden; at < (t + 1) * kHidden; ++at) {
        const double want = wanted[static_cast<size_t>(at)];
        errors += (delta[static_cast<size_t>(at)] - want) * (delta[static_cast<size_t>(at)] - want);
        all += want * want;
      }
    }
    return std::sqrt(errors / all);
  }

 private:
  AttentionInputArgs Inputs(const TensorView& qkv_a, const KvLayerView& cache) const {
    return {.qkv_a = qkv_a,
            .q_norm = {},
            .kv_norm = {},
            .positions = {},
            .slots = {},
            .rope = {},
            .cache = cache,
            .eps = kEps};
  }
  MlaAttentionArgs Attention(const TensorView& q, const KvLayerView& cache) const {
    return {.out = {},
            .q = q,
            .cache = cache,
            .sequences = sequences_,
            .plan = nullptr,
            .kv_b = {},
            .uk_t = {},
            .scale = kScale,
            .heads = kHeads,
            .nope = kNope,
            .rope = kRope,
            .value = kValue,
            .latent = kLatent,
            .lse = {}};
  }

  // The operations one by one in f32, rounded to bf16 where tensors between them are.
  void MakeReference() {
    const auto linear = [&](std::vector<float>& out, const TensorView& x, const PackedMatrix& w) {
      out.resize(static_cast<size_t>(rows_ * w.n));
      ReferenceSmallOps().linear({}, View(out, rows_, w.n), x, w);
    };
    const auto round = [](std::vector<float>& values) {
      for (float& value : values) value = ToFloat(ToBf16(value));
    };
    const int64_t width = kQLora + kLatent + kRope;
    std::vector<float> inputs;
    linear(inputs, TensorView(x_.data(), DType::kBf16, {rows_, kHidden}), layer_.qkv_a.reference);
    for (int64_t t = 0; step_.before && t < rows_; ++t) {
      double sum = 0;
      for (int64_t i = 0; i < BegunNorm::kParts; ++i) {
        sum += squares_[static_cast<size_t>(t * BegunNorm::kParts + i)];
      }
      const double scale = 1 / std::sqrt(sum / kHidden + double{kEps});
      for (int64_t c = 0; c < width; ++c) {
        float& value = inputs[static_cast<size_t>(t * width + c)];
        value = static_cast<float>(value * scale);
      }
    }
    round(inputs);
    const TensorView all = View(inputs, rows_, width);
    std::vector<float> low(static_cast<size_t>(rows_ * kQLora)), q, q_norm = layer_.q_norm,
                                                                    kv_norm = layer_.kv_norm;
    const TensorView low_view = View(low, rows_, kQLora);
    ReferenceSmallOps().rms_norm({}, low_view, all.columns(0, kQLora),
                                 TensorView(q_norm.data(), DType::kF32, {kQLora}), kEps);
    linear(q, low_view, layer_.q.reference);
    TensorView q_view(q.data(), DType::kF32, {rows_, kHeads, kHead});
    const TensorView positions(positions_.data(), DType::kI32, {rows_});
    ReferenceSmallOps().rope({}, q_view.columns(kNope, kRope), positions,
                             layer_.Rope(layer_.table.data()));
    round(q);
    const TensorView latent = all.columns(kQLora, kLatent),
                     key = all.columns(kQLora + kLatent, kRope);
    ReferenceSmallOps().rms_norm({}, latent, latent,
                                 TensorView(kv_norm.data(), DType::kF32, {kLatent}), kEps);
    TensorView heads(key.data, DType::kF32, {rows_, 1, kRope});
    heads.stride[0] = width;
    ReferenceSmallOps().rope({}, heads, positions, layer_.Rope(layer_.table.data()));
    want_cache_ = cache_;
    const KvLayerView cache = layer_.Cache(want_cache_.data(), num_blocks_);
    ReferenceSmallOps().kv_write({}, cache, latent, key,
                                 TensorView(slots_.data(), DType::kI64, {rows_}));
    std::vector<float> attended(static_cast<size_t>(rows_ * kHeads * kValue));
    MlaAttentionArgs args = Attention(q_view, cache);
    args.out = View(attended, rows_, kHeads * kValue);
    args.kv_b = layer_.kv_b.reference;
    args.uk_t = layer_.KeysAt(layer_.keys.data());
    ReferenceSmallOps().mla_attention({}, args);
    round(attended);
    linear(want_, View(attended, rows_, kHeads * kValue), layer_.o.reference);
  }

  // Rows and squares of the norm behind are those of the residual that came out.
  void ExpectNorm(const std::vector<float>& residual,
                  const std::vector<Bf16>& rows,
                  const std::vector<float>& squares) const {
    for (int64_t t = 0; t < rows_; ++t) {
      if (!Counts(t)) continue;
      double sum = 0, all = 0;
      for (int64_t c = 0; c < kHidden; ++c) {
        const auto at = static_cast<size_t>(t * kHidden + c);
        sum += double{residual[at]} * residual[at];
        const Bf16 want = ToBf16(residual[at] * layer_.next_norm[static_cast<size_t>(c)]);
        if (std::memcmp(&want, &rows[at], 2) == 0) continue;
        return Fail(std::string(step_.name) + ": another row of the norm");
      }
      for (int64_t i = 0; i < BegunNorm::kParts; ++i) {
        all += squares[static_cast<size_t>(t * BegunNorm::kParts + i)];
      }
      if (!(std::abs(all - sum) <= 1e-5 * sum)) Fail(std::string(step_.name) + ": other squares");
    }
  }
  void PutCached(size_t at, float value) {
    if (layer_.cache == KvForm::kFp8) {
      cache_[at] = static_cast<char>(ToE4M3(value));
    } else {
      const Bf16 bits = ToBf16(value);
      std::memcpy(&cache_[2 * at], &bits, 2);
    }
  }
  float Cached(const std::vector<char>& bytes, size_t at) const {
    if (layer_.cache == KvForm::kFp8) return FromE4M3(static_cast<uint8_t>(bytes[at]));
    Bf16 bits;
    std::memcpy(&bits, &bytes[2 * at], 2);
    return ToFloat(bits);
  }
  // Sums run in other orders: off by one unit in the last place, or two where a pair was rotated.
  // With e4m3 weights these are of a latent whose own sums of rounded rows are as exact.
  void ExpectCache(const std::vector<char>& got) const {
    const float unit = layer_.cache == KvForm::kFp8 ? 0x1p-3f : 0x1p-6f;
    for (size_t at = 0; at < got.size() / layer_.element_bytes(); ++at) {
      const float a = Cached(got, at), b = Cached(want_cache_, at);
      if (std::isnan(a) && std::isnan(b)) continue;
      if (std::abs(a - b) <= unit * std::abs(b) + 4e-3f) continue;
      return Fail(std::string(step_.name) + ": cache element " + std::to_string(at) + " is " +
                  std::to_string(a) + ", wanted " + std::to_string(b));
    }
  }

  const Layer& layer_;
  const Step step_;
  const int64_t rows_;
  Arena plan_memory_{CudaMemory()};
  std::vector<Bf16> x_;
  std::vector<char> cache_, want_cache_;
  std::vector<float> residual_, squares_, want_;
  std::vector<int64_t> slots_;
  std::vector<int32_t> positions_;
  std::vector<std::vector<int32_t>> tables_;
  std::vector<AttentionSequence> sequences_;
  int64_t num_blocks_ = 0;
};

}  // namespace baltoro::cuda::resident_test
