// Matrix instructions: mma, ldmatrix, stmatrix, wgmma. Factors are widened to f32 (s8 to s32) and
// summed in order. A wgmma happens when it is issued; until it is waited for, what it read of
// shared memory must not change.

#include <algorithm>
#ifdef __AVX512F__
#include <immintrin.h>
#endif
#include <string>
#include <string_view>
#include <utility>

#include "access.h"
#include "lanes.h"
#include "numbers.h"
#include "tensor_map.h"

namespace emu {
namespace {

using ptx::Instruction;
using ptx::Operand;
using Kind = Operand::Kind;

enum class Type : uint32_t { kBf16, kF16, kE4m3, kE5m2, kS8, kU8, kTf32 };

int BytesOf(Type t) {
  return t == Type::kTf32 ? 4 : t == Type::kBf16 || t == Type::kF16 ? 2 : 1;
}

bool TypeOf(const std::string& name, Type& t) {
  constexpr std::pair<std::string_view, Type> kTypes[] = {
      {"bf16", Type::kBf16}, {"f16", Type::kF16}, {"e4m3", Type::kE4m3}, {"e5m2", Type::kE5m2},
      {"s8", Type::kS8},     {"u8", Type::kU8},   {"tf32", Type::kTf32}};
  for (const auto& [known, type] : kTypes) {
    if (name != known) continue;
    t = type;
    return true;
  }
  return false;
}

const float* E4m3Table() {
  static const float* const table = [] {
    auto* t = new float[256];
    for (int n = 0; n < 256; ++n) t[n] = E4m3ToFloat(static_cast<uint8_t>(n));
    return t;
  }();
  return table;
}

// `count` numbers of the type.
inline void Widen(Type t, const char* from, int count, float* to) {
  switch (t) {
    case Type::kBf16:
      for (int n = 0; n < count; ++n) {
        uint16_t b;
        std::memcpy(&b, from + 2 * n, 2);
        to[n] = Bf16ToFloat(b);
      }
      return;
    case Type::kF16: {
      int done = 0;
#ifdef __AVX512F__
      for (; done + 16 <= count; done += 16) {
        _mm512_storeu_ps(
            to + done,
            _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + 2 * done))));
      }
#endif
      for (int n = done; n < count; ++n) {
        uint16_t b;
        std::memcpy(&b, from + 2 * n, 2);
        to[n] = HalfToFloat(b);
      }
      return;
    }
    case Type::kE4m3: {
      const float* table = E4m3Table();
      for (int n = 0; n < count; ++n) to[n] = table[static_cast<uint8_t>(from[n])];
      return;
    }
    case Type::kE5m2:
      for (int n = 0; n < count; ++n) to[n] = E5m2ToFloat(static_cast<uint8_t>(from[n]));
      return;
    case Type::kS8:
      for (int n = 0; n < count; ++n) to[n] = static_cast<int8_t>(from[n]);
      return;
    case Type::kU8:
      for (int n = 0; n < count; ++n) to[n] = static_cast<uint8_t>(from[n]);
      return;
    case Type::kTf32:
      for (int n = 0; n < count; ++n) {
        uint32_t b;
        std::memcpy(&b, from + 4 * n, 4);
        to[n] = std::bit_cast<float>(b & 0xFFFFE000u);
      }
      return;
  }
}

constexpr int kMaxK = 32;

// Rows of A as a warp's registers hold them: 16 x k.
void ReadA(const Warp& w, Type t, const uint32_t* places, int k, float (*a)[kMaxK]) {
  const int per = 4 / BytesOf(t);                   // numbers in a register
  const int half = k / 2 >= 4 * per ? 4 * per : k;  // columns that the first two registers hold
  const int registers = 2 * (k / half);
  alignas(64) float numbers[kLanes * 4];
  for (int r = 0; r < registers; ++r) {
    Widen(t, w.At<char>(places[r]), kLanes * per, numbers);
    // Four lanes hold 4 * per columns of a row.
    for (int row = 0; row < 8; ++row)
      std::memcpy(&a[row + (r & 1) * 8][(r >> 1) * half], numbers + row * 4 * per,
                  sizeof(float) * 4 * per);
  }
}

// c[16][n] += a[16][k] b[k][n], n a multiple of 8.
using Vector16 = float __attribute__((vector_size(64)));
using Vector8 = float __attribute__((vector_size(32)));

template <class V>
inline void MultiplyColumns(const float (*a)[kMaxK], const float* b, int k, int n, float* c) {
  V sums[16];
  for (int row = 0; row < 16; ++row) std::memcpy(&sums[row], c + row * n, sizeof(V));
  for (int i = 0; i < k; ++i) {
    V from;
    std::memcpy(&from, b + i * n, sizeof(V));
#pragma GCC unroll 16
    for (int row = 0; row < 16; ++row) sums[row] += a[row][i] * from;
  }
  for (int row = 0; row < 16; ++row) std::memcpy(c + row * n, &sums[row], sizeof(V));
}

void Multiply(const float (*a)[kMaxK], const float* b, int k, int n, float* c) {
  int j = 0;
  for (; j + 16 <= n; j += 16) MultiplyColumns<Vector16>(a, b + j, k, n, c + j);
  if (j < n) MultiplyColumns<Vector8>(a, b + j, k, n, c + j);
}

// Whole numbers: |sum| of 32 products of 8 bits is exact in f32, so the sums are added in 32 bits.
template <bool kInteger>
void Finish(Warp& w, const uint32_t* d, const uint32_t* c, const float* sums, int n) {
  for (int j = 0; j < n / 8; ++j)
    for (int r = 0; r < 4; ++r) {
      const float* at = sums + (r >> 1) * 8 * n + j * 8 + (r & 1);
      if constexpr (kInteger) {
        int32_t values[kLanes];
        const int32_t* before = c != nullptr ? w.At<int32_t>(c[j * 4 + r]) : nullptr;
        for (int l = 0; l < kLanes; ++l)
          values[l] = static_cast<int32_t>(
              (before != nullptr ? static_cast<uint32_t>(before[l]) : 0u) +
              static_cast<uint32_t>(static_cast<int32_t>(at[(l >> 2) * n + (l & 3) * 2])));
        std::memcpy(w.At<int32_t>(d[j * 4 + r]), values, sizeof values);
      } else {
        float* to = w.At<float>(d[j * 4 + r]);
        for (int l = 0; l < kLanes; ++l) to[l] = at[(l >> 2) * n + (l & 3) * 2];
      }
    }
}

void Begin(const Warp& w, const uint32_t* c, int n, float* sums) {
  for (int j = 0; j < n / 8; ++j)
    for (int r = 0; r < 4; ++r) {
      const float* from = w.At<float>(c[j * 4 + r]);
      float* at = sums + (r >> 1) * 8 * n + j * 8 + (r & 1);
      for (int l = 0; l < kLanes; ++l) at[(l >> 2) * n + (l & 3) * 2] = from[l];
    }
}

// list: d 4, a, b, c 4; aux: type of a, type of b, k, integer sums.
bool Mma(Warp& w, const Inst& i, uint32_t) {
  if (!Converge(w, i, kAll)) return false;
  if (w.active != kAll) Fault(w, i, "mma by a part of a warp");
  const auto ta = static_cast<Type>(i.aux[0]), tb = static_cast<Type>(i.aux[1]);
  const int k = static_cast<int>(i.aux[2]);
  alignas(64) float a[16][kMaxK], b[kMaxK * 8], c[16 * 8];
  const int per = 4 / BytesOf(ta), half = k / 2 >= 4 * per ? 4 * per : k;
  const int registers = 2 * (k / half);
  const uint32_t *pd = i.list, *pa = pd + 4, *pb = pa + registers, *pc = pb + registers / 2;
  ReadA(w, ta, pa, k, a);
  for (int r = 0; r < registers / 2; ++r) {
    alignas(64) float numbers[kLanes * 4];
    Widen(tb, w.At<char>(pb[r]), kLanes * per, numbers);
    for (int column = 0; column < 8; ++column)
      for (int x = 0; x < 4 * per; ++x)
        b[(r * half + x) * 8 + column] = numbers[column * 4 * per + x];
  }
  if (i.aux[3] != 0) {
    std::fill_n(c, 16 * 8, 0.0f);
    Multiply(a, b, k, 8, c);
    Finish<true>(w, pd, pc, c, 8);
  } else {
    Begin(w, pc, 8, c);
    Multiply(a, b, k, 8, c);
    Finish<false>(w, pd, nullptr, c, 8);
  }
  return false;
}

// ---- 8 x 8 matrices of 16 bits: v[0] address; list: registers; aux[0] bytes of the address,
// aux[1] how many matrices, aux[2] transposed.
const char* RowAt(const Warp& w, const Inst& i, int lane) {
  const uint64_t address =
      (i.aux[0] == 8 ? w.At<uint64_t>(i.v[0])[lane] : w.At<uint32_t>(i.v[0])[lane]) +
      static_cast<uint64_t>(i.imm);
  const uint64_t offset = address >= (uint64_t{1} << 32)
                              ? address - reinterpret_cast<uint64_t>(w.block->shared)
                              : address & 0xFFFFFFFFu;
  return SharedPointer(w, i, *w.block, offset, 16, 16);
}

bool LoadMatrices(Warp& w, const Inst& i, uint32_t) {
  if (!Converge(w, i, kAll)) return false;
  if (w.active != kAll) Fault(w, i, "ldmatrix by a part of a warp");
  uint16_t rows[32][8];
  const int count = static_cast<int>(i.aux[1]);
  for (int l = 0; l < count * 8; ++l) std::memcpy(rows[l], RowAt(w, i, l), 16);
  for (int n = 0; n < count; ++n) {
    uint32_t* d = w.At<uint32_t>(i.list[n]);
    for (int l = 0; l < kLanes; ++l) {
      const int r = l >> 2, c = (l & 3) * 2;
      d[l] = i.aux[2] != 0 ? rows[n * 8 + c][r] | uint32_t{rows[n * 8 + c + 1][r]} << 16
                           : rows[n * 8 + r][c] | uint32_t{rows[n * 8 + r][c + 1]} << 16;
    }
  }
  return false;
}

bool StoreMatrices(Warp& w, const Inst& i, uint32_t) {
  if (!Converge(w, i, kAll)) return false;
  if (w.active != kAll) Fault(w, i, "stmatrix by a part of a warp");
  ++w.block->launch->effects;
  uint16_t rows[32][8];
  const int count = static_cast<int>(i.aux[1]);
  for (int n = 0; n < count; ++n) {
    const uint32_t* d = w.At<uint32_t>(i.list[n]);
    for (int l = 0; l < kLanes; ++l) {
      const int r = l >> 2, c = (l & 3) * 2;
      const auto low = static_cast<uint16_t>(d[l]), high = static_cast<uint16_t>(d[l] >> 16);
      (i.aux[2] != 0 ? rows[n * 8 + c][r] : rows[n * 8 + r][c]) = low;
      (i.aux[2] != 0 ? rows[n * 8 + c + 1][r] : rows[n * 8 + r][c + 1]) = high;
    }
  }
  for (int l = 0; l < count * 8; ++l) std::memcpy(const_cast<char*>(RowAt(w, i, l)), rows[l], 16);
  return false;
}

// ---- wgmma

struct Descriptor {
  uint32_t start, leading, stride;
  int swizzle;  // 0 none, 1: 32, 2: 64, 3: 128 bytes
  explicit Descriptor(uint64_t d)
      : start(static_cast<uint32_t>(d & 0x3FFF) << 4),
        leading(static_cast<uint32_t>(d >> 16 & 0x3FFF) << 4),
        stride(static_cast<uint32_t>(d >> 32 & 0x3FFF) << 4) {
    const auto code = static_cast<int>(d >> 62);
    swizzle = code == 1 ? 3 : code == 2 ? 2 : code == 3 ? 1 : 0;
  }
};

// Where 16 bytes of an operand begin: of row `mn`, from column `k` (adjacent along the sum), or,
// transposed, of row k from column mn.
uint32_t PieceAddress(const Descriptor& d, int element, bool transposed, int mn, int k) {
  uint32_t at = d.start;
  if (!transposed) {
    const int bytes = k * element;
    if (d.swizzle == 0) {
      at += (mn % 8) * 16 + (mn / 8) * d.stride + (bytes / 16) * d.leading + bytes % 16;
    } else {
      const int width = 16 << d.swizzle;
      at += (mn % 8) * width + (mn / 8) * d.stride + bytes;
    }
  } else {
    const int width = 16 << d.swizzle, across = width / element;
    at +=
        (mn % across) * element + (mn / across) * d.leading + (k % 8) * width + (k / 8) * d.stride;
  }
  return Swizzled(at, d.swizzle);
}

// The operand as f32 [k][count] (as rows of B) or [count][kMaxK] (rows of A).
void ReadOperand(Warp& w,
                 const Inst& i,
                 uint64_t descriptor,
                 Type t,
                 bool transposed,
                 int first,
                 int count,
                 int k,
                 bool as_a,
                 float* to) {
  const Descriptor d(descriptor);
  const int element = BytesOf(t), per = 16 / element;
  if (transposed && d.swizzle == 0)
    Fault(w, i, "wgmma: a transposed operand without swizzle is not emulated");
  // All four warps read the same B: the first remembers it.
  ProductOperand kept{w.product_group, &i, as_a, {}, {}};
  const bool remember =
      TheOptions().check_memory && (as_a ? TheOptions().check_a : w.index % 4 == 0);
  if (remember) {
    kept.offsets.reserve(count * k / per);
    kept.bytes.reserve(count * k * element);
  }
  const auto keep = [&](uint32_t address, const char* p) {
    if (!remember) return;
    kept.offsets.push_back(address);
    kept.bytes.insert(kept.bytes.end(), p, p + 16);
  };
  float numbers[16] = {};
  if (!transposed) {
    for (int mn = 0; mn < count; ++mn)
      for (int x = 0; x < k; x += per) {
        const uint32_t address = PieceAddress(d, element, false, first + mn, x);
        const char* p = SharedPointer(w, i, *w.block, address, 16, 16);
        keep(address, p);
        Widen(t, p, per, numbers);
        for (int n = 0; n < per; ++n)
          (as_a ? to[mn * kMaxK + x + n] : to[(x + n) * count + mn]) = numbers[n];
      }
  } else {
    for (int x = 0; x < k; ++x)
      for (int mn = 0; mn < count; mn += per) {
        const uint32_t address = PieceAddress(d, element, true, first + mn, x);
        const char* p = SharedPointer(w, i, *w.block, address, 16, 16);
        keep(address, p);
        Widen(t, p, per, numbers);
        for (int n = 0; n < per; ++n)
          (as_a ? to[(mn + n) * kMaxK + x] : to[x * count + mn + n]) = numbers[n];
      }
  }
  if (remember) w.products.push_back(std::move(kept));
}

// aux: type of a, type of b, n, flags (1 integer, 2 a from registers, 4 a transposed, 8 b
// transposed, 16 negate a, 32 negate b); v[0] a's descriptor, v[1] b's, v[2] the predicate that
// keeps the sums (~0: imm says); list: sums, then a's registers.
bool WarpgroupMultiply(Warp& w, const Inst& i, uint32_t) {
  if (!Converge(w, i, kAll)) return false;
  if (w.active != kAll) Fault(w, i, "wgmma by a part of a warp");
  const auto ta = static_cast<Type>(i.aux[0]), tb = static_cast<Type>(i.aux[1]);
  const int n = static_cast<int>(i.aux[2]), k = 32 / BytesOf(ta);
  const uint32_t flags = i.aux[3];
  alignas(64) static thread_local float a[16][kMaxK], b[kMaxK * 256], c[16 * 256];
  const uint32_t* places = i.list;
  if ((flags & 2) != 0)
    ReadA(w, ta, places + n / 2, k, a);
  else
    ReadOperand(w, i, w.At<uint64_t>(i.v[0])[0], ta, (flags & 4) != 0, (w.index % 4) * 16, 16, k,
                true, &a[0][0]);
  ReadOperand(w, i, w.At<uint64_t>(i.v[1])[0], tb, (flags & 8) != 0, 0, n, k, false, b);
  const bool negate = ((flags >> 4 & 1) ^ (flags >> 5 & 1)) != 0;
  if (negate)
    for (auto& row : a)
      for (float& x : row) x = -x;
  const bool keep = i.v[2] == kAll ? i.imm != 0 : (w.predicates[i.v[2]] & 1) != 0;
  if ((flags & 1) != 0) {
    std::fill_n(c, 16 * n, 0.0f);
    Multiply(a, b, k, n, c);
    Finish<true>(w, places, keep ? places : nullptr, c, n);
  } else {
    if (keep)
      Begin(w, places, n, c);
    else
      std::fill_n(c, 16 * n, 0.0f);
    Multiply(a, b, k, n, c);
    Finish<false>(w, places, nullptr, c, n);
  }
  return false;
}

bool CommitProducts(Warp& w, const Inst&, uint32_t) {
  ++w.product_group;
  return false;
}

bool WaitProducts(Warp& w, const Inst& i, uint32_t) {
  std::erase_if(w.products, [&](const ProductOperand& p) {
    if (int64_t{p.group} >= int64_t{w.product_group} - i.imm) return false;
    for (size_t n = 0; n < p.offsets.size(); ++n) {
      if (std::memcmp(w.block->shared + p.offsets[n], p.bytes.data() + 16 * n, 16) == 0) continue;
      Warn(w, i,
           "shared address " + std::to_string(p.offsets[n] - kSharedBase) + " (operand " +
               (p.is_a ? "A" : "B") + ") changed before the wgmma at line " +
               std::to_string(p.inst->source->line) +
               " that reads it was waited for by every warp");
      break;
    }
    return true;
  });
  return false;
}

bool Nothing(Warp&, const Inst&, uint32_t) {
  return false;
}

int Number(const std::string& text, char after) {
  return std::atoi(text.c_str() + text.find(after) + 1);
}

bool LowerWarpgroup(Lowering& l, const Instruction& s, Inst& inst) {
  const auto& o = s.operands;
  if (s.words[1] == "fence") {
    inst.run = Nothing;
    return true;
  }
  if (s.words[1] == "commit_group") {
    inst.run = CommitProducts;
    return true;
  }
  if (s.words[1] == "wait_group") {
    inst.imm = static_cast<int64_t>(o.at(0).bits);
    inst.run = WaitProducts;
    return true;
  }
  if (s.words[1] != "mma_async" || s.Has("sp")) return false;
  const std::string& shape = s.words.at(4);
  size_t types = 5;
  const std::string& sums = s.words.at(types);
  Type ta, tb;
  if (!TypeOf(s.words.at(types + 1), ta) || !TypeOf(s.words.at(types + 2), tb)) return false;
  if (sums != "f32" && sums != "s32") return false;
  inst.aux[0] = static_cast<uint32_t>(ta);
  inst.aux[1] = static_cast<uint32_t>(tb);
  inst.aux[2] = static_cast<uint32_t>(Number(shape, 'n'));
  uint32_t flags = sums == "s32";
  std::vector<uint32_t> list;
  for (const Operand& one : o.at(0).parts) list.push_back(l.Place(one.reg));
  if (list.size() != inst.aux[2] / 2) return false;
  if (o.at(1).kind == Kind::kVector) {
    flags |= 2;
    for (const Operand& one : o[1].parts) list.push_back(l.Value(one, 4));
  } else {
    inst.v[0] = l.Value(o[1], 8);
  }
  inst.v[1] = l.Value(o.at(2), 8);
  inst.v[2] = kAll;
  if (o.at(3).kind == Kind::kRegister)
    inst.v[2] = l.Predicate(o[3]);
  else
    inst.imm = static_cast<int64_t>(o[3].bits);
  if (o.size() > 5) {
    if (static_cast<int64_t>(o[4].bits) == -1) flags |= 16;
    if (static_cast<int64_t>(o[5].bits) == -1) flags |= 32;
  }
  if ((flags & 2) != 0) {
    if (o.size() > 6 && o[6].bits != 0) flags |= 8;
  } else {
    if (o.size() > 6 && o[6].bits != 0) flags |= 4;
    if (o.size() > 7 && o[7].bits != 0) flags |= 8;
  }
  inst.aux[3] = flags;
  inst.list = l.List(list);
  inst.run = WarpgroupMultiply;
  return true;
}

}  // namespace

bool LowerMatrix(Lowering& l, const Instruction& s, Inst& inst) {
  const auto& o = s.operands;
  if (s.words[0] == "wgmma") return LowerWarpgroup(l, s, inst);
  if (s.words[0] == "ldmatrix" || s.words[0] == "stmatrix") {
    const bool load = s.words[0] == "ldmatrix";
    const Operand &address = o.at(load ? 1 : 0), &data = o.at(load ? 0 : 1);
    if (!s.Has("b16") || !s.Has("m8n8")) return false;
    inst.aux[1] = s.Has("x4") ? 4 : s.Has("x2") ? 2 : 1;
    inst.aux[2] = s.Has("trans");
    inst.imm = address.offset;
    inst.v[0] = l.Value(address.parts.at(0), 4);
    inst.aux[0] = static_cast<uint32_t>(
        address.parts[0].kind == Kind::kRegister ? l.WidthOf(address.parts[0]) : 4);
    std::vector<uint32_t> list;
    if (data.kind == Kind::kVector)
      for (const Operand& one : data.parts) list.push_back(l.Value(one, 4));
    else
      list.push_back(l.Value(data, 4));
    if (list.size() != inst.aux[1]) return false;
    inst.list = l.List(list);
    inst.run = load ? LoadMatrices : StoreMatrices;
    return true;
  }
  if (s.words[0] != "mma") return false;
  std::vector<std::string> types(s.words.end() - 4, s.words.end());
  Type ta, tb;
  if (!TypeOf(types[1], ta) || !TypeOf(types[2], tb)) return false;
  std::string shape;
  for (const std::string& word : s.words)
    if (word.rfind("m16n8k", 0) == 0) shape = word;
  if (shape.empty() || (types[0] != "f32" && types[0] != "s32") || s.Has("sp")) return false;
  inst.aux[0] = static_cast<uint32_t>(ta);
  inst.aux[1] = static_cast<uint32_t>(tb);
  inst.aux[2] = static_cast<uint32_t>(Number(shape, 'k'));
  inst.aux[3] = types[0] == "s32";
  std::vector<uint32_t> list;
  for (size_t n = 0; n < 4; ++n) {
    if (o.at(n).kind == Kind::kVector)
      for (const Operand& one : o[n].parts) list.push_back(l.Value(one, 4));
    else
      list.push_back(l.Value(o[n], 4));
  }
  const int k = static_cast<int>(inst.aux[2]), per = 4 / BytesOf(ta),
            half = k / 2 >= 4 * per ? 4 * per : k, registers = 2 * (k / half);
  if (static_cast<int>(list.size()) != 8 + registers + registers / 2) return false;
  inst.list = l.List(list);
  inst.run = Mma;
  return true;
}

}  // namespace emu
