#include "ops/cpu/cpu_use.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <vector>

#include "base/cpu_topology.h"

namespace baltoro::cpu {
namespace {

std::string Counted(int count, std::string_view noun) {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s");
}

// "4" of 4.0, "1.5" of 1.5.
std::string Number(double value) {
  return fmt::format("{:.3g}", value);
}

}  // namespace

CpuUse FindCpuUse(int threads, int ranks) {
  const CpuTopology topology = ReadCpuTopology(CpuSet::Allowed());
  CpuUse out{.ranks = ranks,
             .as_asked = threads > 0,
             .cores = topology.cores,
             .cpus = topology.cpus,
             .quota = ControlGroupCpus(),
             .memory = SpreadOfProcess()};
  const int all = threads > 0 ? threads : ThreadsByDefault(topology, out.quota);
  out.threads = std::max(1, all / ranks);
  return out;
}

std::string Describe(const CpuUse& use, std::string_view isa) {
  std::string out = fmt::format("{}, {}", isa, Counted(use.threads, "thread"));
  if (use.ranks > 1) out += fmt::format(" for each of {} ranks", use.ranks);
  if (use.cores > 0) out += " on " + Counted(use.cores, "core");
  if (use.cpus > use.cores && use.cores > 0) out += fmt::format(" with {} CPUs", use.cpus);
  std::vector<std::string> notes;
  if (!use.as_asked && use.cpus > use.cores && use.cores > 0) {
    notes.push_back("second hyperthreads are left out");
  }
  if (use.quota > 0 && use.quota < use.cpus) {
    notes.push_back(fmt::format("the control group pays for {} of {}", Number(use.quota),
                                Counted(use.cpus, "CPU")));
  }
  if (!notes.empty()) out += fmt::format(" ({})", fmt::join(notes, "; "));
  if (use.memory.nodes.size() > 1) {
    out += use.memory.problem.empty()
               ? fmt::format(", memory interleaved over {} NUMA nodes", use.memory.nodes.size())
               : fmt::format(", memory not interleaved over its {} NUMA nodes ({})",
                             use.memory.nodes.size(), use.memory.problem);
  }
  return out;
}

}  // namespace baltoro::cpu
