#include "net/http_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <deque>
#include <mutex>
#include <random>

#include "net/http_client.h"
#include "net/raw_client.h"
#include "support/support.h"

namespace baltoro {
namespace {

using test::Echo;
using test::Eventually;
using test::RawClient;
using test::StartServer;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

const std::string kGet = "GET /x HTTP/1.1\r\nHost: a\r\n\r\n";

// Keeps the exchanges that it is handed, for the test to answer.
class Kept {
 public:
  HttpServer::Handler Handler() {
    return [this](HttpRequest request, Responder responder) {
      const std::lock_guard lock(mutex_);
      paths_.push_back(request.path);
      responders_.push_back(std::move(responder));
    };
  }
  Responder Next() {
    EXPECT_TRUE(Eventually([&] { return size() > 0; }));
    const std::lock_guard lock(mutex_);
    if (responders_.empty()) return {};
    Responder first = std::move(responders_.front());
    responders_.pop_front();
    return first;
  }
  size_t size() {
    const std::lock_guard lock(mutex_);
    return responders_.size();
  }

 private:
  std::mutex mutex_;
  std::vector<std::string> paths_;
  std::deque<Responder> responders_;
};

std::string Shell(const std::string& command) {
  std::string output;
  FILE* const pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return output;
  char buffer[4096];
  while (const size_t count = fread(buffer, 1, sizeof(buffer), pipe)) output.append(buffer, count);
  pclose(pipe);
  return output;
}

bool HasCurl() {
  return std::system("curl --version >/dev/null 2>&1") == 0;
}

TEST(HttpServerTest, AnswersAndKeepsTheConnection) {
  const auto server = StartServer({}, Echo);
  RawClient client(server->port());

  for (int i = 0; i < 3; ++i) {
    client.Send("POST /p HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nhi");
    const std::string answer = client.ReadUntil("POST /p hi");
    EXPECT_THAT(answer, StartsWith("HTTP/1.1 200 OK\r\ndate: "));
    EXPECT_THAT(answer, HasSubstr("\r\ncontent-type: text/plain\r\ncontent-length: 10\r\n"));
    EXPECT_THAT(answer, Not(HasSubstr("connection:")));
  }
  EXPECT_EQ(server->open_connections(), 1U);
}

TEST(HttpServerTest, ClosesWhenAskedTo) {
  const auto server = StartServer({}, Echo);
  for (const std::string request :
       {"GET /x HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", "GET /x HTTP/1.0\r\n\r\n"}) {
    RawClient client(server->port());
    client.Send(request);
    EXPECT_THAT(client.ReadAll(), HasSubstr("\r\nconnection: close\r\n"));
    EXPECT_TRUE(client.closed_by_server());
    EXPECT_FALSE(client.reset_by_server());
  }
  EXPECT_TRUE(Eventually([&] { return server->open_connections() == 0; }));
}

TEST(HttpServerTest, AnswersPipelinedRequestsInOrder) {
  Kept kept;
  const auto server = StartServer({.threads = 2}, kept.Handler());
  RawClient client(server->port());
  client.Send("GET /1 HTTP/1.1\r\nHost: a\r\n\r\nGET /2 HTTP/1.1\r\nHost: a\r\n\r\nGET /3 HT");
  client.Send("TP/1.1\r\nHost: a\r\n\r\n");

  for (const std::string body : {"one", "two", "three"}) {
    Responder responder = kept.Next();
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    EXPECT_EQ(kept.size(), 0U);  // the next one waits for this answer
    responder.Send({.body = body});
    EXPECT_THAT(client.ReadUntil(body), EndsWith("\r\n\r\n" + body));
  }
}

TEST(HttpServerTest, AnswersAFloodOfPipelinedRequests) {
  const auto server = StartServer({}, Echo);
  RawClient client(server->port());
  std::string flood;
  for (int i = 0; i < 900; ++i) {
    flood += "GET /" + std::to_string(i) + " HTTP/1.1\r\nHost: a\r\n\r\n";
  }

  client.Send(flood);

  for (int i = 0; i < 900; ++i) {
    const std::string body = "GET /" + std::to_string(i) + " ";
    ASSERT_THAT(client.ReadUntil(body), EndsWith("\r\n\r\n" + body));
  }
}

TEST(HttpServerTest, AnswersHeadWithTheHeadersOfGet) {
  const auto server = StartServer({}, Echo);
  RawClient client(server->port());

  client.Send("HEAD /x HTTP/1.1\r\nHost: a\r\n\r\n" + kGet);

  EXPECT_THAT(client.ReadUntil("\r\n\r\n"), HasSubstr("content-length: 8\r\n"));
  EXPECT_THAT(client.ReadUntil("\r\n\r\n"), StartsWith("HTTP/1.1 200 OK\r\n"));  // at once
}

TEST(HttpServerTest, SplitsOfARequestDoNotMatter) {
  const auto server = StartServer({}, Echo);
  const std::string request =
      "POST /p HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
      "3\r\nabc\r\n2;x\r\nde\r\n0\r\n\r\n";
  for (size_t split = 1; split < request.size(); ++split) {
    RawClient client(server->port());
    client.Send(std::string_view(request).substr(0, split));
    if (split % 4 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    client.Send(std::string_view(request).substr(split));
    ASSERT_THAT(client.ReadUntil("abcde"), EndsWith("POST /p abcde")) << split;
  }
}

TEST(HttpServerTest, StreamsEventsInChunks) {
  Kept kept;
  const auto server = StartServer({}, kept.Handler());
  RawClient client(server->port());
  client.Send(kGet + kGet);

  Responder responder = kept.Next();
  responder.StartStream(200, {{"x-id", "7"}});
  const std::string head = client.ReadUntil("\r\n\r\n");
  EXPECT_THAT(head, HasSubstr("\r\nx-id: 7\r\n"));
  EXPECT_THAT(head, HasSubstr("\r\ncontent-type: text/event-stream; charset=utf-8\r\n"));
  EXPECT_THAT(head, HasSubstr("\r\ncache-control: no-cache\r\n"));
  EXPECT_THAT(head, HasSubstr("\r\ntransfer-encoding: chunked\r\n"));
  EXPECT_THAT(head, Not(HasSubstr("content-length")));

  EXPECT_TRUE(responder.Write("data: a\n\n"));
  EXPECT_EQ(client.ReadUntil("\n\n\r\n"), "9\r\ndata: a\n\n\r\n");  // before the next is written
  EXPECT_TRUE(responder.Write(""));                                 // not the end
  EXPECT_TRUE(responder.Write("data: 0123456789\n\n"));
  responder.End();
  EXPECT_EQ(client.ReadUntil("0\r\n\r\n"), "12\r\ndata: 0123456789\n\n\r\n0\r\n\r\n");

  kept.Next().Send({.body = "next"});  // the connection goes on
  EXPECT_THAT(client.ReadUntil("next"), EndsWith("next"));
}

TEST(HttpServerTest, StreamsToHttp10UntilTheConnectionEnds) {
  Kept kept;
  const auto server = StartServer({}, kept.Handler());
  RawClient client(server->port());
  client.Send("GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");

  Responder responder = kept.Next();
  responder.StartStream(200);
  responder.Write("data: a\n\n");
  responder.End();

  const std::string answer = client.ReadAll();
  EXPECT_THAT(answer, EndsWith("\r\n\r\ndata: a\n\n"));
  EXPECT_THAT(answer, HasSubstr("connection: close\r\n"));
  EXPECT_THAT(answer, Not(HasSubstr("chunked")));
}

TEST(HttpServerTest, NoticesAHangUpWhileNothingIsWritten) {
  Kept kept;
  const auto server = StartServer({}, kept.Handler());
  for (const int way : {0, 1, 2}) {
    RawClient client(server->port());
    client.Send(kGet);
    Responder responder = kept.Next();
    std::atomic<int> calls = 0;
    responder.OnClientGone([&] { calls += 1; });
    if (way == 1) responder.StartStream(200);
    EXPECT_FALSE(responder.client_gone());

    if (way == 0) client.Close();
    if (way == 1) client.CloseWithReset();
    if (way == 2) client.HalfClose();

    EXPECT_TRUE(Eventually([&] { return calls == 1; })) << way;
    EXPECT_TRUE(responder.client_gone());
    if (way == 1) {
      EXPECT_FALSE(responder.Write("data: a\n\n"));
    }
    std::atomic<bool> late = false;
    responder.OnClientGone([&] { late = true; });
    EXPECT_TRUE(late);
    EXPECT_EQ(calls, 1);
  }
  EXPECT_TRUE(Eventually([&] { return server->open_connections() == 0; }));
}

TEST(HttpServerTest, APipelinedRequestIsNotAHangUp) {
  Kept kept;
  const auto server = StartServer({}, kept.Handler());
  RawClient client(server->port());
  client.Send(kGet);
  Responder responder = kept.Next();
  responder.StartStream(200);

  client.Send(kGet);
  std::this_thread::sleep_for(std::chrono::milliseconds(50));

  EXPECT_FALSE(responder.client_gone());
  EXPECT_TRUE(responder.Write("data: a\n\n"));
  responder.End();
  EXPECT_THAT(client.ReadUntil("0\r\n\r\n"), HasSubstr("data: a"));
  kept.Next().Send({.body = "second"});
  EXPECT_THAT(client.ReadUntil("second"), EndsWith("second"));

  // And a hang-up behind a pipelined request still is one.
  client.Send(kGet);
  Responder third = kept.Next();
  client.Send(kGet);
  client.Close();
  EXPECT_TRUE(Eventually([&] { return third.client_gone(); }));
}

TEST(HttpServerTest, AnswersAClientThatHalfClosesWhenTheAnswerIsReady) {
  const auto server = StartServer({}, Echo);
  RawClient client(server->port());
  client.Send(kGet + kGet);
  client.HalfClose();

  const std::string both = client.ReadAll();

  EXPECT_NE(both.find("GET /x "), both.rfind("GET /x "));
}

TEST(HttpServerTest, AbortsASlowReaderAtItsBufferLimit) {
  Kept kept;
  const auto server = StartServer({.send_buffer_bytes = 16 << 10}, kept.Handler());
  RawClient client(server->port(), /*receive_buffer=*/16 << 10);
  client.Send(kGet);
  Responder responder = kept.Next();
  std::atomic<bool> told = false;
  responder.OnClientGone([&] { told = true; });
  responder.StartStream(200);

  size_t written = 0;
  const std::string event(1000, 'a');
  while (written < (16 << 20) && responder.Write(event)) written += event.size();

  EXPECT_GE(written, 1'030'000U);  // the whole buffer was there, less the framing
  EXPECT_LT(written, 3U << 20);    // and not much more: the kernel's share
  EXPECT_TRUE(responder.client_gone());
  EXPECT_TRUE(Eventually([&] { return told.load(); }));
  EXPECT_TRUE(Eventually([&] { return server->open_connections() == 0; }));
  EXPECT_FALSE(responder.Write("more"));
}

TEST(HttpServerTest, LetsOneLargeWriteThroughAndNotASecondOne) {
  Kept kept;
  const auto server = StartServer({.send_buffer_bytes = 16 << 10}, kept.Handler());
  RawClient client(server->port(), /*receive_buffer=*/16 << 10);
  client.Send(kGet);
  Responder responder = kept.Next();
  responder.StartStream(200);

  EXPECT_TRUE(responder.Write(std::string(4 << 20, 'a')));
  EXPECT_TRUE(responder.Write("b"));
  EXPECT_FALSE(responder.Write(std::string(4 << 20, 'c')));
  EXPECT_TRUE(responder.client_gone());
}

TEST(HttpServerTest, AbortsAReaderThatTakesNothing) {
  Kept kept;
  const auto server =
      StartServer({.write_stall = 0.2, .send_buffer_bytes = 16 << 10}, kept.Handler());
  RawClient client(server->port(), /*receive_buffer=*/16 << 10);
  client.Send(kGet);
  Responder responder = kept.Next();
  responder.Send({.body = std::string(8 << 20, 'a')});

  EXPECT_TRUE(Eventually([&] { return server->open_connections() == 0; }));
  EXPECT_LT(client.ReadAll().size(), 8U << 20);
}

TEST(HttpServerTest, SendsALargeAnswerWhole) {
  const auto server = StartServer({}, [](HttpRequest, Responder responder) {
    responder.Send({.body = std::string(20 << 20, 'a') + "end"});
  });
  HttpClient client({.port = server->port()});

  const Result<HttpResponse> answer = client.Send({});

  ASSERT_TRUE(answer.ok()) << answer.status().message();
  EXPECT_EQ(answer.value().body.size(), (20U << 20) + 3);
}

TEST(HttpServerTest, AnswersForAHandlerThatForgets) {
  const auto server = StartServer({}, [](HttpRequest request, Responder responder) {
    if (request.path == "/stream") responder.StartStream(200);
  });
  RawClient client(server->port());

  client.Send(kGet);
  EXPECT_THAT(client.ReadUntil("}}"), StartsWith("HTTP/1.1 500 "));
  client.Send("GET /stream HTTP/1.1\r\nHost: a\r\n\r\n");
  EXPECT_THAT(client.ReadAll(), Not(HasSubstr("0\r\n\r\n")));  // broken off, not ended
  EXPECT_TRUE(client.closed_by_server());
}

TEST(HttpServerTest, AHeaderValueCannotForgeALine) {
  const auto server = StartServer({}, [](HttpRequest, Responder responder) {
    responder.Send({.headers = {{"x-id", "a\r\nevil: 1"}}, .body = "b"});
  });
  RawClient client(server->port());
  client.Send(kGet);

  EXPECT_THAT(client.ReadUntil("\r\n\r\n"), HasSubstr("x-id: a  evil: 1\r\n"));
}

TEST(HttpServerTest, ServesAThousandStreamsAtOnce) {
  constexpr size_t kStreams = 1000;
  constexpr int kSteps = 20;
  Kept kept;
  const auto server = StartServer({.threads = 2}, kept.Handler());
  std::vector<std::unique_ptr<RawClient>> clients;
  for (size_t i = 0; i < kStreams; ++i) {
    clients.push_back(std::make_unique<RawClient>(server->port()));
    clients.back()->Send(kGet);
  }
  std::vector<std::vector<Responder>> by_thread(server->io_threads());
  for (size_t i = 0; i < kStreams; ++i) {
    Responder responder = kept.Next();
    ASSERT_TRUE(responder.valid());
    responder.StartStream(200);
    const size_t thread = responder.io_thread();
    by_thread[thread].push_back(std::move(responder));
  }
  EXPECT_EQ(by_thread[0].size(), kStreams / 2);

  std::atomic<int> posted = 0;
  for (int step = 0; step < kSteps; ++step) {
    for (size_t t = 0; t < by_thread.size(); ++t) {
      posted += 1;
      server->Post(t, [&, t, step] {
        for (Responder& responder : by_thread[t]) {
          EXPECT_TRUE(responder.Write("data: " + std::to_string(step) + "\n\n"));
          if (step == kSteps - 1) responder.End();
        }
        posted -= 1;
      });
    }
  }

  std::string expected;
  for (auto& client : clients) {
    client->ReadUntil("\r\n\r\n");
    std::string data;
    for (int step = 0; step < kSteps; ++step) {
      data += client->ReadUntil("data: " + std::to_string(step) + "\n\n\r\n");
    }
    if (expected.empty()) expected = data;
    ASSERT_EQ(data, expected);
    ASSERT_EQ(client->ReadUntil("0\r\n\r\n"), "0\r\n\r\n");
  }
  EXPECT_EQ(posted, 0);
}

TEST(HttpServerTest, SurvivesHangUpsAtAnyMoment) {
  Kept kept;
  const auto server = StartServer({.threads = 2}, kept.Handler());
  std::atomic<bool> stop = false;
  std::atomic<int> served = 0;
  std::thread producer([&] {
    std::mt19937 random(3);
    std::vector<Responder> live;
    while (!stop) {
      while (kept.size() > 0) {
        live.push_back(kept.Next());
        live.back().OnClientGone([&] { served += 1; });
        live.back().StartStream(200);
      }
      for (size_t i = 0; i < live.size();) {
        const bool over = !live[i].Write("data: token\n\n") || random() % 50 == 0;
        if (over) {
          live[i].End();
          std::swap(live[i], live.back());
          live.pop_back();
        } else {
          ++i;
        }
      }
      std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
  });

  std::mt19937 random(4);
  for (int i = 0; i < 1500; ++i) {
    RawClient client(server->port());
    client.Send(std::string_view(kGet).substr(0, random() % (kGet.size() + 20)));
    if (random() % 2) std::this_thread::sleep_for(std::chrono::microseconds(random() % 1000));
    if (random() % 2) client.CloseWithReset();
  }
  EXPECT_TRUE(Eventually([&] { return server->open_connections() == 0; }));
  stop = true;
  producer.join();
  EXPECT_GT(served, 0);
  RawClient client(server->port());
  client.Send(kGet);
  // One that hung up before it was accepted may still come to the handler ahead of this one.
  std::jthread answerer([&](const std::stop_token& asked) {
    while (!asked.stop_requested()) {
      while (kept.size() > 0) kept.Next().Send({.body = "alive"});
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  });
  EXPECT_THAT(client.ReadUntil("alive"), EndsWith("alive"));
}

TEST(HttpServerTest, StopWaitsForWhatIsUnderWay) {
  Kept kept;
  const auto server = StartServer({}, kept.Handler());
  RawClient idle(server->port());
  RawClient busy(server->port());
  busy.Send(kGet);
  Responder responder = kept.Next();
  responder.StartStream(200);

  std::thread stopper([&] { server->Stop(5); });
  EXPECT_THAT(idle.ReadAll(), "");  // closed at once
  EXPECT_TRUE(idle.closed_by_server());
  EXPECT_FALSE(ConnectTcp("127.0.0.1", server->port(), 1).ok());
  EXPECT_TRUE(responder.Write("data: last\n\n"));
  responder.End();
  const auto start = std::chrono::steady_clock::now();
  stopper.join();

  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(2));
  EXPECT_THAT(busy.ReadAll(), EndsWith("0\r\n\r\n"));
}

TEST(HttpServerTest, StopBreaksOffWhatOutlastsTheDeadline) {
  Kept kept;
  auto server = StartServer({}, kept.Handler());
  RawClient client(server->port());
  client.Send(kGet);
  Responder responder = kept.Next();
  std::atomic<bool> told = false;
  responder.OnClientGone([&] { told = true; });

  server->Stop(0.1);

  EXPECT_TRUE(told);
  server.reset();
  responder.Send({.body = "too late"});  // harmless after the server is gone
  EXPECT_TRUE(responder.client_gone());
}

TEST(HttpServerTest, WhatHasNoAnswerAtTheEndIsRefusedAndNotCutOff) {
  Kept kept;
  const auto server = StartServer({}, kept.Handler());
  RawClient waiting(server->port()), half(server->port());
  waiting.Send(kGet);
  half.Send("POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\nabc");
  Responder responder = kept.Next();
  bool told = false;
  responder.OnClientGone([&] { told = true; });

  server->RefuseUnanswered();

  for (RawClient* client : {&waiting, &half}) {
    const std::string answer = client->ReadAll();
    EXPECT_THAT(answer, StartsWith("HTTP/1.1 503 Service Unavailable\r\n"));
    EXPECT_THAT(answer, HasSubstr("shutting down"));
    EXPECT_THAT(answer, HasSubstr("connection: close\r\n"));
  }
  EXPECT_TRUE(told);
  EXPECT_TRUE(responder.client_gone());
  responder.StartStream(200);  // too late, and harmless
  EXPECT_FALSE(responder.Write("more"));
  responder.End();
}

// A socket that is closed under a peer's hands answers it with a reset, which the peer sees first.
TEST(HttpServerTest, WhoIsStillSendingAtTheEndIsHeardOut) {
  const auto server = StartServer({}, Echo);
  RawClient sending(server->port()), silent(server->port());
  for (RawClient* client : {&sending, &silent}) {
    client->Send("POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 100000\r\n\r\nabc");
  }
  ASSERT_TRUE(Eventually([&] { return server->held_body_bytes() == 6; }));
  server->RefuseUnanswered();
  std::jthread stop([&] { server->Stop(30); });

  for (int i = 0; i < 25; ++i) {
    EXPECT_TRUE(sending.Send(std::string(1000, 'b'))) << i;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  EXPECT_EQ(server->open_connections(), 1u) << "who sends nothing more is not waited for";
  EXPECT_THAT(sending.ReadAll(), StartsWith("HTTP/1.1 503 Service Unavailable\r\n"));
  EXPECT_FALSE(sending.reset_by_server());
  EXPECT_THAT(silent.ReadAll(), StartsWith("HTTP/1.1 503 Service Unavailable\r\n"));
  EXPECT_TRUE(Eventually([&] { return server->open_connections() == 0; }));
}

TEST(HttpServerTest, StopAcceptingLeavesOpenConnectionsAlone) {
  const auto server = StartServer({}, Echo);
  RawClient client(server->port());
  client.Send(kGet);
  client.ReadUntil("GET /x ");

  server->StopAccepting();

  client.Send(kGet);
  EXPECT_THAT(client.ReadUntil("GET /x "), EndsWith("GET /x "));
  EXPECT_FALSE(ConnectTcp("127.0.0.1", server->port(), 1).ok());
}

TEST(HttpServerTest, ListensOnAUnixSocketAndReplacesADeadOne) {
  const test::TempDir dir;
  const std::string path = dir.path() + "/socket";
  { const UniqueFd dead = ListenUnix(path, {}).value(); }
  ASSERT_EQ(access(path.c_str(), F_OK), 0);
  {
    const auto server = StartServer({.uds = path}, Echo);
    HttpClient client({.uds = path});
    EXPECT_EQ(client.Send({.target = "/u"}).value().body, "GET /u ");
    EXPECT_FALSE(HttpServer::Listen({.uds = path}, Echo).ok());  // somebody listens there
  }
  EXPECT_NE(access(path.c_str(), F_OK), 0);
}

TEST(HttpServerTest, SaysWhyItCannotListen) {
  const auto server = StartServer({}, Echo);

  const auto second = HttpServer::Listen({.port = server->port()}, Echo);

  ASSERT_FALSE(second.ok());
  EXPECT_THAT(second.status().message(), HasSubstr("Address already in use"));
  EXPECT_FALSE(HttpServer::Listen({.host = "no.such.host.invalid"}, Echo).ok());
  EXPECT_FALSE(HttpServer::Listen({.port = 70000}, Echo).ok());
  EXPECT_FALSE(HttpServer::Listen({.threads = 0}, Echo).ok());
}

TEST(HttpServerTest, ListensOnEveryInterfaceWhenNoneIsNamed) {
  const auto server = StartServer({.host = ""}, Echo);

  HttpClient client({.host = "127.0.0.1", .port = server->port()});

  EXPECT_EQ(client.Send({}).value().body, "GET / ");
}

// curl is the judge of what we say on the wire.
TEST(HttpServerTest, AgreesWithCurl) {
  if (!HasCurl()) GTEST_SKIP() << "no curl here";
  const auto server = StartServer({}, [](HttpRequest request, Responder responder) {
    if (request.path != "/stream") {
      return Echo(std::move(request), std::move(responder));
    }
    responder.StartStream(200);
    responder.Write("data: a\n\n");
    responder.Write("data: b\n\n");
    responder.End();
  });
  const std::string url = "http://127.0.0.1:" + std::to_string(server->port());
  const std::string curl = "curl -sS --max-time 5 ";

  EXPECT_EQ(Shell(curl + "-d hello " + url + "/p " + url + "/q"), "POST /p helloPOST /q hello");
  EXPECT_EQ(Shell("printf abc | " + curl + "-T - " + url + "/t"), "PUT /t abc");  // chunked, Expect
  EXPECT_EQ(
      Shell(curl + "-H 'Expect: 100-continue' -d hi --expect100-timeout 4 -w '%{time_total}' " +
            url + "/p")
          .substr(0, 12),
      "POST /p hi0.");  // not after the four seconds for which curl waits
  EXPECT_EQ(Shell(curl + "-N " + url + "/stream"), "data: a\n\ndata: b\n\n");
  EXPECT_EQ(Shell(curl + "--http1.0 " + url + "/stream"), "data: a\n\ndata: b\n\n");
  EXPECT_EQ(Shell(curl + "-I " + url + "/h").substr(0, 15), "HTTP/1.1 200 OK");
  // As curl would send a file over the limit: refused before the body is read, and curl is told.
  EXPECT_EQ(Shell("head -c 40000000 /dev/zero | " + curl +
                  "-o /dev/null -w '%{http_code}' -H 'Content-Length: 40000000' --data-binary @- " +
                  url + "/p"),
            "413");
}

}  // namespace
}  // namespace baltoro
