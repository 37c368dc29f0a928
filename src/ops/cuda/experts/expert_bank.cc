// The expert bank of every weight form, by the plan that its question has (choose/experts.h).
//
// Floor for few tokens: the bytes of the chosen experts over the card's read bandwidth.

#include "ops/cuda/experts/expert_bank.h"

#include <algorithm>
#include <string>

#include "base/check.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/experts/fp8_bank.h"
#include "ops/cuda/experts/int4_bank.h"
#include "ops/cuda/experts/route/shared_at_choice.h"
#include "ops/cuda/launch/explain.h"
#include "ops/cuda/layout/int4_layout.h"

namespace baltoro::cuda {
namespace {

void Must(const Status& status, const char* what) {
  if (status.ok()) [[likely]]
    return;
  EndProcess(std::string("CUDA: ") + what + ": " + status.message());
}

int32_t Narrow(int64_t value) {
  BT_CHECK(value >= 0 && value <= INT32_MAX);
  return static_cast<int32_t>(value);
}

bool Gapless(const PackedMatrix& w) {
  return w.form != WeightForm::kInt4Group || w.stride_bytes == Int4PackedBytes(w.n, w.k);
}

// The rows of x in matrix order, where the norm ahead wrote them.
const __nv_bfloat16* OrderedRowsOf(const OpContext& ctx, const TensorView& x) {
  const OrderedRows* ordered = OrderedOf(ctx);
  if (ordered == nullptr || ordered->of != x.data || ordered->rows != x.dim(0) ||
      ordered->stride != x.stride[0]) {
    return nullptr;
  }
  return static_cast<const __nv_bfloat16*>(ordered->data);
}

MoeChoice ChoiceOf(const ExpertBankArgs& args) {
  if (args.choice == nullptr) return {};
  const ExpertChoice& choice = *args.choice;
  return {.logits = choice.logits.as<float>(),
          .logits_stride = choice.logits.stride[0],
          .bias = choice.bias ? choice.bias.as<float>() : nullptr,
          .experts = choice.params.experts,
          .top_k = choice.params.top_k,
          .normalise = choice.params.normalise,
          .scaling = choice.params.scaling,
          .ids = static_cast<int32_t*>(args.ids.data),
          .weights = static_cast<float*>(args.weights.data)};
}

MoeShape ShapeOf(const ExpertBankArgs& args, const ExpertsPlan& plan) {
  return {.slots = Narrow(args.gate_up.count),
          .hidden = Narrow(args.x.dim(1)),
          .intermediate = Narrow(args.down.k),
          .top_k = Narrow(args.ids.dim(1)),
          .max_tokens = Narrow(args.x.dim(0)),
          // Other ways use that memory for what is theirs.
          .orders = !plan.reads_ordered || plan.makes_ordered};
}

// From one row to the next; of one row, which may have any, its width.
int64_t StrideOf(const TensorView& x) {
  return x.dim(0) > 1 ? x.stride[0] : x.dim(1);
}

MoeInt4Args Int4Args(const OpContext& ctx,
                     const ExpertBankArgs& args,
                     const ExpertsPlan& plan,
                     const int32_t* slot_of) {
  MoeInt4Args to;
  to.x = static_cast<const __nv_bfloat16*>(args.x.data);
  to.x_stride = StrideOf(args.x);
  if (plan.reads_ordered && !plan.makes_ordered) to.ordered = OrderedRowsOf(ctx, args.x);
  to.ids = static_cast<const int32_t*>(args.ids.data);
  to.weights = static_cast<const float*>(args.weights.data);
  to.slot_of = slot_of;
  to.experts = Narrow(static_cast<int64_t>(args.slot_of.size()));
  to.tokens = Narrow(args.x.dim(0));
  to.gate_up = args.gate_up.data;
  to.down = args.down.data;
  if (args.out.dtype == DType::kBf16) {
    to.rounded_out = static_cast<__nv_bfloat16*>(args.out.data);
  } else {
    to.out = static_cast<float*>(args.out.data);
  }
  to.out_stride = StrideOf(args.out);
  if (plan.shared == SharedExperts::kInBank) {
    to.shared = static_cast<const __nv_bfloat16*>(args.shared.data);
    to.shared_stride = StrideOf(args.shared);
    to.shared_down = static_cast<const __nv_bfloat16*>(args.shared_down.data);
    to.shared_intermediate = Narrow(args.shared_down.k);
    if (args.norm != nullptr) to.norm = BegunNormArgsOf(*args.norm);
  }
  to.choice = ChoiceOf(args);
  if (plan.kernel == ExpertsKernel::kInt4OneLaunch1) {
    to.board = RankOf(ctx).board<void>(BoardOf::kInt4OneLaunch1);
  } else if (plan.kernel == ExpertsKernel::kInt4OneLaunch4) {
    to.board = RankOf(ctx).board<void>(BoardOf::kInt4OneLaunch4);
  }
  return to;
}

void Int4Bank(const OpContext& ctx,
              const ExpertBankArgs& args,
              const ExpertsPlan& plan,
              const int32_t* slot_of) {
  const MoeShape shape = ShapeOf(args, plan);
  MoeInt4Args to = Int4Args(ctx, args, plan, slot_of);
  const Result<int64_t> bytes = MoeWorkspaceBytes(shape);
  Must(bytes.status(), "expert bank");
  to.workspace = ctx.scratch->Allocate(static_cast<size_t>(bytes.value()));
  to.workspace_bytes = bytes.value();
  const bool apart = plan.shared == SharedExperts::kOwnProduct;
  MoeGated gated;
  if (plan.chooser == ExpertsChooser::kPreparation) {
    if (apart) gated = GatedByPreparation(ctx, args);
    Must(LaunchMoePrepare(shape, to, plan, gated, StreamOf(ctx)), "preparation of an expert bank");
  }
  if (plan.shared == SharedExperts::kBeside) {
    Must(LaunchMoeSharedAtChoice(shape, to, plan, GatedRows(args), args.shared_down.data,
                                 StreamOf(ctx)),
         "shared experts beside the choice");
  }
  if (apart) AddShared(ctx, args, gated);
  Must(LaunchMoeInt4(shape, to, plan, StreamOf(ctx)), "expert bank");
}

// Entries are sorted ahead of the shared experts' product, so that gate/up, which may then read the
// tables while that product ends, begins with it.
void Fp8SortedBank(const OpContext& ctx,
                   const ExpertBankArgs& args,
                   const ExpertsPlan& plan,
                   const int32_t* slot_of) {
  const bool prepares = plan.chooser == ExpertsChooser::kPreparation;
  const bool apart = plan.shared == SharedExperts::kOwnProduct;
  const MoeGated gated = prepares && apart ? GatedByPreparation(ctx, args) : MoeGated{};
  const MoeRows rows = Fp8BankRows(ctx, args, plan, slot_of);
  const QuantisedRows x = Fp8BankInput(ctx, args);
  Must(prepares ? LaunchMoePrepare(rows, plan, ChoiceOf(args), gated, StreamOf(ctx))
                : LaunchRowsByExpert(rows, StreamOf(ctx)),
       "preparation of an expert bank");
  if (apart) AddShared(ctx, args, gated);
  Fp8BankProducts(ctx, args, plan, rows, x);
}

}  // namespace

ExpertsQuestion ExpertsQuestionOf(const OpContext& ctx,
                                  const ExpertBankArgs& args,
                                  bool knows_rows) {
  ExpertsQuestion q;
  q.card = RankOf(ctx).card;
  q.ahead = !knows_rows;
  q.x = FactsOf(args.x);
  q.out = FactsOf(args.out);
  q.top_k = Narrow(args.ids.dim(1));
  q.gate_up = FactsOf(args.gate_up);
  q.down = FactsOf(args.down);
  q.gapless = Gapless(args.gate_up) && Gapless(args.down);
  if (args.shared) {
    q.shared = FactsOf(args.shared);
    q.shared_down = FactsOf(args.shared_down);
  }
  if (args.choice != nullptr) {
    q.choice = {.logits = FactsOf(args.choice->logits),
                .bias_alignment = AlignmentOf(args.choice->bias.data),
                .params = args.choice->params};
  }
  q.norm = args.norm != nullptr && NormIsInVectors(*args.norm);
  if (knows_rows) {
    q.x_coded = Fp8WholeCodes(ctx, args).x != nullptr;
    q.codes_alone = KnownAsCodesAlone(ctx, args.x.data);
    q.x_ordered = OrderedRowsOf(ctx, args.x) != nullptr;
  }
  return q;
}

ExpertsPlan PlanBank(const OpContext& ctx, const ExpertBankArgs& args) {
  return ChooseExperts(ExpertsQuestionOf(ctx, args, false));
}

void ExpertBank(const OpContext& ctx, const ExpertBankArgs& args) {
  const ExpertsPlan plan = ChooseExperts(ExpertsQuestionOf(ctx, args));
  ExpertBankBy(ctx, args, Explained(ctx, "experts", plan, &args.gate_up));
}

void ExpertBankBy(const OpContext& ctx, const ExpertBankArgs& args, const ExpertsPlan& plan) {
  const int64_t tokens = args.x.dim(0), top_k = args.ids.dim(1), hidden = args.x.dim(1);
  const int32_t* const slot_of = RankOf(ctx).SlotsOnDevice(args.slot_of);
  BT_CHECK(args.x.dtype == DType::kBf16);
  BT_CHECK(args.out.dtype == DType::kF32 || args.out.dtype == DType::kBf16);
  BT_CHECK(args.out.dim(0) == tokens && args.out.dim(1) == hidden);
  BT_CHECK(args.ids.dim(0) == tokens && args.ids.contiguous());
  BT_CHECK(args.weights.dim(0) == tokens && args.weights.dim(1) == top_k);
  BT_CHECK(args.weights.contiguous() && args.down.count == args.gate_up.count);
  BT_CHECK(args.gate_up.n == 2 * args.down.k && args.gate_up.k == hidden);
  BT_CHECK(args.down.n == hidden && FactsOf(args.out).aligned(16));
  if (tokens == 0) return;
  BT_CHECK(args.norm == nullptr || plan.norm);
  BT_CHECK(args.choice == nullptr || plan.chooser != ExpertsChooser::kGiven);
  if (args.shared) {
    BT_CHECK(args.shared.dim(0) == tokens && args.shared_down.n == hidden);
    BT_CHECK(args.shared.dim(1) == 2 * args.shared_down.k);
  }
  switch (plan.kernel) {
    case ExpertsKernel::kNone:
      if (plan.shared == SharedExperts::kOwnProduct) AddShared(ctx, args, {});
      return;
    case ExpertsKernel::kInt4OneLaunch1:
    case ExpertsKernel::kInt4OneLaunch4:
    case ExpertsKernel::kInt4OneToken:
    case ExpertsKernel::kInt4Entries:
    case ExpertsKernel::kInt4Digits:
    case ExpertsKernel::kInt4Streaming:
    case ExpertsKernel::kInt4GroupedSum:
    case ExpertsKernel::kInt4Grouped:
      return Int4Bank(ctx, args, plan, slot_of);
    case ExpertsKernel::kFp8OneLaunch1:
    case ExpertsKernel::kFp8Entries4:
      return Fp8FewEntries(ctx, args, plan, slot_of, ChoiceOf(args));
    case ExpertsKernel::kFp8OneLaunch4:
    case ExpertsKernel::kFp8OneLaunch8:
      return Fp8OneLaunch8(ctx, args, plan, slot_of, ChoiceOf(args));
    case ExpertsKernel::kFp8Streaming:
    case ExpertsKernel::kFp8GroupedSum:
    case ExpertsKernel::kFp8Grouped128:
      return Fp8SortedBank(ctx, args, plan, slot_of);
    case ExpertsKernel::kGroupedProducts:
      if (plan.shared == SharedExperts::kOwnProduct) AddShared(ctx, args, {});
      return GroupedBank(ctx, args, plan, slot_of);
  }
}

}  // namespace baltoro::cuda
