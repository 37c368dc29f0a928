#include "net/loopback.h"

#include <arpa/inet.h>

#include <algorithm>
#include <string>

namespace baltoro {

bool IsLoopback(std::string_view host) {
  std::string name(host.substr(0, 256));
  std::transform(name.begin(), name.end(), name.begin(), [](char c) {
    return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  });
  in_addr four{};
  if (inet_pton(AF_INET, name.c_str(), &four) == 1) return ntohl(four.s_addr) >> 24 == 127;
  in6_addr six{};
  if (inet_pton(AF_INET6, name.c_str(), &six) == 1) {
    return IN6_IS_ADDR_LOOPBACK(&six) || (IN6_IS_ADDR_V4MAPPED(&six) && six.s6_addr[12] == 127);
  }
  if (name.ends_with('.')) name.pop_back();
  return name == "localhost" || (name.ends_with(".localhost") && name.size() <= 253);
}

std::string_view HostOfAuthority(std::string_view authority) {
  if (authority.starts_with('[')) {
    const size_t end = authority.find(']');
    return end == std::string_view::npos ? "" : authority.substr(1, end - 1);
  }
  return authority.substr(0, authority.find(':'));
}

}  // namespace baltoro
