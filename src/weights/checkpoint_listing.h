#pragma once

// All tensors of a checkpoint folder from its headers alone, and everything that is wrong with its
// files: where Checkpoint::Open stops at the first thing amiss, this goes on.

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "weights/safetensors.h"

namespace baltoro {

struct ListedTensor {
  std::string name;       // as the file has it
  std::string canonical;  // without the release's prefix
  size_t file = 0;        // in CheckpointListing::files
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  int64_t bytes = 0;
};

struct ListedFile {
  std::string name;
  int64_t bytes = 0;
};

struct FileProblem {
  std::string where;  // file, or tensor
  std::string what;
};

// What is told of a file of which a download for another node left the header (kHeaderSuffix).
inline constexpr std::string_view kHeaderAloneProblem =
    "only its header is here, as of a download for one node of several";

struct CheckpointListing {
  std::vector<ListedFile> files;
  std::vector<ListedTensor> tensors;
  int64_t stated_bytes = -1;  // that the index states for all tensors; -1: nothing
  std::vector<FileProblem> problems;
};

// `on_file` is told each file before it is read; there may be none.
using OnListedFile = std::function<void(const std::string& name)>;
CheckpointListing ListCheckpoint(const std::string& dir, const OnListedFile& on_file = {});

}  // namespace baltoro
