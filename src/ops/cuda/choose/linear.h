#pragma once

// Which kernel multiplies rows by one matrix.

#include <string>
#include <variant>

#include "ops/cuda/choose/bf16_rows1024.h"
#include "ops/cuda/choose/bf16_rows128.h"
#include "ops/cuda/choose/bf16_rows16.h"
#include "ops/cuda/choose/fp8_rows16.h"
#include "ops/cuda/choose/fp8_rows256.h"
#include "ops/cuda/choose/fp8_tiles.h"
#include "ops/cuda/choose/quantise.h"
#include "ops/cuda/choose/router_rows16.h"
#include "ops/cuda/choose/tiles.h"

namespace baltoro::cuda {

enum class LinearKernel : uint8_t {
  kNone,          // no launch, or (questions that may be refused) not taken so
  kBf16Rows16,    // bf16_rows16.cu
  kBf16Rows128,   // bf16_rows128.cc
  kBf16Rows1024,  // bf16_rows1024.cc
  kFp8Rows16,     // fp8_rows16.cu
  kFp8Rows256,    // fp8_rows256.cc
  kFp8Tiles,      // fp8_tiles.cu, fp8_pairs.cu
  kRouterRows16,  // router_rows16.cu
  kTiles,         // tiles.cc
  kBlas,          // blas.cc
  kPlain,         // tiles_plain.cu: any shape and alignment, slowly
};

// What is multiplied: rows; the same as codes alone; gate and up, of which silu(gate) * up is.
enum class LinearInput : uint8_t { kRows, kCodes, kGateUp };

struct LinearQuestion {
  RowsFacts x = {};
  LinearInput input = LinearInput::kRows;
  bool coded = false;         // of kRows: there are codes of them besides
  bool codes_aligned = true;  // these codes, and their scales, to 16 bytes
  MatrixFacts w = {};
  RowsFacts out = {};
  bool has_blas = true;  // false: cuBLASLt has no algorithm for these

  bool operator==(const LinearQuestion&) const = default;
};

struct LinearPlan {
  LinearKernel kernel = LinearKernel::kNone;
  std::variant<std::monostate,
               Bf16Rows16Plan,
               Bf16Rows128Plan,
               Bf16Rows1024Plan,
               Fp8Rows16Plan,
               Fp8Rows256Plan,
               Fp8TilesPlan,
               RouterRows16Plan,
               TilesPlan>
      form = {};
  QuantisePlan input = {};  // a launch ahead, where x is to become codes
  const char* why = "";

  bool taken() const { return kernel != LinearKernel::kNone; }
  template <typename Plan>
  const Plan& as() const {
    return std::get<Plan>(form);
  }
};

LinearPlan ChooseLinear(const LinearQuestion& question, const Card& card);
// The plan of a kernel that is not the one that would be chosen; kNone, and why, where it does not
// take the question. Kernels are held to the rows that they are tested with.
LinearPlan LinearBy(const LinearQuestion& question, LinearKernel kernel, const Card& card);

// Of kGateUp: where silu(gate) * up is made.
enum class GatedWay : uint8_t {
  kInProduct,  // by each block of it: one launch
  kAsCodes,    // ahead, as codes (SwigluQuantise)
  kAsRows,     // ahead, as rows (Swiglu)
};
struct GatedLinearPlan {
  GatedWay way = GatedWay::kAsRows;
  LinearPlan product;  // of what is made, which lies without gaps
};
GatedLinearPlan ChooseGatedLinear(const LinearQuestion& question, const Card& card);

// The norm of a layer folded into a product: behind it, which adds to the residual `out`, or ahead,
// whose rows are `x`. `norm_joins`: its tensors are such as kernels take. kNone: not taken so.
LinearPlan ChooseLinearToNorm(const LinearQuestion& question, bool norm_joins, const Card& card);
LinearPlan ChooseLinearFromNorm(const LinearQuestion& question, bool norm_joins, const Card& card);

const char* NameOf(LinearKernel kernel);
std::string Text(const QuantisePlan& plan);
std::string Text(const LinearPlan& plan);
std::string Text(const GatedLinearPlan& plan);
inline std::string Why(const GatedLinearPlan& plan) {
  return plan.product.why;
}

}  // namespace baltoro::cuda
