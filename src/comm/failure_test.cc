// What every rank hears, and how soon, when one of them aborts, leaves, dies or stands still.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <thread>

#include "comm/test_ranks.h"

namespace baltoro {
namespace {

using test::AllOf;
using test::Group;
using test::RunRanks;
using test::WorldKind;
using ::testing::AnyOf;
using ::testing::HasSubstr;

constexpr Seconds kPromise = 5;

void SleepFor(Seconds seconds) {
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
}

// All-reduces until one fails, as a rank in the middle of its work does.
Status WorkUntilFailure(Communicator* group, size_t floats) {
  std::vector<float> data(floats, 1);
  while (true) BT_RETURN_IF_ERROR(group->AllReduceSum(data));
}

class FailureTest : public ::testing::TestWithParam<WorldKind> {};
INSTANTIATE_TEST_SUITE_P(Worlds,
                         FailureTest,
                         ::testing::Values(WorldKind::kThreads,
                                           WorldKind::kUnixSockets,
                                           WorldKind::kTcp),
                         test::KindName);

TEST_P(FailureTest, AnAbortEndsTheCallsOfAllRanksAndGroups) {
  for (const size_t floats : {3584, 300001}) {
    RunRanks(GetParam(), 3, [&](std::unique_ptr<Link> link) {
      const auto all = Group(link.get(), "all", AllOf(*link));
      const auto alone = Group(link.get(), "alone", {link->rank()});
      std::atomic<Seconds> aborted_at = MonotonicClock().Now() + 0.05;
      std::thread aborter([&] {
        if (link->rank() != 1) return;
        SleepFor(0.05);
        link->Abort("the device is lost");
      });
      const Status got = WorkUntilFailure(all.get(), floats);
      EXPECT_LT(MonotonicClock().Now() - aborted_at, kPromise);
      aborter.join();
      const std::string want = "rank 1 aborted: the device is lost";
      EXPECT_EQ(got.message(), want);
      EXPECT_EQ(got.code(), Code::kUnavailable);
      // For ever, everywhere, and with the first reason.
      link->Abort("something else");
      std::vector<float> data(3);
      EXPECT_EQ(all->AllReduceSum(data).message(), want);
      EXPECT_EQ(all->Barrier().message(), want);
      EXPECT_EQ(alone->AllReduceSum(data).message(), want);
      EXPECT_EQ(link->status().message(), want);
    });
  }
}

TEST_P(FailureTest, AnAbortIsSeenOutsideCalls) {
  RunRanks(GetParam(), 3, [&](std::unique_ptr<Link> link) {
    if (link->rank() == 2) link->Abort("no reason");
    const Seconds start = MonotonicClock().Now();
    while (link->status().ok() && MonotonicClock().Now() < start + kPromise) SleepFor(0.01);
    EXPECT_EQ(link->status().message(), "rank 2 aborted: no reason");
  });
}

TEST_P(FailureTest, ARankThatLeavesInMidCallIsNamed) {
  RunRanks(GetParam(), 3, [&](std::unique_ptr<Link> link) {
    const auto all = Group(link.get(), "all", AllOf(*link));
    if (link->rank() == 2) {
      std::vector<float> data(3584, 1);
      BT_EXPECT_OK(all->AllReduceSum(data));
      return;
    }
    const Seconds start = MonotonicClock().Now();
    const Status got = WorkUntilFailure(all.get(), 3584);
    EXPECT_LT(MonotonicClock().Now() - start, kPromise);
    EXPECT_THAT(got.message(), HasSubstr("rank 2 has left"));
  });
}

TEST_P(FailureTest, ARankThatLeavesAfterItsWorkHarmsNobody) {
  for (int round = 0; round < 3; ++round) {
    RunRanks(GetParam(), 4, [&](std::unique_ptr<Link> link) {
      const auto all = Group(link.get(), "all", AllOf(*link));
      std::vector<float> data(70001, 1);
      BT_EXPECT_OK(all->AllReduceSum(data));
      BT_EXPECT_OK(all->Barrier());
      if (link->rank() == 0) return;  // while others may still be in the barrier
      const auto rest = Group(link.get(), "rest", {1, 2, 3});
      for (int call = 0; call < 5; ++call) BT_EXPECT_OK(rest->AllReduceSum(data));
    });
  }
}

TEST_P(FailureTest, ARankThatDoesNotTakePartIsNamedAtTheDeadline) {
  RunRanks(GetParam(), 3, [&](std::unique_ptr<Link> link) {
    const auto all = Group(link.get(), "all", AllOf(*link), 0.15);
    if (link->rank() == 1) {  // alive, but busy with something else
      const Seconds start = MonotonicClock().Now();
      while (link->status().ok() && MonotonicClock().Now() < start + kPromise) SleepFor(0.01);
    }
    std::vector<float> data(5);
    const Seconds start = MonotonicClock().Now();
    EXPECT_THAT(all->AllReduceSum(data).message(),
                AnyOf(HasSubstr("rank 0 has waited in vain for rank 1"),
                      HasSubstr("rank 2 has waited in vain for rank 1")));
    EXPECT_LT(MonotonicClock().Now() - start, kPromise);
  });
}

TEST_P(FailureTest, ALongSendWithoutReceiverEndsAtTheDeadlineAndFreesItsBuffer) {
  RunRanks(GetParam(), 2, [&](std::unique_ptr<Link> link) {
    const auto all = Group(link.get(), "all", AllOf(*link), 0.15);
    std::vector<std::byte> data(16 << 20);
    if (link->rank() == 0) {
      EXPECT_FALSE(all->Send(data, 1).ok());
      data = {};
      return;
    }
    const Seconds start = MonotonicClock().Now();
    while (link->status().ok() && MonotonicClock().Now() < start + kPromise) SleepFor(0.01);
    EXPECT_THAT(all->Receive(data, 0).message(), HasSubstr("rank 1"));
  });
}

// A world of processes: this one is rank 0; the others run `body` and exit with what it returns.
class ProcessWorld {
 public:
  ProcessWorld(int32_t ranks, const std::function<int(Link*)>& body) {
    for (int32_t rank = 1; rank < ranks; ++rank) {
      const pid_t pid = fork();
      if (pid == 0) {
        _exit(RunChild(Options(rank, ranks), body));
      }
      pids_.push_back(pid);
    }
    Result<std::unique_ptr<Link>> link = JoinWorld(Options(0, ranks));
    EXPECT_TRUE(link.ok()) << link.status().message();
    if (link.ok()) link_ = std::move(link.value());
  }
  ~ProcessWorld() {
    for (const pid_t pid : pids_) kill(pid, SIGKILL);
    for (size_t rank = 1; rank <= pids_.size(); ++rank) Wait(static_cast<int32_t>(rank));
  }

  Link* link() { return link_.get(); }
  void Signal(int32_t rank, int signal) { kill(pids_[static_cast<size_t>(rank) - 1], signal); }
  // The exit code; -1 if a signal ended it, or it has been waited for.
  int Wait(int32_t rank) {
    int status = 0;
    if (waitpid(pids_[static_cast<size_t>(rank) - 1], &status, 0) <= 0) return -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

 private:
  static int RunChild(const WorldOptions& options, const std::function<int(Link*)>& body) {
    Result<std::unique_ptr<Link>> link = JoinWorld(options);
    return link.ok() ? body(link.value().get()) : 100;
  }

  WorldOptions Options(int32_t rank, int32_t ranks) const {
    WorldOptions options = test::OptionsOf({.path = folder_.path() + "/world"}, rank, ranks);
    options.stall_timeout = 1;
    return options;
  }

  const test::TempDir folder_;
  std::vector<pid_t> pids_;
  std::unique_ptr<Link> link_;
};

// 0 if the failure names rank 2 as it should.
int WorkInChild(Link* link, const std::string& reason) {
  const auto all = Group(link, "all", AllOf(*link));
  if (!all->Barrier().ok()) return 2;
  const std::string got = WorkUntilFailure(all.get(), 3584).message();
  return got.find(reason) == 0 && link->lost() == 2 ? 0 : 1;
}

TEST(ProcessFailureTest, AKilledRankIsNoticedByAllAndNamed) {
  const std::string reason = "rank 2 closed its connection";
  ProcessWorld world(4, [&](Link* link) { return WorkInChild(link, reason); });
  ASSERT_NE(world.link(), nullptr);
  const auto all = Group(world.link(), "all", AllOf(*world.link()));
  BT_EXPECT_OK(all->Barrier());
  std::thread killer([&] {
    SleepFor(0.05);
    world.Signal(2, SIGKILL);
  });
  const Seconds start = MonotonicClock().Now();
  EXPECT_THAT(WorkUntilFailure(all.get(), 3584).message(), HasSubstr(reason));
  EXPECT_LT(MonotonicClock().Now() - start, kPromise);
  EXPECT_EQ(world.link()->lost(), 2);
  killer.join();
  EXPECT_EQ(world.Wait(1), 0);
  EXPECT_EQ(world.Wait(3), 0);
}

TEST(ProcessFailureTest, AStoppedRankIsNoticedByAllAndNamedAndFencedWhenItGoesOn) {
  const std::string reason = "rank 2 has been silent";
  ProcessWorld world(3, [&](Link* link) { return WorkInChild(link, reason); });
  ASSERT_NE(world.link(), nullptr);
  const auto all = Group(world.link(), "all", AllOf(*world.link()));
  BT_EXPECT_OK(all->Barrier());
  std::thread stopper([&] {
    SleepFor(0.05);
    world.Signal(2, SIGSTOP);
  });
  const Seconds start = MonotonicClock().Now();
  EXPECT_THAT(WorkUntilFailure(all.get(), 3584).message(), HasSubstr(reason));
  EXPECT_LT(MonotonicClock().Now() - start, kPromise);
  stopper.join();
  EXPECT_EQ(world.Wait(1), 0);
  world.Signal(2, SIGCONT);
  EXPECT_EQ(world.Wait(2), 0);  // it hears that it was given up
}

TEST(ProcessFailureTest, ARankThatComputesForLongIsNotCalledSilent) {
  ProcessWorld world(2, [](Link* link) {
    SleepFor(1.6);  // over the stall timeout, outside any call
    return Group(link, "all", AllOf(*link))->Barrier().ok() ? 0 : 1;
  });
  ASSERT_NE(world.link(), nullptr);
  BT_EXPECT_OK(Group(world.link(), "all", AllOf(*world.link()))->Barrier());
  EXPECT_EQ(world.Wait(1), 0);
}

}  // namespace
}  // namespace baltoro
