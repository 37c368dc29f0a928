#pragma once

// Which of two ways is faster, and how what was found becomes entries of a table. No device.

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"

namespace baltoro {

// Medians of rounds in turn, in seconds.
struct Rounds {
  std::vector<double> built_in, other;
};

struct Comparison {
  double built_in = 0;  // seconds, medians of the rounds
  double other = 0;
  double spread = 0;  // of either's rounds, from the least to the most

  double gain() const { return built_in - other; }
  // Beyond the spread, and `share` of the step.
  bool faster(double share) const { return gain() > spread && gain() > share * built_in; }
  bool slower(double share) const { return -gain() > spread && -gain() > share * built_in; }
};

Comparison Compare(const Rounds& rounds);

// A question ("linear form=bf16 rows=16 n=2112 k=7168") for which another kernel was faster.
struct Found {
  std::string question, kernel;
  double gain = 0;  // seconds of the step
};

// A line for each, or for several that are alike at sizes that follow each other in `sizes`, as
// rows=16..32. At most `most`, those that gain most.
std::vector<std::string> Entries(std::vector<Found> found,
                                 std::span<const int64_t> sizes,
                                 size_t most);

// Times a step with all `entries` and says whether it is faster, if some of them came of it
// (`own`), or else not slower.
using StepStays =
    std::function<Result<bool>(size_t step, bool own, const std::vector<std::string>& entries)>;

// The entries of `found`, of each step, as long as all steps stay: what is better alone may be
// worse beside another. Those of a step that does not stay are left out, and all steps are timed
// again, so what is returned was timed as it is. None, where a step without entries is slower by
// those of others.
Result<std::vector<std::string>> Confirm(std::vector<std::vector<Found>> found,
                                         std::span<const int64_t> sizes,
                                         size_t most,
                                         const StepStays& stays);

}  // namespace baltoro
