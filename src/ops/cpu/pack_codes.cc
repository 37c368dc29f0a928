// Codes and scales from the order of a checkpoint to that of coded_panel.h: 16 rows side by side,
// word by word, so that each register is filled while it is in the first cache.

#include <algorithm>
#include <cstring>
#include <limits>

#include "base/check.h"
#include "ops/cpu/coded_panel.h"
#include "ops/cpu/pack.h"
#include "ops/cpu/word_transpose.h"

namespace baltoro::cpu {
namespace {

// Eight nibbles of rising k: those of even k to the lower half.
constexpr uint32_t EvenThenOdd(uint32_t x) {
  const uint32_t even = x & 0x0F0F0F0F;
  const uint32_t odd = x >> 4 & 0x0F0F0F0F;
  const auto together = [](uint32_t v) {
    v = (v | v >> 4) & 0x00FF00FF;
    return (v | v >> 8) & 0xFFFF;
  };
  return together(even) | together(odd) << 16;
}
static_assert(EvenThenOdd(0x76543210) == 0x75316420);

constexpr uint32_t SwapMiddleBytes(uint32_t x) {
  return (x & 0xFF0000FF) | (x & 0xFF00) << 8 | (x >> 8 & 0xFF00);
}
static_assert(SwapMiddleBytes(0x33221100) == 0x33112200);

constexpr uint32_t kZeroNibbles = 0x88888888;  // kInt4Group: each code plus 8

// The word that begins at element k of a stored row, as it is kept; zeros beyond the row.
template <WeightForm kForm>
uint32_t Word(const StoredRows& src, int64_t row, int64_t k) {
  const auto* bytes = static_cast<const uint8_t*>(src.values);
  uint32_t word = 0;
  if constexpr (kForm == WeightForm::kInt4Group) {
    if (k >= src.k) return kZeroNibbles;
    std::memcpy(&word, bytes + (row * src.k + k) / 2, sizeof(word));
    return EvenThenOdd(word);
  }
  const int64_t count = std::clamp<int64_t>(src.k - k, 0, 4);
  if (count == 0) return 0;
  constexpr bool kNibbles = kForm == WeightForm::kInt4;
  const uint8_t* from = bytes + (kNibbles ? row / 2 : row) * src.k + k;
  if (count == 4) {
    std::memcpy(&word, from, sizeof(word));
  } else {
    std::memcpy(&word, from, static_cast<size_t>(count));
  }
  if constexpr (kNibbles) return word >> (row % 2 * 4) & 0x0F0F0F0F;
  if constexpr (kForm == WeightForm::kFp8Block) return SwapMiddleBytes(word);
  return word;
}

// Four words of a row as they are kept: Word() of each.
template <WeightForm kForm>
__m128i FourWords(__m128i x) {
  const auto mask = [](uint32_t bits) { return _mm_set1_epi32(static_cast<int32_t>(bits)); };
  const auto together = [&](__m128i v) {
    v = _mm_and_si128(_mm_or_si128(v, _mm_srli_epi32(v, 4)), mask(0x00FF00FF));
    return _mm_and_si128(_mm_or_si128(v, _mm_srli_epi32(v, 8)), mask(0xFFFF));
  };
  if constexpr (kForm == WeightForm::kInt4Group) {
    const __m128i nibbles = mask(0x0F0F0F0F);
    const __m128i even = together(_mm_and_si128(x, nibbles));
    const __m128i odd = together(_mm_and_si128(_mm_srli_epi32(x, 4), nibbles));
    return _mm_or_si128(even, _mm_slli_epi32(odd, 16));
  }
  if constexpr (kForm == WeightForm::kFp8Block) {
    const __m128i up = _mm_and_si128(_mm_slli_epi32(x, 8), mask(0x00FF0000));
    const __m128i down = _mm_and_si128(_mm_srli_epi32(x, 8), mask(0x0000FF00));
    return _mm_or_si128(_mm_and_si128(x, mask(0xFF0000FF)), _mm_or_si128(up, down));
  }
  return x;
}

// What a padding column holds.
template <WeightForm kForm>
constexpr uint32_t kPaddingWord = kForm == WeightForm::kInt4Group ? kZeroNibbles : 0;

template <WeightForm kForm>
void PutWord(char* to, bool second_half, uint32_t word) {
  if constexpr (kForm == WeightForm::kInt4) {
    // The other half's nibbles are another row's.
    uint32_t both = 0;
    std::memcpy(&both, to, sizeof(both));
    word = second_half ? (both & 0x0F0F0F0F) | word << 4 : (both & 0xF0F0F0F0) | word;
  }
  std::memcpy(to, &word, sizeof(word));
}

// Whether any code of e4m3 is a NaN.
bool HasNan(const uint8_t* codes, int64_t count) {
  bool has = false;
  for (int64_t i = 0; i < count; ++i) has |= (codes[i] & 0x7F) == 0x7F;
  return has;
}

template <WeightForm kForm>
void PutTail(char* tail, int64_t column, const StoredRows& src, int64_t row, int64_t group) {
  const bool padding = row >= src.rows;
  if constexpr (kForm == WeightForm::kInt4Group) {
    const int64_t groups = GroupCount(kForm, src.k);
    const auto* scales = static_cast<const Bf16*>(src.scales);
    reinterpret_cast<Bf16*>(tail)[column] = padding ? Bf16{} : scales[row * groups + group];
    return;
  }
  const auto* scales = static_cast<const float*>(src.scales);
  int64_t at = row;
  if (kForm == WeightForm::kFp8Block) at = row / 128 * GroupCount(kForm, src.k) + group;
  float scale = padding ? 0 : scales[at];
  if constexpr (kForm == WeightForm::kFp8Block) {
    // Said once here, so that no product need look for such codes.
    const int64_t k = group * LayoutOf(kForm).group_k;
    const auto* codes = static_cast<const uint8_t*>(src.values);
    if (!padding && HasNan(codes + row * src.k + k, std::min(LayoutOf(kForm).group_k, src.k - k))) {
      scale = std::numeric_limits<float>::quiet_NaN();
    }
  }
  reinterpret_cast<float*>(tail)[column] = scale;
  if constexpr (kForm == WeightForm::kInt8Static) {
    reinterpret_cast<int32_t*>(tail)[kPanelColumns + column] =
        padding || src.bias == nullptr ? 0 : src.bias[row];
  }
}

template <WeightForm kForm>
void Pack(char* dst, int64_t n, int64_t row_begin, const StoredRows& src) {
  constexpr CodedLayout kLayout = LayoutOf(kForm);
  constexpr bool kHalvesShareWords = kForm == WeightForm::kInt4;
  constexpr int64_t kWords = kLayout.block_k / kLayout.word_k;  // of a column in a block
  const int64_t group_bytes = GroupBytes(kForm, src.k);
  const int64_t blocks = (group_bytes - kLayout.tail_bytes) / kLayout.block_bytes;  // of a group
  const int64_t groups = GroupCount(kForm, src.k);
  const int64_t panel_bytes = groups * group_bytes;
  const int64_t given_end = row_begin + src.rows;
  // The rows that end the matrix also bring the padding of its last panel.
  const int64_t end = given_end == n ? RoundUp(n, kPanelColumns) : given_end;
  for (int64_t begin = row_begin; begin < end; begin = RoundUp(begin + 1, kHalfColumns)) {
    const int64_t half_end = std::min(end, RoundUp(begin + 1, kHalfColumns));
    const bool second_half = begin % kPanelColumns >= kHalfColumns;
    char* panel = dst + begin / kPanelColumns * panel_bytes;
    const int64_t half = second_half && !kHalvesShareWords ? kWords * kRegisterBytes : 0;
    const bool whole_half =
        !kHalvesShareWords && begin % kHalfColumns == 0 && begin + kHalfColumns <= given_end;
    for (int64_t group = 0; group < groups; ++group) {
      char* at = panel + group * group_bytes;
      for (int64_t row = begin; row < half_end; ++row) {
        PutTail<kForm>(at + blocks * kLayout.block_bytes, row % kPanelColumns, src, row - row_begin,
                       group);
      }
      for (int64_t block = 0; block < blocks; ++block) {
        const int64_t k = (group * blocks + block) * kLayout.block_k;
        if (whole_half && k + kLayout.block_k <= src.k) {
          constexpr int64_t kElementBits = kForm == WeightForm::kInt4Group ? 4 : 8;
          const char* from = static_cast<const char*>(src.values) +
                             ((begin - row_begin) * src.k + k) * kElementBits / 8;
          TransposeWords(from, src.k * kElementBits / 8, kWords,
                         at + block * kLayout.block_bytes + half, FourWords<kForm>);
          continue;
        }
        for (int64_t row = begin; row < half_end; ++row) {
          char* to = at + block * kLayout.block_bytes + half + row % kHalfColumns * 4;
          for (int64_t i = 0; i < kWords; ++i) {
            const uint32_t word = row < given_end
                                      ? Word<kForm>(src, row - row_begin, k + i * kLayout.word_k)
                                      : kPaddingWord<kForm>;
            PutWord<kForm>(to + i * kRegisterBytes, second_half, word);
          }
        }
      }
    }
  }
}

}  // namespace

void PackCodes(void* dst, int64_t n, int64_t row_begin, const StoredRows& src) {
  BT_CHECK(src.rows == 0 || (src.values != nullptr && src.scales != nullptr));
  char* to = static_cast<char*>(dst);
  switch (src.form) {
    case WeightForm::kInt4Group:
      BT_CHECK(src.k % 8 == 0);
      return Pack<WeightForm::kInt4Group>(to, n, row_begin, src);
    case WeightForm::kFp8Block:
      return Pack<WeightForm::kFp8Block>(to, n, row_begin, src);
    case WeightForm::kInt8:
      return Pack<WeightForm::kInt8>(to, n, row_begin, src);
    case WeightForm::kInt8Static:
      return Pack<WeightForm::kInt8Static>(to, n, row_begin, src);
    case WeightForm::kInt4:
      return Pack<WeightForm::kInt4>(to, n, row_begin, src);
    case WeightForm::kF32:
    case WeightForm::kBf16:
      break;
  }
  BT_CHECK(false);
}

}  // namespace baltoro::cpu
