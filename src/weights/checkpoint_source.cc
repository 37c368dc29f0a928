#include "weights/checkpoint_source.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <utility>

#include "weights/tensor_names.h"

namespace baltoro {
namespace {

bool AllScalesFinite(const std::vector<char>& bytes, DType type) {
  const auto count = static_cast<int64_t>(bytes.size()) / SizeOf(type);
  uint32_t largest = 0;  // magnitudes order as their bits do
  if (type == DType::kBf16) {
    const auto* scales = reinterpret_cast<const uint16_t*>(bytes.data());
    for (int64_t i = 0; i < count; ++i) largest = std::max<uint32_t>(largest, scales[i] & 0x7FFF);
    return largest < 0x7F80;
  }
  const auto* scales = reinterpret_cast<const uint32_t*>(bytes.data());
  for (int64_t i = 0; i < count; ++i) largest = std::max(largest, scales[i] & 0x7FFFFFFF);
  return largest < 0x7F800000;
}

}  // namespace

Result<std::unique_ptr<CheckpointSource>> CheckpointSource::Open(const std::string& dir) {
  BT_ASSIGN_OR_RETURN(QuantDescription description, ReadQuantDescription(dir));
  return Open(dir, std::make_shared<const QuantDescription>(std::move(description)));
}

Result<std::unique_ptr<CheckpointSource>> CheckpointSource::Open(
    const std::string& dir, std::shared_ptr<const QuantDescription> description) {
  BT_ASSIGN_OR_RETURN(Checkpoint checkpoint, Checkpoint::Open(dir));
  return std::unique_ptr<CheckpointSource>(
      new CheckpointSource(std::move(checkpoint), std::move(description)));
}

std::optional<SourceTensor> CheckpointSource::Find(std::string_view name,
                                                   const std::vector<int64_t>& wanted) {
  if (const auto known = found_.find(std::string(name)); known != found_.end()) {
    return known->second;
  }
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
  if (matrix.problem.ok()) found_.emplace(name, out);
  matrices_.push_back(std::move(matrix));
  return out;
}

CheckpointSource::Matrix CheckpointSource::FindMatrix(const std::string& module) {
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
  return matrix;
}

Status CheckpointSource::CheckDescription(const std::string& module,
                                          const StoredForm& stored) const {
  if (description_->forms.empty()) return {};
  const WeightForm* said = description_->Find(module);
  if (said == nullptr) {
    return InvalidArgument(fmt::format("{} does not name it", kQuantDescriptionFile));
  }
  if (*said == stored.form) return {};
  return InvalidArgument(fmt::format("{} says {}, its tensors are {}", kQuantDescriptionFile,
                                     AscendType(*said), WeightFormName(stored.form)));
}

Status CheckpointSource::CheckStatedShape(const Matrix& matrix) const {
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

const CheckpointSource::Matrix& CheckpointSource::MatrixOf(const SourceTensor& tensor) const {
  BT_CHECK(tensor.handle < matrices_.size());
  return matrices_[tensor.handle];
}

Status CheckpointSource::ProblemOf(const Matrix& matrix) const {
  return WithPlace(matrix, matrix.problem);
}

Status CheckpointSource::WithPlace(const Matrix& matrix, const Status& problem) const {
  if (problem.ok()) return {};
  const std::string module(ModuleOf(matrix.name));
  std::string where = checkpoint_.description();
  for (const char* parameter : {"weight", "weight_packed"}) {
    const std::string file = checkpoint_.FileOf(fmt::format("{}.{}", module, parameter));
    if (!file.empty()) where = file;
  }
  return Status(problem.code(), fmt::format("{}: {}: {}", where, module, problem.message()));
}

Status CheckpointSource::Read(const SourceTensor& tensor, int64_t row, TensorView out) const {
  const Matrix& matrix = MatrixOf(tensor);
  BT_RETURN_IF_ERROR(ProblemOf(matrix));
  const StoredForm& stored = matrix.stored;
  if (stored.form == WeightForm::kBf16) return checkpoint_.Read(matrix.plain, row, out);
  BT_CHECK(out.rank == 2 && out.contiguous() && out.dtype == DType::kF32);
  const int64_t rows = out.dim(0);
  BT_CHECK(out.dim(1) == stored.shape.inputs && row >= 0 && rows >= 0 &&
           row + rows <= stored.shape.outputs);
  if (row == 0) BT_RETURN_IF_ERROR(WithPlace(matrix, CheckStatedShape(matrix)));
  std::vector<std::vector<char>> parts(matrix.parts.size());
  for (size_t i = 0; i < parts.size(); ++i) {
    if (!matrix.forms[i].optional) BT_RETURN_IF_ERROR(ReadPart(matrix, i, row, rows, parts[i]));
  }
  BT_RETURN_IF_ERROR(CheckNumbers(matrix, row, rows, parts[1]));
  DecodeRows(stored.form, stored.shape, parts, row, rows, out.as<float>());
  return {};
}

FileRange CheckpointSource::PartRange(const Matrix& matrix,
                                      size_t part,
                                      int64_t row,
                                      int64_t rows) const {
  const FormTensor& form = matrix.forms[part];
  const SourceTensor& tensor = *matrix.parts[part];
  int64_t begin = 0, end = SizeOf(tensor.dtype);
  for (const int64_t dim : tensor.shape) end *= dim;
  if (form.matrix_rows > 0) {
    begin = form.BytesBefore(row);
    end =
        form.BytesBefore((row + rows + form.matrix_rows - 1) / form.matrix_rows * form.matrix_rows);
  }
  return checkpoint_.RangeOf(tensor, static_cast<uint64_t>(begin),
                             static_cast<uint64_t>(end - begin));
}

Status CheckpointSource::ReadPart(
    const Matrix& matrix, size_t part, int64_t row, int64_t rows, std::vector<char>& out) const {
  const FileRange range = PartRange(matrix, part, row, rows);
  const SourceTensor& tensor = *matrix.parts[part];
  out.resize(range.bytes);
  return checkpoint_.ReadBytes(tensor, range.offset - checkpoint_.RangeOf(tensor, 0, 0).offset,
                               out.data(), out.size());
}

void CheckpointSource::AddRanges(const SourceTensor& tensor,
                                 int64_t row,
                                 int64_t rows,
                                 std::vector<FileRange>& out) const {
  const Matrix& matrix = MatrixOf(tensor);
  if (!matrix.problem.ok()) return;
  if (matrix.stored.form == WeightForm::kBf16) {
    checkpoint_.AddRanges(matrix.plain, row, rows, out);
    return;
  }
  for (size_t i = 0; i < matrix.parts.size(); ++i) {
    // scale_bias is for kernels of others. What does not lie along rows is brought with the first
    // piece; later ones find it in the page cache.
    if (!matrix.parts[i] || matrix.forms[i].parameter == "scale_bias") continue;
    if (row > 0 && matrix.forms[i].matrix_rows == 0) continue;
    out.push_back(PartRange(matrix, i, row, rows));
  }
}

Status CheckpointSource::CheckZeros(const Matrix& matrix,
                                    size_t part,
                                    int64_t row,
                                    int64_t rows) const {
  if (!matrix.parts[part]) return {};
  std::vector<char> bytes;
  BT_RETURN_IF_ERROR(ReadPart(matrix, part, row, rows, bytes));
  const auto* offsets = reinterpret_cast<const float*>(bytes.data());
  if (std::all_of(offsets, offsets + rows, [](float offset) { return offset == 0; })) return {};
  return InvalidArgument(fmt::format("{}: {} is not zero: weights with an offset are not known",
                                     checkpoint_.description(), matrix.parts[part]->name));
}

Status CheckpointSource::CheckNumbers(const Matrix& matrix,
                                      int64_t row,
                                      int64_t rows,
                                      const std::vector<char>& scales) const {
  const WeightForm form = matrix.stored.form;
  if (form == WeightForm::kInt8 || form == WeightForm::kInt4) {
    BT_RETURN_IF_ERROR(CheckZeros(matrix, 2, row, rows));
  }
  const DType type = form == WeightForm::kInt4Group ? DType::kBf16 : DType::kF32;
  if (AllScalesFinite(scales, type)) return {};
  return InvalidArgument(fmt::format("{}: {} holds a value that is not finite",
                                     checkpoint_.description(), matrix.parts[1]->name));
}

Result<StoredMatrix> CheckpointSource::StoredAs(const SourceTensor& tensor) const {
  const Matrix& matrix = MatrixOf(tensor);
  BT_RETURN_IF_ERROR(ProblemOf(matrix));
  if (matrix.stored.form == WeightForm::kBf16) return StoredMatrix{PlainForm(tensor.dtype)};
  StoredMatrix out{.form = matrix.stored.form};
  if (out.form != WeightForm::kInt8Static) return out;
  const auto read = [&](size_t part, float& value) {
    return checkpoint_.ReadBytes(*matrix.parts[part], 0, &value, sizeof(value));
  };
  BT_RETURN_IF_ERROR(read(2, out.input_scale));
  BT_RETURN_IF_ERROR(read(3, out.input_offset));
  if (!(out.input_scale > 0) || !std::isfinite(out.input_scale) ||
      !std::isfinite(out.input_offset)) {
    return InvalidArgument(fmt::format("{}: {}: input_scale is {}, input_offset {}",
                                       checkpoint_.description(), ModuleOf(matrix.name),
                                       out.input_scale, out.input_offset));
  }
  return out;
}

Status CheckpointSource::ReadStored(const SourceTensor& tensor,
                                    int64_t row,
                                    int64_t rows,
                                    StoredBytes& out) const {
  const Matrix& matrix = MatrixOf(tensor);
  const StoredForm& stored = matrix.stored;
  BT_CHECK(matrix.problem.ok() && !IsPlain(stored.form));
  BT_CHECK(row >= 0 && rows >= 0 && row + rows <= stored.shape.outputs);
  if (row == 0) BT_RETURN_IF_ERROR(WithPlace(matrix, CheckStatedShape(matrix)));
  BT_RETURN_IF_ERROR(ReadPart(matrix, 0, row, rows, out.values));
  BT_RETURN_IF_ERROR(ReadPart(matrix, 1, row, rows, out.scales));
  out.bias.clear();
  if (stored.form == WeightForm::kInt8Static) {
    out.scales = ProductScales(out.scales, stored.shape.outputs, row, rows);
    out.bias.resize(static_cast<size_t>(rows));
    const auto offset = static_cast<uint64_t>(row) * sizeof(int32_t);
    BT_RETURN_IF_ERROR(checkpoint_.ReadBytes(*matrix.parts[4], offset, out.bias.data(),
                                             out.bias.size() * sizeof(int32_t)));
  }
  return CheckNumbers(matrix, row, rows, out.scales);
}

}  // namespace baltoro
