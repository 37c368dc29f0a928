// Banks of experts, with what stands beside them in a step.

#include "ops/cuda/cuda_fused.h"
#include "ops/cuda/launch_table/ask.h"
#include "ops/cuda/launch_table/questions_linear.h"
#include "ops/cuda/norm_join.h"

namespace baltoro::cuda::launch_table {
namespace {

struct Beside {
  const char* name;
  bool shared = true;    // the shared experts
  bool chooses = false;  // the choice is the bank's
  bool norm = false;     // the norm behind it
  bool parts = false;    // bf16 in steps of many rows
  bool coded = false;    // codes of x are there
  bool ordered = false;  // x in matrix order is there
};
constexpr Beside kAll[] = {
    {.name = "alone", .shared = false},
    {.name = "shared"},
    {.name = "shared, chooses", .chooses = true},
    {.name = "shared, norm behind", .norm = true},
    {.name = "shared, chooses, norm behind", .chooses = true, .norm = true},
    {.name = "shared, bf16 parts", .parts = true},
    {.name = "shared, chooses, bf16 parts", .chooses = true, .parts = true},
    {.name = "alone, x coded", .shared = false, .coded = true},
    {.name = "shared, x coded", .coded = true},
    {.name = "shared, chooses, x coded", .chooses = true, .coded = true},
    {.name = "shared, x coded, bf16 parts", .parts = true, .coded = true},
    {.name = "shared, chooses, x coded, bf16 parts", .chooses = true, .parts = true, .coded = true},
    {.name = "shared, x ordered", .ordered = true},
    {.name = "shared, x ordered, bf16 parts", .parts = true, .ordered = true},
};

// Experts of INT4 groups have shared ones in bf16 beside them, all others their own form.
const FormCase& SharedForm(const FormCase& form) {
  return form.form == WeightForm::kInt4Group ? kPlain : form;
}

std::vector<int32_t> SlotsOf(const Rank& r) {
  std::vector<int32_t> slots(static_cast<size_t>(r.experts), -1);
  for (int32_t e = 0; e < r.slots; ++e) slots[static_cast<size_t>(e)] = e;
  return slots;
}

// Kept beside the arguments that point to them.
struct Bank {
  ExpertBankArgs args;
  ExpertChoice choice;
  JoinedNorm norm;
};

void Fill(Bank& bank, Step& s, const FormCase& form, const Rank& r, const Beside& beside) {
  ExpertBankArgs& args = bank.args;
  args.out = s.Rows(beside.parts ? DType::kBf16 : DType::kF32, r.hidden);
  args.x = s.Rows(DType::kBf16, r.hidden);
  args.ids = s.Rows(DType::kI32, r.top_k);
  args.weights = s.Rows(DType::kF32, r.top_k);
  args.gate_up = s.Matrix(form, 2 * r.expert, r.hidden, r.slots);
  args.down = s.Matrix(form, r.hidden, r.expert, r.slots);
  if (beside.shared) {
    args.shared = s.Rows(DType::kBf16, 2 * r.shared);
    args.shared_down = s.Matrix(SharedForm(form), r.hidden, r.shared);
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

void AskBank(Asker& asker, const FormCase& form, const Rank& r, const Beside& beside) {
  const std::vector<int32_t> slots = SlotsOf(r);
  std::string question = std::string("experts, ") + form.name + " " + std::to_string(r.slots) +
                         " of " + std::to_string(r.experts) + " top " + std::to_string(r.top_k) +
                         " [" + std::to_string(r.expert) + ", " + std::to_string(r.hidden) + "], " +
                         beside.name;
  if (beside.shared) question.append(" ").append(std::to_string(r.shared));
  RowRange range;
  if (beside.norm) range.most = JoinedNorm::kRowsMax;
  if (beside.parts) range.least = kRoundedPartRowsMin;
  const auto operation = [&](Step& s) {
    Bank bank;
    Fill(bank, s, form, r, beside);
    bank.args.slot_of = slots;
    if (beside.norm && !BankTakesNorm(bank.args)) return false;
    if (beside.chooses && !BankChooses(bank.args)) return false;
    if (beside.ordered && !BankReadsOrdered(bank.args)) return false;
    ExpertBank(s.ctx, bank.args);
    return true;
  };
  // A table of slots is brought to the card by the first call, which is not captured.
  const auto before = [&](Step& s) {
    Step none(0, s.ctx, static_cast<char*>(s.Place()));
    Bank bank;
    Fill(bank, none, form, r, kAll[0]);
    bank.args.slot_of = slots;
    ExpertBank(none.ctx, bank.args);
  };
  asker.Ask(question, range, operation,
            r.slots < r.experts ? before : std::function<void(Step&)>());
}

}  // namespace

void AskExperts(Asker& asker) {
  std::vector<Rank> ranks = Ranks();
  for (const Rank& rank : ExpertRanks()) ranks.push_back(rank);
  for (const FormCase& form : kForms) {
    // The grouped products have no f32 matrices: a failed check.
    if (form.form == WeightForm::kF32) continue;
    const bool int4 = form.form == WeightForm::kInt4Group;
    for (const Rank& rank : ranks) {
      if (!CanBeCut(form, rank.expert) || !CanBeCut(form, rank.shared)) continue;
      for (const Beside& beside : kAll) {
        if (beside.coded && !(form.quantise_input && NormWritesCodes(rank.hidden))) continue;
        if ((beside.norm || beside.ordered) && !int4) continue;
        AskBank(asker, form, rank, beside);
      }
    }
  }
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
      const JoinedNorm norm = s.Norm(s.Rows(DType::kBf16, r.hidden));
      if (c.coded) s.KnowCodes(args.x);
      if (c.norm) {
        args.norm = &norm;
        if (!NormLinearTakes(args.shared, norm, args.shared_gate_up) ||
            !NormLinearTakes(args.logits, norm, args.router)) {
          return false;
        }
      }
      MoeInputs(s.ctx, args);
      return true;
    });
  }
}

}  // namespace baltoro::cuda::launch_table
