#pragma once

// Columns of matrices in stored forms: what a rank keeps that holds a part of the inputs.

#include <cstdint>

#include "tensor/weight_form.h"
#include "weights/weight_source.h"

namespace baltoro {

// Turns `rows` whole rows of a quantised matrix of `inputs` columns into columns
// [column, column + columns) of them. The columns begin with a block or group, or lie inside of
// one; groups of kInt4Group are kept whole. Scales of whole rows stay as they are. The bias of
// kInt8Static counts once in the sum of all parts: the part with the first column has it, in the
// others it is 0.
void KeepColumns(WeightForm form,
                 int64_t rows,
                 int64_t inputs,
                 int64_t column,
                 int64_t columns,
                 StoredBytes& bytes);

}  // namespace baltoro
