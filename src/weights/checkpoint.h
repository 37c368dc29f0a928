#pragma once

// A checkpoint folder: an index with its shards, or a single file. Headers are read and checked
// when it is opened; data is read in large pieces when asked for.

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "weights/safetensors.h"
#include "weights/weight_source.h"

namespace baltoro {

// The name without the prefixes that some releases put before it: "language_model." with or without
// "model." after it.
std::string CanonicalName(std::string_view name);

// What no version of the model reads: rotary frequencies, KV scales, layers from `layers` on.
bool IsNeverUsed(std::string_view name, int64_t layers);

struct CheckpointTensor {
  std::string stored_name;  // as the file has it, prefix included
  SourceTensor tensor;
};

class Checkpoint final : public WeightSource {
 public:
  // Opens every file of <dir>/model.safetensors.index.json, or <dir>/model.safetensors; of an
  // "ascend" checkpoint, quant_model_weights.safetensors in the same ways. Of a file that only has
  // its header here (kHeaderSuffix) tensors are found, and every read of them fails.
  static Result<Checkpoint> Open(const std::string& dir);

  std::optional<SourceTensor> Find(std::string_view name,
                                   const std::vector<int64_t>& wanted) override;
  Status Read(const SourceTensor& tensor, int64_t row, TensorView out) const override;
  std::string description() const override { return dir_; }
  FileSet* files() const override { return files_.get(); }
  void AddRanges(const SourceTensor& tensor,
                 int64_t row,
                 int64_t rows,
                 std::vector<FileRange>& out) const override;

  // Where bytes of a tensor lie.
  FileRange RangeOf(const SourceTensor& tensor, uint64_t offset, uint64_t bytes) const;
  // Bytes from `offset` of a tensor of any shape. Any thread.
  Status ReadBytes(const SourceTensor& tensor, uint64_t offset, void* out, size_t bytes) const;
  // All tensors, by file and place in it.
  std::vector<CheckpointTensor> tensors() const;

  // The path of the file that holds a tensor by its canonical name; empty: none does.
  std::string FileOf(std::string_view name) const;

  size_t num_tensors() const { return tensors_.size(); }
  std::map<std::string, int64_t> UnusedKinds(int64_t layers) const override;

 private:
  struct Tensor {
    std::string name;  // canonical
    std::string stored_name;
    size_t file = 0;
    DType dtype = DType::kF32;
    std::vector<int64_t> shape;
    uint64_t offset = 0;  // from the start of the file
    bool used = false;
  };

  Checkpoint() : files_(std::make_unique<FileSet>()) {}
  // Adds the tensors of one file for which `wanted` says yes.
  Status AddFile(const std::string& path,
                 const std::function<bool(const std::string& name)>& wanted);
  Status AddIndexedFiles(const std::string& index_path);

  std::string dir_;
  std::unique_ptr<FileSet> files_;
  std::vector<Tensor> tensors_;
  std::unordered_map<std::string, size_t> by_name_;  // canonical name -> tensors_
};

}  // namespace baltoro
