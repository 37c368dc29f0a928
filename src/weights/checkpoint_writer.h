#pragma once

// Writes a sharded checkpoint whose tensors are known before their data: files and headers are made
// first, then any thread writes any piece of any tensor to its place.

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "tensor/dtype.h"

namespace baltoro {

struct OutputTensor {
  std::string name;
  DType dtype = DType::kBf16;
  std::vector<int64_t> shape;
};

class CheckpointWriter {
 public:
  // Cuts `tensors`, in their order, into files <dir>/<stem>-00001-of-0000N.safetensors of at most
  // `shard_bytes` of data (more only for a tensor that is larger alone). The folder is there.
  static Result<CheckpointWriter> Create(const std::string& dir,
                                         const std::string& stem,
                                         std::vector<OutputTensor> tensors,
                                         int64_t shard_bytes);
  ~CheckpointWriter();
  CheckpointWriter(CheckpointWriter&& other) noexcept;
  CheckpointWriter& operator=(CheckpointWriter&&) = delete;

  // Writes bytes at `offset` of tensor number `tensor`. Any thread.
  Status Write(size_t tensor, int64_t offset, const void* data, size_t bytes) const;
  // Brings all files to the disk and writes <stem>.safetensors.index.json. Once, after the last
  // Write.
  Status Finish();

  size_t num_files() const { return files_.size(); }
  int64_t total_bytes() const { return total_bytes_; }  // of tensors

 private:
  struct File {
    std::string name;
    int fd = -1;
  };
  struct Place {
    size_t file = 0;
    int64_t offset = 0;  // from the start of the file
  };

  CheckpointWriter() = default;
  Status CreateFile(const std::string& name, const std::vector<size_t>& members);

  std::string dir_, stem_;
  std::vector<OutputTensor> tensors_;
  std::vector<Place> places_;  // of each tensor
  std::vector<File> files_;
  int64_t total_bytes_ = 0;
};

// Writes a whole file and brings it to the disk.
Status WriteWholeFile(const std::string& path, std::string_view text);

}  // namespace baltoro
