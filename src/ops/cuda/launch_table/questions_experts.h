#pragma once

// The questions about banks of experts, as plain data: for who asks a card what it launches, and
// for who holds choices made without one to the same table.

#include <string>
#include <vector>

#include "ops/cuda/fused_args.h"
#include "ops/cuda/launch_table/family.h"
#include "ops/cuda/launch_table/forms.h"
#include "ops/cuda/launch_table/table.h"
#include "ops/ops.h"

namespace baltoro::cuda::launch_table {

struct BesideBank {
  const char* name;
  bool shared = true;    // the shared experts
  bool chooses = false;  // the choice is the bank's
  bool norm = false;     // the norm behind it
  bool parts = false;    // bf16 in steps of many rows
  bool coded = false;    // codes of x are there
  bool ordered = false;  // x in matrix order is there
};
inline constexpr BesideBank kBesideBanks[] = {
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

struct BankCase {
  std::string question;
  product_test::FormCase form, shared_form;
  Rank rank;
  BesideBank beside;
  RowRange range;
};

// Shapes of several models are the same: cases may come twice.
inline std::vector<BankCase> BankCases(int64_t rounded_part_rows_min) {
  using product_test::FormCase;
  using product_test::kForms;
  constexpr FormCase kPlain = kForms[0];
  static_assert(kPlain.form == WeightForm::kBf16);
  std::vector<Rank> ranks = Ranks();
  for (const Rank& rank : ExpertRanks()) ranks.push_back(rank);
  std::vector<BankCase> cases;
  for (const FormCase& form : kForms) {
    // The grouped products have no f32 matrices: a failed check.
    if (form.form == WeightForm::kF32) continue;
    const bool int4 = form.form == WeightForm::kInt4Group;
    for (const Rank& r : ranks) {
      if (!CanBeCut(form, r.expert) || !CanBeCut(form, r.shared)) continue;
      for (const BesideBank& beside : kBesideBanks) {
        if (beside.coded && !(form.quantise_input && NormWritesCodes(r.hidden))) continue;
        if ((beside.norm || beside.ordered) && !int4) continue;
        std::string question = std::string("experts, ") + form.name + " " +
                               std::to_string(r.slots) + " of " + std::to_string(r.experts) +
                               " top " + std::to_string(r.top_k) + " [" + std::to_string(r.expert) +
                               ", " + std::to_string(r.hidden) + "], " + beside.name;
        if (beside.shared) question.append(" ").append(std::to_string(r.shared));
        RowRange range;
        if (beside.norm) range.most = BegunNorm::kRowsMax;
        if (beside.parts) range.least = rounded_part_rows_min;
        // Experts of INT4 groups have shared ones in bf16 beside them, all others their own form.
        cases.push_back({question, form, int4 ? kPlain : form, r, beside, range});
      }
    }
  }
  return cases;
}

}  // namespace baltoro::cuda::launch_table
