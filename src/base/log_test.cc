#include "base/log.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/poll.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

#include "base/check.h"

namespace baltoro {
namespace {

using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;

// A pipe in place of standard error, that nobody reads until Read.
class UnreadPipe {
 public:
  UnreadPipe() {
    BT_CHECK(pipe2(ends_, O_CLOEXEC) == 0);
    before_ = dup(STDERR_FILENO);
    dup2(ends_[1], STDERR_FILENO);
  }
  ~UnreadPipe() { Restore(); }

  // Fills the pipe to its last byte.
  void Fill() {
    const int flags = fcntl(ends_[1], F_GETFL);
    fcntl(ends_[1], F_SETFL, flags | O_NONBLOCK);
    const std::string page(4096, '.');
    while (write(ends_[1], page.data(), page.size()) > 0) {
    }
    fcntl(ends_[1], F_SETFL, flags);
  }

  // All lines until there is nothing more within two seconds.
  std::string Read() {
    std::string out;
    char buffer[65536];
    pollfd ready{.fd = ends_[0], .events = POLLIN, .revents = 0};
    while (poll(&ready, 1, 2000) > 0) {
      const ssize_t size = read(ends_[0], buffer, sizeof buffer);
      if (size <= 0) break;
      out.append(buffer, static_cast<size_t>(size));
      if (out.ends_with("the last line\n")) break;
    }
    return out;
  }

 private:
  void Restore() {
    dup2(before_, STDERR_FILENO);
    close(before_);
    close(ends_[0]);
    close(ends_[1]);
  }

  int ends_[2], before_ = -1;
};

uint64_t CountLines(const std::string& text, std::string_view what) {
  uint64_t count = 0;
  for (size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++count;
  return count;
}

// "... N lines of the log were dropped here ...", all of them added up.
uint64_t SaidDropped(const std::string& text) {
  uint64_t sum = 0;
  for (size_t at = text.find(" lines of the log were"); at != std::string::npos;
       at = text.find(" lines of the log were", at + 1)) {
    sum += std::stoull(text.substr(text.rfind(' ', at - 1) + 1));
  }
  return sum;
}

TEST(LogTest, LoggingNeverWaitsForWhoReads) {
  constexpr uint64_t kLines = 5000;
  UnreadPipe pipe;
  const uint64_t before = LogDropsOfProcess().unread;

  for (uint64_t i = 0; i < kLines; ++i) BT_LOG(Info, "number {} {}", i, std::string(200, 'x'));
  BT_LOG(Info, "the last line");
  const std::string text = pipe.Read();

  EXPECT_THAT(text, EndsWith("the last line\n"));
  const uint64_t dropped = LogDropsOfProcess().unread - before;
  EXPECT_GT(dropped, kLines / 2);
  EXPECT_EQ(CountLines(text, "] number "), kLines - dropped);
  EXPECT_EQ(SaidDropped(text), dropped);
  FlushLog();
}

TEST(LogTest, ALineIsOneLineOfFourKibibytes) {
  UnreadPipe pipe;

  BT_LOG(Info, "a\nERROR b{}", std::string(10000, '\x01'));
  BT_LOG(Info, "the last line");
  const std::string text = pipe.Read();

  EXPECT_THAT(text, AllOf(HasSubstr("a\\x0aERROR b\\x01"), HasSubstr("...\n")));
  EXPECT_LE(text.find('\n'), 4095u);
  EXPECT_EQ(CountLines(text, "\n"), 2u);
  FlushLog();
}

TEST(LogTest, AReaderThatWentAwayIsCountedAndEndsNothing) {
  const uint64_t before = LogDropsOfProcess().unread;
  {
    int ends[2];
    ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
    const int keep = dup(STDERR_FILENO);
    dup2(ends[1], STDERR_FILENO);
    close(ends[1]);
    close(ends[0]);
    BT_LOG(Info, "for nobody");
    FlushLog();
    dup2(keep, STDERR_FILENO);
    close(keep);
  }
  EXPECT_EQ(LogDropsOfProcess().unread - before, 1u);
}

TEST(LogLimitTest, LetsSoManyThroughASecondAndTellsTheRestAfterIt) {
  LogLimit limit("x.cc", 1);

  uint64_t through = 0;
  for (int i = 0; i < 1000; ++i) through += limit.Admit(7) ? 1 : 0;

  EXPECT_EQ(through, LogLimit::kLinesPerSecond);
  EXPECT_EQ(limit.TakeLeftOut(7), 0u);
  EXPECT_EQ(limit.TakeLeftOut(8), 1000 - LogLimit::kLinesPerSecond);
  EXPECT_EQ(limit.TakeLeftOut(9), 0u);
  EXPECT_TRUE(limit.Admit(8));
}

TEST(LogLimitTest, OnePlaceOfTheProgramHasOneLimit) {
  UnreadPipe pipe;
  const uint64_t before = LogDropsOfProcess().limited;

  // More than the seconds of this loop let through: 100,000 take less than a minute.
  constexpr uint64_t kLines = 100'000;
  for (uint64_t i = 0; i < kLines; ++i) BT_LOG_LIMITED(Info, "asked for");

  EXPECT_GT(LogDropsOfProcess().limited - before, kLines / 2);
  FlushLog();
}

class LogDeathTest : public ::testing::Test {
 protected:
  void SetUp() override { ::testing::GTEST_FLAG(death_test_style) = "threadsafe"; }
};

TEST_F(LogDeathTest, TheLastLinesOfAProcessAreWritten) {
  EXPECT_EXIT(
      {
        BT_LOG(Error, "last words");
        ExitAtOnce(3);
      },
      ::testing::ExitedWithCode(3), "last words");
  EXPECT_EXIT(
      {
        BT_LOG(Error, "last words");
        std::exit(3);
      },
      ::testing::ExitedWithCode(3), "last words");
  EXPECT_DEATH(
      {
        BT_LOG(Error, "last words");
        BT_CHECK(1 + 1 == 3);
      },
      "last words(.|\n)*check failed");
}

// `end` must end the process although standard error takes nothing.
template <typename End>
void EndWithFullPipe(const End& end) {
  UnreadPipe pipe;
  pipe.Fill();
  BT_LOG(Error, "nobody reads this");
  end();
}

TEST_F(LogDeathTest, AFullPipeDoesNotHoldTheEnd) {
  EXPECT_EXIT(EndWithFullPipe([] { ExitAtOnce(3); }), ::testing::ExitedWithCode(3), "");
  EXPECT_EXIT(EndWithFullPipe([] { std::exit(3); }), ::testing::ExitedWithCode(3), "");
  EXPECT_EXIT(EndWithFullPipe([] { BT_CHECK(1 + 1 == 3); }), ::testing::KilledBySignal(SIGABRT),
              "");
}

}  // namespace
}  // namespace baltoro
