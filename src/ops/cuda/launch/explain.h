#pragma once

// Which kernel an operation was given, and why, where somebody listens (HiddenState::Explain).

#include <string>

#include "ops/cuda/layer/fused_args.h"

namespace baltoro::cuda {

// " [n, k]".
inline std::string NameOf(const PackedMatrix& w) {
  return " [" + std::to_string(w.n) + ", " + std::to_string(w.k) + "]";
}

template <typename Plan>
std::string Why(const Plan& plan) {
  return plan.why;
}

// `plan`, which is told: it has a Text and a reason.
template <typename Plan>
const Plan& Explained(const OpContext& ctx, const std::string& operation, const Plan& plan) {
  const auto* const beside = static_cast<const Beside*>(ctx.beside);
  if (beside != nullptr && beside->tell != nullptr && *beside->tell) {
    (*beside->tell)(operation + ": " + Text(plan) + "; " + Why(plan));
  }
  return plan;
}

}  // namespace baltoro::cuda
