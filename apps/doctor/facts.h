#pragma once

// What `baltoro doctor` finds out about one node: plain data, gathered in gather*.cc, judged in
// judge*.cc. A number that could not be had is -1, a text that could not is empty.

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "ops/cpu/cpu_use.h"

namespace baltoro {

// What a card that nobody uses has in use, at most: the driver's own.
inline constexpr int64_t kCardBytesOfNobody = int64_t{1} << 30;

struct CardProcess {
  int64_t pid = 0;
  std::string name;  // empty: of another container or user
  int64_t bytes = -1;
};

struct CardReport {
  std::string name;
  int major = -1, minor = -1;  // compute capability
  int64_t memory_bytes = -1, used_bytes = -1;
  std::vector<CardProcess> processes;
  bool mig = false;
  bool prohibited = false;          // compute mode
  int64_t uncorrected_errors = -1;  // of memory, since the driver was loaded
  int links = -1, links_up = -1;    // NVLink; -1: has none
  int fabric = -1;                  // 0 not there, 1 not begun, 2 under way, 3 complete
};

struct LibraryReport {
  std::string name;     // "libcublasLt.so.13"
  std::string version;  // empty: not found
  std::string reason;   // of that
};

// Measured on all GPUs at the same time.
struct CardRates {
  static constexpr std::array<int64_t, 2> kRows = {1, 64};

  std::vector<double> read_gb_per_s;        // of each GPU's own memory; empty: not measured
  std::array<double, 2> sum_us = {-1, -1};  // of kRows rows of 7168 over the GPUs; -1: one GPU
  std::string problem;                      // why something was not measured
};

struct CardFactsOfNode {
  std::string device_file, pci;  // a card shows itself by these, whatever the driver says
  bool unwanted = false;         // CUDA_VISIBLE_DEVICES names none
  std::string kernel_driver;     // "580.65.06"; empty: no NVIDIA driver
  std::string driver_problem;    // why it does not answer, where it is there
  int cuda_version = -1;         // of libcuda: 13000 is 13.0
  std::vector<CardReport> cards;
  // Of each pair i < j, in order: whether they read each other's memory.
  std::vector<bool> peers;
  std::string module_problem;  // why libbaltoro_cuda.so cannot be used; empty: it can
  LibraryReport cublas, nccl;
  CardRates rates;
};

struct HostFacts {
  std::string cpu;      // "Intel(R) Xeon(R) ..."
  std::string isa;      // cpu::NameOf what a server uses; empty: below AVX2
  cpu::CpuUse cpu_use;  // of a server without flags
  int64_t memory_bytes = -1, available_bytes = -1;
  int64_t group_limit_bytes = -1;  // of the control group
  int64_t memlock_bytes = -1;      // INT64_MAX: unlimited
  int64_t shm_bytes = -1, shm_free_bytes = -1;
  int64_t files_soft = -1, files_hard = -1;
  std::string huge_pages;     // "always", "madvise", "never"
  double read_gb_per_s = -1;  // of memory, all CPUs
  bool clock_known = false, clock_synced = false;
  double clock_error_s = -1;
};

struct PortReport {
  int port = 0;
  std::string use;           // "clients"
  std::string flag;          // of `serve`, that takes another
  std::string problem = {};  // empty: free
};

struct InterfaceReport {
  std::string name;
  std::vector<std::string> addresses;
  bool loopback = false, up = false;
  int64_t megabits = -1;
};

struct NetFacts {
  std::vector<PortReport> ports;
  std::vector<InterfaceReport> interfaces;
  std::vector<std::string> rdma;                  // "mlx5_0 ACTIVE 400 Gb/sec"
  int first_free_port = -1, last_free_port = -1;  // what the kernel deals out to ranks
};

struct SumReport {
  std::string file, wanted, found;
};

struct ModelFacts {
  std::string asked;         // as given; empty: no model was named
  std::string dir, missing;  // one of them
  std::string config_problem, vocabulary_problem;
  std::vector<std::string> problems;  // "FILE: what is wrong"
  int64_t files = 0, bytes = 0;       // of weights
  int64_t elsewhere = 0;              // of those, only the header is here
  double disk_gb_per_s = -1;
  std::string
      disk_problem;        // why the disk could not be measured; empty: it was, or nothing to read
  int64_t disk_bytes = 0;  // that were read to measure it
  bool sums_asked = false;
  int64_t sums_right = 0, sums_unknown = 0;  // files
  std::vector<SumReport> sums_wrong;
};

struct NodeFacts {
  CardFactsOfNode card;
  HostFacts host;
  NetFacts net;
  ModelFacts model;
};

}  // namespace baltoro
