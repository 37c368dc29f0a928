#include "flags/pull_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace baltoro {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::variant<PullCommand, Ending> Parse(std::vector<std::string> args,
                                        const Environment& env = {}) {
  return ParsePull(args, env);
}
PullCommand Parsed(std::vector<std::string> args, const Environment& env = {}) {
  auto outcome = Parse(std::move(args), env);
  EXPECT_TRUE(std::holds_alternative<PullCommand>(outcome)) << std::get_if<Ending>(&outcome)->err;
  return std::get<PullCommand>(std::move(outcome));
}
std::string ErrorOf(std::vector<std::string> args, const Environment& env = {}) {
  auto outcome = Parse(std::move(args), env);
  return std::holds_alternative<Ending>(outcome) ? std::get<Ending>(outcome).err : "accepted";
}

TEST(PullOptionsTest, TheLineOfTheGuideIsTaken) {
  const PullCommand command = Parsed({"moonshotai/Kimi-K2.5", "--local-dir", "/models/kimi-k2.5",
                                      "--local-dir-use-symlinks", "False"},
                                     {{"HF_HOME", "/cache"}});
  EXPECT_EQ(command.repo, "moonshotai/Kimi-K2.5");
  EXPECT_EQ(command.local_dir, "/models/kimi-k2.5");
  EXPECT_EQ(command.revision, "main");
  EXPECT_THAT(command.notices,
              ElementsAre(HasSubstr("--local-dir-use-symlinks False has no effect here")));
}

TEST(PullOptionsTest, PlacesFollowTheVariablesOfTheHubsTools) {
  const HubPlaces plain = HubPlacesOf({{"HOME", "/home/u"}});
  EXPECT_EQ(plain.hf_cache, "/home/u/.cache/huggingface/hub");
  EXPECT_EQ(plain.hf_token_file, "/home/u/.cache/huggingface/token");
  EXPECT_EQ(plain.hf_endpoint, "https://huggingface.co");
  EXPECT_EQ(plain.modelscope_cache, "/home/u/.cache/modelscope/hub/models");
  EXPECT_EQ(plain.modelscope_endpoint, "https://www.modelscope.cn");

  const HubPlaces set = HubPlacesOf({{"HOME", "/home/u"},
                                     {"HF_HOME", "~/hf"},
                                     {"HF_ENDPOINT", "https://mirror.example/"},
                                     {"XDG_CACHE_HOME", "/xdg"},
                                     {"VLLM_USE_MODELSCOPE", "True"}});
  EXPECT_EQ(set.hf_cache, "/home/u/hf/hub");
  EXPECT_EQ(set.hf_endpoint, "https://mirror.example");
  EXPECT_TRUE(set.use_modelscope);
  EXPECT_EQ(HubPlacesOf({{"HF_HOME", "/a"}, {"HF_HUB_CACHE", "/b"}}).hf_cache, "/b");
  EXPECT_EQ(CacheFolderOf("org/name"), "models--org--name");
  EXPECT_EQ(DatasetCacheFolderOf("org/name"), "datasets--org--name");
  EXPECT_EQ(ModelScopeFolderOf("org.x/Kimi-K2.5"), "org.x/Kimi-K2___5");
}

TEST(PullOptionsTest, TheSourceIsTheFlagsElseTheEnvironments) {
  const Environment modelscope{{"VLLM_USE_MODELSCOPE", "true"}};
  EXPECT_TRUE(Parsed({"o/n"}, modelscope).modelscope);
  EXPECT_EQ(Parsed({"o/n"}, modelscope).revision, "master");
  EXPECT_FALSE(Parsed({"o/n", "--source", "huggingface"}, modelscope).modelscope);
}

TEST(PullOptionsTest, ALayoutIsThatOfServe) {
  const PullLayout layout =
      Parsed({"o/n", "-tp", "8", "-pp", "2", "--nnodes", "2", "--node-rank", "1"}).layout;
  EXPECT_TRUE(layout.given);
  EXPECT_EQ(layout.nodes, 2);
  EXPECT_EQ(layout.node, 1);
  EXPECT_FALSE(Parsed({"o/n"}, {{"SLURM_STEP_ID", "0"}, {"SLURM_NNODES", "2"}}).layout.given);
  const PullLayout of_slurm =
      Parsed({"o/n", "-tp", "8", "-pp", "2"}, {{"SLURM_STEP_ID", "0"},
                                               {"SLURM_NNODES", "2"},
                                               {"SLURM_NODEID", "1"},
                                               {"SLURM_STEP_NODELIST", "n[1-2]"}})
          .layout;
  EXPECT_EQ(of_slurm.nodes, 2);
  EXPECT_EQ(of_slurm.node, 1);
  const PullLayout balanced = Parsed({"o/n", "-tp", "8", "-ep", "--enable-eplb", "--eplb-config",
                                      R"({"num_redundant_experts": 16})", "--nnodes", "2"})
                                  .layout;
  EXPECT_TRUE(balanced.balanced_experts);
  EXPECT_EQ(balanced.redundant_experts, 16);
  EXPECT_THAT(
      ErrorOf({"o/n", "-tp", "8", "-ep", "--eplb-config", R"({"num_redundant_experts": 16})"}),
      HasSubstr("needs --enable-eplb"));
  EXPECT_THAT(ErrorOf({"o/n", "-tp", "3", "--nnodes", "2"}),
              HasSubstr("cannot be dealt out evenly"));
  EXPECT_THAT(ErrorOf({"o/n", "-pp", "2", "--nnodes", "2", "--node-rank", "2"}),
              HasSubstr("--node-rank 2"));
}

TEST(PullOptionsTest, WhatMakesNoSenseIsNamed) {
  EXPECT_THAT(ErrorOf({}), HasSubstr("a REPO is expected"));
  for (const char* name : {"name", "a/b/c", "../x", "o/..", "/o/n", "o/n?x", "o/"}) {
    EXPECT_THAT(ErrorOf({name}), HasSubstr("is no name of a repository")) << name;
  }
  EXPECT_THAT(ErrorOf({"o/n", "--revision", "../x"}), HasSubstr("--revision"));
  EXPECT_THAT(ErrorOf({"o/n", "--local-dir", "a", "--cache-dir", "b"}), HasSubstr("two places"));
  EXPECT_THAT(ErrorOf({"o/n", "config.json", "--include", "*"}), HasSubstr("nothing to choose"));
  EXPECT_THAT(ErrorOf({"o/n", "--repo-type", "dataset"}), HasSubstr("not available yet"));
  EXPECT_EQ(ErrorOf({"o/n", "--repo-type", "model"}), "accepted");
}

}  // namespace
}  // namespace baltoro
