#pragma once

// A quantised checkpoint seen as plain matrices: "X.weight" is found whatever form its tensors
// have, and read as the numbers that they stand for, in f32. What is not quantised is passed on as
// it is.

#include <memory>
#include <string>
#include <vector>

#include "weights/checkpoint.h"
#include "weights/quant/stored_form.h"
#include "weights/quant_description.h"

namespace baltoro {

class DecodedSource final : public WeightSource {
 public:
  // Opens a folder as Checkpoint does, and its description where there is one.
  static Result<std::unique_ptr<DecodedSource>> Open(const std::string& dir);

  // What does not fit together (a missing scale, a description that says another form) is told by
  // Read.
  std::optional<SourceTensor> Find(std::string_view name,
                                   const std::vector<int64_t>& wanted) override;
  Status Read(const SourceTensor& tensor, int64_t row, TensorView out) const override;
  std::string description() const override { return checkpoint_.description(); }

  // The form in which a found tensor is stored.
  WeightForm FormOf(const SourceTensor& tensor) const;

 private:
  struct Matrix {
    std::string name;
    StoredForm stored;
    SourceTensor plain;  // of kBf16
    std::vector<FormTensor> forms;
    std::vector<std::optional<SourceTensor>> parts;  // of each form tensor
    Status problem;
  };

  explicit DecodedSource(Checkpoint checkpoint) : checkpoint_(std::move(checkpoint)) {}
  Matrix FindMatrix(const std::string& module);
  Status CheckDescription(const std::string& module, const StoredForm& stored) const;
  Status CheckStatedShape(const Matrix& matrix) const;
  Status ReadRows(const Matrix& matrix, int64_t row, int64_t rows, float* out) const;

  Checkpoint checkpoint_;
  QuantDescription description_;  // empty: none
  std::vector<Matrix> matrices_;  // SourceTensor::handle is the place in it
};

}  // namespace baltoro
