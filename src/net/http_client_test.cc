#include "net/http_client.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>

#include "net/raw_client.h"

namespace baltoro {
namespace {

using test::Echo;
using test::StartServer;
using ::testing::HasSubstr;

// Python's own HTTP server, so that the client is not judged by ours alone. Prints its port.
constexpr const char* kPythonServer = R"(
import http.server, sys, threading, os
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = 'HTTP/1.1'
    def log_message(self, *args): pass
    def do_POST(self):
        body = self.rfile.read(int(self.headers['Content-Length']))
        self.send_response(200)
        if self.path == '/stream':
            self.send_header('Content-Type', 'text/event-stream')
            self.send_header('Transfer-Encoding', 'chunked')
            self.end_headers()
            for piece in (b'data: on', b'e\n\nda', b'ta: two\n\n', b'data: [DONE]\n\n'):
                self.wfile.write(b'%x\r\n%s\r\n' % (len(piece), piece))
                self.wfile.flush()
            self.wfile.write(b'0\r\n\r\n')
        else:
            self.send_header('Content-Length', str(len(body)))
            self.end_headers()
            self.wfile.write(body)
server = http.server.ThreadingHTTPServer(('127.0.0.1', 0), Handler)
print(server.server_address[1], flush=True)
threading.Timer(20, lambda: os._exit(0)).start()
threading.Thread(target=server.serve_forever, daemon=True).start()
sys.stdin.read()
os._exit(0)
)";

TEST(HttpClientTest, AgreesWithPythonsServer) {
  if (std::system("python3 -c 'import http.server' >/dev/null 2>&1") != 0) {
    GTEST_SKIP() << "no python3 here";
  }
  setenv("BT_TEST_SERVER", kPythonServer, 1);
  FILE* const pipe = popen("sleep 10 | python3 -c \"$BT_TEST_SERVER\"", "r");
  ASSERT_NE(pipe, nullptr);
  int port = 0;
  ASSERT_EQ(std::fscanf(pipe, "%d", &port), 1);
  HttpClient client({.port = port});

  const Result<HttpResponse> echo = client.Send({.method = "POST", .target = "/e", .body = "abc"});
  std::vector<std::string> events;
  const Result<HttpResponse> stream =
      client.Stream({.method = "POST", .target = "/stream", .body = "{}"}, [&](const SseEvent& e) {
        events.push_back(e.data);
        return true;
      });

  ASSERT_TRUE(echo.ok()) << echo.status().message();
  EXPECT_EQ(echo.value().body, "abc");
  ASSERT_TRUE(stream.ok()) << stream.status().message();
  EXPECT_EQ(events, (std::vector<std::string>{"one", "two", "[DONE]"}));
}

TEST(HttpClientTest, KeepsItsConnectionAndReplacesAStaleOne) {
  const auto server = StartServer({.keep_alive_idle = 0.1}, Echo);
  HttpClient client({.port = server->port()});

  EXPECT_EQ(client.Send({.target = "/1"}).value().body, "GET /1 ");
  EXPECT_EQ(client.Send({.method = "POST", .target = "/2", .body = "b"}).value().body, "POST /2 b");
  EXPECT_EQ(server->open_connections(), 1U);
  EXPECT_TRUE(test::Eventually([&] { return server->open_connections() == 0; }));
  EXPECT_EQ(client.Send({.target = "/3"}).value().body, "GET /3 ");
}

TEST(HttpClientTest, StreamsUntilToldToStop) {
  std::atomic<bool> gone = false;
  std::vector<Responder> kept;
  const auto server = StartServer({}, [&](HttpRequest, Responder responder) {
    responder.OnClientGone([&] { gone = true; });
    responder.StartStream(200);
    responder.Write("data: 1\n\ndata: 2\n\ndata: 3\n\n");
    kept.push_back(std::move(responder));  // never ended: only the client can stop it
  });
  HttpClient client({.port = server->port()});
  int events = 0;

  const auto answer = client.Stream({}, [&](const SseEvent&) { return ++events < 2; });

  EXPECT_TRUE(answer.ok()) << answer.status().message();
  EXPECT_EQ(events, 2);
  EXPECT_TRUE(test::Eventually([&] { return gone.load(); }));
  server->Stop(0);
}

TEST(HttpClientTest, ReturnsAnErrorAnswerWhole) {
  const auto server = StartServer({}, [](HttpRequest, Responder responder) {
    responder.Send({.status = 429, .headers = {{"retry-after", "7"}}, .body = "{\"error\":1}"});
  });
  HttpClient client({.port = server->port()});

  const auto answer = client.Stream({}, [](const SseEvent&) { return true; });

  ASSERT_TRUE(answer.ok());
  EXPECT_EQ(answer.value().status, 429);
  EXPECT_EQ(answer.value().Header("retry-after"), "7");
  EXPECT_EQ(answer.value().body, "{\"error\":1}");
}

TEST(HttpClientTest, ReportsABrokenStreamAndSilence) {
  std::vector<Responder> kept;
  const auto server = StartServer({}, [&](HttpRequest request, Responder responder) {
    if (request.path == "/silent") {
      kept.push_back(std::move(responder));
      return;
    }
    responder.StartStream(200);
    responder.Write("data: 1\n\n");
    responder.Abort();
  });
  HttpClient client({.port = server->port(), .idle_timeout = 0.2});

  EXPECT_FALSE(client.Stream({}, [](const SseEvent&) { return true; }).ok());
  const auto silent = client.Send({.target = "/silent"});
  ASSERT_FALSE(silent.ok());
  EXPECT_THAT(silent.status().message(), HasSubstr("0.2 s"));
  server->Stop(0);

  const auto refused = client.Send({});
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().code(), Code::kUnavailable);
}

TEST(HttpClientTest, RefusesToForgeALine) {
  HttpClient client({.port = 1});

  EXPECT_EQ(client.Send({.headers = {{"a", "b\r\nc: d"}}}).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(client.Send({.target = "/ HTTP/1.1\r\nX: y"}).status().code(), Code::kInvalidArgument);
}

}  // namespace
}  // namespace baltoro
