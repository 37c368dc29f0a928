#include "server/metrics.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <set>

#include "server/engine_metrics.h"
#include "server/server_fixture.h"

namespace baltoro {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// The names that dashboards know, with their types, as far as they apply.
const std::set<std::string> kNames = {
    "baltoro:engine_ready gauge",
    "baltoro:engine_restarts_total counter",
    "baltoro:held_answer_bytes gauge",
    "baltoro:held_body_bytes gauge",
    "baltoro:last_step_seconds gauge",
    "baltoro:log_lines_dropped_total counter",
    "baltoro:prompt_tokens_computed_total counter",
    "baltoro:requests_rejected_total counter",
    "baltoro:step_seconds_total counter",
    "baltoro:trace_spans_dropped_total counter",
    "baltoro:trace_spans_exported_total counter",
    "http_request_duration_seconds histogram",
    "http_request_size_bytes summary",
    "http_requests_total counter",
    "http_response_size_bytes summary",
    "process_cpu_seconds_total counter",
    "process_max_fds gauge",
    "process_open_fds gauge",
    "process_resident_memory_bytes gauge",
    "process_start_time_seconds gauge",
    "process_virtual_memory_bytes gauge",
    "vllm:cache_config_info gauge",
    "vllm:e2e_request_latency_seconds histogram",
    "vllm:engine_sleep_state gauge",
    "vllm:generation_tokens_total counter",
    "vllm:inter_token_latency_seconds histogram",
    "vllm:iteration_tokens_total histogram",
    "vllm:kv_cache_usage_perc gauge",
    "vllm:mm_cache_hits_total counter",
    "vllm:mm_cache_queries_total counter",
    "vllm:num_preemptions_total counter",
    "vllm:num_requests_running gauge",
    "vllm:num_requests_waiting gauge",
    "vllm:prefix_cache_hits_total counter",
    "vllm:prefix_cache_queries_total counter",
    "vllm:prompt_tokens_by_source_total counter",
    "vllm:prompt_tokens_cached_total counter",
    "vllm:prompt_tokens_total counter",
    "vllm:request_decode_time_seconds histogram",
    "vllm:request_generation_tokens histogram",
    "vllm:request_inference_time_seconds histogram",
    "vllm:request_max_num_generation_tokens histogram",
    "vllm:request_params_max_tokens histogram",
    "vllm:request_params_n histogram",
    "vllm:request_prefill_kv_computed_tokens histogram",
    "vllm:request_prefill_time_seconds histogram",
    "vllm:request_prompt_tokens histogram",
    "vllm:request_queue_time_seconds histogram",
    "vllm:request_success_total counter",
    "vllm:request_time_per_output_token_seconds histogram",
    "vllm:time_to_first_token_seconds histogram",
};

// The value of a series by its exact name and labels; -1 if there is none.
double Value(const std::string& text, const std::string& series) {
  const size_t at = ("\n" + text).find("\n" + series + " ");
  return at == std::string::npos ? -1 : std::stod(text.substr(at + series.size() + 1));
}

class MetricsTest : public test::ServerFixture {};

TEST_F(MetricsTest, TheNamesAreVllms) {
  Start(Says("x"));
  Complete();

  const test::Answer answer = Get("/metrics");

  EXPECT_EQ(answer.Header("content-type"), "text/plain; version=0.0.4; charset=utf-8");
  std::set<std::string> names;
  const std::string prefix = "# TYPE ";
  for (size_t at = answer.body.find(prefix); at != std::string::npos;
       at = answer.body.find(prefix, at + 1)) {
    const size_t begin = at + prefix.size();
    names.insert(answer.body.substr(begin, answer.body.find('\n', begin) - begin));
  }
  EXPECT_EQ(names, kNames);
}

TEST_F(MetricsTest, ARequestLeavesItsMarks) {
  Start([](const Request&) {
    std::vector<TokenEvent> events = test::Play({{}, {300}, {301}, {302}}, FinishReason::kLength);
    events[1].cached_tokens = 2;
    return events;
  });

  Complete({{"prompt", {1, 2, 3, 4, 5}}, {"n", 2}, {"max_tokens", 40}});
  const std::string text = Get("/metrics").body;

  const std::string labels = "{engine=\"0\",model_name=\"pocket\"}";
  const auto labelled = [&](const char* name) { return Value(text, name + labels); };
  EXPECT_EQ(labelled("vllm:prompt_tokens_total"), 10);
  EXPECT_EQ(labelled("vllm:prompt_tokens_cached_total"), 4);
  EXPECT_EQ(Value(text,
                  "vllm:prompt_tokens_by_source_total{engine=\"0\",model_name=\"pocket\","
                  "source=\"local_compute\"}"),
            6);
  EXPECT_EQ(Value(text,
                  "vllm:request_success_total{engine=\"0\",finished_reason=\"length\","
                  "model_name=\"pocket\"}"),
            2);
  EXPECT_EQ(labelled("vllm:request_params_n_count"), 1);
  EXPECT_EQ(labelled("vllm:request_params_n_sum"), 2);
  EXPECT_EQ(labelled("vllm:request_params_max_tokens_sum"), 80);
  EXPECT_EQ(labelled("vllm:request_generation_tokens_sum"), 6);
  EXPECT_EQ(labelled("vllm:request_max_num_generation_tokens_sum"), 3);
  EXPECT_EQ(labelled("vllm:request_prefill_kv_computed_tokens_sum"), 6);
  EXPECT_EQ(labelled("vllm:time_to_first_token_seconds_count"), 2);
  EXPECT_EQ(labelled("vllm:inter_token_latency_seconds_count"), 4);
  EXPECT_EQ(labelled("vllm:request_time_per_output_token_seconds_count"), 2);
  // An empty event said when the wait was over.
  EXPECT_EQ(labelled("vllm:request_queue_time_seconds_count"), 2);
  EXPECT_EQ(labelled("vllm:e2e_request_latency_seconds_count"), 2);
}

TEST_F(MetricsTest, WithoutWordOfTheQueueNoTimeInItIsInvented) {
  Start(Says("x"));

  Complete();
  const std::string text = Get("/metrics").body;

  EXPECT_EQ(
      Value(text, "vllm:request_queue_time_seconds_count{engine=\"0\",model_name=\"pocket\"}"), 0);
  EXPECT_EQ(
      Value(text, "vllm:request_prefill_time_seconds_count{engine=\"0\",model_name=\"pocket\"}"),
      1);
}

TEST(MetricsUpdateTest, CountersFollowAnEngineThatStartsAgain) {
  Metrics metrics({.model_name = "m", .max_model_len = 1000});
  const std::string series = "vllm:generation_tokens_total{engine=\"0\",model_name=\"m\"}";

  metrics.Update(0, {.generation_tokens = 100}, true);
  EXPECT_EQ(Value(metrics.Scrape(), series), 100);
  metrics.Update(0, {.generation_tokens = 30}, true);
  EXPECT_EQ(Value(metrics.Scrape(), series), 130);
  metrics.Update(0, {.generation_tokens = 30}, true);
  EXPECT_EQ(Value(metrics.Scrape(), series), 130);
}

TEST(MetricsUpdateTest, DraftsAreCountedWhereThereAreAny) {
  EngineStats stats;
  stats.drafts.Count(3, 2);
  stats.drafts.Count(3, 1);
  Metrics without({.model_name = "m", .max_model_len = 1000});
  without.Update(0, stats, true);
  EXPECT_EQ(without.Scrape().find("spec_decode"), std::string::npos);

  Metrics metrics({.model_name = "m", .max_model_len = 1000, .drafts_max = 3});
  metrics.Update(0, stats, true);

  const std::string text = metrics.Scrape(), labels = "{engine=\"0\",model_name=\"m\"}";
  EXPECT_EQ(Value(text, "vllm:spec_decode_num_drafts_total" + labels), 2);
  EXPECT_EQ(Value(text, "vllm:spec_decode_num_draft_tokens_total" + labels), 6);
  EXPECT_EQ(Value(text, "vllm:spec_decode_num_accepted_tokens_total" + labels), 3);
  const auto at = [&](const char* position) {
    return Value(text,
                 std::string("vllm:spec_decode_num_accepted_tokens_per_pos_total{engine=\"0\",") +
                     "model_name=\"m\",position=\"" + position + "\"}");
  };
  EXPECT_EQ(at("0"), 2);
  EXPECT_EQ(at("1"), 1);
  EXPECT_EQ(at("2"), 0);
  EXPECT_EQ(at("3"), -1);
}

TEST(MetricsUpdateTest, BalanceIsToldWhereExpertsMove) {
  EngineStats stats;
  stats.balance = {.rearrangements = 2,
                   .moved_experts = 9,
                   .balancedness_before = 0.5,
                   .balancedness_expected = 0.875,
                   .balancedness = 0.75};
  Metrics without({.model_name = "m", .max_model_len = 1000});
  without.Update(0, stats, true);
  EXPECT_EQ(without.Scrape().find("eplb"), std::string::npos);

  Metrics metrics({.model_name = "m", .max_model_len = 1000, .moves_experts = true});
  metrics.Update(0, stats, true);

  const std::string text = metrics.Scrape(), labels = "{engine=\"0\",model_name=\"m\"}";
  EXPECT_EQ(Value(text, "baltoro:eplb_rearrangements_total" + labels), 2);
  EXPECT_EQ(Value(text, "baltoro:eplb_moved_experts_total" + labels), 9);
  EXPECT_EQ(Value(text, "baltoro:eplb_balancedness_before" + labels), 0.5);
  EXPECT_EQ(Value(text, "baltoro:eplb_balancedness_expected" + labels), 0.875);
  EXPECT_EQ(Value(text, "baltoro:eplb_balancedness" + labels), 0.75);
}

TEST(MetricsUpdateTest, TheNewestStepIsTold) {
  Metrics metrics({.model_name = "m", .max_model_len = 1000});
  const std::string series = "baltoro:last_step_seconds{engine=\"0\",model_name=\"m\"}";
  metrics.Update(0, {.step_seconds_last = 0.5}, true);
  metrics.Update(0, {.step_seconds_last = 0.25}, true);
  EXPECT_EQ(Value(metrics.Scrape(), series), 0.25);
}

TEST_F(MetricsTest, ReadyIsWhatHealthSays) {
  Start(Says("x"));
  const auto ready = [&] {
    return Value(Get("/metrics").body, "baltoro:engine_ready{engine=\"0\",model_name=\"pocket\"}");
  };

  EXPECT_EQ(Get("/health").status, 200);
  EXPECT_EQ(ready(), 1);

  server_->SetEngine(nullptr);

  EXPECT_EQ(Get("/health").status, 503);
  EXPECT_EQ(ready(), 0);
}

TEST(MetricsUpdateTest, TheCacheOfAnEngineThatStartsAgainReplacesTheOldOne) {
  Metrics metrics({.model_name = "m", .max_model_len = 1000});
  metrics.SetCacheConfig(
      0, {.num_blocks = 100, .cache_dtype = "bfloat16", .memory_utilization = 0.75});

  metrics.SetCacheConfig(0,
                         {.num_blocks = 90, .cache_dtype = "bfloat16", .memory_utilization = 0.75});

  const std::string text = metrics.Scrape();
  EXPECT_THAT(text, Not(HasSubstr("num_gpu_blocks=\"100\"")));
  EXPECT_THAT(text, HasSubstr("num_gpu_blocks=\"90\""));
  EXPECT_THAT(text, HasSubstr("gpu_memory_utilization=\"0.75\""));
}

TEST(MetricsUpdateTest, AProcessIsShownWhileItIsThere) {
  Metrics metrics({.model_name = "m", .max_model_len = 1000});
  const std::string series = "process_open_fds{process=";
  metrics.UpdateDoor({.process = {.start_unix = 1, .open_files = 7}});
  EngineStats stats;
  stats.process = {.start_unix = 2, .open_files = 5};

  metrics.Update(0, stats, true);
  EXPECT_EQ(Value(metrics.Scrape(), series + "\"APIServer\"}"), 7);
  EXPECT_EQ(Value(metrics.Scrape(), series + "\"EngineCore\"}"), 5);

  metrics.Update(0, {}, true);
  EXPECT_EQ(Value(metrics.Scrape(), series + "\"APIServer\"}"), 7);
  EXPECT_EQ(Value(metrics.Scrape(), series + "\"EngineCore\"}"), -1);
}

TEST(MetricsUpdateTest, TimeInStepsGoesOnAfterARestart) {
  Metrics metrics({.model_name = "m", .max_model_len = 1000});
  const std::string series = "baltoro:step_seconds_total{engine=\"0\",model_name=\"m\"}";

  metrics.Update(0, {.step = 1, .step_seconds = 1.5}, true);
  metrics.Update(0, {.step = 2, .step_seconds = 2.25}, true);
  EXPECT_EQ(Value(metrics.Scrape(), series), 2.25);
  metrics.Update(0, {.step = 1, .step_seconds = 0.5}, true);
  EXPECT_EQ(Value(metrics.Scrape(), series), 2.75);
}

TEST(MetricsUpdateTest, LinesThatTheLogDroppedAreCountedByProcessAndReason) {
  Metrics metrics({.model_name = "m", .max_model_len = 1000});
  EngineStats stats;
  stats.log_drops = {.unread = 3, .limited = 4};

  metrics.Update(0, stats, true);
  metrics.UpdateDoor({.log_drops = {.unread = 5, .limited = 6}});

  const std::string text = metrics.Scrape(), name = "baltoro:log_lines_dropped_total";
  EXPECT_EQ(Value(text, name + "{process=\"EngineCore\",reason=\"unread\"}"), 3);
  EXPECT_EQ(Value(text, name + "{process=\"EngineCore\",reason=\"limited\"}"), 4);
  EXPECT_EQ(Value(text, name + "{process=\"APIServer\",reason=\"unread\"}"), 5);
  EXPECT_EQ(Value(text, name + "{process=\"APIServer\",reason=\"limited\"}"), 6);
}

TEST(MetricsUpdateTest, EveryStepIsCountedWithTheMeanOfItsSnapshot) {
  Metrics metrics({.model_name = "m", .max_model_len = 1000});

  metrics.Update(0, {.step = 10, .prompt_tokens_computed = 60, .generation_tokens = 40}, true);
  metrics.Update(0, {.step = 10, .prompt_tokens_computed = 60, .generation_tokens = 40}, true);
  metrics.Update(0, {.step = 12, .prompt_tokens_computed = 60, .generation_tokens = 42}, true);

  const std::string text = metrics.Scrape();
  const auto value = [&](const std::string& name) {
    return Value(text, "vllm:iteration_tokens_total" + name);
  };
  EXPECT_EQ(value("_count{engine=\"0\",model_name=\"m\"}"), 12);
  EXPECT_EQ(value("_sum{engine=\"0\",model_name=\"m\"}"), 102);
  EXPECT_EQ(value("_bucket{engine=\"0\",model_name=\"m\",le=\"1\"}"), 2);
  EXPECT_EQ(value("_bucket{engine=\"0\",model_name=\"m\",le=\"16\"}"), 12);
}

TEST(MetricsUpdateTest, ManyRequestsAddNoSeries) {
  Metrics metrics({.model_name = "m", .max_model_len = 1000});
  metrics.engine(0).ObserveFinish({.reason = "stop"});
  metrics.ObserveHttp({.route = "/v1/models", .method = "GET", .status = 200});
  const auto lines = [&] {
    const std::string text = metrics.Scrape();
    return std::count(text.begin(), text.end(), '\n');
  };
  const auto before = lines();

  for (int i = 0; i < 1000; ++i) {
    metrics.engine(0).ObserveFinish({.reason = "stop", .prompt_tokens = i});
    metrics.ObserveHttp({.route = "/v1/models", .method = "GET", .status = 200 + i % 50});
  }

  EXPECT_EQ(lines(), before);
}

}  // namespace
}  // namespace baltoro
