#pragma once

// Choices made without a card, held to what a card launched (launch_table/) and to a text in the
// tree that shows every change of a choice.

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "base/file.h"
#include "ops/cuda/launch_table/table.h"

namespace baltoro::cuda::choice_test {

using launch_table::Launch;
using launch_table::Size;
using launch_table::Table;

// What the card that the table was written on launched.
inline const Table& Recorded() {
  static const Table table = [] {
    const Result<std::string> text = ReadFile(BT_LAUNCH_TABLE, uint64_t{64} << 20);
    EXPECT_TRUE(text.ok()) << BT_LAUNCH_TABLE << " cannot be read";
    return text.ok() ? Table::Parse(text.value()) : Table();
  }();
  return table;
}

// Threads, shared bytes and clusters of kernels that are always launched with the same. A plan does
// not have them, so they are taken from the record; what it has is compared.
class FixedSizes {
 public:
  explicit FixedSizes(const Table& recorded) {
    std::istringstream lines(recorded.Text(""));
    for (std::string line; std::getline(lines, line);) {
      if (line.starts_with("  ")) ReadLine(line);
    }
  }

  // Fills in what `launch` leaves at 0.
  void Complete(Launch& launch) const {
    const auto at = sizes_.find(launch.name);
    if (at == sizes_.end()) return;
    if (launch.block.x == 0) launch.block = {at->second.threads, 1, 1};
    if (launch.shared_bytes == 0 && !varying_.contains(launch.name)) {
      launch.shared_bytes = at->second.shared_bytes;
    }
    if (launch.cluster == 0) launch.cluster = at->second.cluster;
  }

 private:
  struct Sizes {
    unsigned threads = 0, shared_bytes = 0, cluster = 0;
    bool operator==(const Sizes&) const = default;
  };

  // "  A..B  NAME GRID/THREADS/SHARED[/cCLUSTER] + NAME .. [#SUM]"
  void ReadLine(const std::string& line) {
    size_t at = line.find("  ", 2);
    while (at != std::string::npos) {
      const size_t end = line.find(" + ", at);
      const std::string part = line.substr(at + 2, end == std::string::npos ? end : end - at - 2);
      const size_t slash = part.find('/');
      if (slash != std::string::npos) ReadPart(part, slash);
      at = end == std::string::npos ? end : end + 1;
    }
  }

  void ReadPart(const std::string& part, size_t slash) {
    const size_t name_end = part.rfind(' ', slash);
    std::string name = part.substr(0, name_end);
    if (name.starts_with(' ')) name.erase(0, 1);
    Sizes sizes;
    char cluster[2] = {};
    std::sscanf(part.c_str() + slash, "/%u/%u/%1[c]%u", &sizes.threads, &sizes.shared_bytes,
                cluster, &sizes.cluster);
    const auto [known, fresh] = sizes_.try_emplace(name, sizes);
    if (!(known->second == sizes)) varying_.insert(name);
  }

  std::map<std::string, Sizes> sizes_;
  std::set<std::string> varying_;
};

// The questions of `mine` as the record answers them: the same intervals of rows, kernels, grids.
inline void ExpectAsRecorded(const Table& mine, const Table& recorded) {
  constexpr size_t kLinesMax = 40;
  const std::vector<std::string> lines = mine.DifferencesFrom(recorded);
  std::string text;
  for (size_t i = 0; i < lines.size() && i < kLinesMax; ++i) text += lines[i] + "\n";
  EXPECT_TRUE(lines.empty()) << "- recorded, + chosen\n" << text;
}

// The choices as the tree has them; with BT_WRITE=1 the file is written anew, below `header`.
// The texts lie in choices.tar.xz, unpacked into the build tree (CMakeLists.txt). After BT_WRITE=1:
//     cd BUILD/src/ops/cuda/choose
//     tar --sort=name --owner=0 --group=0 --mtime=2026-01-01 -cf - *_choices.txt |
//       xz -9e > SOURCE/src/ops/cuda/choose/choices.tar.xz
inline void ExpectAsInTheTree(
    const Table& mine,
    const std::string& path,
    const std::string& header =
        "# What is chosen for which rows. Written by the test that compares it, with "
        "BT_WRITE=1.\n") {
  const char* const write = std::getenv("BT_WRITE");
  if (write != nullptr && std::string(write) == "1") {
    std::ofstream(path, std::ios::binary | std::ios::trunc) << mine.Text(header);
    return;
  }
  const Result<std::string> text = ReadFile(path);
  ASSERT_TRUE(text.ok() && !text.value().empty()) << path << " cannot be read";
  ExpectAsRecorded(mine, Table::Parse(text.value()));
}

}  // namespace baltoro::cuda::choice_test
