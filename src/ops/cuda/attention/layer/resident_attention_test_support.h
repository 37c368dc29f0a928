#pragma once

// For the test of the resident attention half: the matrices of a layer, what lies on the card for
// it, and the same as launches of their own.

#include <algorithm>
#include <numeric>

#include "device/cuda/device_info.h"
#include "ops/cuda/attention/attention_plan.h"
#include "ops/cuda/attention/layer/resident_attention.h"
#include "ops/cuda/cuda_fused.h"
#include "ops/cuda/linear/tiles/tiles.h"
#include "ops/cuda/linear/tiles/tiles_test_support.h"
#include "ops/cuda/norm_begun.h"

namespace baltoro::cuda::resident_test {

using namespace product_test;  // NOLINT: tests only

inline constexpr FormCase kBf16{"bf16", WeightForm::kBf16};
inline constexpr FormCase kFp8{"fp8 w8a8", WeightForm::kFp8Block, true};
inline constexpr int64_t kHidden = 7168, kQLora = 1536, kLatent = 512, kRope = 64, kNope = 128,
                         kValue = 128, kHeads = 8, kHead = kNope + kRope, kPositions = 34000,
                         kBlock = 64;
inline constexpr float kEps = 1e-5f, kScale = 0.072f;

inline std::vector<Bf16> Bits(const std::vector<float>& values) {
  std::vector<Bf16> bits;
  for (const float value : values) bits.push_back(ToBf16(value));
  return bits;
}
inline std::vector<float> Draw(uint32_t seed, int64_t count, float from, float to) {
  std::mt19937 random(seed);
  std::vector<float> values;
  for (int64_t i = 0; i < count; ++i) {
    values.push_back(from + static_cast<float>(random() % 4096) / 4096 * (to - from));
  }
  return values;
}
inline TensorView View(std::vector<float>& values, int64_t rows, int64_t width) {
  return TensorView(values.data(), DType::kF32, {rows, width});
}
inline TensorView OnCard(const Buffer& buffer, DType type, int64_t rows, int64_t width) {
  return TensorView(buffer.data(), type, {rows, width});
}

// The matrices of a layer, drawn once, and the form of its cache.
struct Layer {
  FormCase form;
  KvForm cache;
  Weights qkv_a{1, form, 1, kQLora + kLatent + kRope, kHidden};
  Weights q{2, form, 1, kHeads* kHead, kQLora};
  Weights kv_b{3, kBf16, 1, kHeads*(kNope + kValue), kLatent};
  Weights o{4, form, 1, kHidden, kHeads* kValue};
  std::vector<Bf16> keys;  // of kv_b, transposed
  Buffer keys_memory;
  std::vector<float> q_norm = Draw(5, kQLora, 0.5f, 1.5f), kv_norm = Draw(6, kLatent, 0.5f, 1.5f),
                     next_norm = Draw(7, kHidden, 0.5f, 1.5f), table;
  Buffer q_norm_memory = OnDevice(q_norm), kv_norm_memory = OnDevice(kv_norm),
         next_norm_memory = OnDevice(next_norm), table_memory;

  explicit Layer(const FormCase& of_weights = kBf16, KvForm of_cache = KvForm::kBf16)
      : form(of_weights), cache(of_cache) {
    const auto rows = FromDevice<Bf16>(kv_b.device.data,
                                       static_cast<size_t>(kHeads * (kNope + kValue) * kLatent));
    for (int64_t h = 0; h < kHeads; ++h) {
      for (int64_t r = 0; r < kLatent; ++r) {
        for (int64_t n = 0; n < kNope; ++n) {
          keys.push_back(rows[static_cast<size_t>((h * (kNope + kValue) + n) * kLatent + r)]);
        }
      }
    }
    keys_memory = OnDevice(keys);
    for (int64_t i = 0; i < kPositions * kRope; ++i) {
      const int64_t at = i % (kPositions * kRope / 2);
      const double angle = static_cast<double>(at / (kRope / 2)) *
                           std::pow(1e4, -static_cast<double>(at % (kRope / 2)) / (kRope / 2));
      table.push_back(static_cast<float>(i == at ? std::cos(angle) : std::sin(angle)));
    }
    table_memory = OnDevice(table);
  }
  // Rows come with their codes, and no norm is joined.
  bool coded() const { return form.quantise_input; }
  KvLayerView Cache(void* data, int64_t num_blocks) const {
    return {.data = data,
            .form = cache,
            .num_blocks = num_blocks,
            .latent = kLatent,
            .rope = kRope,
            .scale = cache == KvForm::kFp8 ? 0.9f : 1.0f};
  }
  int64_t element_bytes() const { return cache == KvForm::kFp8 ? 1 : 2; }
  PackedMatrix KeysAt(const void* data) const {
    return {.data = data,
            .form = WeightForm::kBf16,
            .n = kLatent,
            .k = kNope,
            .count = kHeads,
            .stride_bytes = kLatent * kNope * 2};
  }
  RopeTable Rope(const float* at) const {
    return {.cos = at, .sin = at + kPositions * kRope / 2, .positions = kPositions, .dim = kRope};
  }
};

struct Step {
  const char* name;
  std::vector<int32_t> keys;          // of each row, its own included; 0: padding
  bool before = true, behind = true;  // with the norms around it
  int32_t nan_row = -1;
  int64_t blocks_max = 0;    // as in AttentionPlanArgs
  int64_t cache_blocks = 0;  // at least
  uint32_t seed = 0;         // of the rows and of what is cached, not of where
};

template <typename T>
void Overwrite(const Buffer& to, const std::vector<T>& values) {
  BT_CHECK(cudaMemcpy(to.data(), values.data(), values.size() * sizeof(T),
                      cudaMemcpyHostToDevice) == cudaSuccess);
}

// What lies on the card for a layer.
struct LayerMemory {
  LayerMemory(const Layer& layer, int64_t rows_, int64_t blocks)
      : x(Nothing(rows_ * kHidden * 2)),
        squares(Nothing(rows_ * BegunNorm::kParts * 4)),
        residual(Nothing(rows_ * kHidden * 4)),
        rows(Nothing(rows_ * kHidden * 2)),
        new_squares(Nothing(rows_ * BegunNorm::kParts * 4)),
        delta(Nothing(rows_ * kHidden * 4)),
        inputs(Nothing(rows_ * (kQLora + kLatent + kRope) * 2)),
        q(Nothing(rows_ * kHeads * kHead * 2)),
        attention(Nothing(rows_ * kHeads * kValue * 2)),
        cache(Nothing(blocks * kBlock * (kLatent + kRope) * layer.element_bytes())),
        codes(Nothing(rows_ * kHidden)),
        code_scales(Nothing(rows_ * kHidden / 128 * 4)),
        slots(Nothing(rows_ * 8)),
        positions(Nothing(rows_ * 4)) {
    before = {.residual = OnCard(residual, DType::kF32, rows_, kHidden),
              .weight = TensorView(layer.next_norm_memory.data(), DType::kF32, {kHidden}),
              .rows = OnCard(x, DType::kBf16, rows_, kHidden),
              .squares = OnCard(squares, DType::kF32, rows_, BegunNorm::kParts),
              .eps = kEps};
    rounded = {.codes = codes.data(),
               .scales = static_cast<float*>(code_scales.data()),
               .width = kHidden,
               .of = layer.coded() ? x.data() : nullptr,
               .rows = rows_,
               .stride = kHidden};
    behind = before;
    behind.rows.data = rows.data();
    behind.squares.data = new_squares.data();
  }
  static Buffer Nothing(int64_t bytes) {
    return OnDevice(std::vector<char>(static_cast<size_t>(bytes)));
  }

  Buffer x, squares, residual, rows, new_squares, delta, inputs, q, attention, cache, codes,
      code_scales, slots, positions;
  RoundedRows rounded;  // x as a norm writes it for e4m3 weights
  BegunNorm before, behind;
};

// What a layer made.
struct Made {
  std::vector<float> residual, squares, delta;
  std::vector<Bf16> rows;
  std::vector<char> cache;
};

// As launches of their own.
inline void Apart(Context& context, const AttentionLayerArgs& args, RoundedRows* rounded) {
  OpContext ctx = context.get();
  const Beside with{.rounded = rounded};
  ctx.beside = &with;
  if (args.before != nullptr) {
    LinearFromNorm(ctx, args.inputs.qkv_a, *args.before, args.qkv_a);
  } else {
    Linear(ctx, args.inputs.qkv_a, args.x, args.qkv_a);
  }
  AttentionInputs(context.get(), args.inputs);
  MlaAttention(context.get(), args.attention);
  if (args.behind != nullptr) {
    LinearToNorm(context.get(), *args.behind, args.attention.out, args.o);
  } else {
    Linear(context.get(), args.out, args.attention.out, args.o);
  }
}

// In place of the plan before.
inline const AttentionPlan* Plan(Context& context,
                                 Arena& staging,
                                 Arena& arena,
                                 const AttentionPlanArgs& args) {
  staging.Reset();
  arena.Reset();
  OpContext planning = context.get();
  planning.staging = &staging;
  return static_cast<const AttentionPlan*>(PlanAttention(planning, arena, args));
}

}  // namespace baltoro::cuda::resident_test
