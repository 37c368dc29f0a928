#include "vision/vision_encoder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <memory>

#include "support/support.h"
#include "support/tiny_encoder.h"
#include "support/tiny_model.h"
#include "weights/checkpoint_source.h"

namespace baltoro {
namespace {

using ::testing::HasSubstr;

// Of patches of 4 pixels, which are read faster.
VisionConfig SmallVision() {
  VisionConfig config = test::TinyEncoder();
  config.patch = 4;
  config.table_rows = config.table_columns = 4;
  config.rules.side_patches_max = 32;
  return config;
}

class VisionEncoderTest : public ::testing::Test {
 protected:
  static constexpr int64_t kPatchesMax = 64;

  std::unique_ptr<VisionEncoder> Make(const OpsTable& ops = CpuOps(DType::kBf16)) {
    auto made = VisionEncoder::Create(config_, source_, ops, &pool_, kPatchesMax);
    EXPECT_TRUE(made.ok()) << made.status().message();
    return std::move(made).value();
  }
  OpContext Context() { return {.pool = &pool_, .scratch = &scratch_}; }

  // A picture of even grey.
  Picture Grey(PictureGrid grid, uint8_t value) {
    auto& pixels = pixels_.emplace_back(
        std::make_unique<std::vector<uint8_t>>(grid.patches() * config_.pixels(), value));
    return {.grid = grid, .pixels = *pixels};
  }
  int64_t Tokens(std::span<const Picture> pictures) const {
    int64_t tokens = 0;
    for (const Picture& picture : pictures) tokens += config_.tokens(picture.grid);
    return tokens;
  }
  std::vector<float> Encode(VisionEncoder& encoder,
                            std::span<const Picture> pictures,
                            int32_t layers) {
    std::vector<float> rows(static_cast<size_t>(Tokens(pictures) * config_.text_hidden), -1);
    const TensorView out(rows.data(), DType::kF32, {Tokens(pictures), config_.text_hidden});
    auto begun = encoder.Begin(pictures, out);
    EXPECT_TRUE(begun.ok()) << begun.status().message();
    VisionBatch batch = std::move(begun).value();
    while (!batch.done()) batch.Advance(Context(), layers);
    return rows;
  }
  std::string Refusal(VisionEncoder& encoder, std::span<const Picture> pictures) {
    const auto begun = encoder.Begin(pictures, TensorView());
    return begun.ok() ? "accepted" : begun.status().message();
  }

  VisionConfig config_ = SmallVision();
  test::TinySource source_{/*has_bias=*/true};
  ThreadPool pool_{2};
  Arena scratch_;
  std::vector<std::unique_ptr<std::vector<uint8_t>>> pixels_;
};

TEST_F(VisionEncoderTest, GroupsOfLayersGiveTheSameBits) {
  const auto encoder = Make();
  const Picture pictures[] = {Grey({1, 4, 6}, 90), Grey({2, 2, 2}, 200)};
  const std::vector<float> whole = Encode(*encoder, pictures, 100);
  for (const int32_t layers : {1, 2, 3}) {
    EXPECT_EQ(Encode(*encoder, pictures, layers), whole) << layers;
  }
}

TEST_F(VisionEncoderTest, LayersAreCountedWithTheProjector) {
  const auto encoder = Make();
  const Picture picture = Grey({1, 2, 2}, 90);
  std::vector<float> row(static_cast<size_t>(config_.text_hidden));
  VisionBatch batch =
      encoder->Begin({&picture, 1}, TensorView(row.data(), DType::kF32, {1, config_.text_hidden}))
          .value();
  EXPECT_EQ(batch.layers_left(), 4);
  batch.Advance(Context(), 3);
  EXPECT_EQ(batch.layers_left(), 1);
  batch.Advance(Context(), 3);
  EXPECT_TRUE(batch.done());
}

TEST_F(VisionEncoderTest, ABatchLeavesNothingForTheNext) {
  const auto encoder = Make();
  const Picture pictures[] = {Grey({1, 4, 6}, 90), Grey({4, 2, 4}, 10)};
  const std::vector<float> first = Encode(*encoder, {pictures, 1}, 1);
  Encode(*encoder, {pictures + 1, 1}, 1);
  EXPECT_EQ(Encode(*encoder, {pictures, 1}, 1), first);
}

TEST_F(VisionEncoderTest, ABatchThatIsOverCannotGoOn) {
  const auto encoder = Make();
  const Picture picture = Grey({1, 2, 2}, 90);
  std::vector<float> row(static_cast<size_t>(config_.text_hidden));
  const TensorView out(row.data(), DType::kF32, {1, config_.text_hidden});
  VisionBatch first = encoder->Begin({&picture, 1}, out).value();
  const VisionBatch second = encoder->Begin({&picture, 1}, out).value();
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(first.Advance(Context(), 1), "check failed");
}

TEST_F(VisionEncoderTest, NoPicturesAreEncodedAtOnce) {
  const auto encoder = Make();
  EXPECT_TRUE(Encode(*encoder, {}, 1).empty());
}

TEST_F(VisionEncoderTest, PicturesThatDoNotFitAreRefused) {
  const auto encoder = Make();
  const Picture fits = Grey({1, 2, 2}, 0);
  const auto refusal = [&](PictureGrid grid) {
    const Picture pictures[] = {fits, Grey(grid, 0)};
    return Refusal(*encoder, pictures);
  };
  EXPECT_THAT(refusal({1, 3, 2}), HasSubstr("picture 1 is 1 x 3 x 2 patches; sides must be"));
  EXPECT_THAT(refusal({5, 2, 2}), HasSubstr("at most 4 frames are one item"));
  EXPECT_THAT(refusal({1, 2, 34}), HasSubstr("a side may have 32 at most"));
  EXPECT_THAT(refusal({0, 2, 2}), HasSubstr("each must be positive"));
  EXPECT_THAT(refusal({1, 8, 8}), HasSubstr("2 pictures have 68 patches together; this encoder "
                                            "takes 64 at once"));
  Picture cut = fits;
  cut.pixels = cut.pixels.first(100);
  EXPECT_THAT(Refusal(*encoder, {&cut, 1}), HasSubstr("these have 192 bytes, but 100 were given"));
}

TEST_F(VisionEncoderTest, MemoryIsWhatWasPlanned) {
  for (const DType act : {DType::kBf16, DType::kF32}) {
    const VisionBytes planned =
        VisionEncoder::PlanBytes(config_, CpuOps(act), kPatchesMax, pool_.threads());
    EXPECT_EQ(
        planned.weights,
        static_cast<int64_t>(
            LoadVisionWeights(config_, source_, CpuOps(act), nullptr).value().memory.bytes()));
    EXPECT_EQ(planned.batch, kPatchesMax * (96 * 4 + 48) + 4 * (4 * 96 + 2 * 32 * 6));
    const auto encoder = Make(CpuOps(act));
    scratch_.TakePeak();
    const Picture full = Grey({1, 8, 8}, 50);
    Encode(*encoder, {&full, 1}, 1);
    const auto peak = static_cast<double>(scratch_.TakePeak());
    EXPECT_LE(peak, static_cast<double>(planned.scratch));
    EXPECT_GE(peak, 0.9 * static_cast<double>(planned.scratch));
  }
}

// A checkpoint as releases have it, and the numbers it stands for drawn directly: the same rows.
TEST_F(VisionEncoderTest, ACheckpointIsReadByTheNamesOfTheReleases) {
  const auto encoder = Make();
  const Picture picture = Grey({1, 4, 4}, 77);
  const std::vector<float> want = Encode(*encoder, {&picture, 1}, 1);
  const test::TempDir dir;
  std::vector<test::FileTensor> tensors;
  for (const test::TinySource::Made& made : source_.made()) {
    tensors.push_back({made.tensor.name, made.tensor.dtype, made.tensor.shape, made.bytes});
  }
  test::WriteCheckpoint(dir.path(), tensors, {});

  const auto source = CheckpointSource::Open(dir.path()).value();
  const auto read = VisionEncoder::Create(config_, *source, CpuOps(DType::kBf16), nullptr, 64);
  ASSERT_TRUE(read.ok()) << read.status().message();
  EXPECT_EQ(Encode(*read.value(), {&picture, 1}, 1), want);
}

TEST_F(VisionEncoderTest, TensorsThatDoNotFitAreNamed) {
  Make();
  std::vector<test::FileTensor> tensors;
  for (const test::TinySource::Made& made : source_.made()) {
    tensors.push_back({made.tensor.name, made.tensor.dtype, made.tensor.shape, made.bytes});
  }
  const auto refusal = [&](const std::string& name, const auto& change) {
    const test::TempDir dir;
    std::vector<test::FileTensor> changed;
    for (test::FileTensor tensor : tensors) {
      if (tensor.name != name || change(tensor)) changed.push_back(std::move(tensor));
    }
    test::WriteCheckpoint(dir.path(), changed, {});
    const auto source = CheckpointSource::Open(dir.path()).value();
    const auto read = LoadVisionWeights(config_, *source, CpuOps(DType::kBf16), nullptr);
    return read.ok() ? std::string("accepted") : read.status().message();
  };
  EXPECT_THAT(
      refusal("vision_tower.encoder.blocks.1.wqkv.bias", [](test::FileTensor&) { return false; }),
      HasSubstr("tensor vision_tower.encoder.blocks.1.wqkv.bias is missing"));
  EXPECT_THAT(refusal("mm_projector.proj.2.weight",
                      [](test::FileTensor& tensor) {
                        tensor.shape = {96, 256};
                        return true;
                      }),
              HasSubstr("mm_projector.proj.2.weight has shape [96, 256]; config.json makes it "
                        "[64, 384]"));
  EXPECT_THAT(refusal("mm_projector.pre_norm.weight",
                      [](test::FileTensor& tensor) {
                        tensor.dtype = DType::kF16;
                        return true;
                      }),
              HasSubstr("mm_projector.pre_norm.weight is F16; it may be BF16 or F32"));
}

TEST_F(VisionEncoderTest, ABackendWithoutPicturesIsRefused) {
  OpsTable ops = CpuOps(DType::kBf16);
  ops.vision = nullptr;
  const auto made = VisionEncoder::Create(config_, source_, ops, nullptr, 64);
  EXPECT_THAT(made.status().message(), HasSubstr("has no operations for pictures"));
}

}  // namespace
}  // namespace baltoro
