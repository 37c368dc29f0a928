#pragma once

// Sets of processors of any number, where cpu_set_t ends at 1,024.

#include <vector>

namespace baltoro {

class CpuSet {
 public:
  // On which the calling thread may run; empty where the system does not say.
  static CpuSet Allowed();

  int count() const;
  int end() const;  // one more than the highest number in it; 0 where it is empty
  bool has(int cpu) const;
  void Add(int cpu);  // numbers that no system has are left out
  void Remove(int cpu);
  // Ties the calling thread to these; false: the system refuses, as it does with none.
  bool Apply() const;

 private:
  std::vector<unsigned long> words_;  // as the system has it
};

}  // namespace baltoro
