#pragma once

// For the test of the choice: the launches that a plan of an expert bank stands for, and recorded
// ones to hold them to. What other families launch (the shared experts' own product, the
// quantisation of rows) is left open.

#include <string>
#include <vector>

#include "ops/cuda/choose/experts.h"

namespace baltoro::cuda {

struct ExpectedLaunch {
  enum class Times { kOnce, kMaybe, kSome };
  std::string name;                       // a beginning of it; several are separated by '|'
  std::string grid;                       // empty: not asked
  int64_t threads = 0, shared_bytes = 0;  // 0: not asked
  Times times = Times::kOnce;
};
using ExpectedLaunches = std::vector<ExpectedLaunch>;

ExpectedLaunches NotTaken();
ExpectedLaunches LaunchesOf(const ExpertsQuestion& q, const ExpertsPlan& plan);

// One line of the launch table.
struct RecordedLaunches {
  int64_t first = 0, last = 0;
  struct One {
    std::string name;
    std::string grid[2], shared_bytes[2];  // of the first row and of the last
    std::string threads;
  };
  std::vector<One> launches;
};
std::vector<RecordedLaunches> ParseAnswer(const std::vector<std::string>& lines);

// Empty where what was recorded of so many rows is what is expected. Sizes that differ inside an
// interval are known at its ends.
std::string DifferenceFrom(const std::vector<RecordedLaunches>& recorded,
                           int64_t rows,
                           const ExpectedLaunches& expected);

}  // namespace baltoro::cuda
