#pragma once

// One operation over 32 lanes. The loops are written so that the compiler makes vector code of
// them; a lane that is not in the mask keeps its value.

#include "machine.h"

namespace emu {

template <class D, class F>
inline void ForLanes(D* d, uint32_t m, F value) {
  if (m == kAll) {
#pragma GCC ivdep
    for (int l = 0; l < kLanes; ++l) d[l] = value(l);
  } else if constexpr (sizeof(D) == 2) {  // g++ 12 fails on masked vectors of 16 bits
    for (uint32_t rest = m; rest != 0; rest &= rest - 1) {
      const int l = __builtin_ctz(rest);
      d[l] = value(l);
    }
  } else {
#pragma GCC ivdep
    for (int l = 0; l < kLanes; ++l) {
      const D r = value(l);
      d[l] = (m >> l & 1) != 0 ? r : d[l];
    }
  }
}

template <class D, class A, class F>
bool Unary(Warp& w, const Inst& i, uint32_t m) {
  const A* a = w.At<A>(i.v[1]);
  ForLanes(w.At<D>(i.v[0]), m, [a](int l) { return static_cast<D>(F{}(a[l])); });
  return false;
}

template <class D, class A, class B, class F>
bool Binary(Warp& w, const Inst& i, uint32_t m) {
  const A* a = w.At<A>(i.v[1]);
  const B* b = w.At<B>(i.v[2]);
  ForLanes(w.At<D>(i.v[0]), m, [a, b](int l) { return static_cast<D>(F{}(a[l], b[l])); });
  return false;
}

template <class D, class A, class B, class C, class F>
bool Ternary(Warp& w, const Inst& i, uint32_t m) {
  const A* a = w.At<A>(i.v[1]);
  const B* b = w.At<B>(i.v[2]);
  const C* c = w.At<C>(i.v[3]);
  ForLanes(w.At<D>(i.v[0]), m, [a, b, c](int l) { return static_cast<D>(F{}(a[l], b[l], c[l])); });
  return false;
}

}  // namespace emu
