// Integer codes by integer rows, in tiles of i8. kInt4 is brought to i8 in the first cache, 16
// times its value, a little ahead of the tiles that multiply it. Sums are exact, so the order does
// not matter; they lie in c as i32 until the scales make floats of them.

#include <immintrin.h>

#include "ops/cpu/amx_tiles.h"
#include "ops/cpu/coded_product.h"

namespace baltoro::cpu {
namespace {

constexpr int64_t kBlockBytes = kIntBlockK * kPanelColumns;  // of i8
constexpr int64_t kHalfBytes = kBlockBytes / 2;
constexpr int64_t kRowsAtOnce = 2 * kTileRows;
constexpr int64_t kCutBlocks = 16;  // of a panel for many rows: 32 KiB
constexpr int64_t kAheadBytes = 12 * 1024;

#define BT_INLINE static inline __attribute__((always_inline))

// One block of kInt4: the first half's codes are the low nibbles.
BT_INLINE void ExpandBlock(const char* from, char* to) {
  const __m512i upper = _mm512_set1_epi8(static_cast<char>(0xF0));
  for (int64_t i = 0; i < kHalfBytes; i += 64) {
    const __m512i both = _mm512_loadu_si512(from + i);
    _mm512_store_si512(to + i, _mm512_and_si512(_mm512_slli_epi16(both, 4), upper));
    _mm512_store_si512(to + kHalfBytes + i, _mm512_and_si512(both, upper));
  }
}

template <int kRowTiles>
BT_INLINE void LoadSums(const char* c, int64_t ldc, bool zero) {
  if (zero) {
    _tile_zero(0);
    _tile_zero(1);
    if (kRowTiles == 2) _tile_zero(2);
    if (kRowTiles == 2) _tile_zero(3);
    return;
  }
  _tile_loadd(0, c, ldc);
  _tile_loadd(1, c + 64, ldc);
  if (kRowTiles == 2) _tile_loadd(2, c + kTileRows * ldc, ldc);
  if (kRowTiles == 2) _tile_loadd(3, c + kTileRows * ldc + 64, ldc);
}

template <int kRowTiles>
BT_INLINE void StoreSums(char* c, int64_t ldc) {
  _tile_stored(0, c, ldc);
  _tile_stored(1, c + 64, ldc);
  if (kRowTiles == 2) _tile_stored(2, c + kTileRows * ldc, ldc);
  if (kRowTiles == 2) _tile_stored(3, c + kTileRows * ldc + 64, ldc);
}

template <int kRowTiles>
BT_INLINE void MultiplyBlock(const char* left, int64_t row_tile_bytes, const char* right) {
  _tile_loadd(6, right, 64);
  _tile_loadd(4, left, 64);
  _tile_dpbssd(0, 4, 6);
  if (kRowTiles == 2) {
    _tile_loadd(5, left + row_tile_bytes, 64);
    _tile_dpbssd(2, 5, 6);
  }
  _tile_loadd(7, right + kHalfBytes, 64);
  _tile_dpbssd(1, 4, 7);
  if (kRowTiles == 2) _tile_dpbssd(3, 5, 7);
}

template <bool kNibbles>
class Product {
 public:
  explicit Product(const CodedProduct& p)
      : p_(p),
        layout_(LayoutOf(p.form)),
        blocks_(CeilDiv(p.k, kIntBlockK)),
        row_tile_bytes_(blocks_ * kIntTileBytes),
        ldc_(p.ldc * static_cast<int64_t>(sizeof(float))) {}

  void Run() {
    const int64_t panel_bytes = PanelBytes(p_.form, p_.k);
    if (p_.rows <= kRowsAtOnce) ConfigureAt(0);
    for (int64_t column = 0; column < p_.columns; column += kPanelColumns) {
      const char* panel = p_.panels + column / kPanelColumns * panel_bytes;
      char* c = reinterpret_cast<char*>(p_.c + column);
      if (p_.rows > kRowsAtOnce) {
        Many(panel, c);
      } else if (p_.rows > kTileRows) {
        Few<2>(panel, c);
      } else {
        Few<1>(panel, c);
      }
      Scale(panel + blocks_ * layout_.block_bytes, p_.c + column);
    }
    _tile_release();
  }

 private:
  void ConfigureAt(int64_t row) const {
    const int64_t left = p_.rows - row;
    const int64_t second = left - kTileRows;
    Configure(left < kTileRows ? left : kTileRows,
              second < 0 ? 0 : (second < kTileRows ? second : kTileRows));
  }

  static void Fetch(const char* from, int64_t bytes) {
    for (int64_t line = 0; line < bytes; line += 64) {
      _mm_prefetch(from + kAheadBytes + line, _MM_HINT_T0);
    }
  }

  // All rows at once.
  template <int kRowTiles>
  void Few(const char* panel, char* c) {
    constexpr int64_t kAhead = 2;
    constexpr int64_t kRing = 4;
    alignas(64) char expanded[kRing * kBlockBytes];
    const auto expand = [&](int64_t block) {
      ExpandBlock(panel + block * kHalfBytes, expanded + block % kRing * kBlockBytes);
    };
    LoadSums<kRowTiles>(c, ldc_, /*zero=*/true);
    if (kNibbles) {
      for (int64_t block = 0; block < kAhead && block < blocks_; ++block) expand(block);
    }
    for (int64_t block = 0; block < blocks_; ++block) {
      const char* right = panel + block * kBlockBytes;
      if constexpr (kNibbles) {
        Fetch(panel + block * kHalfBytes, kHalfBytes);
        if (block + kAhead < blocks_) expand(block + kAhead);
        right = expanded + block % kRing * kBlockBytes;
      } else {
        Fetch(right, kBlockBytes);
      }
      MultiplyBlock<kRowTiles>(p_.tiles + block * kIntTileBytes, row_tile_bytes_, right);
    }
    StoreSums<kRowTiles>(c, ldc_);
  }

  // Blocks of k outermost: what a panel has in one stays in the caches for all rows.
  void Many(const char* panel, char* c) {
    alignas(64) char expanded[kNibbles ? kCutBlocks * kBlockBytes : 64];
    for (int64_t begin = 0; begin < blocks_; begin += kCutBlocks) {
      const int64_t count = blocks_ - begin < kCutBlocks ? blocks_ - begin : kCutBlocks;
      const char* right = panel + begin * kBlockBytes;
      if constexpr (kNibbles) {
        for (int64_t i = 0; i < count; ++i) {
          ExpandBlock(panel + (begin + i) * kHalfBytes, expanded + i * kBlockBytes);
        }
        right = expanded;
      }
      Configure(kTileRows, kTileRows);
      int64_t row = 0;
      for (; row + kRowsAtOnce <= p_.rows; row += kRowsAtOnce) {
        Chunk<2>(right, begin, count, row, c);
      }
      if (row == p_.rows) continue;
      ConfigureAt(row);
      if (p_.rows - row > kTileRows) {
        Chunk<2>(right, begin, count, row, c);
      } else {
        Chunk<1>(right, begin, count, row, c);
      }
    }
  }

  template <int kRowTiles>
  void Chunk(const char* right, int64_t begin, int64_t count, int64_t row, char* c) const {
    const char* left = p_.tiles + row / kTileRows * row_tile_bytes_ + begin * kIntTileBytes;
    char* sums = c + row * ldc_;
    LoadSums<kRowTiles>(sums, ldc_, begin == 0);
    for (int64_t i = 0; i < count; ++i) {
      MultiplyBlock<kRowTiles>(left + i * kIntTileBytes, row_tile_bytes_, right + i * kBlockBytes);
    }
    StoreSums<kRowTiles>(sums, ldc_);
  }

  // i32 sums to what they stand for. A sum and its bias may together be too long for i32.
  void Scale(const char* tail, float* c) const {
    for (int64_t half = 0; half < 2; ++half) {
      const __m512 scales = _mm512_loadu_ps(tail + half * 64);
      __m512d low_bias = _mm512_setzero_pd();
      __m512d high_bias = _mm512_setzero_pd();
      const bool biased = p_.form == WeightForm::kInt8Static;
      if (biased) {
        const __m512i bias = _mm512_loadu_si512(tail + kPanelColumns * 4 + half * 64);
        low_bias = _mm512_cvtepi32_pd(_mm512_castsi512_si256(bias));
        high_bias = _mm512_cvtepi32_pd(_mm512_extracti64x4_epi64(bias, 1));
      }
      for (int64_t r = 0; r < p_.rows; ++r) {
        float* at = c + r * p_.ldc + half * kHalfColumns;
        __m512i sum = _mm512_loadu_si512(at);
        if (kNibbles) sum = _mm512_srai_epi32(sum, 4);
        __m512 value = _mm512_cvtepi32_ps(sum);
        if (biased) {
          const __m512d low =
              _mm512_add_pd(_mm512_cvtepi32_pd(_mm512_castsi512_si256(sum)), low_bias);
          const __m512d high =
              _mm512_add_pd(_mm512_cvtepi32_pd(_mm512_extracti64x4_epi64(sum, 1)), high_bias);
          value = _mm512_insertf32x8(_mm512_castps256_ps512(_mm512_cvtpd_ps(low)),
                                     _mm512_cvtpd_ps(high), 1);
        }
        const __m512 row_scale = _mm512_set1_ps(p_.row_scales[r]);
        _mm512_storeu_ps(at, _mm512_mul_ps(_mm512_mul_ps(value, scales), row_scale));
      }
    }
  }

  const CodedProduct& p_;
  const CodedLayout layout_;
  const int64_t blocks_;
  const int64_t row_tile_bytes_;
  const int64_t ldc_;
};

}  // namespace

void MultiplyIntegersAmx(const CodedProduct& p) {
  if (p.form == WeightForm::kInt4) {
    Product<true>(p).Run();
  } else {
    Product<false>(p).Run();
  }
}

}  // namespace baltoro::cpu
