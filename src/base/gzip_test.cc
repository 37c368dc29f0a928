#include "base/gzip.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <zlib.h>

#include <fstream>

#include "support/support.h"

namespace baltoro {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

std::string Gzip(const std::string& text) {
  z_stream stream{};
  EXPECT_EQ(deflateInit2(&stream, 9, Z_DEFLATED, 15 + 16, 9, Z_DEFAULT_STRATEGY), Z_OK);
  std::string out(deflateBound(&stream, text.size()), '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  EXPECT_EQ(deflate(&stream, Z_FINISH), Z_STREAM_END);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

// Longer than a piece, and not the same bytes over and over.
std::string Lines(int count) {
  std::string text;
  for (int i = 0; i < count; ++i) text += "{\"id\":" + std::to_string(i * 7919) + "}\n";
  return text;
}

class GzipTest : public ::testing::Test {
 protected:
  std::string Written(const std::string& name, const std::string& bytes) const {
    std::ofstream(dir_.path() + "/" + name, std::ios::binary) << bytes;
    return dir_.path() + "/" + name;
  }

  test::TempDir dir_;
};

TEST_F(GzipTest, PlainAndCompressedFilesReadAlike) {
  for (const std::string& text : {std::string(), std::string("one"), Lines(20'000)}) {
    EXPECT_EQ(ReadPlainOrGzip(Written("plain", text)).value(), text);
    // The name does not matter: the first bytes tell.
    EXPECT_EQ(ReadPlainOrGzip(Written("zipped", Gzip(text))).value(), text);
  }
  EXPECT_EQ(ReadPlainOrGzip(Written("two", Gzip("first ") + Gzip("second"))).value(),
            "first second");
}

// Ten million bytes in ten thousand: the limit is found long before they are in memory.
TEST_F(GzipTest, WhatIsInAnArchiveIsBounded) {
  const std::string text(10'000'000, 'x');
  const std::string path = Written("bomb.gz", Gzip(text));
  EXPECT_EQ(ReadPlainOrGzip(path, text.size()).value().size(), text.size());
  const Status status = ReadPlainOrGzip(path, text.size() - 1, "--cases").status();
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_EQ(status.message(), "--cases " + path +
                                  ": is a gzip archive of more than 9999999 bytes, which is the "
                                  "limit");
  EXPECT_FALSE(Gunzip(Gzip("first ") + Gzip("second"), 11).ok());
  EXPECT_TRUE(Gunzip(Gzip("first ") + Gzip("second"), 12).ok());
  EXPECT_TRUE(Gunzip(Gzip(""), 0).ok());
}

TEST_F(GzipTest, ABrokenArchiveIsAnErrorThatNamesTheFile) {
  const std::string whole = Gzip(Lines(1000));
  for (size_t length = 2; length < whole.size(); ++length) {
    EXPECT_THAT(Gunzip(whole.substr(0, length), 1 << 20).status().message(),
                HasSubstr("whose end is missing"))
        << length;
  }
  std::string other_sum = whole;
  other_sum[whole.size() - 5] ^= 1;
  std::string other_method = whole;
  other_method[2] = 7;
  for (const std::string& broken : {other_sum, other_method, whole + "more", whole + '\0'}) {
    const std::string path = Written("broken.gz", broken);
    const Status status = ReadPlainOrGzip(path, kTextBytesMax, "--cases").status();
    EXPECT_EQ(status.code(), Code::kInvalidArgument);
    EXPECT_THAT(status.message(), StartsWith("--cases " + path + ": is a "));
    EXPECT_THAT(status.message(), HasSubstr("gzip archive"));
  }
  const std::string none = dir_.path() + "/none";
  EXPECT_THAT(ReadPlainOrGzip(none, 1, "--cases").status().message(),
              StartsWith("--cases " + none + ": "));
}

}  // namespace
}  // namespace baltoro
