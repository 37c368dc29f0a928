#include "engine/modelled_exchange.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <thread>

namespace baltoro {
namespace {

template <typename T>
bool ReadNumber(std::string_view text, T& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size();
}

class LongerRunner final : public PlanRunner {
 public:
  LongerRunner(std::unique_ptr<PlanRunner> runner, ModelledExchange exchange, int64_t sums)
      : runner_(std::move(runner)), exchange_(std::move(exchange)), sums_(sums) {}

  Result<StepResult> Run(const StepPlan& plan) override {
    Result<StepResult> result = runner_->Run(plan);
    // The kernel wakes a sleeper some 60 us late: the last stretch is waited for.
    constexpr Seconds kLate = 200e-6;
    const Seconds until =
        clock_.Now() + static_cast<double>(sums_) * exchange_.SumOf(plan.num_tokens());
    for (Seconds now = clock_.Now(); now < until; now = clock_.Now()) {
      if (until - now <= kLate) continue;
      std::this_thread::sleep_for(std::chrono::duration<double>(until - now - kLate));
    }
    return result;
  }

 private:
  const std::unique_ptr<PlanRunner> runner_;
  const ModelledExchange exchange_;
  const int64_t sums_;
  const MonotonicClock clock_;
};

}  // namespace

Result<ModelledExchange> ModelledExchange::Parse(std::string_view text) {
  ModelledExchange exchange;
  while (!text.empty()) {
    const std::string_view point = text.substr(0, text.find(','));
    text.remove_prefix(std::min(point.size() + 1, text.size()));
    const size_t colon = point.find(':');
    int64_t rows = 0;
    double microseconds = 0;
    if (colon == std::string_view::npos || !ReadNumber(point.substr(0, colon), rows) ||
        !ReadNumber(point.substr(colon + 1), microseconds) || rows < 1 || !(microseconds >= 0) ||
        microseconds > 1e6) {
      return InvalidArgument(
          fmt::format("--modelled-exchange: '{}' is no ROWS:MICROSECONDS, as in 1:7.5,64:13, with "
                      "rows from 1 and "
                      "microseconds from 0 to 1000000",
                      point));
    }
    if (!exchange.points_.empty() && (rows <= exchange.points_.back().first ||
                                      microseconds * 1e-6 < exchange.points_.back().second)) {
      return InvalidArgument(fmt::format(
          "--modelled-exchange: '{}': rows must grow from point to point, and times must not fall",
          point));
    }
    if (exchange.points_.size() == kPointsMax) {
      return InvalidArgument(fmt::format("--modelled-exchange: more than {} points", kPointsMax));
    }
    exchange.points_.emplace_back(rows, microseconds * 1e-6);
  }
  return exchange;
}

Seconds ModelledExchange::SumOf(int64_t rows) const {
  if (points_.empty()) return 0;
  if (rows <= points_.front().first || points_.size() == 1) return points_.front().second;
  size_t right = 1;
  while (right + 1 < points_.size() && points_[right].first < rows) ++right;
  const auto& [low, short_time] = points_[right - 1];
  const auto& [high, long_time] = points_[right];
  return short_time + (long_time - short_time) * static_cast<double>(rows - low) /
                          static_cast<double>(high - low);
}

std::unique_ptr<PlanRunner> WithExchanges(std::unique_ptr<PlanRunner> runner,
                                          ModelledExchange exchange,
                                          int64_t sums) {
  if (exchange.empty()) return runner;
  return std::make_unique<LongerRunner>(std::move(runner), std::move(exchange), sums);
}

}  // namespace baltoro
