// Loads, stores and atomics.

#include <algorithm>
#include <string>

#include "access.h"
#include "lanes.h"
#include "notes.h"
#include "numbers.h"

namespace emu {
namespace {

using ptx::Instruction;
using ptx::Operand;

// Operands: v[0] the address register (aux[0] its bytes), imm is added; list: registers of data.
// aux[1]: 1 the instruction is one that others' progress is watched with (volatile, acquire,
// relaxed).
struct Addresses {
  uint64_t at[kLanes];
};

inline void Read(const Warp& w, const Inst& i, Addresses& a) {
  const auto imm = static_cast<uint64_t>(i.imm);
  if (i.aux[0] == 8) {
    const uint64_t* r = w.At<uint64_t>(i.v[0]);
    for (int l = 0; l < kLanes; ++l) a.at[l] = r[l] + imm;
  } else {
    const uint32_t* r = w.At<uint32_t>(i.v[0]);
    for (int l = 0; l < kLanes; ++l) a.at[l] = r[l] + static_cast<uint32_t>(imm);
  }
}

// Checks the addresses of the lanes of `m` and makes them pointers.
template <Space kSpace, bool kWrites>
inline void Translate(const Warp& w, const Inst& i, uint32_t m, uint64_t bytes, Addresses& a) {
  uint64_t low = ~uint64_t{0}, high = 0, bits = 0;
  if (m == kAll) {
    for (int l = 0; l < kLanes; ++l) {
      low = std::min(low, a.at[l]);
      high = std::max(high, a.at[l]);
      bits |= a.at[l];
    }
  } else {
    for (int l = 0; l < kLanes; ++l) {
      const bool on = (m >> l & 1) != 0;
      low = std::min(low, on ? a.at[l] : ~uint64_t{0});
      high = std::max(high, on ? a.at[l] : 0);
      bits |= on ? a.at[l] : 0;
    }
  }
  if constexpr (kSpace == Space::kShared) {
    if (low < kSharedBase || high + bytes > w.block->shared_bytes || bits % bytes != 0) {
      for (uint32_t rest = m; rest != 0; rest &= rest - 1)
        SharedPointer(w, i, *w.block, a.at[__builtin_ctz(rest)], bytes, bytes);
    }
    const auto base = reinterpret_cast<uint64_t>(w.block->shared);
    for (int l = 0; l < kLanes; ++l) a.at[l] += base;
  } else if constexpr (kSpace == Space::kCluster) {
    for (uint32_t rest = m; rest != 0; rest &= rest - 1) {
      const int l = __builtin_ctz(rest);
      const auto address = static_cast<uint32_t>(a.at[l]);
      a.at[l] = reinterpret_cast<uint64_t>(SharedPointer(w, i, BlockOfClusterAddress(w, i, address),
                                                         address & 0xFFFFFF, bytes, bytes));
    }
  } else {
    if (bits % bytes != 0 || (TheOptions().check_memory && !HostAllowed(w, i, low, high + bytes))) {
      for (uint32_t rest = m; rest != 0; rest &= rest - 1) {
        const int l = __builtin_ctz(rest);
        CheckHost(w, i, a.at[l], bytes, bytes, l);
      }
    }
    if constexpr (kWrites) {
      if (TheOptions().notes) HoldStores(w, i, m, bytes, a.at, low, high + bytes);
    } else if ((m & ~w.loads_freely) != 0) {
      HoldLoads(w, i, m, bytes, a.at, low, high + bytes);
    }
  }
}

// N values of memory type M into registers of D (as wide or wider).
template <Space kSpace, class M, class D, int kN>
bool Load(Warp& w, const Inst& i, uint32_t m) {
  Addresses a;
  Read(w, i, a);
  Translate<kSpace, false>(w, i, m, sizeof(M) * kN, a);
  if (m == kAll) {
    alignas(64) M values[kLanes][kN];
    for (int l = 0; l < kLanes; ++l)
      std::memcpy(values[l], reinterpret_cast<const char*>(a.at[l]), sizeof(M) * kN);
    for (int n = 0; n < kN; ++n) {
      if (i.list[n] == kAll) continue;
      D* d = w.At<D>(i.list[n]);
      for (int l = 0; l < kLanes; ++l) d[l] = static_cast<D>(values[l][n]);
    }
  } else {
    M values[kLanes][kN];
    for (uint32_t rest = m; rest != 0; rest &= rest - 1) {
      const int l = __builtin_ctz(rest);
      std::memcpy(values[l], reinterpret_cast<const char*>(a.at[l]), sizeof(M) * kN);
      for (int n = 0; n < kN; ++n)
        if (i.list[n] != kAll) w.At<D>(i.list[n])[l] = static_cast<D>(values[l][n]);
    }
  }
  return i.aux[1] != 0 && Spin(w);
}

template <Space kSpace, class M, class D, int kN>
bool Store(Warp& w, const Inst& i, uint32_t m) {
  Addresses a;
  Read(w, i, a);
  Translate<kSpace, true>(w, i, m, sizeof(M) * kN, a);
  ++w.block->launch->effects;
  const D* sources[kN];
  for (int n = 0; n < kN; ++n) sources[n] = w.At<D>(i.list[n]);
  for (uint32_t rest = m; rest != 0; rest &= rest - 1) {
    const int l = __builtin_ctz(rest);
    M values[kN];
    for (int n = 0; n < kN; ++n) values[n] = static_cast<M>(sources[n][l]);
    std::memcpy(reinterpret_cast<char*>(a.at[l]), values, sizeof values);
  }
  return i.aux[1] != 0 && Spin(w);
}

template <bool kLoad, Space kSpace, class M, class D>
Handler OfCount(size_t n) {
  switch (n) {
    case 1:
      return kLoad ? Load<kSpace, M, D, 1> : Store<kSpace, M, D, 1>;
    case 2:
      return kLoad ? Load<kSpace, M, D, 2> : Store<kSpace, M, D, 2>;
    case 4:
      return kLoad ? Load<kSpace, M, D, 4> : Store<kSpace, M, D, 4>;
    default:
      return nullptr;
  }
}

template <bool kLoad, Space kSpace>
Handler OfType(const std::string& type, int width, size_t n) {
  const char kind = type[0];
  const int bits = std::atoi(type.c_str() + type.find_first_of("0123456789"));
  const bool extends = kind == 's' && kLoad;
  // The register as an integer of its width: signed where the load extends the sign.
#define BT_WIDTH(M, SM)                                                                     \
  if (width == 2)                                                                           \
    return OfCount<kLoad, kSpace, M, std::conditional_t<(sizeof(M) <= 2), uint16_t, M>>(n); \
  if (width == 4)                                                                           \
    return OfCount<kLoad, kSpace, M, std::conditional_t<(sizeof(M) <= 4), uint32_t, M>>(n); \
  return OfCount<kLoad, kSpace, M, uint64_t>(n);
  if (bits == 8) {
    if (extends) {
      BT_WIDTH(int8_t, 0)
    }
    BT_WIDTH(uint8_t, 0)
  }
  if (bits == 16) {
    if (extends) {
      BT_WIDTH(int16_t, 0)
    }
    BT_WIDTH(uint16_t, 0)
  }
  if (bits == 32) {
    if (extends) {
      BT_WIDTH(int32_t, 0)
    }
    BT_WIDTH(uint32_t, 0)
  }
  if (bits == 64) return OfCount<kLoad, kSpace, uint64_t, uint64_t>(n);
#undef BT_WIDTH
  return nullptr;
}

// Parameters of the kernel are the same for all lanes.
template <class M, class D>
bool LoadParameter(Warp& w, const Inst& i, uint32_t m) {
  for (uint32_t n = 0; n < i.aux[2]; ++n) {
    M value;
    std::memcpy(&value, w.block->launch->parameters + i.imm + n * sizeof(M), sizeof value);
    if (i.list[n] != kAll)
      ForLanes(w.At<D>(i.list[n]), m, [value](int) { return static_cast<D>(value); });
  }
  return false;
}

template <class M>
Handler ParameterOfWidth(int width) {
  return width == 2   ? LoadParameter<M, uint16_t>
         : width == 4 ? LoadParameter<M, uint32_t>
                      : LoadParameter<M, uint64_t>;
}

Handler ParameterHandler(const std::string& type, int width) {
  const int bits = std::atoi(type.c_str() + type.find_first_of("0123456789"));
  const bool is_signed = type[0] == 's';
  switch (bits) {
    case 8:
      return is_signed ? ParameterOfWidth<int8_t>(width) : ParameterOfWidth<uint8_t>(width);
    case 16:
      return is_signed ? ParameterOfWidth<int16_t>(width) : ParameterOfWidth<uint16_t>(width);
    case 32:
      return is_signed ? ParameterOfWidth<int32_t>(width) : ParameterOfWidth<uint32_t>(width);
    default:
      return ParameterOfWidth<uint64_t>(width);
  }
}

// ---- atomics

enum class Atomic { kAdd, kMin, kMax, kAnd, kOr, kXor, kExchange, kCompare, kInc, kDec };

template <class T>
T Apply(Atomic op, T old, T a, T b) {
  if constexpr (std::is_floating_point_v<T>) {
    switch (op) {
      case Atomic::kAdd:
        return old + a;
      case Atomic::kExchange:
        return a;
      case Atomic::kMin:
        return std::min(old, a);
      default:
        return std::max(old, a);
    }
  } else {
    switch (op) {
      case Atomic::kAdd:
        return static_cast<T>(static_cast<std::make_unsigned_t<T>>(old) +
                              static_cast<std::make_unsigned_t<T>>(a));
      case Atomic::kMin:
        return std::min(old, a);
      case Atomic::kMax:
        return std::max(old, a);
      case Atomic::kAnd:
        return old & a;
      case Atomic::kOr:
        return old | a;
      case Atomic::kXor:
        return old ^ a;
      case Atomic::kExchange:
        return a;
      case Atomic::kCompare:
        return old == a ? b : old;
      case Atomic::kInc:
        return old >= a ? T{0} : old + 1;
      case Atomic::kDec:
        return old == 0 || old > a ? a : old - 1;
    }
  }
  return old;
}

// v[0] address; v[1] result (or ~0); v[2], v[3] data; aux[2] the operation. A lane after the other,
// in their order; f32 pairs (vector reductions) are not here.
template <Space kSpace, class T>
bool DoAtomic(Warp& w, const Inst& i, uint32_t m) {
  Addresses a;
  Read(w, i, a);
  Translate<kSpace, true>(w, i, m, sizeof(T), a);
  const T *x = w.At<T>(i.v[2]), *y = w.At<T>(i.v[3]);
  bool changed = false;
  for (uint32_t rest = m; rest != 0; rest &= rest - 1) {
    const int l = __builtin_ctz(rest);
    T* at = reinterpret_cast<T*>(a.at[l]);
    const T old = *at;
    const T now = Apply<T>(static_cast<Atomic>(i.aux[2]), old, x[l], y[l]);
    *at = now;
    changed |= std::memcmp(&now, &old, sizeof old) != 0;
    if (i.v[1] != kAll) w.At<T>(i.v[1])[l] = old;
  }
  if (changed) ++w.block->launch->effects;
  return kSpace == Space::kHost && Spin(w);
}

template <Space kSpace>
Handler AtomicHandler(const std::string& type) {
  if (type == "u32" || type == "b32") return DoAtomic<kSpace, uint32_t>;
  if (type == "s32") return DoAtomic<kSpace, int32_t>;
  if (type == "u64" || type == "b64") return DoAtomic<kSpace, uint64_t>;
  if (type == "s64") return DoAtomic<kSpace, int64_t>;
  if (type == "f32") return DoAtomic<kSpace, float>;
  if (type == "f64") return DoAtomic<kSpace, double>;
  if (type == "b16") return DoAtomic<kSpace, uint16_t>;
  return nullptr;
}

Space SpaceOf(const Instruction& s) {
  if (s.Has("shared::cluster")) return Space::kCluster;
  if (s.Has("shared") || s.Has("shared::cta")) return Space::kShared;
  return Space::kHost;
}

// The address of an instruction; of a variable of local memory or parameters, an instruction cannot
// say it by itself.
bool SetAddress(Lowering& l, const Operand& address, Inst& inst) {
  const Operand& base = address.parts.at(0);
  inst.imm = address.offset;
  if (base.kind == Operand::Kind::kSymbol &&
      (base.symbol->space == ptx::Symbol::Space::kLocal ||
       base.symbol->space == ptx::Symbol::Space::kKernelParam))
    return false;
  inst.aux[0] = static_cast<uint32_t>(base.kind == Operand::Kind::kRegister ? l.WidthOf(base) : 8);
  inst.v[0] = l.Value(base, 8);
  return true;
}

// Per-lane variables by name: the address is computed into a register that only this instruction
// uses.

bool LocalThenRun(Warp& w, const Inst& i, uint32_t m) {
  const uint64_t from = reinterpret_cast<uint64_t>(w.local) + i.v[4],
                 step = w.program->kernel->local_bytes;
  uint64_t* at = w.At<uint64_t>(i.v[0]);
  for (int l = 0; l < kLanes; ++l) at[l] = from + step * static_cast<uint64_t>(l);
  Handler inner;
  std::memcpy(&inner, &i.aux[2], sizeof inner);
  return inner(w, i, m);
}

}  // namespace

bool LowerMemory(Lowering& l, const Instruction& s, Inst& inst) {
  const std::string& op = s.words[0];
  const auto& o = s.operands;
  if (op == "ld" || op == "ldu" || (op == "st" && !s.Has("async"))) {
    const bool load = op != "st";
    const Operand& address = o.at(load ? 0 + 1 : 0);
    const Operand& data = o.at(load ? 0 : 1);
    const std::string& type = s.words.back();
    const int bits = std::atoi(type.c_str() + type.find_first_of("0123456789"));
    std::vector<uint32_t> list;
    int width = std::max(2, bits / 8);
    const auto add = [&](const Operand& one) {
      if (one.kind == Operand::Kind::kRegister) width = l.WidthOf(one);
      list.push_back(one.kind == Operand::Kind::kNone ? kAll : l.Value(one, std::max(2, bits / 8)));
    };
    if (data.kind == Operand::Kind::kVector)
      for (const Operand& one : data.parts) add(one);
    else
      add(data);
    inst.list = l.List(list);
    const Operand& base = address.parts.at(0);
    if (base.kind == Operand::Kind::kSymbol &&
        base.symbol->space == ptx::Symbol::Space::kKernelParam) {
      inst.imm = static_cast<int64_t>(base.symbol->offset) + address.offset;
      inst.aux[2] = static_cast<uint32_t>(list.size());
      inst.run = ParameterHandler(type, width);
      return load;
    }
    const Space space = SpaceOf(s);
    const bool watches = s.Has("volatile") || s.Has("acquire") || s.Has("relaxed") ||
                         s.Has("release") || s.Has("mmio");
    inst.aux[1] = watches && !s.Has("local") && (load || !s.Has("shared")) ? 1 : 0;
    const auto handler = [&](Space in) {
      if (in == Space::kShared)
        return load ? OfType<true, Space::kShared>(type, width, list.size())
                    : OfType<false, Space::kShared>(type, width, list.size());
      if (in == Space::kCluster)
        return load ? OfType<true, Space::kCluster>(type, width, list.size())
                    : OfType<false, Space::kCluster>(type, width, list.size());
      return load ? OfType<true, Space::kHost>(type, width, list.size())
                  : OfType<false, Space::kHost>(type, width, list.size());
    };
    inst.run = handler(space);
    if (inst.run == nullptr) return false;
    if (!SetAddress(l, address, inst)) {
      inst.aux[0] = 8;
      inst.v[0] = l.Scratch64();
      inst.v[4] = static_cast<uint32_t>(base.symbol->offset);
      std::memcpy(&inst.aux[2], &inst.run, sizeof inst.run);
      inst.run = LocalThenRun;
    }
    return true;
  }
  if (op == "atom" || op == "red") {
    const bool result = op == "atom";
    const Operand& address = o.at(result ? 1 : 0);
    const std::string& type = s.words.back();
    static const std::pair<const char*, Atomic> kNames[] = {
        {"add", Atomic::kAdd},       {"min", Atomic::kMin},     {"max", Atomic::kMax},
        {"and", Atomic::kAnd},       {"or", Atomic::kOr},       {"xor", Atomic::kXor},
        {"exch", Atomic::kExchange}, {"cas", Atomic::kCompare}, {"inc", Atomic::kInc},
        {"dec", Atomic::kDec}};
    bool found = false;
    for (const auto& [name, code] : kNames)
      if (s.Has(name)) {
        inst.aux[2] = static_cast<uint32_t>(code);
        found = true;
      }
    if (!found || s.Has("async") || s.Has("v2") || s.Has("v4")) return false;
    const int bytes = std::atoi(type.c_str() + type.find_first_of("0123456789")) / 8;
    if (!SetAddress(l, address, inst)) return false;
    inst.v[1] = result && o[0].kind == Operand::Kind::kRegister ? l.Place(o[0].reg) : kAll;
    const size_t first = result ? 2 : 1;
    inst.v[2] = l.Value(o.at(first), bytes);
    inst.v[3] = o.size() > first + 1 ? l.Value(o[first + 1], bytes) : inst.v[2];
    const Space space = SpaceOf(s);
    inst.run = space == Space::kShared    ? AtomicHandler<Space::kShared>(type)
               : space == Space::kCluster ? AtomicHandler<Space::kCluster>(type)
                                          : AtomicHandler<Space::kHost>(type);
    return inst.run != nullptr;
  }
  return false;
}

}  // namespace emu
