#include "ops/cpu/isa.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>

#include "base/check.h"

namespace baltoro::cpu {
namespace {

constexpr int kNone = -1;
// The one piece of state of this file: the table of operations takes no
// instruction set, because it must be one for the process.
std::atomic<int> forced{kNone};  // NOLINT(cppcoreguidelines-avoid-non-const-global-variables)

// Tiles are 8 KiB more to save for each thread, so Linux grants them on request
// only, to the whole process.
bool MayUseTiles() {
#if defined(__linux__) && defined(SYS_arch_prctl)
  constexpr long kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM
  constexpr long kTileData = 18;               // XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
  return false;
#endif
}

// __builtin_cpu_supports of g++ 12 does not know the tile extensions: leaf 7, edx bits 24 (tile),
// 22 (bf16 products) and 25 (i8 products). Codes are looked up with byte permutations: ecx bit 1
// (VBMI).
bool HasTiles() {
  unsigned eax = 7;
  unsigned ebx = 0;
  unsigned ecx = 0;
  unsigned edx = 0;
  __asm__ volatile("cpuid" : "+a"(eax), "=b"(ebx), "+c"(ecx), "=d"(edx));
  return (edx >> 24 & 1) != 0 && (edx >> 22 & 1) != 0 && (edx >> 25 & 1) != 0 &&
         (ecx >> 1 & 1) != 0;
}

std::optional<Isa> Detect() {
  __builtin_cpu_init();
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return std::nullopt;
  if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
      !__builtin_cpu_supports("avx512dq") || !__builtin_cpu_supports("avx512vl") ||
      !__builtin_cpu_supports("avx512cd")) {
    return Isa::kAvx2;
  }
  if (!__builtin_cpu_supports("avx512bf16")) return Isa::kAvx512;
  return HasTiles() && MayUseTiles() ? Isa::kAmx : Isa::kAvx512Bf16;
}

}  // namespace

std::string_view NameOf(Isa isa) {
  switch (isa) {
    case Isa::kAvx2:
      return "avx2";
    case Isa::kAvx512:
      return "avx512";
    case Isa::kAvx512Bf16:
      return "avx512bf16";
    case Isa::kAmx:
      return "amx";
  }
  return "";
}

std::optional<Isa> ParseIsa(std::string_view name) {
  for (const Isa isa : {Isa::kAvx2, Isa::kAvx512, Isa::kAvx512Bf16, Isa::kAmx}) {
    if (name == NameOf(isa)) return isa;
  }
  return std::nullopt;
}

std::optional<Isa> BestIsa() {
  static const std::optional<Isa> best = Detect();
  return best;
}

Isa FastestIsa() {
  const std::optional<Isa> best = BestIsa();
  BT_CHECK(best.has_value());
  return *best == Isa::kAvx512Bf16 && __builtin_cpu_is("intel") ? Isa::kAvx512 : *best;
}

Isa ActiveIsa() {
  const int isa = forced.load(std::memory_order_relaxed);
  return isa != kNone ? static_cast<Isa>(isa) : FastestIsa();
}

bool HasVnni() {
  static const bool has = [] {
    __builtin_cpu_init();
    return static_cast<bool>(__builtin_cpu_supports("avx512vnni"));
  }();
  return has && ActiveIsa() >= Isa::kAvx512;
}

Status ForceIsa(Isa isa) {
  const std::optional<Isa> best = BestIsa();
  if (!best.has_value() || isa > *best) {
    return Status(Code::kInvalidArgument,
                  "this processor has no " + std::string(NameOf(isa)) +
                      "; the last that it has is " +
                      (best.has_value() ? std::string(NameOf(*best)) : "older than avx2"));
  }
  forced.store(static_cast<int>(isa), std::memory_order_relaxed);
  return Status();
}

Status ChooseIsa(const char* wish) {
  if (!BestIsa().has_value()) {
    return Status(Code::kUnavailable,
                  "this processor has no AVX2 and FMA, which "
                  "the CPU backend needs at least");
  }
  if (wish == nullptr || *wish == '\0') return ForceIsa(FastestIsa());
  const std::optional<Isa> isa = ParseIsa(wish);
  if (isa) return ForceIsa(*isa);
  return InvalidArgument("'" + std::string(wish) + "' is none of avx2, avx512, avx512bf16, amx");
}

}  // namespace baltoro::cpu
