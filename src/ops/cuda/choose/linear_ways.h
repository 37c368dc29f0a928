#pragma once

// The parts of the choice of a product (linear.cc, linear_by.cc, inputs.cc).

#include <optional>

#include "ops/cuda/choose/linear.h"

namespace baltoro::cuda::linear_ways {

template <typename Plan>
LinearPlan Taken(LinearKernel kernel, const Plan& plan, const char* why) {
  return {.kernel = kernel, .form = plan, .why = why};
}

// Whether these are rows, and results, for tiles of 128 rows: fp8_tiles, and the wide form of
// `tiles` for integer codes.
bool AreMany(const LinearQuestion& q, const Card& card);
bool TakesWide(const LinearQuestion& q);
// Whether `tiles` can be given them.
bool TakesTiles(const LinearQuestion& q);
Fp8TilesQuestion Fp8TilesOf(const LinearQuestion& q);
// Whether fp8_pairs, of a plan that has it, is the fastest.
bool PairsFill(const LinearQuestion& q, const Fp8TilesPlan& plan, const Card& card);
// A plan of rows in the form that its matrix reads, with what makes that of x.
LinearPlan WithInput(const LinearQuestion& q, LinearPlan plan);

// The plan that an entry of the card's table asks for; none without one, or where its kernel does
// not take the question, which is told.
std::optional<LinearPlan> Overridden(const LinearQuestion& q, const Card& card);

}  // namespace baltoro::cuda::linear_ways
