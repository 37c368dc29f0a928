#include "pull/selection.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace baltoro {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

const std::vector<RepoFile> kFiles = {{.path = "README.md"},
                                      {.path = "config.json"},
                                      {.path = "figures/a.png"},
                                      {.path = "model-00001.safetensors"}};

std::vector<std::string> Chosen(const PullCommand& command) {
  std::vector<std::string> names;
  const auto files = ChooseFiles(kFiles, command);
  if (!files.ok()) return {files.status().message()};
  for (const RepoFile& file : files.value()) names.push_back(file.path);
  return names;
}

TEST(SelectionTest, PatternsAreThoseOfTheHubsOwnTools) {
  EXPECT_EQ(Chosen({}).size(), 4U);
  EXPECT_THAT(Chosen({.include = {"*.json", "*.md"}, .exclude = {"READ*"}}),
              ElementsAre("config.json"));
  EXPECT_THAT(Chosen({.include = {"figures/"}}), ElementsAre("figures/a.png"));
  EXPECT_THAT(Chosen({.include = {"*.png"}}), ElementsAre("figures/a.png"));
  EXPECT_THAT(Chosen({.include = {"model-0000[1-3]*"}}), ElementsAre("model-00001.safetensors"));
  EXPECT_THAT(Chosen({.repo = "o/n", .include = {"*.gguf"}}),
              ElementsAre(HasSubstr("leave no file of o/n, which has README.md, config.json")));
}

TEST(SelectionTest, NamedFilesMustBeThere) {
  EXPECT_THAT(Chosen({.files = {"config.json", "config.json"}}), ElementsAre("config.json"));
  EXPECT_THAT(Chosen({.repo = "o/n", .files = {"x"}}), ElementsAre(HasSubstr("o/n has no file x")));
}

// Four layers, the first dense, in a file each; embedding and head in one of their own.
class NodeFilesTest : public ::testing::Test {
 protected:
  NodeFilesTest() {
    config_.layers = 4;
    config_.dense_layers = 1;
    config_.heads = 8;
    config_.experts = 8;
    config_.vocab = 1000;
    config_.hidden = 64;
    config_.intermediate = config_.moe_intermediate = 256;
    index_.files["embed"] = {"language_model.model.embed_tokens.weight"};
    index_.files["head"] = {"language_model.lm_head.weight", "language_model.model.norm.weight"};
    index_.files["vision"] = {"vision_tower.blocks.0.weight"};
    for (int layer = 0; layer <= config_.layers; ++layer) {  // the last: multi-token prediction
      index_.files[fmt::format("layer{}", layer)] = {
          fmt::format("language_model.model.layers.{}.self_attn.o_proj.weight", layer)};
    }
    index_.files["expert7"] = {"language_model.model.layers.3.mlp.experts.7.up_proj.weight"};
  }

  std::vector<std::string> LeftOut(const PullLayout& layout) const {
    const auto files = FilesOfOtherNodes(index_, config_, layout);
    return files.ok() ? files.value() : std::vector<std::string>{files.status().message()};
  }

  K2Config config_;
  ShardIndex index_;
};

TEST_F(NodeFilesTest, TheHeadHasTheLastStage) {
  EXPECT_THAT(LeftOut({.tensor = 2, .pipeline = 2, .nodes = 2, .node = 0}),
              ElementsAre("embed", "layer0", "layer1", "layer4", "vision"));
  EXPECT_THAT(LeftOut({.tensor = 2, .pipeline = 2, .nodes = 2, .node = 1}),
              ElementsAre("expert7", "head", "layer2", "layer3", "layer4"));
}

TEST_F(NodeFilesTest, ASharedTableOfWordsIsOnBothEnds) {
  config_.tied_embeddings = true;
  EXPECT_THAT(LeftOut({.pipeline = 2, .nodes = 2, .node = 0}),
              ElementsAre("layer0", "layer1", "layer4", "vision"));
}

TEST_F(NodeFilesTest, TensorRanksReadPartsOfEveryFile) {
  EXPECT_THAT(LeftOut({.tensor = 4, .nodes = 2, .node = 0}), ElementsAre("layer4"));
}

TEST_F(NodeFilesTest, WholeExpertsAreOnOneNode) {
  const PullLayout first{.tensor = 4, .whole_experts = true, .nodes = 2, .node = 0};
  EXPECT_THAT(LeftOut(first), ElementsAre("expert7", "layer4"));
  PullLayout second = first;
  second.node = 1;
  EXPECT_THAT(LeftOut(second), ElementsAre("layer4"));
}

// Slots of four ranks, two of them on each node: the twelve begin as 0 to 7, and 0 to 3 once more.
TEST_F(NodeFilesTest, ANodeReadsTheCopiesThatItBeginsWith) {
  for (int expert = 0; expert < 8; ++expert) {
    index_.files[fmt::format("expert{}", expert)] = {
        fmt::format("language_model.model.layers.3.mlp.experts.{}.up_proj.weight", expert)};
  }
  PullLayout layout{.tensor = 4,
                    .whole_experts = true,
                    .balanced_experts = true,
                    .redundant_experts = 4,
                    .nodes = 2,
                    .node = 0};
  EXPECT_THAT(LeftOut(layout), ElementsAre("expert6", "expert7", "layer4"));
  layout.node = 1;
  EXPECT_THAT(LeftOut(layout), ElementsAre("expert4", "expert5", "layer4"));
  layout.redundant_experts = 0;
  EXPECT_THAT(LeftOut(layout), ElementsAre("expert0", "expert1", "expert2", "expert3", "layer4"));
}

TEST_F(NodeFilesTest, ALayoutThatDoesNotFitIsRefused) {
  EXPECT_THAT(LeftOut({.tensor = 3}), ElementsAre(HasSubstr("tensor-parallel-size")));
  EXPECT_THAT(LeftOut({.pipeline = 9}), ElementsAre(HasSubstr("pipeline-parallel-size")));
  EXPECT_THAT(
      LeftOut(
          {.tensor = 4, .whole_experts = true, .balanced_experts = true, .redundant_experts = 3}),
      ElementsAre(HasSubstr("num_redundant_experts")));
}

}  // namespace
}  // namespace baltoro
