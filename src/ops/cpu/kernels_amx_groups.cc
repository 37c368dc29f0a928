// Groups of codes with float scales, by tiles. Codes are brought to bf16, exactly, in the first
// cache, a little ahead of the tiles that multiply them; the sums of each group are stored, scaled
// and added with vectors while the tiles work on the next ones. Every number of rows runs through
// the same arithmetic: per group the tiles' sum over its k, then c += scale * sum in the order of
// groups.

#include <immintrin.h>

#include "ops/cpu/amx_codes.h"
#include "ops/cpu/amx_tiles.h"
#include "ops/cpu/coded_product.h"

namespace baltoro::cpu {
namespace {

constexpr int64_t kHalfBytes = kBlockElements;  // of bf16: half a block of 32 k x 32 columns
constexpr int64_t kBlockBytes = 2 * kHalfBytes;
constexpr int64_t kTileFloats = kTileRows * kHalfColumns;
constexpr int64_t kLineBytes = 64;     // of 32 k of a row
constexpr int64_t kChunkBlocks = 4;    // whose sums are added together
constexpr int64_t kFetchedBlocks = 8;  // fetched from memory ahead of their use
constexpr int64_t kSpreadRows = 8;
constexpr int64_t kSpreadLines = 512;  // 32 KiB

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
  void Fetch(int64_t block) const {
    const bool last = block % Codes::kGroupBlocks == Codes::kGroupBlocks - 1;
    const int64_t bytes = kBlockCodeBytes + (last ? kTailBytes : 0);
    for (int64_t line = 0; line < bytes; line += 64) _mm_prefetch(Block(block) + line, _MM_HINT_T0);
  }
};

template <typename Codes>
BT_INLINE void ExpandBlock(const Codes& codes, const char* from, char* to) {
  Codes::Expand(codes, from, to);
  Codes::Expand(codes, from + Codes::kHalfCodeBytes, to + kHalfBytes);
}

// One block by one tile of rows; `meanwhile` is other work for the time that the tiles take.
template <typename Meanwhile>
BT_INLINE void MultiplyBlock(const char* left,
                             const char* right,
                             bool begins,
                             float* sums,  // where the sums go that end here; null: they go on
                             const Meanwhile& meanwhile) {
  if (begins) {
    _tile_zero(0);
    _tile_zero(1);
  }
  _tile_loadd(4, left, kLineBytes);
  _tile_loadd(6, right, 64);
  _tile_dpbf16ps(0, 4, 6);
  _tile_loadd(7, right + kHalfBytes, 64);
  _tile_dpbf16ps(1, 4, 7);
  meanwhile();
  if (sums != nullptr) {
    _tile_stored(0, sums, 64);
    _tile_stored(1, sums + kTileFloats, 64);
  }
}

// Sums of the groups of one chunk that are not in c yet.
struct Pending {
  int64_t rows = 0;
  const float* row_scales = nullptr;  // of the first row and group; null: ones
  int64_t row_scale_stride = 0;
  const char* tail = nullptr;  // of the first group
  int64_t groups = 0;
  const float* sums = nullptr;
  int64_t offsets[kChunkBlocks] = {};  // of each group's sums
  bool first = false;                  // nothing is in c
  float* c = nullptr;
  int64_t ldc = 0;
};

// c[r] (+)= sum over groups of column scale * (row scale *) sums[r], for rows [begin, end) of a
// half of c, which lie in one row tile.
template <typename Codes, int kGroups, bool kRowScales>
BT_INLINE void AddGroups(const Pending& p, int64_t half, int64_t begin, int64_t end) {
  __m512 scales[kGroups];
  const float* from[kGroups];
  const float* row_scales = kRowScales ? p.row_scales + begin * p.row_scale_stride : nullptr;
  for (int g = 0; g < kGroups; ++g) {
    scales[g] = Codes::Scale(p.tail + g * Panel<Codes>::kGroupBytes, half);
    from[g] = p.sums + p.offsets[g] + half * kTileFloats + begin * kHalfColumns;
  }
  float* c = p.c + begin * p.ldc + half * kHalfColumns;
  for (int64_t r = 0; r < end - begin; ++r) {
    __m512 sum = p.first ? _mm512_setzero_ps() : _mm512_loadu_ps(c);
    for (int g = 0; g < kGroups; ++g) {
      __m512 part = _mm512_load_ps(from[g] + r * kHalfColumns);
      if (kRowScales) part = _mm512_mul_ps(part, _mm512_set1_ps(row_scales[g]));
      sum = _mm512_fmadd_ps(scales[g], part, sum);
    }
    _mm512_storeu_ps(c, sum);
    c += p.ldc;
    if (kRowScales) row_scales += p.row_scale_stride;
  }
}

// One of four parts of c: the upper or the lower rows of a half.
template <typename Codes, bool kRowScales>
BT_INLINE void AddPart(const Pending& p, int64_t part) {
  constexpr int64_t kPartRows = kTileRows / 2;
  constexpr int kGroups = kChunkBlocks / Codes::kGroupBlocks;
  const int64_t begin = part / 2 * kPartRows;
  const int64_t end = p.rows < begin + kPartRows ? p.rows : begin + kPartRows;
  if (begin >= end) return;
  if (p.groups == kGroups) {
    AddGroups<Codes, kGroups, kRowScales>(p, part % 2, begin, end);
    return;
  }
  Pending one = p;
  for (int64_t g = 0; g < p.groups; ++g) {
    one.offsets[0] = p.offsets[g];
    AddGroups<Codes, 1, kRowScales>(one, part % 2, begin, end);
    one.tail += Panel<Codes>::kGroupBytes;
    one.row_scales += kRowScales ? 1 : 0;
    one.first = false;
  }
}

template <typename Codes, bool kRowScales>
class Product {
 public:
  explicit Product(const CodedProduct& p)
      : p_(p), blocks_(CeilDiv(p.k, kBlockK)), groups_(CeilDiv(blocks_, Codes::kGroupBlocks)) {}

  void Run() {
    if (Codes::kGroupBlocks == 1 && p_.rows <= kSpreadRows) {
      Spread();
    } else {
      // What a last tile holds beyond the rows is computed, but not used.
      Configure(p_.rows < kTileRows ? p_.rows : kTileRows, 0);
      for (int64_t column = 0; column < p_.columns; column += kPanelColumns) WholeTiles(column);
    }
    _tile_release();
  }

 private:
  static constexpr int64_t kGroups = kChunkBlocks / Codes::kGroupBlocks;
  static constexpr int64_t kSums = 2 * kTileFloats;  // of one tile of rows

  Panel<Codes> PanelAt(int64_t column) const {
    return {p_.panels + column / kPanelColumns * groups_ * Panel<Codes>::kGroupBytes};
  }

  // The panel that follows, or this one again where nothing is known to follow.
  Panel<Codes> PanelAfter(int64_t column) const {
    if (column + kPanelColumns < p_.columns) return PanelAt(column + kPanelColumns);
    return p_.next == nullptr ? PanelAt(column) : Panel<Codes>{static_cast<const char*>(p_.next)};
  }

  // Blocks [begin, end) of one panel on their way through the ring, and what follows them.
  struct Stream {
    const Codes& codes;
    Panel<Codes> panel;
    Panel<Codes> after;
    int64_t begin;
    int64_t end;
    char* ring;
    // Blocks from expansion to use: no more than needed, since the first cache also holds the rows.
    int64_t ahead;

    char* Expanded(int64_t block) const { return ring + block % (2 * ahead) * kBlockBytes; }
    void Start() const {
      for (int64_t i = 0; i < ahead; ++i) Expand(begin + i);
    }
    // Also fetches a later block from memory.
    void Expand(int64_t block) const {
      if (block >= end) return;
      const int64_t fetched = block + kFetchedBlocks;
      if (fetched < end) {
        panel.Fetch(fetched);
      } else if (fetched - end < end - begin) {
        after.Fetch(begin + fetched - end);
      }
      ExpandBlock(codes, panel.Block(block), Expanded(block));
    }
  };

  Pending PendingAt(int64_t row, int64_t column, int64_t begin, const float* sums) const {
    const int64_t group = begin / Codes::kGroupBlocks;
    Pending pending = {.rows = p_.rows - row < kTileRows ? p_.rows - row : kTileRows,
                       .row_scales = kRowScales ? p_.row_scales + row * groups_ + group : nullptr,
                       .row_scale_stride = groups_,
                       .tail = PanelAt(column).Tail(group),
                       .groups = groups_ - group < kGroups ? groups_ - group : kGroups,
                       .sums = sums,
                       .first = begin == 0,
                       .c = p_.c + row * p_.ldc + column,
                       .ldc = p_.ldc};
    for (int64_t g = 0; g < kGroups; ++g) pending.offsets[g] = g * kSums;
    return pending;
  }

  static void Flush(const Pending& pending) {
    for (int64_t part = 0; part < 4; ++part) AddPart<Codes, kRowScales>(pending, part);
  }

  // A tile takes as long for one row as for 16, and storing it takes almost as long again. So the
  // few rows of several groups share a tile of c: each group's rows of x lie among rows of zeros,
  // at a place of their own.
  void Spread() {
    alignas(64) char lines[(kSpreadLines + kTileRows) * kLineBytes];
    constexpr int64_t kAhead = kChunkBlocks / 2;
    alignas(64) char ring[2 * kAhead * kBlockBytes];
    alignas(64) float sums[2][kChunkBlocks / 2 * kSums];
    const int64_t rows = p_.rows;
    const int64_t places = rows <= kTileRows / 4 ? 4 : 2;
    const int64_t tile_lines = places * rows;
    const int64_t step = kSpreadLines / tile_lines / kChunkBlocks * kChunkBlocks;
    Configure(tile_lines, 0);
    for (int64_t begin = 0; begin < blocks_; begin += step) {
      const int64_t end = begin + step < blocks_ ? begin + step : blocks_;
      char* x = lines + (tile_lines - rows) * kLineBytes;
      std::memset(lines, 0, static_cast<size_t>((end - begin + 1) * tile_lines * kLineBytes));
      for (int64_t block = begin; block < end; ++block) {
        std::memcpy(x + (block - begin) * tile_lines * kLineBytes,
                    p_.tiles + block * kTileElements * 2, static_cast<size_t>(rows * kLineBytes));
      }
      for (int64_t column = 0; column < p_.columns; column += kPanelColumns) {
        const Stream stream = {codes_, PanelAt(column), PanelAfter(column), begin, end,
                               ring,   kAhead};
        stream.Start();
        Pending pending;
        for (int64_t chunk = begin; chunk < end; chunk += kChunkBlocks) {
          float* const to = sums[chunk / kChunkBlocks % 2];
          for (int64_t i = 0; i < kChunkBlocks; ++i) {
            const int64_t block = chunk + i;
            const auto meanwhile = [&] {
              stream.Expand(block + kAhead);
              AddPart<Codes, kRowScales>(pending, i);
            };
            if (block >= end) {
              meanwhile();
              continue;
            }
            const int64_t place = i % places;
            const bool ends = place == places - 1 || block == end - 1;
            MultiplyBlock(x + ((block - begin) * tile_lines - place * rows) * kLineBytes,
                          stream.Expanded(block), place == 0,
                          ends ? to + i / places * kSums : nullptr, meanwhile);
          }
          pending = PendingAt(0, column, chunk, to);
          for (int64_t g = 0; g < kGroups; ++g) {
            pending.offsets[g] = g / places * kSums + g % places * rows * kHalfColumns;
          }
        }
        Flush(pending);
      }
    }
  }

  // Each chunk is expanded once, while the one before is multiplied with the first rows.
  void WholeTiles(int64_t column) {
    const bool several = p_.rows > kTileRows;
    alignas(64) char ring[2 * kChunkBlocks * kBlockBytes];
    alignas(64) float sums[2][kGroups * kSums];
    const Stream stream = {codes_,
                           PanelAt(column),
                           PanelAfter(column),
                           0,
                           blocks_,
                           ring,
                           several ? kChunkBlocks : kChunkBlocks / 2};
    stream.Start();
    Pending pending;
    int64_t parity = 0;
    for (int64_t begin = 0; begin < blocks_; begin += kChunkBlocks) {
      for (int64_t row = 0; row < p_.rows; row += kTileRows) {
        parity = 1 - parity;
        float* to = sums[parity];
        const char* left = p_.tiles + row * blocks_ * kLineBytes;
        for (int64_t i = 0; i < kChunkBlocks; ++i) {
          const int64_t block = begin + i;
          const auto meanwhile = [&] {
            if (row == 0) stream.Expand(block + stream.ahead);
            AddPart<Codes, kRowScales>(pending, i);
          };
          if (block >= blocks_) {
            meanwhile();
            continue;
          }
          const int64_t place = block % Codes::kGroupBlocks;
          const bool ends = place == Codes::kGroupBlocks - 1 || block == blocks_ - 1;
          MultiplyBlock(left + block * kTileElements * 2, stream.Expanded(block), place == 0,
                        ends ? to : nullptr, meanwhile);
          if (ends) to += kSums;
        }
        pending = PendingAt(row, column, begin, sums[parity]);
      }
    }
    Flush(pending);
  }

  const CodedProduct& p_;
  const int64_t blocks_;
  const int64_t groups_;
  const Codes codes_;
};

}  // namespace

void MultiplyGroupsAmx(const CodedProduct& p) {
  if (p.form == WeightForm::kInt4Group) {
    Product<Int4Codes, false>(p).Run();
  } else if (p.row_scales == nullptr) {
    Product<Fp8Codes, false>(p).Run();
  } else {
    Product<Fp8Codes, true>(p).Run();
  }
}

}  // namespace baltoro::cpu
