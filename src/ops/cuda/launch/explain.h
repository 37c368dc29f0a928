#pragma once

// Which kernel an operation was given, and why, where somebody listens (HiddenState::Explain).

#include <string>

#include "ops/cuda/fused_args.h"

namespace baltoro::cuda {

template <typename Plan>
std::string Why(const Plan& plan) {
  return plan.why;
}

// `plan`, which is told: it has a Text and a reason. `w`: a matrix whose sizes tell which operation
// it is.
template <typename Plan>
const Plan& Explained(const OpContext& ctx,
                      const char* operation,
                      const Plan& plan,
                      const PackedMatrix* w = nullptr) {
  const auto* const beside = static_cast<const Beside*>(ctx.beside);
  if (beside == nullptr || beside->tell == nullptr || !*beside->tell) return plan;
  std::string line = operation;
  if (w != nullptr) line += " [" + std::to_string(w->n) + ", " + std::to_string(w->k) + "]";
  (*beside->tell)(line + ": " + Text(plan) + "; " + Why(plan));
  return plan;
}

}  // namespace baltoro::cuda
