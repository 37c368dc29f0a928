#include "media/decode_picture.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "media/orientation.h"
#include "media/test_pictures.h"

namespace baltoro {
namespace {

using namespace std::string_literals;
using ::testing::HasSubstr;

std::string Pixels(const Result<Rgb>& picture) {
  if (!picture.ok()) return picture.status().message();
  const Rgb& rgb = picture.value();
  return {reinterpret_cast<const char*>(rgb.row(0)), rgb.size()};
}

// The pixels of a picture as letters, where all three channels of a pixel are one.
std::string Letters(const Result<Rgb>& picture) {
  const std::string pixels = Pixels(picture);
  std::string out;
  for (size_t i = 0; i < pixels.size(); i += 3) out += pixels[i];
  return out;
}

std::string Refusal(const std::string& bytes) {
  const Result<Rgb> picture = DecodePicture(bytes);
  return picture.ok() ? "taken" : picture.status().message();
}

TEST(DecodePictureTest, TheFirstBytesTellTheFormat) {
  EXPECT_EQ(Refusal(""), "the picture is empty: it has no bytes");
  for (const std::string& bytes : {"hello"s, "<svg/>"s, "BM\1\2"s, "II*\0"s, "\0\0\0 ftypavif"s,
                                   "\0\0\0\fjP  \r\n\x87\n"s, "\0\0\1\0"s, "%PDF-1.7"s}) {
    EXPECT_EQ(Refusal(bytes), "the picture is of no known format: send JPEG, PNG, WebP or GIF");
  }
  EXPECT_THAT(Refusal("\xff\xd8\xff"), HasSubstr("the JPEG picture"));
  EXPECT_THAT(Refusal("\x89PNG\r\n\x1a\n"), HasSubstr("the PNG picture"));
  EXPECT_THAT(Refusal("GIF89a"), HasSubstr("the GIF picture"));
  EXPECT_THAT(Refusal("RIFF\4\0\0\0WEBP"s), HasSubstr("the WebP picture"));
}

TEST(DecodePictureTest, APngOfEachKindHasItsColours) {
  EXPECT_EQ(Pixels(DecodePicture(MakePng(2, 1, 8, 2, "\0abcdef"s))), "abcdef");
  EXPECT_EQ(Letters(DecodePicture(MakePng(2, 1, 8, 0, "\0ab"s))), "ab");
  EXPECT_EQ(Letters(DecodePicture(MakePng(4, 1, 2, 0, "\0\x1b"s))), "\0\x55\xaa\xff"s);
  const std::string palette = PngChunk("PLTE", "abcdefghi");
  EXPECT_EQ(Pixels(DecodePicture(MakePng(2, 1, 8, 3, "\0\2\0"s, palette))), "ghiabc");
}

// The models' own code drops alpha, and so shows what lies under transparent pixels; vLLM does not.
TEST(DecodePictureTest, TransparentPixelsAreWhiteAndNotWhatLiesUnderThem) {
  const std::string white = "\xff\xff\xff"s;
  EXPECT_EQ(Pixels(DecodePicture(MakePng(2, 1, 8, 6,
                                         "\0abc\xff"
                                         "def\0"s))),
            "abc" + white);
  EXPECT_EQ(Letters(DecodePicture(MakePng(2, 1, 8, 4,
                                          "\0a\xff"
                                          "b\0"s))),
            "a\xff");
  const std::string transparent_grey = PngChunk("tRNS", "\0b"s);
  EXPECT_EQ(Letters(DecodePicture(MakePng(2, 1, 8, 0, "\0ab"s, transparent_grey))), "a\xff");
  const std::string palette = PngChunk("PLTE", "abcdef") + PngChunk("tRNS", "\xff\0"s);
  EXPECT_EQ(Pixels(DecodePicture(MakePng(2, 1, 8, 3, "\0\0\1"s, palette))), "abc" + white);
  const std::vector<uint8_t> rgba = {'a', 'b', 'c', 255, 'd', 'e', 'f', 0};
  EXPECT_EQ(Pixels(DecodePicture(MakeWebp(2, 1, rgba))), "abc" + white);
  const std::string control = "!\xf9\4\1\0\0\1\0"s;
  EXPECT_EQ(Pixels(DecodePicture(GifHeader(2, 1, "abcdefghijkl") + control +
                                 GifFrame(0, 0, 2, 1, "\0\1"s) + ";")),
            "abc" + white);
}

TEST(DecodePictureTest, HalfTransparentPixelsAreMixedWithWhiteAsPillowDoes) {
  EXPECT_EQ(Letters(DecodePicture(MakePng(3, 1, 8, 4, "\0\0\x80\x64\x01\x64\xfe"s))),
            "\x7f\xfe\x65"s);
}

// Pillow clips them to 8 bits, so that nearly every pixel of such a picture is white.
TEST(DecodePictureTest, GreysOfSixteenBitsKeepTheirHighByte) {
  EXPECT_EQ(Letters(DecodePicture(MakePng(3, 1, 16, 0,
                                          "\0a\xff"
                                          "b\0\0\xff"s))),
            "ab\0"s);
}

// Pillow compares the low byte of these with the high byte of pixels.
// Pillow reads them, as far as they go: a file that was cut off is then a picture with black below.
TEST(DecodePictureTest, APngThatIsNotWholeIsRefused) {
  const std::string whole = MakePng(2, 2, 8, 0, "\0ab\0cd"s);
  ASSERT_EQ(Refusal(whole), "taken");
  EXPECT_THAT(Refusal(whole.substr(0, whole.size() - 12)), HasSubstr("the PNG picture"));
  for (const char* chunk : {"IDAT", "IEND"}) {
    std::string wrong = whole;
    const size_t next = chunk == "IDAT"s ? wrong.find("IEND") - 4 : wrong.size();
    wrong[next - 1] ^= 1;  // the end of its checksum
    EXPECT_THAT(Refusal(wrong), HasSubstr("the PNG picture")) << chunk;
  }
}

// Pillow refuses the file. Nothing of the chunk is used.
TEST(DecodePictureTest, AWrongChecksumOfAChunkThatIsNotReadIsNotSeen) {
  std::string text = PngChunk("tEXt", "a\0b"s);
  text.back() ^= 1;
  EXPECT_EQ(Letters(DecodePicture(MakePng(2, 1, 8, 0, "\0ab"s, text))), "ab");
}

TEST(DecodePictureTest, TransparentColoursOfSixteenBitsAreComparedWhole) {
  const std::string transparent = PngChunk("tRNS", "a\1"s);
  EXPECT_EQ(Letters(DecodePicture(MakePng(3, 1, 16, 0, "\0a\1a\2\1a"s, transparent))),
            "\xff"
            "a\1");
}

// Nor does the models' own code turn pictures; vLLM does.
TEST(DecodePictureTest, APictureIsTurnedAsItsExifSays) {
  const std::string wanted[9] = {"",       "abcdef", "cbafed", "fedcba", "defabc",
                                 "adbecf", "daebfc", "fcebda", "cfbead"};
  for (int orientation = 1; orientation <= 8; ++orientation) {
    const std::string exif = MakeExif(orientation);
    for (const std::string& chunk : {exif, exif.substr(6)}) {
      const Result<Rgb> picture =
          DecodePicture(MakePng(3, 2, 8, 0, "\0abc\0def"s, PngChunk("eXIf", chunk)));
      EXPECT_EQ(Letters(picture), wanted[orientation]) << orientation;
      EXPECT_EQ(picture.value().width, orientation < 5 ? 3 : 2);
    }
  }
}

TEST(DecodePictureTest, JpegAndWebpAreTurnedToo) {
  const std::string exif = MakeExif(6);
  std::string jpeg = MakeJpeg(3, 2, std::vector<uint8_t>(18, 7));
  jpeg.insert(2, "\xff\xe1\0"s + static_cast<char>(exif.size() + 2) + exif);
  EXPECT_EQ(DecodePicture(jpeg).value().width, 2);
  const std::string plain = MakeWebp(3, 2, std::vector<uint8_t>(24, 255)).substr(12);
  const std::string head = RiffChunk("VP8X", "\x18\0\0\0"s + Little(2, 3) + Little(1, 3));
  EXPECT_EQ(DecodePicture(Riff(head + plain + RiffChunk("EXIF", exif))).value().width, 2);
}

TEST(DecodePictureTest, ExifThatIsNotAsItShouldBeTurnsNothing) {
  for (size_t size = 0; size < MakeExif(6).size() - 6; ++size) {
    EXPECT_EQ(ReadOrientation(MakeExif(6).substr(0, size)), 1) << size;
  }
  EXPECT_EQ(ReadOrientation(MakeExif(6)), 6);
  EXPECT_EQ(ReadOrientation(MakeExif(9)), 1);
  std::string far_away = MakeExif(6);
  far_away[10] = '\x7f';
  EXPECT_EQ(ReadOrientation(far_away), 1);
}

TEST(DecodePictureTest, JpegsOfEachKindDecode) {
  const std::vector<uint8_t> samples(4 * 64, 200);
  for (const bool progressive : {false, true}) {
    for (const int components : {1, 3}) {
      const Result<Rgb> picture = DecodePicture(MakeJpeg(8, 8, samples, {components, progressive}));
      EXPECT_EQ(Letters(picture), std::string(64, '\xc8'));
    }
    // Inverted ink: 200 is 55 of each colour and 55 of black, so 200 * 200 / 255 of light.
    const Result<Rgb> picture = DecodePicture(MakeJpeg(8, 8, samples, {4, progressive}));
    EXPECT_EQ(Letters(picture), std::string(64, '\x9d'));
  }
}

TEST(DecodePictureTest, WhatStandsBehindTheEndIsNotLookedAt) {
  const std::string tail = "\xff\xd8 and more";
  EXPECT_TRUE(DecodePicture(MakeJpeg(8, 8, std::vector<uint8_t>(192, 9)) + tail).ok());
  EXPECT_TRUE(DecodePicture(MakePng(1, 1, 8, 0, "\0a"s) + tail).ok());
  EXPECT_TRUE(DecodePicture(MakeWebp(1, 1, {1, 2, 3, 255}) + tail).ok());
  EXPECT_TRUE(
      DecodePicture(GifHeader(1, 1, "abcdefghijkl") + GifFrame(0, 0, 1, 1, "\1") + ";" + tail)
          .ok());
}

TEST(DecodePictureTest, AGifHasItsFirstFrameOnACanvasOfItsFirstColour) {
  const std::string header = GifHeader(3, 1, "aaabbbcccddd");
  const std::string second = GifFrame(0, 0, 3, 1, "\3\3\3");
  EXPECT_EQ(Letters(DecodePicture(header + GifFrame(1, 0, 1, 1, "\2") + second + ";")), "aca");
  EXPECT_EQ(Letters(DecodePicture(header + GifFrame(2, 0, 3, 1, "\2\1\3") + ";")), "aacbd");
}

TEST(DecodePictureTest, AnAnimatedWebpHasItsFirstFrameOnWhite) {
  const auto frame = [](int left, const std::vector<uint8_t>& rgba) {
    const std::string place = Little(left / 2, 3) + Little(0, 3) + Little(0, 3) + Little(0, 3);
    return RiffChunk("ANMF", place + Little(100, 3) + "\0"s + MakeWebp(1, 1, rgba).substr(12));
  };
  const std::string head = RiffChunk("VP8X", "\x12\0\0\0"s + Little(2, 3) + Little(0, 3)) +
                           RiffChunk("ANIM", std::string(6, '\0'));
  const std::string second = frame(0, {'d', 'e', 'f', 255});
  EXPECT_EQ(Pixels(DecodePicture(Riff(head + frame(2, {'a', 'b', 'c', 255}) + second))),
            "\xff\xff\xff\xff\xff\xff"
            "abc");
  EXPECT_THAT(Refusal(Riff(head + frame(4, {'a', 'b', 'c', 255}))),
              HasSubstr("larger than the whole"));
}

}  // namespace
}  // namespace baltoro
