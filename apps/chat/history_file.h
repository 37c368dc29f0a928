#pragma once

// The lines that were typed in earlier conversations, one a line of a text file, the newest last.
// Several programs may write it at once: each adds lines. One thread.

#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace baltoro {

class HistoryFile {
 public:
  static constexpr size_t kLinesMax = 1000;
  static constexpr size_t kLineBytesMax = 4096;  // a longer line is not kept

  // `path` empty: nothing is read or written.
  explicit HistoryFile(std::string path) : path_(std::move(path)) {}

  // The newest kLinesMax lines. Makes the folder, and shortens a file that has grown to twice that.
  // An error: nothing will be written either.
  Result<std::vector<std::string>> Load();
  // After Load.
  Status Add(std::string_view line);

 private:
  std::string path_;
};

}  // namespace baltoro
