// Rows as a checkpoint stores them to the layouts of product_layout.h. Host code.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/check.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/layout/int4_layout.h"
#include "ops/cuda/layout/pack_vectors.h"
#include "ops/cuda/layout/product_layout.h"

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

// As PackFp8StepAvx2.
bool PackFp8Step(char* to, const uint8_t* from) {
  uint32_t words[32];
  std::memcpy(words, from, sizeof(words));
  uint32_t nan = 0;  // the top bit of each byte
  for (uint32_t& word : words) {
    nan |= (word & 0x7F7F7F7F) + 0x01010101;
    word = SwapMiddleBytes(word);
  }
  std::memcpy(to, words, sizeof(words));
  return (nan & 0x80808080) != 0;
}

void PackFp8(
    char* dst, const ProductLayout& layout, int64_t k, int64_t row_begin, const StoredRows& src) {
  BT_CHECK(row_begin % kScaleRows == 0);
  const auto* values = static_cast<const uint8_t*>(src.values);
  const auto* from_scales = static_cast<const float*>(src.scales);
  auto* scales = reinterpret_cast<float*>(dst + layout.scales);
  const auto pack = HasPackVectors() ? PackFp8StepAvx2 : PackFp8Step;
  for (int64_t row = 0; row < src.rows; ++row) {
    char* to = dst + (row_begin + row) * layout.row_bytes;
    float* to_scales = scales + (row_begin + row) / kScaleRows * layout.steps;
    for (int64_t step = 0; step < layout.steps; ++step) {
      const int64_t begin = step * 128;
      bool has_nan = false;
      if (begin + 128 <= k) {
        has_nan = pack(to + begin, values + row * k + begin);
      } else {
        uint8_t codes[128] = {};
        std::memcpy(codes, values + row * k + begin, static_cast<size_t>(k - begin));
        has_nan = pack(to + begin, codes);
      }
      if (row % kScaleRows == 0) to_scales[step] = from_scales[row / 128 * layout.steps + step];
      if (has_nan) to_scales[step] = std::numeric_limits<float>::quiet_NaN();
    }
  }
}

// A row of kInt4 out of two that are stored together, `shift` apart: eight stored bytes become a
// word.
void PackNibbles(char* to, int64_t words, const uint8_t* from, int64_t k, int shift) {
  const auto pack = [shift](uint64_t bytes) {
    const uint64_t nibbles = bytes >> shift & 0x0F0F0F0F0F0F0F0F;
    return static_cast<uint32_t>(nibbles | nibbles >> 28);
  };
  const int64_t whole = k / 8;
  for (int64_t w = 0; w < whole; ++w) {
    uint64_t bytes;
    std::memcpy(&bytes, from + 8 * w, 8);
    const uint32_t word = pack(bytes);
    std::memcpy(to + 4 * w, &word, 4);
  }
  for (int64_t w = whole; w < words; ++w) {
    uint64_t bytes = 0;
    if (8 * w < k) std::memcpy(&bytes, from + 8 * w, static_cast<size_t>(k - 8 * w));
    const uint32_t word = pack(bytes);
    std::memcpy(to + 4 * w, &word, 4);
  }
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
      PackNibbles(to, layout.row_bytes / 4, values + row / 2 * k, k, static_cast<int>(row % 2 * 4));
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
