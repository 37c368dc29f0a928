#include "parallel/layout.h"

#include <gtest/gtest.h>

#include <random>
#include <set>

namespace baltoro {
namespace {

TEST(LayoutTest, SharesCoverEveryThingOnceAndDifferByAtMostOne) {
  std::mt19937 random(1);
  for (int trial = 0; trial < 2000; ++trial) {
    const auto parts = static_cast<int32_t>(1 + random() % 40);
    const int64_t total = random() % 5000;
    int64_t at = 0, least = total, most = 0;
    for (int32_t i = 0; i < parts; ++i) {
      const IndexRange share = EvenShare(total, parts, i);
      EXPECT_EQ(share.begin, at);
      at = share.end;
      least = std::min(least, share.size());
      most = std::max(most, share.size());
    }
    EXPECT_EQ(at, total);
    EXPECT_LE(most - least, 1);
  }
}

TEST(LayoutTest, SharesOfBlocksCoverEveryThingOnceAndCutNoBlockInTwoUnevenly) {
  std::mt19937 random(2);
  int refused = 0;
  for (int trial = 0; trial < 4000; ++trial) {
    const auto parts = static_cast<int32_t>(1 + random() % 17);
    const int64_t block = int64_t{1} << random() % 8, total = 1 + random() % 600;
    const int64_t grain = 1 + random() % block;
    const auto first = BlockShare(total, block, grain, parts, 0, "things");
    int64_t at = 0;
    for (int32_t i = 0; i < parts; ++i) {
      const auto share = BlockShare(total, block, grain, parts, i, "things");
      ASSERT_EQ(share.ok(), first.ok());
      if (!share.ok()) continue;
      EXPECT_EQ(share.value().begin, at);
      EXPECT_GT(share.value().size(), 0);
      EXPECT_TRUE(FallsOnBlocks(share.value(), block));
      at = share.value().end;
    }
    if (first.ok()) {
      EXPECT_EQ(at, total);
    } else {
      ++refused;
    }
  }
  EXPECT_GT(refused, 100);
  EXPECT_EQ(BlockShare(128, 128, 32, 8, 0, "experts").status().message(),
            "experts: 128 columns in blocks of 128 cannot be cut for 8 tensor ranks without "
            "cutting a block: use --tensor-parallel-size 4");
}

TEST(LayoutTest, AnEncodersHeadsAreDividedOrTheRefusalSaysWhatToDo) {
  EXPECT_TRUE(CheckEncoderHeads({.tensor = 1}, 3).ok());
  EXPECT_TRUE(CheckEncoderHeads({.tensor = 8}, 16).ok());
  EXPECT_NE(CheckEncoderHeads({.tensor = 32}, 16).message().find("--mm-encoder-tp-mode data"),
            std::string::npos);
}

TEST(LayoutTest, WhatReplicasThatShareExpertsCannotDoYetIsNamed) {
  const auto said = [](const ParallelLayout& layout) { return CheckExpertGroup(layout).message(); };
  const auto has = [](const std::string& text, const char* part) {
    return text.find(part) != std::string::npos;
  };
  const ParallelLayout group{.tensor = 2, .data = 2, .whole_experts = true};
  EXPECT_EQ(said(group), "");
  EXPECT_EQ(said({.tensor = 8, .pipeline = 2}), "") << "one replica";
  EXPECT_TRUE(has(said({.data = 2}), "--enable-expert-parallel"));
  EXPECT_TRUE(
      has(said({.pipeline = 2, .data = 2, .whole_experts = true}), "--pipeline-parallel-size 2"));
}

TEST(LayoutTest, EveryCacheBlockHasOnePlace) {
  ParallelLayout layout{.tensor = 8, .decode_context = 4};
  std::set<std::pair<int32_t, int64_t>> seen;
  for (int64_t block = 0; block < 100; ++block) {
    const BlockPlace place = PlaceOfBlock(layout, block);
    EXPECT_LT(place.block, 25);
    EXPECT_TRUE(seen.insert({place.context, place.block}).second);
  }
}

TEST(LayoutTest, StagesHoldEveryLayerOnce) {
  for (int32_t layers = 1; layers < 70; ++layers) {
    for (int32_t stages = 1; stages <= layers; ++stages) {
      ParallelLayout layout{.pipeline = stages};
      int64_t at = 0;
      for (int32_t s = 0; s < stages; ++s) {
        const IndexRange range = StageLayers(layout, layers, s);
        EXPECT_EQ(range.begin, at);
        EXPECT_GT(range.size(), 0);
        at = range.end;
      }
      EXPECT_EQ(at, layers);
    }
  }
}

// vLLM divides 61 layers over 2 as 31 + 30 and over 4 as 15 + 15 + 16 + 15.
TEST(LayoutTest, TheLastStageIsNeverTheLongerOne) {
  ParallelLayout two{.pipeline = 2}, four{.pipeline = 4};
  EXPECT_EQ(StageLayers(two, 61, 0).size(), 31);
  EXPECT_EQ(StageLayers(two, 61, 1).size(), 30);
  EXPECT_EQ(StageLayers(four, 61, 2).size(), 16);
  EXPECT_EQ(StageLayers(four, 61, 3).size(), 15);
  four.stage_layers = {20, 20, 11, 10};
  EXPECT_EQ(StageLayers(four, 61, 2), (IndexRange{40, 51}));
}

TEST(LayoutTest, EveryExpertSlotLiesOnOneRank) {
  for (const bool in_turn : {false, true}) {
    for (const int32_t tensor : {1, 2, 3, 8}) {
      for (const int32_t data : {1, 2, 5}) {
        for (const int32_t redundant : {0, 30, 96}) {
          ParallelLayout layout{.tensor = tensor, .data = data, .whole_experts = true};
          layout.experts_in_turn = in_turn;
          layout.redundant_experts = redundant;
          std::set<int64_t> seen;
          for (int32_t rank = 0; rank < layout.expert_ranks(); ++rank) {
            const ExpertShare share = ExpertsOf(layout, 384, rank);
            for (int64_t i = 0; i < share.count; ++i) {
              EXPECT_TRUE(seen.insert(share.first + i * share.step).second);
            }
          }
          EXPECT_EQ(seen.size(), static_cast<size_t>(384 + redundant));
          EXPECT_EQ(*seen.rbegin(), 384 + redundant - 1);
        }
      }
    }
  }
}

TEST(LayoutTest, EveryCacheTokenLiesOnOneContextRank) {
  for (const int32_t ways : {1, 2, 4, 8}) {
    ParallelLayout layout{.tensor = 8, .decode_context = ways};
    for (int64_t length = 0; length < 1200; ++length) {
      std::vector<int64_t> expected(static_cast<size_t>(ways), 0);
      for (int64_t t = 0; t < length; ++t) ++expected[static_cast<size_t>(t / 64 % ways)];
      for (int32_t c = 0; c < ways; ++c) {
        ASSERT_EQ(ContextTokens(layout, length, 64, c), expected[static_cast<size_t>(c)])
            << length << " tokens, rank " << c << " of " << ways;
      }
    }
  }
}

TEST(LayoutTest, PlacesAndRanksMatchOneToOne) {
  ParallelLayout layout{.tensor = 4, .pipeline = 3, .data = 2};
  std::set<std::tuple<int32_t, int32_t, int32_t>> seen;
  for (int32_t rank = 0; rank < layout.ranks(); ++rank) {
    const RankPlace place = PlaceOf(layout, rank);
    EXPECT_EQ((place.data * layout.pipeline + place.stage) * layout.tensor + place.tensor, rank);
    seen.insert({place.data, place.stage, place.tensor});
  }
  EXPECT_EQ(seen.size(), 24u);
}

TEST(LayoutTest, ClashesNameTheSizes) {
  const LayoutShape k2{.heads = 64,
                       .layers = 61,
                       .experts = 384,
                       .vocab = 163840,
                       .intermediate = 18432,
                       .moe_intermediate = 2048};
  const auto message = [&](const ParallelLayout& layout) {
    return CheckLayout(layout, k2).message();
  };
  EXPECT_EQ(message({.tensor = 8, .pipeline = 2, .decode_context = 8}), "");
  EXPECT_EQ(message({.tensor = 12}),
            "Total number of attention heads (64) must be divisible by tensor parallel size (12). "
            "Give --tensor-parallel-size 8");
  EXPECT_NE(message({.tensor = 8, .decode_context = 3}).find("--decode-context-parallel-size 3"),
            std::string::npos);
  EXPECT_NE(message({.pipeline = 62}).find("61 layers"), std::string::npos);
  ParallelLayout uneven{.tensor = 8, .whole_experts = true};
  uneven.redundant_experts = 30;
  EXPECT_NE(message(uneven).find("needs --enable-eplb"), std::string::npos);
  uneven.balanced_experts = true;
  EXPECT_NE(message(uneven).find("give num_redundant_experts 32"), std::string::npos);
  uneven.redundant_experts = 384 * 8;
  EXPECT_NE(message(uneven).find("num_redundant_experts 3072"), std::string::npos);
  EXPECT_NE(message(uneven).find("there are 2688"), std::string::npos);
  uneven.redundant_experts = 32;
  EXPECT_EQ(message(uneven), "");
  EXPECT_EQ(CheckExpertBalance(uneven, false).message(), "");
  EXPECT_NE(CheckExpertBalance(uneven, true).message().find("with --deterministic"),
            std::string::npos);
  uneven.whole_experts = false;
  EXPECT_NE(message(uneven).find("needs --enable-expert-parallel"), std::string::npos);
  ParallelLayout stages{.pipeline = 2};
  stages.stage_layers = {30, 30};
  EXPECT_NE(message(stages).find("with sum 61"), std::string::npos);
}

}  // namespace
}  // namespace baltoro
