#include "tensor/kv_form.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

namespace baltoro {
namespace {

TEST(KvFormTest, BytesOfATokenAreThoseOfTheLayouts) {
  EXPECT_EQ(KvTokenBytes(KvForm::kF32, 512, 64), 2304);
  EXPECT_EQ(KvTokenBytes(KvForm::kBf16, 512, 64), 1152);
  EXPECT_EQ(KvTokenBytes(KvForm::kFp8, 512, 64), 576);
  EXPECT_EQ(KvTokenBytes(KvForm::kFp8Groups, 512, 64), 656);
  EXPECT_EQ(KvTokenBytes(KvForm::kFp8Groups, 129, 6), 129 + 2 * 4 + 12);
}

TEST(KvFormTest, TheScaleOfAGroupIsAlwaysANormalNumber) {
  EXPECT_EQ(KvGroupScale(896), 2);
  EXPECT_EQ(KvGroupScale(0), std::numeric_limits<float>::min());
  EXPECT_EQ(KvGroupScale(std::numeric_limits<float>::infinity()),
            std::numeric_limits<float>::max() / 448);
}

TEST(KvFormTest, ValuesOfTheFlagAreRead) {
  EXPECT_EQ(ParseKvForm("auto", DType::kBf16).value(), KvForm::kBf16);
  EXPECT_EQ(ParseKvForm("auto", DType::kF32).value(), KvForm::kF32);
  EXPECT_EQ(ParseKvForm("bfloat16", DType::kF32).value(), KvForm::kBf16);
  EXPECT_EQ(ParseKvForm("fp8", DType::kBf16).value(), KvForm::kFp8);
  EXPECT_EQ(ParseKvForm("fp8_e4m3", DType::kBf16).value(), KvForm::kFp8);
  EXPECT_EQ(ParseKvForm("fp8_ds_mla", DType::kBf16).value(), KvForm::kFp8Groups);
}

TEST(KvFormTest, WhatThereIsNotIsRefusedWithWhatThereIs) {
  for (const char* value :
       {"fp8_e5m2", "fp8_inc", "int8_per_token_head", "fp8_per_token_head", "float16", "FP8", ""}) {
    const auto form = ParseKvForm(value, DType::kBf16);
    ASSERT_FALSE(form.ok()) << value;
    EXPECT_THAT(form.status().message(),
                ::testing::HasSubstr("there are auto, bfloat16, fp8 (the same as fp8_e4m3) and "
                                     "fp8_ds_mla"));
  }
}

}  // namespace
}  // namespace baltoro
