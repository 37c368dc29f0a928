#include "request/wire.h"

#include <gtest/gtest.h>

#include <random>

#include "request/testing/random_values.h"

namespace baltoro {
namespace {

using test::RandomValues;

TEST(WireTest, WhatIsDecodedIsWhatWasEncoded) {
  RandomValues values(1);
  for (int i = 0; i < 2000; ++i) {
    const Request request = values.AnyRequest();
    const TokenEvent event = values.AnyEvent();
    WireWriter writer;
    Encode(writer, request);
    Encode(writer, event);
    const std::string bytes = writer.Take();

    WireReader reader(bytes);
    EXPECT_EQ(DecodeRequest(reader), request);
    EXPECT_EQ(DecodeTokenEvent(reader), event);
    EXPECT_TRUE(reader.Finish("both").ok());
  }
}

TEST(WireTest, EveryCutIsNoticed) {
  RandomValues values(2);
  WireWriter writer;
  Encode(writer, values.AnyRequest());
  const std::string bytes = writer.Take();
  for (size_t length = 0; length < bytes.size(); ++length) {
    WireReader reader(std::string_view(bytes).substr(0, length));
    (void)DecodeRequest(reader);
    EXPECT_FALSE(reader.Finish("request").ok()) << length;
  }
  const std::string longer = bytes + "x";
  WireReader reader(longer);
  (void)DecodeRequest(reader);
  EXPECT_EQ(reader.Finish("request").message(), "request: 1 bytes too many");
}

TEST(WireTest, ALengthThatIsNotThereAllocatesNothing) {
  WireWriter writer;
  writer.Put(uint32_t{0xFFFFFFFF});
  const std::string bytes = writer.Take();
  WireReader reader(bytes);
  EXPECT_TRUE(reader.GetArray<int32_t>().empty());
  EXPECT_FALSE(reader.ok());
}

TEST(WireTest, EveryEndOfARequestCrosses) {
  for (const FinishReason finish :
       {FinishReason::kNone, FinishReason::kStop, FinishReason::kLength, FinishReason::kAbort,
        FinishReason::kError, FinishReason::kLost}) {
    TokenEvent event;
    event.finish = finish;
    WireWriter writer;
    Encode(writer, event);
    const std::string bytes = writer.Take();
    WireReader reader(bytes);
    EXPECT_EQ(DecodeTokenEvent(reader), event);
    EXPECT_TRUE(reader.Finish("event").ok());
  }
}

TEST(WireTest, AnEnumOutOfRangeIsRefused) {
  WireWriter writer;
  writer.Put(uint8_t{6});
  const std::string bytes = writer.Take();
  WireReader reader(bytes);
  (void)reader.GetEnum(FinishReason::kLost);
  EXPECT_FALSE(reader.ok());
}

TEST(FrameParserTest, FramesComeOutHoweverTheStreamIsCut) {
  const std::string stream =
      EncodeFrame(1, "one") + EncodeFrame(2, "") + EncodeFrame(3, std::string(5000, 'x'));
  for (size_t step : {1, 2, 7, 12, 13, 4096, 100000}) {
    FrameParser parser;
    std::vector<Frame> frames;
    for (size_t at = 0; at < stream.size(); at += step) {
      parser.Append(std::string_view(stream).substr(at, step));
      for (;;) {
        auto next = parser.Next();
        ASSERT_TRUE(next.ok());
        if (!next.value().has_value()) break;
        frames.push_back(*next.value());
      }
    }
    ASSERT_EQ(frames.size(), 3u) << step;
    EXPECT_EQ(frames[0].type, 1);
    EXPECT_EQ(frames[0].payload, "one");
    EXPECT_EQ(frames[1].payload, "");
    EXPECT_EQ(frames[2].payload.size(), 5000u);
  }
}

TEST(FrameParserTest, AForeignStreamIsRefusedByItsHeader) {
  const auto status_of = [](std::string bytes) {
    FrameParser parser;
    parser.Append(bytes);
    return parser.Next().status();
  };
  std::string frame = EncodeFrame(1, "x");
  EXPECT_TRUE(status_of(frame).ok());
  std::string magic = frame;
  magic[0] = 'G';
  EXPECT_FALSE(status_of(magic).ok());
  std::string version = frame;
  version[4] = 9;
  EXPECT_FALSE(status_of(version).ok());
  std::string length = frame;
  length[11] = 0x7F;  // 2 GiB: refused before it is waited for
  EXPECT_FALSE(status_of(length).ok());
}

}  // namespace
}  // namespace baltoro
