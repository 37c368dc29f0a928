// Checkpoints on disk, in all the shapes that releases have, and what is refused.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "ops/thread_pool.h"
#include "support/far_memory.h"
#include "support/support.h"
#include "support/tiny_model.h"
#include "weights/checkpoint.h"
#include "weights/dummy_source.h"

namespace baltoro {
namespace {

using ::testing::HasSubstr;

K2Config TinyConfig() {
  K2Config config;
  config.hidden = 96;
  config.layers = 2;
  config.heads = 2;
  config.q_lora = 40;  // not a multiple of 32: the packed q_a and kv_a meet inside a panel
  config.kv_lora = 64;
  config.nope = 32;
  config.rope_dim = 16;
  config.value = 24;
  config.intermediate = 80;
  config.moe_intermediate = 48;
  config.experts = 8;
  config.shared_experts = 1;
  config.dense_layers = 1;
  config.router.experts = 8;
  config.router.top_k = 2;
  config.router_has_bias = true;
  config.positions_max = 256;
  config.vocab = 70;
  return config;
}

const std::vector<int32_t> kTokens = {3, 1, 4, 15, 9, 2, 6, 53};

std::vector<float> LogitsOf(K2Model& model) {
  return test::TinyRunner(model, std::ssize(kTokens)).Run(kTokens, INT32_MAX);
}

class LoadTest : public ::testing::Test {
 protected:
  std::vector<float> FromMemory() {
    test::TinySource source(true);
    return LogitsOf(*K2Model::Load(config_, source, ops_, &pool_, {}).value());
  }
  Result<std::unique_ptr<K2Model>> FromDisk() {
    return K2Model::Load(config_, dir_.path(), ops_, &pool_, {});
  }
  std::string Refusal() {
    const auto model = FromDisk();
    return model.ok() ? "loaded" : model.status().message();
  }
  std::vector<test::FileTensor> Tensors() { return test::TinyTensors(config_, true); }
  static test::FileTensor& Named(std::vector<test::FileTensor>& tensors, const std::string& name) {
    for (test::FileTensor& tensor : tensors) {
      if (tensor.name == name) return tensor;
    }
    ADD_FAILURE() << name;
    return tensors[0];
  }

  K2Config config_ = TinyConfig();
  const OpsTable& ops_ = CpuOps(DType::kBf16);
  ThreadPool pool_{2};
  test::TempDir dir_;
};

TEST_F(LoadTest, AFileGivesWhatItsTensorsSay) {
  test::WriteCheckpoint(dir_.path(), Tensors(), {});

  const auto model = FromDisk();

  ASSERT_TRUE(model.ok()) << model.status().message();
  EXPECT_EQ(LogitsOf(*model.value()), FromMemory());
}

TEST_F(LoadTest, ModulesMayBeSpreadOverShards) {
  test::WriteCheckpoint(dir_.path(), Tensors(), {.prefix = "", .drop_model = false, .shards = 5});

  const auto model = FromDisk();

  ASSERT_TRUE(model.ok()) << model.status().message();
  EXPECT_EQ(LogitsOf(*model.value()), FromMemory());
}

TEST_F(LoadTest, TheOuterPrefixIsAcceptedWithAndWithoutModel) {
  for (const bool drop : {false, true}) {
    test::WriteCheckpoint(dir_.path(), Tensors(),
                          {.prefix = "language_model.", .drop_model = drop, .shards = 0});

    const auto model = FromDisk();

    ASSERT_TRUE(model.ok()) << model.status().message();
    EXPECT_EQ(LogitsOf(*model.value()), FromMemory());
  }
}

TEST_F(LoadTest, Float32TensorsAreRoundedWhenWeightsAreBf16) {
  std::vector<test::FileTensor> tensors = Tensors();
  for (test::FileTensor& tensor : tensors) {
    if (tensor.dtype != DType::kBf16) continue;
    std::string wide;
    for (size_t i = 0; i < tensor.bytes.size(); i += 2) {
      wide += std::string(2, '\0') + tensor.bytes.substr(i, 2);  // bf16 is the upper half
    }
    tensor.dtype = DType::kF32;
    tensor.bytes = wide;
  }
  test::WriteCheckpoint(dir_.path(), tensors, {});

  const auto model = FromDisk();

  ASSERT_TRUE(model.ok()) << model.status().message();
  EXPECT_EQ(LogitsOf(*model.value()), FromMemory());
}

TEST_F(LoadTest, WhatIsNeverUsedIsIgnoredAndTheRestIsCounted) {
  std::vector<test::FileTensor> tensors = Tensors();
  for (const char* name :
       {"model.layers.0.self_attn.rotary_emb.inv_freq", "model.layers.2.self_attn.o_proj.weight",
        "model.layers.1.self_attn.k_scale", "vision_tower.blocks.0.x", "vision_tower.blocks.1.x",
        "model.layers.1.mlp.odd"}) {
    tensors.push_back({name, DType::kF32, {1}, std::string(4, '\0')});
  }
  test::WriteCheckpoint(dir_.path(), tensors, {});
  auto checkpoint = Checkpoint::Open(dir_.path());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().message();

  ASSERT_TRUE(K2Model::Load(config_, checkpoint.value(), ops_, &pool_, {}).ok());

  const std::map<std::string, int64_t> expected = {{"vision_tower.blocks.*.x", 2},
                                                   {"model.layers.*.mlp.odd", 1}};
  EXPECT_EQ(checkpoint.value().UnusedKinds(config_.layers), expected);
}

TEST_F(LoadTest, AMissingTensorIsNamed) {
  std::vector<test::FileTensor> tensors = Tensors();
  std::erase_if(tensors, [](const auto& t) {
    return t.name == "model.layers.1.mlp.experts.5.up_proj.weight";
  });
  test::WriteCheckpoint(dir_.path(), tensors, {});

  EXPECT_THAT(
      Refusal(),
      HasSubstr(dir_.path() + ": tensor model.layers.1.mlp.experts.5.up_proj.weight is missing"));
}

TEST_F(LoadTest, AMisshapenTensorIsNamedWithBothShapes) {
  std::vector<test::FileTensor> tensors = Tensors();
  Named(tensors, "model.layers.0.self_attn.o_proj.weight").shape = {48, 96};
  test::WriteCheckpoint(dir_.path(), tensors, {});

  EXPECT_THAT(Refusal(),
              HasSubstr("o_proj.weight has shape [48, 96]; config.json makes it [96, 48]"));
}

TEST_F(LoadTest, AQuantisedTensorWithoutItsScaleIsRefusedByFileAndName) {
  std::vector<test::FileTensor> tensors = Tensors();
  test::FileTensor& tensor = Named(tensors, "model.layers.0.self_attn.o_proj.weight");
  tensor.dtype = DType::kF8E4M3;
  tensor.bytes.resize(tensor.bytes.size() / 2);
  test::WriteCheckpoint(dir_.path(), tensors, {});

  EXPECT_EQ(Refusal(), dir_.path() +
                           "/model.safetensors: model.layers.0.self_attn.o_proj: weight_scale_inv "
                           "is missing");
}

TEST_F(LoadTest, ATypeThatIsNoWeightIsRefused) {
  std::vector<test::FileTensor> tensors = Tensors();
  Named(tensors, "model.layers.0.input_layernorm.weight").dtype = DType::kF16;
  test::WriteCheckpoint(dir_.path(), tensors, {});

  EXPECT_THAT(Refusal(), HasSubstr("input_layernorm.weight is F16; it may be BF16 or F32"));
}

TEST_F(LoadTest, AnEmptyFolderIsRefused) {
  EXPECT_THAT(Refusal(), HasSubstr("no weights: neither model.safetensors.index.json nor"));
}

TEST_F(LoadTest, DummyWeightsAreTheSameForASeedAndFinite) {
  const auto logits = [&](uint64_t seed) {
    K2LoadOptions options;
    options.choice.format = LoadFormat::kDummy;
    options.choice.seed = seed;
    return LogitsOf(*K2Model::Load(config_, "", ops_, &pool_, options).value());
  };

  const std::vector<float> first = logits(1);

  EXPECT_EQ(first, logits(1));
  EXPECT_NE(first, logits(2));
  double squares = 0;
  for (const float x : first) squares += double{x} * double{x};
  EXPECT_NEAR(std::sqrt(squares / static_cast<double>(first.size())), 1, 0.5);
}

// By the way that leads to a GPU: through host memory, rows or whole matrices at a time.
TEST_F(LoadTest, MemoryApartGetsTheSameBytes) {
  test::FarMemory far;
  OpsTable apart = ReferenceOps();
  apart.memory = &far;
  for (const char* folder : {"", "fp8", "int4", "ascend"}) {
    SCOPED_TRACE(folder);
    std::string dir = std::string("tests/golden/formats/") + folder;
    K2Config config = config_;
    if (*folder == 0) {
      dir = dir_.path();
      test::WriteCheckpoint(dir, Tensors(), {});
    } else {
      config = K2Config::Read(dir).value();
    }
    const auto near = K2Model::Load(config, dir, ReferenceOps(), nullptr, {});
    ASSERT_TRUE(near.ok()) << near.status().message();
    const std::vector<float> want = LogitsOf(*near.value());
    for (const bool by_rows : {true, false}) {
      apart.plain_by_rows = by_rows;
      const auto model = K2Model::Load(config, dir, apart, &pool_, {});
      ASSERT_TRUE(model.ok()) << model.status().message();
      EXPECT_EQ(LogitsOf(*model.value()), want) << by_rows;
    }
  }
}

TEST_F(LoadTest, ProgressEndsAtTheTotal) {
  int64_t done = -1, total = 0;
  K2LoadOptions options;
  options.choice.format = LoadFormat::kDummy;
  options.progress = [&](int64_t d, int64_t t) {
    EXPECT_GE(d, done);
    done = d;
    total = t;
  };

  const auto model = K2Model::Load(config_, "", ops_, &pool_, options);

  ASSERT_TRUE(model.ok());
  EXPECT_EQ(done, total);
  EXPECT_GT(total, 0);
  DummySource source(0);
  const WeightPlan plan = PlanWeights(config_, source, ops_, {}).value();
  EXPECT_EQ(model.value()->weight_bytes(), WeightBytes(plan, ops_));
}

}  // namespace
}  // namespace baltoro
