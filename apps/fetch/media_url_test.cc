#include "fetch/media_url.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace baltoro {
namespace {

using ::testing::HasSubstr;

std::string Read(const std::string& url) {
  const Result<WebUrl> read = ReadWebUrl(url);
  if (!read.ok()) return std::string(read.status().message());
  return read.value().host + " " + std::to_string(read.value().port) +
         (read.value().https ? " secure" : "");
}

TEST(MediaUrlTest, HostsAreReadOnce) {
  EXPECT_EQ(Read("http://a.example/x.png"), "a.example 80");
  EXPECT_EQ(Read("HTTPS://A.Example"), "a.example 443 secure");
  EXPECT_EQ(Read("https://a.example:8443/x?y=z#w"), "a.example 8443 secure");
  EXPECT_EQ(Read("http://127.0.0.1:80/"), "127.0.0.1 80");
  EXPECT_EQ(Read("http://[::1]:9/"), "::1 9");
  EXPECT_EQ(Read("http://a.example?x@b.example"), "a.example 80");
  EXPECT_EQ(Read("http://a.example/@b.example:99/"), "a.example 80");
  EXPECT_EQ(Read("http://a_b-c.example/%2e%2e/\xe5\x9b\xbe.png"), "a_b-c.example 80");
}

// Each was read as another host by some pair of a check and a client.
TEST(MediaUrlTest, WhatIsReadInTwoWaysIsRefused) {
  for (const char* url : {"http://a.example\\@127.0.0.1/",
                          "http://a.example\\.evil.example/",
                          "http:\\\\127.0.0.1/",
                          "http://user@127.0.0.1/",
                          "http://a.example:80@127.0.0.1/",
                          "http://a:b@c.example/",
                          "http://a.example#@127.0.0.1:80@b/x y",
                          "http:// a.example/",
                          "http://a.example /",
                          "http://a.example\t/",
                          "http://a.example\r\nHost: b/",
                          "http://a\x01.example/",
                          "http://a.example./",
                          "http://.a.example/",
                          "http://a..example/",
                          "http://./",
                          "http://127.1/",
                          "http://2130706433/",
                          "http://0x7f000001/",
                          "http://0x7f.0.0.1/",
                          "http://0177.0.0.1/",
                          "http://127.0.0.1./",
                          "http://1.2.3.4.5/",
                          "http://256.1.1.1/",
                          "http://0/",
                          "http://a.0x1/",
                          "http://%31%32%37.0.0.1/",
                          "http://127%2e0.0.1/",
                          "http://loc%61lhost/",
                          "http://\xe2\x91\xa0.example/",
                          "http://[::1%25lo]/",
                          "http://[fe80::1%25eth0]/",
                          "http://[::ffff:7f00:1/",
                          "http://[127.0.0.1]/",
                          "http://[]/",
                          "http://[v1.a]/",
                          "http:///x",
                          "http:/a.example/x",
                          "http:a.example",
                          "//a.example/x",
                          "http://",
                          "http://:80/",
                          "http://a.example:0/",
                          "http://a.example:65536/",
                          "http://a.example:8 0/",
                          "http://a.example:-1/",
                          "http://a.example:80:80/",

                          "http://a,b.example/",
                          "http://a.example;b/",
                          "http://a.example&@b.example/",
                          "ftp://a.example/",
                          "gopher://a.example/",
                          "httpx://a.example/",
                          "javascript://a.example/",
                          "x",
                          ""}) {
    EXPECT_FALSE(ReadWebUrl(url).ok()) << url;
  }
  EXPECT_FALSE(ReadWebUrl("http://a.example/" + std::string(9000, 'x')).ok());
  EXPECT_FALSE(ReadWebUrl(std::string("http://a.example\0.b/", 20)).ok());
  EXPECT_THAT(Read("http://u:p@a.example/"), HasSubstr("user name or a password"));
}

// The host that was checked is the one in the request, for every URL that is taken.
TEST(MediaUrlTest, WhatIsTakenStandsInTheTextAsItIsConnectedTo) {
  const char* const pieces[] = {"a.example", "127.0.0.1", "@", ":", "\\", "/",   "?",
                                "#",         "[::1]",     ".", "%", "80", "%40", "x"};
  uint32_t state = 1;
  int taken = 0;
  for (int i = 0; i < 50'000; ++i) {
    std::string rest;
    for (int part = 0; part < 6; ++part) {
      state = state * 1664525 + 1013904223;
      rest += pieces[(state >> 16) % std::size(pieces)];
    }
    const Result<WebUrl> read = ReadWebUrl("http://" + rest);
    if (!read.ok()) continue;
    ++taken;
    std::string host = rest.substr(0, rest.find_first_of("/?#"));
    if (const size_t colon = host.rfind(':'); colon != host.npos && !host.ends_with(']')) {
      host = host.substr(0, colon);
    }
    if (host.starts_with('[')) host = host.substr(1, host.size() - 2);
    ASSERT_EQ(read.value().host, host) << rest;
  }
  EXPECT_GT(taken, 100);
}

TEST(MediaUrlTest, FilesAreNamedByTheirAbsolutePath) {
  for (const char* url : {"file:///data/a.png", "file://localhost/data/a.png", "file:/data/a.png",
                          "FILE:///data/a.png", "file:///data/%61.png"}) {
    EXPECT_EQ(ReadFileUrl(url).value(), "/data/a.png") << url;
  }
  EXPECT_EQ(ReadFileUrl("file:///d/%E5%9B%BE%20%3F%23.png").value(),
            ReadFileUrl("file:///d/\xe5\x9b\xbe%20%3f%23.png").value());
  EXPECT_EQ(ReadFileUrl("file:///a/%252e%252e/b").value(), "/a/%2e%2e/b");  // decoded once
}

TEST(MediaUrlTest, OtherFileUrlsAreRefused) {
  for (const char* url : {"file://host/etc/passwd",
                          "file://127.0.0.1/a",
                          "file://localhost.evil/a",
                          "file://a",
                          "file:a",
                          "file:",
                          "file://",
                          "file:///",
                          "file:////etc/passwd",
                          "file:///a//b",
                          "file:///a/",
                          "file:///a/../b",
                          "file:///a/./b",
                          "file:///..",
                          "file:///a/%2e%2e/b",
                          "file:///a/.%2E/b",
                          "file:///a%2f..%2fb",
                          "file:///a%2f%2e%2e",
                          "file:///a%00.png",
                          "file:///a%",
                          "file:///a%2",
                          "file:///a%zz",
                          "file:///a?b",
                          "file:///a#b",
                          "file:\\\\\\a",
                          "file:///a\\..\\b",
                          "file:///a b",
                          "file:///a\nb",
                          "file://~/a",
                          "file://../a"}) {
    EXPECT_FALSE(ReadFileUrl(url).ok()) << url;
  }
}

}  // namespace
}  // namespace baltoro
