// Every element of every matrix is held by as many ranks as it should be, in every form and layout.

#include "model/weight_slice.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <random>

#include "model/layer_weights.h"
#include "support/tiny_model.h"
#include "weights/dummy_source.h"
#include "weights/tensor_names.h"

namespace baltoro {
namespace {

using ::testing::HasSubstr;

K2Config Config() {
  K2Config config = test::SmallConfig(3, 8);
  config.hidden = 32;
  config.q_lora = 32;
  config.kv_lora = 64;
  config.nope = 32;
  config.rope_dim = 32;
  config.value = 32;
  config.intermediate = 416;
  config.moe_intermediate = 256;
  config.experts = 11;
  config.router.experts = 11;
  config.shared_experts = 2;
  return config;
}

// How often each element of a tensor is held.
using Held = std::map<std::string, std::vector<int32_t>>;

void Count(const MatrixPart& part, Held& held) {
  const std::vector<int64_t>& shape = part.tensor.shape;
  const int64_t rows = shape.size() > 1 ? shape[0] : 1, width = shape.back();
  std::vector<int32_t>& counts = held[part.tensor.name];
  counts.resize(static_cast<size_t>(rows * width));
  ASSERT_LE(part.row + part.rows, rows) << part.tensor.name;
  ASSERT_LE(part.column + part.width(), width) << part.tensor.name;
  for (int64_t r = part.row; r < part.row + part.rows; ++r) {
    for (int64_t c = part.column; c < part.column + part.width(); ++c) ++counts[r * width + c];
  }
}

void Count(const PlannedRows& rows, Held& held) {
  if (rows.rows > 0) Count({rows.tensor, rows.first_row, rows.rows}, held);
}

void Count(const PlannedMatrix& matrix, Held& held) {
  if (matrix.parts.empty()) return;
  ASSERT_EQ(matrix.matrix.count, std::ssize(matrix.parts));
  for (const auto& parts : matrix.parts) {
    int64_t rows = 0;
    for (const MatrixPart& part : parts) {
      Count(part, held);
      rows += part.rows;
      EXPECT_EQ(part.width(), matrix.transposed ? matrix.matrix.n : matrix.matrix.k);
    }
    EXPECT_EQ(rows, matrix.transposed ? matrix.matrix.k : matrix.matrix.n);
  }
}

void Count(const WeightPlan& plan, Held& held, Held& transposed) {
  Count(plan.embedding, held);
  Count(plan.final_norm, held);
  Count(plan.lm_head, held);
  for (const PlannedLayer& l : plan.layers) {
    for (const PlannedRows* rows :
         {&l.attention_norm, &l.mlp_norm, &l.q_norm, &l.kv_norm, &l.router_bias}) {
      Count(*rows, held);
    }
    for (const PlannedMatrix* matrix :
         {&l.qkv_a, &l.kv_a, &l.q, &l.kv_b, &l.o, &l.router, &l.mlp.gate_up, &l.mlp.down,
          &l.experts.gate_up, &l.experts.down}) {
      Count(*matrix, held);
    }
    Count(l.uk_t, transposed);
  }
}

int32_t TimesHeld(const std::string& name, const ParallelLayout& layout) {
  if (name.find("kv_b_proj") != std::string::npos) return layout.decode_context;
  for (const char* cut : {"q_b_proj", "q_proj", "o_proj", "embed_tokens", "lm_head", "gate_proj",
                          "up_proj", "down_proj"}) {
    if (name.find(cut) != std::string::npos) return 1;
  }
  return layout.tensor;  // of the stage
}

WeightPlan Whole(const K2Config& config, DummySource& source) {
  return PlanWeights(config, source, ReferenceOps(), {}).value();
}

TEST(WeightSliceTest, EveryElementIsHeldAsOftenAsItShouldBe) {
  const K2Config config = Config();
  std::mt19937 random(4);
  int accepted = 0;
  for (int trial = 0; trial < 60; ++trial) {
    const WeightForm forms[] = {WeightForm::kBf16, WeightForm::kFp8Block,   WeightForm::kInt4Group,
                                WeightForm::kInt8, WeightForm::kInt8Static, WeightForm::kInt4};
    const WeightForm form = forms[random() % 6];
    DummySource source(1, [&](std::string_view) { return form; });
    const WeightPlan whole = Whole(config, source);
    ParallelLayout layout;
    layout.tensor = 1 << random() % 4;
    layout.pipeline = static_cast<int32_t>(1 + random() % 3);
    layout.decode_context = 1 << random() % 3;
    layout.whole_experts = random() % 2 == 0;
    layout.experts_in_turn = random() % 2 == 0;
    Held held, transposed;
    bool ok = true;
    for (int32_t rank = 0; rank < layout.ranks() && ok; ++rank) {
      const auto slice = SliceWeights(config, whole, {layout, PlaceOf(layout, rank)});
      if (rank == 0) ok = slice.ok();
      ASSERT_EQ(slice.ok(), ok) << slice.status().message();
      if (ok) Count(slice.value(), held, transposed);
    }
    if (!ok) continue;
    ++accepted;
    Held all, all_transposed;
    Count(whole, all, all_transposed);
    ASSERT_EQ(held.size(), all.size());
    for (const auto& [name, counts] : held) {
      const int32_t times = TimesHeld(name, layout);
      for (const int32_t count : counts) ASSERT_EQ(count, times) << name;
    }
    for (auto& [name, counts] : all_transposed) {
      for (int32_t& count : counts) count *= layout.decode_context;
      ASSERT_EQ(transposed[name], counts) << name;
    }
  }
  EXPECT_GT(accepted, 15);
}

// Of both types, with as many tokens in the head as not all ranks have equally many of.
TEST(WeightSliceTest, ADraftIsCutByHeadsColumnsAndTokens) {
  for (const int32_t key_heads : {0, 8, 4}) {
    K2Config config = Config();
    config.layers = config.dense_layers = 1;
    config.experts = config.shared_experts = 0;
    config.draft = DraftShape{.tap_layers = {0, 1, 2}, .vocab = 41};
    if (key_heads > 0) {
      config.draft->key_heads = key_heads;
      config.draft->head_width = config.value;
      config.kv_lora = config.rope_dim = key_heads * config.value;
      config.q_lora = 0;
    }
    DummySource source(1);
    const WeightPlan whole = Whole(config, source);
    for (const int32_t tensor : {1, 2, 4, 8}) {
      SCOPED_TRACE(fmt::format("{} heads of keys, {} ranks", key_heads, tensor));
      const ParallelLayout layout{.tensor = tensor};
      if (key_heads % tensor != 0) {
        EXPECT_THAT(SliceWeights(config, whole, {layout}).status().message(),
                    HasSubstr("4 heads of keys must be divisible by tensor parallel size (8)"));
        continue;
      }
      Held held, transposed, all, all_transposed;
      for (int32_t rank = 0; rank < tensor; ++rank) {
        const RankShare share{layout, PlaceOf(layout, rank)};
        const WeightPlan slice = SliceWeights(config, whole, share).value();
        EXPECT_EQ(slice.fc.matrix.n, config.hidden);
        EXPECT_EQ(slice.lm_head.matrix.n, share.head_vocab(config).size());
        Count(slice, held, transposed);
      }
      Count(whole, all, all_transposed);
      ASSERT_EQ(held.size(), all.size());
      for (const auto& [name, counts] : held) {
        const bool heads =
            name.find("k_proj") != std::string::npos || name.find("v_proj") != std::string::npos;
        const int32_t times = heads ? 1 : TimesHeld(name, layout);
        for (const int32_t count : counts) ASSERT_EQ(count, times) << name;
      }
      EXPECT_EQ(transposed, all_transposed);
    }
  }
}

// What a rank loads is what the whole model has there: bytes add up, but for what is held often.
TEST(WeightSliceTest, RanksTogetherTakeTheBytesOfTheWhole) {
  const K2Config config = Config();
  DummySource source(1);
  const WeightPlan whole = Whole(config, source);
  const ParallelLayout layout{.tensor = 4, .pipeline = 2};
  int64_t bytes = 0;
  Held held, ignored;
  for (int32_t rank = 0; rank < layout.ranks(); ++rank) {
    const WeightPlan slice = SliceWeights(config, whole, {layout, PlaceOf(layout, rank)}).value();
    bytes += WeightBytes(slice, ReferenceOps());
    Count(slice, held, ignored);
  }
  int64_t often = 0;
  for (const auto& [name, counts] : held) {
    for (const int32_t count : counts) often += (count - 1) * SizeOf(DType::kF32);
  }
  EXPECT_NEAR(static_cast<double>(bytes - often),
              static_cast<double>(WeightBytes(whole, ReferenceOps())), 0.01 * double(bytes));
}

TEST(WeightSliceTest, AStageHasItsLayersAndItsEnd) {
  const K2Config config = Config();
  DummySource source(1);
  const WeightPlan whole = Whole(config, source);
  const ParallelLayout layout{.pipeline = 2};
  const WeightPlan first = SliceWeights(config, whole, {layout, {.stage = 0}}).value();
  const WeightPlan last = SliceWeights(config, whole, {layout, {.stage = 1}}).value();

  EXPECT_EQ(first.layers.size(), 2u);
  EXPECT_EQ(last.layers.size(), 1u);
  EXPECT_EQ(last.first_layer, 2);
  EXPECT_EQ(first.embedding.rows, config.vocab);
  EXPECT_EQ(last.embedding.rows, 0);
  EXPECT_TRUE(first.lm_head.parts.empty());
  EXPECT_EQ(last.lm_head.matrix.n, config.vocab);
}

TEST(WeightSliceTest, ACutBlockIsRefusedWithWhatToChange) {
  K2Config config = Config();
  DummySource fp8(1, [](std::string_view) { return WeightForm::kFp8Block; });
  const auto refusal = [&](int32_t tensor) {
    const auto slice =
        SliceWeights(config, Whole(config, fp8), {{.tensor = tensor}, {.tensor = tensor - 1}});
    return slice.ok() ? "sliced" : slice.status().message();
  };
  config.nope = 64;  // a head has 96 rows
  EXPECT_EQ(refusal(1), "sliced");
  EXPECT_THAT(refusal(4), HasSubstr("the query projection: --tensor-parallel-size 4 would cut a "
                                    "block of 128 (fp8, blocks of 128x128) at 192"));
  config = Config();
  EXPECT_EQ(refusal(4), "sliced");
  EXPECT_THAT(refusal(8),
              HasSubstr("model.layers.0.mlp.down_proj.weight: 416 columns in blocks of 128 cannot "
                        "be cut for 8 tensor ranks without cutting a block: use "
                        "--tensor-parallel-size 4"));
  EXPECT_THAT(refusal(3), HasSubstr("must be divisible by tensor parallel size (3)"));
}

TEST(WeightSliceTest, WholeExpertsHaveSlotsInTheirOrder) {
  const K2Config config = Config();
  DummySource source(1);
  const WeightPlan whole = Whole(config, source);
  const ParallelLayout layout{.tensor = 4, .whole_experts = true, .experts_in_turn = true};
  const RankShare share{layout, {.tensor = 2}};
  const std::vector<int32_t> slots = share.expert_slots(config);
  const WeightPlan slice = SliceWeights(config, whole, share).value();

  EXPECT_THAT(slots, ::testing::ElementsAre(-1, -1, 0, -1, -1, -1, 1, -1, -1, -1, 2));
  const PlannedMatrix& down = slice.layers[1].experts.down;
  ASSERT_EQ(down.matrix.count, 3);
  for (size_t e = 0; e < slots.size(); ++e) {
    if (slots[e] < 0) continue;
    EXPECT_THAT(down.parts[static_cast<size_t>(slots[e])][0].tensor.name,
                HasSubstr(fmt::format("experts.{}.", e)));
  }
}

}  // namespace
}  // namespace baltoro
