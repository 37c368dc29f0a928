// The server and the blocking client over TLS.

#include "net/tls.h"

#include <gmock/gmock.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <thread>
#include <vector>

#include "net/http_client.h"
#include "net/raw_client.h"
#include "net/test_certificate.h"
#include "net/tls_refresh.h"

namespace baltoro {
namespace {

using test::CertificateFiles;
using test::Echo;
using test::Eventually;
using test::RawClient;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

class TlsTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = std::string(::testing::TempDir()) + "tls_test." + std::to_string(getpid());
    std::filesystem::create_directories(folder_);
    files_ = test::MakeCertificate(folder_, "server");
    other_ = test::MakeCertificate(folder_, "other");
    setenv("SSL_CERT_FILE", files_.cert.c_str(), 1);
  }
  static void TearDownTestSuite() { std::filesystem::remove_all(folder_); }

  static std::shared_ptr<const TlsContext> Load(const TlsOptions& options) {
    Result<std::shared_ptr<TlsContext>> context = TlsContext::Load(options);
    EXPECT_TRUE(context.ok()) << context.status().message();
    return context.ok() ? context.value() : nullptr;
  }
  static std::string Refusal(const TlsOptions& options) {
    const Result<std::shared_ptr<TlsContext>> context = TlsContext::Load(options);
    return context.ok() ? "" : context.status().message();
  }
  static std::unique_ptr<HttpServer> Start(HttpServer::Handler handler, Seconds deadline = 5) {
    HttpServerOptions options;
    options.tls = Load({.certfile = files_.cert, .keyfile = files_.key});
    options.handshake_deadline = deadline;
    options.stream_buffer_bytes = 16 << 20;  // a stream may run far ahead of its reader
    return test::StartServer(std::move(options), std::move(handler));
  }
  static HttpClient ClientOf(const HttpServer& server, const std::string& host = "127.0.0.1") {
    const auto context = TlsContext::ForClient();
    EXPECT_TRUE(context.ok());
    return HttpClient({.host = host, .port = server.port(), .tls = context.value()});
  }
  static std::string Write(const std::string& name, const std::string& text) {
    std::ofstream(folder_ + "/" + name) << text;
    return folder_ + "/" + name;
  }
  static std::string TextOf(const std::string& path) {
    std::ifstream file(path);
    return std::string(std::istreambuf_iterator<char>(file), {});
  }

  static inline std::string folder_;
  static inline CertificateFiles files_, other_;
};

TEST_F(TlsTest, AnswersOneRequestAfterTheOther) {
  const auto server = Start(Echo);
  for (const char* host : {"127.0.0.1", "localhost"}) {
    HttpClient client = ClientOf(*server, host);
    for (const size_t size : {size_t{0}, size_t{1}, size_t{16384}, size_t{5} << 20}) {
      const std::string body(size, 'b');

      const Result<HttpResponse> answer =
          client.Send({.method = "POST", .target = "/x", .body = body});

      ASSERT_TRUE(answer.ok()) << answer.status().message();
      EXPECT_EQ(answer.value().status, 200);
      EXPECT_TRUE(answer.value().body == "POST /x " + body) << size;
    }
    EXPECT_EQ(server->open_connections(), 1u) << "one connection took them all";
    client.Close();
    EXPECT_TRUE(Eventually([&] { return server->open_connections() == 0; }));
  }
}

// More than the kernel holds for a client that does not read, in pieces of all sizes.
TEST_F(TlsTest, AStreamIsWhatWasWritten) {
  std::string wanted;
  std::thread writer;
  const auto server = Start([&](const HttpRequest&, Responder responder) {
    responder.StartStream(200, {{"content-type", "application/octet-stream"}});
    writer = std::thread([&wanted, responder = std::move(responder)]() mutable {
      for (size_t i = 0; wanted.size() < (size_t{6} << 20); ++i) {
        const std::string piece(1 + i * 7919 % 40'000, static_cast<char>('a' + i % 26));
        if (!responder.Write(piece)) break;
        wanted += piece;
        if (i % 64 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(5));
      }
      responder.End();
    });
  });
  HttpClient client = ClientOf(*server);

  const Result<HttpResponse> answer = client.Send({.target = "/"});
  if (writer.joinable()) writer.join();

  ASSERT_TRUE(answer.ok()) << answer.status().message();
  EXPECT_GT(wanted.size(), size_t{4} << 20);
  EXPECT_TRUE(answer.value().body == wanted) << answer.value().body.size();
}

TEST_F(TlsTest, AClientThatAsksForTheEndIsToldOfIt) {
  const auto server = Start([](const HttpRequest&, Responder responder) {
    responder.Send({.headers = {}, .body = "x", .content_type = "text/plain", .close = true});
  });
  HttpClient client = ClientOf(*server);

  for (int i = 0; i < 3; ++i) EXPECT_TRUE(client.Send({.target = "/"}).ok());

  EXPECT_TRUE(Eventually([&] { return server->open_connections() == 0; }));
}

TEST_F(TlsTest, PlainHttpIsToldSoAndEndsAlone) {
  const auto server = Start(Echo);
  HttpClient good = ClientOf(*server);
  ASSERT_TRUE(good.Send({.target = "/"}).ok());
  RawClient client(server->port());

  client.Send("GET /x HTTP/1.1\r\nHost: a\r\n\r\n");

  EXPECT_THAT(client.ReadAll(),
              AllOf(StartsWith("HTTP/1.1 400 "), HasSubstr("this port speaks TLS")));
  EXPECT_TRUE(good.Send({.target = "/"}).ok());
}

TEST_F(TlsTest, GarbageEndsItsConnectionAlone) {
  const auto server = Start(Echo);
  HttpClient good = ClientOf(*server);
  ASSERT_TRUE(good.Send({.target = "/"}).ok());
  const std::string hello("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 11);
  for (const std::string& bytes : {std::string("\0\0\0\0\0\0\0\0", 8), std::string(100'000, '\xff'),
                                   std::string("SSH-2.0-x\r\n"), hello + std::string(1000, '\0')}) {
    RawClient client(server->port());
    client.Send(bytes);

    EXPECT_THAT(client.ReadAll(), ::testing::Not(HasSubstr("HTTP")));

    EXPECT_TRUE(client.closed_by_server());
  }
  EXPECT_TRUE(good.Send({.target = "/"}).ok());
}

TEST_F(TlsTest, AHandshakeHasSoMuchTime) {
  const auto server = Start(Echo, /*deadline=*/0.3);
  HttpClient good = ClientOf(*server);
  ASSERT_TRUE(good.Send({.target = "/"}).ok());
  const std::string hello("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 11);
  RawClient silent(server->port());
  RawClient slow(server->port());

  // A byte now and then does not lengthen it.
  for (size_t i = 0; i < hello.size() && slow.Send(hello.substr(i, 1)); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }

  EXPECT_THAT(silent.ReadAll(2), IsEmpty());
  EXPECT_TRUE(silent.closed_by_server());
  EXPECT_THAT(slow.ReadAll(2), IsEmpty());
  EXPECT_TRUE(slow.closed_by_server());
  EXPECT_TRUE(good.Send({.target = "/"}).ok()) << "the deadline ends with the handshake";
}

TEST_F(TlsTest, AConnectionCutInTheHandshakeLeavesNothing) {
  const auto server = Start(Echo);
  for (const bool reset : {false, true}) {
    RawClient client(server->port());
    client.Send("\x16\x03\x01");
    ASSERT_TRUE(Eventually([&] { return server->open_connections() == 1; }));

    if (reset) {
      client.CloseWithReset();
    } else {
      client.Close();
    }

    EXPECT_TRUE(Eventually([&] { return server->open_connections() == 0; }));
  }
}

TEST_F(TlsTest, AClientThatGoesInAStreamIsNoticed) {
  std::atomic<bool> gone = false;
  std::vector<Responder> kept;
  const auto server = Start([&](const HttpRequest&, Responder responder) {
    responder.StartStream(200);
    responder.OnClientGone([&] { gone = true; });
    responder.Write("data: 1\n\n");
    kept.push_back(std::move(responder));
  });
  HttpClient client = ClientOf(*server);

  EXPECT_TRUE(client.Stream({.target = "/"}, [](const SseEvent&) { return false; }).ok());

  EXPECT_TRUE(Eventually([&] { return gone.load(); }));
}

TEST_F(TlsTest, AClientRefusesACertificateThatItDoesNotTrust) {
  HttpServerOptions options;
  options.tls = Load({.certfile = other_.cert, .keyfile = other_.key});
  const auto server = test::StartServer(std::move(options), Echo);

  const Result<HttpResponse> answer = ClientOf(*server).Send({.target = "/"});

  ASSERT_FALSE(answer.ok());
  EXPECT_THAT(answer.status().message(),
              AllOf(HasSubstr("certificate verify failed: self-signed certificate"),
                    HasSubstr("SSL_CERT_FILE")));
}

TEST_F(TlsTest, TheKeyMayBeBesideTheCertificate) {
  const std::string both = Write("both.pem", TextOf(files_.key) + TextOf(files_.cert));

  EXPECT_THAT(Refusal({.certfile = both}), IsEmpty());
  EXPECT_THAT(Refusal({.certfile = both, .keyfile = both}), IsEmpty());
}

TEST_F(TlsTest, ARefusedFileIsNamedWithItsFlagAndTheReason) {
  const std::string text = Write("text.pem", "hello");
  const std::string cut = Write("cut.pem", TextOf(files_.cert).substr(0, 200));
  std::string bent_text = TextOf(files_.cert);
  bent_text[100] = bent_text[100] == 'A' ? 'B' : 'A';
  const std::string bent = Write("bent.pem", bent_text.replace(120, 8, "!!!!!!!!"));
  const std::string& cert = files_.cert;
  const std::string& key = files_.key;
  struct Row {
    TlsOptions options;
    std::vector<std::string> said;
  };
  const std::vector<Row> rows = {
      {{.certfile = folder_ + "/no", .keyfile = key},
       {"--ssl-certfile " + folder_ + "/no: No such"}},
      {{.certfile = folder_, .keyfile = key}, {"--ssl-certfile " + folder_}},
      {{.certfile = text, .keyfile = key}, {"--ssl-certfile " + text, "no certificate in PEM"}},
      {{.certfile = cut, .keyfile = key}, {"--ssl-certfile " + cut + ": certificate 1: "}},
      {{.certfile = bent, .keyfile = key}, {"--ssl-certfile " + bent + ": certificate 1: "}},
      {{.certfile = cert}, {"--ssl-certfile " + cert, "no private key", "--ssl-keyfile names"}},
      {{.certfile = cert, .keyfile = folder_ + "/no"},
       {"--ssl-keyfile " + folder_ + "/no: No such"}},
      {{.certfile = cert, .keyfile = text}, {"--ssl-keyfile " + text, "no private key in PEM"}},
      {{.certfile = cert, .keyfile = files_.locked_key},
       {"--ssl-keyfile " + files_.locked_key, "has a password", "openssl pkey"}},
      {{.certfile = cert, .keyfile = other_.key},
       {"--ssl-keyfile " + other_.key, "not that of the certificate in --ssl-certfile " + cert}},
      {{.certfile = cert, .keyfile = key, .ciphers = "NONE-SUCH"}, {"--ssl-ciphers NONE-SUCH"}},
      {{.certfile = cert, .keyfile = key, .ca_certs = text, .client = ClientCertificate::kRequired},
       {"--ssl-ca-certs " + text, "no certificate in PEM"}},
  };
  for (const Row& row : rows) {
    const std::string refusal = Refusal(row.options);
    for (const std::string& said : row.said) EXPECT_THAT(refusal, HasSubstr(said));
    EXPECT_THAT(refusal, ::testing::Not(IsEmpty()));
  }
}

// What the tests of the whole program do not: a file that goes, and one that is put back.
TEST_F(TlsTest, FilesThatChangeAreUsedOnceTheyHaveSettled) {
  const TlsOptions options{.certfile = Write("r.pem", TextOf(files_.cert)),
                           .keyfile = Write("r.key", TextOf(files_.key))};
  TlsRefresh refresh = TlsRefresh::Load(options).value();
  EXPECT_FALSE(refresh.Look());

  std::filesystem::remove(options.certfile);
  EXPECT_FALSE(refresh.Look());  // it may still change
  const auto gone = refresh.Look();
  ASSERT_TRUE(gone);
  EXPECT_THAT(gone->message(), HasSubstr("r.pem: No such file"));
  EXPECT_FALSE(refresh.Look());  // told once

  Write("r.pem", TextOf(other_.cert));
  Write("r.key", TextOf(other_.key));
  EXPECT_FALSE(refresh.Look());
  const auto back = refresh.Look();
  ASSERT_TRUE(back);
  EXPECT_TRUE(back->ok()) << back->message();
  EXPECT_FALSE(refresh.Look());
}

}  // namespace
}  // namespace baltoro
