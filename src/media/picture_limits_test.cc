// What is refused, how soon, and with how little memory. No large picture is decoded here, so that
// the highest use of memory by this process tells what refusals take.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <chrono>
#include <cstring>

#include "media/decode_picture.h"
#include "media/test_pictures.h"

namespace baltoro {
namespace {

using namespace std::string_literals;
using ::testing::HasSubstr;
using ::testing::StartsWith;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr int kSlower = 20;
#else
constexpr int kSlower = 1;
#endif

std::string Message(const std::string& bytes, const PictureLimits& limits = {}) {
  const Result<Rgb> picture = DecodePicture(bytes, limits);
  return picture.ok() ? "taken" : picture.status().message();
}

int64_t PeakKib() {
  rusage use = {};
  getrusage(RUSAGE_SELF, &use);
  return use.ru_maxrss;
}

// The message for these bytes, which has to come within 50 ms and 32 MiB.
std::string QuickMessage(const std::string& bytes) {
  const int64_t before = PeakKib();
  const auto start = std::chrono::steady_clock::now();
  std::string message = Message(bytes);
  const auto took = std::chrono::steady_clock::now() - start;
  EXPECT_LT(took, kSlower * std::chrono::milliseconds(50));
  EXPECT_GT(before, 0);
  EXPECT_LT(PeakKib() - before, kSlower * 32 * 1024);
  return message;
}

// Of no library, no place in memory and no file.
void ExpectOurOwn(const std::string& message) {
  for (const char* word : {"0x", "/", "lib", "::", "\\", "%", "\n"}) {
    EXPECT_EQ(message.find(word), std::string::npos) << message;
  }
  EXPECT_THAT(message, StartsWith("the "));
}

std::vector<uint8_t> Samples(size_t count) {
  std::vector<uint8_t> out(count);
  for (size_t i = 0; i < count; ++i) out[i] = static_cast<uint8_t>(i * i * 37 + i / 5);
  return out;
}

std::vector<std::string> SmallFiles() {
  const std::string exif = MakeExif(6);
  std::string turned = MakeJpeg(9, 5, Samples(200));
  turned.insert(2, "\xff\xe1\0"s + static_cast<char>(exif.size() + 2) + exif);
  const std::vector<uint8_t> samples = Samples(64);
  std::string rows;
  for (int y = 0; y < 4; ++y) {
    rows += '\0';
    rows.append(reinterpret_cast<const char*>(samples.data()) + 12 * y, 12);
  }
  return {turned,
          MakeJpeg(9, 5, Samples(200), {.progressive = true}),
          MakeJpeg(9, 5, Samples(200), {.components = 4}),
          MakePng(4, 4, 8, 2, rows),
          MakePng(3, 4, 8, 6, rows),
          MakePng(4, 4, 8, 2, rows, PngChunk("eXIf", exif.substr(6)) + PngChunk("tEXt", "a\0b"s)),
          MakeWebp(4, 4, Samples(64)),
          MakeWebp(4, 4, Samples(64), /*lossless=*/false),
          GifHeader(4, 2, "abcdefghijkl") + GifFrame(0, 0, 4, 2, "\0\1\2\3\3\2\1\0"s) + ";"};
}

TEST(PictureLimitsTest, AFileCutAnywhereIsRefusedWithASentence) {
  for (const std::string& file : SmallFiles()) {
    const Result<Rgb> whole = DecodePicture(file);
    ASSERT_TRUE(whole.ok()) << whole.status().message();
    for (size_t size = 0; size < file.size(); ++size) {
      const Result<Rgb> cut = DecodePicture(std::string_view(file).substr(0, size));
      if (cut.ok()) {
        // Behind a GIF's first frame there is nothing that belongs to it.
        EXPECT_THAT(file, StartsWith("GIF"));
        EXPECT_GE(size + 4, file.size());
        EXPECT_EQ(std::memcmp(cut.value().row(0), whole.value().row(0), whole.value().size()), 0);
        continue;
      }
      EXPECT_EQ(cut.status().code(), Code::kInvalidArgument);
      ExpectOurOwn(cut.status().message());
      if (size >= 12) {
        EXPECT_THAT(cut.status().message(), HasSubstr("is cut short")) << size;
      }
    }
  }
}

TEST(PictureLimitsTest, AnyByteMayBeWrong) {
  for (const std::string& file : SmallFiles()) {
    for (size_t at = 0; at < file.size(); ++at) {
      for (const int flip : {0x01, 0x10, 0x80, 0xff}) {
        std::string broken = file;
        broken[at] = static_cast<char>(broken[at] ^ flip);
        const Result<Rgb> picture = DecodePicture(broken, {.pixels_max = 100'000});
        if (!picture.ok()) ExpectOurOwn(picture.status().message());
      }
    }
  }
}

TEST(PictureLimitsTest, EachLimitNamesItself) {
  const std::string png = MakePng(4, 2, 8, 0, "\0abcd\0efgh"s);
  EXPECT_EQ(Message(png, {.bytes_max = 10}),
            "the picture has " + std::to_string(png.size()) +
                " bytes; 10 are the most: make it smaller or compress it more");
  EXPECT_EQ(Message(png, {.pixels_max = 7}),
            "the PNG picture has 4 x 2 pixels; 7 are the most: make it smaller");
  EXPECT_EQ(Message(png, {.side_max = 3}),
            "the PNG picture has 4 x 2 pixels; a side may have 3: make it smaller");
  EXPECT_EQ(Message(png, {.aspect_max = 1}),
            "the PNG picture has 4 x 2 pixels; its longer side may be 1 times the shorter one: cut "
            "it");
  EXPECT_EQ(
      Message(png, {.bytes_max = png.size(), .pixels_max = 8, .side_max = 4, .aspect_max = 2}),
      "taken");
}

TEST(PictureLimitsTest, AspectIsAtMostTwoHundred) {
  EXPECT_EQ(Message(MakePng(200, 1, 8, 0, std::string(201, '\0'))), "taken");
  EXPECT_THAT(Message(MakePng(201, 1, 8, 0, std::string(202, '\0'))), HasSubstr("200 times"));
}

TEST(PictureLimitsTest, APngThatClaimsToBeHugeIsRefusedByItsHeader) {
  const std::string rows(1 << 20, '\0');
  EXPECT_THAT(QuickMessage(MakePng(65535, 65535, 1, 0, rows)), HasSubstr("a side may have 16384"));
  EXPECT_THAT(QuickMessage(MakePng(100'000, 100'000, 8, 6, rows)), HasSubstr("100000 x 100000"));
  EXPECT_THAT(QuickMessage(MakePng(16384, 16384, 8, 6, rows)), HasSubstr("50000000 are the most"));
  EXPECT_THAT(QuickMessage(MakePng(0xffffffff, 0xffffffff, 8, 6, rows)), HasSubstr("a side may"));
  EXPECT_THAT(QuickMessage(MakePng(0, 5, 8, 6, rows)), HasSubstr("no pixels"));
}

// Its data end at once, so the memory that its header asks for is never touched.
TEST(PictureLimitsTest, ALargePngWithoutDataTakesNoMemory) {
  EXPECT_THAT(QuickMessage(MakePng(7000, 7000, 8, 2, "")), HasSubstr("do not decode"));
  EXPECT_THAT(QuickMessage(MakePng(7000, 7000, 8, 2, "\0abc"s)), HasSubstr("do not decode"));
}

TEST(PictureLimitsTest, WhatAPngPacksBesideItsPixelsIsNotUnpacked) {
  const std::string packed = Deflated(std::string(64 << 20, '\0'));
  for (const auto& [type, head] :
       {std::pair{"iCCP", "a\0\0"s}, {"zTXt", "a\0\0"s}, {"iTXt", "a\0\1\0\0\0"s}}) {
    EXPECT_EQ(QuickMessage(MakePng(1, 1, 8, 0, "\0a"s, PngChunk(type, head + packed))), "taken");
  }
  std::string many;
  for (int i = 0; i < 100'000; ++i) many += PngChunk("tEXt", "a\0b"s);
  EXPECT_EQ(QuickMessage(MakePng(1, 1, 8, 0, "\0a"s, many)), "taken");
}

TEST(PictureLimitsTest, OtherFormatsThatClaimToBeHugeAreRefusedByTheirHeaders) {
  std::string jpeg = MakeJpeg(8, 8, Samples(192));
  const size_t frame = jpeg.find("\xff\xc0");
  jpeg.replace(frame + 5, 4, "\xff\xff\xff\xff");
  EXPECT_THAT(QuickMessage(jpeg), HasSubstr("65535 x 65535"));

  std::string webp = MakeWebp(1, 1, {1, 2, 3, 255});
  webp.replace(21, 4, Little(16382U | 16382U << 14, 4));
  EXPECT_THAT(QuickMessage(webp), HasSubstr("16383 x 16383 pixels; 50000000 are the most"));
  const std::string canvas =
      RiffChunk("VP8X", "\2\0\0\0"s + Little(0xffffff, 3) + Little(0xffffff, 3));
  EXPECT_THAT(QuickMessage(Riff(canvas + RiffChunk("ANMF", std::string(40, '\0')))),
              HasSubstr("16777216 x 16777216"));

  const std::string colours = "abcdefghijkl";
  EXPECT_THAT(QuickMessage(GifHeader(65535, 65535, colours) + GifFrame(0, 0, 1, 1, "\1") + ";"),
              HasSubstr("65535 x 65535"));
  EXPECT_THAT(QuickMessage(GifHeader(1, 1, colours) + GifFrame(65535, 0, 65535, 1, "\1") + ";"),
              HasSubstr("131070 x 1"));
}

TEST(PictureLimitsTest, OfTenThousandFramesOneIsDecoded) {
  std::string gif = GifHeader(100, 100, "abcdefghijkl");
  const std::string frame = GifFrame(0, 0, 100, 100, std::string(10'000, '\1'));
  for (int i = 0; i < 10'000; ++i) gif += i < 2 ? frame : GifFrame(0, 0, 1, 1, "\1");
  EXPECT_EQ(QuickMessage(gif + ";"), "taken");
}

TEST(PictureLimitsTest, TenThousandScansAreRefusedBeforeTheFirst) {
  const std::string jpeg = MakeJpeg(64, 64, Samples(3 * 64 * 64), {.progressive = true});
  const size_t scan = jpeg.rfind("\xff\xda");
  std::string many = jpeg.substr(0, jpeg.size() - 2);
  for (int i = 0; i < 10'000; ++i) many += jpeg.substr(scan, jpeg.size() - 2 - scan);
  EXPECT_THAT(QuickMessage(many + "\xff\xd9"), HasSubstr("scans, and 100 are the most"));
}

TEST(PictureLimitsTest, TheLargerAPictureTheFewerScansItMayHave) {
  const std::string jpeg = MakeJpeg(64, 64, Samples(3 * 64 * 64), {.progressive = true});
  EXPECT_EQ(Message(jpeg, {.jpeg_scan_pixels_max = 64 * 64 * 10}), "taken");
  EXPECT_EQ(Message(jpeg, {.jpeg_scan_pixels_max = 64 * 64 * 9}),
            "the JPEG picture has 10 scans, and 9 are the most at its size: save it as an ordinary "
            "JPEG");
}

TEST(PictureLimitsTest, JpegsThatWeDoNotReadSaySo) {
  std::string jpeg = MakeJpeg(8, 8, Samples(192));
  const size_t frame = jpeg.find("\xff\xc0");
  std::string deep = jpeg;
  deep[frame + 4] = 12;
  EXPECT_EQ(Message(deep),
            "the JPEG picture has 12 bits a sample, and 8 are taken: save it as an ordinary JPEG");
  std::string lossless = jpeg;
  lossless[frame + 1] = '\xc3';
  EXPECT_THAT(Message(lossless), HasSubstr("lossless or in layers"));
  std::string two = jpeg;
  two[frame + 9] = 2;
  EXPECT_THAT(Message(two), HasSubstr("has 2 colour components"));
}

}  // namespace
}  // namespace baltoro
