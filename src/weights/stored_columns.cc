#include "weights/stored_columns.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "weights/quant/matrix_codec.h"

namespace baltoro {
namespace {

int64_t CeilDiv(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

// Bytes [begin, begin + count) of each of `rows` rows of `width` bytes, moved together.
void KeepBytes(
    std::vector<char>& bytes, int64_t rows, int64_t width, int64_t begin, int64_t count) {
  BT_CHECK(begin >= 0 && begin + count <= width && rows * width <= std::ssize(bytes));
  for (int64_t r = 0; r < rows && count > 0; ++r) {
    std::memmove(bytes.data() + r * count, bytes.data() + r * width + begin,
                 static_cast<size_t>(count));
  }
  bytes.resize(static_cast<size_t>(rows * count));
}

}  // namespace

void KeepColumns(WeightForm form,
                 int64_t rows,
                 int64_t inputs,
                 int64_t column,
                 int64_t columns,
                 StoredBytes& bytes) {
  BT_CHECK(!IsPlain(form));
  switch (form) {
    case WeightForm::kFp8Block: {
      BT_CHECK(column % kFp8Block == 0 || column / kFp8Block == (column + columns - 1) / kFp8Block);
      constexpr int64_t kScale = sizeof(float);
      KeepBytes(bytes.values, rows, inputs, column, columns);
      KeepBytes(bytes.scales, CeilDiv(rows, kFp8Block), CeilDiv(inputs, kFp8Block) * kScale,
                column / kFp8Block * kScale, CeilDiv(columns, kFp8Block) * kScale);
      break;
    }
    case WeightForm::kInt4Group: {
      BT_CHECK(column % kInt4Group == 0 && columns % kInt4Group == 0);
      constexpr int64_t kScale = sizeof(Bf16);
      KeepBytes(bytes.values, rows, inputs / 2, column / 2, columns / 2);
      KeepBytes(bytes.scales, rows, inputs / kInt4Group * kScale, column / kInt4Group * kScale,
                columns / kInt4Group * kScale);
      break;
    }
    case WeightForm::kInt4:
      KeepBytes(bytes.values, rows / 2, inputs, column, columns);
      break;
    default:
      KeepBytes(bytes.values, rows, inputs, column, columns);
  }
  if (column > 0) std::fill(bytes.bias.begin(), bytes.bias.end(), 0);
}

}  // namespace baltoro
