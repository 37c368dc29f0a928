#include "comm/rendezvous.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <cstring>
#include <filesystem>
#include <optional>
#include <thread>

#include "base/wire.h"
#include "comm/handshake.h"
#include "comm/hello.h"
#include "comm/test_ranks.h"

namespace baltoro {
namespace {

using test::Group;
using test::OptionsOf;
using ::testing::HasSubstr;
using ::testing::Not;

// Starts the ranks with these options at once; what each said.
std::vector<Status> JoinAll(const std::vector<WorldOptions>& options) {
  std::vector<Status> results(options.size());
  std::vector<std::thread> threads;
  for (size_t i = 0; i < options.size(); ++i) {
    threads.emplace_back([&, i] {
      Result<std::unique_ptr<Link>> link = JoinWorld(options[i]);
      results[i] = link.status();
      // Nobody leaves while others are on their way in.
      if (link.ok())
        results[i] = Group(link.value().get(), "all", test::AllOf(*link.value()))->Barrier();
    });
  }
  for (std::thread& thread : threads) thread.join();
  return results;
}

class RendezvousTest : public ::testing::Test {
 protected:
  RankAddress Path() const { return {.path = folder_.path() + "/world"}; }
  std::vector<WorldOptions> World(int32_t ranks, Seconds join_timeout = 20) const {
    std::vector<WorldOptions> options;
    for (int32_t rank = 0; rank < ranks; ++rank) {
      options.push_back(OptionsOf(Path(), rank, ranks));
      options.back().join_timeout = join_timeout;
    }
    return options;
  }

  const test::TempDir folder_;
};

TEST_F(RendezvousTest, RanksMeetAtAPathAndLeaveNoFile) {
  for (const Status& got : JoinAll(World(4))) BT_EXPECT_OK(got);
  EXPECT_TRUE(std::filesystem::is_empty(folder_.path()));
}

TEST_F(RendezvousTest, RanksMeetOverTcp) {
  for (const char* host : {"127.0.0.1", "localhost"}) {
    std::vector<WorldOptions> world = World(4);
    const int port = test::FreePort();
    for (WorldOptions& options : world) options.meeting = {.host = host, .port = port};
    for (const Status& got : JoinAll(world)) BT_EXPECT_OK(got);
  }
}

TEST_F(RendezvousTest, AWorldOfOneNeedsNobody) {
  BT_EXPECT_OK(JoinAll(World(1))[0]);
}

TEST_F(RendezvousTest, MissingRanksAreNamedOnAllThatCame) {
  std::vector<WorldOptions> world = World(5, /*join_timeout=*/0.7);
  world.erase(world.begin() + 3);
  world.erase(world.begin() + 1);
  for (const Status& got : JoinAll(world)) {
    EXPECT_EQ(got.code(), Code::kUnavailable);
    EXPECT_THAT(got.message(), HasSubstr("rank 1, 3 of 5"));
  }
}

TEST_F(RendezvousTest, AMissingFirstRankIsNamed) {
  std::vector<WorldOptions> world = World(2, /*join_timeout=*/0.3);
  world.erase(world.begin());
  EXPECT_THAT(JoinAll(world)[0].message(), HasSubstr("rank 0 could not be reached within 0.3 s"));
}

TEST_F(RendezvousTest, AWrongKeyDoesNotGetIn) {
  std::vector<WorldOptions> world = World(3, /*join_timeout=*/0.7);
  world[2].cluster_key = "another-key-for-tests";
  const std::vector<Status> got = JoinAll(world);
  EXPECT_EQ(got[2].code(), Code::kInvalidArgument);
  EXPECT_THAT(got[2].message(), HasSubstr("has another cluster key"));
  EXPECT_THAT(got[0].message(),
              ::testing::AllOf(HasSubstr("rank 2 of 3"), HasSubstr("has another cluster key")));
  EXPECT_THAT(got[1].message(), HasSubstr("rank 2 of 3"));
  for (const Status& status : got) EXPECT_THAT(status.message(), Not(HasSubstr("-key-for-tests")));
}

TEST_F(RendezvousTest, ADifferenceIsNamedWithBothValues) {
  std::vector<WorldOptions> world = World(3);
  for (WorldOptions& options : world) {
    options.fingerprint = {{"version", "0.1.0"}, {"model", "aaaa"}, {"--block-size", "64"}};
  }
  world[1].fingerprint = {{"model", "bb\nbb"}, {"version", "0.1.0"}, {"--seed", "1"}};
  const std::vector<Status> got = JoinAll(world);
  for (const int rank : {0, 1}) {
    EXPECT_EQ(got[rank].code(), Code::kInvalidArgument);
    EXPECT_THAT(got[rank].message(),
                HasSubstr("model is \"bb?bb\" on rank 1 and \"aaaa\" on rank 0"));
    EXPECT_THAT(got[rank].message(), HasSubstr("--block-size is not set on rank 1 and \"64\""));
    EXPECT_THAT(got[rank].message(), HasSubstr("--seed is \"1\" on rank 1 and not set on rank 0"));
    EXPECT_THAT(got[rank].message(), Not(HasSubstr("version")));
  }
  EXPECT_FALSE(got[2].ok());
}

TEST_F(RendezvousTest, AnotherWorldSizeIsNamed) {
  std::vector<WorldOptions> world = World(2);
  world[1].ranks = 4;
  for (const Status& got : JoinAll(world)) {
    EXPECT_THAT(got.message(), HasSubstr("rank 1 was started for 4 ranks, rank 0 for 2"));
  }
}

TEST_F(RendezvousTest, ASecondRankOfTheSameNumberIsRefusedAndTheFirstGoesOn) {
  std::vector<WorldOptions> world = World(3, /*join_timeout=*/1);
  world[2].rank = 1;
  const int port = test::FreePort();
  for (WorldOptions& options : world) options.meeting = {.host = "127.0.0.1", .port = port};
  const std::vector<Status> got = JoinAll(world);
  EXPECT_THAT(got[0].message(), HasSubstr("rank 2 of 3"));
  const size_t second = got[1].code() == Code::kInvalidArgument ? 1 : 2;
  EXPECT_THAT(got[second].message(), HasSubstr("there is a rank 1 already"));
  EXPECT_THAT(got[3 - second].message(), HasSubstr("rank 2 of 3"));
}

TEST_F(RendezvousTest, StrangersDelayNobody) {
  const std::vector<WorldOptions> world = World(3);
  std::vector<Status> got;
  std::thread ranks([&] { got = JoinAll({world[0], world[1]}); });
  std::vector<RankSocket> strangers;
  const Seconds start = MonotonicClock().Now();
  while (strangers.size() < 9 && MonotonicClock().Now() < start + 10) {
    Result<RankSocket> socket = ConnectTo(Path(), MonotonicClock().Now() + 1);
    if (!socket.ok()) continue;
    const std::string noise(strangers.size() % 3 * 40, 'x');  // nothing, too little, something else
    BT_EXPECT_OK(WriteAll(socket.value().get(), BytesOf(noise), MonotonicClock().Now() + 1));
    strangers.push_back(std::move(socket.value()));
  }
  const Seconds begin = MonotonicClock().Now();
  BT_EXPECT_OK(JoinAll({world[2]})[0]);
  EXPECT_LT(MonotonicClock().Now() - begin, 3);  // a silent stranger is kept for 5 s
  ranks.join();
  for (const Status& status : got) BT_EXPECT_OK(status);
}

// At once: whoever started it again does not know whether rank 0 has noticed.
TEST_F(RendezvousTest, ARankThatGoesAwayMayComeAgain) {
  const std::vector<WorldOptions> world = World(3);
  std::vector<Status> got;
  std::thread first([&] { got = JoinAll({world[0]}); });
  {  // rank 1 as far as its hello, and gone
    Result<RankSocket> socket = Status(Code::kUnavailable, "");
    while (!socket.ok()) socket = ConnectTo(Path(), MonotonicClock().Now() + 1);
    const Seconds deadline = MonotonicClock().Now() + 10;
    Result<SealedSocket> sealed = SealedSocket::Open(std::move(socket.value()), test::kTestKey,
                                                     SealedSocket::Side::kConnected, deadline);
    ASSERT_TRUE(sealed.ok());
    WireWriter hello;
    for (const uint32_t value : {1u, 1u, 3u}) hello.Put(value);
    for (const char* text : {"", "/nowhere", ""}) hello.PutBytes(text);
    for (const uint32_t value : {0u, 0u}) hello.Put(value);
    BT_EXPECT_OK(sealed.value().Send(hello.bytes(), deadline));
    const Result<std::string> news = sealed.value().Receive(deadline);
    ASSERT_TRUE(news.ok());
    EXPECT_THAT(news.value(), HasSubstr("rank 2 of 3"));
  }
  for (const Status& status : JoinAll({world[1], world[2]})) BT_EXPECT_OK(status);
  first.join();
  BT_EXPECT_OK(got[0]);
}

TEST_F(RendezvousTest, WhatCannotWorkIsRefusedAtOnce) {
  const auto why = [&](auto change) {
    WorldOptions options = World(2)[0];
    change(&options);
    const Result<std::unique_ptr<Link>> link = JoinWorld(options);
    EXPECT_EQ(link.status().code(), Code::kInvalidArgument);
    return link.status().message();
  };
  EXPECT_THAT(why([](WorldOptions* o) { o->rank = 2; }), HasSubstr("rank 2 of 2"));
  EXPECT_THAT(why([](WorldOptions* o) { o->cluster_key = "short"; }), HasSubstr("5 bytes"));
  EXPECT_THAT(why([](WorldOptions* o) { o->stall_timeout = 0.1; }), HasSubstr("silent"));
  EXPECT_THAT(why([](WorldOptions* o) { o->fingerprint.resize(65); }), HasSubstr("64 entries"));
  EXPECT_THAT(why([](WorldOptions* o) { o->meeting = {.host = "0.0.0.0", .port = 1}; }),
              HasSubstr("no address for ranks"));
  EXPECT_THAT(why([](WorldOptions* o) { o->meeting.path.resize(200, 'x'); }), HasSubstr("long"));
}

// One end of a connection does what it likes, the other is ours.
class HandshakeTest : public ::testing::Test {
 protected:
  HandshakeTest() {
    int fds[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
    ours_ = RankSocket(fds[0]);
    theirs_ = RankSocket(fds[1]);
  }
  Result<SealedSocket> Open(RankSocket socket, SealedSocket::Side side) {
    return SealedSocket::Open(std::move(socket), test::kTestKey, side, MonotonicClock().Now() + 2);
  }

  RankSocket ours_, theirs_;
};

TEST_F(HandshakeTest, AnotherVersionOfTheProtocolIsNamed) {
  std::string greeting(48, '\0');
  std::memcpy(greeting.data(), "BTORANK\n\7", 9);
  BT_EXPECT_OK(WriteAll(theirs_.get(), BytesOf(greeting), MonotonicClock().Now() + 1));
  EXPECT_EQ(Open(std::move(ours_), SealedSocket::Side::kAccepted).status().message(),
            "the peer speaks version 7 of the rank protocol, we 1");
}

TEST_F(HandshakeTest, AnEchoIsNoProof) {
  std::thread echo([&] {
    std::byte bytes[80];  // greeting and proof
    const Seconds deadline = MonotonicClock().Now() + 2;
    const std::span<std::byte> greeting(bytes, 48), proof(bytes + 48, 32);
    for (const std::span<std::byte> part : {greeting, proof}) {
      BT_EXPECT_OK(ReadAll(theirs_.get(), part, deadline));
      BT_EXPECT_OK(WriteAll(theirs_.get(), part, deadline));
    }
  });
  EXPECT_EQ(Open(std::move(ours_), SealedSocket::Side::kAccepted).status().message(),
            "the peer has another cluster key");
  echo.join();
}

TEST_F(HandshakeTest, DamagedFramesAreSeen) {
  std::optional<SealedSocket> connected, accepted;
  std::thread other([&] {
    Result<SealedSocket> got = Open(std::move(theirs_), SealedSocket::Side::kConnected);
    if (got.ok()) connected.emplace(std::move(got.value()));
  });
  Result<SealedSocket> got = Open(std::move(ours_), SealedSocket::Side::kAccepted);
  other.join();
  ASSERT_TRUE(got.ok() && connected.has_value());
  const Seconds deadline = MonotonicClock().Now() + 2;
  BT_EXPECT_OK(connected->Send("one", deadline));
  const Result<std::string> frame = got.value().Receive(deadline);
  ASSERT_TRUE(frame.ok());
  EXPECT_EQ(frame.value(), "one");
  // A frame of the right form by somebody without the key.
  const std::string forged = std::string("\3\0\0\0two", 7) + std::string(32, 's');
  BT_EXPECT_OK(WriteAll(connected->fd(), BytesOf(forged), deadline));
  EXPECT_EQ(got.value().Receive(deadline).status().message(),
            "a frame of the handshake is damaged");
  // A length beyond all bounds is refused before anything is allocated.
  BT_EXPECT_OK(WriteAll(connected->fd(), BytesOf("\xff\xff\xff\xff"), deadline));
  EXPECT_THAT(got.value().Receive(deadline).status().message(), HasSubstr("4294967295 bytes"));
}

TEST(WireTest, TruncatedAndLongTextsAreRefused) {
  WireWriter out;
  out.Put<uint32_t>(0x01020304);
  out.PutBytes("hello");
  WireReader whole(out.bytes());
  EXPECT_EQ(whole.Get<uint32_t>(), 0x01020304u);
  EXPECT_EQ(whole.GetBytes(5), "hello");
  EXPECT_TRUE(whole.AtEnd());
  for (size_t bytes = 0; bytes < out.bytes().size(); ++bytes) {
    WireReader part(std::string_view(out.bytes()).substr(0, bytes));
    part.Get<uint32_t>();
    EXPECT_EQ(part.GetBytes(5), "");
    EXPECT_FALSE(part.ok()) << bytes;
  }
  WireReader strict(out.bytes());
  strict.Get<uint32_t>();
  EXPECT_EQ(strict.GetBytes(4), "");
  EXPECT_FALSE(strict.ok());
}

Hello SomeHello() {
  return {.purpose = Purpose::kJoin,
          .rank = 2,
          .ranks = 4,
          .session = "0123456789abcdef",
          .address = {.host = "192.0.2.1", .port = 4711},
          .fingerprint = {{"version", "0.1.0"}, {"model", "aaaa"}}};
}

TEST(HelloTest, ComesBackFromItsBytes) {
  const std::optional<Hello> got = Hello::FromWire(SomeHello().ToWire());
  ASSERT_TRUE(got.has_value());
  EXPECT_EQ(got->rank, 2);
  EXPECT_EQ(got->session, "0123456789abcdef");
  EXPECT_EQ(got->address.Text(), "192.0.2.1:4711");
  EXPECT_EQ(Difference(SomeHello(), *got, "rank"), "");
}

TEST(HelloTest, DamagedBytesGiveNothingOrWhatIsWithinTheLimits) {
  const std::string whole = SomeHello().ToWire();
  for (size_t bytes = 0; bytes < whole.size(); ++bytes) {
    EXPECT_FALSE(Hello::FromWire(whole.substr(0, bytes)).has_value()) << bytes;
  }
  EXPECT_FALSE(Hello::FromWire(whole + "x").has_value());
  for (size_t at = 0; at < whole.size(); ++at) {
    for (int value = 0; value < 256; ++value) {
      std::string damaged = whole;
      damaged[at] = static_cast<char>(value);
      const std::optional<Hello> got = Hello::FromWire(damaged);
      if (!got.has_value()) continue;
      ASSERT_LE(got->ranks, static_cast<int32_t>(kHelloRanksMax));
      ASSERT_GE(got->rank, 0);
      ASSERT_LT(got->rank, got->ranks);
      ASSERT_LE(got->address.port, 65536);
    }
  }
}

TEST(HelloTest, ManyDifferencesAreNamedInPart) {
  Hello peer = SomeHello();
  for (int i = 0; i < 6; ++i) peer.fingerprint.push_back({"flag" + std::to_string(i), "1"});
  const std::string got = Difference(SomeHello(), peer, "node");
  EXPECT_THAT(got, HasSubstr("flag3 is \"1\" on node 2"));
  EXPECT_THAT(got, Not(HasSubstr("flag4")));
  EXPECT_THAT(got, HasSubstr("and 2 more"));
}

}  // namespace
}  // namespace baltoro
