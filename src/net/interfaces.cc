#include "net/interfaces.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <ifaddrs.h>
#include <net/if.h>

#include <algorithm>
#include <array>

namespace baltoro {
namespace {

std::vector<std::string_view> Parts(std::string_view list) {
  std::vector<std::string_view> parts;
  while (!list.empty()) {
    const size_t end = std::min(list.find(','), list.size());
    if (end > 0) parts.push_back(list.substr(0, end));
    list.remove_prefix(std::min(end + 1, list.size()));
  }
  return parts;
}

std::string Known(std::span<const InterfaceAddress> there) {
  std::vector<std::string> words;
  for (const InterfaceAddress& each : there) words.push_back(each.name + " " + each.address);
  return words.empty() ? "this machine tells of none"
                       : fmt::format("there are {}", fmt::join(words, ", "));
}

bool Matches(std::string_view name, std::string_view part, bool prefix) {
  return prefix ? name.starts_with(part) : name == part;
}

// Whether the wish lets this interface in; `part` is one of its words.
struct Wish {
  std::vector<std::string_view> parts;
  bool prefix = false, except = false;

  bool Takes(std::string_view name, std::string_view part) const {
    if (!except) return Matches(name, part, prefix);
    return std::ranges::none_of(parts,
                                [&](std::string_view each) { return Matches(name, each, prefix); });
  }
};

Wish ReadWish(std::string_view text, InterfaceNames names) {
  Wish wish;
  if (names == InterfaceNames::kPrefix) {
    wish.except = text.starts_with('^');
    if (wish.except) text.remove_prefix(1);
    wish.prefix = !text.starts_with('=');
    if (!wish.prefix) text.remove_prefix(1);
  }
  wish.parts = Parts(text);
  return wish;
}

}  // namespace

std::vector<InterfaceAddress> InterfaceAddresses() {
  std::vector<InterfaceAddress> out;
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) != 0) return out;
  for (const ifaddrs* each = all; each != nullptr; each = each->ifa_next) {
    if (each->ifa_addr == nullptr || (each->ifa_flags & IFF_UP) == 0) continue;
    std::array<char, INET6_ADDRSTRLEN> text{};
    const void* address = nullptr;
    const int family = each->ifa_addr->sa_family;
    if (family == AF_INET) {
      address = &reinterpret_cast<const sockaddr_in*>(each->ifa_addr)->sin_addr;
    } else if (family == AF_INET6) {
      const auto* six = &reinterpret_cast<const sockaddr_in6*>(each->ifa_addr)->sin6_addr;
      if (!IN6_IS_ADDR_LINKLOCAL(six)) address = six;
    }
    if (address == nullptr || inet_ntop(family, address, text.data(), text.size()) == nullptr) {
      continue;
    }
    out.push_back({.name = each->ifa_name,
                   .address = text.data(),
                   .six = family == AF_INET6,
                   .loopback = (each->ifa_flags & IFF_LOOPBACK) != 0,
                   .running = (each->ifa_flags & IFF_RUNNING) != 0});
  }
  freeifaddrs(all);
  return out;
}

Result<InterfaceAddress> ChooseInterface(std::string_view wish,
                                         InterfaceNames names,
                                         bool six,
                                         std::span<const InterfaceAddress> there) {
  const Wish read = ReadWish(wish, names);
  const InterfaceAddress* other = nullptr;
  for (const std::string_view part : read.parts) {
    for (const InterfaceAddress& each : there) {
      // What is left when some are excluded is hardly meant to be the way to itself.
      if (read.except && each.name == "lo") continue;
      if (!read.Takes(each.name, part)) continue;
      if (each.six == six) return each;
      if (other == nullptr) other = &each;
    }
    if (other != nullptr) return *other;
  }
  return InvalidArgument(
      fmt::format("no interface of this name is up and has an address; {}", Known(there)));
}

Status CheckOwnAddress(std::string_view address, std::span<const InterfaceAddress> there) {
  for (const InterfaceAddress& each : there) {
    if (each.address == address) return {};
  }
  return InvalidArgument(
      fmt::format("no interface of this machine has this address; {}", Known(there)));
}

}  // namespace baltoro
