#include "weights/safetensors.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ctime>

#include "support/support.h"

namespace baltoro {
namespace {

using ::testing::HasSubstr;

std::string Refusal(std::string_view json, uint64_t data_bytes) {
  const auto entries = ParseSafetensorsHeader(json, data_bytes);
  return entries.ok() ? "accepted" : entries.status().message();
}

TEST(SafetensorsTest, AHeaderIsReadInOrderOfPosition) {
  const auto entries = ParseSafetensorsHeader(
      R"({"__metadata__":{"format":"pt"},
          "b":{"dtype":"F32","shape":[2],"data_offsets":[12,20]},
          "a":{"dtype":"BF16","shape":[2,3],"data_offsets":[0,12]},
          "none":{"dtype":"I64","shape":[0,5],"data_offsets":[20,20]},
          "one":{"dtype":"U8","shape":[],"data_offsets":[20,21]}})",
      21);

  ASSERT_TRUE(entries.ok()) << entries.status().message();
  ASSERT_EQ(entries.value().size(), 4u);
  EXPECT_EQ(entries.value()[0].name, "a");
  EXPECT_EQ(entries.value()[0].dtype, DType::kBf16);
  EXPECT_EQ(entries.value()[0].shape, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(entries.value()[1].begin, 12u);
  EXPECT_EQ(entries.value()[1].bytes, 8u);
  EXPECT_EQ(entries.value()[3].name, "one");
}

TEST(SafetensorsTest, WhatDoesNotFitIsRefusedWithTheTensorsName) {
  struct Case {
    const char* json;
    uint64_t data_bytes;
    const char* message;
  };
  const Case cases[] = {
      {"[]", 0, "not a JSON object"},
      {"{", 0, "not valid JSON"},
      {R"({"a":7})", 0, "tensor a: not an object"},
      {R"({"a":{"shape":[1],"data_offsets":[0,4]}})", 4, "tensor a: no dtype"},
      {R"({"a":{"dtype":"F31","shape":[1],"data_offsets":[0,4]}})", 4, "dtype F31 is not known"},
      {R"({"a":{"dtype":"F32","data_offsets":[0,4]}})", 4, "tensor a: no shape"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0]}})", 4, "no data_offsets of two"},
      {R"({"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}})", 4, "a dimension is not"},
      {R"({"a":{"dtype":"F32","shape":[1.0],"data_offsets":[0,4]}})", 4, "a dimension is not"},
      {R"({"a":{"dtype":"F32","shape":[18446744073709551615],"data_offsets":[0,4]}})", 4,
       "a dimension is not"},
      {R"({"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]}})", 0,
       "shape overflows"},
      {R"({"a":{"dtype":"F32","shape":[1,1,1,1,1,1,1,1,1],"data_offsets":[0,4]}})", 4,
       "more than 8 dimensions"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,0]}})", 4, "are not a range"},
      {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})", 4, "span 4 bytes"},
      {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 4, "ends at byte 8"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", 5, "1 bytes at the end"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})", 8, "4 bytes before it"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},
           "b":{"dtype":"F32","shape":[1],"data_offsets":[2,6]}})",
       6, "tensor b: overlaps"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},
           "a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
       8, "duplicate key"},
      {R"({"a":{"dtype":"F32","dtype":"F32","shape":[1],"data_offsets":[0,4]}})", 4,
       "duplicate key"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4,8]}})", 4, "no data_offsets of two"},
      {R"({"a":{"dtype":"F32","shape":[01],"data_offsets":[0,4]}})", 4, "a dimension is not"},
      {R"({"a":{"dtype":"F32","shape":[1e0],"data_offsets":[0,4]}})", 4, "a dimension is not"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}x)", 4, "not valid JSON"},
      {R"({"__metadata__":{"a":[1,]}})", 0, "not valid JSON"},
  };
  for (const Case& c : cases) EXPECT_THAT(Refusal(c.json, c.data_bytes), HasSubstr(c.message));
}

// A quarter of a million tensors, as many as the largest checkpoint's index has: quadratic work on
// the names would take minutes.
TEST(SafetensorsTest, AHeaderOfVeryManyTensorsIsReadInSeconds) {
  std::string json = "{";
  constexpr int kTensors = 250'000;
  for (int i = 0; i < kTensors; ++i) {
    json += fmt::format(R"({}"model.layers.{}.mlp.experts.{}.up_proj.weight":{{"dtype":"U8",)"
                        R"("shape":[1],"data_offsets":[{},{}]}})",
                        i == 0 ? "" : ",", i % 61, i, i, i + 1);
  }
  json += '}';
  const std::clock_t begin = std::clock();
  const auto entries = ParseSafetensorsHeader(json, kTensors);
  const double seconds = static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
  ASSERT_TRUE(entries.ok()) << entries.status().message();
  EXPECT_EQ(entries.value().size(), size_t{kTensors});
  // Of processor time; 0.15 in a release build, ten times that under a sanitizer. Speed itself is
  // measured elsewhere: this tells minutes from seconds.
  EXPECT_LT(seconds, 30);
}

}  // namespace
}  // namespace baltoro
