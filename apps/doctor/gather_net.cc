#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <map>

#include "base/file.h"
#include "doctor/gather.h"
#include "net/interfaces.h"

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

// Of those that are up and have an address.
std::vector<InterfaceReport> Interfaces() {
  std::map<std::string, InterfaceReport> by_name;
  for (const InterfaceAddress& each : InterfaceAddresses()) {
    InterfaceReport& report = by_name[each.name];
    report.name = each.name;
    report.loopback = each.loopback;
    report.up = each.running;
    report.addresses.push_back(each.address);
  }
  std::vector<InterfaceReport> out;
  for (auto& [name, report] : by_name) {
    const std::string speed = LineOf("/sys/class/net/" + name + "/speed");
    std::from_chars(speed.data(), speed.data() + speed.size(), report.megabits);
    out.push_back(std::move(report));
  }
  return out;
}

// What is in a folder that may not be there, or not be readable.
std::vector<fs::path> EntriesOf(const fs::path& folder) {
  std::vector<fs::path> out;
  std::error_code error;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    out.push_back(at->path());
  }
  return out;
}

// "mlx5_0 ACTIVE 400 Gb/sec (4X NDR)" of each port.
std::vector<std::string> Rdma() {
  std::vector<std::string> out;
  for (const fs::path& device : EntriesOf("/sys/class/infiniband")) {
    for (const fs::path& port : EntriesOf(device / "ports")) {
      const std::string state = LineOf(port / "state");  // "4: ACTIVE"
      out.push_back(fmt::format("{} {} {}", device.filename().string(),
                                state.substr(std::min(state.find(' ') + 1, state.size())),
                                LineOf(port / "rate")));
    }
  }
  return out;
}

}  // namespace

NetFacts GatherNet(const DoctorAsk& ask) {
  NetFacts out;
  out.ports = {{.port = ask.port, .use = "clients", .flag = "--port"},
               {.port = ask.master_port, .use = "nodes that meet", .flag = "--master-port"},
               {.port = ask.replica_port,
                .use = "nodes of replicas that meet",
                .flag = "--data-parallel-rpc-port"}};
  for (PortReport& report : out.ports) report.problem = PortProblem(report.port);
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
