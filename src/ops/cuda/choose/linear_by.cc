// A product by a kernel that is asked for, by a table of overrides above all.

#include "ops/cuda/choose/linear_ways.h"
#include "ops/cuda/choose/overrides.h"

namespace baltoro::cuda {

using namespace linear_ways;  // NOLINT: the parts of this choice

namespace {

constexpr char kAsked[] = "asked for";

struct RowsOf {
  int64_t least, most;

  bool has(const LinearQuestion& q) const { return q.x.rows >= least && q.x.rows <= most; }
};
constexpr RowsOf kRowsOf128 = {9, 128}, kRowsOf1024 = {65, 1024};
constexpr int64_t kFp8TilesRowsMin = 33;

LinearPlan Refused(const char* why) {
  return {.why = why};
}

LinearPlan ByBf16Rows128(const LinearQuestion& q, const Card& card) {
  if (!kRowsOf128.has(q)) return Refused("it takes 9 to 128 rows");
  if (!Bf16Rows128Can(q.x, q.w, q.out)) {
    return Refused("it takes bf16 matrices up to 80 MiB, n even, k in eights, all aligned");
  }
  const Bf16Rows128Plan plan = PlanBf16Rows128({.rows = q.x.rows, .k = q.w.k, .n = q.w.n}, card);
  return Taken(LinearKernel::kBf16Rows128, plan, kAsked);
}

LinearPlan ByBf16Rows1024(const LinearQuestion& q) {
  if (!kRowsOf1024.has(q)) return Refused("it takes 65 to 1024 rows");
  if (!Bf16Rows1024Can(q.x, q.w, q.out)) {
    return Refused("it takes bf16 matrices with n in fours, k in eights, all aligned");
  }
  const Bf16Rows1024Plan plan = PlanBf16Rows1024({.rows = q.x.rows, .k = q.w.k, .n = q.w.n});
  if (plan.columns == 0) return Refused("its blocks fill the card without sharing columns");
  return Taken(LinearKernel::kBf16Rows1024, plan, kAsked);
}

LinearPlan ByFp8Tiles(const LinearQuestion& q, const Card& card) {
  if (q.x.rows < kFp8TilesRowsMin) return Refused("it takes 33 rows and more");
  if (q.w.form != WeightForm::kFp8Block || !TakesWide(q)) {
    return Refused("it takes fp8_w8a8 matrices with n in eights, results aligned");
  }
  const Fp8TilesPlan plan = ChooseFp8Tiles(Fp8TilesOf(q), card);
  return WithInput(q, {.kernel = LinearKernel::kFp8Tiles, .form = plan, .why = kAsked});
}

LinearPlan ByTiles(const LinearQuestion& q, const Card& card) {
  if (!TakesTiles(q)) return Refused("it takes no f32, and bf16 with k in eights, all aligned");
  const bool wide = q.w.form != WeightForm::kFp8Block && AreMany(q, card) && TakesWide(q);
  return WithInput(q, {.kernel = LinearKernel::kTiles,
                       .form = ChooseTiles({.w = q.w, .rows = q.x.rows, .wide = wide}, card),
                       .why = kAsked});
}

// Of matrices that are read as codes or as numbers.
LinearPlan ByReady(const LinearQuestion& q, LinearKernel kernel, const Card& card) {
  switch (kernel) {
    case LinearKernel::kFp8Rows256:
      if (const auto plan = PlanFp8Rows256(q.w, q.out, card)) {
        return WithInput(q, Taken(kernel, *plan, kAsked));
      }
      return Refused("it takes 9 to 256 rows by fp8_w8a8 matrices, if its blocks all run at once");
    case LinearKernel::kFp8Tiles:
      return ByFp8Tiles(q, card);
    case LinearKernel::kTiles:
      return ByTiles(q, card);
    default:
      return Refused("these rows are there as codes alone");
  }
}

OverrideQuestion AskedOf(const LinearQuestion& q) {
  OverrideQuestion asked = {.operation = OverriddenOperation::kLinear,
                            .form = q.w.form,
                            .quantise_input = q.w.quantise_input};
  asked[OverrideFact::kRows] = q.x.rows;
  asked[OverrideFact::kN] = q.w.n;
  asked[OverrideFact::kK] = q.w.k;
  return asked;
}

// Tells who measures what could compute `q`. kPlain is there for what no other takes.
void TellListener(const LinearQuestion& q, const OverrideQuestion& asked, const Card& card) {
  Card plain = card;
  plain.overrides = nullptr;
  const LinearKernel chosen = ChooseLinear(q, plain).kernel;
  std::vector<std::string> others;
  for (auto at = static_cast<uint8_t>(LinearKernel::kBf16Rows16);
       at < static_cast<uint8_t>(LinearKernel::kPlain); ++at) {
    const auto kernel = static_cast<LinearKernel>(at);
    if (kernel != chosen && LinearBy(q, kernel, plain).taken()) others.emplace_back(NameOf(kernel));
  }
  card.overrides->listener()(Text(asked), NameOf(chosen), others);
}

}  // namespace

LinearPlan LinearBy(const LinearQuestion& q, LinearKernel kernel, const Card& card) {
  if (q.x.rows == 0 || q.w.n == 0) return Refused("nothing to do");
  if (q.input == LinearInput::kGateUp) return Refused("rows are gate and up");
  if (q.input == LinearInput::kCodes) return ByReady(q, kernel, card);
  switch (kernel) {
    case LinearKernel::kBf16Rows16:
      if (const auto plan = PlanBf16Rows16(q.x, q.w, q.out, card)) {
        return Taken(kernel, *plan, kAsked);
      }
      return Refused("it takes up to 16 rows by bf16 matrices that its blocks hold whole");
    case LinearKernel::kBf16Rows128:
      return ByBf16Rows128(q, card);
    case LinearKernel::kBf16Rows1024:
      return ByBf16Rows1024(q);
    case LinearKernel::kFp8Rows16:
      if (const auto plan = PlanFp8Rows16(q.x, q.coded, q.w, q.out, card)) {
        return Taken(kernel, *plan, kAsked);
      }
      return Refused("it takes up to 8 rows by fp8_w8a8 matrices that its blocks hold whole");
    case LinearKernel::kBlas:
      if (q.w.form == WeightForm::kBf16 && q.has_blas) return {.kernel = kernel, .why = kAsked};
      return Refused("it takes bf16 that the library has an algorithm for");
    case LinearKernel::kPlain:
      if (IsPlain(q.w.form)) return {.kernel = kernel, .why = kAsked};
      return Refused("it takes bf16 and f32");
    case LinearKernel::kNone:
    case LinearKernel::kRouterRows16:
      return Refused("it is no kernel for any product");
    default:
      return ByReady(q, kernel, card);
  }
}

std::optional<LinearPlan> linear_ways::Overridden(const LinearQuestion& q, const Card& card) {
  if (card.overrides == nullptr || q.x.rows == 0) return std::nullopt;
  const OverrideQuestion asked = AskedOf(q);
  if (card.overrides->listener()) TellListener(q, asked, card);
  const Override* const entry = card.overrides->Find(asked);
  if (entry == nullptr) return std::nullopt;
  LinearPlan plan = LinearBy(q, static_cast<LinearKernel>(entry->kernel), card);
  if (plan.kernel == LinearKernel::kNone) {
    card.overrides->Refuse(*entry, asked, plan.why);
    return std::nullopt;
  }
  plan.why = entry->why.c_str();
  return plan;
}

}  // namespace baltoro::cuda
