#pragma once

// What lies ahead of attention and ahead of the experts: a few operations in as few launches as
// forms and shapes allow.

#include "ops/cuda/choose/linear.h"

namespace baltoro::cuda {

// The router's logits.
struct RouterQuestion {
  RowsFacts x = {};
  MatrixFacts w = {};
  RowsFacts logits = {};
  bool has_blas = true;

  bool operator==(const RouterQuestion&) const = default;
};
LinearPlan ChooseRouter(const RouterQuestion& question, const Card& card);

// MoeInputs: the first product of the shared experts and the router's, of the same rows.
struct ExpertInputsQuestion {
  RowsFacts x = {};
  bool norm = false;          // x is to be made of a norm first
  bool coded = false;         // there are codes of x besides
  bool codes_aligned = true;  // as LinearQuestion
  MatrixFacts gate_up = {};
  RowsFacts shared = {};
  MatrixFacts router = {};
  RowsFacts logits = {};

  bool operator==(const ExpertInputsQuestion&) const = default;
};

enum class ExpertInputsOrder : uint8_t {
  kTogether,     // one launch
  kRouterFirst,  // whose launch lets the next start only once it has waited
  kSharedFirst,
};

struct ExpertInputsPlan {
  ExpertInputsOrder order = ExpertInputsOrder::kSharedFirst;
  LinearPlan shared = {};  // kTogether: both
  LinearPlan router = {};  // not of kTogether
  // kRouterFirst: the shared experts' product reads codes, which are older than the router's.
  bool reads_codes = false;
  const char* why = "";
};

ExpertInputsPlan ChooseExpertInputs(const ExpertInputsQuestion& question, const Card& card);
std::string Text(const ExpertInputsPlan& plan);

// AttentionInputs: the cached tokens, the norm of the low-rank query, and the queries.
struct AttentionInputsQuestion {
  RowsFacts qkv_a = {};  // [rows, q_lora + latent + rope]
  int64_t q_lora = 0, latent = 0, rope = 0;
  bool vectors = true;        // rows, norms and angles are read 16 bytes at a time
  bool cache_vectors = true;  // and tokens written so
  // Queries; heads 0: none are asked for.
  int64_t heads = 0, head_width = 0;
  bool heads_together = true;  // no gaps between the heads of a row
  RowsFacts q = {};            // [rows, heads * head_width]
  MatrixFacts q_weight = {};
  int32_t norm_alignment = 256;   // of the weight of the low-rank query's norm
  int32_t angle_alignment = 256;  // of the tables of angles

  bool operator==(const AttentionInputsQuestion&) const = default;
};

// Rows that a warp of kManyRows takes, rows of a block.
inline constexpr int kManyInputsQuery = 1536, kManyInputsLatent = 512, kManyInputsRope = 64;
inline constexpr int kManyInputsWarps = 4;

enum class AttentionInputsKernel : uint8_t {
  kWithQueries,  // all in the launch of the product
  kRows,         // attention_inputs.cu: two blocks a row
  kManyRows,     // attention_inputs.cu: a warp a row
};

struct AttentionInputsPlan {
  AttentionInputsKernel kernel = AttentionInputsKernel::kRows;
  LaunchShape launch = {};    // not of kWithQueries
  bool writes_codes = false;  // of the normalised low-rank query
  LinearPlan query = {};      // kNone: none are asked for
  bool rotates = false;       // the product rotates what it makes; else rope follows
  const char* why = "";
};

AttentionInputsPlan ChooseAttentionInputs(const AttentionInputsQuestion& question,
                                          const Card& card);
std::string Text(const AttentionInputsPlan& plan);

}  // namespace baltoro::cuda
