// cvt: between integers, floats and the small formats.

#include <cmath>
#include <limits>
#include <string>

#include "lanes.h"
#include "numbers.h"

namespace emu {
namespace {

using ptx::Instruction;
using ptx::Operand;

enum class Round { kNearest, kZero, kDown, kUp, kNone };

// aux[0]: rounding; aux[1]: saturate; aux[2], aux[3]: bytes a lane of destination and source.
template <class S>
double ReadWide(const char* at) {
  S value;
  std::memcpy(&value, at, sizeof value);
  if constexpr (std::is_same_v<S, Half>)
    return HalfToFloat(value.bits);
  else if constexpr (std::is_same_v<S, Bfloat>)
    return Bf16ToFloat(value.bits);
  else
    return static_cast<double>(value);
}

double RoundTo(double x, Round how) {
  switch (how) {
    case Round::kNearest:
      return std::nearbyint(x);
    case Round::kZero:
      return std::trunc(x);
    case Round::kDown:
      return std::floor(x);
    case Round::kUp:
      return std::ceil(x);
    default:
      return x;
  }
}

template <class S>
constexpr bool kIsFloat =
    std::is_floating_point_v<S> || std::is_same_v<S, Half> || std::is_same_v<S, Bfloat>;

template <class D, class S>
D ConvertOne(S s, const Inst& i) {
  if constexpr (!kIsFloat<D> && !kIsFloat<S>) {
    if (i.aux[1] != 0) {
      const __int128 value = s;
      const __int128 low = std::numeric_limits<D>::min(), high = std::numeric_limits<D>::max();
      return static_cast<D>(value < low ? low : value > high ? high : value);
    }
    return static_cast<D>(s);
  } else if constexpr (!kIsFloat<D>) {
    double value;
    if constexpr (std::is_same_v<S, Half>)
      value = HalfToFloat(s.bits);
    else if constexpr (std::is_same_v<S, Bfloat>)
      value = Bf16ToFloat(s.bits);
    else
      value = s;
    if (value != value) return sizeof(D) == 8 ? static_cast<D>(uint64_t{1} << 63) : D{0};
    value = RoundTo(value, static_cast<Round>(i.aux[0]));
    if (value <= static_cast<double>(std::numeric_limits<D>::min()))
      return std::numeric_limits<D>::min();
    if (value >= static_cast<double>(std::numeric_limits<D>::max()))
      return std::numeric_limits<D>::max();
    return static_cast<D>(value);
  } else {
    float narrow = 0;
    double wide = 0;
    if constexpr (std::is_same_v<S, Half>)
      wide = narrow = HalfToFloat(s.bits);
    else if constexpr (std::is_same_v<S, Bfloat>)
      wide = narrow = Bf16ToFloat(s.bits);
    else {
      wide = static_cast<double>(s);
      narrow = static_cast<float>(s);
    }
    const auto how = static_cast<Round>(i.aux[0]);
    if constexpr (kIsFloat<S>) {
      if (i.aux[1] == 2) {  // to an integer in the same type (rni and the like)
        wide = RoundTo(wide, how);
        narrow = static_cast<float>(wide);
      }
    }
    if (i.aux[1] == 1) {
      narrow = Saturate(narrow);
      wide = narrow;
    }
    if constexpr (std::is_same_v<D, Half>)
      return {FloatToHalf(narrow)};
    else if constexpr (std::is_same_v<D, Bfloat>)
      return {how == Round::kZero ? FloatToBf16TowardsZero(narrow) : FloatToBf16(narrow)};
    else if constexpr (std::is_same_v<D, double>)
      return wide;
    else
      return narrow;
  }
}

template <class D, class S>
bool Convert(Warp& w, const Inst& i, uint32_t m) {
  constexpr uint32_t kD = sizeof(D) < 2 ? 2 : sizeof(D), kS = sizeof(S) < 2 ? 2 : sizeof(S);
  if (i.aux[2] == kD && i.aux[3] == kS && sizeof(D) > 1 && sizeof(S) > 1 && i.aux[1] == 0) {
    const S* a = w.At<S>(i.v[1]);
    ForLanes(w.At<D>(i.v[0]), m, [a, &i](int l) { return ConvertOne<D, S>(a[l], i); });
    return false;
  }
  char* d = w.At<char>(i.v[0]);
  const char* a = w.At<char>(i.v[1]);
  for (uint32_t rest = m; rest != 0; rest &= rest - 1) {
    const int l = __builtin_ctz(rest);
    S s;
    std::memcpy(&s, a + l * i.aux[3], sizeof s);
    const D r = ConvertOne<D, S>(s, i);
    if constexpr (kIsFloat<D>) {
      std::memcpy(d + l * i.aux[2], &r, sizeof r);
    } else {
      const auto extended = static_cast<int64_t>(r);  // by its own sign
      std::memcpy(d + l * i.aux[2], &extended, i.aux[2]);
    }
  }
  return false;
}

template <class D>
Handler From(const std::string& s) {
  if (s == "u8" || s == "b8") return Convert<D, uint8_t>;
  if (s == "s8") return Convert<D, int8_t>;
  if (s == "u16" || s == "b16") return Convert<D, uint16_t>;
  if (s == "s16") return Convert<D, int16_t>;
  if (s == "u32" || s == "b32") return Convert<D, uint32_t>;
  if (s == "s32") return Convert<D, int32_t>;
  if (s == "u64" || s == "b64") return Convert<D, uint64_t>;
  if (s == "s64") return Convert<D, int64_t>;
  if (s == "f32") return Convert<D, float>;
  if (s == "f64") return Convert<D, double>;
  if (s == "f16") return Convert<D, Half>;
  if (s == "bf16") return Convert<D, Bfloat>;
  return nullptr;
}

Handler Find(const std::string& d, const std::string& s) {
  if (d == "u8" || d == "b8") return From<uint8_t>(s);
  if (d == "s8") return From<int8_t>(s);
  if (d == "u16" || d == "b16") return From<uint16_t>(s);
  if (d == "s16") return From<int16_t>(s);
  if (d == "u32" || d == "b32") return From<uint32_t>(s);
  if (d == "s32") return From<int32_t>(s);
  if (d == "u64" || d == "b64") return From<uint64_t>(s);
  if (d == "s64") return From<int64_t>(s);
  if (d == "f32") return From<float>(s);
  if (d == "f64") return From<double>(s);
  if (d == "f16") return From<Half>(s);
  if (d == "bf16") return From<Bfloat>(s);
  return nullptr;
}

// d = {high: a, low: b}
template <uint16_t (*kTo)(float)>
bool PairFromFloats(Warp& w, const Inst& i, uint32_t m) {
  const float *a = w.At<float>(i.v[1]), *b = w.At<float>(i.v[2]);
  const bool relu = i.aux[0] != 0;
  ForLanes(w.At<uint32_t>(i.v[0]), m, [a, b, relu](int l) {
    float high = a[l], low = b[l];
    if (relu) {
      high = high < 0 ? 0 : high;
      low = low < 0 ? 0 : low;
    }
    return uint32_t{kTo(high)} << 16 | kTo(low);
  });
  return false;
}

bool E4m3FromFloats(Warp& w, const Inst& i, uint32_t m) {
  const float *a = w.At<float>(i.v[1]), *b = w.At<float>(i.v[2]);
  ForLanes(w.At<uint16_t>(i.v[0]), m, [a, b](int l) {
    return static_cast<uint16_t>(FloatToE4m3(a[l]) << 8 | FloatToE4m3(b[l]));
  });
  return false;
}

template <float (*kFrom)(uint16_t)>
bool E4m3FromPair(Warp& w, const Inst& i, uint32_t m) {
  const uint32_t* a = w.At<uint32_t>(i.v[1]);
  ForLanes(w.At<uint16_t>(i.v[0]), m, [a](int l) {
    return static_cast<uint16_t>(FloatToE4m3(kFrom(static_cast<uint16_t>(a[l] >> 16))) << 8 |
                                 FloatToE4m3(kFrom(static_cast<uint16_t>(a[l]))));
  });
  return false;
}

template <float (*kFrom)(uint8_t)>
bool HalvesFromEight(Warp& w, const Inst& i, uint32_t m) {
  static const uint16_t* const table = [] {
    auto* t = new uint16_t[256];
    for (int n = 0; n < 256; ++n) t[n] = FloatToHalf(kFrom(static_cast<uint8_t>(n)));
    return t;
  }();
  uint32_t values[kLanes];
  const uint16_t* a = w.At<uint16_t>(i.v[1]);
  for (int l = 0; l < kLanes; ++l)
    values[l] = uint32_t{table[a[l] >> 8]} << 16 | table[a[l] & 0xFF];
  ForLanes(w.At<uint32_t>(i.v[0]), m, [&values](int l) { return values[l]; });
  return false;
}

bool SharedToGeneric(Warp& w, const Inst& i, uint32_t m) {
  const uint64_t base = reinterpret_cast<uint64_t>(w.block->shared);
  if (i.aux[0] == 4) {
    const uint32_t* a = w.At<uint32_t>(i.v[1]);
    ForLanes(w.At<uint64_t>(i.v[0]), m, [a, base](int l) { return base + a[l]; });
  } else {
    const uint64_t* a = w.At<uint64_t>(i.v[1]);
    ForLanes(w.At<uint64_t>(i.v[0]), m, [a, base](int l) { return base + a[l]; });
  }
  return false;
}

bool GenericToShared(Warp& w, const Inst& i, uint32_t m) {
  const uint64_t base = reinterpret_cast<uint64_t>(w.block->shared);
  const uint64_t* a = w.At<uint64_t>(i.v[1]);
  ForLanes(w.At<uint64_t>(i.v[0]), m, [a, base](int l) { return a[l] - base; });
  return false;
}

bool SameAddress(Warp& w, const Inst& i, uint32_t m) {
  const uint64_t* a = w.At<uint64_t>(i.v[1]);
  ForLanes(w.At<uint64_t>(i.v[0]), m, [a](int l) { return a[l]; });
  return false;
}

bool AddressToAddress(Lowering& l, const Instruction& s, Inst& inst) {
  const Operand& from = s.operands.at(1);
  inst.v[0] = l.Place(s.operands.at(0).reg);
  const bool to = s.words[1] == "to";
  const std::string& space = s.words[to ? 2 : 1];
  if (from.kind == Operand::Kind::kSymbol &&
      (from.symbol->space == ptx::Symbol::Space::kLocal ||
       from.symbol->space == ptx::Symbol::Space::kKernelParam))
    return false;
  if (space.rfind("shared", 0) == 0) {
    inst.aux[0] =
        static_cast<uint32_t>(from.kind == Operand::Kind::kRegister ? l.WidthOf(from) : 8);
    inst.v[1] = l.Value(from, 8);
    inst.run = to ? GenericToShared : SharedToGeneric;
    return true;
  }
  inst.v[1] = l.Value(from, 8);
  inst.run = SameAddress;
  return true;
}

}  // namespace

bool LowerConversion(Lowering& l, const Instruction& s, Inst& inst) {
  const auto& o = s.operands;
  if (s.words[0] == "cvta") return AddressToAddress(l, s, inst);
  if (s.words[0] != "cvt") return false;
  const std::string& to = s.words[s.words.size() - 2];
  const std::string& from = s.words.back();
  inst.v[0] = l.Place(o.at(0).reg);
  if (to == "bf16x2" || to == "f16x2") {
    if (from == "f32") {
      inst.v[1] = l.Value(o.at(1), 4);
      inst.v[2] = l.Value(o.at(2), 4);
      inst.aux[0] = s.Has("relu");
      if (s.Has("rz")) {
        if (to == "f16x2") return false;
        inst.run = PairFromFloats<FloatToBf16TowardsZero>;
      } else {
        inst.run = to == "bf16x2" ? PairFromFloats<FloatToBf16> : PairFromFloats<FloatToHalf>;
      }
      return true;
    }
    inst.v[1] = l.Value(o.at(1), 2);
    if (to == "f16x2" && from == "e4m3x2") inst.run = HalvesFromEight<E4m3ToFloat>;
    if (to == "f16x2" && from == "e5m2x2") inst.run = HalvesFromEight<E5m2ToFloat>;
    return inst.run != nullptr;
  }
  if (to == "e4m3x2") {
    if (from == "f32") {
      inst.v[1] = l.Value(o.at(1), 4);
      inst.v[2] = l.Value(o.at(2), 4);
      inst.run = E4m3FromFloats;
    } else {
      inst.v[1] = l.Value(o.at(1), 4);
      inst.run = from == "f16x2" ? E4m3FromPair<HalfToFloat> : E4m3FromPair<Bf16ToFloat>;
    }
    return true;
  }
  inst.run = Find(to, from);
  if (inst.run == nullptr) return false;
  const int source_bytes =
      std::max(2, std::atoi(from.c_str() + from.find_first_of("0123456789")) / 8);
  inst.v[1] = l.Value(o.at(1), source_bytes);
  inst.aux[2] = static_cast<uint32_t>(l.WidthOf(o[0]));
  inst.aux[3] =
      static_cast<uint32_t>(o[1].kind == Operand::Kind::kRegister ? l.WidthOf(o[1]) : source_bytes);
  Round how = Round::kNone;
  bool to_integer = false;
  for (const std::string& word : s.words) {
    if (word == "rni" || word == "rzi" || word == "rmi" || word == "rpi") to_integer = true;
    if (word == "rni" || word == "rn") how = Round::kNearest;
    if (word == "rzi" || word == "rz") how = Round::kZero;
    if (word == "rmi" || word == "rm") how = Round::kDown;
    if (word == "rpi" || word == "rp") how = Round::kUp;
  }
  inst.aux[0] = static_cast<uint32_t>(how);
  inst.aux[1] = s.Has("sat") ? 1 : 0;
  if (to_integer && (to[0] == 'f' || to[0] == 'b')) inst.aux[1] = 2;
  return true;
}

}  // namespace emu
