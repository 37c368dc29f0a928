#pragma once

// Loading as data: a list of places to fill, each with the checkpoint rows it is made of, cut into
// pieces of a few megabytes that any thread can take.

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "ops/ops.h"
#include "weights/weight_source.h"

namespace baltoro {

// Rows of a source tensor. They follow the rows of the part before.
struct MatrixPart {
  SourceTensor tensor;
  int64_t row = 0;
  int64_t rows = 0;
};

// What a place is filled with.
struct WeightFill {
  enum class Kind : uint8_t {
    kPack,            // `parts`, packed into `matrix`; a form that is not plain is theirs as well
    kPackTransposed,  // the transpose of the only part, packed into `matrix`
    kRows,            // the only part, converted to `rows`, row-major
  };
  Kind kind = Kind::kPack;
  PackedMatrix matrix;
  TensorView rows;
  std::vector<MatrixPart> parts;
};

// Runs the fills on `threads` threads of its own. The first error stops all.
Status RunFills(const std::vector<WeightFill>& fills,
                const WeightSource& source,
                const OpsTable& ops,
                int threads,
                const LoadProgress& progress);

}  // namespace baltoro
