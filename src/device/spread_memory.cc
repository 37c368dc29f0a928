#include "device/spread_memory.h"

#include <linux/mempolicy.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>

#include "base/cpu_topology.h"
#include "base/log.h"
#include "device/host_access.h"

namespace baltoro {
namespace {

constexpr size_t kSpreadLeast = size_t{2} << 20;  // a huge page
constexpr size_t kWordBits = 8 * sizeof(unsigned long);
constexpr size_t kNodesMax = 1024;  // as many as Linux can be built for

// A mask's length for the system, which reads one bit less than it is told.
unsigned long LengthOf(const std::vector<unsigned long>& mask) {
  return mask.size() * kWordBits + 1;
}

// Whose memory this process may take; all of them where the system does not say.
std::vector<int> KeepAllowed(const std::vector<int>& nodes) {
  std::vector<unsigned long> mask(kNodesMax / kWordBits);
  if (syscall(SYS_get_mempolicy, nullptr, mask.data(), LengthOf(mask), nullptr,
              MPOL_F_MEMS_ALLOWED) != 0) {
    return nodes;
  }
  std::vector<int> out;
  std::ranges::copy_if(nodes, std::back_inserter(out), [&mask](int node) {
    const auto at = static_cast<size_t>(node);
    return at < kNodesMax && (mask[at / kWordBits] >> (at % kWordBits) & 1) != 0;
  });
  return out;
}

MemorySpread FindSpread() {
  int policy = MPOL_DEFAULT;
  if (syscall(SYS_get_mempolicy, &policy, nullptr, 0, nullptr, 0) == 0 && policy != MPOL_DEFAULT) {
    return {};
  }
  MemorySpread out{.nodes = KeepAllowed(ReadCpuTopology(CpuSet::Allowed()).nodes), .problem = ""};
  if (out.nodes.size() < 2) return out;
  // Containers refuse this call, unless they are told otherwise: a page shows it.
  const auto bytes = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  void* const page =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) return out;
  const Status tried = Interleave(page, bytes, out.nodes);
  if (!tried.ok()) out.problem = tried.message();
  munmap(page, bytes);
  return out;
}

class SpreadPages final : public HostAccess {
 public:
  Result<void*> Allocate(size_t bytes, const std::string& what) const override {
    BT_ASSIGN_OR_RETURN(void* const data, HostMemory().Allocate(bytes, what));
    const MemorySpread& spread = SpreadOfProcess();
    if (bytes >= kSpreadLeast && spread.nodes.size() > 1 && spread.problem.empty()) {
      const Status dealt = Interleave(data, bytes, spread.nodes);
      if (!dealt.ok()) BT_LOG(Debug, "{} is not interleaved: {}", what, dealt.message());
    }
    return data;
  }
  void Free(void* data, size_t bytes) const override { HostMemory().Free(data, bytes); }
  size_t Available() const override { return HostMemory().Available(); }
};

}  // namespace

const MemorySpread& SpreadOfProcess() {
  static const MemorySpread spread = FindSpread();
  return spread;
}

const Memory& SpreadMemory() {
  static const SpreadPages memory;
  return memory;
}

Status Interleave(void* data, size_t bytes, std::span<const int> nodes) {
  std::vector<unsigned long> mask(kNodesMax / kWordBits);
  for (const int node : nodes) {
    const auto at = static_cast<size_t>(node);
    if (node < 0 || at >= kNodesMax) {
      return InvalidArgument("there is no NUMA node " + std::to_string(node));
    }
    mask[at / kWordBits] |= 1UL << (at % kWordBits);
  }
  if (syscall(SYS_mbind, data, bytes, MPOL_INTERLEAVE, mask.data(), LengthOf(mask), 0) != 0) {
    return Status(Code::kUnavailable, std::string("mbind: ") + std::strerror(errno));
  }
  return {};
}

}  // namespace baltoro
