#pragma once

// How weights that are not plain numbers lie in memory: panels of 32 columns (outputs), like plain
// ones (panel.h), whose elements are codes. A panel is a run of groups, each with what its sums are
// multiplied by. All of it is made of 64-byte registers of 16 words, one word a column of a half.
// Columns are padded with zeros and zero scales, k with codes of zero.
//
//   kInt4Group   group: 32 k, 576 bytes: per half 4 registers, then 32 bf16 scales. Word i of a
//                column holds k 8 i .. 8 i + 7 as nibbles (code + 8), even k in the lower 16 bits,
//                so that nibble j of the 16-bit lanes is pair 4 i + j of a plain half.
//   kFp8Block    group: 128 k, 4224 bytes: 4 blocks of 32 k, per half 8 registers; then 32 f32
//                scales. Word i of a column holds k 4 i, 4 i + 2, 4 i + 1, 4 i + 3 from its lowest
//                byte on, so that the low bytes of the 16-bit lanes are pair 2 i, the high ones
//                pair 2 i + 1. Where a code of a column is a NaN, so is the scale of its group:
//                products may take the code for 480.
//   kInt8,       one group: blocks of 64 k, 2048 bytes: per half 16 registers. Word i of a column
//   kInt8Static  holds k 4 i .. 4 i + 3. Then 32 f32 scales and, for kInt8Static, 32 i32 biases.
//   kInt4        one group: blocks of 64 k, 1024 bytes: 16 registers. Word i holds k 4 i .. 4 i + 3
//                of a column of the first half in the low nibbles and of the one 16 columns on in
//                the high ones. Then 32 f32 scales.
//
// The left operand of the first two is made of the plain tiles; that of the others of tiles of 16
// rows x 64 k of i8.

#include <cstdint>

#include "base/check.h"
#include "ops/cpu/panel.h"
#include "tensor/weight_form.h"

namespace baltoro::cpu {

constexpr int64_t kIntBlockK = 64;
// Below it the sum of k products of two int8 fits 32 bits, whatever they are.
constexpr int64_t kIntDepthEnd = int64_t{1} << 17;
constexpr int64_t kIntTileBytes = kTileRows * kIntBlockK;
constexpr int64_t kRegisterBytes = 64;

struct CodedLayout {
  int64_t group_k = 0;      // 0: all of k
  int64_t block_k = 0;      // k of one block
  int64_t block_bytes = 0;  // codes of 32 columns
  int64_t word_k = 0;       // k of one word
  int64_t tail_bytes = 0;   // scales (and biases) after the blocks of a group
};

constexpr CodedLayout LayoutOf(WeightForm form) {
  switch (form) {
    case WeightForm::kInt4Group:
      return {.group_k = 32, .block_k = 32, .block_bytes = 512, .word_k = 8, .tail_bytes = 64};
    case WeightForm::kFp8Block:
      return {.group_k = 128, .block_k = 32, .block_bytes = 1024, .word_k = 4, .tail_bytes = 128};
    case WeightForm::kInt8:
      return {.block_k = kIntBlockK, .block_bytes = 2048, .word_k = 4, .tail_bytes = 128};
    case WeightForm::kInt8Static:
      return {.block_k = kIntBlockK, .block_bytes = 2048, .word_k = 4, .tail_bytes = 256};
    case WeightForm::kInt4:
      return {.block_k = kIntBlockK, .block_bytes = 1024, .word_k = 4, .tail_bytes = 128};
    case WeightForm::kF32:
    case WeightForm::kBf16:
      break;
  }
  BT_CHECK(false);
}

constexpr bool HasIntegerProducts(WeightForm form) {
  return form == WeightForm::kInt8 || form == WeightForm::kInt8Static || form == WeightForm::kInt4;
}

// Groups along k, and the bytes of each with its tail.
constexpr int64_t GroupCount(WeightForm form, int64_t k) {
  const CodedLayout layout = LayoutOf(form);
  return layout.group_k == 0 ? 1 : CeilDiv(k, layout.group_k);
}
constexpr int64_t GroupBytes(WeightForm form, int64_t k) {
  const CodedLayout layout = LayoutOf(form);
  const int64_t depth = layout.group_k == 0 ? k : layout.group_k;
  return CeilDiv(depth, layout.block_k) * layout.block_bytes + layout.tail_bytes;
}

constexpr int64_t PanelBytes(WeightForm form, int64_t k) {
  if (IsPlain(form)) return PanelBytes(PlainType(form), k);
  return GroupCount(form, k) * GroupBytes(form, k);
}

}  // namespace baltoro::cpu
