// Integer codes by integer rows, on any instruction set: exact, so that every instruction set gives
// the same sums.

#include <cstring>

#include "ops/cpu/coded_product.h"

namespace baltoro::cpu {
namespace {

// One block of 64 k as int8 words: of kInt4 the nibbles are brought up, 16 times their value, which
// keeps their sign without a table.
void Expand(WeightForm form, const char* block, int8_t* words) {
  if (form != WeightForm::kInt4) {
    std::memcpy(words, block, 2048);
    return;
  }
  for (int64_t i = 0; i < 1024; ++i) {
    const auto both = static_cast<uint8_t>(block[i]);
    words[i] = static_cast<int8_t>(static_cast<uint8_t>(both << 4));
    words[1024 + i] = static_cast<int8_t>(static_cast<uint8_t>(both & 0xF0));
  }
}

// sums[column] += row . words
void AddProducts(const int8_t* row, const int8_t* words, int32_t* sums) {
  for (int64_t half = 0; half < 2; ++half) {
    for (int64_t i = 0; i < kIntBlockK / 4; ++i) {
      const int8_t* x = row + i * 4;
      const int8_t* w = words + half * 1024 + i * kRegisterBytes;
      int32_t* sum = sums + half * kHalfColumns;
      for (int64_t column = 0; column < kHalfColumns; ++column, w += 4) {
        sum[column] += x[0] * w[0] + x[1] * w[1] + x[2] * w[2] + x[3] * w[3];
      }
    }
  }
}

void MultiplyPanel(const CodedProduct& p, const char* panel, float* c) {
  const CodedLayout layout = LayoutOf(p.form);
  const int64_t blocks = CeilDiv(p.k, kIntBlockK);
  const char* tail = panel + blocks * layout.block_bytes;
  const auto* scales = reinterpret_cast<const float*>(tail);
  const auto* biases = reinterpret_cast<const int32_t*>(tail) + kPanelColumns;
  alignas(64) int8_t words[2048];
  for (int64_t tile = 0; tile < p.rows; tile += kTileRows) {
    const int64_t rows = p.rows - tile < kTileRows ? p.rows - tile : kTileRows;
    int32_t sums[kTileRows][kPanelColumns] = {};
    for (int64_t block = 0; block < blocks; ++block) {
      Expand(p.form, panel + block * layout.block_bytes, words);
      const auto* at = reinterpret_cast<const int8_t*>(p.tiles) +
                       (tile / kTileRows * blocks + block) * kIntTileBytes;
      for (int64_t r = 0; r < rows; ++r) AddProducts(at + r * kIntBlockK, words, sums[r]);
    }
    for (int64_t r = 0; r < rows; ++r) {
      const float row_scale = p.row_scales[tile + r];
      float* out = c + (tile + r) * p.ldc;
      for (int64_t i = 0; i < kPanelColumns; ++i) {
        double sum = sums[r][i];
        if (p.form == WeightForm::kInt4) sum /= 16;
        if (p.form == WeightForm::kInt8Static) sum += biases[i];
        out[i] = static_cast<float>(sum) * scales[i] * row_scale;
      }
    }
  }
}

}  // namespace

void MultiplyIntegers(const Kernels&, const CodedProduct& p) {
  const int64_t panel_bytes = PanelBytes(p.form, p.k);
  for (int64_t column = 0; column < p.columns; column += kPanelColumns) {
    MultiplyPanel(p, p.panels + column / kPanelColumns * panel_bytes, p.c + column);
  }
}

}  // namespace baltoro::cpu
