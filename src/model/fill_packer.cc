#include "model/fill_packer.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "weights/stored_columns.h"

namespace baltoro {
namespace {

constexpr size_t kOwnBytes = size_t{4} << 20;  // at least: pieces differ a little

TensorView Staged(std::vector<char>& memory, DType type, int64_t rows, int64_t width) {
  const auto bytes = static_cast<size_t>(rows * width * SizeOf(type));
  if (memory.size() < bytes) memory.resize(bytes);
  return TensorView(memory.data(), type, {rows, width});
}

// Some columns, moved together in place.
TensorView Columns(const TensorView& from, int64_t column, int64_t columns) {
  const int64_t size = SizeOf(from.dtype);
  auto* to = static_cast<char*>(from.data);
  for (int64_t r = 0; r < from.dim(0); ++r) {
    const char* row = static_cast<const char*>(from.data) + (r * from.dim(1) + column) * size;
    std::memmove(to + r * columns * size, row, static_cast<size_t>(columns * size));
  }
  return TensorView(from.data, from.dtype, {from.dim(0), columns});
}

TensorView Transposed(std::vector<char>& memory, const TensorView& from) {
  const TensorView to = Staged(memory, from.dtype, from.dim(1), from.dim(0));
  const auto transpose = [&]<typename Element>(Element) {
    for (int64_t i = 0; i < from.dim(0); ++i) {
      for (int64_t j = 0; j < from.dim(1); ++j) {
        to.row<Element>(j)[i] = from.row<const Element>(i)[j];
      }
    }
  };
  if (from.dtype == DType::kF32) {
    transpose(float{});
  } else {
    transpose(Bf16{});
  }
  return to;
}

void Convert(const TensorView& to, const TensorView& from) {
  const int64_t count = from.num_elements();
  if (to.dtype == DType::kF32) {
    for (int64_t i = 0; i < count; ++i) to.as<float>()[i] = ToFloat(from.as<const Bf16>()[i]);
  } else {
    for (int64_t i = 0; i < count; ++i) to.as<Bf16>()[i] = ToBf16(from.as<const float>()[i]);
  }
}

}  // namespace

Status FillPacker::Run(const FillPiece& piece) {
  if (piece.fill->target == nullptr) return Fill(piece, 0);
  if (LiesByRows(*piece.fill, ops_)) return RunByRows(piece);
  const auto place = static_cast<size_t>(piece.fill - fills_);
  WeightFill staged = *piece.fill;
  {
    const FillTimer timer(seconds_.packing);
    BT_ASSIGN_OR_RETURN(staged.rows.data, staging_.Host(place));
  }
  staged.matrix.data = staged.rows.data;
  BT_RETURN_IF_ERROR(Fill({&staged, piece.begin, piece.end}, 0));
  const FillTimer timer(seconds_.copying);
  return staging_.Done(place);
}

Status FillPacker::RunByRows(const FillPiece& piece) {
  WeightFill staged = *piece.fill;
  const bool packed = staged.kind != WeightFill::Kind::kRows;
  const bool transposed = staged.kind == WeightFill::Kind::kPackTransposed;
  const DType type = packed ? PlainType(staged.matrix.form) : staged.rows.dtype;
  const int64_t width = packed ? staged.matrix.k : staged.rows.dim(1);
  // A transposed piece is all of its matrix.
  const int64_t rows = transposed ? staged.matrix.n : piece.end - piece.begin;
  const int64_t first = transposed ? 0 : piece.begin;
  const auto bytes = static_cast<size_t>(rows * width * SizeOf(type));
  if (own_.bytes() < bytes) {
    const Memory& memory = ops_.staging == nullptr ? HostMemory() : *ops_.staging;
    own_ = Buffer();
    BT_ASSIGN_OR_RETURN(own_,
                        Buffer::Create(std::max(bytes, kOwnBytes), "weights on their way", memory));
  }
  staged.matrix.data = own_.data();
  staged.matrix.n = rows;
  staged.rows = TensorView(own_.data(), type, {rows, width});
  BT_RETURN_IF_ERROR(Fill({&staged, piece.begin, piece.end}, first));
  const FillTimer timer(seconds_.copying);
  return ops_.memory->CopyInBeside(
      static_cast<char*>(piece.fill->target) + first * width * SizeOf(type), own_.data(), bytes);
}

Status FillPacker::Fill(const FillPiece& piece, int64_t origin) {
  const WeightFill& fill = *piece.fill;
  const bool by_rows = fill.target != nullptr && LiesByRows(fill, ops_);
  int64_t part_begin = 0;  // of the part, in rows of the whole
  for (const MatrixPart& part : fill.parts) {
    const int64_t begin = std::max(piece.begin, part_begin);
    const int64_t end = std::min(piece.end, part_begin + part.rows);
    if (begin < end) {
      BT_RETURN_IF_ERROR(
          Place(fill, part, begin - part_begin, begin - origin, end - origin, by_rows));
    }
    part_begin += part.rows;
  }
  return {};
}

Status FillPacker::Read(const MatrixPart& part, int64_t row, const TensorView& out) {
  const FillTimer timer(seconds_.reading);
  return source_.Read(part.tensor, row, out);
}

void FillPacker::Pack(const PackedMatrix& to, int64_t row, const StoredRows& rows) {
  ops_.pack_rows(to.form, const_cast<void*>(to.data), to.n, to.k, row, rows);
}

Status FillPacker::Place(const WeightFill& fill,
                         const MatrixPart& part,
                         int64_t at,
                         int64_t begin,
                         int64_t end,
                         bool by_rows) {
  const int64_t rows = end - begin;
  const PackedMatrix& to = fill.matrix;
  if (fill.kind == WeightFill::Kind::kRows && fill.rows.dtype == part.tensor.dtype) {
    return Read(part, part.row + at, fill.rows.rows(begin, rows));
  }
  if (KeepsForm(fill)) {
    {
      const FillTimer timer(seconds_.reading);
      BT_RETURN_IF_ERROR(source_.ReadStored(part.tensor, part.row + at, rows, stored_));
    }
    const FillTimer timer(seconds_.packing);
    if (part.columns > 0) {
      KeepColumns(to.form, rows, part.tensor.shape.back(), part.column, part.columns, stored_);
    }
    Pack(to, begin,
         {.form = to.form,
          .rows = rows,
          .k = to.k,
          .values = stored_.values.data(),
          .scales = stored_.scales.data(),
          .bias = stored_.bias.empty() ? nullptr : stored_.bias.data()});
    return {};
  }
  if (by_rows && fill.kind == WeightFill::Kind::kPack && part.columns == 0 &&
      part.tensor.dtype == PlainType(to.form)) {
    return Read(part, part.row + at, fill.rows.rows(begin, rows));
  }
  TensorView read = Staged(read_, part.tensor.dtype, rows, part.tensor.shape.back());
  BT_RETURN_IF_ERROR(Read(part, part.row + at, read));
  const FillTimer timer(seconds_.packing);
  if (part.columns > 0) read = Columns(read, part.column, part.columns);
  switch (fill.kind) {
    case WeightFill::Kind::kPack:
      Pack(to, begin, RowsOf(read));
      break;
    case WeightFill::Kind::kPackTransposed:
      Pack(to, 0, RowsOf(Transposed(transposed_, read)));
      break;
    case WeightFill::Kind::kRows:
      Convert(fill.rows.rows(begin, rows), read);
      break;
  }
  return {};
}

}  // namespace baltoro
