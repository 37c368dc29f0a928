#pragma once

// Which instructions this process uses for products. Chosen once, from what the
// processor and the operating system offer: different choices round
// differently, so that a process never mixes them.

#include <optional>
#include <string>
#include <string_view>

#include "base/status.h"

namespace baltoro::cpu {

// A machine that has one has all before it, and each is faster than those before, with one
// exception (FastestIsa).
enum class Isa {
  kAvx2,        // AVX2 and FMA: bf16 is widened to f32
  kAvx512,      // x86-64-v4: the same in 512 bits
  kAvx512Bf16,  // dot products of bf16 pairs
  kAmx,         // tiles of bf16 and of i8
};

std::string_view NameOf(Isa isa);
std::optional<Isa> ParseIsa(std::string_view name);  // "avx2", "avx512", "avx512bf16", "amx"

// The last one that this machine has; nothing if it has not even AVX2. Asks the
// operating system for permission to use tiles the first time. Any thread.
std::optional<Isa> BestIsa();

// The fastest one of this machine, where BestIsa() says that there is one. Dot products of bf16
// pairs do less than products of f32 on Intel's processors (docs/measured/cpu-step.md), so that
// kAvx512 is faster there. On AMD's they should do twice as much, by the widths that AMD publishes.
Isa FastestIsa();

// The one in use: the forced one, else the fastest one. Ends the process when
// there is none, so a program calls ChooseIsa() first.
Isa ActiveIsa();

// Whether the one in use comes with 512-bit dot products of bytes, as all processors since Ice Lake
// have them. They are exact, so they are no instruction set of their own.
bool HasVnni();

// From now on use `isa`. Not while operations run.
Status ForceIsa(Isa isa);

// The operator's choice: from now on use the one that `wish` names, null or "" for the fastest. An
// error says in words for the operator why the CPU operations cannot run here like that: the
// processor has not even AVX2, or not what is named, or there is no such name (kInvalidArgument).
Status ChooseIsa(const char* wish);

}  // namespace baltoro::cpu
