#pragma once

// Sets of processors of any number, where cpu_set_t ends at 1,024.

#include <vector>

namespace baltoro {

class CpuSet {
 public:
  // On which the calling thread may run; empty where the system does not say.
  static CpuSet Allowed();

  int count() const;
  bool has(int cpu) const;
  void Remove(int cpu);
  // Ties the calling thread to these; false: the system refuses, as it does with none.
  bool Apply() const;

 private:
  std::vector<unsigned long> words_;  // as the system has it
};

}  // namespace baltoro
