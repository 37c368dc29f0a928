#pragma once

// Which kernels compute a bank of experts: a question of its forms, shapes, rows and neighbours,
// and a plan that its launches follow. Plain C++ without CUDA: a choice is made, printed and
// tested on any machine.
//
// experts.cc is the choice, from top to bottom; experts_int4.cc and experts_fp8.cc the ways of a
// form of weights, experts_fill.cc the parameters of a way that has been chosen.

#include <cstdint>
#include <optional>
#include <string>

#include "ops/cuda/choose/card.h"
#include "ops/cuda/choose/facts.h"

namespace baltoro::cuda {

struct ExpertsQuestion {
  Card card;
  RowsFacts x, out;           // [T, H]
  int32_t top_k = 0;          // of a token; 0: no experts, the shared ones alone
  MatrixFacts gate_up, down;  // slots matrices [2 I, H], [H, I]
  bool gapless = true;        // a slot's matrix ends where the next one begins
  // The shared experts' first product and their second matrix, whose part is in `out` too.
  std::optional<RowsFacts> shared;
  MatrixFacts shared_down;
  // The choice of experts is asked of the bank.
  struct Choice {
    RowsFacts logits;
    int32_t bias_alignment = 256;
    RouterParams params;
  };
  std::optional<Choice> choice;
  bool norm = false;  // a norm is behind that its kernels may add to (NormIsInVectors)
  // Rows of x are known as codes, whole and aligned (Beside::rounded, gathered); and are nowhere
  // but as codes (gathered), be these whole or not.
  bool x_coded = false, codes_alone = false;
  bool x_ordered = false;  // x is known in matrix order (Beside::ordered)
  // Asked before the bank's turn, when not all of this is known: what a table of overrides asks for
  // in vain is not told.
  bool ahead = false;

  int64_t tokens() const { return x.rows; }
  int64_t entries() const { return x.rows * top_k; }
  int64_t slots() const { return gate_up.count; }
  int64_t hidden() const { return x.width; }
  int64_t intermediate() const { return down.k; }
};

// The way of a bank, and its kernels' files in experts/. A number is the tokens it is for at most,
// of kFp8Grouped128 the rows of a tile.
enum class ExpertsKernel : uint8_t {
  kNone,            // no tokens, or no experts
  kInt4OneLaunch1,  // one_launch/int4_one_launch1.cu: all of it, with the choice
  kInt4OneLaunch4,  // one_launch/int4_one_launch4.cu: likewise, of 2 to 4
  kInt4OneToken,    // one_launch/int4_one_token.cu: two launches
  kInt4Entries,     // streaming/int4_streaming.cu: each entry by itself
  kInt4Digits,      // streaming/int4_digits.cu, int4_digits_down.cu: sorted entries, weights once,
                    // products in integers
  kInt4Streaming,   // streaming/int4_streaming.cu: likewise, in bf16
  kInt4GroupedSum,  // grouped/int4_grouped_gate_up.cu, down_reduce/int4_grouped_sum.cu: by the
                    // matrix units, shares stay in the L2
  kInt4Grouped,     // grouped/int4_grouped_gate_up.cu, int4_grouped_down.cu: likewise, shares in
                    // memory
  kFp8OneLaunch1,   // one_launch/fp8_one_launch1.cu: all of it, with the choice
  kFp8OneLaunch4,   // one_launch/fp8_one_launch8.cu: likewise, of 2 to 4
  kFp8OneLaunch8,   // the same file: of 5 to 8
  kFp8Entries4,     // one_launch/fp8_entries4.cu: each entry by itself, two launches
  kFp8Streaming,    // streaming/fp8_streaming.cu: sorted entries, weights once
  kFp8GroupedSum,   // linear/fp8_tiles.cu, down_reduce/fp8_grouped_sum.cu: by the matrix units,
                    // shares stay in the L2
  kFp8Grouped128,   // linear/fp8_tiles.cu, fp8_pairs.cu: likewise, shares in memory
  kGroupedProducts  // grouped_products_bank.cc: any form of weights
};

// Who chooses the experts of a token.
enum class ExpertsChooser : uint8_t {
  kGiven,       // an operation ahead; asked of the bank, it refuses
  kKernel,      // the bank's first kernel
  kPreparation  // the launch that sorts entries (route/bank_prepare.cu)
};

enum class SharedExperts : uint8_t {
  kNone,
  kInBank,      // in the bank's last kernel
  kOwnProduct,  // ahead of the bank, by a product of its own
  kBeside       // in a launch beside the choice (route/shared_at_choice.cu)
};

// Of the launch that sorts entries; no blocks: entries are not sorted, or by the preparation.
struct ExpertsSort {
  int32_t blocks = 0, threads = 0;
};

// Of the ways that sum in the kernel of the down product: tokens that are taken at once.
struct ExpertsSum {
  int32_t tokens = 0;
  int32_t tile_rows = 0;     // of gate/up
  int32_t blocks = 0;        // of the down product; all wait for each other
  int32_t units = 0;         // of 16 rows that one has room for
  int32_t depth = 0;         // stages of its ring of weights
  int32_t add_slots = 0;     // FP8: tokens under way for a warp that adds
  int32_t buffers = 0;       // of shares in the L2
  int32_t helped = 0;        // tokens of a block that the warps that multiply add up
  int32_t shared_bytes = 0;  // of a block
  ExpertsSort sort;
};

struct ExpertsPlan {
  ExpertsKernel kernel = ExpertsKernel::kNone;
  ExpertsChooser chooser = ExpertsChooser::kGiven;
  SharedExperts shared = SharedExperts::kNone;
  bool norm = false;           // the last kernel adds to the residual of the norm behind
  bool reads_ordered = false;  // gate/up reads x in matrix order
  bool makes_ordered = false;  // which a launch of the bank's makes
  // Of the products; of the grouped INT4 ones teams of two.
  int32_t blocks = 0;
  int32_t tile_rows = 0;  // of sorted rows, at most; 0: each entry by itself
  ExpertsSort sort;
  int32_t prepare_warps = 0;     // kPreparation: of a block
  int32_t beside_rows = 0;       // kBeside: of the shared experts' matrix, a warpgroup
  int32_t together = 0;          // kInt4Digits: strips that a warp multiplies together
  int32_t end_strips = 0;        // kFp8Entries4: of 8 rows, a block of the end
  bool rounded_by_down = false;  // kFp8Streaming: down rounds its input itself
  bool wide = false;             // kGroupedProducts: bound by the matrix units
  // *GroupedSum: `parts` launches one after the other, all like `part` but the last.
  int32_t parts = 0;
  ExpertsSum part, last_part;
  const char* why = "";

  // The experts are chosen by the bank: asked of it, ids and weights are written.
  bool chooses() const { return chooser != ExpertsChooser::kGiven; }
};

ExpertsPlan ChooseExperts(const ExpertsQuestion& q);
// The plan of a way that is not the one that would be chosen: for tests, benchmarks and tables
// of overrides. It must be one that takes the question.
ExpertsPlan ExpertsBy(const ExpertsQuestion& q, ExpertsKernel kernel);
// Why a way does not take the question; null: it does.
const char* ExpertsAgainst(const ExpertsQuestion& q, ExpertsKernel kernel);

// Which of the streaming INT4 ways: by shape and number of tokens alone, so that a row's bits do
// not depend on how many rows an expert has.
ExpertsKernel Int4StreamingWay(int64_t entries, int64_t intermediate);
// How many entries are sorted.
ExpertsSort ChooseExpertsSort(int64_t entries, int64_t slots);

// Whether entries are sorted and tokens choose with a way, whoever does it.
bool IsSorted(ExpertsKernel kernel);

const char* NameOf(ExpertsKernel kernel);
std::string Text(const ExpertsPlan& plan);
// All that a choice may depend on.
std::string Text(const ExpertsQuestion& q);

}  // namespace baltoro::cuda
