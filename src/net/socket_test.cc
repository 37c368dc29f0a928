#include "net/socket.h"

#include <gtest/gtest.h>

#include "support/support.h"

namespace baltoro {
namespace {

TEST(SocketTest, AClientIsAnAddressWhateverItsPort) {
  EXPECT_EQ(ClientOfPeer("192.0.2.1:4711"), "192.0.2.1");
  EXPECT_EQ(ClientOfPeer("unix"), "unix");
  EXPECT_EQ(ClientOfPeer("[::ffff:192.0.2.1]:4711"), "192.0.2.1");
  // Who has one of them has all of them.
  EXPECT_EQ(ClientOfPeer("[2001:db8:1:2:3:4:5:6]:4711"), "2001:db8:1:2::/64");
  EXPECT_EQ(ClientOfPeer("[2001:db8:1:2::9]:1"), "2001:db8:1:2::/64");
  EXPECT_EQ(ClientOfPeer("[2001:db8:1:3::9]:1"), "2001:db8:1:3::/64");
}

// What a name leads to counts, not the name: "127.1" is 127.0.0.1 to the resolver.
TEST(SocketTest, WhatIsBoundTellsWhetherItIsLoopback) {
  const auto bound = [](const char* host) {
    const Result<UniqueFd> fd = ListenTcp(host, 0, {});
    EXPECT_TRUE(fd.ok()) << host;
    return fd.ok() && BoundToLoopback(fd.value().get());
  };
  for (const char* host : {"127.0.0.1", "127.0.0.2", "localhost", "127.1"}) {
    EXPECT_TRUE(bound(host)) << host;
  }
  for (const char* host : {"", "0.0.0.0"}) EXPECT_FALSE(bound(host)) << host;
  const test::TempDir dir;
  const Result<UniqueFd> fd = ListenUnix(dir.path() + "/socket", {});
  ASSERT_TRUE(fd.ok());
  EXPECT_FALSE(BoundToLoopback(fd.value().get()));
}

}  // namespace
}  // namespace baltoro
