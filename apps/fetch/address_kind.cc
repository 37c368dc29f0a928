#include "fetch/address_kind.h"

#include <netinet/in.h>

#include <array>
#include <cstdint>
#include <cstring>

namespace baltoro {
namespace {

using enum AddressKind;

struct Range4 {
  std::array<uint8_t, 4> base;
  int bits;
  AddressKind kind;
};

// The first that holds it decides.
constexpr Range4 kRanges4[] = {
    {{0, 0, 0, 0}, 8, kNever},           // this network
    {{10, 0, 0, 0}, 8, kPrivate},        //
    {{100, 100, 100, 200}, 32, kNever},  // metadata of Alibaba Cloud
    {{100, 64, 0, 0}, 10, kPrivate},     // shared by a carrier
    {{127, 0, 0, 0}, 8, kPrivate},       // loopback
    {{168, 63, 129, 16}, 32, kNever},    // the host of Azure
    {{169, 254, 0, 0}, 16, kNever},      // link, with the metadata of most clouds
    {{172, 16, 0, 0}, 12, kPrivate},     //
    {{192, 0, 0, 0}, 24, kNever},        // protocols, with the metadata of Oracle's cloud
    {{192, 0, 2, 0}, 24, kNever},        // documentation
    {{192, 88, 99, 0}, 24, kNever},      // relays of 6to4
    {{192, 168, 0, 0}, 16, kPrivate},    //
    {{198, 18, 0, 0}, 15, kPrivate},     // benchmarks
    {{198, 51, 100, 0}, 24, kNever},     // documentation
    {{203, 0, 113, 0}, 24, kNever},      // documentation
    {{224, 0, 0, 0}, 4, kNever},         // groups
    {{240, 0, 0, 0}, 4, kNever},         // reserved, and all at once
};

struct Range6 {
  std::array<uint16_t, 8> base;
  int bits;
  AddressKind kind;
};

constexpr Range6 kRanges6[] = {
    {{0, 0, 0, 0, 0, 0, 0, 1}, 128, kPrivate},              // loopback
    {{0xfd00, 0x0ec2, 0, 0, 0, 0, 0, 0x254}, 128, kNever},  // metadata of AWS
    {{0xfd20, 0x00ce, 0, 0, 0, 0, 0, 0x254}, 128, kNever},  // metadata of Google's cloud
    {{0xfc00}, 7, kPrivate},                                // unique local
    {{0x2001}, 23, kNever},                                 // protocols, with Teredo
    {{0x2001, 0x0db8}, 32, kNever},                         // documentation
    {{0x2002}, 16, kNever},                                 // 6to4
    {{0x3fff}, 20, kNever},                                 // documentation
    {{0x2000}, 3, kPublic},                                 // all that is given out
    {{}, 0, kNever},
};

template <size_t kBytes>
bool Holds(const std::array<uint8_t, kBytes>& base, int bits, const uint8_t* address) {
  const int whole = bits / 8, rest = bits % 8;
  if (std::memcmp(base.data(), address, static_cast<size_t>(whole)) != 0) return false;
  if (rest == 0) return true;
  const auto mask = static_cast<uint8_t>(0xff << (8 - rest));
  return (base[static_cast<size_t>(whole)] & mask) == (address[whole] & mask);
}

AddressKind KindOf4(const uint8_t* address) {
  for (const Range4& range : kRanges4) {
    if (Holds(range.base, range.bits, address)) return range.kind;
  }
  return kPublic;
}

std::array<uint8_t, 16> BytesOf(const std::array<uint16_t, 8>& groups) {
  std::array<uint8_t, 16> out{};
  for (size_t i = 0; i < groups.size(); ++i) {
    out[2 * i] = static_cast<uint8_t>(groups[i] >> 8);
    out[2 * i + 1] = static_cast<uint8_t>(groups[i] & 0xff);
  }
  return out;
}

AddressKind KindOf6(const uint8_t* address) {
  const std::array<uint8_t, 16> mapped = BytesOf({0, 0, 0, 0, 0, 0xffff});
  if (Holds(mapped, 96, address)) return KindOf4(address + 12);
  // A network without IPv4 reaches its public hosts so, and must reach no others.
  const std::array<uint8_t, 16> nat64 = BytesOf({0x0064, 0xff9b});
  if (Holds(nat64, 96, address)) return KindOf4(address + 12) == kPublic ? kPublic : kNever;
  for (const Range6& range : kRanges6) {
    if (Holds(BytesOf(range.base), range.bits, address)) return range.kind;
  }
  return kNever;
}

}  // namespace

AddressKind KindOfAddress(const sockaddr& address) {
  if (address.sa_family == AF_INET) {
    const auto& four = reinterpret_cast<const sockaddr_in&>(address);
    return KindOf4(reinterpret_cast<const uint8_t*>(&four.sin_addr));
  }
  if (address.sa_family == AF_INET6) {
    const auto& six = reinterpret_cast<const sockaddr_in6&>(address);
    return KindOf6(six.sin6_addr.s6_addr);
  }
  return kNever;
}

}  // namespace baltoro
