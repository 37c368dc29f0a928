#include "weights/decoded_source.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <utility>

#include "weights/tensor_names.h"

namespace baltoro {

Result<std::unique_ptr<DecodedSource>> DecodedSource::Open(const std::string& dir) {
  BT_ASSIGN_OR_RETURN(Checkpoint checkpoint, Checkpoint::Open(dir));
  std::unique_ptr<DecodedSource> source(new DecodedSource(std::move(checkpoint)));
  BT_ASSIGN_OR_RETURN(source->description_, ReadQuantDescription(dir));
  return source;
}

std::optional<SourceTensor> DecodedSource::Find(std::string_view name,
                                                const std::vector<int64_t>& wanted) {
  const std::string module(ModuleOf(name));
  Matrix matrix;
  if (ParameterOf(name) == "weight" && IsProjection(module)) {
    matrix = FindMatrix(module);
    if (matrix.problem.code() == Code::kNotFound) return std::nullopt;
  } else {
    auto plain = checkpoint_.Find(name, wanted);
    if (!plain) return std::nullopt;
    matrix.plain = std::move(*plain);
  }
  matrix.name = name;
  SourceTensor out = matrix.plain;
  if (matrix.stored.form != WeightForm::kBf16) {
    out.dtype = DType::kF32;
    out.shape = {matrix.stored.shape.outputs, matrix.stored.shape.inputs};
  } else if (!matrix.problem.ok()) {
    out.shape = wanted;  // what is there makes no matrix at all
  }
  out.name = name;
  out.handle = matrices_.size();
  matrices_.push_back(std::move(matrix));
  return out;
}

DecodedSource::Matrix DecodedSource::FindMatrix(const std::string& module) {
  Matrix matrix;
  const ParameterLookup find = [&](std::string_view parameter) {
    return checkpoint_.Find(fmt::format("{}.{}", module, parameter), {});
  };
  auto stored = FindStoredForm(module, find);
  if (!stored.ok()) {
    matrix.problem = stored.status();
    return matrix;
  }
  matrix.stored = std::move(stored).value();
  if (matrix.stored.form == WeightForm::kBf16) {
    matrix.plain = *find("weight");
    matrix.problem = CheckDescription(module, matrix.stored);
    return matrix;
  }
  const std::vector<std::string> problems = TensorProblems(matrix.stored, find);
  if (!problems.empty()) {
    matrix.problem = InvalidArgument(fmt::format("{}", fmt::join(problems, "; ")));
    return matrix;
  }
  matrix.forms = TensorsOfForm(matrix.stored.form, matrix.stored.shape);
  for (const FormTensor& form : matrix.forms) matrix.parts.push_back(find(form.parameter));
  matrix.problem = CheckDescription(module, matrix.stored);
  if (matrix.problem.ok()) matrix.problem = CheckStatedShape(matrix);
  return matrix;
}

Status DecodedSource::CheckDescription(const std::string& module, const StoredForm& stored) const {
  if (description_.forms.empty()) return {};
  const WeightForm* said = description_.Find(module);
  if (said == nullptr) {
    return InvalidArgument(fmt::format("{} does not name it", kQuantDescriptionFile));
  }
  if (*said == stored.form) return {};
  return InvalidArgument(fmt::format("{} says {}, its tensors are {}", kQuantDescriptionFile,
                                     AscendType(*said), WeightFormName(stored.form)));
}

Status DecodedSource::CheckStatedShape(const Matrix& matrix) const {
  for (size_t i = 0; i < matrix.forms.size(); ++i) {
    if (matrix.forms[i].parameter != "weight_shape" || !matrix.parts[i]) continue;
    std::array<int64_t, 2> stated{};
    if (matrix.parts[i]->dtype == DType::kI64) {
      BT_RETURN_IF_ERROR(checkpoint_.ReadBytes(*matrix.parts[i], 0, stated.data(), sizeof(stated)));
    } else {
      std::array<int32_t, 2> narrow{};
      BT_RETURN_IF_ERROR(checkpoint_.ReadBytes(*matrix.parts[i], 0, narrow.data(), sizeof(narrow)));
      stated = {narrow[0], narrow[1]};
    }
    const MatrixShape& shape = matrix.stored.shape;
    if (stated[0] != shape.outputs || stated[1] != shape.inputs) {
      return InvalidArgument(fmt::format("weight_shape says [{}, {}], weight_packed makes [{}, {}]",
                                         stated[0], stated[1], shape.outputs, shape.inputs));
    }
  }
  return {};
}

Status DecodedSource::Read(const SourceTensor& tensor, int64_t row, TensorView out) const {
  BT_CHECK(tensor.handle < matrices_.size());
  const Matrix& matrix = matrices_[tensor.handle];
  if (!matrix.problem.ok()) {
    return Status(matrix.problem.code(), fmt::format("{}: {}: {}", checkpoint_.description(),
                                                     matrix.name, matrix.problem.message()));
  }
  if (matrix.stored.form == WeightForm::kBf16) return checkpoint_.Read(matrix.plain, row, out);
  BT_CHECK(out.rank == 2 && out.contiguous() && out.dtype == DType::kF32);
  BT_CHECK(out.dim(1) == matrix.stored.shape.inputs && row >= 0 && out.dim(0) >= 0 &&
           row + out.dim(0) <= matrix.stored.shape.outputs);
  return ReadRows(matrix, row, out.dim(0), out.as<float>());
}

Status DecodedSource::ReadRows(const Matrix& matrix, int64_t row, int64_t rows, float* out) const {
  std::vector<std::vector<char>> parts(matrix.parts.size());
  for (size_t i = 0; i < matrix.parts.size(); ++i) {
    const FormTensor& form = matrix.forms[i];
    if (form.optional) continue;
    int64_t begin = 0, end = 0;
    for (const int64_t dim : matrix.parts[i]->shape) end = end == 0 ? dim : end * dim;
    end *= SizeOf(matrix.parts[i]->dtype);
    if (form.matrix_rows > 0) {
      begin = form.BytesBefore(row);
      end = form.BytesBefore((row + rows + form.matrix_rows - 1) / form.matrix_rows *
                             form.matrix_rows);
    }
    parts[i].resize(static_cast<size_t>(end - begin));
    BT_RETURN_IF_ERROR(checkpoint_.ReadBytes(*matrix.parts[i], static_cast<uint64_t>(begin),
                                             parts[i].data(), parts[i].size()));
  }
  DecodeRows(matrix.stored.form, matrix.stored.shape, parts, row, rows, out);
  return {};
}

WeightForm DecodedSource::FormOf(const SourceTensor& tensor) const {
  BT_CHECK(tensor.handle < matrices_.size());
  return matrices_[tensor.handle].stored.form;
}

}  // namespace baltoro
