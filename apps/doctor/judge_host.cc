#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "doctor/judge.h"

namespace baltoro {
namespace {

constexpr double kGib = 1024.0 * 1024 * 1024;
constexpr int64_t kMemlockWanted = int64_t{64} << 20;
constexpr int64_t kShmWanted = int64_t{1} << 30, kShmLeast = int64_t{64} << 20;
constexpr int64_t kFilesWanted = 4096;
constexpr int64_t kMemoryLeast = int64_t{2} << 30;
constexpr double kReadRateLeast = 4;  // GB/s: a slow memory channel of today has more
constexpr double kClockErrorMax = 0.5;
constexpr int kPortsLeast = 1000;

std::string Gib(int64_t bytes) {
  return fmt::format("{:.1f} GiB", static_cast<double>(bytes) / kGib);
}

DoctorLine JudgeCpu(const HostFacts& facts, size_t cards) {
  DoctorLine line{.name = "CPU"};
  line.text =
      fmt::format("{}: {}", facts.cpu.empty() ? "unknown" : facts.cpu,
                  cpu::Describe(facts.cpu_use, facts.isa.empty() ? "without AVX2" : facts.isa));
  if (facts.isa.empty()) {
    line.verdict = DoctorVerdict::kBroken;
    line.remedy =
        "the CPU operations need AVX2 and FMA: another machine, or the CPU type of the "
        "virtual machine (host-passthrough)";
  }
  const auto warn = [&line](std::string_view remedy) {
    line.verdict = std::max(line.verdict, DoctorVerdict::kWarning);
    line.remedy += line.remedy.empty() ? "" : "; ";
    line.remedy += remedy;
  };
  if (facts.cpu_use.quota > 0 && facts.cpu_use.quota < facts.cpu_use.cores) {
    warn(
        "raise its quota (docker --cpus, a pod's limits.cpu): a step waits whenever it is used up");
  }
  if (cards == 0 && !facts.cpu_use.memory.problem.empty()) {
    warn(
        "let the container set the placement of its memory (docker --cap-add SYS_NICE), or keep "
        "the server on the CPUs of one node: weights on one node are read through its channels "
        "alone");
  }
  return line;
}

DoctorLine JudgeMemory(const HostFacts& facts) {
  DoctorLine line{.name = "memory"};
  line.text =
      fmt::format("{}, {} available", facts.memory_bytes < 0 ? "unknown" : Gib(facts.memory_bytes),
                  Gib(facts.available_bytes));
  if (facts.group_limit_bytes >= 0) {
    line.text += fmt::format("; the control group allows {}", Gib(facts.group_limit_bytes));
  }
  if (facts.available_bytes >= 0 && facts.available_bytes < kMemoryLeast) {
    line.verdict = DoctorVerdict::kWarning;
    line.remedy = "a server needs more: end other programs, or raise the limit of the container";
  }
  return line;
}

DoctorLine JudgeReadRate(const HostFacts& facts) {
  DoctorLine line{.name = "memory rate"};
  if (facts.read_gb_per_s < 0) {
    line.text = "not measured: too little memory is free";
    return line;
  }
  line.text = fmt::format("{:.1f} GB/s read by all CPUs", facts.read_gb_per_s);
  if (facts.read_gb_per_s < kReadRateLeast) {
    line.verdict = DoctorVerdict::kWarning;
    line.remedy =
        "other programs use it at present, or the machine lends little of it: decoding on "
        "the CPU is as slow";
  }
  return line;
}

DoctorLine JudgeMemlock(const HostFacts& facts, size_t cards) {
  DoctorLine line{.name = "memlock"};
  const bool unlimited = facts.memlock_bytes == INT64_MAX;
  line.text = unlimited ? "unlimited" : fmt::format("{} KiB", facts.memlock_bytes / 1024);
  if (!unlimited && cards > 0 && facts.memlock_bytes < kMemlockWanted) {
    line.verdict = DoctorVerdict::kWarning;
    line.remedy =
        "ulimit -l unlimited (docker --ulimit memlock=-1, LimitMEMLOCK=infinity): RDMA "
        "between nodes needs locked memory";
  }
  return line;
}

DoctorLine JudgeSharedMemory(const HostFacts& facts, size_t cards) {
  DoctorLine line{.name = "shared memory"};
  if (facts.shm_bytes < 0) {
    return {.name = "shared memory",
            .verdict = DoctorVerdict::kWarning,
            .text = "there is no /dev/shm",
            .remedy = "mount a tmpfs there: ranks in processes of one host exchange through it"};
  }
  line.text = fmt::format("/dev/shm has {:.0f} MiB, {:.0f} free",
                          static_cast<double>(facts.shm_bytes) / 1048576,
                          static_cast<double>(facts.shm_free_bytes) / 1048576);
  const int64_t wanted = cards > 1 ? kShmWanted : kShmLeast;
  if (facts.shm_free_bytes < wanted) {
    line.verdict = DoctorVerdict::kWarning;
    line.remedy = fmt::format("docker run --shm-size 16g or --ipc host; {} MiB are wanted free",
                              wanted >> 20);
  }
  return line;
}

DoctorLine JudgeFiles(const HostFacts& facts) {
  DoctorLine line{.name = "open files"};
  line.text = fmt::format("{} (could be raised to {})", facts.files_soft, facts.files_hard);
  if (facts.files_soft >= 0 && facts.files_soft < kFilesWanted) {
    line.verdict = DoctorVerdict::kWarning;
    line.remedy = fmt::format("ulimit -n {} (LimitNOFILE of systemd): each client is one",
                              std::max(kFilesWanted, std::min<int64_t>(facts.files_hard, 65536)));
  }
  return line;
}

DoctorLine JudgeHugePages(const HostFacts& facts) {
  DoctorLine line{.name = "huge pages"};
  line.text = facts.huge_pages.empty() ? "unknown" : "transparent: " + facts.huge_pages;
  if (facts.huge_pages == "never") {
    line.verdict = DoctorVerdict::kWarning;
    line.remedy =
        "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled: weights in small "
        "pages are read more slowly";
  }
  return line;
}

DoctorLine JudgeClock(const HostFacts& facts) {
  DoctorLine line{.name = "clock"};
  if (!facts.clock_known) {
    line.text = "whether it is synchronised cannot be seen from here";
    return line;
  }
  line.text = facts.clock_synced
                  ? fmt::format("synchronised, to within {:.3f} s", facts.clock_error_s)
                  : "not synchronised";
  if (!facts.clock_synced || facts.clock_error_s > kClockErrorMax) {
    line.verdict = DoctorVerdict::kWarning;
    line.remedy =
        "start chrony or systemd-timesyncd: logs of several nodes do not fit together, and "
        "certificates may seem to have run out";
  }
  return line;
}

std::string Addresses(const InterfaceReport& interface) {
  std::string speed =
      interface.megabits > 0
          ? fmt::format(", {:.0f} Gb/s", static_cast<double>(interface.megabits) / 1000)
          : "";
  if (interface.megabits > 0 && interface.megabits < 1000) {
    speed = fmt::format(", {} Mb/s", interface.megabits);
  }
  return fmt::format("{} ({}{})", interface.name, fmt::join(interface.addresses, " "), speed);
}

}  // namespace

std::vector<DoctorLine> JudgeHost(const HostFacts& facts, size_t cards) {
  return {JudgeCpu(facts, cards), JudgeMemory(facts),         JudgeReadRate(facts),
          JudgeHugePages(facts),  JudgeMemlock(facts, cards), JudgeSharedMemory(facts, cards),
          JudgeFiles(facts),      JudgeClock(facts)};
}

std::vector<DoctorLine> JudgeNet(const NetFacts& facts) {
  std::vector<DoctorLine> lines;
  for (const PortReport& port : facts.ports) {
    DoctorLine line{.name = fmt::format("port {}", port.port),
                    .text = fmt::format("free, for {}", port.use)};
    if (!port.problem.empty()) {
      line.verdict = DoctorVerdict::kWarning;
      line.text = fmt::format("wanted for {}: {}", port.use, port.problem);
      line.remedy = fmt::format("`ss -ltnp` says who has it; {} takes another", port.flag);
    }
    lines.push_back(std::move(line));
  }
  DoctorLine ranks{.name = "ports of ranks"};
  const int count = facts.last_free_port - facts.first_free_port + 1;
  ranks.text = facts.first_free_port < 0
                   ? "unknown"
                   : fmt::format("{} to {}", facts.first_free_port, facts.last_free_port);
  if (facts.first_free_port >= 0 && count < kPortsLeast) {
    ranks.verdict = DoctorVerdict::kWarning;
    ranks.remedy = "widen net.ipv4.ip_local_port_range";
  }
  lines.push_back(std::move(ranks));

  std::vector<std::string> up;
  for (const InterfaceReport& each : facts.interfaces) {
    if (each.up && !each.loopback && !each.addresses.empty()) up.push_back(Addresses(each));
  }
  if (up.empty()) {
    lines.push_back({.name = "network",
                     .verdict = DoctorVerdict::kWarning,
                     .text = "no interface but loopback has an address",
                     .remedy = "only this machine can reach the server, and no other node can"});
  } else {
    lines.push_back({.name = "network", .text = fmt::format("{}", fmt::join(up, ", "))});
  }
  if (!facts.rdma.empty()) {
    const bool active = std::ranges::any_of(
        facts.rdma, [](const std::string& each) { return each.find("ACTIVE") != each.npos; });
    lines.push_back({.name = "RDMA",
                     .verdict = active ? DoctorVerdict::kOk : DoctorVerdict::kWarning,
                     .text = fmt::format("{}", fmt::join(facts.rdma, ", ")),
                     .remedy = active ? "" : "no port is active: cables, and the subnet manager"});
  }
  return lines;
}

}  // namespace baltoro
