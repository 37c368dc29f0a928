#pragma once

// Products of e4m3 rows with kFp8Block matrices by their own kernels: the expert bank of weights
// whose inputs are rounded to e4m3 by groups of 128 (PackedMatrix::quantise_input).
//
// Which one is taken says the plan (choose/experts.h).
//
// Two forms. Grouped (fp8_tiles.cu, fp8_pairs.cu): tens of rows a matrix and more, bound by the
// matrix units, or by the bytes of the weights where there are many matrices. Streaming
// (fp8_streaming.cu): few rows a matrix, bound by the bytes of the weights.

#include <cstdint>

#include "ops/cuda/choose/fp8_tiles.h"
#include "ops/cuda/choose/fp8_tiles_layout.h"
#include "ops/cuda/experts/bank_internal.h"
#include "ops/cuda/fused_args.h"
#include "ops/cuda/launch/launch_stream.h"
#include "ops/cuda/launch/regions.h"
#include "ops/cuda/linear/tiles/tiles.h"
#include "ops/ops.h"

namespace baltoro::cuda {

// One product, of sorted entries or (grouped alone) without `tiles`: all rows, one matrix. Codes
// lie in the order of product_layout.h, whole steps of 128 columns.
struct Fp8Product {
  PackedMatrix w;  // streaming: k a multiple of 128
  // `w` holds n / 2 gate rows, then as many up rows: the result is silu(gate) * up; grouped:
  // rounded to e4m3 by groups of 128, which n / 2 is a multiple of; streaming: in f32. Else the
  // product times a row's factor, in bf16 or (grouped alone, `out_f32`) in f32.
  bool gated = false, out_f32 = false;
  const void* x = nullptr;  // codes [.., x_row_bytes]
  int64_t x_row_bytes = 0;
  const float* x_scales = nullptr;  // [.., k / 128]
  // Streaming, not gated, tiles of kFp8RoundedRows at most, k kFp8RoundedSteps * 128 at most: x is
  // f32 and rounded to codes by the product.
  bool x_f32 = false;
  void* out = nullptr;          // codes, f32 or bf16 [.., out_stride]
  float* out_scales = nullptr;  // gated, grouped: [.., n / 256]
  int64_t out_stride = 0;       // elements; n is a multiple of 8

  int64_t rows = 0;  // of all tiles at most
  const MoeTile* tiles = nullptr;
  const int32_t* num_tiles = nullptr;
  const MoeStart* starts = nullptr;  // streaming: where each block's own share begins
  // Streaming: pieces taken of what blocks have in common (int4_digits_work.cuh), zero before.
  uint32_t* taken = nullptr;
  int32_t tiles_max = 0;
  const int32_t* order = nullptr;  // sorted row -> entry
  int32_t top_k = 0;
  bool gather = false;                   // input row of a sorted row: order / top_k; else itself
  bool scatter = false;                  // output row of a sorted row: order; else itself
  const float* route_weights = nullptr;  // [entries], the factor of a row
  uint32_t* dealt = nullptr;             // of tiles, maybe: a counter, zero before the launch
};

// The rows that a product reads, and the sorted entries that say which, for its launch's note.
Regions InputOf(const Fp8Product& product);
Regions SortedOf(const Fp8Product& product, int64_t starts);
// Of a gated product to codes, which lets the next launch start once its blocks have waited.
LaunchNote GatedNote(const Fp8Product& product);

// fp8_tiles or fp8_pairs, whichever ChooseFp8Tiles says. Without tiles, blocks may share the
// columns where there is `scratch` for their sums.
void LaunchFp8Tiles(const Fp8Product& product,
                    const Fp8TilesPlan& plan,
                    const LaunchStream& stream,
                    Arena* scratch = nullptr);
// The same, asking for the plan.
void LaunchFp8Tiles(const Fp8Product& product,
                    const LaunchStream& stream,
                    Arena* scratch = nullptr);
Fp8TilesQuestion QuestionOf(const Fp8Product& product, bool has_scratch);
// How the streaming form's work is dealt out: sixteenths of it in the blocks' own shares, and the
// smallest pieces of the rest, of gate/up in strips of 8 rows each, of down in 128 rows.
struct Fp8Deal {
  int32_t own_parts, gate_up_piece, down_piece;
};
inline constexpr Fp8Deal kFp8StreamDeal = {.own_parts = 4, .gate_up_piece = 1, .down_piece = 2};
// `blocks`: those that `starts` is for.
void LaunchFp8Stream(const Fp8Product& product, int32_t blocks, const LaunchStream& stream);

// The bank in steps, for a plan of FP8's: the sorted rows, whose memory is allocated; x as codes;
// all products. `slot_of` is on the device, null where experts are slots.
MoeRows Fp8BankRows(const OpContext& ctx,
                    const ExpertBankArgs& args,
                    const ExpertsPlan& plan,
                    const int32_t* slot_of);
QuantisedRows Fp8BankInput(const OpContext& ctx, const ExpertBankArgs& args);
void Fp8BankProducts(const OpContext& ctx,
                     const ExpertBankArgs& args,
                     const ExpertsPlan& plan,
                     const MoeRows& rows,
                     const QuantisedRows& x);

// What the context has of x as codes, where the kernels of a few tokens can read it: whole words of
// scales, aligned. Without `x`: nothing.
QuantisedRows Fp8WholeCodes(const OpContext& ctx, const ExpertBankArgs& args);

// The bank of a few tokens, each entry (token and expert) by itself (fp8_entries4.cu), or of one in
// one launch; with args.shared, whose matrix is of the same form, the shared experts too. With
// choice.logits the experts of one token are chosen too.
void Fp8FewEntries(const OpContext& ctx,
                   const ExpertBankArgs& args,
                   const ExpertsPlan& plan,
                   const int32_t* slot_of,
                   const MoeChoice& choice);

// Of two to eight tokens in one launch, with the choice in it (fp8_one_launch8.cu).
void Fp8OneLaunch8(const OpContext& ctx,
                   const ExpertBankArgs& args,
                   const ExpertsPlan& plan,
                   const int32_t* slot_of,
                   const MoeChoice& choice);

}  // namespace baltoro::cuda
