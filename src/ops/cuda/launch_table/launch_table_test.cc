// The launches of every operation of the module, held to those recorded in launch_table.tar.xz:
// which kernel computes what, for every form of weights, every shape of the family and any number
// of rows up to 8192. Runs on a card or without one, through tools/emulate_gpu.sh.
//
//   ops_cuda_launch_table_test [--only WORDS]              compares, prints what differs
//   ops_cuda_launch_table_test --write FILE [--only WORDS] writes the table
//
// A choice that is meant to change is recorded anew:
//
//   tools/emulate_gpu.sh ops_cuda_launch_table_test --write build/launch_table.txt
//   tar -C build --mtime=@0 --owner=0 --group=0 --numeric-owner -c launch_table.txt |
//     xz -9e >src/ops/cuda/launch_table/launch_table.tar.xz
//
// Operations are captured and never run: tensors have places and no contents. What the table does
// not have:
//   - OpsTable::sample, which waits for its results: its launch is asked for alone;
//   - upload, plan_attention, wait: no launches, or outside of any capture;
//   - banks of f32 matrices, which end the process;
//   - parameters of a launch beyond its grid, and whether it overlaps the one ahead;
//   - joined operations of ranks (comm), pictures.

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string_view>

#include "device/cuda/device_info.h"
#include "ops/cuda/launch_table/ask.h"

namespace baltoro::cuda::launch_table {
namespace {

constexpr char kPath[] = BT_LAUNCH_TABLE;
constexpr int kMultiprocessors = 132;  // of the card that the table was written on
constexpr char kHeader[] =
    "# What each operation launches: written by ops_cuda_launch_table_test --write.\n"
    "#   FIRST..LAST row  FILE:KERNEL GRID/THREADS/SHARED BYTES[/cCLUSTER] + ... [#sum]\n"
    "# What depends on the rows is given for the first and the last, with a sum over all.\n";
constexpr size_t kLinesMax = 400;

constexpr struct {
  const char* name;
  void (*ask)(Asker&);
} kParts[] = {{"card", TellCard},
              {"linear", AskLinear},
              {"experts", AskExperts},
              {"expert inputs", AskExpertInputs},
              {"attention", AskAttention},
              {"attention inputs", AskAttentionInputs},
              {"attention half", AskAttentionLayer},
              {"rows", AskRows},
              {"sampling", AskSampling}};

Table Ask(const std::string& only) {
  Asker asker(only);
  const auto begin = std::chrono::steady_clock::now();
  for (const auto& part : kParts) {
    part.ask(asker);
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begin;
    std::printf("%6.1f s  %s\n", taken.count(), part.name);
    std::fflush(stdout);
  }
  return asker.table();
}

int Write(const std::string& path, const std::string& only) {
  const std::string text = Ask(only).Text(kHeader);
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << text;
  file.close();
  std::printf("%s: %d KiB\n", path.c_str(), static_cast<int>(text.size() / 1024));
  return file ? 0 : 1;
}

int Check(const std::string& only) {
  std::ifstream file(kPath, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  if (!file) {
    std::printf("%s cannot be read\n", kPath);
    return 1;
  }
  const Table before = Table::Parse(text.str()).Containing(only);
  const std::vector<std::string> lines = Ask(only).DifferencesFrom(before);
  for (size_t i = 0; i < lines.size() && i < kLinesMax; ++i) std::printf("%s\n", lines[i].c_str());
  if (lines.size() > kLinesMax) std::printf("and %zu lines more\n", lines.size() - kLinesMax);
  std::printf("%s\n", lines.empty() ? "as recorded" : "differs from the table");
  return lines.empty() ? 0 : 1;
}

int Main(int argc, char** argv) {
  std::string path, only;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string_view flag = argv[i];
    (flag == "--write" ? path : only) = argv[i + 1];
  }
  if (UsableDeviceCount() == 0) {
    std::printf("SKIPPED: no GPU that this build can use\n");
    return 77;
  }
  const Result<DeviceInfo> info = CurrentDeviceInfo();
  if (!info.ok() || info.value().multiprocessors != kMultiprocessors) {
    std::printf("SKIPPED: the table is of a GPU with %d multiprocessors\n", kMultiprocessors);
    return 77;
  }
  return path.empty() ? Check(only) : Write(path, only);
}

}  // namespace
}  // namespace baltoro::cuda::launch_table

int main(int argc, char** argv) {
  // As the module itself does, so that no kernel is loaded in a capture.
  setenv("CUDA_MODULE_LOADING", "EAGER", 0);
  // An emulated GPU leaves out what plans do ahead of a capture: nobody reads it.
  setenv("EMU_RUN", "0", 0);
  return baltoro::cuda::launch_table::Main(argc, argv);
}
