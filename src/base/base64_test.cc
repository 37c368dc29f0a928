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

}  // namespace
}  // namespace baltoro
