#pragma once

// Each instruction set of this machine's processor in turn, for tests of operations on a CPU.

#include <gtest/gtest.h>

#include <vector>

#include "ops/cpu/isa.h"

namespace baltoro::test {

inline std::vector<cpu::Isa> SupportedIsas() {
  std::vector<cpu::Isa> isas;
  for (const cpu::Isa isa :
       {cpu::Isa::kAvx2, cpu::Isa::kAvx512, cpu::Isa::kAvx512Bf16, cpu::Isa::kAmx}) {
    if (cpu::BestIsa().has_value() && isa <= *cpu::BestIsa()) isas.push_back(isa);
  }
  return isas;
}

// Operations use this one in the scope, and after it the machine's own choice.
class ForcedIsa {
 public:
  explicit ForcedIsa(cpu::Isa isa) { EXPECT_TRUE(cpu::ForceIsa(isa).ok()) << cpu::NameOf(isa); }
  ~ForcedIsa() { EXPECT_TRUE(cpu::ForceIsa(cpu::FastestIsa()).ok()); }
  ForcedIsa(const ForcedIsa&) = delete;
  ForcedIsa& operator=(const ForcedIsa&) = delete;
};

}  // namespace baltoro::test
