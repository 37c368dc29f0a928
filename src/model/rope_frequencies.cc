#include <algorithm>
#include <cmath>
#include <numbers>

#include "model/k2_config.h"

namespace baltoro {
namespace {

// Index of the pair that turns `turns` times within the original context length.
double PairOfTurns(const RopeConfig& rope, int64_t dim, double turns) {
  const double wavelengths = static_cast<double>(rope.original_positions) / (2 * std::numbers::pi);
  return static_cast<double>(dim) * std::log(wavelengths / turns) / (2 * std::log(rope.theta));
}

}  // namespace

double YarnMscale(double factor, double mscale) {
  return factor <= 1 ? 1 : 0.1 * mscale * std::log(factor) + 1;
}

double SoftmaxScale(const K2Config& config) {
  // A draft's heads were trained without the factor of yarn (model-family §9.2).
  if (config.has_heads()) return 1 / std::sqrt(static_cast<double>(config.draft->head_width));
  const double plain = 1 / std::sqrt(static_cast<double>(config.head_dim()));
  if (!config.rope.yarn) return plain;
  const double mscale = YarnMscale(config.rope.factor, config.rope.mscale_all_dim);
  return plain * mscale * mscale;
}

double RopeCosFactor(const RopeConfig& rope) {
  if (!rope.yarn) return 1;
  return YarnMscale(rope.factor, rope.mscale) / YarnMscale(rope.factor, rope.mscale_all_dim);
}

std::vector<double> InverseFrequencies(const RopeConfig& rope, int64_t dim) {
  std::vector<double> frequencies;
  for (int64_t j = 0; j < dim / 2; ++j) {
    frequencies.push_back(
        std::pow(rope.theta, -2.0 * static_cast<double>(j) / static_cast<double>(dim)));
  }
  if (!rope.yarn) return frequencies;

  // Fast pairs are kept, slow ones are stretched by the factor, a ramp lies between.
  const double low = std::max(std::floor(PairOfTurns(rope, dim, rope.beta_fast)), 0.0);
  double high =
      std::min(std::ceil(PairOfTurns(rope, dim, rope.beta_slow)), static_cast<double>(dim) - 1);
  if (high == low) high += 0.001;
  for (int64_t j = 0; j < dim / 2; ++j) {
    const double stretched = std::clamp((static_cast<double>(j) - low) / (high - low), 0.0, 1.0);
    frequencies[j] = frequencies[j] * (1 - stretched) + frequencies[j] / rope.factor * stretched;
  }
  return frequencies;
}

}  // namespace baltoro
