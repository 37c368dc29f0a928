// The choice of an expert bank, from top to bottom. Each way is the fastest from about the rows an
// expert that stand here, as measured (docs/kernels/moe.md).

#include "ops/cuda/choose/experts.h"
#include "ops/cuda/fused_args.h"

#include <algorithm>

#include "ops/cuda/choose/experts_ways.h"
#include "ops/cuda/choose/overrides.h"

namespace baltoro::cuda {

using namespace experts_ways;  // NOLINT: the parts of this choice

namespace {

Way WayOf(const ExpertsQuestion& q) {
  if (q.tokens() == 0) return {ExpertsKernel::kNone, "no tokens"};
  if (q.top_k == 0) return {ExpertsKernel::kNone, "no experts"};
  if (Int4Takes(q)) return Int4Way(q);
  if (Fp8Takes(q)) return Fp8Way(q);
  return {ExpertsKernel::kGroupedProducts, "no kernels of its own for this form and shape"};
}

// Tells who measures which ways could compute `q`.
void TellListener(const ExpertsQuestion& q, const OverrideQuestion& asked) {
  const ExpertsKernel chosen = WayOf(q).kernel;
  std::vector<std::string> others;
  for (auto at = static_cast<uint8_t>(ExpertsKernel::kInt4OneLaunch1);
       at <= static_cast<uint8_t>(ExpertsKernel::kGroupedProducts); ++at) {
    const auto kernel = static_cast<ExpertsKernel>(at);
    if (kernel == chosen || ExpertsAgainst(q, kernel) != nullptr) continue;
    others.emplace_back(NameOf(kernel));
  }
  q.card.overrides->listener()(Text(asked), NameOf(chosen), others);
}

// The way that an entry of the card's table asks for; none without one, or where it does not take
// the question, which is told.
std::optional<Way> Overridden(const ExpertsQuestion& q) {
  if (q.card.overrides == nullptr || q.tokens() == 0 || q.top_k == 0) return std::nullopt;
  OverrideQuestion asked = {.operation = OverriddenOperation::kExperts,
                            .form = q.gate_up.form,
                            .quantise_input = q.gate_up.quantise_input};
  asked[OverrideFact::kTokens] = q.tokens();
  asked[OverrideFact::kSlots] = q.slots();
  asked[OverrideFact::kHidden] = q.hidden();
  asked[OverrideFact::kIntermediate] = q.intermediate();
  asked[OverrideFact::kTopK] = q.top_k;
  if (q.card.overrides->listener() && !q.ahead) TellListener(q, asked);
  const Override* const entry = q.card.overrides->Find(asked);
  if (entry == nullptr) return std::nullopt;
  const auto kernel = static_cast<ExpertsKernel>(entry->kernel);
  if (const char* const against = ExpertsAgainst(q, kernel)) {
    if (!q.ahead) q.card.overrides->Refuse(*entry, asked, against);
    return std::nullopt;
  }
  return Way{kernel, entry->why.c_str()};
}

// Who chooses, where that is asked.
ExpertsChooser ChooserOf(const ExpertsQuestion& q, ExpertsKernel kernel) {
  switch (kernel) {
    case ExpertsKernel::kInt4OneLaunch1:
    case ExpertsKernel::kInt4OneLaunch4:
    case ExpertsKernel::kFp8OneLaunch1:
    case ExpertsKernel::kFp8OneLaunch4:
    case ExpertsKernel::kFp8OneLaunch8:
      return ExpertsChooser::kKernel;
    case ExpertsKernel::kInt4OneToken:
    case ExpertsKernel::kFp8Entries4:
      return q.tokens() == 1 && KernelCanChoose(q) ? ExpertsChooser::kKernel
                                                   : ExpertsChooser::kGiven;
    case ExpertsKernel::kInt4Digits:
    case ExpertsKernel::kInt4Streaming:
    case ExpertsKernel::kFp8Streaming:
    case ExpertsKernel::kFp8GroupedSum:
      return PreparationCanChoose(q) ? ExpertsChooser::kPreparation : ExpertsChooser::kGiven;
    default:
      return ExpertsChooser::kGiven;
  }
}

// How the shared experts are computed, where there are any.
SharedExperts SharedOf(const ExpertsQuestion& q, const ExpertsPlan& plan) {
  if (!q.shared || q.tokens() == 0) return SharedExperts::kNone;
  switch (plan.kernel) {
    case ExpertsKernel::kFp8OneLaunch1:
    case ExpertsKernel::kFp8OneLaunch4:
    case ExpertsKernel::kFp8OneLaunch8:
    case ExpertsKernel::kFp8Entries4:
      return SharedExperts::kInBank;
    case ExpertsKernel::kInt4OneLaunch1:
    case ExpertsKernel::kInt4OneLaunch4:
    case ExpertsKernel::kInt4OneToken:
    case ExpertsKernel::kInt4Entries:
    case ExpertsKernel::kInt4Digits:
    case ExpertsKernel::kInt4Streaming:
      if (Int4EndsWithShared(q)) return SharedExperts::kInBank;
      break;
    default:
      break;
  }
  const bool beside = plan.kernel == ExpertsKernel::kInt4Digits &&
                      plan.chooser == ExpertsChooser::kPreparation && Int4BesideTakes(q);
  return beside ? SharedExperts::kBeside : SharedExperts::kOwnProduct;
}

}  // namespace

ExpertsPlan ExpertsBy(const ExpertsQuestion& q, ExpertsKernel kernel) {
  ExpertsPlan plan;
  plan.kernel = kernel;
  plan.why = "asked for";
  plan.chooser = ChooserOf(q, kernel);
  plan.shared = SharedOf(q, plan);
  // The sum of few tokens, whose blocks tell the squares of 64 columns each.
  plan.norm = q.norm && plan.shared == SharedExperts::kInBank && Int4EndsWithShared(q) &&
              q.hidden() / kFinishColumns <= BegunNorm::kParts;
  Fill(q, plan);
  return plan;
}

const char* ExpertsAgainst(const ExpertsQuestion& q, ExpertsKernel kernel) {
  switch (kernel) {
    case ExpertsKernel::kNone:
      return "it is no way of a bank";
    case ExpertsKernel::kGroupedProducts: {
      const bool takes = TilesCan(q.gate_up) && TilesCan(q.down) && q.slots() <= kBankSlotsMax &&
                         q.hidden() % 8 == 0 && q.gate_up.aligned(16) && q.down.aligned(16);
      return takes ? nullptr : "it takes no f32, and a hidden size in eights";
    }
    case ExpertsKernel::kFp8OneLaunch1:
    case ExpertsKernel::kFp8OneLaunch4:
    case ExpertsKernel::kFp8OneLaunch8:
    case ExpertsKernel::kFp8Entries4:
    case ExpertsKernel::kFp8Streaming:
    case ExpertsKernel::kFp8GroupedSum:
    case ExpertsKernel::kFp8Grouped128:
      return Fp8Against(q, kernel);
    default:
      return Int4Against(q, kernel);
  }
}

ExpertsPlan ChooseExperts(const ExpertsQuestion& q) {
  const std::optional<Way> overridden = Overridden(q);
  const Way way = overridden ? *overridden : WayOf(q);
  ExpertsPlan plan = ExpertsBy(q, way.kernel);
  plan.why = way.why;
  return plan;
}

namespace experts_ways {

namespace {

// Scores that kernels of the bank know how to make.
bool ScoresAreKnown(const RouterParams& params) {
  return params.groups == 1 && params.score == RouterScore::kSigmoid;
}

}  // namespace

bool KernelCanChoose(const ExpertsQuestion& q) {
  if (!q.choice || !ScoresAreKnown(q.choice->params)) return false;
  const RouterParams& params = q.choice->params;
  return q.top_k <= kChoiceTopMax && params.top_k == q.top_k &&
         params.experts <= kChoiceExpertsMax && params.experts % 4 == 0 &&
         params.experts >= params.top_k && q.choice->logits.aligned(16) &&
         q.choice->bias_alignment % 16 == 0;
}

bool PreparationCanChoose(const ExpertsQuestion& q) {
  if (!q.choice || !ScoresAreKnown(q.choice->params)) return false;
  const RouterParams& params = q.choice->params;
  const int64_t tokens = q.tokens();
  const int64_t warps =
      tokens <= kPrepareRanks * kPrepareFewWarps ? kPrepareFewWarps : kPrepareManyWarps;
  return tokens > 1 && tokens <= kPrepareRanks * kPrepareManyWarps && params.top_k == q.top_k &&
         params.experts <= kPrepareExpertsMax && params.top_k >= 1 &&
         params.top_k <= params.experts && params.top_k <= kPrepareTopMax &&
         q.slots() <= kPrepareSlotsMax && q.entries() <= kPrepareEach * 32 * warps;
}

bool OneLaunchFits(const Card& card) {
  return card.owned && card.multiprocessors >= kOneLaunchBlocks;
}

}  // namespace experts_ways
}  // namespace baltoro::cuda
