#pragma once

// What was asked, and the answers as text: intervals of rows with the same launches. Without CUDA,
// so that what chooses kernels without a GPU can be held to the same text.

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace baltoro::cuda::launch_table {

struct Size {
  unsigned x = 0, y = 0, z = 0;
  bool operator==(const Size&) const = default;
};

struct Launch {
  // FILE:Kernel<arguments>; "cuBLASLt" for what the library launches, whose choice is not ours and
  // differs between its versions; "memset", "memcpy".
  std::string name;
  Size grid = {}, block = {};  // zeros where the launch is not ours
  unsigned shared_bytes = 0;   // dynamic
  unsigned cluster = 0;        // blocks; 0: the launch says nothing of clusters

  bool ours() const { return block.x > 0; }
};

// The rows that are asked for between two bounds: all up to 512, then multiples of 64 and those
// beside them. Where two neighbours differ the place is looked for by halving.
struct RowRange {
  int64_t least = 1, most = 8192;
  int64_t every = 512;  // below it each number is asked
};
std::vector<int64_t> RowsAsked(const RowRange& range);

// Launches for so many rows. False: the operation does not take them so.
using Ask = std::function<bool(int64_t rows, std::vector<Launch>& launches)>;

// One line an interval:
//   A..B  KERNEL GRID/BLOCK/SHARED[/cCLUSTER] + KERNEL ... [#SUM]
// GRID and SHARED are those of all of the interval's rows, or FIRST>LAST at its ends; then SUM is
// over those of all rows asked. "none": nothing is launched, "not taken": see Ask.
std::vector<std::string> Intervals(const RowRange& range, const Ask& ask);

class Table {
 public:
  // Each question once.
  void Add(const std::string& question, std::vector<std::string> answer);
  const std::map<std::string, std::vector<std::string>>& answers() const { return answers_; }
  // Sorted; questions with the same answer stand above it together.
  std::string Text(const std::string& header) const;
  static Table Parse(const std::string& text);
  // Null: not asked.
  const std::vector<std::string>* AnswerOf(const std::string& question) const;
  // Those that begin with one of these.
  Table Beginning(const std::vector<std::string>& beginnings) const;
  // The questions that contain `words`.
  Table Containing(const std::string& words) const;
  // Those that begin with them.
  Table StartingWith(const std::string& words) const;
  // Adds the questions of another.
  void Take(const Table& other);
  // Lines of what differs, "-" of `before` and "+" of this one; empty if nothing does.
  std::vector<std::string> DifferencesFrom(const Table& before) const;

 private:
  std::map<std::string, std::vector<std::string>> answers_;
};

}  // namespace baltoro::cuda::launch_table
