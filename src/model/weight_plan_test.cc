// Matrices kept in their form against the same numbers decoded, and what is decoded where forms do
// not go together.

#include "model/weight_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <set>

#include "model/k2_model.h"
#include "ops/thread_pool.h"
#include "support/support.h"
#include "support/tiny_model.h"
#include "weights/quantize.h"

namespace baltoro {
namespace {

using ::testing::ElementsAre;
using ::testing::EndsWith;

// Widths that end inside of blocks, groups and panels.
K2Config TinyConfig() {
  K2Config config;
  config.hidden = 160;
  config.layers = 3;
  config.heads = 2;
  config.q_lora = 96;
  config.kv_lora = 64;
  config.nope = 32;
  config.rope_dim = 16;
  config.value = 32;
  config.intermediate = 288;
  config.moe_intermediate = 64;
  config.experts = 6;
  config.shared_experts = 2;
  config.dense_layers = 1;
  config.router.experts = 6;
  config.router.top_k = 3;
  config.router_has_bias = true;
  config.positions_max = 64;
  config.vocab = 70;
  return config;
}

// A source whose tensors with one of these endings are as if they were stored plain.
class PartlyDecoded final : public WeightSource {
 public:
  PartlyDecoded(std::unique_ptr<WeightSource> source, std::vector<std::string> endings)
      : source_(std::move(source)), endings_(std::move(endings)) {}

  std::optional<SourceTensor> Find(std::string_view name,
                                   const std::vector<int64_t>& wanted) override {
    return source_->Find(name, wanted);
  }
  Status Read(const SourceTensor& tensor, int64_t row, TensorView out) const override {
    return source_->Read(tensor, row, out);
  }
  Result<StoredMatrix> StoredAs(const SourceTensor& tensor) const override {
    for (const std::string& ending : endings_) {
      if (tensor.name.ends_with(ending)) return StoredMatrix{.form = PlainForm(tensor.dtype)};
    }
    return source_->StoredAs(tensor);
  }
  Status ReadStored(const SourceTensor& tensor,
                    int64_t row,
                    int64_t rows,
                    StoredBytes& out) const override {
    return source_->ReadStored(tensor, row, rows, out);
  }
  std::string description() const override { return "partly decoded"; }

 private:
  std::unique_ptr<WeightSource> source_;
  std::vector<std::string> endings_;
};

class WeightPlanTest : public ::testing::Test {
 protected:
  // The tiny model in a format, its tensors in three files.
  void Make(
      QuantFormat format,
      std::set<TensorRole> parts = ParseQuantParts("attention,dense,shared,experts").value()) {
    const std::string plain = dir_.path() + "/plain";
    std::filesystem::create_directory(plain);
    test::WriteCheckpoint(plain, test::TinyTensors(config_, true), {});
    std::ofstream(plain + "/config.json") << "{}";
    QuantizeOptions options;
    options.format = format;
    options.parts = std::move(parts);
    options.shard_bytes = 200'000;
    const auto summary = QuantizeCheckpoint(plain, dir_.path() + "/made", options);
    ASSERT_TRUE(summary.ok()) << summary.status().message();
  }
  PartlyDecoded Source(std::vector<std::string> decoded) {
    return {OpenWeights(dir_.path() + "/made", {}).value(), std::move(decoded)};
  }
  WeightPlan Plan(std::vector<std::string> decoded) {
    PartlyDecoded source = Source(std::move(decoded));
    return PlanWeights(config_, source, ops_, {}).value();
  }
  std::vector<float> Logits(std::vector<std::string> decoded) {
    PartlyDecoded source = Source(std::move(decoded));
    const auto model = K2Model::Load(config_, source, ops_, &pool_, {});
    EXPECT_TRUE(model.ok()) << model.status().message();
    const std::vector<int32_t> tokens = {3, 1, 4, 15, 9, 2, 6, 53, 5, 8};
    return test::TinyRunner(*model.value(), std::ssize(tokens)).Run(tokens, 6);
  }

  K2Config config_ = TinyConfig();
  const OpsTable& ops_ = CpuOps(DType::kF32);
  ThreadPool pool_{2};
  test::TempDir dir_;
};

class KeptFormTest : public WeightPlanTest, public ::testing::WithParamInterface<QuantFormat> {};

// Where activations are not quantised, a kept matrix says what the decoded one says.
TEST_P(KeptFormTest, AMatrixInItsFormIsAsGoodAsDecoded) {
  Make(GetParam());
  ASSERT_TRUE(Plan({}).notes.empty());
  const std::vector<float> decoded = Logits({"weight"});

  EXPECT_TRUE(test::Near(Logits({}), decoded, {.nmse = 1e-10, .max_abs = 1e-3}));
  EXPECT_TRUE(test::Near(Logits({"kv_a_proj_with_mqa.weight", "1.mlp.experts.2.down_proj.weight"}),
                         decoded, {.nmse = 1e-10, .max_abs = 1e-3}));
}

INSTANTIATE_TEST_SUITE_P(Formats,
                         KeptFormTest,
                         ::testing::Values(QuantFormat::kFp8, QuantFormat::kInt4));

TEST_F(WeightPlanTest, DownProjectionsThatDifferStayTwoMatrices) {
  Make(QuantFormat::kFp8);
  const WeightPlan whole = Plan({}), split = Plan({"layers.1.self_attn.q_a_proj.weight"});

  EXPECT_TRUE(split.notes.empty());
  EXPECT_EQ(whole.layers[1].qkv_a.matrix.n, 96 + 64 + 16);
  EXPECT_EQ(whole.layers[1].kv_a.matrix.n, 0);
  EXPECT_EQ(split.layers[1].qkv_a.matrix.n, 96);
  EXPECT_EQ(split.layers[1].qkv_a.matrix.form, WeightForm::kF32);
  EXPECT_EQ(split.layers[1].kv_a.matrix.n, 64 + 16);
  EXPECT_EQ(split.layers[1].kv_a.matrix.form, WeightForm::kFp8Block);
  EXPECT_EQ(split.layers[2].kv_a.matrix.n, 0);
}

TEST_F(WeightPlanTest, PartsThatDifferAreDecodedAndNamed) {
  Make(QuantFormat::kFp8);
  const WeightPlan plan = Plan({"layers.0.mlp.up_proj.weight", "experts.4.down_proj.weight"});

  EXPECT_EQ(plan.layers[0].mlp.gate_up.matrix.form, WeightForm::kF32);
  EXPECT_EQ(plan.layers[0].mlp.down.matrix.form, WeightForm::kFp8Block);
  EXPECT_EQ(plan.layers[1].experts.down.matrix.form, WeightForm::kF32);
  EXPECT_EQ(plan.layers[1].experts.gate_up.matrix.form, WeightForm::kFp8Block);
  const std::string why = " decoded to F32, as its parts are not stored alike";
  EXPECT_THAT(plan.notes, ElementsAre("model.layers.0.mlp.{gate,up}_proj:" + why,
                                      "model.layers.1.mlp.experts.*.down_proj:" + why,
                                      "model.layers.2.mlp.experts.*.down_proj:" + why));
}

TEST_F(WeightPlanTest, PartsThatWouldMeetInsideABlockOfRowsAreKeptApartOrDecoded) {
  config_.q_lora = 72;
  config_.moe_intermediate = 80;
  Make(QuantFormat::kFp8);
  const WeightPlan plan = Plan({});

  EXPECT_EQ(plan.layers[0].qkv_a.matrix.n, 72);
  EXPECT_EQ(plan.layers[0].kv_a.matrix.form, WeightForm::kFp8Block);
  EXPECT_EQ(plan.layers[1].experts.gate_up.matrix.form, WeightForm::kF32);
  EXPECT_EQ(plan.layers[1].experts.down.matrix.form, WeightForm::kFp8Block);
  EXPECT_THAT(plan.notes, ElementsAre(EndsWith("would begin inside a block of rows"),
                                      EndsWith("would begin inside a block of rows")));
  EXPECT_TRUE(test::Near(Logits({}), Logits({"weight"}), {.nmse = 1e-10, .max_abs = 1e-3}));
}

TEST_F(WeightPlanTest, OnlyProjectionsAreQuantisedAndKvBIsDecoded) {
  Make(QuantFormat::kFp8);
  const WeightPlan plan = Plan({});

  EXPECT_EQ(plan.lm_head.matrix.form, WeightForm::kF32);
  EXPECT_EQ(plan.layers[1].router.matrix.form, WeightForm::kF32);
  EXPECT_EQ(plan.layers[1].kv_b.matrix.form, WeightForm::kF32);
  EXPECT_EQ(plan.layers[1].uk_t.matrix.form, WeightForm::kF32);
  EXPECT_FALSE(plan.layers[1].o.matrix.quantise_input);
  PartlyDecoded source = Source({});
  const WeightPlan rounded =
      PlanWeights(config_, source, ops_, {.quantise_fp8_inputs = true}).value();
  EXPECT_TRUE(rounded.layers[1].o.matrix.quantise_input);
  EXPECT_FALSE(rounded.layers[1].kv_b.matrix.quantise_input);
}

// Bit for bit, where `quantize` made the same parts; kv_b is left out, as it is kept plain.
TEST_F(WeightPlanTest, AModelQuantisedAsItIsLoadedIsTheOneQuantisedBefore) {
  Make(QuantFormat::kFp8, {TensorRole::kAttention, TensorRole::kDense, TensorRole::kShared});
  const auto online = OpenWeights(dir_.path() + "/plain", {.online_quantization = "fp8"}).value();
  const WeightPlan plan = PlanWeights(config_, *online, ops_, {}).value();
  EXPECT_EQ(plan.layers[0].mlp.down.matrix.form, WeightForm::kFp8Block);
  EXPECT_EQ(plan.layers[1].qkv_a.matrix.form, WeightForm::kFp8Block);
  EXPECT_EQ(plan.layers[1].experts.down.matrix.form, WeightForm::kF32);
  const auto model = K2Model::Load(config_, *online, ops_, &pool_, {});
  ASSERT_TRUE(model.ok()) << model.status().message();
  const std::vector<int32_t> tokens = {3, 1, 4, 15, 9, 2, 6, 53, 5, 8};
  EXPECT_EQ(test::TinyRunner(*model.value(), std::ssize(tokens)).Run(tokens, 6), Logits({}));
}

// A layer of each form is tried, so that no later step needs more scratch.
TEST_F(WeightPlanTest, ScratchIsReservedForEveryForm) {
  Make(QuantFormat::kW4A8);
  PartlyDecoded source = Source({"layers.2.mlp.experts.1.down_proj.weight"});
  const auto model = K2Model::Load(config_, source, ops_, &pool_, {}).value();
  Arena arena;
  ASSERT_TRUE(model->ReserveScratch(PlainKvForm(DType::kF32), 32, 4, arena).ok());
  const int64_t scratch = model->scratch_bytes();

  test::TinyRunner(*model, 32).Run(std::vector<int32_t>(32, 7), INT32_MAX);

  EXPECT_EQ(model->scratch_bytes(), scratch);
}

}  // namespace
}  // namespace baltoro
