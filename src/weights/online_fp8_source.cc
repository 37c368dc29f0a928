#include "weights/online_fp8_source.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/check.h"
#include "weights/quant/form_tensors.h"
#include "weights/quant/matrix_codec.h"
#include "weights/tensor_names.h"

namespace baltoro {
namespace {

struct Rows {
  int64_t begin, end;
};

// Whole blocks around some rows: a scale is that of all the rows of its block.
Rows BlocksAround(const SourceTensor& tensor, int64_t row, int64_t rows) {
  const int64_t end = (row + rows + kFp8Block - 1) / kFp8Block * kFp8Block;
  return {row / kFp8Block * kFp8Block, std::min(end, tensor.shape[0])};
}

}  // namespace

bool IsQuantisedOnline(std::string_view name, DType stored) {
  if (stored != DType::kBf16 || ParameterOf(name) != "weight" || !IsProjection(ModuleOf(name))) {
    return false;
  }
  const TensorRole role = RoleOf(name);
  return role == TensorRole::kAttention || role == TensorRole::kDense ||
         role == TensorRole::kShared;
}

std::optional<SourceTensor> OnlineFp8Source::Find(std::string_view name,
                                                  const std::vector<int64_t>& wanted) {
  auto tensor = source_->Find(name, wanted);
  if (!tensor || tensor->shape.size() != 2 || !IsQuantisedOnline(name, tensor->dtype)) {
    return tensor;
  }
  const auto stored = source_->StoredAs(*tensor);
  if (stored.ok() && stored.value().form == WeightForm::kBf16) names_.insert(tensor->name);
  return tensor;
}

Result<StoredMatrix> OnlineFp8Source::StoredAs(const SourceTensor& tensor) const {
  if (Quantises(tensor)) return StoredMatrix{.form = WeightForm::kFp8Block};
  return source_->StoredAs(tensor);
}

Status OnlineFp8Source::ReadStored(const SourceTensor& tensor,
                                   int64_t row,
                                   int64_t rows,
                                   StoredBytes& out) const {
  if (!Quantises(tensor)) return source_->ReadStored(tensor, row, rows, out);
  BT_CHECK(row >= 0 && rows > 0 && row + rows <= tensor.shape[0]);
  const Rows read = BlocksAround(tensor, row, rows);
  BT_CHECK(row == read.begin || row + rows <= read.begin + kFp8Block);
  const int64_t columns = tensor.shape[1], count = (read.end - read.begin) * columns;
  std::vector<Bf16> plain(static_cast<size_t>(count));
  BT_RETURN_IF_ERROR(
      source_->Read(tensor, read.begin,
                    TensorView(plain.data(), DType::kBf16, {read.end - read.begin, columns})));
  if (!AllFinite(plain.data(), count)) {
    return InvalidArgument(fmt::format("{}: tensor {}: holds a value that is not finite",
                                       source_->description(), tensor.name));
  }
  std::vector<std::vector<char>> parts;
  EncodeRows(WeightForm::kFp8Block, {.outputs = tensor.shape[0], .inputs = columns}, plain.data(),
             read.end - read.begin, parts);
  const auto first = parts[0].begin() + (row - read.begin) * columns;
  out.values.assign(first, first + rows * columns);
  out.scales = std::move(parts[1]);
  out.bias.clear();
  return {};
}

void OnlineFp8Source::AddRanges(const SourceTensor& tensor,
                                int64_t row,
                                int64_t rows,
                                std::vector<FileRange>& out) const {
  if (Quantises(tensor) && rows > 0) {
    const Rows read = BlocksAround(tensor, row, rows);
    row = read.begin;
    rows = read.end - read.begin;
  }
  source_->AddRanges(tensor, row, rows, out);
}

}  // namespace baltoro
