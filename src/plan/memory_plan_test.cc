#include "plan/memory_plan.h"

#include <gtest/gtest.h>

#include "base/check.h"
#include "model/k2_model.h"
#include "model/model_ranks.h"
#include "ops/gpu_exchange.h"
#include "weights/dummy_source.h"
#include "weights/online_fp8_source.h"

namespace baltoro {
namespace {

constexpr double kGib = 1073741824.0;

ModelDescription Known(const std::string& name) {
  auto model = DescribeModel(name);
  BT_CHECK(model.ok());
  return model.value();
}

PlanOptions On(const std::string& device, ParallelLayout layout) {
  PlanOptions options;
  options.device = FindDevice(device).value();
  options.layout = layout;
  return options;
}

MemoryPlan Plan(const ModelDescription& model, const PlanOptions& options) {
  auto plan = PlanMemory(model, options);
  BT_CHECK(plan.ok());
  Advise(plan.value());
  return std::move(plan).value();
}

// vLLM's recipe for K2-Thinking on 8 x H200 prints 46.8 GiB of cache a GPU, 715,072 tokens, and
// 5,721,088 with -dcp 8: the same within a block a rank (46.8 is rounded).
TEST(MemoryPlanTest, PublishedCacheSizesComeOut) {
  const ModelDescription model = Known("Kimi-K2-Thinking");
  PlanOptions options = On("h200-141g", {.tensor = 8});
  options.kv_cache_bytes = static_cast<int64_t>(46.8 * kGib);
  EXPECT_EQ(Plan(model, options).kv_tokens, 715072);
  options.layout.decode_context = 8;
  EXPECT_NEAR(static_cast<double>(Plan(model, options).kv_tokens), 5721088.0, 64.0 * 8);
}

int64_t ArenaOf(const MemoryPlan& plan, const std::string& name) {
  for (const PlanItem& item : plan.stages[0].arenas) {
    if (item.name == name) return item.bytes;
  }
  return 0;
}

// As docs/kernels/collectives.md says: a row of K2 that eight ranks send in one go is 8 x 14 KiB in
// three places; 64 of these, and 1,024 in slices twice.
TEST(MemoryPlanTest, RanksOnGpusBringWhatTheyExchangeThrough) {
  const ModelDescription model = Known("Kimi-K2.5");
  constexpr const char* kName = "exchange of ranks";
  EXPECT_EQ(ArenaOf(Plan(model, On("h200", {.tensor = 1})), kName), 0);
  const int64_t eight = ArenaOf(Plan(model, On("h200", {.tensor = 8})), kName);
  constexpr int64_t kRow = 7168 * 2;
  constexpr int64_t kSums = 3 * (64 * 8 * kRow + 2 * 1024 * kRow);
  EXPECT_GT(eight, kSums);  // and the columns of logits
  EXPECT_LT(eight, kSums + (60 << 20));
  const int64_t shared =
      ArenaOf(Plan(model, On("h200", {.tensor = 8, .decode_context = 8})), kName);
  EXPECT_GT(shared, eight + (40 << 20));
  const MemoryPlan stages = Plan(model, On("h200", {.tensor = 8, .pipeline = 2}));
  EXPECT_EQ(ArenaOf(stages, kName), eight + (4 << 20) + 3 * 4096);  // a pipe and its counters
  EXPECT_GT(ArenaOf(stages, "NCCL"), 0);
}

// A group whose ranks lie on several nodes is one of NCCL's, as one is of more ranks than share
// memory.
TEST(MemoryPlanTest, GroupsOverNodesTakeBuffersOfNccl) {
  const ModelDescription model = Known("Kimi-K2.5");
  const auto nccl = [&](const ParallelLayout& layout, int32_t nodes) {
    PlanOptions options = On("h200", layout);
    options.nodes = nodes;
    return ArenaOf(Plan(model, options), "NCCL");
  };
  const int64_t one = nccl({.tensor = 8, .pipeline = 2}, 2);
  EXPECT_GT(one, int64_t{200} << 20);
  const ParallelLayout replicas{.tensor = 8, .data = 2, .whole_experts = true};
  EXPECT_EQ(nccl(replicas, 1), 0);
  EXPECT_EQ(nccl(replicas, 2), one);
  EXPECT_EQ(nccl(replicas, 4), 2 * one);  // two nodes for each replica
  EXPECT_EQ(nccl({.tensor = 8}, 1), 0);
  EXPECT_EQ(nccl({.tensor = 8}, 2), one);
  EXPECT_EQ(nccl({.tensor = 8, .decode_context = 4}, 2), one);  // context ranks of one node
  EXPECT_EQ(nccl({.tensor = 8, .decode_context = 8}, 2), 2 * one);
  EXPECT_EQ(nccl({.tensor = 16}, 1), one);
  EXPECT_EQ(nccl({.data = 16, .whole_experts = true}, 1), one);
  // Experts move among all ranks.
  ParallelLayout balanced = replicas;
  balanced.balanced_experts = true;
  EXPECT_EQ(nccl(balanced, 1), one);
  EXPECT_EQ(nccl(balanced, 2), 2 * one);
  EXPECT_EQ(nccl({.tensor = 8, .whole_experts = true, .balanced_experts = true}, 1), 0);
  EXPECT_EQ(nccl({.tensor = 8, .whole_experts = true, .balanced_experts = true}, 2), 2 * one);
}

// Whatever is taken before the first step has its place in the plan, so that a utilisation of 0.99
// may be asked for.
TEST(MemoryPlanTest, WhatAGpuTakesBesideTheFormulasIsCounted) {
  const ModelDescription model = Known("DeepSeek-V2-Lite");  // 16 heads, 102,400 tokens
  PlanOptions options = On("h100-80g", {});
  options.max_num_seqs = 256;
  options.max_num_batched_tokens = 2048;
  options.prompt_logprob_rows = 64;
  const MemoryPlan usual = Plan(model, options);
  constexpr int64_t kMib = 1 << 20;
  EXPECT_EQ(ArenaOf(usual, "sampling"), 17 * kMib);
  const int64_t parts = ArenaOf(usual, "parts of keys");
  EXPECT_EQ(parts, 2 * 132 * 16 * 513 * 4);
  EXPECT_EQ(ArenaOf(usual, "room for other steps"),
            (ArenaOf(usual, "activations") + ArenaOf(usual, "rows of the last layer") +
             ArenaOf(usual, "workspace of operations") + parts) /
                    8 +
                2 * kMib);
  EXPECT_EQ(ArenaOf(usual, "rows of the last layer"), 320 * 2048 * 8);  // two rows of f32 each
  EXPECT_EQ(ArenaOf(usual, "logits"), (320 + 256) * int64_t{102400} * 4);
  EXPECT_EQ(ArenaOf(usual, "graphs"), 256 * kMib);
  options.graphs = false;
  const int64_t keys = 256 * 64 * KvBytesPerToken(model.config, KvForm::kBf16, 1);
  EXPECT_EQ(ArenaOf(Plan(model, options), "trial of the largest steps"),
            keys + 320 * int64_t{102400} * 4);

  options.fixed_rows = 32;
  options.key_parts = 2080;
  ModelDescription large = Known("Kimi-K2.5");
  EXPECT_EQ(ArenaOf(Plan(large, options), "parts of keys"), 2080 * 64 * int64_t{513} * 4);
  EXPECT_GT(ArenaOf(Plan(large, options), "parts of keys"), 256 * kMib);
  options.max_num_seqs = 1;
  EXPECT_EQ(ArenaOf(Plan(model, options), "logits"), (96 + 32) * int64_t{102400} * 4);
}

// Each draft has logits of its own, as far as a step has tokens.
TEST(MemoryPlanTest, DraftsAreRowsToo) {
  const ModelDescription model = Known("DeepSeek-V2-Lite");
  PlanOptions options;
  options.device = {.name = "this machine", .memory_bytes = int64_t{256} << 30};
  options.max_num_seqs = 32;
  options.max_num_batched_tokens = 2048;
  const int64_t row = 102400 * 4;
  const auto logits = [&] { return ArenaOf(Plan(model, options), "logits"); };
  EXPECT_EQ(logits(), (32 + 32) * row);
  options.drafts = 4;
  EXPECT_EQ(logits(), (160 + 160) * row);
  options.max_num_batched_tokens = 100;
  EXPECT_EQ(logits(), (100 + 100) * row);
}

// Heads and columns of the MLP; logits are whole on each, beside its own part.
TEST(MemoryPlanTest, RanksThatShareADraftTakeLessForItsSteps) {
  const ModelDescription model = Known("Kimi-K2.5");
  PlanOptions options = On("h200", {.tensor = 8});
  options.max_num_seqs = 32;
  options.max_num_batched_tokens = 2048;
  options.draft = model.config;
  options.draft->draft = DraftShape{.tap_layers = {1, 29, 57}, .vocab = 32000};
  const auto steps = [&] { return ArenaOf(Plan(model, options), "steps of the draft model"); };
  const int64_t whole = steps();
  const auto workspace = [&] {
    return ArenaOf(Plan(model, options), "workspace of the draft model");
  };
  const int64_t whole_workspace = workspace();
  EXPECT_GT(whole_workspace, int64_t{256} << 20);  // the keys of a pass
  options.draft_layout.tensor = 8;
  EXPECT_LE(workspace(), whole_workspace);
  const int64_t columns = int64_t{56} * (192 + 128) + 3 * (18432 - 18432 / 8);
  EXPECT_EQ(whole - steps(), 2048 * 2 * columns - 32 * 4 * 32000 / 8);
}

// A GPU's norms write a second copy of their rows for INT4 experts, where they write no codes.
TEST(MemoryPlanTest, RowsInMatrixOrderAreCounted) {
  ModelDescription model = Known("Kimi-K2-Thinking");
  const PlanOptions options = On("h200", {.tensor = 8});
  const int64_t with = ArenaOf(Plan(model, options), "activations");
  model.experts = WeightForm::kBf16;
  const int64_t without = ArenaOf(Plan(model, options), "activations");
  EXPECT_EQ(with - without, options.max_num_batched_tokens * 7168 * 2);
}

TEST(MemoryPlanTest, TokensCostWhatTheFamilyPageSays) {
  const ModelDescription model = Known("Kimi-K2.5");
  EXPECT_EQ(KvBytesPerToken(model.config, KvForm::kBf16, 61), 70272);
  EXPECT_EQ(KvBytesPerToken(model.config, KvForm::kFp8, 61), 35136);
  EXPECT_EQ(KvBytesPerToken(model.config, KvForm::kFp8Groups, 61), 40016);
}

// Guide 003: 8 x H100-80GB. 32k tokens need 2.14 GiB on every rank.
TEST(MemoryPlanTest, WhyThirtyTwoThousandTokensNeedTwoGibibytes) {
  const ModelDescription model = Known("Kimi-K2-Thinking");
  PlanOptions options = On("h100-80g", {.tensor = 8});
  options.utilisation = 0.95;
  options.kv_cache_bytes = static_cast<int64_t>(0.86 * kGib);  // what was left there
  options.max_model_len = 32768;
  options.max_num_seqs = 1;
  const MemoryPlan plan = Plan(model, options);
  EXPECT_FALSE(plan.Holds(32768, 1));
  EXPECT_TRUE(plan.Holds(12288, 1));
  EXPECT_NEAR(32768.0 * static_cast<double>(plan.stages[0].kv_token_bytes) / kGib, 2.14, 0.01);
  EXPECT_NE(PlanText(plan, {}).find("needs 2.14 GiB of cache a rank, has 0.86 GiB"),
            std::string::npos)
      << PlanText(plan, {});
}

// The same machine holds 262,144 tokens, once the cache is dealt over the ranks in fp8.
TEST(MemoryPlanTest, TheFlagsThatHoldAFullLengthRequestOnEightH100) {
  const ModelDescription model = Known("Kimi-K2-Thinking");
  PlanOptions options = On("h100-80g", {.tensor = 8});
  options.utilisation = 0.95;
  options.max_num_seqs = 4;
  options.max_num_batched_tokens = 32768;
  const Fitting one = FindFitting(model, options, 1);
  ASSERT_TRUE(one.found);
  EXPECT_EQ(one.options.utilisation, 0.95);  // the guide's
  EXPECT_GT(one.options.layout.decode_context, 1);
  EXPECT_TRUE(Plan(model, one.options).Holds(262144, 1));
  options.layout.decode_context = 8;
  options.kv = KvForm::kFp8;
  const Fitting two = FindFitting(model, options, 2);
  ASSERT_TRUE(two.found);
  EXPECT_TRUE(Plan(model, two.options).Holds(262144, 2));
  EXPECT_LE(two.options.utilisation, 0.97);
  EXPECT_LT(two.options.max_num_batched_tokens, 32768);
  EXPECT_FALSE(FindFitting(model, options, 4).found);  // 0.99 would do, and so does fewer at once
}

TEST(MemoryPlanTest, AUtilisationThatLeavesNothingIsNotAWayWhereAnotherFlagWouldDo) {
  const ModelDescription model = Known("Kimi-K2-Thinking");
  const int64_t weights = TotalBytes(Plan(model, On("h100-80g", {.tensor = 8})).stages[0].weights);
  int would_take_nearly_all = 0;
  for (int64_t length = 2048; length <= 262144; length += 2048) {
    PlanOptions options = On("h100-80g", {.tensor = 8});
    options.deterministic = true;  // so that the cache cannot be dealt out
    options.max_model_len = length;
    options.max_num_batched_tokens = 512;
    options.max_num_seqs = 1;
    options.kv = KvForm::kFp8;
    // So that no other layout is looked for.
    options.weight_bytes = {weights};
    const Fitting fitting = FindFitting(model, options, 1);
    if (fitting.found) {
      EXPECT_LE(fitting.options.utilisation, 0.97) << length;
      continue;
    }
    PlanOptions nearly_all = options;
    nearly_all.utilisation = 0.99;
    would_take_nearly_all += Fits(Plan(model, nearly_all));
    EXPECT_NE(MisfitText(Plan(model, options))
                  .find("It fits with --gpu-memory-utilization 0.97 --max-model-len 1"),
              std::string::npos);
  }
  EXPECT_GT(would_take_nearly_all, 0);
  // Where nothing else is left it is said.
  PlanOptions full = On("h100-80g", {.tensor = 8});
  full.max_model_len = 64;
  full.max_num_batched_tokens = 512;
  full.max_num_seqs = 1;
  const int64_t arenas = TotalBytes(Plan(model, full).stages[0].arenas);
  full.weight_bytes = {static_cast<int64_t>(0.985 * static_cast<double>(full.device.memory_bytes)) -
                       arenas};
  const Fitting last = FindFitting(model, full, 1);
  ASSERT_TRUE(last.found);
  EXPECT_EQ(last.options.utilisation, 0.99);
}

TEST(MemoryPlanTest, JsonSaysWhatTheTextSays) {
  PlanOptions options = On("h100-80g", {.tensor = 8, .pipeline = 2});
  options.max_num_seqs = 8;
  const MemoryPlan plan = Plan(Known("Kimi-K2-Instruct"), options);
  const Json json = PlanJson(plan, {4096, 1 << 30});
  EXPECT_EQ(json["kv_cache_tokens"], plan.kv_tokens);
  EXPECT_EQ(json["stages"].size(), 2u);
  EXPECT_EQ(json["stages"][1]["last_layer"], 60);
  EXPECT_EQ(json["stages"][0]["weights"]["bytes"], TotalBytes(plan.stages[0].weights));
  EXPECT_EQ(json["concurrency"].size(), 1u);  // the other length is more than the model's
  EXPECT_EQ(json["demands"].size(), 2u);
  EXPECT_TRUE(json["demands"][0]["fits"]);
  EXPECT_EQ(FitText(plan).find("Fits: "), 0u);
}

TEST(MemoryPlanTest, WhatDoesNotGoWithDeterministicIsNotAWayToMakeItFit) {
  const ModelDescription model = Known("Kimi-K2-Thinking");
  PlanOptions options = On("h100-80g", {.tensor = 8});
  options.utilisation = 0.95;
  options.max_num_seqs = 4;
  options.max_model_len = 131072;
  const Fitting usual = FindFitting(model, options, 1);
  ASSERT_TRUE(usual.found);
  EXPECT_GT(usual.options.layout.decode_context, 1);
  options.deterministic = true;
  EXPECT_EQ(FindFitting(model, options, 1).options.layout.decode_context, 1);
  EXPECT_EQ(PlanText(Plan(model, options), {}).find("--decode-context-parallel-size"),
            std::string::npos);
}

TEST(MemoryPlanTest, AFittingChangesNothingThatNeedNotChange) {
  const Fitting fitting = FindFitting(Known("Kimi-K2-Thinking"), On("h200-141g", {.tensor = 8}), 1);
  ASSERT_TRUE(fitting.found);
  EXPECT_TRUE(fitting.changes.empty());
}

TEST(MemoryPlanTest, AModelThatIsTooLargeIsShortOfMemoryAndSaysSo) {
  PlanOptions options = On("h100-80g", {.tensor = 8});
  const ModelDescription fp8 = Known("Kimi-K2-Instruct");
  const MemoryPlan plan = Plan(fp8, options);
  EXPECT_LT(plan.stages[0].kv_bytes, 0);
  EXPECT_EQ(plan.kv_tokens, 0);
  EXPECT_FALSE(FindFitting(fp8, options, 1).found);
  const std::string text = PlanText(plan, {4096});
  EXPECT_NE(text.find("fits on 16 devices with --pipeline-parallel-size 2\n"), std::string::npos)
      << text;
  options.layout.pipeline = 2;
  EXPECT_GT(Plan(fp8, options).kv_tokens, 0);
}

TEST(MemoryPlanTest, ADeviceMayBeNamedByItsBeginning) {
  EXPECT_EQ(FindDevice("h200").value().name, "h200-141g");
  EXPECT_EQ(FindDevice("H100").value().name, "h100-80g");
  EXPECT_EQ(FindDevice("H20-96G").value().name, "h20-96g");
  EXPECT_FALSE(FindDevice("h20").ok());  // there are two
  EXPECT_FALSE(FindDevice("h2").ok());
  EXPECT_FALSE(FindDevice("").ok());
}

PlanOptions OnHost(double gib) {
  PlanOptions options;
  options.device = {
      .name = "this machine", .memory_bytes = static_cast<int64_t>(gib * kGib), .gpu = false};
  return options;
}

TEST(MemoryPlanTest, CountedWeightsAreTakenAsTheyAre) {
  PlanOptions options = OnHost(40);
  options.weight_bytes = {12'345'678'901};
  const RankPlan rank = Plan(Known("Moonlight-16B-A3B"), options).stages[0];
  EXPECT_EQ(TotalBytes(rank.weights), options.weight_bytes[0]);

  options.layout.pipeline = 2;
  options.weight_bytes = {5'000'000'000, 7'000'000'000};
  const std::vector<RankPlan> stages = Plan(Known("Moonlight-16B-A3B"), options).stages;
  EXPECT_EQ(TotalBytes(stages[1].weights), 7'000'000'000);
  EXPECT_EQ(stages[1].place.stage, 1);
}

TEST(MemoryPlanTest, ActivationsInFloat32TakeMore) {
  ModelDescription model = Known("Moonlight-16B-A3B");
  const int64_t narrow = TotalBytes(Plan(model, OnHost(400)).stages[0].arenas);
  model.plain = WeightForm::kF32;
  const int64_t wide = TotalBytes(Plan(model, OnHost(400)).stages[0].arenas);
  EXPECT_GT(wide, narrow * 5 / 4);
  EXPECT_LT(wide, narrow * 2);
}

// A description knows what --online-quantization comes to as well as the loader.
TEST(MemoryPlanTest, WhatIsQuantisedOnlineIsCountedAsItIsLoaded) {
  ModelDescription model = Known("Moonlight-16B-A3B");
  const int64_t before = TotalBytes(WeightsOfRank(model, {}, {}));
  QuantiseOnline(model);
  const int64_t after = TotalBytes(WeightsOfRank(model, {}, {}));
  OnlineFp8Source source(std::make_unique<DummySource>(0));
  const OpsTable& ops = CpuOps(DType::kBf16);
  const auto loaded =
      static_cast<double>(WeightBytes(PlanWeights(model.config, source, ops, {}).value(), ops));
  EXPECT_LT(after, before - 700'000'000);
  EXPECT_NEAR(static_cast<double>(after), loaded, 0.01 * loaded);
}

// On a CPU the cache is the smaller of 4 GiB and a quarter of what weights and arenas leave.
TEST(MemoryPlanTest, AHostGivesAQuarterOfItsRoomToTheCache) {
  const ModelDescription model = Known("Moonlight-16B-A3B");
  const PlanOptions small = OnHost(40);
  const RankPlan rank = Plan(model, small).stages[0];
  const int64_t left =
      small.device.memory_bytes - TotalBytes(rank.weights) - TotalBytes(rank.arenas);
  EXPECT_EQ(rank.kv_bytes, left / 4);
  EXPECT_EQ(Plan(model, OnHost(400)).stages[0].kv_bytes, static_cast<int64_t>(4 * kGib));
  PlanOptions asked = OnHost(400);
  asked.kv_cache_bytes = static_cast<int64_t>(9 * kGib);
  EXPECT_EQ(Plan(model, asked).stages[0].kv_bytes, asked.kv_cache_bytes);
  asked.kv_cache_bytes = static_cast<int64_t>(390 * kGib);
  EXPECT_LT(Plan(model, asked).stages[0].kv_bytes, 0);
}

// Each replica has a cache of its own, a part of the experts, and room for the rows of all.
TEST(MemoryPlanTest, ReplicasThatShareExpertsHaveAPartOfThemAndRoomForAllRows) {
  PlanOptions options;
  options.device = {.name = "this machine", .memory_bytes = int64_t{1} << 40, .gpu = false};
  options.layout = {.tensor = 2, .whole_experts = true};
  options.max_num_batched_tokens = 1024;
  options.kv_cache_bytes = int64_t{1} << 30;
  const ModelDescription model = DescribeModel("Kimi-K2-Instruct").value();
  const MemoryPlan alone = PlanMemory(model, options).value();
  options.layout.data = 4;
  const MemoryPlan shared = PlanMemory(model, options).value();
  const auto bytes = [](const std::vector<PlanItem>& items, const char* name) {
    int64_t sum = 0;
    for (const PlanItem& item : items) sum += item.name == name ? item.bytes : 0;
    return sum;
  };
  const RankPlan &one = alone.stages[0], &of_four = shared.stages[0];
  EXPECT_EQ(bytes(of_four.weights, "routed experts"), bytes(one.weights, "routed experts") / 4);
  EXPECT_EQ(shared.kv_tokens, alone.kv_tokens);
  EXPECT_EQ(shared.replicas, 4);
  EXPECT_EQ(bytes(one.arenas, "rows of other replicas"), 0);
  // Rows in bf16 and their sums in f32, 7,168 wide, of 4 replicas.
  EXPECT_GT(bytes(of_four.arenas, "rows of other replicas"), 4 * 1024 * 7168 * (2 * 2 + 4));
}

// On several nodes memory is shared by the replicas of one, and what crosses lies beside it.
TEST(MemoryPlanTest, ReplicasOnSeveralNodesHaveRoomForRowsThatCross) {
  PlanOptions options;
  options.device = FindDevice("h200").value();
  options.layout = {.data = 16, .whole_experts = true};
  options.nodes = 2;
  options.max_num_batched_tokens = 1024;
  const ModelDescription model = DescribeModel("Kimi-K2-Instruct").value();
  const auto bytes = [](const MemoryPlan& plan, const char* name) {
    int64_t sum = 0;
    for (const PlanItem& item : plan.stages[0].arenas) sum += item.name == name ? item.bytes : 0;
    return sum;
  };
  const MemoryPlan two = PlanMemory(model, options).value();
  const int64_t row = 7168 * 2 + 8 * 8;
  EXPECT_GE(bytes(two, "rows between nodes"), 2 * 1024 * row);
  EXPECT_LT(bytes(two, "rows between nodes"), 2 * 1024 * row + 4096);
  EXPECT_GT(bytes(two, "NCCL"), 0);
  // One node of eight shares as much.
  options.layout.data = 8;
  options.nodes = 1;
  const MemoryPlan one = PlanMemory(model, options).value();
  EXPECT_EQ(bytes(one, "rows between nodes"), 0);
  EXPECT_EQ(bytes(two, "exchange of ranks"), bytes(one, "exchange of ranks"));
  // A replica on each node: what crosses is gathered at once.
  options.nodes = 8;
  EXPECT_EQ(bytes(PlanMemory(model, options).value(), "rows between nodes"), 0);
}

// Rows of others travel by an exchange whose memory does not grow with the replicas' steps.
TEST(MemoryPlanTest, ReplicasOnGpusExchangeRowsByMemoryOfTheirOwn) {
  PlanOptions options;
  options.device = FindDevice("h200").value();
  options.layout = {.data = 8, .whole_experts = true};
  options.max_num_batched_tokens = 1024;
  const ModelDescription model = DescribeModel("Kimi-K2-Instruct").value();
  const MemoryPlan plan = PlanMemory(model, options).value();
  const auto bytes = [&](const char* name) {
    int64_t sum = 0;
    for (const PlanItem& item : plan.stages[0].arenas) sum += item.name == name ? item.bytes : 0;
    return sum;
  };
  const GpuRankArgs args = RankArgsOf(model.config, options.layout, 0, 1024, DType::kBf16);
  EXPECT_EQ(bytes("exchange of ranks"),
            static_cast<int64_t>(cuda::PlanMemory(args, args.data).bytes));
  EXPECT_GT(bytes("exchange of ranks"), int64_t{16} << 20);
  EXPECT_EQ(bytes("NCCL"), 0);
  // Rows in bf16, what they chose, and sums in f32.
  EXPECT_EQ(bytes("rows of other replicas"), 8 * 1024 * (7168 * (2 + 4) + 8 * 8));
}

TEST(MemoryPlanTest, AHostThatHasRoomIsToldHowMuchCacheToAskFor) {
  const ModelDescription model = Known("DeepSeek-V2-Lite");  // 163840 tokens of 31104 bytes
  PlanOptions options = OnHost(64);
  options.kv_cache_bytes = static_cast<int64_t>(kGib);
  const MemoryPlan plan = Plan(model, options);
  ASSERT_FALSE(plan.Holds(163840, 1));
  const std::string text = MisfitText(plan);
  EXPECT_EQ(text.rfind("To serve at least one request with the models's max seq len (163840)", 0),
            0u)
      << text;
  EXPECT_NE(text.find("It fits with --kv-cache-memory-bytes 5096079360, or with --max-model-len "),
            std::string::npos)
      << text;
  options.kv_cache_bytes = 5096079360;
  EXPECT_TRUE(Plan(model, options).Holds(163840, 1));
  // Where there is no room for it, in whatever form: a shorter request.
  const PlanOptions tight = OnHost(32);
  const MemoryPlan short_of = Plan(model, tight);
  ASSERT_GT(short_of.kv_tokens, 0);
  EXPECT_NE(MisfitText(short_of).find("It fits with --max-model-len " +
                                      std::to_string(short_of.kv_tokens)),
            std::string::npos)
      << MisfitText(short_of);
}

TEST(MemoryPlanTest, ACacheThatLeavesNoRoomForWeightsIsToldASmallerOne) {
  PlanOptions options = OnHost(64);
  options.kv_cache_bytes = static_cast<int64_t>(60 * kGib);
  const MemoryPlan plan = Plan(Known("DeepSeek-V2-Lite"), options);
  ASSERT_LT(plan.stages[0].kv_bytes, 0);
  const std::string text = MisfitText(plan);
  EXPECT_NE(text.find("It fits with --kv-cache-memory-bytes 5096079360"), std::string::npos)
      << text;
}

TEST(MemoryPlanTest, AsLongAsFitsIsALengthOfThePlan) {
  PlanOptions options = OnHost(64);
  options.kv_cache_bytes = static_cast<int64_t>(kGib);
  options.max_model_len = -1;
  const MemoryPlan plan = Plan(Known("DeepSeek-V2-Lite"), options);
  EXPECT_EQ(plan.options.max_model_len, plan.kv_tokens);
  EXPECT_EQ(plan.kv_tokens, static_cast<int64_t>(kGib) / 31104 / 64 * 64);
  EXPECT_TRUE(plan.Holds(plan.options.max_model_len, 1));
  const std::vector<std::string> lines = ShortPlanText(plan);
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_NE(lines[0].find("KV cache 1.00 GiB; 64.00 GiB are there"), std::string::npos) << lines[0];
  EXPECT_NE(lines[1].find("31104 bytes of KV cache a token (bfloat16), 34496 tokens"),
            std::string::npos)
      << lines[1];
}

TEST(MemoryPlanTest, WeightsThatDoNotFitAreToldHowManyGpusTheyNeed) {
  const std::string text =
      PlanText(Plan(Known("Kimi-K2-Thinking"), On("h200-141g", {.tensor = 4})), {4096});
  EXPECT_NE(text.find("no flags make it fit on 4 such devices; weights and arenas alone are more "
                      "than the 125.82 GiB of a rank; it fits on 8 devices with "
                      "--tensor-parallel-size 8\n"),
            std::string::npos)
      << text;
  EXPECT_EQ(text.find("--max-model-len"), std::string::npos) << text;
  PlanOptions counted = On("h200-141g", {.tensor = 4});
  counted.weight_bytes.push_back(int64_t{200} << 30);
  EXPECT_FALSE(FindMoreDevices(Known("Kimi-K2-Thinking"), counted, 1).found);
}

// A block is held whole: 65 tokens over 8 context ranks take a block on each.
TEST(MemoryPlanTest, RequestsAreRoundedUpToBlocksOfEveryContextRank) {
  MemoryPlan plan;
  plan.options.layout.tensor = plan.options.layout.decode_context = 8;
  plan.kv_tokens = 1024;
  EXPECT_TRUE(plan.Holds(512, 2));
  EXPECT_FALSE(plan.Holds(513, 2));
}

TEST(MemoryPlanTest, TheStageWithTheFewestTokensDecides) {
  const MemoryPlan plan =
      Plan(Known("Kimi-K2-Instruct"), On("h800-80g", {.tensor = 8, .pipeline = 2}));
  ASSERT_EQ(plan.stages.size(), 2u);
  const int64_t least = std::min(plan.stages[0].kv_blocks, plan.stages[1].kv_blocks);
  EXPECT_EQ(plan.kv_tokens, least * 64);
}

}  // namespace
}  // namespace baltoro
