#pragma once

// A chi-square of what a request samples: its first tokens together, against what is expected.

#include <cmath>
#include <map>
#include <vector>

#include "engine/testing/sampling_contexts.h"

namespace baltoro::test {

// P(X >= x) of a chi-square of `freedom` degrees: the regularised upper incomplete gamma function,
// as a series below its bend and as a continued fraction above.
inline double TailOfChiSquare(double x, double freedom) {
  const double a = freedom / 2, z = x / 2;
  if (z <= 0) return 1;
  const double front = std::exp(a * std::log(z) - z - std::lgamma(a));
  if (z < a + 1) {
    double term = 1 / a, sum = term;
    for (double n = a + 1; term > sum * 1e-15; ++n) sum += term *= z / n;
    return 1 - front * sum;
  }
  double b = z + 1 - a, c = 1e300, d = 1 / b, h = d;
  for (int i = 1; i < 10'000; ++i) {
    const double an = -i * (i - a);
    b += 2;
    d = 1 / (an * d + b);
    c = b + an / c;
    h *= d * c;
    if (std::abs(d * c - 1) < 1e-15) break;
  }
  return front * h;
}

// What is expected of the first `depth` tokens, in cells that are large enough, and what came. A
// cell is these tokens, or their beginning with all that is expected too seldom behind it.
class SampleCells {
 public:
  using Tokens = std::vector<TokenId>;

  SampleCells(const LogitsTable& table, const SamplingContext& context, size_t depth, int draws)
      : table_(table), context_(context), depth_(depth), draws_(draws) {
    Split({}, 1);
    if (rest_ < kSmallest) {
      expected_.front() += rest_;
    } else {
      rest_cell_ = expected_.size();
      expected_.push_back(rest_);
    }
    counts_.resize(expected_.size());
  }

  // A request's tokens, at least `depth`.
  void Count(const Tokens& tokens) {
    Tokens begin;
    for (size_t i = 0; i < depth_; ++i) {
      const auto known = probabilities_.find(begin);
      if (known == probabilities_.end()) break;
      if (known->second[static_cast<size_t>(tokens[i])] <= 0) ++impossible_;
      begin.push_back(tokens[i]);
      if (cells_.contains(begin) || probabilities_.contains(begin)) continue;
      begin.back() = kOthers;
      break;
    }
    const auto cell = cells_.find(begin);
    ++counts_[cell == cells_.end() ? rest_cell_ : cell->second];
  }

  // Tokens that can never come, and came.
  int impossible() const { return impossible_; }
  int cells() const { return static_cast<int>(expected_.size()); }
  double ChiSquare() const {
    double sum = 0;
    for (size_t i = 0; i < expected_.size(); ++i) {
      const double off = counts_[i] - expected_[i];
      sum += off * off / expected_[i];
    }
    return sum;
  }
  double PValue() const { return cells() < 2 ? 1 : TailOfChiSquare(ChiSquare(), cells() - 1); }

 private:
  static constexpr double kSmallest = 20;  // expected in a cell
  static constexpr TokenId kOthers = -1;   // those behind the same tokens that have no cell

  void Split(const Tokens& begin, double probability) {
    Tokens output = context_.output;
    output.insert(output.end(), begin.begin(), begin.end());
    const std::vector<double> next = Probabilities(table_, context_, output);
    probabilities_[begin] = next;
    double others = 0;
    for (size_t id = 0; id < table_.size(); ++id) {
      const double p = probability * next[id];
      if (p * draws_ < kSmallest) {
        others += p;
        continue;
      }
      Tokens longer = begin;
      longer.push_back(static_cast<TokenId>(id));
      if (longer.size() == depth_) {
        AddCell(longer, p);
      } else {
        Split(longer, p);
      }
    }
    if (others * draws_ < kSmallest) {
      rest_ += others * draws_;
      return;
    }
    Tokens longer = begin;
    longer.push_back(kOthers);
    AddCell(longer, others);
  }
  void AddCell(const Tokens& tokens, double probability) {
    cells_[tokens] = expected_.size();
    expected_.push_back(probability * draws_);
  }

  const LogitsTable& table_;
  const SamplingContext& context_;
  const size_t depth_;
  const int draws_;
  std::map<Tokens, std::vector<double>> probabilities_;  // behind the beginnings that are split
  std::map<Tokens, size_t> cells_;
  std::vector<double> expected_;
  std::vector<int> counts_;
  double rest_ = 0;       // expected of all that has no cell of its own
  size_t rest_cell_ = 0;  // theirs
  int impossible_ = 0;
};

}  // namespace baltoro::test
