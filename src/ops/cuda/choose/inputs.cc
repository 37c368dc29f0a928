#include "ops/cuda/choose/inputs.h"

#include "ops/cuda/choose/linear_ways.h"

namespace baltoro::cuda {

using namespace linear_ways;  // NOLINT: the parts of this choice

namespace {

constexpr int64_t kEight = 8;  // elements of a thread
constexpr int64_t kThreadsOfProduct = 256;

// Threads for rows of so many elements, in whole warps.
int64_t InputThreads(int64_t width) {
  return SharesOf(SharesOf(width, kEight), 32) * 32;
}

LinearQuestion SharedOf(const ExpertInputsQuestion& q) {
  return {.x = q.x,
          .coded = q.coded,
          .codes_aligned = q.codes_aligned,
          .w = q.gate_up,
          .out = q.shared};
}

// Both in one launch; kNone: not.
LinearPlan Together(const ExpertInputsQuestion& q, const Card& card) {
  const auto few = PlanBf16Rows16(q.x, q.gate_up, q.shared, q.router, q.logits, card);
  if (q.norm) {
    // As ChooseLinearFromNorm.
    if (!few || few->tall) return {};
    return Taken(LinearKernel::kBf16Rows16, *few, "few rows: the norm is shared");
  }
  // First: of 9 to 16 rows each block of the form of few rows reads all of them, 2 to 4 us more.
  if (const auto plan = PlanBf16Rows128(q.x, q.gate_up, q.shared, q.router, q.logits, card)) {
    return Taken(LinearKernel::kBf16Rows128, *plan, "tens of rows: clusters share columns");
  }
  if (const auto plan = PlanBf16Rows1024(q.x, q.gate_up, q.shared, q.router, q.logits)) {
    return Taken(LinearKernel::kBf16Rows1024, *plan, "hundreds of rows: too few blocks each");
  }
  if (few) return Taken(LinearKernel::kBf16Rows16, *few, "few rows: weights ahead of the wait");
  if (PlanRouterRows16(q.x, q.router)) {
    if (const auto plan =
            PlanFp8Rows16Router(q.x, q.coded, q.gate_up, q.shared, q.router.n, card)) {
      return Taken(LinearKernel::kFp8Rows16, *plan, "few rows: weights ahead of the wait");
    }
  }
  if (const auto plan = PlanFp8Rows256Router(q.gate_up, q.shared, q.router, q.logits, q.x, card)) {
    LinearPlan taken = Taken(LinearKernel::kFp8Rows256, *plan, "all its blocks run at once");
    taken.input = ChooseQuantise({.x = q.x,
                                  .known = q.coded,
                                  .k = q.gate_up.k,
                                  .form = q.gate_up.form,
                                  .quantise_input = q.gate_up.quantise_input});
    return taken;
  }
  return {};
}

RouterQuestion RouterOf(const ExpertInputsQuestion& q) {
  return {.x = q.x, .w = q.router, .logits = q.logits};
}

ExpertInputsPlan Apart(const ExpertInputsQuestion& q, const char* why, const Card& card) {
  return {.order = ExpertInputsOrder::kSharedFirst,
          .shared = ChooseLinear(SharedOf(q), card),
          .router = ChooseRouter(RouterOf(q), card),
          .why = why};
}

// Why the card's table asks for a kernel for one of both products; null: it does not.
const char* OverriddenOf(const ExpertInputsQuestion& q, const Card& card) {
  if (const auto shared = Overridden(SharedOf(q), card)) return shared->why;
  const auto router = Overridden({.x = q.x, .w = q.router, .out = q.logits}, card);
  return router ? router->why : nullptr;
}

}  // namespace

LinearPlan ChooseRouter(const RouterQuestion& q, const Card& card) {
  const LinearQuestion product = {.x = q.x, .w = q.w, .out = q.logits, .has_blas = q.has_blas};
  if (const auto plan = Overridden(product, card)) return *plan;
  if (const auto plan = PlanRouterRows16(q.x, q.w)) {
    return Taken(LinearKernel::kRouterRows16, *plan, "few rows: weights ahead of the wait");
  }
  return ChooseLinear(product, card);
}

ExpertInputsPlan ChooseExpertInputs(const ExpertInputsQuestion& q, const Card& card) {
  // With the norm only where no entry asks for another kernel (ChooseLinearFromNorm).
  if (const char* const why = q.norm ? nullptr : OverriddenOf(q, card)) return Apart(q, why, card);
  LinearPlan together = Together(q, card);
  if (together.kernel != LinearKernel::kNone || q.norm) {
    return {.order = ExpertInputsOrder::kTogether, .shared = together, .why = together.why};
  }
  if (q.gate_up.form == WeightForm::kFp8Block) {
    if (const auto router = PlanBf16Rows1024Router(q.x, q.router, q.logits)) {
      ExpertInputsPlan plan = {.order = ExpertInputsOrder::kRouterFirst,
                               .why = "hundreds of rows: the router's blocks fill the card"};
      plan.router = Taken(LinearKernel::kBf16Rows1024, *router, plan.why);
      // Codes of the norm are older than the router's launch, which lets others start only once it
      // has waited.
      if (q.coded) {
        if (const auto shared = PlanFp8Rows256(q.gate_up, q.shared, card)) {
          plan.reads_codes = true;
          plan.shared =
              Taken(LinearKernel::kFp8Rows256, *shared, "its rows are older than the launch ahead");
          plan.shared.input.kernel = QuantiseKernel::kKnown;
          return plan;
        }
      }
      plan.shared = ChooseLinear(SharedOf(q), card);
      return plan;
    }
  }
  return Apart(q, "no kernel has both", card);
}

namespace {

// Whether queries are as all kernels that rotate them want them.
bool Rotates(const AttentionInputsQuestion& q) {
  return q.heads > 0 && q.heads_together && q.q.type == DType::kBf16 &&
         q.q_weight.n == q.heads * q.head_width;
}

// The low-rank query.
RowsFacts QueryRows(const AttentionInputsQuestion& q) {
  RowsFacts x = q.qkv_a;
  x.width = q.q_lora;
  return x;
}

// All in one launch; kNone: not.
LinearPlan WithQueries(const AttentionInputsQuestion& q, const Card& card) {
  constexpr int64_t kStripRows = 8;
  const int64_t nope = q.head_width - q.rope;
  const bool suits = Rotates(q) && q.q_weight.k == q.q_lora && nope > 0 && nope % kStripRows == 0 &&
                     q.head_width % kStripRows == 0 && q.norm_alignment % 16 == 0 &&
                     InputThreads(q.latent) + InputThreads(q.rope) <= kThreadsOfProduct;
  if (!suits) return {};
  if (const auto plan = PlanBf16Rows16Queries(QueryRows(q), q.q_weight, q.q, card)) {
    return Taken(LinearKernel::kBf16Rows16, *plan, "few rows: weights ahead of the wait");
  }
  if (const auto plan = PlanFp8Rows16Queries(QueryRows(q), q.q_weight, q.q, card)) {
    return Taken(LinearKernel::kFp8Rows16, *plan, "few rows: weights ahead of the wait");
  }
  return {};
}

// Whether the queries' product is of codes, which the norm then writes: of few rows it rounds them
// itself.
bool ReadsCodes(const AttentionInputsQuestion& q) {
  constexpr int64_t kRowsMin = 9;
  return q.heads > 0 && q.qkv_a.rows >= kRowsMin && q.q_weight.form == WeightForm::kFp8Block &&
         q.q_weight.quantise_input && q.q_weight.k % 128 == 0;
}

// The product of queries by itself.
LinearQuestion QueriesOf(const AttentionInputsQuestion& q) {
  return {.x = QueryRows(q),
          .input = ReadsCodes(q) ? LinearInput::kCodes : LinearInput::kRows,
          .w = q.q_weight,
          .out = q.q};
}

// The product of queries, rotated; kNone: rope follows it.
LinearPlan RotatedQueries(const AttentionInputsQuestion& q, const Card& card) {
  if (!Rotates(q)) return {};
  const RowsFacts x = QueryRows(q);
  if (q.rope % 2 == 0 && q.head_width % 2 == 0) {
    if (const auto plan = PlanBf16Rows128Queries(x, q.q_weight, q.q, card)) {
      return Taken(LinearKernel::kBf16Rows128, *plan, "tens of rows: clusters share columns");
    }
  }
  if (q.angle_alignment % 8 != 0 || q.rope % 4 != 0 || q.head_width % 4 != 0) return {};
  if (const auto plan = PlanBf16Rows1024Queries(x, q.q_weight, q.q)) {
    return Taken(LinearKernel::kBf16Rows1024, *plan, "hundreds of rows: no other rotates them");
  }
  if (const auto plan = PlanFp8Rows256Queries(q.q_weight, q.q, card)) {
    LinearPlan taken = Taken(LinearKernel::kFp8Rows256, *plan, "all its blocks run at once");
    taken.input.kernel = QuantiseKernel::kKnown;
    return taken;
  }
  return {};
}

// Rows of these widths and so many: a warp asks for all of its row, where a block a row has a way
// to memory, a barrier and as many ways back.
bool AreMany(const AttentionInputsQuestion& q) {
  constexpr int64_t kManyRows = 512;
  return q.qkv_a.rows >= kManyRows && q.vectors && q.q_lora == kManyInputsQuery &&
         q.latent == kManyInputsLatent && q.rope == kManyInputsRope && q.cache_vectors;
}

}  // namespace

AttentionInputsPlan ChooseAttentionInputs(const AttentionInputsQuestion& q, const Card& card) {
  AttentionInputsPlan plan;
  const LinearQuestion queries = QueriesOf(q);
  // A product that an entry asks for stands alone.
  const bool alone = q.heads > 0 && Overridden(queries, card);
  if (!alone) plan.query = WithQueries(q, card);
  if (plan.query.kernel != LinearKernel::kNone) {
    plan.kernel = AttentionInputsKernel::kWithQueries;
    plan.rotates = true;
    plan.why = plan.query.why;
    return plan;
  }
  plan.writes_codes = ReadsCodes(q);
  const auto rows = static_cast<int32_t>(q.qkv_a.rows);
  if (AreMany(q)) {
    plan.kernel = AttentionInputsKernel::kManyRows;
    plan.launch = {.x = static_cast<int32_t>(SharesOf(rows, kManyInputsWarps)),
                   .threads = 32 * kManyInputsWarps};
    plan.why = "many rows: a warp asks for all of one";
  } else {
    plan.launch = {.x = rows,
                   .y = q.q_lora > 0 ? 2 : 1,
                   .threads = static_cast<int32_t>(std::max(
                       InputThreads(q.q_lora), InputThreads(q.latent) + InputThreads(q.rope)))};
    plan.why = "a block for each row's token, another for its query";
  }
  if (q.heads == 0) return plan;
  if (!alone) plan.query = RotatedQueries(q, card);
  plan.rotates = plan.query.kernel != LinearKernel::kNone;
  if (plan.rotates) return plan;
  plan.query = ChooseLinear(queries, card);
  if (alone) plan.why = plan.query.why;
  return plan;
}

}  // namespace baltoro::cuda
