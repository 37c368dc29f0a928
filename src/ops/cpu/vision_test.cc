// Operations of a picture encoder against the plain loops of the reference.

#include "ops/vision.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <utility>

#include "ops/cpu/test_tensors.h"
#include "support/support.h"

namespace baltoro::cpu::test {
namespace {

using baltoro::test::Near;

struct Dims {
  int64_t hidden, heads, intermediate, patch, projector, text;
};
constexpr Dims kDims[] = {
    {144, 2, 200, 14, 96, 64},  // the head size of the family
    {96, 4, 130, 2, 70, 33},    // heads of 24, widths that are no multiples of 32
};

// Pictures of mixed sizes: the smallest, one row of tokens, the table's own size, several frames,
// and one whose attention takes several blocks of keys and chunks of queries.
const std::vector<PictureGrid> kGrids = {{1, 2, 2}, {1, 2, 30},  {1, 8, 8},
                                         {3, 4, 6}, {1, 26, 22}, {4, 2, 4}};

int64_t Patches(std::span<const PictureGrid> grids) {
  int64_t count = 0;
  for (const PictureGrid& grid : grids) count += grid.patches();
  return count;
}

// A matrix with its bias, for both sides.
struct Matrix {
  Weights weights;
  Tensor bias;
  Matrix(uint32_t seed, DType type, int64_t n, int64_t k)
      : weights(seed, type, 1, n, k, 1 / std::sqrt(static_cast<float>(k))),
        bias(Random(seed + 1, DType::kF32, {n}, 0.5f)) {}
  BiasedMatrix Get(bool reference) const {
    return {.matrix = reference ? weights.reference : weights.packed, .bias = bias.view};
  }
};

struct Norm {
  Tensor weight, bias;
  Norm(uint32_t seed, int64_t width)
      : weight(Random(seed, DType::kF32, {width}, 1)),
        bias(Random(seed + 1, DType::kF32, {width}, 0.5f)) {}
  LayerNormWeights Get() const { return {.weight = weight.view, .bias = bias.view, .eps = 1e-5f}; }
};

class Model {
 public:
  Model(const Dims& dims, DType stored)
      : d_(dims),
        projection_(1, stored, d_.hidden, Pixels()),
        positions_(Random(3, DType::kF32, {8, 6, d_.hidden}, 1)),
        times_(Random(4, DType::kF32, {4, d_.hidden}, 1)),
        attention_norm_(5, d_.hidden),
        mlp_norm_(7, d_.hidden),
        norm_(9, d_.hidden),
        merge_norm_(11, d_.hidden),
        qkv_(13, stored, 3 * d_.hidden, d_.hidden),
        o_(15, stored, d_.hidden, d_.hidden),
        up_(17, stored, d_.intermediate, d_.hidden),
        down_(19, stored, d_.hidden, d_.intermediate),
        first_(21, stored, d_.projector, 4 * d_.hidden),
        second_(23, stored, d_.text, d_.projector),
        cos_(Random(25, DType::kF32, {32, d_.hidden / d_.heads / 4}, 1)),
        sin_(Random(26, DType::kF32, {32, d_.hidden / d_.heads / 4}, 1)) {}

  int64_t Pixels() const { return 3 * d_.patch * d_.patch; }

  // Bytes from a hash of the patch and the place in it.
  std::vector<uint8_t> MakePixels(int64_t first, int64_t count) const {
    std::vector<uint8_t> pixels;
    for (int64_t i = first * Pixels(); i < (first + count) * Pixels(); ++i) {
      pixels.push_back(static_cast<uint8_t>(static_cast<uint64_t>(i) * 0x9E3779B97F4A7C15u >> 56));
    }
    return pixels;
  }

  std::vector<float> Embed(const VisionOps& ops,
                           const OpContext& ctx,
                           int64_t first,
                           std::span<const PictureGrid> grids) const {
    std::vector<uint8_t> pixels = MakePixels(first, Patches(grids));
    const Tensor x(DType::kF32, {Patches(grids), d_.hidden});
    ops.embed(ctx, {.x = x.view,
                    .pixels = TensorView(pixels.data(), DType::kU8, {Patches(grids), Pixels()}),
                    .scale = {1 / 127.5f, 1 / 100.0f, 1 / 50.0f},
                    .shift = {-1, -0.75f, -2},
                    .projection = projection_.Get(IsReference(ops)),
                    .positions = positions_.view,
                    .times = times_.view,
                    .grids = grids});
    return x.values();
  }
  std::vector<float> Block(const VisionOps& ops,
                           const OpContext& ctx,
                           int64_t first,
                           std::span<const PictureGrid> grids) const {
    const Tensor x = Stream(first, grids);
    ops.block(ctx, BlockArgs(ops, x, grids));
    return x.values();
  }
  // The halves, of a rank that has all heads but is not the one that adds.
  std::vector<float> AttentionPart(const VisionOps& ops,
                                   const OpContext& ctx,
                                   int64_t first,
                                   std::span<const PictureGrid> grids) const {
    const Tensor x = Stream(first, grids);
    VisionBlockArgs args = BlockArgs(ops, x, grids);
    args.replaces = true;
    ops.attention_part(ctx, args);
    return x.values();
  }
  std::vector<float> MlpPart(const VisionOps& ops,
                             const OpContext& ctx,
                             int64_t first,
                             std::span<const PictureGrid> grids) const {
    const Tensor x = Stream(first, grids);
    VisionBlockArgs args = BlockArgs(ops, x, grids);
    args.replaces = true;
    ops.mlp_part(ctx, args);
    return x.values();
  }
  std::vector<float> BothParts(const VisionOps& ops,
                               Context& context,
                               std::span<const PictureGrid> grids) const {
    const Tensor x = Stream(0, grids);
    const VisionBlockArgs args = BlockArgs(ops, x, grids);
    ops.attention_part(context.get(), args);
    context.scratch.Reset();
    ops.mlp_part(context.get(), args);
    return x.values();
  }
  std::vector<float> Project(const VisionOps& ops,
                             const OpContext& ctx,
                             int64_t first,
                             std::span<const PictureGrid> grids) const {
    const Tensor x = Stream(first, grids);
    int64_t tokens = 0;
    for (const PictureGrid& grid : grids) tokens += grid.rows / 2 * (grid.columns / 2);
    const Tensor out(DType::kF32, {tokens, d_.text});
    const bool reference = IsReference(ops);
    ops.project(ctx, {.out = out.view,
                      .x = x.view,
                      .norm = norm_.Get(),
                      .merge_norm = merge_norm_.Get(),
                      .first = first_.Get(reference),
                      .second = second_.Get(reference),
                      .grids = grids});
    return out.values();
  }
  VisionWidths Widths() const {
    return {.hidden = d_.hidden,
            .intermediate = d_.intermediate,
            .heads = static_cast<int32_t>(d_.heads),
            .pixels = Pixels(),
            .merged = 4 * d_.hidden,
            .projector = d_.projector,
            .text_hidden = d_.text};
  }

 private:
  static bool IsReference(const VisionOps& ops) { return &ops == &ReferenceVisionOps(); }
  VisionBlockArgs BlockArgs(const VisionOps& ops,
                            const Tensor& x,
                            std::span<const PictureGrid> grids) const {
    const bool reference = IsReference(ops);
    return {.x = x.view,
            .attention_norm = attention_norm_.Get(),
            .mlp_norm = mlp_norm_.Get(),
            .qkv = qkv_.Get(reference),
            .o = o_.Get(reference),
            .up = up_.Get(reference),
            .down = down_.Get(reference),
            .cos = cos_.view,
            .sin = sin_.view,
            .grids = grids,
            .heads = static_cast<int32_t>(d_.heads)};
  }
  // A residual stream of patches [first, ...) of a longer one.
  Tensor Stream(int64_t first, std::span<const PictureGrid> grids) const {
    const Tensor all = Random(31, DType::kF32, {Patches(kGrids), d_.hidden}, 1);
    Tensor x(DType::kF32, {Patches(grids), d_.hidden});
    std::memcpy(x.view.data, all.view.row<float>(first),
                static_cast<size_t>(x.view.num_elements()) * sizeof(float));
    return x;
  }

  Dims d_;
  Matrix projection_;
  Tensor positions_, times_;
  Norm attention_norm_, mlp_norm_, norm_, merge_norm_;
  Matrix qkv_, o_, up_, down_, first_, second_;
  Tensor cos_, sin_;
};

using Operation = std::vector<float> (Model::*)(const VisionOps&,
                                                const OpContext&,
                                                int64_t,
                                                std::span<const PictureGrid>) const;
constexpr std::pair<const char*, Operation> kOperations[] = {
    {"embed", &Model::Embed},
    {"block", &Model::Block},
    {"attention_part", &Model::AttentionPart},
    {"mlp_part", &Model::MlpPart},
    {"project", &Model::Project}};

TEST(VisionOpsTest, AgreeWithTheReference) {
  for (const Dims& dims : kDims) {
    for (const auto& [act, stored] : kTypes) {
      const Model model(dims, stored);
      for (const auto& [name, operation] : kOperations) {
        const auto want = (model.*operation)(ReferenceVisionOps(), {}, 0, kGrids);
        for (const Isa isa : SupportedIsas()) {
          const ForcedIsa forced(isa);
          Context context(3);
          EXPECT_TRUE(Near((model.*operation)(CpuVisionOps(act), context.get(), 0, kGrids), want,
                           act == DType::kF32 ? baltoro::test::kF32 : baltoro::test::kBf16))
              << name << ' ' << NameOf(isa) << ' ' << dims.hidden << ' ' << NameOf(act) << ' '
              << NameOf(stored);
        }
      }
    }
  }
}

TEST(VisionOpsTest, ThePartsOfAllHeadsAreTheBlock) {
  for (const Dims& dims : kDims) {
    for (const DType act : {DType::kBf16, DType::kF32}) {
      const Model model(dims, act);
      Context context(3), other(3);
      EXPECT_EQ(model.BothParts(CpuVisionOps(act), context, kGrids),
                model.Block(CpuVisionOps(act), other.get(), 0, kGrids));
    }
  }
}

TEST(VisionOpsTest, APictureDependsOnNoOther) {
  for (const DType act : {DType::kBf16, DType::kF32}) {
    const Model model(kDims[0], act);
    for (const auto& [name, operation] : kOperations) {
      for (const Isa isa : SupportedIsas()) {
        const ForcedIsa forced(isa);
        Context many(4), one(1);
        const auto all = (model.*operation)(CpuVisionOps(act), many.get(), 0, kGrids);
        int64_t first = 0, done = 0;
        for (const PictureGrid& grid : kGrids) {
          const auto alone =
              (model.*operation)(CpuVisionOps(act), one.get(), first, std::span(&grid, 1));
          EXPECT_EQ(std::memcmp(alone.data(), all.data() + done, alone.size() * sizeof(float)), 0)
              << name << ' ' << NameOf(isa) << ' ' << first;
          first += grid.patches();
          done += std::ssize(alone);
        }
        EXPECT_EQ(done, std::ssize(all));
      }
    }
  }
}

TEST(VisionOpsTest, NothingOfNothing) {
  const Model model(kDims[0], DType::kBf16);
  for (const VisionOps* ops : {&ReferenceVisionOps(), &CpuVisionOps(DType::kBf16)}) {
    Context context(2);
    for (const auto& [name, operation] : kOperations) {
      EXPECT_TRUE((model.*operation)(*ops, context.get(), 0, {}).empty()) << name;
    }
  }
}

TEST(VisionOpsTest, ScratchIsWhatWasReckoned) {
  for (const Dims& dims : kDims) {
    for (const DType act : {DType::kBf16, DType::kF32}) {
      const Model model(dims, act);
      for (const int threads : {1, 3}) {
        size_t most = 0;
        for (const auto& [name, operation] : kOperations) {
          Context context(threads);
          (model.*operation)(CpuVisionOps(act), context.get(), 0, kGrids);
          most = std::max(most, context.scratch.TakePeak());
        }
        const auto reckoned = static_cast<size_t>(
            CpuVisionOps(act).scratch_bytes(model.Widths(), Patches(kGrids), threads));
        EXPECT_LE(most, reckoned);
        EXPECT_GE(static_cast<double>(most), 0.98 * static_cast<double>(reckoned));
      }
    }
  }
}

}  // namespace
}  // namespace baltoro::cpu::test
