#include <arpa/inet.h>
#include <fmt/format.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <map>

#include "base/file.h"
#include "doctor/gather.h"

namespace baltoro {
namespace {

namespace fs = std::filesystem;

std::string LineOf(const fs::path& path) {
  const Result<std::string> text = ReadFile(path.string(), 4096);
  return text.ok() ? text.value().substr(0, text.value().find('\n')) : "";
}

// Why nobody could listen at a port of all addresses; empty: one could.
std::string PortProblem(int port) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return std::strerror(errno);
  const int on = 1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);  // as a server asks
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  const bool bound = bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0 &&
                     listen(fd, 1) == 0;
  std::string problem = bound ? "" : std::strerror(errno);
  close(fd);
  return problem;
}

std::string AddressText(const sockaddr* address) {
  std::array<char, INET6_ADDRSTRLEN> text = {};
  const void* bytes = nullptr;
  if (address->sa_family == AF_INET)
    bytes = &reinterpret_cast<const sockaddr_in*>(address)->sin_addr;
  if (address->sa_family == AF_INET6) {
    bytes = &reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr;
  }
  if (bytes == nullptr) return "";
  inet_ntop(address->sa_family, bytes, text.data(), text.size());
  return text.data();
}

std::vector<InterfaceReport> Interfaces() {
  std::map<std::string, InterfaceReport> by_name;
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return {};
  for (const ifaddrs* each = list; each != nullptr; each = each->ifa_next) {
    InterfaceReport& report = by_name[each->ifa_name];
    report.name = each->ifa_name;
    report.loopback = (each->ifa_flags & IFF_LOOPBACK) != 0;
    report.up = (each->ifa_flags & IFF_UP) != 0 && (each->ifa_flags & IFF_RUNNING) != 0;
    const std::string text = each->ifa_addr == nullptr ? "" : AddressText(each->ifa_addr);
    if (!text.empty() && !text.starts_with("fe80")) report.addresses.push_back(text);
  }
  freeifaddrs(list);
  std::vector<InterfaceReport> out;
  for (auto& [name, report] : by_name) {
    const std::string speed = LineOf("/sys/class/net/" + name + "/speed");
    std::from_chars(speed.data(), speed.data() + speed.size(), report.megabits);
    out.push_back(std::move(report));
  }
  return out;
}

// "mlx5_0 ACTIVE 400 Gb/sec (4X NDR)" of each port.
std::vector<std::string> Rdma() {
  std::vector<std::string> out;
  std::error_code error;
  for (const auto& device : fs::directory_iterator("/sys/class/infiniband", error)) {
    std::error_code no_ports;
    for (const auto& port : fs::directory_iterator(device.path() / "ports", no_ports)) {
      const std::string state = LineOf(port.path() / "state");  // "4: ACTIVE"
      out.push_back(fmt::format("{} {} {}", device.path().filename().string(),
                                state.substr(std::min(state.find(' ') + 1, state.size())),
                                LineOf(port.path() / "rate")));
    }
  }
  return out;
}

}  // namespace

NetFacts GatherNet(int port, int master_port) {
  NetFacts out;
  out.ports = {
      {.port = port, .use = "clients", .problem = PortProblem(port)},
      {.port = master_port, .use = "nodes that meet", .problem = PortProblem(master_port)}};
  out.interfaces = Interfaces();
  out.rdma = Rdma();
  const std::string range = LineOf("/proc/sys/net/ipv4/ip_local_port_range");
  const char* end = range.data() + range.size();
  const auto first = std::from_chars(range.data(), end, out.first_free_port);
  if (first.ec == std::errc() && first.ptr < end) {
    std::from_chars(first.ptr + 1, end, out.last_free_port);
  }
  return out;
}

}  // namespace baltoro
