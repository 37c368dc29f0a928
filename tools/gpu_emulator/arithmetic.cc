// Arithmetic, logic, comparisons, selections.

#include <algorithm>
#include <cmath>
#include <map>
#include <string>

#include "lanes.h"
#include "numbers.h"

namespace emu {
namespace {

using ptx::Instruction;
using ptx::Operand;
using Kind = Operand::Kind;

// -0 is less than 0; a number is preferred to NaN.
template <class T>
T MaxOf(T a, T b) {
  if constexpr (std::is_floating_point_v<T>)
    return b != b || a > b || (a == b && !std::signbit(a)) ? a : b;
  return a > b ? a : b;
}
template <class T>
T MinOf(T a, T b) {
  if constexpr (std::is_floating_point_v<T>)
    return b != b || a < b || (a == b && std::signbit(a)) ? a : b;
  return a < b ? a : b;
}

struct Entry {
  Handler run;
  int inputs;
  int width_out, width_in[3];
};
using Table = std::map<std::string, Entry>;

template <class D, class A, class F>
void Add1(Table& t, const std::string& name, F) {
  t[name] = {Unary<D, A, F>, 1, sizeof(D), {sizeof(A), 0, 0}};
}
template <class D, class A, class B, class F>
void Add2(Table& t, const std::string& name, F) {
  t[name] = {Binary<D, A, B, F>, 2, sizeof(D), {sizeof(A), sizeof(B), 0}};
}
template <class D, class A, class B, class C, class F>
void Add3(Table& t, const std::string& name, F) {
  t[name] = {Ternary<D, A, B, C, F>, 3, sizeof(D), {sizeof(A), sizeof(B), sizeof(C)}};
}

template <class T>
T Divide(T a, T b) {
  if (b == 0) return static_cast<T>(-1);
  if constexpr (std::is_signed_v<T>)
    if (b == -1) return static_cast<T>(-static_cast<std::make_unsigned_t<T>>(a));
  return a / b;
}
template <class T>
T Remainder(T a, T b) {
  if (b == 0) return a;
  if constexpr (std::is_signed_v<T>)
    if (b == -1) return 0;
  return a % b;
}

template <class T>
void Integers(Table& t, const std::string& type) {
  using U = std::make_unsigned_t<T>;
  using Wide = std::conditional_t<std::is_signed_v<T>, __int128, unsigned __int128>;
  Add2<T, T, T>(t, "add." + type, [](U a, U b) { return a + b; });
  Add2<T, T, T>(t, "sub." + type, [](U a, U b) { return a - b; });
  Add2<T, T, T>(t, "mul.lo." + type, [](U a, U b) { return static_cast<U>(uint64_t{a} * b); });
  if constexpr (sizeof(T) == 8)
    Add2<T, T, T>(t, "mul.hi." + type,
                  [](T a, T b) { return static_cast<T>(static_cast<Wide>(a) * b >> 64); });
  else
    Add2<T, T, T>(t, "mul.hi." + type, [](T a, T b) {
      using Twice = std::conditional_t<std::is_signed_v<T>, int64_t, uint64_t>;
      return static_cast<T>(Twice{a} * Twice{b} >> (8 * sizeof(T)));
    });
  Add3<T, T, T, T>(t, "mad.lo." + type,
                   [](U a, U b, U c) { return static_cast<U>(uint64_t{a} * b + c); });
  Add2<T, T, T>(t, "div." + type, [](T a, T b) { return Divide<T>(a, b); });
  Add2<T, T, T>(t, "rem." + type, [](T a, T b) { return Remainder<T>(a, b); });
  Add2<T, T, T>(t, "min." + type, [](T a, T b) { return MinOf<T>(a, b); });
  Add2<T, T, T>(t, "max." + type, [](T a, T b) { return MaxOf<T>(a, b); });
  Add2<T, T, uint32_t>(t, "shr." + type, [](T a, uint32_t b) {
    constexpr uint32_t kBits = 8 * sizeof(T);
    return b >= kBits ? (std::is_signed_v<T> && a < 0 ? static_cast<T>(-1) : T{0})
                      : static_cast<T>(a >> b);
  });
  if constexpr (std::is_signed_v<T>) {
    Add1<T, T>(t, "neg." + type, [](U a) { return static_cast<U>(0) - a; });
    Add1<T, T>(t, "abs." + type, [](T a) {
      return a < 0 ? static_cast<U>(0) - static_cast<U>(a) : static_cast<U>(a);
    });
  }
  if constexpr (sizeof(T) < 8) {
    using Double = std::conditional_t<sizeof(T) == 2,
                                      std::conditional_t<std::is_signed_v<T>, int32_t, uint32_t>,
                                      std::conditional_t<std::is_signed_v<T>, int64_t, uint64_t>>;
    using UDouble = std::make_unsigned_t<Double>;
    Add2<Double, T, T>(t, "mul.wide." + type, [](T a, T b) {
      return static_cast<Double>(static_cast<UDouble>(Double{a}) * static_cast<UDouble>(Double{b}));
    });
    Add3<Double, T, T, Double>(t, "mad.wide." + type, [](T a, T b, Double c) {
      return static_cast<UDouble>(Double{a}) * static_cast<UDouble>(Double{b}) +
             static_cast<UDouble>(c);
    });
  }
}

template <class U>
void Bits(Table& t, const std::string& type) {
  Add2<U, U, U>(t, "and." + type, [](U a, U b) { return a & b; });
  Add2<U, U, U>(t, "or." + type, [](U a, U b) { return a | b; });
  Add2<U, U, U>(t, "xor." + type, [](U a, U b) { return a ^ b; });
  Add1<U, U>(t, "not." + type, [](U a) { return ~a; });
  Add1<U, U>(t, "cnot." + type, [](U a) { return a == 0 ? 1 : 0; });
  Add2<U, U, uint32_t>(t, "shl." + type, [](U a, uint32_t b) {
    return b >= 8 * sizeof(U) ? U{0} : static_cast<U>(a << b);
  });
  Add2<U, U, uint32_t>(t, "shr." + type, [](U a, uint32_t b) {
    return b >= 8 * sizeof(U) ? U{0} : static_cast<U>(a >> b);
  });
}

template <class F>
void Floats(Table& t, const std::string& type) {
  Add2<F, F, F>(t, "add." + type, [](F a, F b) { return a + b; });
  Add2<F, F, F>(t, "sub." + type, [](F a, F b) { return a - b; });
  Add2<F, F, F>(t, "mul." + type, [](F a, F b) { return a * b; });
  Add2<F, F, F>(t, "div." + type, [](F a, F b) { return a / b; });
  Add3<F, F, F, F>(t, "fma." + type, [](F a, F b, F c) { return std::fma(a, b, c); });
  Add2<F, F, F>(t, "min." + type, [](F a, F b) { return MinOf<F>(a, b); });
  Add2<F, F, F>(t, "max." + type, [](F a, F b) { return MaxOf<F>(a, b); });
  Add2<F, F, F>(t, "min.NaN." + type,
                [](F a, F b) { return a != a ? a : (b != b ? b : MinOf(a, b)); });
  Add2<F, F, F>(t, "max.NaN." + type,
                [](F a, F b) { return a != a ? a : (b != b ? b : MaxOf(a, b)); });
  Add1<F, F>(t, "neg." + type, [](F a) { return -a; });
  Add1<F, F>(t, "abs." + type, [](F a) { return std::fabs(a); });
  Add1<F, F>(t, "sqrt." + type, [](F a) { return std::sqrt(a); });
  Add1<F, F>(t, "rcp." + type, [](F a) { return F{1} / a; });
  Add1<F, F>(t, "rsqrt." + type, [](F a) { return F{1} / std::sqrt(a); });
  Add2<F, F, F>(t, "copysign." + type, [](F a, F b) { return std::copysign(b, a); });
}

// Two numbers of 16 bits in 32.
template <float (*kFrom)(uint16_t), uint16_t (*kTo)(float)>
void Pairs(Table& t, const std::string& one) {
  const std::string two = one + "x2";
  static constexpr auto kLow = [](uint32_t v) { return kFrom(static_cast<uint16_t>(v)); };
  static constexpr auto kHigh = [](uint32_t v) { return kFrom(static_cast<uint16_t>(v >> 16)); };
  static constexpr auto kPack = [](float low, float high) {
    return uint32_t{kTo(low)} | uint32_t{kTo(high)} << 16;
  };
#define BT_PAIR(name, expression)                                                \
  Add2<uint32_t, uint32_t, uint32_t>(t, name + two, [](uint32_t x, uint32_t y) { \
    const auto f = [](float a, float b) -> float { return expression; };         \
    return kPack(f(kLow(x), kLow(y)), f(kHigh(x), kHigh(y)));                    \
  });                                                                            \
  Add2<uint16_t, uint16_t, uint16_t>(t, name + one, [](uint16_t x, uint16_t y) { \
    const auto f = [](float a, float b) -> float { return expression; };         \
    return kTo(f(kFrom(x), kFrom(y)));                                           \
  });
  BT_PAIR(std::string("add."), a + b)
  BT_PAIR(std::string("sub."), a - b)
  BT_PAIR(std::string("mul."), a * b)
  BT_PAIR(std::string("min."), MinOf(a, b))
  BT_PAIR(std::string("max."), MaxOf(a, b))
#undef BT_PAIR
  // The exact result in double (11-bit or 8-bit factors) is rounded once more to f32 first: of no
  // matter here unless a tie is met exactly.
  Add3<uint32_t, uint32_t, uint32_t, uint32_t>(
      t, "fma." + two, [](uint32_t x, uint32_t y, uint32_t z) {
        return kPack(std::fma(kLow(x), kLow(y), kLow(z)), std::fma(kHigh(x), kHigh(y), kHigh(z)));
      });
  Add3<uint16_t, uint16_t, uint16_t, uint16_t>(t, "fma." + one,
                                               [](uint16_t x, uint16_t y, uint16_t z) {
                                                 return kTo(std::fma(kFrom(x), kFrom(y), kFrom(z)));
                                               });
  Add1<uint32_t, uint32_t>(t, "neg." + two, [](uint32_t x) { return x ^ 0x80008000u; });
  Add1<uint32_t, uint32_t>(t, "abs." + two, [](uint32_t x) { return x & 0x7FFF7FFFu; });
  Add1<uint16_t, uint16_t>(t, "neg." + one,
                           [](uint16_t x) { return static_cast<uint16_t>(x ^ 0x8000u); });
  Add1<uint16_t, uint16_t>(t, "abs." + one,
                           [](uint16_t x) { return static_cast<uint16_t>(x & 0x7FFFu); });
}

uint32_t Permute(uint32_t a, uint32_t b, uint32_t s) {
  const uint64_t all = uint64_t{b} << 32 | a;
  uint32_t r = 0;
  for (int n = 0; n < 4; ++n) {
    const uint32_t pick = s >> (4 * n) & 0xF;
    uint32_t byte = static_cast<uint32_t>(all >> (8 * (pick & 7))) & 0xFF;
    if (pick & 8) byte = byte & 0x80 ? 0xFF : 0;
    r |= byte << (8 * n);
  }
  return r;
}

const Table& TheTable() {
  static const Table* const table = [] {
    auto* t = new Table;
    Integers<uint16_t>(*t, "u16");
    Integers<int16_t>(*t, "s16");
    Integers<uint32_t>(*t, "u32");
    Integers<int32_t>(*t, "s32");
    Integers<uint64_t>(*t, "u64");
    Integers<int64_t>(*t, "s64");
    Bits<uint16_t>(*t, "b16");
    Bits<uint32_t>(*t, "b32");
    Bits<uint64_t>(*t, "b64");
    Floats<float>(*t, "f32");
    Floats<double>(*t, "f64");
    Pairs<Bf16ToFloat, FloatToBf16>(*t, "bf16");
    Pairs<HalfToFloat, FloatToHalf>(*t, "f16");
    Add1<float, float>(*t, "ex2.f32", [](float a) { return Exp2(a); });
    Add1<float, float>(*t, "lg2.f32", [](float a) { return std::log2(a); });
    Add1<float, float>(*t, "sin.f32", [](float a) { return std::sin(a); });
    Add1<float, float>(*t, "cos.f32", [](float a) { return std::cos(a); });
    Add1<float, float>(*t, "tanh.f32", [](float a) { return std::tanh(a); });
    Add1<uint32_t, uint32_t>(*t, "popc.b32", [](uint32_t a) { return std::popcount(a); });
    Add1<uint32_t, uint64_t>(*t, "popc.b64", [](uint64_t a) { return std::popcount(a); });
    Add1<uint32_t, uint32_t>(*t, "clz.b32", [](uint32_t a) { return std::countl_zero(a); });
    Add1<uint32_t, uint64_t>(*t, "clz.b64", [](uint64_t a) { return std::countl_zero(a); });
    const auto reverse = [](uint32_t a) {
      uint32_t r = 0;
      for (int n = 0; n < 32; ++n) r |= (a >> n & 1) << (31 - n);
      return r;
    };
    Add1<uint32_t, uint32_t>(*t, "brev.b32", reverse);
    Add1<uint32_t, uint32_t>(*t, "bfind.u32",
                             [](uint32_t a) { return a == 0 ? -1 : 31 - std::countl_zero(a); });
    Add1<uint32_t, uint32_t>(*t, "bfind.shiftamt.u32",
                             [](uint32_t a) { return a == 0 ? -1 : std::countl_zero(a); });
    Add1<uint32_t, uint64_t>(*t, "bfind.u64",
                             [](uint64_t a) { return a == 0 ? -1 : 63 - std::countl_zero(a); });
    Add3<uint32_t, uint32_t, uint32_t, uint32_t>(
        *t, "prmt.b32", [](uint32_t a, uint32_t b, uint32_t c) { return Permute(a, b, c); });
    Add3<uint32_t, uint32_t, uint32_t, uint32_t>(
        *t, "shf.l.wrap.b32", [](uint32_t a, uint32_t b, uint32_t c) {
          return static_cast<uint32_t>((uint64_t{b} << 32 | a) << (c & 31) >> 32);
        });
    Add3<uint32_t, uint32_t, uint32_t, uint32_t>(
        *t, "shf.r.wrap.b32", [](uint32_t a, uint32_t b, uint32_t c) {
          return static_cast<uint32_t>((uint64_t{b} << 32 | a) >> (c & 31));
        });
    Add3<uint32_t, uint32_t, uint32_t, uint32_t>(
        *t, "shf.l.clamp.b32", [](uint32_t a, uint32_t b, uint32_t c) {
          return static_cast<uint32_t>((uint64_t{b} << 32 | a) << std::min(c, 32u) >> 32);
        });
    Add3<uint32_t, uint32_t, uint32_t, uint32_t>(
        *t, "shf.r.clamp.b32", [](uint32_t a, uint32_t b, uint32_t c) {
          return static_cast<uint32_t>((uint64_t{b} << 32 | a) >> std::min(c, 32u));
        });
    Add3<uint32_t, uint32_t, uint32_t, uint32_t>(
        *t, "bfe.u32", [](uint32_t a, uint32_t b, uint32_t c) {
          b &= 0xFF;
          c &= 0xFF;
          const uint64_t shifted = b >= 32 ? 0 : uint64_t{a} >> b;
          return static_cast<uint32_t>(c >= 32 ? shifted : shifted & ((uint64_t{1} << c) - 1));
        });
    Add3<int32_t, int32_t, uint32_t, uint32_t>(
        *t, "bfe.s32", [](int32_t a, uint32_t b, uint32_t c) {
          b &= 0xFF;
          c &= 0xFF;
          if (c == 0) return 0;
          const int64_t shifted = int64_t{a} >> std::min(b, 63u);
          return static_cast<int32_t>(c >= 32 ? shifted : shifted << (64 - c) >> (64 - c));
        });
    Add2<uint32_t, uint32_t, uint32_t>(
        *t, "mul24.lo.u32", [](uint32_t a, uint32_t b) { return (a & 0xFFFFFF) * (b & 0xFFFFFF); });
    const auto sad = [](int32_t a, int32_t b, uint32_t c) {
      return c + static_cast<uint32_t>(std::abs(int64_t{a} - b));
    };
    Add3<uint32_t, int32_t, int32_t, uint32_t>(*t, "sad.s32", sad);
    const auto dot = []<typename A, typename B, typename C>(A, B, C) {
      return [](uint32_t a, uint32_t b, C c) {
        for (int n = 0; n < 32; n += 8) c += static_cast<A>(a >> n) * static_cast<B>(b >> n);
        return c;
      };
    };
    Add3<int32_t, uint32_t, uint32_t, int32_t>(*t, "dp4a.s32.s32",
                                               dot(int8_t(), int8_t(), int32_t()));
    Add3<int32_t, uint32_t, uint32_t, int32_t>(*t, "dp4a.u32.s32",
                                               dot(uint8_t(), int8_t(), int32_t()));
    Add3<int32_t, uint32_t, uint32_t, int32_t>(*t, "dp4a.s32.u32",
                                               dot(int8_t(), uint8_t(), int32_t()));
    Add3<uint32_t, uint32_t, uint32_t, uint32_t>(*t, "dp4a.u32.u32",
                                                 dot(uint8_t(), uint8_t(), uint32_t()));
    // Halves of the first by the lower two bytes of the second: of indices, by the compiler.
    Add3<uint32_t, uint32_t, uint32_t, uint32_t>(
        *t, "dp2a.lo.u32.u32", [](uint32_t x, uint32_t y, uint32_t z) {
          return z + (x & 0xFFFF) * (y & 0xFF) + (x >> 16) * (y >> 8 & 0xFF);
        });
    return t;
  }();
  return *table;
}

bool SaturateResult(Warp& w, const Inst& i, uint32_t m) {
  reinterpret_cast<Handler>(reinterpret_cast<void*>(
      i.list == nullptr ? 0 : *reinterpret_cast<const uint64_t*>(i.list)))(w, i, m);
  float* d = w.At<float>(i.v[0]);
  ForLanes(d, m, [d](int l) { return Saturate(d[l]); });
  return false;
}

// ---- lop3, bfi, mov with vectors

template <class U>
bool Lop3(Warp& w, const Inst& i, uint32_t m) {
  const U *a = w.At<U>(i.v[1]), *b = w.At<U>(i.v[2]), *c = w.At<U>(i.v[3]);
  const auto table = static_cast<uint32_t>(i.imm);
  ForLanes(w.At<U>(i.v[0]), m, [=](int l) {
    U r = 0;
    const U x = a[l], y = b[l], z = c[l];
    for (int n = 0; n < 8; ++n)
      if (table >> n & 1) r |= (n & 4 ? x : ~x) & (n & 2 ? y : ~y) & (n & 1 ? z : ~z);
    return r;
  });
  return false;
}

template <class U>
bool BitInsert(Warp& w, const Inst& i, uint32_t m) {
  const U *a = w.At<U>(i.v[1]), *b = w.At<U>(i.v[2]);
  const uint32_t *c = w.At<uint32_t>(i.v[3]), *d = w.At<uint32_t>(i.v[4]);
  ForLanes(w.At<U>(i.v[0]), m, [=](int l) {
    const uint32_t at = c[l] & 0xFF, count = d[l] & 0xFF;
    constexpr uint32_t kBits = 8 * sizeof(U);
    if (at >= kBits || count == 0) return b[l];
    const U ones = static_cast<U>(count >= kBits ? ~U{0} : (U{1} << count) - 1) << at;
    return static_cast<U>((b[l] & ~ones) | (a[l] << at & ones));
  });
  return false;
}

template <class T>
bool Move(Warp& w, const Inst& i, uint32_t m) {
  const T* a = w.At<T>(i.v[1]);
  T* d = w.At<T>(i.v[0]);
  if (m == kAll)
    std::memmove(d, a, sizeof(T) * kLanes);
  else
    ForLanes(d, m, [a](int l) { return a[l]; });
  return false;
}

// Parts of P into a whole of W and back; a sink is ~0.
template <class W, class P>
bool Pack(Warp& w, const Inst& i, uint32_t m) {
  constexpr int kParts = sizeof(W) / sizeof(P);
  const P* parts[kParts];
  for (int n = 0; n < kParts; ++n) parts[n] = w.At<P>(i.list[n]);
  ForLanes(w.At<W>(i.v[0]), m, [&parts](int l) {
    W r = 0;
    for (int n = 0; n < kParts; ++n) r |= static_cast<W>(parts[n][l]) << (8 * sizeof(P) * n);
    return r;
  });
  return false;
}
template <class W, class P>
bool Unpack(Warp& w, const Inst& i, uint32_t m) {
  constexpr int kParts = sizeof(W) / sizeof(P);
  W whole[kLanes];
  std::memcpy(whole, w.At<W>(i.v[0]), sizeof(whole));
  for (int n = 0; n < kParts; ++n) {
    if (i.list[n] == kAll) continue;
    ForLanes(w.At<P>(i.list[n]), m,
             [&whole, n](int l) { return static_cast<P>(whole[l] >> (8 * sizeof(P) * n)); });
  }
  return false;
}

// ---- predicates

template <class T, class F>
inline uint32_t Compare(const T* a, const T* b, F f) {
  uint32_t r = 0;
  for (int l = 0; l < kLanes; ++l) r |= uint32_t{f(a[l], b[l])} << l;
  return r;
}

// aux[0]: 0 none, 1 and, 2 or, 3 xor with the predicate v[3] (aux[1]: negated); aux[2]: a second
// destination + 1.
inline bool SetPredicates(Warp& w, const Inst& i, uint32_t m, uint32_t r) {
  uint32_t other = ~r;
  if (i.aux[0] != 0) {
    const uint32_t p = w.predicates[i.v[3]] ^ (i.aux[1] ? kAll : 0);
    r = i.aux[0] == 1 ? r & p : i.aux[0] == 2 ? r | p : r ^ p;
    other = i.aux[0] == 1 ? other & p : i.aux[0] == 2 ? other | p : other ^ p;
  }
  if (i.v[0] != kAll) w.predicates[i.v[0]] = (w.predicates[i.v[0]] & ~m) | (r & m);
  if (i.aux[2] != 0) w.predicates[i.aux[2] - 1] = (w.predicates[i.aux[2] - 1] & ~m) | (other & m);
  return false;
}

template <class T, class F>
bool SetP(Warp& w, const Inst& i, uint32_t m) {
  return SetPredicates(w, i, m, Compare<T>(w.At<T>(i.v[1]), w.At<T>(i.v[2]), F{}));
}

template <class T>
Handler SetPHandler(const std::string& how) {
#define BT_COMPARE(name, expression)                                 \
  if (how == name) {                                                 \
    constexpr auto kF = [](T a, T b) -> bool { return expression; }; \
    return SetP<T, decltype(kF)>;                                    \
  }
  BT_COMPARE("eq", a == b)
  BT_COMPARE("ne", std::is_floating_point_v<T> ? (a < b || a > b) : a != b)
  BT_COMPARE("lt", a < b)
  BT_COMPARE("le", a <= b)
  BT_COMPARE("gt", a > b)
  BT_COMPARE("ge", a >= b)
  BT_COMPARE("lo", a < b)
  BT_COMPARE("ls", a <= b)
  BT_COMPARE("hi", a > b)
  BT_COMPARE("hs", a >= b)
  BT_COMPARE("equ", !(a < b || a > b))
  BT_COMPARE("neu", !(a == b))
  BT_COMPARE("ltu", !(a >= b))
  BT_COMPARE("leu", !(a > b))
  BT_COMPARE("gtu", !(a <= b))
  BT_COMPARE("geu", !(a < b))
  BT_COMPARE("num", a == a && b == b)
  BT_COMPARE("nan", !(a == a && b == b))
#undef BT_COMPARE
  return nullptr;
}

template <class T>
bool Select(Warp& w, const Inst& i, uint32_t m) {
  const T *a = w.At<T>(i.v[1]), *b = w.At<T>(i.v[2]);
  const uint32_t p = w.predicates[i.v[3]];
  ForLanes(w.At<T>(i.v[0]), m, [=](int l) { return (p >> l & 1) != 0 ? a[l] : b[l]; });
  return false;
}

// aux[0]: 0 and, 1 or, 2 xor, 3 not, 4 mov, 5 mov of a constant (imm).
bool PredicateLogic(Warp& w, const Inst& i, uint32_t m) {
  const uint32_t a =
      i.aux[0] == 5 ? static_cast<uint32_t>(i.imm) : w.predicates[i.v[1]] ^ (i.aux[1] ? kAll : 0);
  uint32_t r = a;
  if (i.aux[0] < 3) {
    const uint32_t b = w.predicates[i.v[2]] ^ (i.aux[2] ? kAll : 0);
    r = i.aux[0] == 0 ? a & b : i.aux[0] == 1 ? a | b : a ^ b;
  } else if (i.aux[0] == 3) {
    r = ~a;
  }
  w.predicates[i.v[0]] = (w.predicates[i.v[0]] & ~m) | (r & m);
  return false;
}

template <class T>
bool AddressOfParameter(Warp& w, const Inst& i, uint32_t m) {
  const auto value = static_cast<T>(reinterpret_cast<uint64_t>(w.block->launch->parameters) +
                                    static_cast<uint64_t>(i.imm));
  ForLanes(w.At<T>(i.v[0]), m, [value](int) { return value; });
  return false;
}

bool AddressOfLocal(Warp& w, const Inst& i, uint32_t m) {
  const uint64_t from = reinterpret_cast<uint64_t>(w.local) + static_cast<uint64_t>(i.imm),
                 step = w.program->kernel->local_bytes;
  ForLanes(w.At<uint64_t>(i.v[0]), m,
           [from, step](int l) { return from + step * static_cast<uint64_t>(l); });
  return false;
}

std::string JoinWords(const Instruction& s, std::initializer_list<const char*> without) {
  std::string name;
  for (const std::string& word : s.words) {
    if (std::any_of(without.begin(), without.end(), [&](const char* one) { return word == one; }))
      continue;
    name += (name.empty() ? "" : ".") + word;
  }
  return name;
}

int TypeBytes(const std::string& type) {
  return std::atoi(type.c_str() + type.find_first_of("0123456789")) / 8;
}

bool LowerMove(Lowering& l, const Instruction& s, Inst& inst) {
  const Operand &to = s.operands.at(0), &from = s.operands.at(1);
  if (s.words[1] == "pred") {
    inst.v[0] = l.Predicate(to);
    inst.aux[0] = from.kind == Kind::kImmediate ? 5 : 4;
    if (from.kind == Kind::kImmediate) {
      inst.imm = from.bits != 0 ? -1 : 0;
    } else {
      inst.v[1] = l.Predicate(from);
      inst.aux[1] = from.negated;
    }
    inst.run = PredicateLogic;
    return true;
  }
  const int bytes = TypeBytes(s.words[1]);
  if (from.kind == Kind::kVector || to.kind == Kind::kVector) {
    const bool pack = from.kind == Kind::kVector;
    const Operand &parts = pack ? from : to, &whole = pack ? to : from;
    const int part = bytes / static_cast<int>(parts.parts.size());
    std::vector<uint32_t> list;
    for (const Operand& o : parts.parts)
      list.push_back(o.kind == Kind::kNone ? kAll : l.Value(o, part));
    inst.list = l.List(list);
    inst.v[0] = l.Value(whole, bytes);
    if (bytes == 4 && part == 2)
      inst.run = pack ? Pack<uint32_t, uint16_t> : Unpack<uint32_t, uint16_t>;
    if (bytes == 8 && part == 4)
      inst.run = pack ? Pack<uint64_t, uint32_t> : Unpack<uint64_t, uint32_t>;
    if (bytes == 8 && part == 2)
      inst.run = pack ? Pack<uint64_t, uint16_t> : Unpack<uint64_t, uint16_t>;
    if (bytes == 4 && part == 1) {
      // Parts of 8 bits live in registers of 16.
      if (pack)
        inst.run = [](Warp& w, const Inst& i, uint32_t m) {
          ForLanes(w.At<uint32_t>(i.v[0]), m, [&](int lane) {
            uint32_t r = 0;
            for (int n = 0; n < 4; ++n) r |= (w.At<uint16_t>(i.list[n])[lane] & 0xFFu) << (8 * n);
            return r;
          });
          return false;
        };
      else
        inst.run = [](Warp& w, const Inst& i, uint32_t m) {
          uint32_t whole_value[kLanes];
          std::memcpy(whole_value, w.At<uint32_t>(i.v[0]), sizeof(whole_value));
          for (int n = 0; n < 4; ++n)
            if (i.list[n] != kAll)
              ForLanes(w.At<uint16_t>(i.list[n]), m, [&](int lane) {
                return static_cast<uint16_t>(whole_value[lane] >> (8 * n) & 0xFF);
              });
          return false;
        };
    }
    return inst.run != nullptr;
  }
  if (from.kind == Kind::kSpecial) return false;  // LowerControl has it
  inst.v[0] = l.Place(to.reg);
  if (from.kind == Kind::kSymbol && from.symbol->space == ptx::Symbol::Space::kKernelParam) {
    inst.imm = static_cast<int64_t>(from.symbol->offset);
    inst.run = AddressOfParameter<uint64_t>;
    return bytes == 8;
  }
  if (from.kind == Kind::kSymbol && from.symbol->space == ptx::Symbol::Space::kLocal) {
    inst.imm = static_cast<int64_t>(from.symbol->offset);
    inst.run = AddressOfLocal;
    return bytes == 8;
  }
  inst.v[1] = l.Value(from, bytes);
  inst.run = bytes == 2 ? Move<uint16_t> : bytes == 4 ? Move<uint32_t> : Move<uint64_t>;
  return true;
}

}  // namespace

bool LowerArithmetic(Lowering& l, const Instruction& s, Inst& inst) {
  const std::string& op = s.words[0];
  const auto& o = s.operands;
  if (op == "mov") return LowerMove(l, s, inst);
  const std::string& type = s.words.back();
  if (type == "pred" && (op == "and" || op == "or" || op == "xor" || op == "not")) {
    inst.aux[0] = op == "and" ? 0 : op == "or" ? 1 : op == "xor" ? 2 : 3;
    inst.v[0] = l.Predicate(o.at(0));
    inst.v[1] = l.Predicate(o.at(1));
    inst.aux[1] = o[1].negated;
    if (op != "not") {
      inst.v[2] = l.Predicate(o.at(2));
      inst.aux[2] = o[2].negated;
    }
    inst.run = PredicateLogic;
    return true;
  }
  if (op == "setp") {
    const std::string& t = type;
    const int bytes = TypeBytes(t);
    const std::string& how = s.words.at(1);
    if (t == "f32") inst.run = SetPHandler<float>(how);
    if (t == "f64") inst.run = SetPHandler<double>(how);
    if (t == "s16") inst.run = SetPHandler<int16_t>(how);
    if (t == "u16" || t == "b16") inst.run = SetPHandler<uint16_t>(how);
    if (t == "s32") inst.run = SetPHandler<int32_t>(how);
    if (t == "u32" || t == "b32") inst.run = SetPHandler<uint32_t>(how);
    if (t == "s64") inst.run = SetPHandler<int64_t>(how);
    if (t == "u64" || t == "b64") inst.run = SetPHandler<uint64_t>(how);
    if (t == "bf16" || t == "f16") return false;
    const Operand& first = o.at(0).kind == Kind::kVector ? o[0].parts[0] : o[0];
    inst.v[0] = first.kind == Kind::kNone ? kAll : l.Predicate(first);
    if (o[0].kind == Kind::kVector && o[0].parts[1].kind == Kind::kRegister)
      inst.aux[2] = 1 + l.Predicate(o[0].parts[1]);
    inst.v[1] = l.Value(o.at(1), bytes);
    inst.v[2] = l.Value(o.at(2), bytes);
    if (o.size() == 4) {
      inst.aux[0] = s.Has("and") ? 1 : s.Has("or") ? 2 : 3;
      inst.v[3] = l.Predicate(o[3]);
      inst.aux[1] = o[3].negated;
    }
    return inst.run != nullptr;
  }
  if (op == "selp") {
    const int bytes = TypeBytes(type);
    inst.v[0] = l.Place(o.at(0).reg);
    inst.v[1] = l.Value(o.at(1), bytes);
    inst.v[2] = l.Value(o.at(2), bytes);
    inst.v[3] = l.Predicate(o.at(3));
    inst.run = bytes == 2 ? Select<uint16_t> : bytes == 4 ? Select<uint32_t> : Select<uint64_t>;
    return true;
  }
  if (op == "lop3" || op == "bfi") {
    const int bytes = TypeBytes(type);
    inst.v[0] = l.Place(o.at(0).reg);
    inst.v[1] = l.Value(o.at(1), bytes);
    inst.v[2] = l.Value(o.at(2), bytes);
    if (op == "lop3") {
      inst.v[3] = l.Value(o.at(3), bytes);
      inst.imm = static_cast<int64_t>(o.at(4).bits);
      inst.run = Lop3<uint32_t>;
    } else {
      inst.v[3] = l.Value(o.at(3), 4);
      inst.v[4] = l.Value(o.at(4), 4);
      inst.run = bytes == 4 ? BitInsert<uint32_t> : BitInsert<uint64_t>;
    }
    return true;
  }
  const bool saturates = s.Has("sat") && type == "f32";
  const std::string name = JoinWords(s, {"rn", "ftz", "approx", "full", "sat"});
  auto it = TheTable().find(name);
  if (it == TheTable().end() && (s.Has("rz") || s.Has("rm") || s.Has("rp"))) {
    // Directed rounding: of the additions and products that the compiler's exponential functions
    // use, where the last bit decides which multiple of a power of two is taken.
    const std::string plain = JoinWords(s, {"rz", "rm", "rp", "ftz", "approx", "sat"});
    static const auto* directed = [] {
      auto* t = new Table;
      Add3<float, float, float, float>(*t, "fma.f32.rm", [](float a, float b, float c) {
        const double exact = std::fma(double{a}, double{b}, double{c});
        const auto r = static_cast<float>(exact);
        return double{r} > exact ? std::nextafterf(r, -INFINITY) : r;
      });
      Add3<float, float, float, float>(*t, "fma.f32.rz", [](float a, float b, float c) {
        const double exact = std::fma(double{a}, double{b}, double{c});
        const auto r = static_cast<float>(exact);
        return std::fabs(double{r}) > std::fabs(exact) ? std::nextafterf(r, 0.0f) : r;
      });
      Add2<float, float, float>(*t, "add.f32.rz", [](float a, float b) {
        const double exact = double{a} + b;
        const auto r = static_cast<float>(exact);
        return std::fabs(double{r}) > std::fabs(exact) ? std::nextafterf(r, 0.0f) : r;
      });
      return t;
    }();
    it = directed->find(plain + (s.Has("rz") ? ".rz" : s.Has("rm") ? ".rm" : ".rp"));
    if (it == directed->end()) return false;
  } else if (it == TheTable().end()) {
    return false;
  }
  const Entry& entry = it->second;
  if (static_cast<int>(o.size()) != entry.inputs + 1) return false;
  inst.run = entry.run;
  inst.v[0] = l.Place(o[0].reg);
  for (int n = 0; n < entry.inputs; ++n) inst.v[n + 1] = l.Value(o[n + 1], entry.width_in[n]);
  if (saturates) {
    const auto address = reinterpret_cast<uint64_t>(reinterpret_cast<void*>(entry.run));
    inst.list = l.List({static_cast<uint32_t>(address), static_cast<uint32_t>(address >> 32)});
    inst.run = SaturateResult;
  }
  return true;
}

}  // namespace emu
