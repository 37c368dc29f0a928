// The server's answers to hostile, broken and slow peers.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <unistd.h>

#include <ctime>
#include <deque>
#include <thread>

#include "base/json.h"
#include "net/http_server.h"
#include "net/raw_client.h"

namespace baltoro {
namespace {

using test::Echo;
using test::Eventually;
using test::RawClient;
using test::StartServer;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

const std::string kGet = "GET /x HTTP/1.1\r\nHost: a\r\n\r\n";

double Elapsed(std::chrono::steady_clock::time_point since) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - since).count();
}

double ProcessCpu() {
  timespec time{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

size_t Count(const std::string& text, const std::string& what) {
  size_t count = 0;
  for (size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++count;
  return count;
}

TEST(HttpLimitsTest, RefusesWithAStatusABodyAndTheEndOfTheConnection) {
  const auto server = StartServer({}, Echo);
  const std::string host = "Host: a\r\n";
  const std::vector<std::pair<std::string, int>> rows = {
      {"GET / HTTP/1.1\r\n\r\n", 400},
      {"GET / HTTP/1.1\r\n" + host + "A : b\r\n\r\n", 400},
      {"GET / HTTP/1.1\r\n" + host + "Content-Length: 40000000\r\n\r\n", 413},
      {"GET /" + std::string(9000, 'a') + " HTTP/1.1\r\n" + host + "\r\n", 414},
      {"GET / HTTP/1.1\r\n" + host + "A: " + std::string(9000, 'a') + "\r\n\r\n", 431},
      {"GET / HTTP/1.1\r\n" + host + "Expect: more\r\n\r\n", 417},
      {"GET / HTTP/9.9\r\n" + host + "\r\n", 505},
  };
  for (const auto& [request, status] : rows) {
    RawClient client(server->port());
    client.Send(request + kGet);  // what follows must not be taken for a request
    const std::string answer = client.ReadAll();
    EXPECT_THAT(answer, StartsWith("HTTP/1.1 " + std::to_string(status) + " "));
    EXPECT_THAT(answer, HasSubstr("\r\nconnection: close\r\n"));
    EXPECT_EQ(Count(answer, "\r\ndate: "), 1U);
    EXPECT_TRUE(client.closed_by_server());
    const Result<Json> body = ParseJson(answer.substr(answer.find("\r\n\r\n") + 4));
    ASSERT_TRUE(body.ok()) << answer;
    EXPECT_EQ(body.value()["error"]["code"], status);
  }
}

// As many answers as there are requests that we believe in, and nothing after an ambiguity.
TEST(HttpLimitsTest, SmuggledRequestsAreNotServed) {
  const std::string inner = "GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n";
  const std::string head = "POST /outer HTTP/1.1\r\nHost: a\r\n";
  const std::string length = std::to_string(inner.size() + 5);
  const std::vector<std::string> attacks = {
      head + "Content-Length: " + length + "\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" +
          inner,
      head + "Transfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n0\r\n\r\n" + inner,
      head + "Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n" + inner,
      head + "Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n" + inner,
      head +
          "Transfer-Encoding:\x0b"
          "chunked\r\n\r\n0\r\n\r\n" +
          inner,
      head + "Transfer-Encoding\n : chunked\r\n\r\n0\r\n\r\n" + inner,
      head + "Content-Length: 0\r\nContent-Length: 5\r\n\r\n" + inner,
      head + "Content-Length: 0,5\r\n\r\n" + inner,
      head + "Content-Length: 0\n\r\n" + inner,
      head + "X: y\nContent-Length: 0\r\n\r\n" + inner,
      head + "Transfer-Encoding: chunked\r\n\r\n0;\n\r\n" + inner,
      head + "Transfer-Encoding: chunked\r\n\r\n10000000000000000\r\n\r\n" + inner,
  };
  std::atomic<int> served = 0;
  const auto server = StartServer({}, [&](HttpRequest, Responder responder) {
    served += 1;
    responder.Send({});
  });
  for (const std::string& attack : attacks) {
    RawClient client(server->port());
    client.Send(attack);
    const std::string answer = client.ReadAll();
    EXPECT_THAT(answer, StartsWith("HTTP/1.1 400 ")) << attack;
    EXPECT_EQ(Count(answer, "\r\ndate: "), 1U) << attack;
    EXPECT_TRUE(client.closed_by_server());
  }
  EXPECT_EQ(served, 0);
}

TEST(HttpLimitsTest, AsksForTheBodyOnlyWhenItWouldBeTaken) {
  const auto server = StartServer({.limits = {.body_bytes = 100}}, Echo);
  const auto head = [](int length) {
    return "POST /p HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: " +
           std::to_string(length) + "\r\n\r\n";
  };
  RawClient client(server->port());

  client.Send(head(100));
  EXPECT_EQ(client.ReadUntil("\r\n\r\n"), "HTTP/1.1 100 Continue\r\n\r\n");
  client.Send(std::string(100, 'b'));
  EXPECT_THAT(client.ReadUntil("bb", 5), StartsWith("HTTP/1.1 200"));

  RawClient refused(server->port());
  refused.Send(head(101));
  EXPECT_THAT(refused.ReadAll(), StartsWith("HTTP/1.1 413"));

  RawClient eager(server->port());  // sends the body without waiting
  eager.Send(head(1) + "b");
  EXPECT_THAT(eager.ReadUntil("POST /p b"), StartsWith("HTTP/1.1 200"));
}

TEST(HttpLimitsTest, ARefusedUploadGetsItsAnswerAllTheSame) {
  const auto server = StartServer({.limits = {.body_bytes = 1 << 20}}, Echo);
  RawClient client(server->port());

  client.Send("POST /p HTTP/1.1\r\nHost: a\r\nContent-Length: 8000000\r\n\r\n");
  client.Send(std::string(8'000'000, 'b'));

  EXPECT_THAT(client.ReadAll(), StartsWith("HTTP/1.1 413"));
  EXPECT_FALSE(client.reset_by_server());
}

TEST(HttpLimitsTest, GivesSlowHeadersUntilTheDeadline) {
  const auto server = StartServer({.header_deadline = 0.4, .linger = 0.2}, Echo);
  RawClient silent(server->port());
  RawClient slow(server->port());
  const auto start = std::chrono::steady_clock::now();

  std::string answer;
  for (char c : std::string("GET /slow HTTP/1.1\r\nHost: a\r\nX: aaaaaaaaaaaaaaaaaaaaaaaaa")) {
    slow.Send(std::string(1, c));
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    if (Elapsed(start) > 0.6) break;
  }
  answer = slow.ReadAll();

  EXPECT_THAT(answer, StartsWith("HTTP/1.1 408 "));
  EXPECT_TRUE(slow.closed_by_server());
  EXPECT_EQ(silent.ReadAll(), "");  // nothing was asked, so nothing is answered
  EXPECT_TRUE(silent.closed_by_server());
  EXPECT_TRUE(Eventually([&] { return server->open_connections() == 0; }, 1));
}

TEST(HttpLimitsTest, GivesSlowBodiesUntilTheDeadline) {
  const auto server =
      StartServer({.body_deadline = 0.4, .body_rate_grace = 100, .linger = 0.2}, Echo);
  RawClient client(server->port());

  client.Send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 50000\r\n\r\n");
  client.Send(std::string(40000, 'b'));

  EXPECT_THAT(client.ReadAll(), StartsWith("HTTP/1.1 408 "));
}

TEST(HttpLimitsTest, WantsABodyToArriveAtSomeRate) {
  const auto server = StartServer(
      {.body_bytes_per_second_min = 10'000, .body_rate_grace = 0.2, .linger = 0.2}, Echo);
  const auto start = std::chrono::steady_clock::now();
  RawClient slow(server->port());
  slow.Send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 50000\r\n\r\n");
  EXPECT_THAT(slow.ReadAll(), StartsWith("HTTP/1.1 408 "));
  EXPECT_LT(Elapsed(start), 2);

  RawClient steady(server->port());
  steady.Send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 20000\r\n\r\n");
  for (int i = 0; i < 20; ++i) {
    steady.Send(std::string(1000, 'b'));
    std::this_thread::sleep_for(std::chrono::milliseconds(25));
  }
  EXPECT_THAT(steady.ReadUntil("\r\n\r\n"), StartsWith("HTTP/1.1 200 "));
}

TEST(HttpLimitsTest, HoldsTheBodiesOfAllUnfinishedRequestsToALimit) {
  const auto server = StartServer({.held_body_bytes = 200'000}, Echo);
  const std::string head = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 60000\r\n\r\n";
  RawClient first(server->port());
  RawClient second(server->port());
  RawClient third(server->port());
  first.Send(head + std::string(50'000, 'b'));
  std::this_thread::sleep_for(std::chrono::milliseconds(50));

  second.Send(head + std::string(50'001, 'b'));
  EXPECT_THAT(second.ReadAll(), StartsWith("HTTP/1.1 503 "));
  third.Send(head + std::string(40'000, 'b'));  // what was refused no longer counts
  first.Send(std::string(10'000, 'b'));
  EXPECT_THAT(first.ReadUntil("\r\n\r\n"), StartsWith("HTTP/1.1 200 "));
  third.Send(std::string(20'000, 'b'));
  EXPECT_THAT(third.ReadUntil("\r\n\r\n"), StartsWith("HTTP/1.1 200 "));
}

TEST(HttpLimitsTest, AClientLeavesOthersAsMuchOfTheBodiesAsItHolds) {
  const auto server = StartServer({.held_body_bytes = 200'000}, Echo);
  const std::string head = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 100001\r\n\r\n";
  const std::string small = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 50000\r\n\r\n";
  RawClient first(server->port());
  first.Send(head + std::string(100'000, 'b'));
  ASSERT_TRUE(Eventually([&] { return server->held_body_bytes() == 100'000; }));

  RawClient again(server->port());
  again.Send(small + std::string(1000, 'b'));
  EXPECT_THAT(again.ReadAll(), StartsWith("HTTP/1.1 503 "));
  RawClient other(server->port(), /*receive_buffer=*/0, "127.0.0.2");
  other.Send(small + std::string(50'000, 'b'));
  EXPECT_THAT(other.ReadUntil("\r\n\r\n"), StartsWith("HTTP/1.1 200 "));

  first.Close();
  EXPECT_TRUE(Eventually([&] { return server->held_body_bytes() == 0; }));
}

// Far more than the kernel takes in for a client that does not read.
constexpr size_t kLargeAnswer = 8 << 20;

void AnswerWithMuch(const HttpRequest& request, Responder responder) {
  const size_t bytes = request.path == "/small" ? 1000 : kLargeAnswer;
  responder.Send({.headers = {}, .body = std::string(bytes, 'a'), .content_type = "text/plain"});
}

TEST(HttpLimitsTest, HoldsTheUnreadAnswersOfAllClientsToALimit) {
  HttpServerOptions options;
  options.held_answer_bytes = 3 * kLargeAnswer + (1 << 20);
  const auto server = StartServer(options, AnswerWithMuch);
  std::deque<RawClient> clients;
  for (const char* address : {"127.0.0.1", "127.0.0.2"}) {
    const size_t before = server->held_answer_bytes();
    clients.emplace_back(server->port(), /*receive_buffer=*/4096, address).Send(kGet);
    EXPECT_TRUE(Eventually([&] { return server->held_answer_bytes() > before; }));
  }
  EXPECT_TRUE(Eventually([&] { return server->held_answer_bytes() > kLargeAnswer; }));

  RawClient third(server->port(), /*receive_buffer=*/0, "127.0.0.3");
  third.Send(kGet);
  const std::string refused = third.ReadAll();
  RawClient fourth(server->port(), /*receive_buffer=*/0, "127.0.0.3");
  fourth.Send("GET /small HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");

  EXPECT_THAT(refused, StartsWith("HTTP/1.1 503 Service Unavailable\r\n"));
  EXPECT_THAT(refused, HasSubstr("retry-after: 1\r\n"));
  EXPECT_THAT(fourth.ReadAll(), StartsWith("HTTP/1.1 200 OK\r\n")) << "short answers always fit";
  EXPECT_LE(server->held_answer_bytes(), options.held_answer_bytes);

  clients.front().ReadUntil(std::string(1000, 'a'));
  clients.clear();
  EXPECT_TRUE(Eventually([&] { return server->held_answer_bytes() == 0; }));
  RawClient fifth(server->port());
  fifth.Send("GET /x HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
  EXPECT_THAT(fifth.ReadAll(), StartsWith("HTTP/1.1 200 OK\r\n"));
}

// Connections of one client count together; what it may not have is there for another.
TEST(HttpLimitsTest, AClientLeavesOthersAsMuchAsItHolds) {
  HttpServerOptions options;
  options.held_answer_bytes = 3 * kLargeAnswer + (1 << 20);
  const auto server = StartServer(options, AnswerWithMuch);
  RawClient first(server->port(), /*receive_buffer=*/4096);
  first.Send(kGet);
  EXPECT_TRUE(Eventually([&] { return server->held_answer_bytes() > kLargeAnswer / 2; }));

  RawClient again(server->port());
  again.Send(kGet);
  RawClient other(server->port(), /*receive_buffer=*/0, "127.0.0.2");
  other.Send("GET /x HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");

  EXPECT_THAT(again.ReadAll(), StartsWith("HTTP/1.1 503 "));
  EXPECT_THAT(other.ReadAll(), StartsWith("HTTP/1.1 200 "));
  first.Close();
  EXPECT_TRUE(Eventually([&] { return server->held_answer_bytes() == 0; }));
  RawClient later(server->port());
  later.Send("GET /x HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
  EXPECT_THAT(later.ReadAll(), StartsWith("HTTP/1.1 200 "));
}

TEST(HttpLimitsTest, OneAnswerMayNotBeAsLargeAsItLikes) {
  HttpServerOptions options;
  options.answer_bytes = kLargeAnswer / 2;
  const auto server = StartServer(options, AnswerWithMuch);
  RawClient client(server->port());

  client.Send(kGet);

  EXPECT_THAT(client.ReadAll(), StartsWith("HTTP/1.1 503 "));
  EXPECT_EQ(server->held_answer_bytes(), 0u);
}

TEST(HttpLimitsTest, WhoHoldsMuchMustReadFast) {
  HttpServerOptions options;
  options.write_stall = 0.2;
  options.write_bytes_per_second_min = 1;
  options.answer_deadline = 0.5;  // 16 MiB/s for what lies here
  const auto server = StartServer(options, AnswerWithMuch);
  RawClient client(server->port(), /*receive_buffer=*/64 << 10);
  client.Send(kGet);

  for (int i = 0; i < 400 && !client.closed_by_server(); ++i) {
    client.ReadUntil(std::string(4000, 'a'), /*timeout=*/0);  // 160 kB/s at most
    std::this_thread::sleep_for(std::chrono::milliseconds(25));
  }

  EXPECT_TRUE(client.reset_by_server());
  EXPECT_TRUE(Eventually([&] { return server->held_answer_bytes() == 0; }));
}

TEST(HttpLimitsTest, ClosesAnIdleConnectionButNotABusyOne) {
  std::mutex mutex;
  std::vector<Responder> kept;
  const auto server = StartServer({.header_deadline = 0.2, .keep_alive_idle = 0.2},
                                  [&](HttpRequest request, Responder responder) {
                                    if (request.path == "/x")
                                      return Echo(std::move(request), std::move(responder));
                                    const std::lock_guard lock(mutex);
                                    kept.push_back(std::move(responder));
                                  });
  RawClient idle(server->port());
  idle.Send(kGet);
  RawClient busy(server->port());
  busy.Send("GET /slow HTTP/1.1\r\nHost: a\r\n\r\n");

  EXPECT_THAT(idle.ReadAll(), EndsWith("GET /x "));
  EXPECT_TRUE(idle.closed_by_server());
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  EXPECT_EQ(server->open_connections(), 1U);
  const std::lock_guard lock(mutex);
  ASSERT_EQ(kept.size(), 1U);
  kept[0].Send({.body = "late"});
  EXPECT_THAT(busy.ReadUntil("late"), EndsWith("late"));
}

TEST(HttpLimitsTest, ClosesAfterTheLastRequestOfAConnection) {
  const auto server = StartServer({.requests_per_connection = 3}, Echo);
  RawClient client(server->port());

  client.Send(kGet + kGet + kGet + kGet);

  const std::string answers = client.ReadAll();
  EXPECT_EQ(Count(answers, "HTTP/1.1 200"), 3U);
  EXPECT_EQ(Count(answers, "connection: close"), 1U);
}

TEST(HttpLimitsTest, WaitsWithAcceptingAtTheConnectionLimit) {
  const auto server = StartServer({.connections = 2}, Echo);
  RawClient first(server->port());
  RawClient second(server->port());
  ASSERT_TRUE(Eventually([&] { return server->open_connections() == 2; }));
  RawClient third(server->port());
  third.Send(kGet);

  const double cpu = ProcessCpu();
  EXPECT_THAT(third.ReadUntil("GET /x ", /*timeout=*/0.4), IsEmpty());
  EXPECT_LT(ProcessCpu() - cpu, 0.1);  // it sleeps
  second.Send(kGet);
  EXPECT_THAT(second.ReadUntil("GET /x "), EndsWith("GET /x "));

  first.Close();
  EXPECT_THAT(third.ReadUntil("GET /x "), EndsWith("GET /x "));
}

TEST(HttpLimitsTest, WaitsWithAcceptingWhenDescriptorsRunOut) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "UBSan probes memory through a pipe, and calls it bad when it cannot open one";
#endif
  const auto server = StartServer({}, Echo);
  RawClient first(server->port());
  first.Send(kGet);
  first.ReadUntil("GET /x ");
  // The client's own socket must exist before the limit falls; only accept is to fail.
  UniqueFd probe(dup(0));
  rlimit before{};
  getrlimit(RLIMIT_NOFILE, &before);
  RawClient second(server->port());  // connected by the kernel, perhaps accepted already
  second.Send(kGet);
  second.ReadUntil("GET /x ");
  UniqueFd spare(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  ASSERT_TRUE(spare.valid());
  const rlimit low{.rlim_cur = static_cast<rlim_t>(probe.get()), .rlim_max = before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &low), 0);

  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(server->port()));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  connect(spare.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address));
  const double cpu = ProcessCpu();
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  EXPECT_LT(ProcessCpu() - cpu, 0.05);
  EXPECT_EQ(server->open_connections(), 2U);
  first.Send(kGet);
  EXPECT_THAT(first.ReadUntil("GET /x "), EndsWith("GET /x "));

  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_TRUE(Eventually([&] { return server->open_connections() == 3; }));
}

TEST(HttpLimitsTest, TheErrorBodyIsTheCallersToWrite) {
  HttpServerOptions options;
  options.error_body = [](int status, std::string_view reason, std::string_view /*path*/) {
    return std::to_string(status) + "/" + std::string(reason);
  };
  const auto server = StartServer(options, Echo);
  RawClient client(server->port());

  client.Send("GET / HTTP/1.1\r\n\r\n");

  EXPECT_THAT(client.ReadAll(), EndsWith("\r\n\r\n400/there is no Host header"));
}

}  // namespace
}  // namespace baltoro
