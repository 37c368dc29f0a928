#include "engine/modelled_exchange.h"

#include <gtest/gtest.h>

namespace baltoro {
namespace {

TEST(ModelledExchange, LinesBetweenPointsAndBehindThem) {
  const Result<ModelledExchange> exchange = ModelledExchange::Parse("2:4,10:8,20:28");
  ASSERT_TRUE(exchange.ok()) << exchange.status().message();
  EXPECT_DOUBLE_EQ(exchange.value().SumOf(1), 4e-6);
  EXPECT_DOUBLE_EQ(exchange.value().SumOf(2), 4e-6);
  EXPECT_DOUBLE_EQ(exchange.value().SumOf(6), 6e-6);
  EXPECT_DOUBLE_EQ(exchange.value().SumOf(15), 18e-6);
  EXPECT_DOUBLE_EQ(exchange.value().SumOf(25), 38e-6);
  EXPECT_DOUBLE_EQ(ModelledExchange::Parse("64:5.5").value().SumOf(4096), 5.5e-6);
  EXPECT_EQ(ModelledExchange::Parse("").value().SumOf(7), 0);
}

TEST(ModelledExchange, ErrorsQuoteThePoint) {
  for (const char* const text :
       {"5", "0:1", "1:-1", "1:x", "1:1,", "1:nan", "4:2,4:3", "4:2,9:1"}) {
    const Result<ModelledExchange> exchange = ModelledExchange::Parse(text);
    const std::string last(std::string_view(text).substr(std::string_view(text).rfind(',') + 1));
    if (std::string_view(text) == "1:1,") {  // a comma at the end is no point
      EXPECT_TRUE(exchange.ok());
      continue;
    }
    ASSERT_FALSE(exchange.ok()) << text;
    EXPECT_NE(exchange.status().message().find("'" + last + "'"), std::string::npos)
        << exchange.status().message();
  }
}

class Counting final : public PlanRunner {
 public:
  Result<StepResult> Run(const StepPlan& plan) override {
    StepResult result;
    result.step = plan.step;
    return result;
  }
};

TEST(ModelledExchange, AStepTakesItsSumsLonger) {
  const auto runner = WithExchanges(std::make_unique<Counting>(),
                                    ModelledExchange::Parse("1:100,3:300").value(), /*sums=*/20);
  StepPlan plan;
  plan.step = 9;
  plan.tokens = {1, 2, 3};
  const MonotonicClock clock;
  const Seconds start = clock.Now();
  const Result<StepResult> result = runner->Run(plan);
  EXPECT_GE(clock.Now() - start, 6e-3);
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result.value().step, 9U);
}

}  // namespace
}  // namespace baltoro
