#pragma once

// router_rows16 (router_rows16.cu): up to 16 rows by the router's bf16 matrix, a few experts a
// block.

#include <optional>

#include "ops/cuda/choose/facts.h"
#include "ops/cuda/choose/launch_shape.h"

namespace baltoro::cuda {

struct RouterRows16Plan {
  LaunchShape launch = {};

  bool operator==(const RouterRows16Plan&) const = default;
};

namespace router_product {

inline constexpr int kThreads = 256;
inline constexpr int kWarps = kThreads / 32;
inline constexpr int kExperts = 3;  // of a block: 128 blocks for 384, one a multiprocessor
inline constexpr int kChunks = 4;   // eights of a row that one thread holds
inline constexpr int kWidthMax = kThreads * kChunks * 8;
inline constexpr int kRowsMax = 16;

}  // namespace router_product

// None where the kernel does not take them. Logits are f32.
inline std::optional<RouterRows16Plan> PlanRouterRows16(const RowsFacts& x, const MatrixFacts& w) {
  using namespace router_product;
  const bool takes = w.form == WeightForm::kBf16 && w.count == 1 && x.type == DType::kBf16 &&
                     x.rows <= kRowsMax && w.k <= kWidthMax && w.k % 8 == 0 && w.aligned(16) &&
                     x.aligned(16);
  if (!takes) return std::nullopt;
  return RouterRows16Plan{
      .launch = {.x = static_cast<int32_t>(SharesOf(w.n, kExperts)), .threads = kThreads}};
}

}  // namespace baltoro::cuda
