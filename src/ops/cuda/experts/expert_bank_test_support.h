#pragma once

// Banks of experts and steps of their tests, in every weight form.

#include <algorithm>
#include <numeric>

#include "ops/cuda/linear/tiles/tiles_test_support.h"

namespace baltoro::cuda::bank_test {

using namespace product_test;

struct Shape {
  int64_t hidden, intermediate, slots;
  int32_t top_k;
  bool holes = false;  // half of the experts are held elsewhere
};

struct Bank {
  Shape shape;
  Weights gate_up, down;
  std::vector<int32_t> slot_of;

  Bank(const FormCase& form, const Shape& s)
      : shape(s),
        gate_up(1, form, s.slots, 2 * s.intermediate, s.hidden, {0, s.intermediate}),
        down(2, form, s.slots, s.hidden, s.intermediate) {
    const auto experts = static_cast<int32_t>(s.slots * (s.holes ? 2 : 1));
    for (int32_t e = 0; e < experts; ++e) {
      slot_of.push_back(!s.holes ? e : e % 3 == 1 ? -1 : static_cast<int32_t>(e * 5 % s.slots));
    }
  }
};

struct Step {
  Rows x;
  std::vector<int32_t> ids;
  std::vector<float> weights;

  // `hot`: every row takes the first experts.
  Step(const Bank& bank, int64_t rows, bool hot, int64_t nan_row = -1)
      : x(9, rows, bank.shape.hidden, 8, nan_row) {
    std::mt19937 random(static_cast<uint32_t>(rows));
    const int32_t k = bank.shape.top_k;
    std::vector<int32_t> order(bank.slot_of.size());
    for (int64_t t = 0; t < rows; ++t) {
      std::iota(order.begin(), order.end(), 0);
      if (!hot) std::shuffle(order.begin(), order.end(), random);
      ids.insert(ids.end(), order.begin(), order.begin() + k);
      for (int32_t j = 0; j < k; ++j) {
        weights.push_back(static_cast<float>(random() % 1024) / 1024);
      }
    }
  }
};

inline std::string Name(const FormCase& form, const Shape& s, int64_t rows) {
  return std::string(form.name) + " H " + std::to_string(s.hidden) + " I " +
         std::to_string(s.intermediate) + " slots " + std::to_string(s.slots) + " k " +
         std::to_string(s.top_k) + " T " + std::to_string(rows);
}

}  // namespace baltoro::cuda::bank_test
