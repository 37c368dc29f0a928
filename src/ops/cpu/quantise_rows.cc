#include "ops/cpu/quantise_rows.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "ops/cpu/coded_panel.h"
#include "tensor/float8.h"

namespace baltoro::cpu {
namespace {

constexpr int64_t kRun = 128;  // elements of a row at a time; also the k of one scale in e4m3

// Calls body(values, first k, count) for the runs of one row, widened.
template <typename Body>
void ForRuns(
    const Kernels& kernels, const RowSource& source, int64_t row, int64_t k, const Body& body) {
  float values[kRun];
  const char* in = static_cast<const char*>(source.row(row));
  for (int64_t at = 0; at < k; at += kRun) {
    const int64_t count = std::min(kRun, k - at);
    LoadRow(kernels, values, in + at * SizeOf(source.dtype), source.dtype, count);
    body(values, at, count);
  }
}

}  // namespace

void QuantiseToInt8(const Kernels& kernels,
                    const PackedMatrix& w,
                    void* tiles,
                    float* scales,
                    const RowSource& source,
                    int64_t begin,
                    int64_t end) {
  const bool fixed = w.form == WeightForm::kInt8Static;
  const int64_t blocks = CeilDiv(w.k, kIntBlockK);
  for (int64_t row = begin; row < end; ++row) {
    uint32_t most = 0;
    ForRuns(kernels, source, row, w.k, [&](const float* x, int64_t, int64_t count) {
      most = std::max(most, kernels.largest_bits(x, count));
    });
    const float largest = std::bit_cast<float>(most);
    const bool finite = std::isfinite(largest);
    const float scale = fixed ? w.input_scale : largest / 127;
    const float offset = fixed ? w.input_offset : 0;
    const float factor = fixed ? 1 : scale;
    scales[row] = finite ? factor : std::numeric_limits<float>::quiet_NaN();
    auto* out = static_cast<int8_t*>(tiles) +
                (row / kTileRows * blocks * kTileRows + row % kTileRows) * kIntBlockK;
    const bool zeros = !finite || scale == 0;
    ForRuns(kernels, source, row, w.k, [&](const float* x, int64_t at, int64_t count) {
      int8_t codes[kRun] = {};
      if (!zeros) kernels.to_int8(x, count, scale, offset, codes);
      // Beyond the row the weights are zeros; so are these.
      for (int64_t i = 0; i < count; i += kIntBlockK) {
        std::memcpy(out + (at + i) / kIntBlockK * kIntTileBytes, codes + i, kIntBlockK);
      }
    });
  }
}

void QuantiseToFp8(const Kernels& kernels,
                   const PackedMatrix& w,
                   void* tiles,
                   float* scales,
                   const RowSource& source,
                   int64_t begin,
                   int64_t end) {
  const LeftOperand to = TilesAt(tiles, kernels.tile, w.k);
  const int64_t groups = GroupCount(w.form, w.k);
  for (int64_t row = begin; row < end; ++row) {
    char* out =
        static_cast<char*>(tiles) + row / kTileRows * to.row_tile + row % kTileRows * to.row;
    ForRuns(kernels, source, row, w.k, [&](float* x, int64_t at, int64_t count) {
      // A NaN makes its block NaN through its own code, not through the scale.
      const float largest =
          std::bit_cast<float>(std::min(kernels.largest_bits(x, count), 0x7F800000u));
      const float scale = std::max(largest, 1e-4f) / kE4M3Max;
      scales[row * groups + at / kRun] = scale;
      kernels.round_to_e4m3(x, count, scale);
      const int64_t padded = RoundUp(count, kBlockK);
      std::fill(x + count, x + padded, 0.0f);
      for (int64_t i = 0; i < padded; i += kBlockK) {
        StoreRow(kernels, out + (at + i) / kBlockK * to.block, kernels.tile, x + i, kBlockK);
      }
    });
  }
}

}  // namespace baltoro::cpu
