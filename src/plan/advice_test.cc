// What a plan says where something does not fit, and of several replicas.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/check.h"
#include "plan/memory_plan.h"

namespace baltoro {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

PlanOptions On(const std::string& device, ParallelLayout layout) {
  PlanOptions options;
  options.device = FindDevice(device).value();
  options.layout = layout;
  options.max_num_seqs = 256;
  options.max_num_batched_tokens = 2048;
  options.prompt_logprob_rows = 64;
  return options;
}

MemoryPlan Advised(const std::string& model, const PlanOptions& options) {
  Result<MemoryPlan> plan = PlanMemory(DescribeModel(model).value(), options);
  BT_CHECK(plan.ok());
  Advise(plan.value());
  return std::move(plan).value();
}

// That what is said to fit does.
void ExpectFits(const MemoryPlan& plan) {
  const Fitting& fitting = plan.demands.at(0).fitting;
  ASSERT_TRUE(fitting.found);
  EXPECT_TRUE(Fits(PlanMemory(plan.model, fitting.options).value()));
}

TEST(AdviceTest, TheSameDevicesAreDealtOutOtherwiseBeforeMoreAreAskedFor) {
  const ParallelLayout sixteen{.data = 16, .whole_experts = true};
  const MemoryPlan plain = Advised("Kimi-K2-Instruct", On("h100-80g", sixteen));
  EXPECT_THAT(MisfitText(plain), AllOf(HasSubstr("It fits on the same 16 devices with "),
                                       Not(HasSubstr("32 devices"))));
  ExpectFits(plain);
  PlanOptions options = On("h800-80g", sixteen);
  options.kv = KvForm::kFp8;
  options.max_model_len = 65536;
  const MemoryPlan small = Advised("Kimi-K2-Instruct", options);
  EXPECT_THAT(MisfitText(small),
              HasSubstr("It fits on the same 16 devices with --tensor-parallel-size 4 "
                        "--data-parallel-size 4"));
  EXPECT_THAT(MisfitText(small), Not(HasSubstr("0.99")));
  ExpectFits(small);
}

TEST(AdviceTest, ReplicasThatShareNothingAreToldToShareExperts) {
  PlanOptions options = On("h200-141g", {.tensor = 4});
  options.replicas = 4;
  const MemoryPlan plan = Advised("Kimi-K2-Instruct", options);
  EXPECT_EQ(DevicesOf(options), 16);
  EXPECT_THAT(MisfitText(plan),
              HasSubstr("It fits on the same 16 devices with --enable-expert-parallel"));
  EXPECT_EQ(plan.demands[0].fitting.changes, std::vector<std::string>{"--enable-expert-parallel"});
  ExpectFits(plan);
}

TEST(AdviceTest, NothingIsSaidThatContradictsIt) {
  const MemoryPlan plan =
      Advised("Kimi-K2-Instruct", On("h200-141g", {.data = 8, .whole_experts = true}));
  ASSERT_FALSE(Fits(plan));
  const std::string text = PlanText(plan, {});
  EXPECT_THAT(text, AllOf(HasSubstr("    fits on the same 8 devices with "),
                          Not(HasSubstr("--max-model-len")), Not(HasSubstr("makes it fit"))));
  EXPECT_THAT(MisfitText(plan), Not(HasSubstr("--max-model-len")));
  ExpectFits(plan);
}

// Text, JSON and the words of serve are of one search.
TEST(AdviceTest, JsonAndTextSayTheSame) {
  const MemoryPlan plan =
      Advised("Kimi-K2-Instruct", On("h200-141g", {.data = 8, .whole_experts = true}));
  const Json demand = PlanJson(plan, {})["demands"][0];
  std::string flags;
  for (const Json& flag : demand["fits_with"]) flags += " " + flag.get<std::string>();
  ASSERT_NE(flags, "");
  EXPECT_THAT(MisfitText(plan), HasSubstr("with" + flags));
  EXPECT_THAT(PlanText(plan, {}), HasSubstr("with" + flags + "\n"));
  EXPECT_EQ(demand["devices"], 8);
}

// Weights of which a cache of some hundred tokens is left at a utilisation of 0.97.
PlanOptions NearlyFull(int64_t tokens) {
  PlanOptions options = On("h200-141g", {.tensor = 1});
  const ModelDescription model = DescribeModel("Kimi-K2-Thinking").value();
  const int64_t arenas = TotalBytes(PlanMemory(model, options).value().stages[0].arenas);
  const auto budget = static_cast<int64_t>(0.97 * static_cast<double>(options.device.memory_bytes));
  options.weight_bytes = {budget - arenas - tokens * 2 * 576 * 61};
  return options;
}

TEST(AdviceTest, ALengthOfNoUseIsNoAdviceBesideAnother) {
  const MemoryPlan useful = Advised("Kimi-K2-Thinking", NearlyFull(20000));
  EXPECT_THAT(MisfitText(useful), HasSubstr("It fits with --gpu-memory-utilization 0.97 "
                                            "--max-model-len 19"));
  const MemoryPlan tiny = Advised("Kimi-K2-Thinking", NearlyFull(700));
  EXPECT_THAT(
      PlanText(tiny, {}),
      HasSubstr("no flags make it fit on one such device; weights and arenas alone are more "
                "than the 125.82 GiB of a rank; it fits with --gpu-memory-utilization 0.97 "
                "--max-model-len 640\n"))
      << "nothing else is left";
  PlanOptions more = NearlyFull(700);
  more.weight_bytes.clear();
  EXPECT_THAT(MisfitText(Advised("Kimi-K2-Thinking", more)),
              AllOf(HasSubstr("It fits on 8 devices with --tensor-parallel-size 8"),
                    Not(HasSubstr("--max-model-len"))));
}

// Whoever counted for one layout is asked for each other one, and may refuse it.
TEST(AdviceTest, OtherLayoutsAreCountedAndCheckedByTheHost) {
  PlanOptions options = On("h200-141g", {.data = 8, .whole_experts = true});
  options.weight_bytes = {int64_t{200} << 30};
  EXPECT_FALSE(Advised("Kimi-K2-Instruct", options).demands[0].fitting.found);
  int asked = 0;
  options.settle = [&asked](PlanOptions& other) -> Status {
    ++asked;
    if (other.layout.tensor < 8) return InvalidArgument("not that one");
    other.weight_bytes = {int64_t{90} << 30};
    return {};
  };
  const MemoryPlan plan = Advised("Kimi-K2-Instruct", options);
  EXPECT_GT(asked, 1);
  ASSERT_TRUE(plan.demands[0].fitting.found);
  EXPECT_EQ(plan.demands[0].fitting.options.layout.tensor, 8);
  EXPECT_EQ(plan.demands[0].fitting.options.weight_bytes[0], int64_t{90} << 30);
}

TEST(AdviceTest, AVerdictOfSeveralReplicasNamesTheWholeAndEach) {
  PlanOptions options = On("h200-141g", {.data = 16, .whole_experts = true});
  options.kv = KvForm::kFp8;
  options.max_num_seqs = 8;
  const MemoryPlan plan = Advised("Kimi-K2-Thinking", options);
  ASSERT_TRUE(Fits(plan));
  const double each = plan.Concurrency(262144);
  const std::string verdict = fmt::format(
      "{:.2f} requests of 262144 tokens at once in 16 replicas ({:.2f} in each), {} tokens of KV "
      "cache in each",
      16 * each, each, plan.kv_tokens);
  EXPECT_EQ(FitText(plan), "Fits: " + verdict);
  EXPECT_THAT(PlanText(plan, {262144}),
              AllOf(HasSubstr(fmt::format("GPU KV cache size: {} tokens in each of 16 replicas\n",
                                          plan.kv_tokens)),
                    HasSubstr(fmt::format("tokens per request: {:.2f}x in each of 16 replicas, "
                                          "{:.2f}x in all\n",
                                          each, 16 * each)),
                    HasSubstr("one request of 262144 tokens in each of 16 replicas: fits")));
  const std::string line = ShortPlanText(plan)[1];
  EXPECT_THAT(line, HasSubstr(fmt::format("{:.2f} of that length at once in 16 replicas ({:.2f} in "
                                          "each)",
                                          16 * each, each)));
  const Json json = PlanJson(plan, {262144});
  EXPECT_EQ(json["data_parallel_size"], 16);
  EXPECT_EQ(json["ranks"], 16);
  EXPECT_DOUBLE_EQ(json["concurrency"][0]["requests"], each);
  EXPECT_DOUBLE_EQ(json["concurrency"][0]["requests_in_all"], 16 * each);
}

// The same of replicas that share nothing: an engine each.
TEST(AdviceTest, ReplicasApartAreCountedToo) {
  PlanOptions options = On("h200-141g", {.tensor = 8});
  options.replicas = 4;
  const MemoryPlan plan = Advised("Kimi-K2-Thinking", options);
  options.replicas = 1;
  const MemoryPlan one = Advised("Kimi-K2-Thinking", options);
  EXPECT_EQ(plan.kv_tokens, one.kv_tokens);
  EXPECT_THAT(PlanText(plan, {}),
              HasSubstr("on 32 x h200-141g (139.80 GiB each): 4 replicas of TP 8 (8 ranks)\n"));
  EXPECT_THAT(FitText(plan), HasSubstr("at once in 4 replicas ("));
  EXPECT_THAT(FitText(one), Not(HasSubstr("replicas")));
  EXPECT_THAT(ShortPlanText(plan)[0], HasSubstr("Plan, each of 32 ranks: "));
  EXPECT_EQ(PlanJson(plan, {})["ranks"], 32);
}

}  // namespace
}  // namespace baltoro
