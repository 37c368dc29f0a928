#include "ops/cpu/product.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "ops/cpu/coded_panel.h"

namespace baltoro::cpu {
namespace {

// n elements from one type to another.
void Convert(const Kernels& kernels, void* out, DType to, const void* in, DType from, int64_t n) {
  if (from == to) {
    std::memcpy(out, in, static_cast<size_t>(n * SizeOf(to)));
  } else if (to == DType::kBf16) {
    kernels.round_to_bf16(static_cast<Bf16*>(out), static_cast<const float*>(in), n);
  } else {
    kernels.widen(static_cast<float*>(out), static_cast<const Bf16*>(in), n);
  }
}

}  // namespace

LeftOperand TilesAt(const void* data, DType tile, int64_t k) {
  const int64_t size = SizeOf(tile);
  return {.data = data,
          .row = kBlockK * size,
          .block = kTileElements * size,
          .row_tile = CeilDiv(k, kBlockK) * kTileElements * size};
}

void FillTiles(const Kernels& kernels,
               void* tiles,
               const RowSource& source,
               int64_t begin,
               int64_t end,
               int64_t k) {
  const int64_t size = SizeOf(kernels.tile);
  const LeftOperand at = TilesAt(tiles, kernels.tile, k);
  const bool copied = source.dtype == DType::kBf16 && kernels.tile == DType::kBf16;
  const bool widened = source.dtype == DType::kBf16 && kernels.tile == DType::kF32;
  constexpr int64_t kRun = 4 * kBlockK;  // of a row before the next row: both stay in the cache
  for (int64_t tile = begin; tile < end; tile = RoundUp(tile + 1, kTileRows)) {
    const int64_t tile_end = std::min(end, RoundUp(tile + 1, kTileRows));
    for (int64_t run = 0; run < k; run += kRun) {
      for (int64_t row = tile; row < tile_end; ++row) {
        char* out = static_cast<char*>(tiles) + row / kTileRows * at.row_tile +
                    row % kTileRows * at.row + run / kBlockK * at.block;
        const char* in = static_cast<const char*>(source.row(row));
        int64_t i = run;
        if (widened) {
          const int64_t blocks = (std::min(k, run + kRun) - run) / kBlockK;
          kernels.widen_blocks(reinterpret_cast<float*>(out), at.block / size,
                               reinterpret_cast<const Bf16*>(in) + run, blocks);
          out += blocks * at.block;
          i += blocks * kBlockK;
        }
        for (; i < std::min(k, run + kRun); i += kBlockK, out += at.block) {
          const int64_t count = std::min(kBlockK, k - i);
          if (copied && count == kBlockK) {
            std::memcpy(out, in + i * 2, kBlockK * 2);
            continue;
          }
          Convert(kernels, out, kernels.tile, in + i * SizeOf(source.dtype), source.dtype, count);
          if (count < kBlockK) {
            std::memset(out + count * size, 0, static_cast<size_t>((kBlockK - count) * size));
          }
        }
      }
    }
  }
}

void StoreTiles(const Kernels& kernels,
                void* tiles,
                int64_t k,
                DType act,
                const float* values,
                int64_t stride,
                int64_t row,
                int64_t rows,
                int64_t begin,
                int64_t count) {
  BT_CHECK(row % kTileRows == 0);
  static constexpr float kZeros[kBlockK] = {};
  const int64_t row_tile = CeilDiv(k, kBlockK) * kTileElements;
  char* at = static_cast<char*>(tiles) + row / kTileRows * row_tile * SizeOf(kernels.tile);
  kernels.store_tiles(at, row_tile, values, stride, rows, begin, count, act == DType::kBf16);
  const int64_t padding = RoundUp(k, kBlockK) - k;
  if (padding > 0 && begin + count == k) {
    kernels.store_tiles(at, row_tile, kZeros, /*stride=*/0, rows, k, padding, false);
  }
}

int64_t ProductStride(int64_t begin, int64_t end) {
  return ResultStride(end - begin / kPanelColumns * kPanelColumns);
}

const void* PanelOf(const PackedMatrix& w, int64_t column) {
  return static_cast<const char*>(w.data) + column / kPanelColumns * PanelBytes(w.form, w.k);
}

float* MultiplyColumns(const Kernels& kernels,
                       const LeftOperand& a,
                       int64_t rows,
                       const PackedMatrix& w,
                       int64_t begin,
                       int64_t end,
                       float* buffer,
                       const void* next) {
  BT_CHECK(IsPlain(w.form));
  const int64_t panel = begin / kPanelColumns;
  const int64_t skipped = begin - panel * kPanelColumns;
  const RightOperand right = {.panels = PanelOf(w, begin),
                              .k_blocks = CeilDiv(w.k, kBlockK),
                              .columns = skipped + end - begin,
                              .next = next};
  kernels.multiply(a, rows, right, buffer, ProductStride(begin, end), /*accumulate=*/false);
  return buffer + skipped;
}

void StoreRow(const Kernels& kernels, void* out, DType type, const float* in, int64_t n) {
  Convert(kernels, out, type, in, DType::kF32, n);
}

void LoadRow(const Kernels& kernels, float* out, const void* in, DType type, int64_t n) {
  Convert(kernels, out, DType::kF32, in, type, n);
}

void CheckPacked(const PackedMatrix& w) {
  BT_CHECK(w.data != nullptr && w.n > 0 && w.k > 0);
  BT_CHECK(reinterpret_cast<uintptr_t>(w.data) % 64 == 0 && w.stride_bytes % 64 == 0);
}

}  // namespace baltoro::cpu
