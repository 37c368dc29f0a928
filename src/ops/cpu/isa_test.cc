#include "ops/cpu/isa.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace baltoro::cpu {
namespace {

using ::testing::HasSubstr;

TEST(IsaTest, TheOperatorNamesOneThatTheProcessorHas) {
  ASSERT_TRUE(BestIsa().has_value());
  for (const Isa isa : {Isa::kAvx2, Isa::kAvx512, Isa::kAvx512Bf16, Isa::kAmx}) {
    const Status chosen = ChooseIsa(std::string(NameOf(isa)).c_str());
    EXPECT_EQ(chosen.ok(), isa <= *BestIsa()) << NameOf(isa);
    if (chosen.ok()) {
      EXPECT_EQ(ActiveIsa(), isa);
    } else {
      EXPECT_THAT(chosen.message(),
                  HasSubstr("no " + std::string(NameOf(isa)) + "; the last that it has is " +
                            std::string(NameOf(*BestIsa()))));
    }
  }
  ASSERT_TRUE(ChooseIsa("avx2").ok());
  EXPECT_EQ(ChooseIsa("sse4").code(), Code::kInvalidArgument);
  EXPECT_EQ(ActiveIsa(), Isa::kAvx2);
  ASSERT_TRUE(ChooseIsa("").ok());
  EXPECT_EQ(ActiveIsa(), FastestIsa());
  EXPECT_LE(FastestIsa(), *BestIsa());
  EXPECT_TRUE(ChooseIsa(nullptr).ok());
}

}  // namespace
}  // namespace baltoro::cpu
