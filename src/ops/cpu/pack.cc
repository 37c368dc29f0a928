#include <algorithm>
#include <type_traits>

#include "base/check.h"
#include "ops/cpu/coded_panel.h"
#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/pack.h"
#include "ops/cpu/word_transpose.h"

namespace baltoro::cpu {
namespace {

Bf16 Stored(float x, Bf16) {
  return ToBf16(x);
}
Bf16 Stored(Bf16 x, Bf16) {
  return x;
}
float Stored(float x, float) {
  return x;
}
float Stored(Bf16 x, float) {
  return ToFloat(x);
}

// One block of 32 k of one column: `count` elements, then zeros.
template <typename Out, typename In>
void PackColumn(Out* column, const In* from, int64_t count) {
  // Elements of one k (f32) or of a pair of k (bf16) of the 16 columns of a
  // half lie together.
  constexpr int64_t kTogether = sizeof(Out) == 2 ? 2 : 1;
  for (int64_t k = 0; k < kBlockK; ++k) {
    Out& to = column[k / kTogether * kTogether * kHalfColumns + k % kTogether];
    to = k < count ? Stored(from[k], Out{}) : Out{};
  }
}

template <typename Out, typename In>
void PackTyped(Out* dst, int64_t n, int64_t k, int64_t row_begin, const StoredRows& src) {
  constexpr int64_t kTogether = sizeof(Out) == 2 ? 2 : 1;
  const int64_t blocks = CeilDiv(k, kBlockK);
  const auto* rows = static_cast<const In*>(src.values);
  const int64_t given_end = row_begin + src.rows;
  // The rows that end the matrix also bring the padding of its last panel.
  const int64_t end = given_end == n ? RoundUp(n, kPanelColumns) : given_end;
  for (int64_t begin = row_begin; begin < end; begin = RoundUp(begin + 1, kHalfColumns)) {
    const int64_t half_end = std::min(end, RoundUp(begin + 1, kHalfColumns));
    Out* half = dst + begin / kPanelColumns * blocks * kBlockElements +
                begin % kPanelColumns / kHalfColumns * (kBlockElements / 2);
    // Block by block, so that what is written stays in the first cache.
    const bool whole_half = begin % kHalfColumns == 0 && begin + kHalfColumns <= given_end;
    for (int64_t block = 0; block < blocks; ++block) {
      if constexpr (std::is_same_v<In, Bf16> && std::is_same_v<Out, Bf16>) {
        if (whole_half && (block + 1) * kBlockK <= k) {
          TransposeWords(
              reinterpret_cast<const char*>(rows + (begin - row_begin) * k + block * kBlockK),
              k * SizeOf(DType::kBf16), kBlockK / kTogether,
              reinterpret_cast<char*>(half + block * kBlockElements), [](__m128i x) { return x; });
          continue;
        }
      }
      for (int64_t row = begin; row < half_end; ++row) {
        const int64_t count = row < given_end ? std::min(kBlockK, k - block * kBlockK) : 0;
        const In* from = count > 0 ? rows + (row - row_begin) * k + block * kBlockK : nullptr;
        PackColumn(half + block * kBlockElements + row % kHalfColumns * kTogether, from, count);
      }
    }
  }
}

}  // namespace

int64_t PackedBytes(WeightForm form, int64_t n, int64_t k) {
  BT_CHECK(n > 0 && k > 0);
  return CeilDiv(n, kPanelColumns) * PanelBytes(form, k);
}

void PackRows(
    WeightForm form, void* dst, int64_t n, int64_t k, int64_t row_begin, const StoredRows& src) {
  BT_CHECK(src.k == k && row_begin >= 0 && row_begin + src.rows <= n);
  if (!IsPlain(form)) {
    BT_CHECK(src.form == form);
    return PackCodes(dst, n, row_begin, src);
  }
  BT_CHECK(IsPlain(src.form));
  const bool from_bf16 = src.form == WeightForm::kBf16;
  if (form == WeightForm::kBf16) {
    auto* out = static_cast<Bf16*>(dst);
    from_bf16 ? PackTyped<Bf16, Bf16>(out, n, k, row_begin, src)
              : PackTyped<Bf16, float>(out, n, k, row_begin, src);
  } else {
    auto* out = static_cast<float*>(dst);
    from_bf16 ? PackTyped<float, Bf16>(out, n, k, row_begin, src)
              : PackTyped<float, float>(out, n, k, row_begin, src);
  }
}

}  // namespace baltoro::cpu
