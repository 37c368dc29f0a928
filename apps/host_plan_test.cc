// The memory that `plan` and the start of `serve` count.

#include "host_plan.h"

#include <gtest/gtest.h>

#include <string>
#include <variant>
#include <vector>

#include "engine/picture_choice.h"
#include "engine_settings.h"
#include "flags/serve_options.h"

namespace baltoro {
namespace {

struct Ran {
  EngineConfig config;
  MemoryPlan plan;
  std::vector<std::string> notices = {};
};

Ran PlanOf(std::vector<std::string> args, bool gpu) {
  args.insert(args.begin(), {"m", "--device", gpu ? "cuda" : "cpu"});
  const Outcome<ServeOptions> outcome = ParseServe(args, {});
  const auto& options = std::get<ServeOptions>(outcome);
  Ran out{.config = MakeEngineConfig(options, "").value(), .plan = {}};
  std::optional<DeviceSpec> device;
  if (gpu) device = FindDevice("h200-141g").value();
  const Result<HostPlan> plan =
      PlanRun(options, {.described = DescribeModel("Kimi-K2.5").value()}, device, out.config);
  EXPECT_TRUE(plan.ok()) << plan.status().message();
  out.plan = plan.value().memory.value();
  out.notices = plan.value().notices;
  return out;
}

int64_t BytesOf(const std::vector<PlanItem>& items, const std::string& name) {
  for (const PlanItem& item : items) {
    if (item.name == name) return item.bytes;
  }
  return 0;
}

int64_t WithoutCache(const RankPlan& rank) {
  return TotalBytes(rank.weights) + TotalBytes(rank.arenas);
}

TEST(HostPlanTest, PicturesTakeWhatTheEngineTakesForThem) {
  const std::vector<std::string> flags = {
      "-tp", "2", "-pp", "2", "--mm-processor-cache-gb", "2", "--mm-encoder-tp-mode", "data"};
  const Ran ran = PlanOf(flags, /*gpu=*/false);
  const K2Config model = DescribeModel("Kimi-K2.5").value().config;
  const PictureAnswer pictures = ChoosePictures({.config = ran.config,
                                                 .model_dir = "",
                                                 .model = model,
                                                 .ops = CpuOps(DType::kBf16),
                                                 .ranks_here = 4})
                                     .value();
  const PictureBytes& taken = pictures.choice.value().bytes;
  const RankPlan& first = ran.plan.stages.front();

  EXPECT_EQ(BytesOf(first.weights, "picture encoder"), taken.weights);
  EXPECT_EQ(BytesOf(first.arenas, "pictures being encoded"), taken.workspace);
  EXPECT_EQ(BytesOf(first.arenas, "encoded pictures"), taken.rows);
  // Of model-family: 471 million numbers, most of them bf16; norms and tables f32.
  EXPECT_NEAR(static_cast<double>(taken.weights), 471.14e6 * 2, 20e6);
  EXPECT_NEAR(static_cast<double>(taken.rows), 2.0 * (1 << 30), 1 << 20);
  EXPECT_EQ(BytesOf(ran.plan.stages.back().weights, "picture encoder"), 0)
      << "the first stage has it";

  const Ran cut = PlanOf({"-tp", "2", "-pp", "2", "--mm-encoder-tp-mode", "weights"}, false);
  const auto part =
      static_cast<double>(BytesOf(cut.plan.stages.front().weights, "picture encoder"));
  EXPECT_LT(part, 0.6 * static_cast<double>(taken.weights)) << "but for tables and the projector";

  std::vector<std::string> text = flags;
  text.push_back("--language-model-only");
  const RankPlan without = PlanOf(text, /*gpu=*/false).plan.stages.front();
  EXPECT_EQ(WithoutCache(first) - WithoutCache(without), taken.total());
}

// Those behind one web server, wherever they are; a node without one has its own.
TEST(HostPlanTest, ReplicasThatShareNothingAreThoseOfTheServer) {
  const std::vector<std::string> nodes = {
      "-tp", "8", "-dp", "4", "-dpl", "2", "--data-parallel-address", "10.0.0.1"};
  const auto replicas = [](std::vector<std::string> args, std::vector<std::string> more = {}) {
    args.insert(args.end(), more.begin(), more.end());
    const Ran ran = PlanOf(args, /*gpu=*/true);
    for (const std::string& notice : ran.notices) {
      EXPECT_EQ(notice.find("--data-parallel-size"), std::string::npos) << notice;
    }
    EXPECT_EQ(ran.plan.options.layout.data, 1);
    return ran.plan.replicas;
  };
  EXPECT_EQ(replicas({"-tp", "8", "-dp", "3"}), 3);
  EXPECT_EQ(replicas(nodes), 4);
  EXPECT_EQ(replicas(nodes, {"--headless", "--data-parallel-start-rank", "2"}), 2);
  EXPECT_EQ(replicas({"-tp", "8", "-dp", "4", "--data-parallel-rank", "1"}), 1);
  EXPECT_EQ(replicas({"-tp", "8", "-dp", "4", "-dpl", "2", "--data-parallel-hybrid-lb"}), 2);
}

std::string AdviceOf(const std::vector<std::string>& args) {
  const MemoryPlan plan = PlanOf(args, /*gpu=*/true).plan;
  EXPECT_FALSE(Fits(plan));
  return MisfitText(plan);
}

// What is told is a command that serve takes: sizes of nodes come along, and replicas of other
// servers stay.
TEST(HostPlanTest, OtherDealsOfTheDevicesAreThoseOfAllReplicas) {
  const auto with = [](std::vector<std::string> args) {
    const std::vector<std::string> usual = {"--dtype", "bfloat16", "--language-model-only",
                                            "--gpu-memory-utilization", "0.5"};
    args.insert(args.end(), usual.begin(), usual.end());
    return args;
  };
  const std::string alone = AdviceOf(with({"-dp", "16"}));
  const std::string other =
      "on the same 16 devices with --tensor-parallel-size 2 "
      "--data-parallel-size 8 --enable-expert-parallel";
  EXPECT_TRUE(alone.ends_with(other)) << alone;
  const std::string nodes =
      AdviceOf(with({"-dp", "16", "-dpl", "8", "--data-parallel-address", "10.0.0.1"}));
  EXPECT_TRUE(nodes.ends_with(other + " --data-parallel-size-local 4")) << nodes;
  const std::string hybrid =
      AdviceOf(with({"-dp", "16", "-dpl", "8", "--data-parallel-hybrid-lb"}));
  EXPECT_EQ(hybrid.find("--data-parallel-size"), std::string::npos) << hybrid;
  EXPECT_EQ(hybrid.find("--enable-expert-parallel"), std::string::npos) << hybrid;
  EXPECT_NE(hybrid.find(" devices with --tensor-parallel-size"), std::string::npos) << hybrid;
}

TEST(HostPlanTest, AGpuCountsThemToo) {
  const RankPlan rank = PlanOf({"-tp", "8"}, /*gpu=*/true).plan.stages.front();
  EXPECT_GT(BytesOf(rank.weights, "picture encoder"), 0);
  EXPECT_GT(BytesOf(rank.arenas, "pictures being encoded"), 0);
}

// Where the flag asks for parts of the encoder, and there are none.
TEST(HostPlanTest, AnEncoderThatIsNotCutSaysWhy) {
  const auto note = [](const RankPlan& rank) {
    for (const PlanItem& item : rank.weights) {
      if (item.name == "picture encoder") return item.note;
    }
    return std::string("no encoder");
  };
  const std::vector<std::string> asked = {"-tp", "8", "--mm-encoder-tp-mode", "weights"};
  const Ran gpu = PlanOf(asked, /*gpu=*/true);
  EXPECT_EQ(note(gpu.plan.stages.front()), "whole: a GPU has no operations for a part of it");
  ASSERT_EQ(gpu.notices.size(), 1u);
  EXPECT_EQ(gpu.notices[0],
            "--mm-encoder-tp-mode weights has no effect here: the encoder is whole: a GPU has no "
            "operations for a part of it");
  const Ran unasked = PlanOf({"-tp", "8"}, /*gpu=*/true);
  EXPECT_EQ(note(unasked.plan.stages.front()), note(gpu.plan.stages.front()));
  EXPECT_TRUE(unasked.notices.empty());
  const Ran cpu = PlanOf(asked, /*gpu=*/false);
  EXPECT_EQ(note(cpu.plan.stages.front()), "");
  EXPECT_TRUE(cpu.notices.empty());
}

}  // namespace
}  // namespace baltoro
