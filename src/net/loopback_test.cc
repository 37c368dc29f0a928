#include "net/loopback.h"

#include <gtest/gtest.h>

namespace baltoro {
namespace {

TEST(LoopbackTest, AllOfThisMachinesOwnAddressesAndNames) {
  for (const char* host :
       {"localhost", "LocalHost", "localhost.", "web.localhost", "127.0.0.1", "127.0.0.2",
        "127.255.255.254", "::1", "0:0:0:0:0:0:0:1", "::ffff:127.0.0.1"}) {
    EXPECT_TRUE(IsLoopback(host)) << host;
  }
}

TEST(LoopbackTest, NothingThatSomebodyElseCanName) {
  for (const char* host :
       {"", "evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "notlocalhost",
        "0.0.0.0", "::", "128.0.0.1", "126.0.0.1", "10.0.0.1", "127.1", "0x7f000001", "2130706433",
        "127.0.0.1 ", "[::1]", "::ffff:10.0.0.1", "localhost.."}) {
    EXPECT_FALSE(IsLoopback(host)) << host;
  }
}

TEST(LoopbackTest, TheHostOfAnAuthority) {
  EXPECT_EQ(HostOfAuthority("localhost:8000"), "localhost");
  EXPECT_EQ(HostOfAuthority("localhost"), "localhost");
  EXPECT_EQ(HostOfAuthority("[::1]:8000"), "::1");
  EXPECT_EQ(HostOfAuthority("[::1]"), "::1");
  EXPECT_EQ(HostOfAuthority("[::1"), "");
  EXPECT_EQ(HostOfAuthority(""), "");
}

}  // namespace
}  // namespace baltoro
