#include "tune/better.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <utility>

namespace baltoro {
namespace {

double Median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

double Spread(const std::vector<double>& values) {
  const auto [least, most] = std::ranges::minmax(values);
  return most - least;
}

// A question around the number of its rows or tokens.
struct Parts {
  std::string before, after;
  int64_t size = 0;  // 0: it names none
};

Parts Split(const std::string& question) {
  for (const std::string key : {" rows=", " tokens="}) {
    const size_t at = question.find(key);
    if (at == std::string::npos) continue;
    const size_t begin = at + key.size();
    const size_t end = std::min(question.find(' ', begin), question.size());
    Parts parts{.before = question.substr(0, begin), .after = question.substr(end)};
    std::from_chars(question.data() + begin, question.data() + end, parts.size);
    return parts;
  }
  return {.before = question, .after = ""};
}

struct Run {
  Parts parts;
  std::string kernel;
  int64_t last = 0;
  double gain = 0;
};

std::string Line(const Run& run) {
  std::string line = run.parts.before;
  if (run.parts.size > 0) line += std::to_string(run.parts.size);
  if (run.last > run.parts.size) line += ".." + std::to_string(run.last);
  return line + run.parts.after + " kernel=" + run.kernel;
}

}  // namespace

Comparison Compare(const Rounds& rounds) {
  return {.built_in = Median(rounds.built_in),
          .other = Median(rounds.other),
          .spread = std::max(Spread(rounds.built_in), Spread(rounds.other))};
}

std::vector<std::string> Entries(std::vector<Found> found,
                                 std::span<const int64_t> sizes,
                                 size_t most) {
  std::vector<int64_t> sorted(sizes.begin(), sizes.end());
  std::ranges::sort(sorted);
  std::map<std::pair<std::string, std::string>, std::vector<Run>> alike;
  std::ranges::sort(found, {}, [](const Found& one) { return Split(one.question).size; });
  for (const Found& one : found) {
    Parts parts = Split(one.question);
    std::vector<Run>& runs = alike[{parts.before + parts.after, one.kernel}];
    if (!runs.empty()) {
      const auto next = std::ranges::upper_bound(sorted, runs.back().last);
      if (next != sorted.end() && *next == parts.size) {
        runs.back().last = parts.size;
        runs.back().gain += one.gain;
        continue;
      }
    }
    const int64_t size = parts.size;
    runs.push_back(
        {.parts = std::move(parts), .kernel = one.kernel, .last = size, .gain = one.gain});
  }
  std::vector<Run> all;
  for (auto& [key, runs] : alike) all.insert(all.end(), runs.begin(), runs.end());
  std::ranges::stable_sort(all, std::greater(), &Run::gain);
  if (all.size() > most) all.resize(most);
  std::vector<std::string> lines;
  for (const Run& run : all) lines.push_back(Line(run));
  return lines;
}

Result<std::vector<std::string>> Confirm(std::vector<std::vector<Found>> found,
                                         std::span<const int64_t> sizes,
                                         size_t most,
                                         const StepStays& stays) {
  for (;;) {  // each turn but the last empties a step
    std::vector<Found> all;
    for (const std::vector<Found>& one : found) all.insert(all.end(), one.begin(), one.end());
    std::vector<std::string> entries = Entries(std::move(all), sizes, most);
    if (entries.empty()) return entries;
    size_t step = 0;
    for (; step < found.size(); ++step) {
      BT_ASSIGN_OR_RETURN(const bool stay, stays(step, !found[step].empty(), entries));
      if (!stay) break;
    }
    if (step == found.size()) return entries;
    // An entry of another step that fits this one as well is slower here.
    if (found[step].empty()) return std::vector<std::string>();
    found[step].clear();
  }
}

}  // namespace baltoro
