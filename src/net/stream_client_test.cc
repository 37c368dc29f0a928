#include "net/stream_client.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "net/loop_timer.h"
#include "net/raw_client.h"

namespace baltoro {
namespace {

using ::testing::HasSubstr;

// What one exchange came to; counts down to the loop's stop.
struct Seen final : StreamClient::Sink {
  EventLoop* loop = nullptr;
  int* left = nullptr;
  std::function<void()> then = {};
  std::string body;
  int pieces = 0;
  Result<HttpResponse> answer = Status(Code::kInternal, "not ended");
  void OnBody(std::string_view bytes, Seconds at) override {
    EXPECT_LE(at, loop->Now());
    body += bytes;
    ++pieces;
  }
  void OnEnd(const Result<HttpResponse>& ended, Seconds) override {
    answer = ended;
    if (then) then();
    if (--*left == 0) loop->Stop();
  }
};

struct Rig {
  explicit Rig(int port) {
    auto created = StreamClient::Create(loop.get(), {.port = port, .idle_timeout = 0.2});
    if (created.ok()) client = std::move(created).value();
  }
  // Sends to all of `targets` at once.
  std::map<std::string, Seen> Run(const std::vector<std::string>& targets) {
    std::map<std::string, Seen> seen;
    int left = static_cast<int>(targets.size());
    for (const std::string& target : targets) {
      seen[target].loop = loop.get();
      seen[target].left = &left;
      client->Send({.method = "POST", .target = target, .body = "{}"}, &seen[target]);
    }
    loop->Run();
    return seen;
  }
  std::unique_ptr<EventLoop> loop = EventLoop::Create().value();
  std::unique_ptr<StreamClient> client;
};

void Answer(const HttpRequest& request, Responder responder) {
  if (request.target == "/refuse") return responder.Send({.status = 429, .body = "busy"});
  responder.StartStream(200);
  responder.Write("data: " + request.target + "\n\n");
  if (request.target == "/break") return responder.Abort();
  responder.Write("data: [DONE]\n\n");
  responder.End();
}

TEST(StreamClientTest, ManyStreamsAtOnceEachGetTheirOwn) {
  const auto server = test::StartServer({}, Answer);
  Rig rig(server->port());
  ASSERT_NE(rig.client, nullptr);
  std::vector<std::string> targets;
  for (int i = 0; i < 300; ++i) targets.push_back("/" + std::to_string(i));
  const auto seen = rig.Run(targets);
  for (const auto& [target, one] : seen) {
    ASSERT_TRUE(one.answer.ok()) << one.answer.status().message();
    EXPECT_EQ(one.answer.value().status, 200);
    EXPECT_EQ(one.body, "data: " + target + "\n\ndata: [DONE]\n\n");
  }
  EXPECT_EQ(rig.client->connections(), 300U);
}

TEST(StreamClientTest, OtherAnswersAndLostConnectionsAreTold) {
  const auto server = test::StartServer({}, Answer);
  Rig rig(server->port());
  const auto seen = rig.Run({"/refuse", "/break", "/fine"});
  EXPECT_EQ(seen.at("/refuse").answer.value().status, 429);
  EXPECT_EQ(seen.at("/refuse").answer.value().body, "busy");
  EXPECT_EQ(seen.at("/refuse").pieces, 0);
  // A reset or an end, as the kernel tells it.
  EXPECT_EQ(seen.at("/break").answer.status().code(), Code::kUnavailable);
  EXPECT_TRUE(seen.at("/fine").answer.ok());
}

TEST(StreamClientTest, ConnectionsAreKeptAndStaleOnesReplaced) {
  const auto server = test::StartServer({.keep_alive_idle = 0.1}, Answer);
  Rig rig(server->port());
  int left = 3;
  Seen first, second, third;
  for (Seen* each : {&first, &second, &third}) each->loop = rig.loop.get(), each->left = &left;
  const auto send = [&](Seen& seen) { rig.client->Send({.target = "/a"}, &seen); };
  first.then = [&] { send(second); };
  second.then = [&] {
    EXPECT_EQ(rig.client->connections(), 1U);
    // Closed by the server while the loop stands still: it is not known to be when it is used.
    EXPECT_TRUE(test::Eventually([&] { return server->open_connections() == 0; }));
    send(third);
  };
  send(first);
  rig.loop->Run();
  EXPECT_TRUE(third.answer.ok()) << third.answer.status().message();
}

TEST(StreamClientTest, AnExchangeThatTakesTooLongEnds) {
  std::vector<Responder> kept;
  const auto server = test::StartServer({}, [&](HttpRequest, Responder responder) {
    kept.push_back(std::move(responder));  // never answers
  });
  Rig rig(server->port());
  rig.loop->SetTick(0.02);
  rig.loop->set_on_tick([&] { rig.client->Expire(rig.loop->Now()); });
  EXPECT_THAT(rig.Run({"/hang"}).at("/hang").answer.status().message(), HasSubstr("in time"));
}

TEST(StreamClientTest, NobodyThereIsAnError) {
  auto server = test::StartServer({}, Answer);
  const int port = server->port();
  Rig rig(port);
  server = nullptr;
  EXPECT_FALSE(rig.Run({"/x"}).at("/x").answer.ok());
  EXPECT_EQ(Rig(port).client, nullptr);
}

TEST(LoopTimerTest, CallsOnceAtItsTimeAndAtOnceForThePast) {
  const auto loop = EventLoop::Create().value();
  int calls = 0;
  Seconds wanted = loop->Now() + 0.02;
  LoopTimer timer([&] {
    EXPECT_GE(loop->Now(), wanted - 1e-6);
    if (++calls == 3) return loop->Stop();
    wanted = calls == 1 ? loop->Now() - 1 : loop->Now() + 0.01;
    timer.Set(wanted);
  });
  ASSERT_TRUE(timer.Join(loop.get()).ok());
  timer.Set(wanted);
  loop->Run();
  EXPECT_EQ(calls, 3);
}

}  // namespace
}  // namespace baltoro
