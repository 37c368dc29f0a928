// Rows as a checkpoint stores them to the layouts of product_layout.h. Host code.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/check.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/moe_int4_layout.h"
#include "ops/cuda/product_layout.h"

namespace baltoro::cuda {
namespace {

void PackPlain(WeightForm form, char* dst, int64_t k, int64_t row_begin, const StoredRows& src) {
  BT_CHECK(IsPlain(src.form));
  const int64_t count = src.rows * k;
  if (count == 0) return;
  char* to = dst + row_begin * k * SizeOf(PlainType(form));
  if (src.form == form) {
    std::memcpy(to, src.values, static_cast<size_t>(count * SizeOf(PlainType(form))));
    return;
  }
  if (form == WeightForm::kBf16) {
    const auto* from = static_cast<const float*>(src.values);
    auto* bf16 = reinterpret_cast<Bf16*>(to);
    for (int64_t i = 0; i < count; ++i) bf16[i] = ToBf16(from[i]);
  } else {
    const auto* from = static_cast<const Bf16*>(src.values);
    auto* f32 = reinterpret_cast<float*>(to);
    for (int64_t i = 0; i < count; ++i) f32[i] = ToFloat(from[i]);
  }
}

constexpr uint32_t SwapMiddleBytes(uint32_t x) {
  return (x & 0xFF0000FF) | (x & 0xFF00) << 8 | (x >> 8 & 0xFF00);
}

void PackFp8(
    char* dst, const ProductLayout& layout, int64_t k, int64_t row_begin, const StoredRows& src) {
  BT_CHECK(row_begin % kScaleRows == 0);
  const auto* values = static_cast<const uint8_t*>(src.values);
  const auto* from_scales = static_cast<const float*>(src.scales);
  auto* scales = reinterpret_cast<float*>(dst + layout.scales);
  for (int64_t row = 0; row < src.rows; ++row) {
    char* to = dst + (row_begin + row) * layout.row_bytes;
    float* to_scales = scales + (row_begin + row) / kScaleRows * layout.steps;
    for (int64_t step = 0; step < layout.steps; ++step) {
      uint8_t codes[128] = {};
      const int64_t begin = step * 128;
      std::memcpy(codes, values + row * k + begin,
                  static_cast<size_t>(std::min<int64_t>(128, k - begin)));
      bool has_nan = false;
      for (const uint8_t code : codes) has_nan |= (code & 0x7F) == 0x7F;
      for (int64_t c = 0; c < 128; c += 4) {
        uint32_t word;
        std::memcpy(&word, codes + c, 4);
        word = SwapMiddleBytes(word);
        std::memcpy(to + begin + c, &word, 4);
      }
      if (row % kScaleRows == 0) to_scales[step] = from_scales[row / 128 * layout.steps + step];
      if (has_nan) to_scales[step] = std::numeric_limits<float>::quiet_NaN();
    }
  }
}

// Four bits of column c of a row of kInt4.
uint8_t Nibble(const StoredRows& src, int64_t row, int64_t c) {
  if (c >= src.k) return 0;
  const auto* values = static_cast<const uint8_t*>(src.values);
  return static_cast<uint8_t>(values[row / 2 * src.k + c] >> (row % 2 * 4) & 15);
}

void PackPerOutput(WeightForm form,
                   char* dst,
                   const ProductLayout& layout,
                   int64_t k,
                   int64_t row_begin,
                   const StoredRows& src) {
  const auto* values = static_cast<const uint8_t*>(src.values);
  for (int64_t row = 0; row < src.rows; ++row) {
    char* to = dst + (row_begin + row) * layout.row_bytes;
    if (form == WeightForm::kInt4) {
      for (int64_t i = 0; i < layout.row_bytes; ++i) {
        const int64_t c = i / 4 * 8 + i % 4;
        to[i] = static_cast<char>(Nibble(src, row, c) | Nibble(src, row, c + 4) << 4);
      }
    } else {
      std::memcpy(to, values + row * k, static_cast<size_t>(k));
      std::memset(to + k, 0, static_cast<size_t>(layout.row_bytes - k));
    }
  }
  if (src.rows == 0) return;
  const auto bytes = static_cast<size_t>(src.rows) * 4;
  std::memcpy(dst + layout.scales + row_begin * 4, src.scales, bytes);
  if (form != WeightForm::kInt8Static) return;
  if (src.bias == nullptr) {
    std::memset(dst + layout.biases + row_begin * 4, 0, bytes);
  } else {
    std::memcpy(dst + layout.biases + row_begin * 4, src.bias, bytes);
  }
}

}  // namespace

int64_t PackedBytes(WeightForm form, int64_t n, int64_t k) {
  return LayoutOf(form, n, k).bytes;
}

void PackRows(
    WeightForm form, void* dst, int64_t n, int64_t k, int64_t row_begin, const StoredRows& src) {
  BT_CHECK(src.k == k && row_begin >= 0 && row_begin + src.rows <= n);
  char* to = static_cast<char*>(dst);
  if (IsPlain(form)) {
    PackPlain(form, to, k, row_begin, src);
    return;
  }
  BT_CHECK(src.form == form);
  const ProductLayout layout = LayoutOf(form, n, k);
  if (form == WeightForm::kInt4Group) {
    const Int4Rows rows{.values = static_cast<const uint32_t*>(src.values),
                        .values_stride = k / 8,
                        .scales = static_cast<const uint16_t*>(src.scales),
                        .scales_stride = (k + kInt4Group - 1) / kInt4Group};
    const Status packed = PackInt4Rows(dst, rows, n, k, row_begin, src.rows);
    BT_CHECK(packed.ok());
  } else if (form == WeightForm::kFp8Block) {
    PackFp8(to, layout, k, row_begin, src);
  } else {
    PackPerOutput(form, to, layout, k, row_begin, src);
  }
}

}  // namespace baltoro::cuda
