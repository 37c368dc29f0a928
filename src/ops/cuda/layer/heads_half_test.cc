// The layer of a draft model of Llama's type, with what it begins with, against the reference: as a
// prompt, then a few tokens behind it, then one that follows from the draft's own stream.

#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "device/cuda/cuda_memory.h"
#include "device/cuda/device_info.h"
#include "device/cuda/stream.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/layer/layer_state.h"
#include "support/gpu_test.h"

namespace baltoro::cuda {
namespace {

constexpr int64_t kHidden = 128, kVocab = 50, kPositions = 256;
constexpr int32_t kPrompt = 70;
// Of the residual's norm: pairs, queries, keys, values and results are rounded to bf16 by the way.
constexpr double kTolerance = 1e-2;

struct Dims {
  int32_t heads, key_heads, width;
};

// One of the two sides: where its data lies, and its step.
class Side {
 public:
  Side(const OpsTable& ops, const Memory& memory, const Memory& staging, void* rank)
      : ops_(ops),
        memory_(memory),
        scratch_(memory),
        staging_(staging),
        step_(memory),
        rank_(rank) {}

  // Drawn by its name, the same on both sides.
  TensorView Draw(const std::string& name,
                  DType type,
                  const std::vector<int64_t>& shape,
                  float deviation) {
    int64_t count = 1;
    for (const int64_t size : shape) count *= size;
    std::mt19937 random(static_cast<uint32_t>(std::hash<std::string>()(name)));
    std::normal_distribution<float> normal(0, deviation);
    std::vector<char> bytes(static_cast<size_t>(count * SizeOf(type)));
    for (int64_t i = 0; i < count; ++i) {
      const float value = normal(random);
      const Bf16 rounded = ToBf16(value);
      if (type == DType::kBf16) std::memcpy(&bytes[static_cast<size_t>(2 * i)], &rounded, 2);
      if (type == DType::kF32) std::memcpy(&bytes[static_cast<size_t>(4 * i)], &value, 4);
    }
    return Place(bytes.data(), type, shape);
  }
  template <typename T>
  TensorView Vector(DType type, const std::vector<T>& values) {
    return Place(values.data(), type, {static_cast<int64_t>(values.size())});
  }
  PackedMatrix Matrix(const std::string& name, int64_t n, int64_t k) {
    const float deviation = 1 / std::sqrt(static_cast<float>(k));
    return {.data = Draw(name, DType::kBf16, {n, k}, deviation).data, .n = n, .k = k};
  }
  TensorView Place(const void* from, DType type, const std::vector<int64_t>& shape) {
    TensorView view;
    view = shape.size() == 1 ? TensorView(nullptr, type, {shape[0]})
                             : TensorView(nullptr, type, {shape[0], shape[1]});
    const auto bytes = static_cast<size_t>(view.num_elements() * SizeOf(type));
    kept_.push_back(Buffer::Create(std::max<size_t>(bytes, 256), "test", memory_).value());
    BT_CHECK(memory_.CopyIn(kept_.back().data(), from, bytes).ok());
    view.data = kept_.back().data();
    return view;
  }
  std::vector<float> Floats(const TensorView& x) const {
    std::vector<float> values(static_cast<size_t>(x.num_elements()));
    BT_CHECK(ops_.wait(Context()).ok());
    BT_CHECK(memory_.CopyOut(values.data(), x.data, values.size() * sizeof(float)).ok());
    return values;
  }
  OpContext Context() const { return {.scratch = &scratch_, .staging = &staging_, .rank = rank_}; }

  // The residual behind the layer of tokens [first, first + count) of the only sequence.
  std::vector<float> Run(const Dims& dims, int32_t first, int32_t count, bool own_features) {
    const int64_t d = dims.width, half = dims.key_heads * d;
    const StepShape shape{.tokens = count,
                          .hidden = kHidden,
                          .heads = dims.heads,
                          .group_heads = dims.heads,
                          .value = dims.width,
                          .intermediate = kHidden,
                          .vocab = kVocab,
                          .feature_parts = 3,
                          .head_width = dims.width,
                          .key_heads = dims.key_heads};
    std::vector<int32_t> ids, positions, rows;
    std::vector<int64_t> slots;
    const std::vector<int32_t> blocks = {2, 0, 3};
    for (int32_t i = first; i < first + count; ++i) {
      ids.push_back(i * 7 % kVocab);
      positions.push_back(i);
      rows.push_back((i * 3 + 1) % kPrompt);
      slots.push_back(blocks[static_cast<size_t>(i / 64)] * 64 + i % 64);
    }
    const AttentionSequence sequence{.query_begin = 0,
                                     .query_count = count,
                                     .first_position = first,
                                     .absorbed_from = 0,
                                     .blocks = blocks,
                                     .block_positions = {},
                                     .key_count = first + count};
    std::vector<TensorView> parts;
    for (int i = 0; i < (own_features ? 1 : 3); ++i) {
      parts.push_back(Draw("part" + std::to_string(i), DType::kF32, {kPrompt, kHidden}, 1));
    }
    if (!cache_) cache_ = Draw("cache", DType::kBf16, {4 * 64, 2 * half}, 1);
    step_.Reset();
    const void* const plan = ops_.plan_attention(Context(), step_,
                                                 {.sequences = std::span(&sequence, 1),
                                                  .tokens = count,
                                                  .heads = dims.heads,
                                                  .head_width = dims.width,
                                                  .key_heads = dims.key_heads});
    const auto state = ops_.begin(Context(), step_, shape);
    const TensorView some = Vector(DType::kI32, rows);
    state->Embed(Draw("table", DType::kBf16, {kVocab, kHidden}, 1), Vector(DType::kI32, ids), 0);
    state->TakeFeatures({.parts = parts,
                         .rows = some,
                         .fc = own_features ? PackedMatrix() : Matrix("fc", kHidden, 3 * kHidden)});
    const DenseHalfArgs mlp{.norm = Draw("norm2", DType::kF32, {kHidden}, 1),
                            .eps = 1e-6f,
                            .gate_up = Matrix("gate_up", 2 * kHidden, kHidden),
                            .down = Matrix("down", kHidden, kHidden)};
    const int64_t angles = kPositions * d / 2;
    state->HeadsAttentionHalf(
        {.norm = Draw("norm", DType::kF32, {kHidden}, 1),
         .beside_norm = Draw("beside", DType::kF32, {kHidden}, 1),
         .eps = 1e-6f,
         .qkv = Matrix("qkv", (dims.heads + 2 * dims.key_heads) * d, 2 * kHidden),
         .o = Matrix("o", kHidden, dims.heads * d),
         .positions = Vector(DType::kI32, positions),
         .slots = Vector(DType::kI64, slots),
         .rope = {.cos = Draw("cos", DType::kF32, {angles}, 0.7f).as<float>(),
                  .sin = Draw("sin", DType::kF32, {angles}, 0.7f).as<float>(),
                  .positions = kPositions,
                  .dim = d},
         .cache = {.data = cache_.data, .num_blocks = 4, .latent = half, .rope = half},
         .sequences = std::span(&sequence, 1),
         .plan = plan,
         .scale = 1 / std::sqrt(static_cast<float>(d))},
        NextHalf::Of(mlp));
    state->DenseHalf(mlp, NextHalf());
    return Floats(state->Residual());
  }

 private:
  const OpsTable& ops_;
  const Memory& memory_;
  mutable Arena scratch_, staging_;
  Arena step_;
  void* rank_;
  std::vector<Buffer> kept_;
  TensorView cache_;
};

void ExpectNear(const std::string& what,
                const std::vector<float>& got,
                const std::vector<float>& want) {
  GPU_EXPECT_EQ(got.size(), want.size());
  double norm = 0, error = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    norm += double{want[i]} * want[i];
    error += (double{got[i]} - want[i]) * (double{got[i]} - want[i]);
  }
  const double relative = std::sqrt(error / norm);
  std::printf("  %s: error %.2e of norm %.2e\n", what.c_str(), relative, std::sqrt(norm));
  GPU_EXPECT(norm > 0 && relative <= kTolerance);
}

GPU_TEST(HeadsHalfTest, IsThatOfTheReference) {
  const auto rank = RankState::Create().value();
  OpsTable ops;
  ops.wait = Wait;
  ops.plan_attention = PlanAttention;
  ops.begin = [](const OpContext& context, Arena& arena, const StepShape& shape) {
    return std::make_unique<LayerState>(context, arena, shape);
  };
  for (const Dims& dims : {Dims{4, 4, 64}, Dims{4, 2, 64}, Dims{2, 2, 128}, Dims{9, 9, 128}}) {
    Side gpu(ops, CudaMemory(), PinnedMemory(), rank.get());
    Side reference(ReferenceOps(), HostMemory(), HostMemory(), nullptr);
    const std::string name = std::to_string(dims.heads) + " heads of " + std::to_string(dims.width);
    ExpectNear(name + ", prompt", gpu.Run(dims, 0, kPrompt, false),
               reference.Run(dims, 0, kPrompt, false));
    ExpectNear(name + ", behind it", gpu.Run(dims, kPrompt, 3, false),
               reference.Run(dims, kPrompt, 3, false));
    ExpectNear(name + ", its own", gpu.Run(dims, kPrompt + 3, 1, true),
               reference.Run(dims, kPrompt + 3, 1, true));
    ::baltoro::testing::StepDone();
  }
}

}  // namespace
}  // namespace baltoro::cuda

int main(int argc, char** argv) {
  return baltoro::testing::RunGpuCases(argc, argv, baltoro::UsableDeviceCount());
}
