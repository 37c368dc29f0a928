#include "net/sse.h"

#include <gtest/gtest.h>

#include <vector>

namespace baltoro {
namespace {

std::vector<std::string> Events(std::string_view stream, size_t piece) {
  SseParser parser;
  std::vector<std::string> events;
  while (!stream.empty()) {
    parser.Feed(stream.substr(0, piece), [&](const SseEvent& event) {
      events.push_back(event.event + "|" + event.data + "|" + event.id);
      return true;
    });
    stream.remove_prefix(std::min(piece, stream.size()));
  }
  return events;
}

using List = std::vector<std::string>;

// The examples of the WHATWG specification, section "Interpreting an event stream".
TEST(SseParserTest, ReadsTheSpecificationsExamples) {
  for (const size_t piece : {1, 2, 3, 1000}) {
    EXPECT_EQ(Events("data: YHOO\ndata: +2\ndata: 10\n\n", piece), List{"|YHOO\n+2\n10|"});
    EXPECT_EQ(Events(": test stream\n\ndata: first event\nid: 1\n\ndata:second event\nid\n\n"
                     "data:  third event\n\n",
                     piece),
              (List{"|first event|1", "|second event|", "| third event|"}));
    EXPECT_EQ(Events("data\n\ndata\ndata\n\ndata:", piece), (List{"||", "|\n|"}));
    EXPECT_EQ(Events("data:test\n\ndata: test\n\n", piece), (List{"|test|", "|test|"}));
    EXPECT_EQ(Events("event: add\ndata: 7\n\nevent: remove\ndata: 8\n\n", piece),
              (List{"add|7|", "remove|8|"}));
  }
}

TEST(SseParserTest, TakesEveryLineEndAndAByteOrderMark) {
  for (const size_t piece : {1, 2, 1000}) {
    EXPECT_EQ(Events("\xef\xbb\xbf"
                     "data: a\r\n\r\ndata: b\r\rdata: c\n\n",
                     piece),
              (List{"|a|", "|b|", "|c|"}));
  }
}

TEST(SseParserTest, StopsWhenToldTo) {
  SseParser parser;
  int count = 0;

  EXPECT_FALSE(parser.Feed("data: a\n\ndata: b\n\n", [&](const SseEvent&) {
    count += 1;
    return false;
  }));

  EXPECT_EQ(count, 1);
}

TEST(SseWriterTest, WritesOneEventWhateverTheDataHolds) {
  std::string out;
  AppendSseData(out, "{\"a\":1}");
  EXPECT_EQ(out, "data: {\"a\":1}\n\n");

  out.clear();
  AppendSseEvent(out, "ping", "two\nlines\r\nthree");
  EXPECT_EQ(out, "event: ping\ndata: two\ndata: lines\ndata: three\n\n");

  out.clear();
  AppendSseData(out, "x\n\nevent: forged\n");
  EXPECT_EQ(Events(out, 1000), List{"|x\n\nevent: forged\n|"});
}

}  // namespace
}  // namespace baltoro
