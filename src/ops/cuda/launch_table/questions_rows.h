#pragma once

// The questions about norms, routing and activations, as plain data: for who asks a card what it
// launches, and for who holds choices made without one to the same table.

#include <optional>
#include <string>
#include <vector>

#include "ops/cuda/choose/norm.h"
#include "ops/cuda/launch_table/family.h"
#include "ops/cuda/launch_table/table.h"
#include "ops/cuda/rows/row_sizes.h"

namespace baltoro::cuda::launch_table {

inline std::string Of(int64_t width) {
  return " of " + std::to_string(width);
}

// From f32 to bf16; with a part, the sum too.
struct NormCase {
  std::string name;
  int64_t width;
  std::optional<DType> part;
  NormCopy wanted;
  RowRange range;
};

// Shapes of several models are the same: cases may come twice.
inline std::vector<NormCase> NormCases() {
  std::vector<NormCase> cases;
  for (const Rank& r : Ranks()) {
    cases.push_back({"norm" + Of(r.hidden), r.hidden, std::nullopt, NormCopy::kNone, {}});
    for (const DType part : {DType::kF32, DType::kBf16}) {
      for (const NormCopy copy : {NormCopy::kNone, NormCopy::kCodes, NormCopy::kMatrixOrder}) {
        const std::string name = "sum and norm" + Of(r.hidden) +
                                 (part == DType::kBf16 ? ", bf16 parts" : "") +
                                 (copy == NormCopy::kCodes         ? ", and codes"
                                  : copy == NormCopy::kMatrixOrder ? ", and in order"
                                                                   : "");
        cases.push_back({name,
                         r.hidden,
                         part,
                         copy,
                         {.least = part == DType::kBf16 ? kRoundedPartRowsMin : 1}});
      }
    }
  }
  return cases;
}

struct RouteCase {
  std::string name;  // behind "route"
  int64_t hidden;
  RouterParams params;
};

inline std::vector<RouteCase> RouteCases() {
  std::vector<RouteCase> cases;
  const auto add = [&](int64_t hidden, const RouterParams& params) {
    cases.push_back({Of(params.experts) + " top " + std::to_string(params.top_k) +
                         (params.groups > 1 ? " in " + std::to_string(params.groups) : ""),
                     hidden, params});
  };
  for (const Rank& r : Ranks()) add(r.hidden, {.experts = r.experts, .top_k = r.top_k});
  add(7168, {.experts = 256, .top_k = 8, .groups = 8, .groups_used = 4});
  return cases;
}

// From bf16 to bf16.
inline std::vector<int64_t> SwigluWidths() {
  std::vector<int64_t> widths;
  for (const Rank& r : Ranks()) widths.insert(widths.end(), {r.dense, r.shared});
  return widths;
}

}  // namespace baltoro::cuda::launch_table
