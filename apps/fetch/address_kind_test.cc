#include "fetch/address_kind.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/un.h>

#include <string>

namespace baltoro {
namespace {

AddressKind KindOf(const std::string& text) {
  sockaddr_storage storage{};
  auto& four = reinterpret_cast<sockaddr_in&>(storage);
  auto& six = reinterpret_cast<sockaddr_in6&>(storage);
  if (inet_pton(AF_INET, text.c_str(), &four.sin_addr) == 1) {
    four.sin_family = AF_INET;
  } else {
    EXPECT_EQ(inet_pton(AF_INET6, text.c_str(), &six.sin6_addr), 1) << text;
    six.sin6_family = AF_INET6;
  }
  return KindOfAddress(reinterpret_cast<const sockaddr&>(storage));
}

TEST(AddressKindTest, WhatAnybodyReachesIsPublic) {
  for (const char* address :
       {"1.1.1.1",         "8.8.8.8",         "9.255.255.255",   "11.0.0.0",
        "100.63.255.255",  "100.128.0.0",     "126.255.255.255", "128.0.0.0",
        "168.63.129.15",   "169.253.255.255", "169.255.0.0",     "172.15.255.255",
        "172.32.0.0",      "192.0.1.0",       "192.167.255.255", "192.169.0.0",
        "198.17.255.255",  "198.20.0.0",      "223.255.255.255", "2001:4860:4860::8888",
        "2606:4700::1111", "2400:cb00::1",    "2001:200::1",     "3ffe::1",
        "::ffff:8.8.8.8",  "64:ff9b::808:808"}) {
    EXPECT_EQ(KindOf(address), AddressKind::kPublic) << address;
  }
}

TEST(AddressKindTest, OfThisMachineAndItsNetworks) {
  for (const char* address : {"10.0.0.0", "10.255.255.255", "100.64.0.0", "100.127.255.255",
                              "127.0.0.1", "127.255.255.255", "172.16.0.0", "172.31.255.255",
                              "192.168.0.1", "198.18.0.1", "198.19.255.255", "::1", "fc00::1",
                              "fd12:3456::1", "::ffff:127.0.0.1", "::ffff:10.1.2.3"}) {
    EXPECT_EQ(KindOf(address), AddressKind::kPrivate) << address;
  }
}

TEST(AddressKindTest, NobodysPicturesLieThere) {
  for (const char* address :
       {// Metadata of clouds.
        "169.254.169.254", "169.254.170.2", "100.100.100.200", "168.63.129.16", "192.0.0.192",
        "fd00:ec2::254", "fd20:ce::254", "::ffff:169.254.169.254",
        // Links, groups, what stands for nothing.
        "0.0.0.0", "0.1.2.3", "169.254.0.0", "224.0.0.1", "239.255.255.250", "240.0.0.1",
        "255.255.255.255", "::", "fe80::1", "febf::1", "fec0::1", "ff02::1", "::ffff:0.0.0.0",
        // Documentation.
        "192.0.2.1", "198.51.100.1", "203.0.113.1", "2001:db8::1", "3fff::1", "3fff:fff::1",
        // IPv4 in other clothes: 6to4, Teredo, NAT64, compatible, ISATAP's link, translated.
        "2002:7f00:1::", "2002:808:808::1", "2001::1", "2001:0:7f00:1::", "64:ff9b::7f00:1",
        "64:ff9b::a00:1", "64:ff9b::a9fe:a9fe", "64:ff9b:1::1", "::7f00:1", "::127.0.0.1",
        "::8.8.8.8", "::ffff:0:127.0.0.1", "fe80::5efe:7f00:1", "192.88.99.1",
        // Not given out.
        "100::1", "4000::1", "5f00::1", "e000::1"}) {
    EXPECT_EQ(KindOf(address), AddressKind::kNever) << address;
  }
}

TEST(AddressKindTest, OtherFamiliesAreNone) {
  sockaddr_un local{};
  local.sun_family = AF_UNIX;
  EXPECT_EQ(KindOfAddress(reinterpret_cast<const sockaddr&>(local)), AddressKind::kNever);
}

}  // namespace
}  // namespace baltoro
