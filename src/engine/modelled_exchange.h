#pragma once

// The time that tensor ranks which are not there would spend in exchanges, added to each step: one
// rank's slice of a model then answers at the pace of all ranks. For measuring, never for serving.

#include <memory>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "engine/executor.h"

namespace baltoro {

// How long one sum over the ranks takes, by the rows (tokens) that it adds up: straight lines
// between the points, level before the first, and behind the last the line of the last two.
class ModelledExchange {
 public:
  static constexpr size_t kPointsMax = 64;

  // "ROWS:MICROSECONDS,...", rows growing, times not falling. Empty text: no time at all.
  static Result<ModelledExchange> Parse(std::string_view text);

  bool empty() const { return points_.empty(); }
  Seconds SumOf(int64_t rows) const;

 private:
  std::vector<std::pair<int64_t, Seconds>> points_;
};

// Runs plans by `runner`; each takes `sums` sums of its rows longer.
std::unique_ptr<PlanRunner> WithExchanges(std::unique_ptr<PlanRunner> runner,
                                          ModelledExchange exchange,
                                          int64_t sums);

}  // namespace baltoro
