#pragma once

// A checkpoint folder as a source of matrices in whatever form: "X.weight" is found whether its
// tensors are plain or quantised, and read as the numbers that they stand for, in f32, or as it is
// stored. What is not quantised is passed on as it is.

#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "weights/checkpoint.h"
#include "weights/quant/stored_form.h"
#include "weights/quant_description.h"

namespace baltoro {

class CheckpointSource final : public WeightSource {
 public:
  // Opens a folder as Checkpoint does, and its description where there is one.
  static Result<std::unique_ptr<CheckpointSource>> Open(const std::string& dir);
  // With the description of the folder, read before.
  static Result<std::unique_ptr<CheckpointSource>> Open(
      const std::string& dir, std::shared_ptr<const QuantDescription> description);

  // What does not fit together (a missing scale, a description that says another form) is told by
  // StoredAs, and by Read.
  std::optional<SourceTensor> Find(std::string_view name,
                                   const std::vector<int64_t>& wanted) override;
  Status Read(const SourceTensor& tensor, int64_t row, TensorView out) const override;
  Result<StoredMatrix> StoredAs(const SourceTensor& tensor) const override;
  Status ReadStored(const SourceTensor& tensor,
                    int64_t row,
                    int64_t rows,
                    StoredBytes& out) const override;
  std::map<std::string, int64_t> UnusedKinds(int64_t layers) const override {
    return checkpoint_.UnusedKinds(layers);
  }
  std::string description() const override { return checkpoint_.description(); }
  FileSet* files() const override { return checkpoint_.files(); }
  void AddRanges(const SourceTensor& tensor,
                 int64_t row,
                 int64_t rows,
                 std::vector<FileRange>& out) const override;

  const Checkpoint& checkpoint() const { return checkpoint_; }

 private:
  struct Matrix {
    std::string name;
    StoredForm stored;
    SourceTensor plain;  // of kBf16
    std::vector<FormTensor> forms;
    std::vector<std::optional<SourceTensor>> parts;  // of each form tensor
    Status problem;
  };

  CheckpointSource(Checkpoint checkpoint, std::shared_ptr<const QuantDescription> description)
      : checkpoint_(std::move(checkpoint)), description_(std::move(description)) {}
  Matrix FindMatrix(const std::string& module);
  Status CheckDescription(const std::string& module, const StoredForm& stored) const;
  // With the first rows, so that thousands of small reads need not come before all others.
  Status CheckStatedShape(const Matrix& matrix) const;
  Status CheckZeros(const Matrix& matrix, size_t part, int64_t row, int64_t rows) const;
  // What no read of a matrix may bring, stored or decoded: weights with an offset, and scales (the
  // bytes of the second part) that are not finite.
  Status CheckNumbers(const Matrix& matrix,
                      int64_t row,
                      int64_t rows,
                      const std::vector<char>& scales) const;
  const Matrix& MatrixOf(const SourceTensor& tensor) const;
  Status ProblemOf(const Matrix& matrix) const;
  // A problem with the file and the matrix it is in.
  Status WithPlace(const Matrix& matrix, const Status& problem) const;
  // Where in a part matrix rows [row, row + rows) lie; all of it, where that does not lie along
  // rows.
  FileRange PartRange(const Matrix& matrix, size_t part, int64_t row, int64_t rows) const;
  // What matrix rows [row, row + rows) take in a part; all of it, where that does not lie along
  // rows.
  Status ReadPart(
      const Matrix& matrix, size_t part, int64_t row, int64_t rows, std::vector<char>& out) const;

  Checkpoint checkpoint_;
  std::shared_ptr<const QuantDescription> description_;  // empty: none
  std::vector<Matrix> matrices_;                         // SourceTensor::handle is the place in it
  std::unordered_map<std::string, SourceTensor> found_;  // by the name that was asked for
};

}  // namespace baltoro
