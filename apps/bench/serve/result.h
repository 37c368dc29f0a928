#pragma once

// From the answers of a run to its numbers, and those as vLLM prints and writes them.

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "bench/serve/answer.h"
#include "flags/serve_bench_options.h"

namespace baltoro {

// Of one metric, in milliseconds.
struct Spread {
  double mean = 0, median = 0, deviation = 0;
  std::vector<double> percentiles;  // as many as were asked for
};

// Counters of speculative decoding, of the server or of a run.
struct Speculation {
  int64_t drafts = 0, draft_tokens = 0, accepted = 0;
  std::map<int64_t, int64_t> accepted_at;  // by position
};

struct BenchResult {
  double seconds = 0;
  int64_t completed = 0, failed = 0, input_tokens = 0, output_tokens = 0, good = 0;
  double peak_output = 0;                      // chunks of the fullest second
  int64_t peak_requests = 0;                   // under way in it
  std::map<std::string, Spread> metrics = {};  // ttft, tpot, itl, e2el
  std::optional<Speculation> speculation = {};

  double Rate(int64_t count) const {
    return seconds > 0 ? static_cast<double>(count) / seconds : 0;
  }
};

// `seconds` is how long the run took. Answers whose output_tokens is 0 have one token.
BenchResult Summarise(const std::vector<Answer>& answers,
                      double seconds,
                      const BenchServeCommand& command);

// From the text of /metrics; nothing where it has none of these counters.
std::optional<Speculation> ReadSpeculation(std::string_view metrics);
// What came between the two; nothing where nothing was drafted.
std::optional<Speculation> Between(const Speculation& before, const Speculation& after);

// To the character as vLLM prints it.
std::string ResultTable(const BenchResult& result, const BenchServeCommand& command);

// vLLM's keys, in its order. `date` is of the form 20260131-235959.
Json ResultJson(const BenchResult& result,
                const std::vector<Answer>& answers,
                const BenchServeCommand& command,
                const std::string& date);
// vLLM's name of the file, or --result-filename, in --result-dir.
std::string ResultPath(const BenchServeCommand& command, const std::string& date);

}  // namespace baltoro
