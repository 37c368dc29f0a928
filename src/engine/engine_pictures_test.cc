// Pictures on their way from the door to an engine's process.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <fstream>
#include <string>
#include <thread>
#include <utility>

#include "engine/remote_engine.h"
#include "engine/testing/event_log.h"
#include "engine/testing/process_engine.h"
#include "request/wire.h"

namespace baltoro {
namespace {

using std::chrono::steady_clock;
using test::EventLog;
using test::Eventually;
using test::Expected;
using test::MakeRequest;
using test::Options;
using test::PidOf;
using test::SecondsSince;
using test::StandIn;
using test::Start;
using test::Told;

// `count` pictures of 2,352 KiB and 1,024 tokens each, none like one of another `series`.
Request WithPictures(uint64_t id, int count, uint8_t series) {
  static const SharedBytes pixels(std::string(size_t{64} * 64 * 588, 'p'));
  Request request = MakeRequest(id, 3);
  for (int i = 0; i < count; ++i) {
    RequestPicture picture;
    picture.count = 1024;
    picture.rows = picture.columns = 64;
    picture.begin = static_cast<int32_t>(request.prompt.size());
    picture.hash = {series, static_cast<uint8_t>(i)};
    picture.pixels = pixels;
    request.prompt.insert(request.prompt.end(), 1024, 7);
    request.pictures.push_back(std::move(picture));
  }
  request.prompt.push_back(8);
  return request;
}

size_t MemoryOf(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/statm");
  size_t all = 0, resident = 0;
  file >> all >> resident;
  return resident * static_cast<size_t>(sysconf(_SC_PAGESIZE));
}

// More than a frame holds, in sixteen choices: they travel once, and are there once.
TEST(EnginePicturesTest, PicturesOfARequestTravelOnceHoweverManyAndHoweverOften) {
  EventLog log;
  const auto engine = Start(StandIn(1), log);
  ASSERT_NE(engine, nullptr);
  const Request first = WithPictures(1, 30, 1);
  ASSERT_GT(first.pictures.size() * first.pictures[0].pixels.size(), kFramePayloadMax);
  const pid_t pid = PidOf(*engine);
  for (uint64_t id = 1; id <= 16; ++id) {
    Request request = first;
    request.id = RequestId{id};
    ASSERT_TRUE(engine->Submit(std::move(request)).ok()) << id;
  }
  for (uint64_t id = 1; id <= 16; ++id) {
    const Told told = log.WaitForEnd(id, 60);
    EXPECT_EQ(told.tokens, Expected(first)) << told.error;
  }
  EXPECT_LT(MemoryOf(pid), size_t{400} << 20);  // 1.1 GiB, if each had its own
  EXPECT_EQ(PidOf(*engine), pid);
}

// What the engine does not read waits in the door: no connection ends for it, nobody else waits.
TEST(EnginePicturesTest, AnEngineThatDoesNotReadIsNotDrownedInPictures) {
  EventLog log;
  RemoteEngineOptions options = Options();
  options.unsent_bytes_max = int64_t{400} << 20;
  auto started = RemoteEngine::Start(StandIn(1), options, log.sink(), nullptr);
  ASSERT_TRUE(started.ok()) << started.status().message();
  Engine& engine = *started.value();
  const pid_t pid = PidOf(engine);
  kill(pid, SIGSTOP);
  double longest = 0;  // that anybody waited
  std::atomic<bool> over = false;
  std::thread asks([&] {
    while (!over) {
      const auto start = steady_clock::now();
      (void)engine.health();
      (void)engine.stats();
      longest = std::max(longest, SecondsSince(start));
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
  });
  int taken = 0;
  Status refusal;
  for (uint64_t id = 1; id <= 10 && refusal.ok(); ++id) {
    refusal = engine.Submit(WithPictures(id, 28, static_cast<uint8_t>(id)));
    if (refusal.ok()) ++taken;
  }
  EXPECT_EQ(taken, 6);  // 64 MiB each: more than the 256 that once ended the connection
  EXPECT_EQ(refusal.code(), Code::kResourceExhausted);
  EXPECT_THAT(refusal.message(), ::testing::HasSubstr("MiB are on their way to the engine"));
  kill(pid, SIGCONT);
  for (int id = 1; id <= taken; ++id) {
    const Told told = log.WaitForEnd(static_cast<uint64_t>(id), 60);
    EXPECT_EQ(told.tokens.size(), 3u) << told.error;
  }
  EXPECT_TRUE(Eventually([&] { return engine.Submit(WithPictures(50, 28, 50)).ok(); }, 10));
  EXPECT_EQ(log.WaitForEnd(50, 60).tokens.size(), 3u);
  over = true;
  asks.join();
  EXPECT_EQ(PidOf(engine), pid);
  EXPECT_LT(longest, 0.5);
}

TEST(EnginePicturesTest, PicturesInUseAreBoundedAndThoseOfOneRequestAlwaysFit) {
  EventLog log;
  RemoteEngineOptions options = Options();
  options.picture_bytes_max = int64_t{5} << 20;
  options.picture_idle_bytes_max = int64_t{3} << 20;
  auto started = RemoteEngine::Start(StandIn(20), options, log.sink(), nullptr);
  ASSERT_TRUE(started.ok()) << started.status().message();
  Engine& engine = *started.value();
  Request large = WithPictures(1, 8, 1);
  large.stop.max_tokens = 10000;
  ASSERT_TRUE(engine.Submit(large).ok());
  const Status refusal = engine.Submit(WithPictures(2, 1, 2));
  EXPECT_EQ(refusal.code(), Code::kResourceExhausted);
  EXPECT_THAT(refusal.message(), ::testing::HasSubstr("pictures of 18 MiB are in use"));
  ASSERT_TRUE(engine.Submit(WithPictures(3, 8, 1)).ok());  // the same ones
  EXPECT_EQ(log.WaitForEnd(3, 30).tokens.size(), 3u);
  engine.Abort(RequestId{1});
  EXPECT_EQ(log.WaitForEnd(1, 30).finish, FinishReason::kAbort);
  // One of them is still there, the others come again.
  ASSERT_TRUE(engine.Submit(WithPictures(4, 8, 1)).ok());
  const Told told = log.WaitForEnd(4, 30);
  EXPECT_EQ(told.tokens.size(), 3u) << told.error;
}

}  // namespace
}  // namespace baltoro
