#include "terminal/safe_text.h"

#include <gtest/gtest.h>

namespace baltoro {
namespace {

TEST(SafeTextTest, ControlAndBidiCharactersOfALineBecomeSpaces) {
  EXPECT_EQ(ForTerminal("a\x1b[31mb\x7f"
                        "c\r\nd"),
            "a [31mb c  d");
  EXPECT_EQ(ForTerminal("C1: \xc2\x9b"
                        "31m, kept: \xc2\xa0\xc3\xa9"),
            "C1:  31m, kept: \xc2\xa0\xc3\xa9");
  EXPECT_EQ(ForTerminal("model\xe2\x80\xae"
                        "nib.py"),
            "model nib.py");
}

TEST(SafeTextTest, BytesThatAreNoUtf8AreReplaced) {
  EXPECT_EQ(ForTerminal("\x9b"
                        "2J"),
            "\xef\xbf\xbd"
            "2J");
}

TEST(SafeTextTest, ALongLineIsCutBetweenCharacters) {
  EXPECT_EQ(ForTerminal("abcdef", 6), "abcdef");
  EXPECT_EQ(ForTerminal("abcdefg", 6), "abcdef ...");
  EXPECT_EQ(ForTerminal("abcde\xc3\xa9", 6), "abcde ...");
  EXPECT_EQ(ForTerminal(std::string(1000, 'x'), 6), "xxxxxx ...");
}

TEST(SafeTextTest, LinesAndTabsOfAnAnswerStay) {
  EXPECT_EQ(WithoutControls("a\tb\n\x1b]0;title\x07"
                            "c\xc2\x85"
                            "d\x7f\r"),
            "a\tb\n]0;titlecd");
}

}  // namespace
}  // namespace baltoro
