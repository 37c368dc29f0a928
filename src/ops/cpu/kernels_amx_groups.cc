// Groups of codes with float scales, by tiles. Codes are brought to bf16, exactly, in the first
// cache, a little ahead of the tiles that multiply them; the sums of each group are stored, scaled
// and added with vectors, some groups at a time. Every number of rows runs through the same
// arithmetic: per group the tiles' sum over its k, then c += scale * sum in the order of groups.

#include <immintrin.h>

#include "ops/cpu/amx_tiles.h"
#include "ops/cpu/coded_product.h"

namespace baltoro::cpu {
namespace {

constexpr int64_t kHalfBytes = kBlockElements;  // of bf16: half a block of 32 k x 32 columns
constexpr int64_t kBlockBytes = 2 * kHalfBytes;
constexpr int64_t kTileFloats = kTileRows * kHalfColumns;
constexpr int64_t kChunkBlocks = 8;        // 256 k: 16 KiB of a panel in bf16
constexpr int64_t kAheadBytes = 6 * 1024;  // of codes that are fetched before they are needed

#define BT_INLINE static inline __attribute__((always_inline))

// ---- codes to bf16: one half of a block, 16 registers of pairs ----

struct Int4Codes {
  static constexpr WeightForm kForm = WeightForm::kInt4Group;
  static constexpr int64_t kGroupBlocks = 1;
  static constexpr int64_t kHalfCodeBytes = 256;

  // The lookup takes the lowest 5 bits of a lane: the upper half of the table repeats the lower.
  __m512i table;

  Int4Codes() {
    alignas(64) uint16_t values[32];
    for (int i = 0; i < 32; ++i) {
      const auto value = static_cast<float>(i % 16 - 8);
      uint32_t bits = 0;
      std::memcpy(&bits, &value, sizeof(bits));
      values[i] = static_cast<uint16_t>(bits >> 16);
    }
    table = _mm512_load_si512(values);
  }

  BT_INLINE void Expand(const Int4Codes& codes, const char* from, char* to) {
    for (int i = 0; i < 4; ++i) {
      const __m512i x = _mm512_loadu_si512(from + i * 64);
      const auto put = [&](int pair, __m512i nibbles) {
        _mm512_store_si512(to + (i * 4 + pair) * 64,
                           _mm512_permutexvar_epi16(nibbles, codes.table));
      };
      put(0, x);
      put(1, _mm512_srli_epi16(x, 4));
      put(2, _mm512_srli_epi16(x, 8));
      put(3, _mm512_srli_epi16(x, 12));
    }
  }

  BT_INLINE __m512 Scale(const char* tail, int64_t half) {
    const __m256i scales =
        _mm256_loadu_si256(reinterpret_cast<const __m256i*>(tail + half * kHalfColumns * 2));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(scales), 16));
  }
};

struct Fp8Codes {
  static constexpr WeightForm kForm = WeightForm::kFp8Block;
  static constexpr int64_t kGroupBlocks = 4;
  static constexpr int64_t kHalfCodeBytes = 512;

  // The upper and the lower byte of the bf16 of each magnitude.
  __m512i high[2];
  __m512i low[2];

  Fp8Codes() {
    alignas(64) uint8_t bytes[2][128];
    for (int code = 0; code < 128; ++code) {
      uint32_t bits = 0x7FC00000;
      if (code < 8) {
        const float value = static_cast<float>(code) * 0x1p-9f;
        std::memcpy(&bits, &value, sizeof(bits));
      } else if (code < 127) {
        bits = static_cast<uint32_t>(code + ((127 - 7) << 3)) << 20;
      }
      bytes[0][code] = static_cast<uint8_t>(bits >> 24);
      bytes[1][code] = static_cast<uint8_t>(bits >> 16);
    }
    for (int i = 0; i < 2; ++i) {
      high[i] = _mm512_load_si512(bytes[0] + i * 64);
      low[i] = _mm512_load_si512(bytes[1] + i * 64);
    }
  }

  BT_INLINE void Expand(const Fp8Codes& codes, const char* from, char* to) {
    constexpr int kOrAnd = 0xF8;  // a | (b & c)
    const __m512i sign = _mm512_set1_epi8(-128);
    const __m512i low_byte = _mm512_set1_epi16(0x00FF);
    const __m512i high_byte = _mm512_set1_epi16(static_cast<int16_t>(0xFF00));
    for (int i = 0; i < 8; ++i) {
      const __m512i x = _mm512_loadu_si512(from + i * 64);
      const __m512i magnitude = _mm512_permutex2var_epi8(codes.high[0], x, codes.high[1]);
      const __m512i high = _mm512_ternarylogic_epi32(magnitude, x, sign, kOrAnd);
      const __m512i low = _mm512_permutex2var_epi8(codes.low[0], x, codes.low[1]);
      _mm512_store_si512(to + i * 128, _mm512_ternarylogic_epi32(_mm512_slli_epi16(high, 8), low,
                                                                 low_byte, kOrAnd));
      _mm512_store_si512(to + i * 128 + 64, _mm512_ternarylogic_epi32(_mm512_srli_epi16(low, 8),
                                                                      high, high_byte, kOrAnd));
    }
  }

  BT_INLINE __m512 Scale(const char* tail, int64_t half) {
    return _mm512_loadu_ps(tail + half * kHalfColumns * 4);
  }
};

// ---- products ----

template <typename Codes>
struct Panel {
  static constexpr int64_t kBlockCodeBytes = 2 * Codes::kHalfCodeBytes;
  static constexpr int64_t kTailBytes = LayoutOf(Codes::kForm).tail_bytes;
  static constexpr int64_t kGroupBytes = Codes::kGroupBlocks * kBlockCodeBytes + kTailBytes;

  const char* at = nullptr;

  const char* Block(int64_t block) const {
    return at + block / Codes::kGroupBlocks * kGroupBytes +
           block % Codes::kGroupBlocks * kBlockCodeBytes;
  }
  const char* Tail(int64_t group) const { return at + (group + 1) * kGroupBytes - kTailBytes; }
};

template <typename Codes>
BT_INLINE void ExpandBlock(const Codes& codes, const char* from, char* to) {
  Codes::Expand(codes, from, to);
  Codes::Expand(codes, from + Codes::kHalfCodeBytes, to + kHalfBytes);
}

// One block by kRowTiles tiles of rows: begins or ends the sums of a group as asked.
template <int kRowTiles>
BT_INLINE void MultiplyBlock(const char* left,
                             int64_t row_tile_bytes,
                             const char* right,
                             bool begins,
                             bool ends,
                             float* sums) {
  if (begins) {
    _tile_zero(0);
    _tile_zero(1);
    if (kRowTiles == 2) _tile_zero(2);
    if (kRowTiles == 2) _tile_zero(3);
  }
  _tile_loadd(4, left, 64);
  _tile_loadd(6, right, 64);
  _tile_dpbf16ps(0, 4, 6);
  if (kRowTiles == 2) {
    _tile_loadd(5, left + row_tile_bytes, 64);
    _tile_dpbf16ps(2, 5, 6);
  }
  _tile_loadd(7, right + kHalfBytes, 64);
  _tile_dpbf16ps(1, 4, 7);
  if (kRowTiles == 2) _tile_dpbf16ps(3, 5, 7);
  if (ends) {
    _tile_stored(0, sums, 64);
    _tile_stored(1, sums + kTileFloats, 64);
    if (kRowTiles == 2) _tile_stored(2, sums + 2 * kTileFloats, 64);
    if (kRowTiles == 2) _tile_stored(3, sums + 3 * kTileFloats, 64);
  }
}

struct Rows {
  const float* scales = nullptr;  // of the first row and group; null: ones
  int64_t scale_stride = 0;       // from one row to the next
  float* c = nullptr;
  int64_t ldc = 0;
};

// c[r] (+)= sum over groups of column scale * (row scale *) sums[group][row tile, half][r].
template <typename Codes, int kRowTiles, bool kRowScales>
BT_INLINE void AddGroups(
    const Rows& at, int64_t rows, const char* tail, int64_t groups, const float* sums, bool first) {
  constexpr int64_t kGroupsMax = kChunkBlocks / Codes::kGroupBlocks;
  for (int64_t half = 0; half < 2; ++half) {
    __m512 scales[kGroupsMax];
    for (int64_t g = 0; g < groups; ++g) {
      scales[g] = Codes::Scale(tail + g * Panel<Codes>::kGroupBytes, half);
    }
    for (int64_t r = 0; r < rows; ++r) {
      float* c = at.c + r * at.ldc + half * kHalfColumns;
      const float* from =
          sums + (r / kTileRows * 2 + half) * kTileFloats + r % kTileRows * kHalfColumns;
      __m512 sum = first ? _mm512_setzero_ps() : _mm512_loadu_ps(c);
      for (int64_t g = 0; g < groups; ++g) {
        __m512 part = _mm512_load_ps(from + g * kRowTiles * 2 * kTileFloats);
        if (kRowScales) {
          part = _mm512_mul_ps(part, _mm512_set1_ps(at.scales[r * at.scale_stride + g]));
        }
        sum = _mm512_fmadd_ps(scales[g], part, sum);
      }
      _mm512_storeu_ps(c, sum);
    }
  }
}

template <typename Codes, bool kRowScales>
class Product {
 public:
  explicit Product(const CodedProduct& p)
      : p_(p),
        blocks_(CeilDiv(p.k, kBlockK)),
        groups_(CeilDiv(blocks_, Codes::kGroupBlocks)),
        row_tile_bytes_(blocks_ * kTileElements * 2) {}

  void Run() {
    constexpr int64_t kFew = 2 * kTileRows;
    if (p_.rows <= kFew) Configure(Rows0(0), Rows1(0));
    for (int64_t column = 0; column < p_.columns; column += kPanelColumns) {
      const Panel<Codes> panel = {p_.panels +
                                  column / kPanelColumns * groups_ * Panel<Codes>::kGroupBytes};
      if (p_.rows > kFew) {
        Many(panel, column);
      } else if (p_.rows > kTileRows) {
        Few<2>(panel, column);
      } else {
        Few<1>(panel, column);
      }
    }
    _tile_release();
  }

 private:
  int64_t Rows0(int64_t row) const { return p_.rows - row < kTileRows ? p_.rows - row : kTileRows; }
  int64_t Rows1(int64_t row) const {
    const int64_t left = p_.rows - row - kTileRows;
    return left < 0 ? 0 : (left < kTileRows ? left : kTileRows);
  }

  Rows RowsAt(int64_t row, int64_t group, int64_t column) const {
    return {.scales = kRowScales ? p_.row_scales + row * groups_ + group : nullptr,
            .scale_stride = groups_,
            .c = p_.c + row * p_.ldc + column,
            .ldc = p_.ldc};
  }

  bool Ends(int64_t block) const {
    return block % Codes::kGroupBlocks == Codes::kGroupBlocks - 1 || block == blocks_ - 1;
  }

  // All rows at once: each block is expanded two blocks before it is multiplied.
  template <int kRowTiles>
  void Few(const Panel<Codes>& panel, int64_t column) {
    constexpr int64_t kAhead = 2;
    constexpr int64_t kRing = 4;
    alignas(64) char expanded[kRing * kBlockBytes];
    alignas(64) float sums[kChunkBlocks / Codes::kGroupBlocks * kRowTiles * 2 * kTileFloats];
    const auto expand = [&](int64_t block) {
      const char* from = panel.Block(block);
      for (int64_t line = 0; line < Panel<Codes>::kBlockCodeBytes + 64; line += 64) {
        _mm_prefetch(from + kAheadBytes + line, _MM_HINT_T0);
      }
      ExpandBlock(codes_, from, expanded + block % kRing * kBlockBytes);
    };
    for (int64_t block = 0; block < kAhead && block < blocks_; ++block) expand(block);
    for (int64_t begin = 0; begin < blocks_; begin += kChunkBlocks) {
      const int64_t end = begin + kChunkBlocks < blocks_ ? begin + kChunkBlocks : blocks_;
      const int64_t group = begin / Codes::kGroupBlocks;
      float* to = sums;
      for (int64_t block = begin; block < end; ++block) {
        if (block + kAhead < blocks_) expand(block + kAhead);
        const bool ends = Ends(block);
        MultiplyBlock<kRowTiles>(p_.tiles + block * kTileElements * 2, row_tile_bytes_,
                                 expanded + block % kRing * kBlockBytes,
                                 block % Codes::kGroupBlocks == 0, ends, to);
        if (ends) to += kRowTiles * 2 * kTileFloats;
      }
      AddGroups<Codes, kRowTiles, kRowScales>(RowsAt(0, group, column), p_.rows, panel.Tail(group),
                                              CeilDiv(end - begin, Codes::kGroupBlocks), sums,
                                              begin == 0);
    }
  }

  // Some blocks are expanded once, for all rows.
  void Many(const Panel<Codes>& panel, int64_t column) {
    alignas(64) char expanded[kChunkBlocks * kBlockBytes];
    for (int64_t begin = 0; begin < blocks_; begin += kChunkBlocks) {
      const int64_t end = begin + kChunkBlocks < blocks_ ? begin + kChunkBlocks : blocks_;
      for (int64_t block = begin; block < end; ++block) {
        ExpandBlock(codes_, panel.Block(block), expanded + (block - begin) * kBlockBytes);
      }
      Configure(kTileRows, kTileRows);
      int64_t row = 0;
      for (; row + 2 * kTileRows <= p_.rows; row += 2 * kTileRows) {
        Chunk<2>(panel, begin, end, row, 2 * kTileRows, column, expanded);
      }
      if (row == p_.rows) continue;
      Configure(Rows0(row), Rows1(row));
      if (Rows1(row) > 0) {
        Chunk<2>(panel, begin, end, row, p_.rows - row, column, expanded);
      } else {
        Chunk<1>(panel, begin, end, row, p_.rows - row, column, expanded);
      }
    }
  }

  template <int kRowTiles>
  void Chunk(const Panel<Codes>& panel,
             int64_t begin,
             int64_t end,
             int64_t row,
             int64_t rows,
             int64_t column,
             const char* expanded) {
    alignas(64) float sums[kChunkBlocks / Codes::kGroupBlocks * kRowTiles * 2 * kTileFloats];
    const char* left = p_.tiles + row / kTileRows * row_tile_bytes_;
    float* to = sums;
    for (int64_t block = begin; block < end; ++block) {
      const bool ends = Ends(block);
      MultiplyBlock<kRowTiles>(left + block * kTileElements * 2, row_tile_bytes_,
                               expanded + (block - begin) * kBlockBytes,
                               block % Codes::kGroupBlocks == 0, ends, to);
      if (ends) to += kRowTiles * 2 * kTileFloats;
    }
    const int64_t group = begin / Codes::kGroupBlocks;
    AddGroups<Codes, kRowTiles, kRowScales>(RowsAt(row, group, column), rows, panel.Tail(group),
                                            CeilDiv(end - begin, Codes::kGroupBlocks), sums,
                                            begin == 0);
  }

  const CodedProduct& p_;
  const int64_t blocks_;
  const int64_t groups_;
  const int64_t row_tile_bytes_;
  const Codes codes_;
};

}  // namespace

void MultiplyGroupsAmx(const Kernels&, const CodedProduct& p) {
  if (p.form == WeightForm::kInt4Group) {
    Product<Int4Codes, false>(p).Run();
  } else if (p.row_scales == nullptr) {
    Product<Fp8Codes, false>(p).Run();
  } else {
    Product<Fp8Codes, true>(p).Run();
  }
}

}  // namespace baltoro::cpu
