#pragma once

// For this room's tests: worlds of every kind, with a thread for each rank.

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <latch>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "comm/link.h"
#include "comm/link_communicator.h"
#include "comm/rendezvous.h"
#include "comm/thread_world.h"
#include "support/support.h"

namespace baltoro::test {

enum class WorldKind { kThreads, kUnixSockets, kTcp };

inline std::string KindName(const ::testing::TestParamInfo<WorldKind>& info) {
  constexpr const char* kNames[] = {"Threads", "UnixSockets", "Tcp"};
  return kNames[static_cast<size_t>(info.param)];
}

// Not a secret of anybody's.
inline constexpr const char* kTestKey = "a-key-for-tests-and-nothing-else";

// A port that nobody has. Below those that the kernel deals out, and of a range of each process, so
// that nobody takes it before it is used.
inline int FreePort() {
  constexpr int kFirst = 20000, kOfProcess = 20, kProcesses = 600;
  static std::atomic<int> asked = 0;
  for (int tries = 0; tries < kOfProcess; ++tries) {
    const int port = kFirst + (getpid() % kProcesses) * kOfProcess + asked++ % kOfProcess;
    if (ListenAt({.host = "127.0.0.1", .port = port}).ok()) return port;
  }
  ADD_FAILURE() << "every port of this process's range is taken";
  return 0;
}

inline WorldOptions OptionsOf(const RankAddress& meeting, int32_t rank, int32_t ranks) {
  return {.rank = rank,
          .ranks = ranks,
          .meeting = meeting,
          .cluster_key = kTestKey,
          .join_timeout = 20,
          .heartbeat_interval = 0.1};
}

// Runs body on a thread for each rank, once all have joined. The body may end its link.
inline void RunRanks(WorldKind kind,
                     int32_t ranks,
                     const std::function<void(std::unique_ptr<Link>)>& body) {
  const TempDir folder;
  ThreadWorld world(ranks);
  RankAddress meeting{.path = folder.path() + "/world"};
  if (kind == WorldKind::kTcp) meeting = {.host = "127.0.0.1", .port = FreePort()};
  std::vector<std::thread> threads;
  std::latch joined(ranks);
  for (int32_t rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      Result<std::unique_ptr<Link>> link = kind == WorldKind::kThreads
                                               ? world.Join(rank)
                                               : JoinWorld(OptionsOf(meeting, rank, ranks));
      joined.arrive_and_wait();
      ASSERT_TRUE(link.ok()) << link.status().message();
      body(std::move(link.value()));
    });
  }
  for (std::thread& thread : threads) thread.join();
}

inline std::unique_ptr<Communicator> Group(Link* link,
                                           const std::string& name,
                                           const std::vector<int32_t>& ranks,
                                           Seconds call_timeout = 60) {
  Result<std::unique_ptr<Communicator>> group =
      JoinGroup(link, {.name = name, .ranks = ranks, .call_timeout = call_timeout});
  EXPECT_TRUE(group.ok()) << group.status().message();
  return std::move(group).value();
}

inline std::vector<int32_t> AllOf(const Link& link) {
  std::vector<int32_t> ranks;
  for (int32_t rank = 0; rank < link.ranks(); ++rank) ranks.push_back(rank);
  return ranks;
}

}  // namespace baltoro::test

#define BT_EXPECT_OK(expr)                        \
  do {                                            \
    const ::baltoro::Status bt_got = (expr);      \
    EXPECT_TRUE(bt_got.ok()) << bt_got.message(); \
  } while (false)
