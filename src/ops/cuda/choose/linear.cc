#include "ops/cuda/choose/linear.h"

#include "ops/cuda/choose/linear_ways.h"
#include "ops/cuda/choose/norm.h"
#include "ops/cuda/fused_args.h"

namespace baltoro::cuda {

using namespace linear_ways;  // NOLINT: the parts of this choice

namespace {

// Rows up to which our bf16 kernel of any shape is at the floor of the weights' bytes.
constexpr int64_t kBf16Rows16 = 16;
// Rows from which reading them again for every strip of weights takes longest.
constexpr int64_t kManyRows = 32;
// Rows up to which fp8_rows256 goes before fp8_pairs.
constexpr int64_t kTensOfRows = 128;

// Of coded matrices, and of plain ones what no other kernel takes; x is ready.
LinearPlan ChooseReady(const LinearQuestion& q, const Card& card) {
  const bool wide = AreMany(q, card) && TakesWide(q);
  const bool wide_fp8 = wide && q.w.form == WeightForm::kFp8Block;
  Fp8TilesPlan tiles;
  if (wide_fp8) tiles = ChooseFp8Tiles(Fp8TilesOf(q), card);
  const bool pairs = wide_fp8 && PairsFill(q, tiles, card);
  if (!pairs) {
    if (const auto plan = PlanFp8Rows256(q.w, q.out, card)) {
      return Taken(LinearKernel::kFp8Rows256, *plan, "all its blocks run at once");
    }
  }
  if (wide_fp8) {
    return {.kernel = LinearKernel::kFp8Tiles,
            .form = tiles,
            .why = tiles.pairs ? "by pairs: fp8_rows256 would need more than one round"
                               : "too many blocks for one round, or too few rows for pairs"};
  }
  return {.kernel = LinearKernel::kTiles,
          .form = ChooseTiles({.w = q.w, .rows = q.x.rows, .wide = wide}, card),
          .why = wide ? "many rows of integer codes" : "any coded form"};
}

LinearPlan ChoosePlain(const LinearQuestion& q, const Card& card) {
  const bool takes = TakesTiles(q);
  const bool has_blas = q.has_blas && q.w.form == WeightForm::kBf16;
  if (has_blas && (!takes || q.x.rows > kBf16Rows16)) {
    return {.kernel = LinearKernel::kBlas, .why = "bf16 that no kernel of ours is faster for"};
  }
  if (!takes) return {.kernel = LinearKernel::kPlain, .why = "f32, or odd shapes"};
  LinearPlan plan = ChooseReady(q, card);
  plan.why = "few rows by a large or oddly cut matrix";
  return plan;
}

// Whether the card's table asks for another kernel than the one that has the norm too: why.
const char* OverriddenBeside(const LinearQuestion& q, LinearKernel joined, const Card& card) {
  const auto plan = Overridden(q, card);
  return plan && plan->kernel != joined ? plan->why : nullptr;
}

}  // namespace

namespace linear_ways {

bool AreMany(const LinearQuestion& q, const Card& card) {
  return q.w.form == WeightForm::kFp8Block ? Fp8TilesSuit(q.x.rows, q.w.n, card)
                                           : q.x.rows > kManyRows;
}

bool TakesWide(const LinearQuestion& q) {
  return !IsPlain(q.w.form) && WideTilesCan(q.w) &&
         (q.out.type == DType::kF32 || q.out.aligned(16));
}

bool TakesTiles(const LinearQuestion& q) {
  if (!IsPlain(q.w.form)) return true;
  return TilesCan(q.w) && q.w.k % 8 == 0 && q.w.aligned(16) && q.x.aligned(16);
}

Fp8TilesQuestion Fp8TilesOf(const LinearQuestion& q) {
  return {.w = q.w,
          .rows = q.x.rows,
          .whole_x = q.codes_aligned || (q.input == LinearInput::kRows && !q.coded),
          .out = q.out,
          .has_scratch = true};
}

bool PairsFill(const LinearQuestion& q, const Fp8TilesPlan& plan, const Card& card) {
  return plan.pairs && q.x.rows > kTensOfRows && Fp8PairsFill(q.x.rows, q.w, card);
}

LinearPlan WithInput(const LinearQuestion& q, LinearPlan plan) {
  if (IsPlain(q.w.form)) return plan;
  if (q.input == LinearInput::kCodes) {
    plan.input.kernel = QuantiseKernel::kKnown;
    return plan;
  }
  plan.input = ChooseQuantise({.x = q.x,
                               .known = q.coded,
                               .k = q.w.k,
                               .form = q.w.form,
                               .quantise_input = q.w.quantise_input});
  return plan;
}

}  // namespace linear_ways

LinearPlan ChooseLinear(const LinearQuestion& q, const Card& card) {
  if (q.x.rows == 0 || q.w.n == 0) return {.why = "nothing to do"};
  if (const auto plan = Overridden(q, card)) return *plan;
  if (q.input == LinearInput::kCodes) return WithInput(q, ChooseReady(q, card));
  // In this order: of 9 to 16 rows o is 2.5 us faster in a layer by the first.
  if (const auto plan = PlanBf16Rows16(q.x, q.w, q.out, card)) {
    return Taken(LinearKernel::kBf16Rows16, *plan, "few rows: weights ahead of the wait");
  }
  if (const auto plan = PlanBf16Rows128(q.x, q.w, q.out, card)) {
    return Taken(LinearKernel::kBf16Rows128, *plan, "tens of rows: clusters share columns");
  }
  if (const auto plan = PlanFp8Rows16(q.x, q.coded, q.w, q.out, card)) {
    return Taken(LinearKernel::kFp8Rows16, *plan, "few rows: weights ahead of the wait");
  }
  if (IsPlain(q.w.form)) return ChoosePlain(q, card);
  return WithInput(q, ChooseReady(q, card));
}

GatedLinearPlan ChooseGatedLinear(const LinearQuestion& q, const Card& card) {
  LinearQuestion product = {.x = {.rows = q.x.rows, .width = q.w.k}, .w = q.w, .out = q.out};
  if (q.x.rows > 1) {
    product.x.row_bytes = q.w.k * SizeOf(DType::kBf16);
    product.x.alignment = AlignmentOf(nullptr, product.x.row_bytes);
  }
  const SwigluPlan gates = ChooseSwiglu({.x = q.x, .out = {}, .reader = q.w, .card = card});
  const bool codes = gates.kernel == SwigluWay::kCodes;
  if (codes) product.input = LinearInput::kCodes;
  if (!Overridden(product, card)) {
    if (const auto plan = PlanFp8Rows16Gated(q.x, q.w, q.out, card)) {
      return {GatedWay::kInProduct,
              Taken(LinearKernel::kFp8Rows16, *plan, "few rows: gated and rounded in each block")};
    }
  }
  return {codes ? GatedWay::kAsCodes : GatedWay::kAsRows, ChooseLinear(product, card)};
}

LinearPlan ChooseLinearToNorm(const LinearQuestion& q, bool norm_joins, const Card& card) {
  if (!norm_joins) return {.why = "the norm's tensors are not in vectors"};
  constexpr LinearKernel kJoined = LinearKernel::kBf16Rows16;
  if (const char* const why = OverriddenBeside(q, kJoined, card)) return {.why = why};
  const auto plan = PlanBf16Rows16(q.x, q.w, q.out, card);
  // A sum of squares of each block.
  if (!plan || plan->launch.x > BegunNorm::kParts) return {.why = "not for bf16_rows16"};
  return Taken(kJoined, *plan, "few rows: the norm is shared");
}

LinearPlan ChooseLinearFromNorm(const LinearQuestion& q, bool norm_joins, const Card& card) {
  if (!norm_joins) return {.why = "the norm's tensors are not in vectors"};
  // Measured: of more rows a norm of its own is as fast.
  if (q.x.rows > bf16_rows16::kHalfRows) return {.why = "so many rows have a norm of their own"};
  constexpr LinearKernel kJoined = LinearKernel::kBf16Rows16;
  if (const char* const why = OverriddenBeside(q, kJoined, card)) return {.why = why};
  const auto plan = PlanBf16Rows16(q.x, q.w, q.out, card);
  if (!plan) return {.why = "not for bf16_rows16"};
  return Taken(kJoined, *plan, "few rows: the norm is shared");
}

}  // namespace baltoro::cuda
