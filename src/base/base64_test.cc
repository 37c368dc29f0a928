#include "base/base64.h"

#include <gtest/gtest.h>

namespace baltoro {
namespace {

using namespace std::string_literals;

TEST(Base64Test, WholeGroupsGiveTheirBytes) {
  std::string out;
  EXPECT_TRUE(DecodeBase64("AAEC/v8=", out));
  EXPECT_EQ(out, "\0\1\2\xfe\xff"s);
  EXPECT_TRUE(DecodeBase64("IQ==", out));
  EXPECT_EQ(out, "!");
  EXPECT_TRUE(DecodeBase64("Zm9v", out));
  EXPECT_EQ(out, "foo");
}

TEST(Base64Test, AnythingElseIsRefused) {
  std::string out;
  for (const char* text : {"", "I", "IQ", "IQ=", "IR==", "I===", "====", "IQ==IQ==", "Zm9v\n",
                           "Zm 9", "Zm-_", "Zm9vZ===", "Zm9="}) {
    EXPECT_FALSE(DecodeBase64(text, out)) << text;
  }
}

TEST(Base64Test, WhatIsWrittenIsReadAgain) {
  std::string bytes, read;
  for (int i = 0; i < 300; ++i) {
    bytes += static_cast<char>(i * 7);
    std::string text = "data:,";
    AppendBase64(text, bytes);
    ASSERT_TRUE(DecodeBase64(std::string_view(text).substr(6), read)) << text;
    EXPECT_EQ(read, bytes);
  }
  std::string text;
  AppendBase64(text, "");
  EXPECT_EQ(text, "");
  AppendBase64(text, "\0\1\2\xfe\xff"s);
  EXPECT_EQ(text, "AAEC/v8=");
}

}  // namespace
}  // namespace baltoro
