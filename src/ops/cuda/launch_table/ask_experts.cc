// Banks of experts, with what stands beside them in a step.

#include "ops/cuda/cuda_fused.h"
#include "ops/cuda/experts/expert_bank.h"
#include "ops/cuda/launch_table/ask.h"
#include "ops/cuda/launch_table/questions_experts.h"
#include "ops/cuda/launch_table/questions_linear.h"
#include "ops/cuda/norm_begun.h"

namespace baltoro::cuda::launch_table {
namespace {

std::vector<int32_t> SlotsOf(const Rank& r) {
  std::vector<int32_t> slots(static_cast<size_t>(r.experts), -1);
  for (int32_t e = 0; e < r.slots; ++e) slots[static_cast<size_t>(e)] = e;
  return slots;
}

// Kept beside the arguments that point to them.
struct Bank {
  ExpertBankArgs args;
  ExpertChoice choice;
  BegunNorm norm;
};

void Fill(Bank& bank, Step& s, const BankCase& one, const BesideBank& beside) {
  const Rank& r = one.rank;
  ExpertBankArgs& args = bank.args;
  args.out = s.Rows(beside.parts ? DType::kBf16 : DType::kF32, r.hidden);
  args.x = s.Rows(DType::kBf16, r.hidden);
  args.ids = s.Rows(DType::kI32, r.top_k);
  args.weights = s.Rows(DType::kF32, r.top_k);
  args.gate_up = s.Matrix(one.form, 2 * r.expert, r.hidden, r.slots);
  args.down = s.Matrix(one.form, r.hidden, r.expert, r.slots);
  if (beside.shared) {
    args.shared = s.Rows(DType::kBf16, 2 * r.shared);
    args.shared_down = s.Matrix(one.shared_form, r.hidden, r.shared);
  }
  bank.norm = s.Norm(s.Rows(DType::kBf16, r.hidden));
  bank.choice = {.logits = s.Rows(DType::kF32, r.experts),
                 .bias = s.Vector(DType::kF32, r.experts),
                 .params = {.experts = r.experts, .top_k = r.top_k, .scaling = 2.827f}};
  if (beside.norm) args.norm = &bank.norm;
  if (beside.chooses) args.choice = &bank.choice;
  if (beside.coded) s.KnowCodes(args.x);
  if (beside.ordered) s.KnowOrder(args.x);
}

void AskBank(Asker& asker, const BankCase& one) {
  const std::vector<int32_t> slots = SlotsOf(one.rank);
  const BesideBank& beside = one.beside;
  const auto operation = [&](Step& s) {
    Bank bank;
    Fill(bank, s, one, beside);
    bank.args.slot_of = slots;
    if (beside.norm && !PlanBank(s.ctx, bank.args).norm) return false;
    if (beside.chooses && !PlanBank(s.ctx, bank.args).chooses()) return false;
    if (beside.ordered && !PlanBank(s.ctx, bank.args).reads_ordered) return false;
    ExpertBank(s.ctx, bank.args);
    return true;
  };
  // A table of slots is brought to the card by the first call, which is not captured.
  const auto before = [&](Step& s) {
    Step none(0, s.ctx, static_cast<char*>(s.Place()));
    Bank bank;
    Fill(bank, none, one, kBesideBanks[0]);
    bank.args.slot_of = slots;
    ExpertBank(none.ctx, bank.args);
  };
  asker.Ask(one.question, one.range, operation,
            one.rank.slots < one.rank.experts ? before : std::function<void(Step&)>());
}

}  // namespace

void AskExperts(Asker& asker) {
  for (const BankCase& one : BankCases(kRoundedPartRowsMin)) AskBank(asker, one);
}

void AskExpertInputs(Asker& asker) {
  for (const ExpertInputsCase& c : ExpertInputsCases()) {
    const Rank& r = c.rank;
    asker.Ask(c.question, c.range, [&](Step& s) {
      MoeInputArgs args{.shared = s.Rows(DType::kBf16, 2 * r.shared),
                        .ids = s.Rows(DType::kI32, r.top_k),
                        .weights = s.Rows(DType::kF32, r.top_k),
                        .logits = s.Rows(DType::kF32, r.experts),
                        .x = s.Rows(DType::kBf16, r.hidden),
                        .shared_gate_up = s.Matrix(c.form, 2 * r.shared, r.hidden),
                        .router = s.Matrix(kPlain, r.experts, r.hidden),
                        .bias = s.Vector(DType::kF32, r.experts),
                        .params = {.experts = r.experts, .top_k = r.top_k}};
      // Choosing is a launch of its own behind these, route below.
      args.chooses = false;
      const BegunNorm norm = s.Norm(s.Rows(DType::kBf16, r.hidden));
      if (c.coded) s.KnowCodes(args.x);
      if (c.norm) {
        args.norm = &norm;
        if (!PlanFromNorm(args.shared, norm, args.shared_gate_up).taken() ||
            !PlanFromNorm(args.logits, norm, args.router).taken()) {
          return false;
        }
      }
      MoeInputs(s.ctx, args);
      return true;
    });
  }
}

}  // namespace baltoro::cuda::launch_table
