#pragma once

// The questions about products, and about what lies ahead of attention and of the experts: plain
// data, for what asks a card (ask_*.cc) and for what is held to the answers without one
// (choose/linear_choices_test.cc).

#include <string>
#include <vector>

#include "ops/cuda/fused_args.h"
#include "ops/cuda/launch_table/family.h"
#include "ops/cuda/launch_table/forms.h"
#include "ops/cuda/launch_table/table.h"
#include "ops/ops.h"

namespace baltoro::cuda::launch_table {

using product_test::FormCase;
using product_test::kForms;

inline constexpr FormCase kPlain = kForms[0];
static_assert(kPlain.form == WeightForm::kBf16);

// Rows that a product adds to a sum over ranks may be rounded from here on (kRoundedPartRowsMin).
inline constexpr RowRange kPartRows{.least = 257};
inline constexpr RowRange kNormRows{.most = BegunNorm::kRowsMax};

// A product as a layer has it.
struct LinearCase {
  std::string question;
  RowRange range;
  FormCase form;
  int64_t n = 0, k = 0;
  int64_t x_width = 0;  // of the rows that x is the first columns of
  DType out = DType::kBf16;
  bool coded = false;  // there are codes of x
  // A norm is folded in: ahead, whose rows are x, or behind, whose residual is the output.
  bool norm_ahead = false, norm_behind = false;
};

namespace questions {

struct Product {
  int64_t n, k;
  int64_t x_width = 0;  // 0: k
  DType out = DType::kBf16;
  bool adds = false;         // to the residual: of f32, and bf16 in steps of many rows
  bool behind_norm = false;  // x is a norm's result
  bool joins_norm = false;   // where a norm may be folded into it
};

inline std::vector<Product> ProductsOf(const Rank& r) {
  const int64_t q_in = r.q_lora > 0 ? r.q_lora : r.hidden;
  return {
      {.n = r.qkv_a(), .k = r.hidden, .behind_norm = true, .joins_norm = true},
      {.n = r.head_width(),
       .k = q_in,
       .x_width = r.q_lora > 0 ? r.qkv_a() : 0,
       .behind_norm = r.q_lora == 0},
      {.n = r.hidden, .k = r.heads * kValue, .adds = true, .joins_norm = true},
      {.n = 2 * r.dense, .k = r.hidden, .behind_norm = true},
      {.n = r.hidden, .k = r.dense, .adds = true},
      {.n = 2 * r.shared, .k = r.hidden, .behind_norm = true, .joins_norm = true},
      {.n = r.hidden, .k = r.shared, .adds = true},
      {.n = r.experts, .k = r.hidden, .out = DType::kF32, .behind_norm = true, .joins_norm = true},
      {.n = r.vocab, .k = r.hidden, .out = DType::kF32, .behind_norm = true},
  };
}

inline void AddCases(std::vector<LinearCase>& cases, const FormCase& form, const Product& p) {
  const std::string name = std::string("linear, ") + form.name + " [" + std::to_string(p.n) + ", " +
                           std::to_string(p.k) + "]";
  LinearCase base{.question = {},
                  .range = {},
                  .form = form,
                  .n = p.n,
                  .k = p.k,
                  .x_width = p.x_width > 0 ? p.x_width : p.k,
                  .out = p.adds ? DType::kF32 : p.out};
  const auto add = [&](const std::string& question, const RowRange& range, LinearCase one) {
    one.question = question;
    one.range = range;
    cases.push_back(one);
  };
  const std::string strided = p.x_width > 0 ? ", x in rows of " + std::to_string(p.x_width) : "";
  const std::string plain = name + strided + " to " + (base.out == DType::kF32 ? "f32" : "bf16");
  add(plain, {}, base);
  LinearCase other = base;
  if (p.adds) {
    other.out = DType::kBf16;
    add(name + " to bf16 parts", kPartRows, other);
  }
  if (p.behind_norm && form.quantise_input && NormWritesCodes(p.k)) {
    other = base;
    other.coded = true;
    add(plain + ", x coded", {}, other);
  }
  if (!p.joins_norm) return;
  other = base;
  other.out = p.out;
  (p.adds ? other.norm_behind : other.norm_ahead) = true;
  if (p.adds) other.out = DType::kF32;
  add(name + (p.adds ? ", norm behind" : ", norm ahead"), kNormRows, other);
}

}  // namespace questions

inline std::vector<LinearCase> LinearCases() {
  std::vector<LinearCase> cases;
  for (const FormCase& form : kForms) {
    for (const Rank& rank : Ranks()) {
      for (const questions::Product& product : questions::ProductsOf(rank)) {
        if (CanBeCut(form, product.k)) questions::AddCases(cases, form, product);
      }
    }
  }
  return cases;
}

// The shared experts' first product and the router's.
struct ExpertInputsCase {
  std::string question;
  RowRange range;
  FormCase form;
  Rank rank;
  bool norm = false, coded = false;
};

inline std::vector<ExpertInputsCase> ExpertInputsCases() {
  struct Variant {
    const char* name;
    bool norm, coded;
  };
  std::vector<ExpertInputsCase> cases;
  for (const FormCase& form : kForms) {
    for (const Rank& r : Ranks()) {
      for (const Variant& variant :
           {Variant{"", false, false}, Variant{", norm ahead", true, false},
            Variant{", x coded", false, true}}) {
        if (variant.coded && !(form.quantise_input && NormWritesCodes(r.hidden))) continue;
        const std::string question = std::string("expert inputs, ") + form.name + " [" +
                                     std::to_string(2 * r.shared) + ", " +
                                     std::to_string(r.hidden) + "] and router of " +
                                     std::to_string(r.experts) + variant.name;
        cases.push_back({question, variant.norm ? kNormRows : RowRange{}, form, r, variant.norm,
                         variant.coded});
      }
    }
  }
  return cases;
}

// What lies ahead of attention.
struct AttentionInputsCase {
  std::string question;
  FormCase form;
  Rank rank;
  CacheForm cache;
};

inline std::vector<AttentionInputsCase> AttentionInputsCases() {
  std::vector<AttentionInputsCase> cases;
  for (const Rank& r : Ranks()) {
    for (const FormCase& form : kForms) {
      // Without a low-rank query no matrix is read.
      if (r.q_lora == 0 && form.form != WeightForm::kBf16) continue;
      for (const CacheForm& cache : kCaches) {
        const std::string query = r.q_lora > 0 ? std::string(", q ") + form.name + " [" +
                                                     std::to_string(r.head_width()) + ", " +
                                                     std::to_string(r.q_lora) + "]"
                                               : ", no q";
        cases.push_back(
            {std::string("attention inputs, cache ") + cache.name + query, form, r, cache});
      }
    }
  }
  return cases;
}

// The router's product and the choice of experts behind it.
struct RouterCase {
  std::string name;  // behind "router" and "route"
  int64_t hidden = 0;
  RouterParams params;
};

inline std::vector<RouterCase> RouterCases() {
  std::vector<RouterCase> cases;
  const auto add = [&](int64_t hidden, const RouterParams& params) {
    const std::string name = " of " + std::to_string(params.experts) + " top " +
                             std::to_string(params.top_k) +
                             (params.groups > 1 ? " in " + std::to_string(params.groups) : "");
    cases.push_back({name, hidden, params});
  };
  for (const Rank& r : Ranks()) add(r.hidden, {.experts = r.experts, .top_k = r.top_k});
  add(7168, {.experts = 256, .top_k = 8, .groups = 8, .groups_used = 4});
  return cases;
}

}  // namespace baltoro::cuda::launch_table
