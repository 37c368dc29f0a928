#include "base/cpu_set.h"

#include <sched.h>

#include <bit>
#include <cerrno>

namespace baltoro {
namespace {

constexpr size_t kWordBits = 8 * sizeof(unsigned long);
constexpr size_t kCpusMax = 1 << 20;

const cpu_set_t* SetOf(const std::vector<unsigned long>& words) {
  return reinterpret_cast<const cpu_set_t*>(words.data());
}

}  // namespace

CpuSet CpuSet::Allowed() {
  CpuSet out;
  // The kernel refuses a set that is shorter than its own.
  for (size_t cpus = CPU_SETSIZE; cpus <= kCpusMax; cpus *= 2) {
    out.words_.assign(cpus / kWordBits, 0);
    if (sched_getaffinity(0, cpus / 8, reinterpret_cast<cpu_set_t*>(out.words_.data())) == 0)
      return out;
    if (errno != EINVAL) break;
  }
  return {};
}

int CpuSet::count() const {
  return words_.empty() ? 0 : CPU_COUNT_S(words_.size() * sizeof(unsigned long), SetOf(words_));
}

int CpuSet::end() const {
  for (size_t i = words_.size(); i > 0; --i) {
    if (words_[i - 1] != 0)
      return static_cast<int>(i * kWordBits) - std::countl_zero(words_[i - 1]);
  }
  return 0;
}

bool CpuSet::has(int cpu) const {
  const auto at = static_cast<size_t>(cpu);
  return cpu >= 0 && at / kWordBits < words_.size() &&
         (words_[at / kWordBits] >> (at % kWordBits) & 1) != 0;
}

void CpuSet::Add(int cpu) {
  const auto at = static_cast<size_t>(cpu);
  if (cpu < 0 || at >= kCpusMax) return;
  if (at / kWordBits >= words_.size()) words_.resize(at / kWordBits + 1);
  words_[at / kWordBits] |= 1UL << (at % kWordBits);
}

void CpuSet::Remove(int cpu) {
  if (has(cpu)) {
    const auto at = static_cast<size_t>(cpu);
    words_[at / kWordBits] &= ~(1UL << (at % kWordBits));
  }
}

bool CpuSet::Apply() const {
  return !words_.empty() &&
         sched_setaffinity(0, words_.size() * sizeof(unsigned long), SetOf(words_)) == 0;
}

}  // namespace baltoro
