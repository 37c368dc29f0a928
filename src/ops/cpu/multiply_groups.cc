// Groups of codes with float scales, on any instruction set: the codes of one group, exact in bf16,
// become plain panels in the first cache, the kernels' product multiplies them, and the sums are
// scaled.

#include <algorithm>

#include "base/check.h"
#include "ops/cpu/coded_product.h"

namespace baltoro::cpu {
namespace {

constexpr int64_t kRowsAtOnce = 64;
constexpr int64_t kHalfElements = kBlockElements / 2;
constexpr int64_t kSumStride = ResultStride(kPanelColumns);
constexpr int64_t kGroupBlocksMax = 4;
constexpr int64_t kAhead = 4096;  // bytes of codes that are asked for before they are needed

using Expand = void(const char* registers, Bf16* half);

Expand* ExpandFor(WeightForm form) {
  const bool wide = ActiveIsa() >= Isa::kAvx512;
  if (form == WeightForm::kInt4Group) return wide ? ExpandInt4Avx512 : ExpandInt4Avx2;
  return wide ? ExpandFp8Avx512 : ExpandFp8Avx2;
}

float ColumnScale(WeightForm form, const char* tail, int64_t column) {
  if (form == WeightForm::kInt4Group) {
    return ToFloat(reinterpret_cast<const Bf16*>(tail)[column]);
  }
  return reinterpret_cast<const float*>(tail)[column];
}

// One panel by up to kRowsAtOnce rows.
void MultiplyPanel(
    const Kernels& kernels, const CodedProduct& p, int64_t row, const char* panel, float* c) {
  alignas(64) Bf16 expanded[kGroupBlocksMax * kBlockElements];
  alignas(64) float sums[kRowsAtOnce * kSumStride];
  const CodedLayout layout = LayoutOf(p.form);
  Expand* const expand = ExpandFor(p.form);
  const int64_t rows = std::min(kRowsAtOnce, p.rows - row);
  const int64_t groups = GroupCount(p.form, p.k);
  const int64_t group_bytes = GroupBytes(p.form, p.k);
  const int64_t k_blocks = CeilDiv(p.k, kBlockK);
  const int64_t group_blocks = layout.group_k / kBlockK;
  const int64_t size = SizeOf(kernels.tile);
  LeftOperand a = {.row = kBlockK * size,
                   .block = kTileElements * size,
                   .row_tile = k_blocks * kTileElements * size};
  for (int64_t group = 0; group < groups; ++group) {
    const char* codes = panel + group * group_bytes;
    const int64_t first = group * group_blocks;
    const int64_t blocks = std::min(group_blocks, k_blocks - first);
    if (row == 0) {
      for (int64_t at = 0; at < group_bytes; at += 64) __builtin_prefetch(codes + kAhead + at);
    }
    for (int64_t half = 0; half < 2 * blocks; ++half) {
      expand(codes + half * (layout.block_bytes / 2), expanded + half * kHalfElements);
    }
    a.data = p.tiles + row / kTileRows * a.row_tile + first * a.block;
    const RightOperand b = {
        .panels = expanded, .k_blocks = blocks, .columns = kPanelColumns, .cached = true};
    kernels.multiply(a, rows, b, sums, kSumStride, /*accumulate=*/false);
    const char* tail = codes + group_blocks * layout.block_bytes;
    float scales[kPanelColumns];
    for (int64_t i = 0; i < kPanelColumns; ++i) scales[i] = ColumnScale(p.form, tail, i);
    for (int64_t r = 0; r < rows; ++r) {
      const float row_scale =
          p.row_scales == nullptr ? 1.0f : p.row_scales[(row + r) * groups + group];
      float* out = c + r * p.ldc;
      for (int64_t i = 0; i < kPanelColumns; ++i) {
        const float before = group == 0 ? 0 : out[i];
        out[i] = before + sums[r * kSumStride + i] * row_scale * scales[i];
      }
    }
  }
}

}  // namespace

void MultiplyGroups(const Kernels& kernels, const CodedProduct& p) {
  const int64_t panel_bytes = PanelBytes(p.form, p.k);
  for (int64_t column = 0; column < p.columns; column += kPanelColumns) {
    for (int64_t row = 0; row < p.rows; row += kRowsAtOnce) {
      MultiplyPanel(kernels, p, row, p.panels + column / kPanelColumns * panel_bytes,
                    p.c + row * p.ldc + column);
    }
  }
}

}  // namespace baltoro::cpu
