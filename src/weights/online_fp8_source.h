#pragma once

// A source whose bf16 matrices of attention (but kv_b), dense layers and shared experts are blocks
// of fp8, quantised as they are read: the same bytes that `baltoro quantize` would have stored.
// Everything else, and what is quantised already, is passed on as it is.

#include <memory>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "tensor/dtype.h"
#include "weights/weight_source.h"

namespace baltoro {

// Whether a weight of this name is quantised, where it is stored as this type.
bool IsQuantisedOnline(std::string_view name, DType stored);

class OnlineFp8Source final : public WeightSource {
 public:
  explicit OnlineFp8Source(std::unique_ptr<WeightSource> source) : source_(std::move(source)) {}

  std::optional<SourceTensor> Find(std::string_view name,
                                   const std::vector<int64_t>& wanted) override;
  // The numbers as they were before they are quantised.
  Status Read(const SourceTensor& tensor, int64_t row, TensorView out) const override {
    return source_->Read(tensor, row, out);
  }
  Result<StoredMatrix> StoredAs(const SourceTensor& tensor) const override;
  // Refuses values that are not finite.
  Status ReadStored(const SourceTensor& tensor,
                    int64_t row,
                    int64_t rows,
                    StoredBytes& out) const override;
  FileSet* files() const override { return source_->files(); }
  void AddRanges(const SourceTensor& tensor,
                 int64_t row,
                 int64_t rows,
                 std::vector<FileRange>& out) const override;
  std::map<std::string, int64_t> UnusedKinds(int64_t layers) const override {
    return source_->UnusedKinds(layers);
  }
  std::string description() const override { return source_->description(); }

 private:
  bool Quantises(const SourceTensor& tensor) const { return names_.count(tensor.name) > 0; }

  std::unique_ptr<WeightSource> source_;
  std::unordered_set<std::string> names_;  // found, and to be quantised
};

}  // namespace baltoro
