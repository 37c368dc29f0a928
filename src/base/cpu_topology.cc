#include "base/cpu_topology.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>

#include "base/file.h"

namespace baltoro {
namespace {

constexpr uint64_t kTextMax = 64 << 10;
constexpr int kNodesMax = 1024;  // as many as Linux can be built for

using Ranges = std::vector<std::pair<int, int>>;  // first and last

// Takes a number from the beginning of `text`, and blanks before it.
std::optional<int64_t> TakeNumber(std::string_view& text) {
  text.remove_prefix(std::min(text.find_first_not_of(" \n"), text.size()));
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc()) return std::nullopt;
  text.remove_prefix(static_cast<size_t>(end - text.data()));
  return value;
}

// "0-3,64" in ascending order; nothing where there is no such file, or something else in it.
std::optional<Ranges> ReadList(const std::string& path) {
  const Result<std::string> read = ReadFile(path, kTextMax);
  if (!read.ok()) return std::nullopt;
  std::string_view text = read.value();
  if (text.ends_with('\n')) text.remove_suffix(1);
  Ranges out;
  const auto number = [&text]() -> std::optional<int> {
    int value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || value < 0) return std::nullopt;
    text.remove_prefix(static_cast<size_t>(end - text.data()));
    return value;
  };
  while (!text.empty()) {
    if (!out.empty()) {
      if (!text.starts_with(',')) return std::nullopt;
      text.remove_prefix(1);
    }
    const std::optional<int> first = number();
    std::optional<int> last = first;
    if (text.starts_with('-')) {
      text.remove_prefix(1);
      last = number();
    }
    if (!first || !last || *last < *first) return std::nullopt;
    if (!out.empty() && *first <= out.back().second) return std::nullopt;
    out.emplace_back(*first, *last);
  }
  return out;
}

bool Has(const Ranges& ranges, int cpu) {
  return std::ranges::any_of(
      ranges, [cpu](const auto& each) { return each.first <= cpu && cpu <= each.second; });
}

// The allowed hyperthreads of the core of `cpu` that no core has yet.
std::vector<int> CoreOf(int cpu,
                        const CpuSet& allowed,
                        const std::vector<std::vector<int>>& taken,
                        const std::string& root) {
  const std::string folder = root + "/cpu/cpu" + std::to_string(cpu) + "/topology/";
  std::optional<Ranges> list = ReadList(folder + "thread_siblings_list");
  if (!list) list = ReadList(folder + "core_cpus_list");
  if (!list || !Has(*list, cpu)) return {cpu};
  std::vector<int> out;
  for (const auto& [first, last] : *list) {
    for (int each = first; each <= last && each < allowed.end(); ++each) {
      if (allowed.has(each) && taken[static_cast<size_t>(each)].empty()) out.push_back(each);
    }
  }
  return out;
}

bool AnyAllowed(const Ranges& ranges, const CpuSet& allowed) {
  const int end = allowed.end();
  for (const auto& [first, last] : ranges) {
    for (int cpu = first; cpu <= last && cpu < end; ++cpu) {
      if (allowed.has(cpu)) return true;
    }
  }
  return false;
}

std::vector<int> NodesOf(const CpuSet& allowed, const std::string& root) {
  constexpr std::string_view kName = "node";
  std::vector<int> out;
  std::error_code error;
  std::filesystem::directory_iterator it(root + "/node", error);
  for (; !error && it != std::filesystem::directory_iterator(); it.increment(error)) {
    const std::string name = it->path().filename();
    if (!name.starts_with(kName)) continue;
    const char* const end = name.data() + name.size();
    int node = -1;
    const auto [stop, wrong] = std::from_chars(name.data() + kName.size(), end, node);
    if (wrong != std::errc() || stop != end || node < 0 || node >= kNodesMax) continue;
    const std::optional<Ranges> list = ReadList(it->path().string() + "/cpulist");
    if (list && AnyAllowed(*list, allowed)) out.push_back(node);
  }
  std::ranges::sort(out);
  if (out.empty()) out.push_back(0);
  return out;
}

// Of "400000 100000".
double QuotaIn(std::string_view text) {
  const std::optional<int64_t> quota = TakeNumber(text);
  const std::optional<int64_t> period = quota ? TakeNumber(text) : std::nullopt;
  if (!quota || !period || *quota <= 0 || *period <= 0) return -1;
  return static_cast<double>(*quota) / static_cast<double>(*period);
}

}  // namespace

CpuTopology ReadCpuTopology(const CpuSet& allowed, const std::string& root) {
  CpuTopology out;
  out.cpus = allowed.count();
  out.core_cpus.resize(static_cast<size_t>(allowed.end()));
  for (int cpu = 0; cpu < allowed.end(); ++cpu) {
    if (!allowed.has(cpu) || !out.core_cpus[static_cast<size_t>(cpu)].empty()) continue;
    const std::vector<int> core = CoreOf(cpu, allowed, out.core_cpus, root);
    for (const int each : core) out.core_cpus[static_cast<size_t>(each)] = core;
    ++out.cores;
  }
  out.nodes = NodesOf(allowed, root);
  return out;
}

CpuSet FreeCpus(const CpuSet& allowed, const CpuTopology& topology, std::span<const int> taken) {
  CpuSet free = allowed, apart = allowed;
  for (const int cpu : taken) {
    free.Remove(cpu);
    if (!allowed.has(cpu)) continue;
    for (const int sibling : topology.core_cpus[static_cast<size_t>(cpu)]) apart.Remove(sibling);
  }
  return apart.count() > 0 ? apart : free;
}

double ControlGroupCpus(const std::string& root) {
  const auto text = [&root](const char* name) {
    const Result<std::string> read = ReadFile(root + name, kTextMax);
    return read.ok() ? read.value() : "";
  };
  const std::string one = text("/cpu.max");
  if (!one.empty()) return QuotaIn(one);
  return QuotaIn(text("/cpu/cpu.cfs_quota_us") + " " + text("/cpu/cpu.cfs_period_us"));
}

int ThreadsByDefault(const CpuTopology& topology, double quota) {
  int threads = topology.cores;
  if (threads == 0) threads = static_cast<int>(std::thread::hardware_concurrency());
  if (quota > 0 && quota < threads) threads = static_cast<int>(std::ceil(quota));
  return std::max(threads, 1);
}

}  // namespace baltoro
