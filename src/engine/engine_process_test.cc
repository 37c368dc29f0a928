// Faults at the border between door and engine, with real processes.

#include "engine/engine_process.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <map>
#include <random>
#include <thread>

#include "base/child_process.h"
#include "engine/frame_connection.h"
#include "engine/remote_engine.h"
#include "engine/stand_in.h"
#include "engine/testing/event_log.h"
#include "engine/testing/process_engine.h"
#include "support/support.h"

namespace baltoro {
namespace {

using std::chrono::steady_clock;
using test::EventLog;
using test::Eventually;
using test::Expected;
using test::IsAlive;
using test::MakeRequest;
using test::Options;
using test::PidOf;
using test::SecondsSince;
using test::StandIn;
using test::Start;
using test::Told;

TEST(EngineProcessTest, ServesAcrossTheBorder) {
  EventLog log;
  const auto engine = Start(StandIn(0), log);
  ASSERT_NE(engine, nullptr);
  EXPECT_EQ(engine->info().model_type, "stand-in");
  for (uint64_t id = 1; id <= 50; ++id) {
    Request request = MakeRequest(id, 20);
    request.sampling.logprobs = 2;
    ASSERT_TRUE(engine->Submit(request).ok());
  }
  for (uint64_t id = 1; id <= 50; ++id) {
    const Told told = log.WaitForEnd(id);
    EXPECT_EQ(told.tokens, Expected(MakeRequest(id, 20)));
    EXPECT_EQ(told.logprobs.size(), 20u);
    EXPECT_EQ(told.finals, 1);
  }
  EXPECT_TRUE(Eventually([&] { return engine->stats().generation_tokens == 1000; }, 2));
  EXPECT_TRUE(engine->healthy());
}

TEST(EngineProcessTest, TheEngineKeepsNoFileOfTheDoor) {
  const int file = open("/etc/passwd", O_RDONLY | O_CLOEXEC);
  const int left_open = fcntl(file, F_DUPFD, 20);  // beyond the child's own, without O_CLOEXEC
  ASSERT_GE(left_open, 20);
  EventLog log;
  const auto engine = Start(StandIn(0), log);
  close(left_open);
  close(file);
  ASSERT_NE(engine, nullptr);

  std::vector<std::string> files;
  for (const auto& entry :
       std::filesystem::directory_iterator("/proc/" + std::to_string(PidOf(*engine)) + "/fd")) {
    files.push_back(std::filesystem::read_symlink(entry.path()).string());
  }

  EXPECT_GE(files.size(), 5u);
  EXPECT_THAT(files, testing::Not(testing::Contains("/etc/passwd")));
}

TEST(EngineProcessTest, AbortsCross) {
  EventLog log;
  const auto engine = Start(StandIn(5), log);
  ASSERT_NE(engine, nullptr);
  ASSERT_TRUE(engine->Submit(MakeRequest(1, 10000)).ok());
  (void)log.WaitForTokens(1, 2);
  engine->Abort(RequestId{1});
  EXPECT_EQ(log.WaitForEnd(1).finish, FinishReason::kAbort);
}

TEST(EngineProcessTest, WhatIsWrongIsRefusedAtOnceByTheDoor) {
  EventLog log;
  EngineConfig config = StandIn(20);
  config.max_num_seqs = 1;
  config.max_queued_requests = 2;
  const auto engine = Start(config, log);
  ASSERT_NE(engine, nullptr);
  Request bad = MakeRequest(1, 10);
  bad.prompt = {1 << 30};
  EXPECT_EQ(engine->Submit(bad).code(), Code::kInvalidArgument);

  ASSERT_TRUE(engine->Submit(MakeRequest(1, 10000)).ok());
  (void)log.WaitForTokens(1, 1);
  EXPECT_TRUE(engine->Submit(MakeRequest(2, 1)).ok());
  EXPECT_TRUE(engine->Submit(MakeRequest(3, 1)).ok());
  EXPECT_EQ(engine->Submit(MakeRequest(4, 1)).code(), Code::kResourceExhausted);
}

TEST(EngineProcessTest, AKilledEngineEndsItsStreamsAndComesBack) {
  EventLog log;
  const auto engine = Start(StandIn(5), log);
  ASSERT_NE(engine, nullptr);
  std::mt19937 random(1);
  uint64_t id = 0;
  for (int round = 0; round < 4; ++round) {
    const uint64_t first = id;
    for (int i = 0; i < 12; ++i) ASSERT_TRUE(engine->Submit(MakeRequest(id++, 10000)).ok());
    (void)log.WaitForTokens(first, 1);
    std::this_thread::sleep_for(std::chrono::milliseconds(random() % 40));
    const pid_t pid = PidOf(*engine);

    kill(pid, SIGKILL);
    const auto killed = steady_clock::now();
    for (uint64_t open = first; open < id; ++open) {
      const Told told = log.WaitForEnd(open, 2);
      EXPECT_EQ(told.finish, FinishReason::kLost);
      EXPECT_EQ(told.finals, 1);
      EXPECT_THAT(told.error, ::testing::StartsWith("the engine stopped"));
    }
    EXPECT_LT(SecondsSince(killed), 1.0);
    EXPECT_FALSE(engine->healthy());

    ASSERT_TRUE(Eventually([&] { return engine->healthy(); }, 15)) << "round " << round;
    EXPECT_NE(PidOf(*engine), pid);
    ASSERT_TRUE(engine->Submit(MakeRequest(++id, 5)).ok());
    EXPECT_EQ(log.WaitForEnd(id).tokens, Expected(MakeRequest(id, 5)));
    ++id;
    EXPECT_EQ(engine->stats().restarts, static_cast<uint64_t>(round + 1));
  }
}

TEST(EngineProcessTest, WhileItIsDownRequestsAreRefused) {
  EventLog log;
  const auto engine = Start(StandIn(5), log);
  ASSERT_NE(engine, nullptr);
  kill(PidOf(*engine), SIGKILL);
  ASSERT_TRUE(Eventually([&] { return !engine->healthy(); }, 2));
  // Either it is still down, or it is back already.
  const Status status = engine->Submit(MakeRequest(1, 1));
  EXPECT_TRUE(status.ok() || status.code() == Code::kUnavailable);
  if (status.ok()) {
    EXPECT_EQ(log.WaitForEnd(1).finals, 1);
  }
}

// Its trial step says that steps are long, but a process that does not run gives no sign of life.
TEST(EngineProcessTest, AStoppedEngineIsNotHealthyHoweverLongItsStepsAre) {
  EventLog log;
  const auto engine = Start(StandIn(/*step_ms=*/5000), log);
  ASSERT_NE(engine, nullptr);
  EXPECT_TRUE(engine->healthy());
  kill(PidOf(*engine), SIGSTOP);
  EXPECT_TRUE(Eventually([&] { return !engine->healthy(); }, 10));  // and not after three steps
  EXPECT_EQ(engine->health().trouble, EngineTrouble::kSilent);
  kill(PidOf(*engine), SIGCONT);
  EXPECT_TRUE(Eventually([&] { return engine->healthy(); }, 10));
}

TEST(EngineProcessTest, AnEngineThatStandsStillForTooLongIsReplaced) {
  EventLog log;
  RemoteEngineOptions options = Options();
  options.health.lost = 3;
  auto started = RemoteEngine::Start(StandIn(0), options, log.sink(), nullptr);
  ASSERT_TRUE(started.ok()) << started.status().message();
  const Engine& engine = *started.value();
  const pid_t pid = PidOf(engine);
  kill(pid, SIGSTOP);
  ASSERT_TRUE(started.value()->Submit(MakeRequest(1, 10)).ok());

  EXPECT_EQ(log.WaitForEnd(1, 20).finish, FinishReason::kLost);
  EXPECT_TRUE(Eventually([&] { return engine.healthy() && PidOf(engine) != pid; }, 20));
  EXPECT_FALSE(IsAlive(pid));
}

// The content of kFailed.
struct Failure {
  Status why;
  int32_t lost_node = -1;
};
void Encode(WireWriter& writer, const Failure& failure) {
  baltoro::Encode(writer, failure.why);
  writer.Put(failure.lost_node);
}

// An engine that is ready once, and then only while a file is there.
class FlakyEngine {
 public:
  explicit FlakyEngine(const std::string& name) : file_(::testing::TempDir() + name) {
    EngineInfo info;
    info.max_model_len = info.vocab_size = info.kv_cache_tokens = 4096;
    Write(file_ + ".ready", Message::kReady, info);
    Write(file_ + ".failed", Message::kFailed,
          Failure{Status(Code::kNotFound, "/secret/model: no such directory")});
    Allow(true);
  }
  void Allow(bool allow) {
    if (allow) {
      std::ofstream(file_) << "here";
    } else {
      unlink(file_.c_str());
    }
  }
  RemoteEngineOptions Options() const {
    RemoteEngineOptions options;
    options.command = {"/bin/sh", "-c",
                       "if [ -e " + file_ + " ]; then cat " + file_ + ".ready >&3; while [ -e " +
                           file_ + " ]; do sleep 0.02; done; else cat " + file_ +
                           ".failed >&3; fi"};
    options.backoff_first = options.backoff_max = 0.001;
    // It says that it is ready, and no more.
    options.health.silence = options.health.lost = 1e9;
    return options;
  }

 private:
  template <typename T>
  static void Write(const std::string& path, Message type, const T& value) {
    WireWriter writer;
    Encode(writer, value);
    std::ofstream(path) << EncodeFrame(static_cast<uint16_t>(type), writer.Take());
  }
  const std::string file_;
};

TEST(EngineProcessTest, AnEngineIsBackWhenTheCauseIsGoneHoweverOftenItFailed) {
  FlakyEngine flaky("flaky");
  EventLog log;
  const auto engine = RemoteEngine::Start(StandIn(0), flaky.Options(), log.sink(), nullptr);
  ASSERT_TRUE(engine.ok()) << engine.status().message();

  flaky.Allow(false);
  ASSERT_TRUE(Eventually([&] { return engine.value()->health().failed_starts > 15; }, 20));
  const EngineHealth health = engine.value()->health();
  EXPECT_EQ(health.trouble, EngineTrouble::kRefused);
  EXPECT_THAT(Describe(health.trouble), ::testing::Not(::testing::HasSubstr("/")));
  EXPECT_TRUE(engine.value()->end().ok());

  flaky.Allow(true);
  EXPECT_TRUE(Eventually([&] { return engine.value()->healthy(); }, 20));
  EXPECT_EQ(engine.value()->health().failed_starts, 0);
}

// Of four replicas that share experts on two nodes; the engine is told off, and comes back.
TEST(EngineProcessTest, TheNodeWhoseEndItWasIsToldUntilItIsBack) {
  const test::TempDir dir;
  const std::string here = dir.path() + "/here";
  const auto write = [&](const char* name, Message type, const auto& value) {
    WireWriter writer;
    Encode(writer, value);
    std::ofstream(dir.path() + name) << EncodeFrame(static_cast<uint16_t>(type), writer.Take());
  };
  EngineInfo info;
  info.max_model_len = info.vocab_size = info.kv_cache_tokens = 4096;
  info.replicas = 4;
  write("/ready", Message::kReady, info);
  write("/failed", Message::kFailed,
        Failure{Status(Code::kUnavailable, "node 1 (10.0.0.2) is gone"), 1});
  std::ofstream(here) << "yes";
  RemoteEngineOptions options;
  options.command = {"/bin/sh", "-c",
                     "cd " + dir.path() +
                         "; while [ ! -e here ]; do sleep 0.02; done; cat ready >&3; while [ -e "
                         "here ]; do sleep 0.02; done; cat failed >&3; sleep 1"};
  options.backoff_first = options.backoff_max = 0.001;
  options.health.silence = options.health.lost = 1e9;
  EngineConfig config = StandIn(0);
  config.nodes = 2;
  config.data_parallel_size = 4;
  config.enable_expert_parallel = true;
  EventLog log;
  const auto engine = RemoteEngine::Start(config, options, log.sink(), nullptr);
  ASSERT_TRUE(engine.ok()) << engine.status().message();
  EXPECT_EQ(engine.value()->health().lost_node, -1);

  unlink(here.c_str());
  ASSERT_TRUE(Eventually([&] { return !engine.value()->healthy(); }, 20));
  const EngineHealth health = engine.value()->health();
  EXPECT_EQ(health.trouble, EngineTrouble::kNoPeer);
  EXPECT_EQ(health.lost_node, 1);
  EXPECT_THAT(health.lost_replicas, ::testing::ElementsAre(2, 3));

  std::ofstream(here) << "yes";
  ASSERT_TRUE(Eventually([&] { return engine.value()->healthy(); }, 20));
  EXPECT_EQ(engine.value()->health().lost_node, -1);
}

TEST(EngineProcessTest, TheNextStartIsTold) {
  FlakyEngine flaky("waiting");
  RemoteEngineOptions options = flaky.Options();
  options.backoff_first = options.backoff_max = 1000;
  EventLog log;
  const auto engine = RemoteEngine::Start(StandIn(0), options, log.sink(), nullptr);
  ASSERT_TRUE(engine.ok()) << engine.status().message();
  flaky.Allow(false);
  ASSERT_TRUE(Eventually([&] { return engine.value()->health().next_start.has_value(); }, 20));
  const EngineHealth health = engine.value()->health();
  EXPECT_EQ(health.trouble, EngineTrouble::kEnded);
  EXPECT_GT(*health.next_start, 500);
  EXPECT_LE(*health.next_start, 1000);
}

TEST(EngineProcessTest, AnEngineThatIsAwayForTooLongIsGivenUpWithItsReason) {
  FlakyEngine flaky("lost");
  RemoteEngineOptions options = flaky.Options();
  options.give_up_after = 0.2;
  EventLog log;
  const auto engine = RemoteEngine::Start(StandIn(0), options, log.sink(), nullptr);
  ASSERT_TRUE(engine.ok()) << engine.status().message();
  flaky.Allow(false);
  ASSERT_TRUE(Eventually([&] { return !engine.value()->end().ok(); }, 20));
  EXPECT_THAT(engine.value()->end().message(), ::testing::HasSubstr("no engine has stayed"));
  EXPECT_FALSE(engine.value()->healthy());
}

TEST(EngineProcessTest, EndingTheDoorsEngineEndsTheProcess) {
  EventLog log;
  auto engine = Start(StandIn(5), log);
  ASSERT_NE(engine, nullptr);
  const pid_t pid = PidOf(*engine);
  ASSERT_TRUE(engine->Submit(MakeRequest(1, 10000)).ok());

  const auto start = steady_clock::now();
  engine.reset();

  EXPECT_LT(SecondsSince(start), 2.0);
  EXPECT_FALSE(IsAlive(pid));
  EXPECT_EQ(log.Get(1).finals, 1);
}

TEST(EngineProcessTest, ConstraintsCrossAndAKillEndsTheirRequests) {
  EventLog log;
  const auto engine = Start(StandIn(2), log);
  ASSERT_NE(engine, nullptr);
  EXPECT_TRUE(engine->info().constraints);
  Request request = MakeRequest(1, 20);
  request.constraint = "5 6 7";
  ASSERT_TRUE(engine->Submit(request).ok());
  EXPECT_EQ(log.WaitForEnd(1).tokens, (std::vector<TokenId>{5, 6, 7}));
  EXPECT_EQ(log.Get(1).starts, 1);
  request = MakeRequest(2, 20);
  request.constraint = "make-error 5";
  ASSERT_TRUE(engine->Submit(request).ok());
  EXPECT_THAT(log.WaitForEnd(2).error, ::testing::HasSubstr("makes no sense"));

  // Running, being prepared, and waiting to be.
  const char* const scripts[] = {"slow=5 loop 5 6", "make-slow=5000 5", "loop 5"};
  for (uint64_t id = 3; id <= 5; ++id) {
    request = MakeRequest(id, 10000);
    request.constraint = scripts[id - 3];
    ASSERT_TRUE(engine->Submit(request).ok());
    if (id == 3) (void)log.WaitForTokens(3, 2);
  }
  kill(PidOf(*engine), SIGKILL);
  for (uint64_t id = 3; id <= 5; ++id) {
    const Told told = log.WaitForEnd(id, 5);
    EXPECT_EQ(told.finish, FinishReason::kLost) << id;
    EXPECT_EQ(told.finals, 1);
  }
  ASSERT_TRUE(Eventually([&] { return engine->healthy(); }, 5));
  request = MakeRequest(6, 20);
  request.constraint = "5 6 7";
  ASSERT_TRUE(engine->Submit(request).ok());
  EXPECT_EQ(log.WaitForEnd(6).tokens, (std::vector<TokenId>{5, 6, 7}));
}

// Whatever many requests share, it is on its way once; what is too much is refused at the door.
TEST(EngineProcessTest, AConstraintTravelsOnceAndItsBoundIsThatOfTheQueue) {
  EventLog log;
  const auto engine = Start(StandIn(0), log);
  ASSERT_NE(engine, nullptr);
  const std::string padding(size_t{40} << 20, ' ');
  Request request = MakeRequest(1, 20);
  request.constraint = "make-slow=300 5 6" + padding;
  const auto start = steady_clock::now();
  for (uint64_t id = 1; id <= 200; ++id) {  // 8 GiB, if each brought its own
    request.id = RequestId{id};
    request.stop.max_tokens = 20;
    if (id > 2) engine->Abort(RequestId{id - 1});
    ASSERT_TRUE(engine->Submit(request).ok()) << id;
  }
  Request other = MakeRequest(300, 20);
  other.constraint = "5" + padding;
  const Status status = engine->Submit(other);
  EXPECT_EQ(status.code(), Code::kResourceExhausted);
  EXPECT_THAT(status.message(), ::testing::HasSubstr("output formats of 40 MiB"));
  other.constraint = padding + padding;
  EXPECT_EQ(engine->Submit(other).code(), Code::kInvalidArgument);

  EXPECT_EQ(log.WaitForEnd(200).tokens, (std::vector<TokenId>{5, 6}));
  EXPECT_EQ(log.WaitForEnd(1).tokens, (std::vector<TokenId>{5, 6}));
  EXPECT_LT(SecondsSince(start), 30.0);  // those in between were never made
  // Now nobody uses it, so there is room.
  ASSERT_TRUE(Eventually(
      [&] {
        other.constraint = "7 8" + padding;
        return engine->Submit(other).ok();
      },
      5));
  EXPECT_EQ(log.WaitForEnd(300).tokens, (std::vector<TokenId>{7, 8}));
}

TEST(EngineProcessTest, ADoorThatIsKilledLeavesNoProcess) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const pid_t door = fork();
  if (door == 0) {
    EventLog log;
    auto engine = RemoteEngine::Start(StandIn(5), Options(), log.sink(), nullptr);
    const pid_t pid = engine.ok() ? PidOf(*engine.value()) : -1;
    (void)engine.value()->Submit(MakeRequest(1, 100000));
    (void)log.WaitForTokens(1, 1);
    if (write(ends[1], &pid, sizeof(pid)) != sizeof(pid)) _exit(1);
    for (;;) pause();
  }
  pid_t engine = -1;
  ASSERT_EQ(read(ends[0], &engine, sizeof(engine)), static_cast<ssize_t>(sizeof(engine)));
  ASSERT_TRUE(IsAlive(engine));

  kill(door, SIGKILL);
  waitpid(door, nullptr, 0);

  EXPECT_TRUE(Eventually([&] { return !IsAlive(engine); }, 2));
}

TEST(EngineProcessTest, AnEngineThatCannotStartSaysWhy) {
  EventLog log;
  EngineConfig config;
  config.model_dir = "/nonexistent/model";
  const auto engine = RemoteEngine::Start(config, Options(), log.sink(), nullptr);
  ASSERT_FALSE(engine.ok());
  EXPECT_THAT(engine.status().message(), ::testing::HasSubstr("/nonexistent/model"));
}

// It ends at once, wherever it is, and the door says why.
TEST(EngineProcessTest, TheLastWordsOfAnEngineThatEndsWhileItLoadsAreTold) {
  const std::pair<const char*, const char*> planted[] = {
      {"planted-memory", "exit code 1: out of memory: scratch memory of a step.*: cannot allocate"},
      {"planted-check", "signal 6 .*: check failed: tokenizer_dir != .*engine_child.cc"}};
  for (const auto& [what, words] : planted) {
    EventLog log;
    EngineConfig config = StandIn(0);
    config.tokenizer_dir = what;
    const auto engine = RemoteEngine::Start(config, Options(), log.sink(), nullptr);
    ASSERT_FALSE(engine.ok());
    EXPECT_THAT(engine.status().message(), ::testing::ContainsRegex(words));
    EXPECT_THAT(engine.status().message(), ::testing::Not(::testing::HasSubstr("\n")));
  }
}

TEST(EngineProcessTest, TheLastWordsOfAnEngineThatIsGivenUpAreTold) {
  const test::TempDir dir;
  EngineInfo info;
  info.max_model_len = info.vocab_size = info.kv_cache_tokens = 4096;
  WireWriter writer;
  Encode(writer, info);
  std::ofstream(dir.path() + "/ready")
      << EncodeFrame(static_cast<uint16_t>(Message::kReady), writer.Take());
  RemoteEngineOptions options;
  options.command = {
      "/bin/sh", "-c",
      "cd " + dir.path() + " && mv ready was && cat was >&3 || echo 'cudaMalloc of x failed' >&4"};
  options.backoff_first = options.backoff_max = 0.001;
  options.give_up_after = 0.01;
  EventLog log;
  const auto engine = RemoteEngine::Start(StandIn(0), options, log.sink(), nullptr);
  ASSERT_TRUE(engine.ok()) << engine.status().message();
  ASSERT_TRUE(Eventually([&] { return !engine.value()->end().ok(); }, 20));
  EXPECT_THAT(engine.value()->end().message(),
              ::testing::HasSubstr("the last said: cudaMalloc of x failed"));
}

TEST(EngineProcessTest, AProgramThatIsNoEngineIsReported) {
  EventLog log;
  RemoteEngineOptions options;
  options.command = {"/bin/false"};
  EXPECT_THAT(RemoteEngine::Start({}, options, log.sink(), nullptr).status().message(),
              ::testing::HasSubstr("exit code 1"));
  options.command = {"/nonexistent/program"};
  EXPECT_FALSE(RemoteEngine::Start({}, options, log.sink(), nullptr).ok());
}

// Of a node whose head ends again and again before it was ever ready: what its last Status says,
// and how many processes there were. `first` and `each` are commands that each start takes its time
// with.
struct Vain {
  std::string why;
  int64_t starts = 0;
};
Vain FollowInVain(const std::string& first, const std::string& each, Seconds give_up_after) {
  const test::TempDir dir;
  const std::string frames = dir.path() + "/failed", starts = dir.path() + "/starts";
  WireWriter writer;
  Encode(writer, Failure{Status(Code::kUnavailable, "the head is gone")});
  std::ofstream(frames) << EncodeFrame(static_cast<uint16_t>(Message::kFailed), writer.Take());
  EventLog log;
  EngineConfig config;
  config.nodes = 2;
  config.node_rank = 1;
  RemoteEngineOptions options;
  options.command = {"/bin/sh", "-c",
                     "[ -e " + starts + " ] || " + first + "; echo >> " + starts + "; " + each +
                         "; cat " + frames + " >&3; cat <&3 >/dev/null"};
  options.backoff_first = options.backoff_max = 0.001;
  options.give_up_after = give_up_after;
  const auto engine = RemoteEngine::Start(config, options, log.sink(), nullptr);
  std::ifstream lines(starts);
  return {.why = engine.status().message(),
          .starts = std::count(std::istreambuf_iterator<char>(lines), {}, '\n')};
}

TEST(EngineProcessTest, AFollowerThatNeverIsReadyEndsWithTheReason) {
  const Vain vain = FollowInVain("true", "true", 0.01);
  EXPECT_THAT(vain.why, ::testing::HasSubstr("no engine has stayed"));
  EXPECT_THAT(vain.why, ::testing::HasSubstr("the head is gone"));
}

// A start of a large model takes long, and that of a node waits for all others.
TEST(EngineProcessTest, TheTimeOfAStartIsNoneWithoutAnEngine) {
  EXPECT_GT(FollowInVain(/*first=*/"sleep 1.2", "true", /*give_up_after=*/1).starts, 5);
}

TEST(EngineProcessTest, SeveralStartsAreTriedHoweverLongTheyTake) {
  EXPECT_EQ(FollowInVain("true", /*each=*/"sleep 0.2", /*give_up_after=*/0.01).starts, 3);
}

// Its loop has ended, and it is about to leave: nobody waits for that to be told so.
TEST(EngineProcessTest, AnEngineThatSaysItIsLostGetsNoMoreRequests) {
  const std::string ready = ::testing::TempDir() + "ready", lost = ::testing::TempDir() + "lost";
  EngineInfo info;
  info.max_model_len = info.vocab_size = info.kv_cache_tokens = 4096;
  WireWriter writer;
  Encode(writer, info);
  std::ofstream(ready) << EncodeFrame(static_cast<uint16_t>(Message::kReady), writer.Take());
  std::vector<TokenEvent> events(1);
  events[0].request = RequestId{1};
  events[0].finish = FinishReason::kLost;
  events[0].error = kEngineLost;
  Encode(writer, events);
  std::ofstream(lost) << EncodeFrame(static_cast<uint16_t>(Message::kStep), writer.Take());
  const EngineConfig config = StandIn(0);
  Encode(writer, config);
  const size_t first =
      EncodeFrame(static_cast<uint16_t>(Message::kConfig), writer.Take()).size() + 1;
  RemoteEngineOptions options;
  options.command = {"/bin/sh", "-c",
                     "cat " + ready + " >&3; head -c " + std::to_string(first) +
                         " <&3 >/dev/null; cat " + lost + " >&3; cat <&3 >/dev/null"};
  EventLog log;
  auto engine = RemoteEngine::Start(config, options, log.sink(), nullptr);
  ASSERT_TRUE(engine.ok()) << engine.status().message();
  EXPECT_TRUE(engine.value()->healthy());
  ASSERT_TRUE(engine.value()->Submit(MakeRequest(1, 5)).ok());

  EXPECT_EQ(log.WaitForEnd(1).finish, FinishReason::kLost);

  EXPECT_TRUE(IsAlive(PidOf(*engine.value())));
  EXPECT_FALSE(engine.value()->healthy());
  EXPECT_EQ(engine.value()->Submit(MakeRequest(2, 5)).code(), Code::kUnavailable);
}

template <typename T>
std::string Encoded(const T& value) {
  WireWriter writer;
  Encode(writer, value);
  return writer.Take();
}

// The engine may find its queue full where the door saw room: that, too, is told as it is.
TEST(EngineProcessTest, WhatTheEngineItselfRefusesKeepsItsKind) {
  const auto child = StartChild({BT_ENGINE_CHILD, "engine", "--fd", "3"});
  ASSERT_TRUE(child.ok());
  EngineConfig config = StandIn(20);
  config.max_num_seqs = 1;
  config.max_queued_requests = 1;
  std::map<RequestId, TokenEvent> ends;
  {
    FrameConnection door(child.value().fd);
    door.Send(static_cast<uint16_t>(Message::kConfig), Encoded(config));
    const auto submit = [&](const Request& request) {
      WireWriter names;
      names.Put(uint64_t{0});
      names.PutArray<uint64_t>({});
      door.Send(static_cast<uint16_t>(Message::kSubmit), names.Take() + Encoded(request));
    };
    (void)door.ReadFrames([&](const Frame& frame) -> Status {
      if (frame.type == static_cast<uint16_t>(Message::kReady)) {
        Request bad = MakeRequest(9, 5);
        bad.prompt = {1 << 30};
        submit(bad);
        for (uint64_t id = 1; id <= 4; ++id) submit(MakeRequest(id, 5));
      }
      if (frame.type != static_cast<uint16_t>(Message::kStep)) return {};
      WireReader reader(frame.payload);
      for (TokenEvent& event : DecodeEvents(reader)) {
        if (event.finish != FinishReason::kNone) ends[event.request] = std::move(event);
      }
      return ends.size() < 5 ? Status() : Status(Code::kUnavailable, "all have ended");
    });
  }
  (void)ReapChild(child.value().pid, 5);
  ASSERT_EQ(ends.size(), 5u);
  EXPECT_EQ(ends[RequestId{9}].error_code, Code::kInvalidArgument);
  int full = 0;
  for (uint64_t id = 1; id <= 4; ++id) {
    const TokenEvent& end = ends[RequestId{id}];
    if (end.finish == FinishReason::kLength) continue;
    EXPECT_EQ(end.finish, FinishReason::kError);
    EXPECT_EQ(end.error_code, Code::kResourceExhausted) << end.error;
    ++full;
  }
  EXPECT_GE(full, 2);
}

// An engine ends on the first frame that makes no sense.
TEST(EngineProcessTest, AMalformedFrameEndsTheConnection) {
  for (const std::string& bytes :
       {std::string("GET / HTTP/1.1\r\n\r\n"), EncodeFrame(99, ""), EncodeFrame(2, "short"),
        EncodeFrame(4, std::string(16, '\0'))}) {
    auto child = StartChild({BT_ENGINE_CHILD, "engine", "--fd", "3"});
    ASSERT_TRUE(child.ok());
    ASSERT_EQ(write(child.value().fd, bytes.data(), bytes.size()),
              static_cast<ssize_t>(bytes.size()));
    EXPECT_EQ(ReapChild(child.value().pid, 5), "exit code 1");
    close(child.value().fd);
  }
}

TEST(FrameConnectionTest, ASlowReaderDoesNotStopTheSender) {
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
  FrameConnection sender(ends[0]);
  FrameConnection reader(ends[1]);
  const std::string payload(1 << 20, 'x');
  const auto start = steady_clock::now();
  for (int i = 0; i < 20; ++i) ASSERT_TRUE(sender.Send(static_cast<uint16_t>(i), payload));
  EXPECT_LT(SecondsSince(start), 2.0);

  int got = 0;
  const Status status = reader.ReadFrames([&](const Frame& frame) {
    EXPECT_EQ(frame.type, got);
    EXPECT_EQ(frame.payload, payload);
    return ++got == 20 ? Status(Code::kNotFound, "enough") : Status();
  });
  EXPECT_EQ(status.message(), "enough");
  EXPECT_EQ(got, 20);
}

}  // namespace
}  // namespace baltoro
